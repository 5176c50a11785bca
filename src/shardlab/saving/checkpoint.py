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

Two runs that save into one folder: while one saves, the other is refused (by a lock on the folder,
which the system releases when the process ends). On a file system without locks the random digits
keep the two apart, and the second rename to the same name fails.

Limits of the promise: a local POSIX file system keeps all of it. On NFS the rename is one move on
the server, but a client that lost the reply may report a failure for a save that is there; locks
depend on the mount. An object store has no rename of folders: save to a local disk and copy whole
saves from there, the manifest last.

The checksum of a file is compared before any of its contents are used: one flipped bit in a weight
changes no shape and raises no error, so torch.load and torch.distributed.checkpoint let it pass.
resharding.py decides which file gets which part of a run, and how other ranks read it.
"""

import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from shardlab.saving.durable import Damaged, flush_folder, read, read_json, write, write_json
from shardlab.saving.folders import (
    MANIFEST,
    PARTIAL,
    REST,
    file_of,
    is_ours,
    older,
    saves,
    step_of,
)
from shardlab.saving.resharding import (
    Layout,
    buffers_of,
    contents,
    flats_of,
    own_parts,
    sharding_group,
    state_types,
)
from shardlab.saving.states import (
    FORMAT,
    check_manifest,
    hashes_of,
    random_states,
    refuse_another,
    set_random_states,
    settings,
)
from shardlab.saving.together import SaveFailed, only_run, run_together


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
    All ranks call this function with the same arguments.

    extra   what else is to come back, on every rank rank 0's: a scheduler's state_dict, a position
            in the data
    keep    how many saves to leave, the newest; older ones are removed when this one is whole
    group   of ranks that hold the same, for a plain model; a sharded one knows its own. Each group
            has a folder of its own

    Raises ValueError if the folder has a save of this step or a later one, or if extra could not be
    read again; SaveFailed on all ranks, with the reason of the first rank that could not write.
    """
    if not is_whole(step) or step < 0:
        raise ValueError(f"step = {step!r}: it must be a whole number from 0 on.")
    if not is_whole(keep) or keep < 1:
        raise ValueError(
            f"keep = {keep!r}: it must be a whole number from 1 on, because the save"
            " just made stays."
        )
    folder, group = Path(folder), sharding_group(model, optimizer) or group
    whole, own = folder / f"step-{step}", file_of(dist.get_rank(group))
    flats, states = list(flats_of(model, optimizer, group)), optimizer.state_dict()["state"]
    buffers = buffers_of(model)

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
            partial / own,
            dict(
                chunks=[own_parts(flat, states, group) for flat in flats],
                random=random_states(),
                buffers={
                    name: buffer
                    for name, buffer in buffers.items()
                    if hashes[me][name] != hashes[0].get(name)
                },
            ),
        )

    def write_rest():
        written = write(
            partial / REST,
            dict(
                kinds=[state_types(flat, states) for flat in flats],
                buffers=buffers,
                settings=settings(optimizer),
                extra={} if extra is None else extra,
            ),
        )
        try:
            read(partial / REST, *written)
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
        write_json(
            partial / MANIFEST,
            dict(
                format=FORMAT,
                step=step,
                ranks=dist.get_world_size(group),
                files=files,
                flats=[flat.parameters for flat in flats],
                contents=contents(model, flats, optimizer),
            ),
        )
        flush_folder(partial)
        os.rename(partial, whole)
        flush_folder(folder)
        with suppress(OSError):
            for old in [found for found in saves(folder) if is_ours(found, whole=True)][keep:]:
                # a half save never looks like a whole one
                shutil.rmtree(old.rename(f"{old}.partial-{secrets.token_hex(4)}"))

    failed, me = (SaveFailed, f"could not write to {folder}"), dist.get_rank(group)
    with only_run(folder, group, failed):
        partial = folder / run_together(begin, group, failed, only_rank_0=True)[0]
        try:
            hashes = run_together(lambda: hashes_of(buffers), group, failed)
            written = run_together(write_own, group, failed)
            files = {file_of(rank): each for rank, each in enumerate(written)}
            files[REST], *_ = run_together(write_rest, group, failed, only_rank_0=True)
            run_together(finish, group, failed, only_rank_0=True)
        finally:
            if me == 0 and partial.exists():  # on a full disk it would take the room
                shutil.rmtree(partial, ignore_errors=True)


def resume(
    folder, model: nn.Module, optimizer: torch.optim.Optimizer, *, group=None
) -> Saved | None:
    """Restore the newest save: the model, the optimizer with its learning rates and other settings,
    and on the same number of ranks their random states and their own buffers. On another number of
    ranks all take rank 0's buffers and keep their random states. All ranks call this function;
    `group` is as in save. None if there is no save.

    Raises Damaged if a file differs from the saved one, ValueError if the save is of another model
    or optimizer; then nothing is changed. An older save is never used automatically: move the
    newest save away.
    """
    folder, group = Path(folder), sharding_group(model, optimizer) or group
    flats, loaded = list(flats_of(model, optimizer, group)), []
    me, n = dist.get_rank(group), dist.get_world_size(group)

    def choose():  # on one rank, so that all resume from the same
        if not (found := saves(folder)):
            return None
        manifest = read_json(found[0] / MANIFEST)
        check_manifest(manifest, found[0])
        return manifest

    def load():
        refuse_another(manifest, contents(model, flats, optimizer))
        place, layout = (
            folder / f"step-{manifest['step']}",
            Layout(manifest["flats"], manifest["ranks"]),
        )
        wanted = {piece.rank for flat in flats for piece in layout.pieces(flat)} | (
            {me} if n == layout.ranks else set()
        )
        files = {
            rank: read(place / file_of(rank), *manifest["files"][file_of(rank)]) for rank in wanted
        }
        rest, chunks = (
            read(place / REST, *manifest["files"][REST]),
            {rank: file["chunks"] for rank, file in files.items()},
        )
        restored = [layout.restored(flat, chunks, rest["kinds"]) for flat in flats]
        loaded.extend([restored, rest, files[me] if n == layout.ranks else {}])

    failed = Damaged, f"could not read {folder}"
    try:
        manifest, *_ = run_together(choose, group, failed, only_rank_0=True)
        if manifest is None:
            return None
        run_together(load, group, failed)
    except Damaged as damaged:
        raise Damaged(f"{damaged} {older(folder)}") from None
    restored, rest, of_this_rank = loaded
    saved_buffers = {**rest["buffers"], **of_this_rank.get("buffers", {})}
    with torch.no_grad():
        for flat, (values, _) in zip(flats, restored):
            for tensor, value in zip(flat.tensors, values):
                tensor.copy_(value)
        for name, buffer in buffers_of(model).items():
            buffer.copy_(saved_buffers[name])
    states = {
        number: state
        for flat, (_, own) in zip(flats, restored)
        for number, state in zip(flat.numbers, own)
        if state
    }
    groups = [
        now | then
        for now, then in zip(optimizer.state_dict()["param_groups"], rest["settings"], strict=True)
    ]
    optimizer.load_state_dict(dict(state=states, param_groups=groups))
    for bucket in getattr(optimizer, "buckets", []):
        optimizer.collectives.all_gather(bucket.flat, optimizer.group)
    if of_this_rank:
        set_random_states(of_this_rank["random"])
    return Saved(manifest["step"], rest["extra"])


def is_whole(value) -> bool:
    """Whether the value is a whole number. True is not: `step-True` would never be found again."""
    return isinstance(value, int) and not isinstance(value, bool)
