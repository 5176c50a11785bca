"""Saving what lies in shards: each rank writes its own, and a save is either whole or not there.

    save("runs/7", model, optimizer, step=300)           # on every rank
    saved = resume("runs/7", model, optimizer)           # on every rank, also where there are more or fewer of them
    saved.step, saved.extra                              # 300, what was given; None if nothing was ever saved

How a save becomes whole: the ranks write their files into a folder named `step-300.partial`, each flushed to the disk; rank 0 adds a
manifest with every file's size and SHA-256; then the folder gets its name, `step-300`, in one move that a file system makes at
once or not at all. Whatever ends the ranks before that leaves the last good save as it was, and it is only removed after that. If
one rank cannot write, all of them say so.

Before anything of a file is used, its checksum is compared: one flipped bit in a weight changes no shape and raises no error, so
torch.load and torch.distributed.checkpoint let it pass.

What is saved of a flat tensor of stage 1, 2 or 3 (see zero/flat.py) are chunks of it, and for each the optimizer's states. A rank of
another world needs other chunks of the same flat tensors: it takes the parts of the files that overlap with them.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .zero.flat import chunk_of
from .zero.stage3 import sharded_units

MANIFEST = "manifest.json"


class SaveFailed(RuntimeError):
    """A rank could not write. The saves from before are as they were."""


class Damaged(RuntimeError):
    """A file is not what was saved."""


class Saved(NamedTuple):
    step: int
    extra: dict


class Shard(NamedTuple):
    """This rank's chunk of one flat tensor of `elements`. `number` is its place in the optimizer."""
    name: str
    tensor: nn.Parameter
    elements: int
    chunk: range
    number: int | None


def save(folder, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, *, extra: dict | None = None, group=None, keep: int = 2):
    """Save model and optimizer. All ranks of the group call it, with the same arguments.

    extra   what else is to come back, on every rank rank 0's: a scheduler's state_dict, a position in the data
    keep    how many saves to leave, the newest; older ones are removed when this one is whole

    Raises SaveFailed on all ranks, with the reason of the first that could not write.
    """
    if not keep >= 1:
        raise ValueError(f"keep = {keep!r}: at least the save just made must stay.")
    folder, me = Path(folder), dist.get_rank(group)
    whole, partial = folder / f"step-{step}", folder / f"step-{step}.partial"
    if whole.exists():
        raise ValueError(f"step = {step}: {whole.name} is there already, and a save is never written over.")
    shards, states = list(shards_of(model, optimizer, group)), optimizer.state_dict()["state"]
    written, trouble = None, ""
    try:
        if me == 0:
            shutil.rmtree(partial, ignore_errors=True)  # of a save that did not come to its end
            partial.mkdir(parents=True)
        dist.barrier(group)
        mine = {"shards": {s.name: [s.tensor.detach().clone(), states.get(s.number, {})] for s in shards}}
        if me == 0:
            mine |= {"rest": rest_of(model, shards, optimizer), "groups": settings(optimizer), "extra": extra or {}}
        written = write(partial / f"rank-{me}.pt", mine)
    except (OSError, RuntimeError) as error:  # RuntimeError is what torch.save makes of some
        trouble = f"rank {me} could not write to {folder}: {getattr(error, 'strerror', None) or error}."
    files = agree(trouble, group, written)
    try:
        if me == 0:
            layout = [[s.name, s.elements] for s in shards]
            manifest = dict(step=step, ranks=len(files), layout=layout, files=files)
            with open(partial / MANIFEST, "w") as file:
                json.dump(manifest | {"sha256": digest(manifest)}, file)
                flush(file)
            flush_folder(partial)
            os.rename(partial, whole)
            flush_folder(folder)
            for old in saves(folder)[keep:]:
                shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        trouble = f"rank {me} could not write to {folder}: {error.strerror or error}."
    agree(trouble, group)


def resume(folder, model: nn.Module, optimizer: torch.optim.Optimizer, *, group=None) -> Saved | None:
    """Bring back the newest save into a model and an optimizer sharded in the same flat tensors, on any number of ranks. All ranks of
    the group call it. None if there is no save.

    Raises Damaged if a file is not what was saved, ValueError if the save is of another layout. Nothing is changed then.
    """
    found = saves(Path(folder))
    if not found:
        return None
    manifest = read_manifest(found[0])
    shards = list(shards_of(model, optimizer, group))
    layout = [[s.name, s.elements] for s in shards]
    if layout != manifest["layout"]:
        raise ValueError(f"{found[0].name} has flat tensors {manifest['layout']}, here are {layout}: shard with the same stage, "
                         "units and bucket_bytes.")
    n, trouble, pieces = manifest["ranks"], "", {}
    try:
        for rank, (size, sha256) in enumerate(manifest["files"]):
            if rank == 0 or any(common(s, chunk_of(rank, s.elements, n)) for s in shards):
                pieces[rank] = read(found[0] / f"rank-{rank}.pt", size, sha256)
    except Damaged as damaged:
        others = ", ".join(path.name for path in found[1:])
        trouble = f"{damaged} " + (f"Older saves: {others}." if others else "There is no older save.")
    agree(trouble, group, error=Damaged)
    states = {}
    with torch.no_grad():
        for s in shards:
            starts = {rank: chunk_of(rank, s.elements, n).start for rank in pieces}
            saved = {rank: piece["shards"][s.name] for rank, piece in pieces.items()}
            s.tensor.copy_(overlap(s, [(starts[rank], chunk) for rank, (chunk, _) in saved.items()]))
            first_chunk, first_state = saved[0]
            if s.number is not None and first_state:
                states[s.number] = {
                    key: overlap(s, [(starts[rank], state[key]) for rank, (_, state) in saved.items()])
                    if is_chunk(value, first_chunk) else value for key, value in first_state.items()}
        for key, value in rest_of(model, shards, optimizer).items():
            value.copy_(pieces[0]["rest"][key])
    count = iter(range(sum(len(g["params"]) for g in optimizer.param_groups)))
    groups = [settings | dict(params=[next(count) for _ in now["params"]])
              for settings, now in zip(pieces[0]["groups"], optimizer.param_groups, strict=True)]
    optimizer.load_state_dict(dict(state=states, param_groups=groups))
    for bucket in getattr(optimizer, "buckets", []):
        optimizer.collectives.all_gather(bucket.flat, optimizer.group)
    return Saved(manifest["step"], pieces[0]["extra"])


