"""Which ranks hold the same: the parts of a run.

Replicas hold the same, and the ranks of ZeRO share it: that is one part, of which each rank writes
what it has; elements that several have are divided among them. Tensor parallelism and pipelines cut
a model into several parts. All ranks save their parts together, into one folder, so a save has all
parts or is absent.

A part is known by its contents: name, dtype and shape of each tensor, and "part 1 of 2" where
tensor parallelism has cut it. So it finds its own files, in whatever order the ranks are now.
"""

import hashlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..common.collective_wire import place
from ..common.shards import cut_among, groups_of, replicated_experts
from ..data_parallel import Replicas
from ..zero.hardened.flat import chunk_of
from ..zero.hardened.stage3 import sharded_units

# a parameter's name, and which of its elements: from the first number on, before the second
ElementRange = tuple[str, int, int]


class PartOfRun(NamedTuple):
    """Ranks that hold the same, by their numbers in the group that saves; what that is, as held_by
    says; and which elements each of them writes."""

    ranks: list[int]
    contents: dict[str, str]
    written: list[list[ElementRange]]


class RankHolds(NamedTuple):
    """A rank's word to the others before anything is written or read."""

    to: str  # the folder, and the step of a save
    places: list[ElementRange]
    contents: dict[str, str]
    sharing: list[int] | None  # the ranks that have the other shards of the same
    sums: dict[str, int]  # of the bits of parameters that are whole; empty before a resume
    buffers: dict[str, str]  # digests; likewise


def sharding_group(model: nn.Module, optimizer) -> dist.ProcessGroup | None:
    """The ranks that share a model or its optimizer's states by ZeRO, or None."""
    units = sharded_units(model)
    if not units and not hasattr(optimizer, "buckets"):
        return None
    group = units[0].sharded_unit.group if units else optimizer.group
    return group or dist.group.WORLD


def saving_group(model: nn.Module, optimizer, group) -> dist.ProcessGroup | None:
    """The ranks that save together: all that have parts of the model."""
    shares, every = sharding_group(model, optimizer), map(cut_among, model.parameters())
    cuts = {cut for groups in every for cut in groups if dist.get_world_size(cut) > 1}
    if not cuts - {shares}:
        return shares or group or (model.group if isinstance(model, Replicas) else None)
    needed = {rank for each in cuts for rank in dist.get_process_group_ranks(each)}
    if not needed.issubset(dist.get_process_group_ranks(group or dist.group.WORLD)):
        raise ValueError(
            f"group has ranks {dist.get_process_group_ranks(group)}, and the model is cut among"
            f" ranks {sorted(needed)}: all parts are saved together, in one folder; leave `group`"
            " out, or give all ranks that train this model."
        )
    place(group)
    return group


def plain_names(names: Iterable[str]) -> Callable[[str], str]:
    """The names without those that wrappers add: "_orig_mod." of torch.compile, and "module." of
    replicas, which is before all names."""
    names, wraps = [name.replace("_orig_mod.", "") for name in names], 0
    while names and all(name.startswith("module.") for name in names):
        names, wraps = [name.removeprefix("module.") for name in names], wraps + 1

    def plain(name: str) -> str:
        name = name.replace("_orig_mod.", "")
        for _ in range(wraps):
            name = name.removeprefix("module.")
        return name

    return plain


def held_by(to: str, held: list, buffers: dict, model, optimizer, group, values: bool) -> RankHolds:
    """This rank's word to the others, with digests of its `values` or without."""
    shares = sharding_group(model, optimizer)
    number_of = partial(dist.get_group_rank, group or dist.group.WORLD)
    sharing = [*map(number_of, dist.get_process_group_ranks(shares))] if shares else None
    found, sums = optimizers_in(optimizer), {}
    for one in held:
        tensor, cuts = one.tensor, groups_of(one.tensor)
        known = replicated_experts.get(tensor, (shares,))  # any rank may have an expert
        cut_elsewhere = "".join(part_of(cut) for cut in cuts if cut not in known)
        where = f"in group {one.group}" if tensor.requires_grad else "not trained"
        found[one.name] = f"{tensor.dtype} {one.shape} {where}{cut_elsewhere}"
        if values and shares not in cuts and tensor not in replicated_experts:
            sums[one.name] = sum_of_bits(tensor)
    found |= {
        name: f"{buffer.dtype} {list(buffer.shape)} as a buffer" for name, buffer in buffers.items()
    }
    places = [(one.name, one.places.start, one.places.stop) for one in held if one.places]
    return RankHolds(to, places, found, sharing, sums, hashes_of(buffers) if values else {})


