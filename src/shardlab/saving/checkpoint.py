"""Checkpoints of sharded runs: each rank writes its own shards, and a save is either whole or
absent.

    save("runs/7", model, optimizer, step=300)           # on every rank
    saved = resume("runs/7", model, optimizer)           # on every rank: as many, more or fewer, in
                                                         # the same stage or another
    saved.step, saved.extra                              # 300, what was given; None if nothing was
                                                         # ever saved

How a save becomes whole: the ranks write their files into a folder named `step-300.partial-` and
eight random digits, each flushed to the disk; rank 0 adds a manifest with every file's size and
SHA-256; then the folder gets its name, `step-300`, in one move that a file system makes at once or
not at all. If the ranks end before that, the last good save stays as it was. It is only removed
afterwards. If one rank cannot do its part, all ranks raise the same error: see `run_together`.

While one run saves into a folder, another is refused, by a lock that the system releases when the
process ends. On a file system without locks the random digits keep the two apart, and the second
rename to the same name fails. A local POSIX file system keeps all of the promise; the chapter says
what NFS and object stores keep.

The checksum of a file is compared before any of its contents are used.
"""

import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from ..common.collective_wire import place
from ..common.torch_internals import tree_leaves
from .durable import Damaged, flush_folder, read, read_json, write, write_json
from .folders import MANIFEST, PARTIAL, file_of, is_ours, older, rest_of, saves, step_of
from .parts import RankHolds, held_by, parts_of_run, saving_group, sum_of_bits
from .resharding import Layout, buffers_of, holds_of, own_parts, state_types
from .states import FORMAT, parts_in_manifest, random_states, refuse_another, set_random_states
from .together import SaveFailed, only_run, run_together


class Saved(NamedTuple):
    step: int
    extra: dict


def save(
    folder,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    step: int,
    *,
    extra: dict | None = None,
    keep: int = 2,
    group=None,
):
    """Save model, optimizer and random states: PyTorch's, Python's `random`, and NumPy's where it
    is loaded. A buffer that differs from rank 0's, such as a running mean, is saved by its rank.
    Gradients are not saved: save after step(). All ranks call this function with the same
    arguments; where tensor parallelism or a pipeline has cut the model, all its parts go into the
    one folder.

    extra   what else is to come back, on every rank rank 0's (of its part): a scheduler's
            state_dict, a position in the data, tensors that all ranks have alike
    keep    how many saves to leave, the newest; older ones are removed when this one is whole
    group   the ranks that train this model, if they are not the world; ranks that share a model by
            ZeRO alone know each other

    Raises ValueError on all ranks, before anything is written, if ranks that should hold the same
    do not, if the folder has a save of this step or a later one, or if extra could not be read
    again; SaveFailed on all ranks, with the reason of the first rank that could not write.
    """
    for name, value, least in (("step", step, 0), ("keep", keep, 1)):
        # True is an int, too: `step-True` would never be found again
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} = {value!r}: it must be a whole number from {least} on.")
    folder, group = Path(folder), saving_group(model, optimizer, group)
    whole, run = folder / f"step-{step}", optimizer.state_dict()
    failed, (n, me) = (SaveFailed, f"could not write to {folder}"), place(group)
    to = f"step {step} for {folder.absolute()}"
    everyone, held, buffers = compare_ranks(to, model, optimizer, group, failed, True, extra)
    parts = parts_of_run(everyone)
    number, part = next((k, part) for k, part in enumerate(parts) if me in part.ranks)
    ranks, written = part.ranks, part.written[part.ranks.index(me)]
    own, first = everyone[me].buffers, everyone[ranks[0]].buffers

    def begin():
        if (found := saves(folder)) and step_of(found[0]) >= step:
            raise ValueError(
                f"step = {step}: {found[0].name} is there already, and nothing is written over."
                " Resume from it, move it away, or take another folder."
            )
        for left in folder.iterdir():  # of an unfinished save
            if PARTIAL.fullmatch(left.name) and is_ours(left):
                shutil.rmtree(left)
        made = f"{whole.name}.partial-{secrets.token_hex(4)}"
        (folder / made).mkdir()
        return made

    def write_own():
        return write(
            partial / file_of(me),
            dict(
                chunks=own_parts(held, run["state"], written),
                random=random_states(),
                buffers={name: buffers[name] for name in buffers if own[name] != first[name]},
            ),
        )

    def write_rest():
        if me != ranks[0]:
            return None
        rest = partial / rest_of(number)
        written = write(
            rest,
            dict(
                kinds=state_types(held, run["state"]),
                buffers=buffers,
                settings=run["param_groups"],
                extra={} if extra is None else extra,
            ),
        )
        try:
            read(rest, *written)
        except Damaged:
            raise ValueError(
                "extra has something that is only read from a file one trusts: give numbers,"
                " strings, tensors, and lists and dicts of them."
            ) from None
        return written

    def finish():
        for name, (size, _) in files.items():
            if (partial / name).stat().st_size != size:
                raise OSError(f"{name} is not as it was written: is there another run?")
        parts_there = [part._asdict() for part in parts]
        manifest = dict(format=FORMAT, step=step, files=files, parts=parts_there)
        write_json(partial / MANIFEST, manifest)
        flush_folder(partial)
        os.rename(partial, whole)
        flush_folder(folder)
        with suppress(OSError):
            for old in [found for found in saves(folder) if is_ours(found, whole=True)][keep:]:
                # a half save never looks like a whole one
                shutil.rmtree(old.rename(f"{old}.partial-{secrets.token_hex(4)}"))

    with only_run(folder, group, failed):
        partial = folder / run_together(begin, group, failed, only_rank_0=True)[0]
        try:
            files = dict(zip(map(file_of, range(n)), run_together(write_own, group, failed)))
            rests = run_together(write_rest, group, failed)
            files |= {rest_of(k): rests[part.ranks[0]] for k, part in enumerate(parts)}
            run_together(finish, group, failed, only_rank_0=True)
        finally:
            if me == 0 and partial.exists():  # on a full disk it would take the room
                shutil.rmtree(partial, ignore_errors=True)