# --- what there is to save -----------------------------------------------------------------------------------------------

def shards_of(model: nn.Module, optimizer, group) -> Iterator[Shard]:
    """Every flat tensor that is cut, in an order that all ranks share."""
    if hasattr(optimizer, "buckets"):  # stages 1 and 2
        flats = [(f"bucket {number}", bucket.shard, bucket.flat.numel()) for number, bucket in enumerate(optimizer.buckets)]
        numbers = {id(bucket.shard): number for number, bucket in enumerate(optimizer.buckets)}
    else:
        names = {id(p): name for name, p in model.named_parameters()}
        flats = [(names[id(f.shard)], f.shard, f.full.numel()) for m in sharded_units(model) for f in m.sharded_unit.flats]
        numbers = {id(p): number for number, p in enumerate(p for g in optimizer.param_groups for p in g["params"])}
    n, me = dist.get_world_size(group), dist.get_rank(group)
    for name, shard, elements in flats:
        yield Shard(name, shard, elements, chunk_of(me, elements, n), numbers.get(id(shard)))


def common(shard: Shard, chunk: range) -> range:
    return range(max(chunk.start, shard.chunk.start), min(chunk.stop, shard.chunk.stop))


def rest_of(model: nn.Module, shards: list[Shard], optimizer) -> dict[str, Tensor]:
    """What every rank has whole: buffers, and in stages 1 and 2 parameters that are not trained."""
    sharded = {id(s.tensor) for s in shards} | {id(p) for b in getattr(optimizer, "buckets", []) for p in b.parameters}
    return {name: value for name, value in model.state_dict(keep_vars=True).items() if id(value) not in sharded}


def settings(optimizer) -> list[dict]:
    """Learning rates and the like, of each parameter group."""
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def is_chunk(value, shard: Tensor) -> bool:
    """Whether a state goes element by element with the shard; a step counter does not."""
    return isinstance(value, Tensor) and value.dim() > 0 and value.shape == shard.shape


def overlap(shard: Shard, chunks: list[tuple[int, Tensor]]) -> Tensor:
    """The shard's elements, out of chunks of the same flat tensor that begin elsewhere."""
    result = torch.empty(len(shard.chunk), dtype=chunks[0][1].dtype)
    for start, chunk in chunks:
        if both := common(shard, range(start, start + len(chunk))):
            result[both.start - shard.chunk.start:both.stop - shard.chunk.start] = chunk[both.start - start:both.stop - start]
    return result


# --- files -----------------------------------------------------------------------------------------------------------------

def saves(folder: Path) -> list[Path]:
    """Whole saves, the newest first."""
    found = [path for path in folder.glob("step-*") if path.name[5:].isdigit()]
    return sorted(found, key=lambda path: int(path.name[5:]), reverse=True)


def write(path: Path, content) -> list:
    """[size, SHA-256] of the file, which is on the disk when this returns."""
    with open(path, "wb") as file:
        torch.save(content, file)
        flush(file)
    return [path.stat().st_size, checksum(path)]


def read(path: Path, size: int, sha256: str):
    found = path.stat().st_size if path.exists() else "no"
    if found != size:
        raise Damaged(f"{path.parent.name}/{path.name} has {found} bytes, {size} were saved.")
    if checksum(path) != sha256:
        raise Damaged(f"{path.parent.name}/{path.name} is damaged: its SHA-256 is another than when it was saved.")
    return torch.load(path, mmap=True, weights_only=True, map_location="cpu")


def read_manifest(folder: Path) -> dict:
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        sha256 = manifest.pop("sha256")
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise Damaged(f"{folder.name}/{MANIFEST} cannot be read: {error}.") from None
    if digest(manifest) != sha256:
        raise Damaged(f"{folder.name}/{MANIFEST} is damaged: its SHA-256 is another than when it was saved.")
    return manifest


def checksum(path: Path) -> str:
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            found.update(part)
    return found.hexdigest()


def digest(manifest: dict) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def flush(file):
    file.flush()
    os.fsync(file.fileno())


def flush_folder(folder: Path):
    """So that the names in it are on the disk, too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def agree(trouble: str, group, result=None, error=SaveFailed) -> list:
    """Every rank's result, or on all ranks the error of the first that is in trouble."""
    everyone = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, (trouble, result), group=group)
    for sentence, _ in everyone:
        if sentence:
            raise error(sentence)
    return [found for _, found in everyone]
