"""The grid of ranks: which of them split a batch, a model's layers, a layer's weights.

    mesh = Mesh(dp=2, pp=2, tp=2)                    #          tp 0  tp 1
    mesh.grid                                        # dp 0 pp 0   0     1       Rank 5 = (1, 0, 1)
                                                     # sends gradients to rank 1,
    mesh.tp.group, mesh.tp.rank, mesh.tp.size        #      pp 1   2     3       activations to rank
                                                     # 7,
    mesh.dp.ranks                                    # dp 1 pp 0   4     5       parts of a layer's
                                                     # sums to rank 4.
                                                     #      pp 1   6     7

A rank has a place on each axis: dp (data parallel), pp (pipeline stage), tp (tensor parallel).
Along an axis the other two are fixed, so its groups are slices of `arange(world_size).view(dp, pp,
tp)`. Neighbours in tp have neighbouring numbers, so that they share a machine: they talk most.
Ranks of one tp group see the same batch; ranks of one dp group see different ones, so read data by
`mesh.dp.rank`.
"""

from typing import NamedTuple

import torch
import torch.distributed as dist

AXES = ("dp", "pp", "tp")


class Axis(NamedTuple):
    """This rank's line through the grid along one axis."""

    group: dist.ProcessGroup
    ranks: list[int]  # the members, by their number in the world
    rank: int  # this rank's place among them

    @property
    def size(self) -> int:
        return len(self.ranks)


def grid_of(world_size: int, dp: int = 1, pp: int = 1, tp: int = 1) -> torch.Tensor:
    """Ranks by their place: [dp, pp, tp]. Raises ValueError, with every factor, unless dp * pp * tp
    is the number of ranks."""
    sizes = dict(dp=dp, pp=pp, tp=tp)
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"{name} = {size!r}: the size of an axis is an integer of at least 1.")
    if dp * pp * tp != world_size:
        factors = " x ".join(f"{name} {size}" for name, size in sizes.items())
        raise ValueError(f"{factors} = {dp * pp * tp} ranks, but the world has {world_size}.")
    return torch.arange(world_size).view(dp, pp, tp)


def slices(grid: torch.Tensor, axis: str) -> list[list[int]]:
    """The groups along an axis: every line through the grid in its direction."""
    dim = AXES.index(axis)
    return grid.movedim(dim, -1).reshape(-1, grid.shape[dim]).tolist()


class Mesh:
    """All ranks make the same mesh at the same time: making a group is a collective. An axis left
    away has size 1."""

    def __init__(self, *, dp: int = 1, pp: int = 1, tp: int = 1):
        if not dist.is_initialized():
            raise ValueError(
                "a mesh divides the ranks of a world, and there is none here: make it on a rank."
            )
        self.grid = grid_of(dist.get_world_size(), dp, pp, tp)  # [dp, pp, tp]
        self.dp, self.pp, self.tp = (self._line(axis) for axis in AXES)

    def _line(self, axis: str) -> Axis:
        here, mine = dist.get_rank(), None
        for ranks in slices(self.grid, axis):
            # all ranks make all groups, in this order; a group is of use to its members
            group = dist.new_group(ranks)
            if here in ranks:
                mine = Axis(group, ranks, ranks.index(here))
        return mine

    def __repr__(self):
        sizes = ", ".join(f"{name}={size}" for name, size in zip(AXES, self.grid.shape))
        return (
            f"Mesh({sizes}; rank {dist.get_rank()} is dp {self.dp.rank}, pp {self.pp.rank}, tp"
            f" {self.tp.rank})"
        )