def resume(
    folder, model: nn.Module, optimizer: torch.optim.Optimizer, *, group=None
) -> Saved | None:
    """Restore the newest save: the model, the optimizer with its learning rates and other settings,
    and on the same number of ranks their random states and their own buffers. On another number of
    ranks all take rank 0's buffers and keep their random states. The number of replicas or of
    ranks of ZeRO is free, a model is cut as it was. All ranks call this function; `group` is as in
    save. None if there is no save.

    Raises Damaged if a file differs from the saved one, ValueError if the save is of another model
    or optimizer; then nothing is changed. An older save is never used automatically: move the
    newest save away.
    """
    folder, group, loaded = Path(folder), saving_group(model, optimizer, group), []
    failed, (_, me) = (Damaged, f"could not read {folder}"), place(group)
    everyone, held, buffers = compare_ranks(
        str(folder.absolute()), model, optimizer, group, failed, False
    )
    part = next(part for part in parts_of_run(everyone) if me in part.ranks)

    def choose():  # on one rank, so that all resume from the same
        if not (found := saves(folder)):
            return None
        manifest = read_json(found[0] / MANIFEST)
        parts_in_manifest(manifest, found[0])
        return manifest

    def load():
        place = folder / f"step-{manifest['step']}"
        parts, here = parts_in_manifest(manifest, place), part.contents
        number = next((k for k, each in enumerate(parts) if each.contents == here), 0)
        refuse_another(manifest["step"], parts[number].contents, here)
        ranks, layout = parts[number].ranks, Layout(parts[number].written)
        wanted = {file for one in held for file, *_ in layout.sources(one)}
        own = part.ranks.index(me) if len(part.ranks) == len(ranks) else None

        def content(name):
            return read(place / name, *manifest["files"][name])

        files = {rank: content(file_of(ranks[rank])) for rank in wanted | ({own} - {None})}
        rest = content(rest_of(number))
        chunks = {rank: file["chunks"] for rank, file in files.items()}
        restored = list(layout.restored(held, chunks, rest["kinds"]))
        mine = files.get(own, {})
        loaded.extend([restored, rest, mine, {**rest["buffers"], **mine.get("buffers", {})}])

    try:
        manifest, *_ = run_together(choose, group, failed, only_rank_0=True)
        if manifest is None:
            return None
        run_together(load, group, failed)
    except Damaged as damaged:
        raise Damaged(f"{damaged} {older(folder)}") from None
    restored, rest, of_this_rank, saved_buffers = loaded
    with torch.no_grad():
        for tensor, _, value, _ in restored:
            tensor.copy_(value)
        for name, buffer in buffers.items():
            buffer.copy_(saved_buffers[name])
    states = {number: state for _, number, _, state in restored if state}
    groups = [
        now | then | {"params": now["params"]}
        for now, then in zip(optimizer.state_dict()["param_groups"], rest["settings"], strict=True)
    ]
    optimizer.load_state_dict(dict(state=states, param_groups=groups))
    for bucket in getattr(optimizer, "buckets", []):
        optimizer.collectives.all_gather(bucket.flat, bucket.group)
    if of_this_rank:
        set_random_states(of_this_rank["random"])
    return Saved(manifest["step"], rest["extra"])


def compare_ranks(
    to: str, model, optimizer, group, failed, values: bool, extra=None
) -> tuple[list[RankHolds], list, dict]:
    """(what each rank holds, the elements that this one does, its buffers). All ranks call it."""
    here = []

    def held():
        here.extend([list(holds_of(model, optimizer)), buffers_of(model)])
        held = held_by(to, *here, model, optimizer, group, values)
        if tensors := [leaf for leaf in tree_leaves(extra) if isinstance(leaf, torch.Tensor)]:
            held.sums["the tensors in extra"] = sum(map(sum_of_bits, tensors))
        return held

    return run_together(held, group, failed), *here
