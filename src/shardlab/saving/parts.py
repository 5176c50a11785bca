"""Which ranks hold the same: the parts of a run.

Replicas hold the same, and the ranks of ZeRO share it: that is one part, of which each rank writes
a chunk. Tensor parallelism and pipelines cut a model into several parts. All ranks save their parts
together, into one folder, so a save has all parts or is absent.

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
from ..zero.hardened.stage3 import sharded_units


class PartOfRun(NamedTuple):
    """Ranks that hold the same, by their numbers in the group that saves; their flat tensors, each
    as [[name, shape], ...]; and what is in them, as held_by says."""

    ranks: list[int]
    flats: list[list]
    contents: dict[str, str]
    homes: list[list[int] | None] = []  # of each flat tensor, the ranks that have it; None: all

    def homes_of(self, number: int) -> list[int]:
        return (self.homes[number] if self.homes else None) or self.ranks


class RankHolds(NamedTuple):
    """A rank's word to the others before anything is written or read."""

    to: str  # the folder, and the step of a save
    flats: list[list]
    contents: dict[str, str]
    sharing: list[int] | None  # the ranks that have the other shards of the same
    sums: dict[str, int]  # of the bits of parameters that are whole; empty before a resume
    buffers: dict[str, str]  # digests; likewise
    homes: list[list[int] | None]  # as a part has them


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


def held_by(
    to: str, flats: list, buffers: dict, model, optimizer, group, values: bool
) -> RankHolds:
    """This rank's word to the others, with digests of its `values` or without."""
    shares = sharding_group(model, optimizer)
    members = dist.get_process_group_ranks(shares) if shares else None
    number_of = partial(dist.get_group_rank, group or dist.group.WORLD)
    sharing, homes = members and [*map(number_of, members)], []
    found, sums = optimizers_in(optimizer), {}
    for flat in flats:
        first, cuts = flat.tensors[0], groups_of(flat.tensors[0])
        homes.append(flat.homes and [*map(number_of, flat.homes)])
        known = replicated_experts.get(first, (shares,))  # any rank may have an expert
        cut_elsewhere = "".join(part_of(cut) for cut in cuts if cut not in known)
        # in stage 3 each parameter has a tensor; all that are in a bucket are in one group
        for index, (name, shape) in zip(flat.places, flat.parameters):
            tensor, group = flat.tensors[index], flat.groups[index]
            where = f"in group {group}" if tensor.requires_grad else "not trained"
            found[name] = f"{tensor.dtype} {shape} {where}{cut_elsewhere}"
        if values and shares not in cuts and first not in replicated_experts:
            sums[flat.parameters[0][0]] = sum_of_bits(first)
    found |= {
        name: f"{buffer.dtype} {list(buffer.shape)} as a buffer" for name, buffer in buffers.items()
    }
    digests = hashes_of(buffers) if values else {}
    return RankHolds(to, [flat.cut for flat in flats], found, sharing, sums, digests, homes)


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
    parts: dict[str, PartOfRun] = {}
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
        key = str((held.flats, held.contents, held.sharing))
        parts.setdefault(key, PartOfRun([], held.flats, held.contents, held.homes)).ranks.append(
            rank
        )
    for part in parts.values():
        first = part.ranks[0]
        for rank in set(everyone[first].sharing or ()) - set(part.ranks):
            differs = first_difference(part.contents, everyone[rank].contents)
            name, here, there = differs or ("the order of parameters", "one", "another")
            raise ValueError(
                f"{name} is {here} on rank {first}, and {there} on rank {rank}: ranks that share a"
                " model by ZeRO have the same tensors."
            )
    return list(parts.values())


def first_difference(here: dict[str, str], there: dict[str, str]) -> tuple[str, str, str] | None:
    """(name, here, there) of the first tensor that differs."""
    for name in {**here, **there}:
        both = here.get(name, "not there"), there.get(name, "not there")
        if both[0] != both[1]:
            return name, *both
    return None
