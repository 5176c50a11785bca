"""The grid of ranks: which of them split a batch, a model's layers, a layer's weights.

    mesh = Mesh(dp=2, pp=2, tp=2)                       #              tp 0  tp 1
    mesh.grid                                           # dp 0  pp 0     0     1
    mesh.tp.group, mesh.tp.rank, mesh.tp.size           #       pp 1     2     3
    mesh.dp.ranks                                       # dp 1  pp 0     4     5
    mesh.line("dp", "cp").group                         #       pp 1     6     7

Rank 5 = (1, 0, 1) sends gradients to rank 1, activations to 7, parts of a layer's sums to 4.

A rank has a place on each axis: dp (data parallel), pp (pipeline stage), cp (part of a sequence),
tp (tensor parallel). Along an axis the others are fixed, so its groups are slices of
`arange(world_size).view(dp, pp, cp, tp)`. Neighbours in tp have neighbouring numbers, so that they
share a machine: they talk most. Ranks of one tp group see the same batch; ranks of one dp group see
different ones, so read data by `mesh.dp.rank`.

Gradients are averaged over two axes together: `mesh.line("dp", "cp")`. Experts need no axis of
their own: `mesh.experts(2)` cuts dp.
"""

import math
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

AXES = ("dp", "pp", "cp", "tp")  # of the grid, the outermost first


class Axis(NamedTuple):
    """This rank's line through the grid along one axis, or its part of the grid along several."""

    group: dist.ProcessGroup
    ranks: list[int]  # the members, by their number in the world
    rank: int  # this rank's place among them

    @property
    def size(self) -> int:
        return len(self.ranks)


def grid_of(world_size: int, **sizes: int) -> torch.Tensor:
    """Ranks by their place: [dp, pp, cp, tp]. An axis left out has size 1. Raises ValueError, with
    every factor, unless the sizes multiply to the number of ranks."""
    if others := set(sizes) - set(AXES):
        raise ValueError(f"{', '.join(sorted(others))}: the axes are {', '.join(AXES)}.")
    sizes = {name: sizes.get(name, 1) for name in AXES}
    ranks = 1
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"{name} = {size!r}: the size of an axis is an integer of at least 1.")
        ranks *= size
    if ranks != world_size:
        factors = " x ".join(f"{name} {size}" for name, size in sizes.items())
        raise ValueError(f"{factors} = {ranks} ranks, but the world has {world_size}.")
    return torch.arange(world_size).view(*sizes.values())


def slices(grid: torch.Tensor, *axes: str, names: tuple[str, ...] = AXES) -> list[list[int]]:
    """The groups along these axes: every line through the grid in one direction, every plane in
    two. `names` are the axes of the grid."""
    for axis in axes:
        if axis not in names:
            raise ValueError(f"{axis} is no axis of this grid: it has {', '.join(names)}.")
    along = [dim for dim, name in enumerate(names) if name in axes]
    fixed = [dim for dim, name in enumerate(names) if name not in axes]
    size = math.prod(grid.shape[dim] for dim in along)
    return grid.permute(*fixed, *along).reshape(-1, size).tolist()


_channels: WeakKeyDictionary = WeakKeyDictionary()  # of each world


def channel(ranks: list[int], way: tuple) -> dist.ProcessGroup:
    """The group in which these ranks send messages of one way: its members make it together, and
    once in a world. A group of NCCL is seconds, memory and threads for each pair of ranks."""
    made = _channels.setdefault(dist.group.WORLD, {})
    if (key := (*ranks, *way)) not in made:
        made[key] = dist.new_group(ranks, use_local_synchronization=True)
    return made[key]


class ExpertAxes(NamedTuple):
    """The ranks that divide the experts, those that have the same ones, and all that see different
    tokens."""

    divide: Axis
    replicas: Axis
    everyone: Axis


class Mesh:
    """All ranks make the same mesh, and ask for the same lines, at the same time: making a group is
    a collective. An axis left out has size 1."""

    def __init__(self, *, dp: int = 1, pp: int = 1, cp: int = 1, tp: int = 1):
        if not dist.is_initialized():
            raise ValueError(
                "a mesh divides the ranks of a world, and there is none here: make it on a rank."
            )
        # [dp, pp, cp, tp]
        self.grid = grid_of(dist.get_world_size(), dp=dp, pp=pp, cp=cp, tp=tp)
        self._made: dict[tuple, Axis] = {}
        self.dp, self.pp, self.cp, self.tp = (self.line(axis) for axis in AXES)

    def line(self, *axes: str) -> Axis:
        """This rank's group along one axis or several."""
        return self._own(slices(self.grid, *axes))

    def experts(self, ep: int) -> ExpertAxes:
        """dp as replicas x ep. Ranks of one ep group have neighbouring numbers."""
        if self.dp.size % ep:
            raise ValueError(f"ep = {ep}: it must divide dp = {self.dp.size}.")
        grid, names = self.grid.unflatten(0, (-1, ep)), ("replicas", "ep", *AXES[1:])
        divide = self._own(slices(grid, "ep", names=names))
        replicas = self._own(slices(grid, "replicas", "cp", names=names))
        return ExpertAxes(divide, replicas, self.line("dp", "cp"))

    def _own(self, every: list[list[int]]) -> Axis:
        """The group of this rank. All ranks make all groups, in this order, and make them once; a
        group is of use to its members."""
        here, asked = dist.get_rank(), tuple(map(tuple, every))
        if asked not in self._made:
            for ranks in every:
                group = dist.new_group(ranks)
                if here in ranks:
                    self._made[asked] = Axis(group, ranks, ranks.index(here))
        return self._made[asked]

    def __repr__(self):
        sizes = ", ".join(f"{name}={size}" for name, size in zip(AXES, self.grid.shape))
        places = ", ".join(f"{name} {getattr(self, name).rank}" for name in AXES)
        return f"Mesh({sizes}; rank {dist.get_rank()} is {places})"