def optimizers_in(optimizer) -> dict[str, str]:
    """Its class, and that of the one which a wrapper has inside. The device does not matter."""
    one = optimizer.inner if hasattr(optimizer, "buckets") else optimizer
    groups = f"{len(optimizer.param_groups)} parameter groups"
    found = {"the optimizer": f"{type(one).__name__.removesuffix('Offloaded')} with {groups}"}
    if hasattr(one, "inner"):
        found["the optimizer inside"] = type(one.inner).__name__
    return found


def part_of(cut: dist.ProcessGroup) -> str:
    n, me = place(cut)
    return f", part {me + 1} of {n}" * (n > 1)


def sum_of_bits(tensor: Tensor) -> int:
    """A digest that reads the tensor once, where it is."""
    values = tensor.detach()
    values = torch.view_as_real(values) if values.is_complex() else values
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]
    return values.contiguous().view(words).sum(dtype=torch.int64).item()


def hashes_of(buffers: dict[str, Tensor]) -> dict[str, str]:
    """A digest of each buffer's values."""
    found = {}
    for name, buffer in buffers.items():
        values = buffer.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        found[name] = hashlib.sha256(values.numpy().tobytes()).hexdigest()
    return found


def parts_of_run(everyone: list[RankHolds]) -> list[PartOfRun]:
    """The parts that the ranks hold. Raises ValueError if ranks that should hold the same do
    not."""
    parts: dict[int, list[int]] = {}  # by the first rank of each
    for rank, held in enumerate(everyone):
        if held.to != everyone[0].to:
            raise ValueError(
                f"rank 0 gives {everyone[0].to}, rank {rank} {held.to}: all ranks save together,"
                " all parts of a model into one folder; separate runs give each its `group`."
            )
        twin = next(k for k, other in enumerate(everyone) if other.contents == held.contents)
        for name, value in everyone[twin].sums.items():
            if held.sums.get(name, value) != value:
                raise ValueError(
                    f"rank {rank} has other values of {name} than rank {twin}: a save has one copy"
                    " of what ranks hold under one name. Make them alike, or give each rank its own"
                    " `group` and folder."
                )
        parts.setdefault(twin, []).append(rank)
    for first, ranks in parts.items():
        for rank in set(everyone[first].sharing or ()) - set(ranks):
            name, here, there = first_difference(everyone[first].contents, everyone[rank].contents)
            raise ValueError(
                f"{name} is {here} on rank {first}, and {there} on rank {rank}: ranks that share a"
                " model by ZeRO have the same tensors."
            )
    return [
        PartOfRun(ranks, everyone[first].contents, divided([everyone[rank] for rank in ranks]))
        for first, ranks in parts.items()
    ]


def divided(part: list[RankHolds]) -> list[list[ElementRange]]:
    """The elements that each rank of a part writes: a chunk of those that several hold."""
    holders: dict[ElementRange, list[int]] = {}
    for rank, held in enumerate(part):
        for one in held.places:
            holders.setdefault(one, []).append(rank)
    written: list[list[ElementRange]] = [[] for _ in part]
    for (name, start, stop), ranks in holders.items():
        for number, rank in enumerate(ranks):
            if chunk := chunk_of(number, stop - start, len(ranks)):
                written[rank].append((name, start + chunk.start, start + chunk.stop))
    return written


def first_difference(here: dict[str, str], there: dict[str, str]) -> tuple[str, str, str] | None:
    """(name, here, there) of the first tensor that differs."""
    for name in {**here, **there}:
        both = here.get(name, "not there"), there.get(name, "not there")
        if both[0] != both[1]:
            return name, *both
    return None
