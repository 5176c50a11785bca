"""The grid of ranks: groups are slices, neighbours are where they should be, a failed mesh names
every factor."""

import pytest
import torch
import torch.distributed as dist

from shardlab.mesh import AXES, Mesh, grid_of, slices
from shardlab.ranks import ranks


def test_groups_are_slices():
    """Mutation: the axes in another order, or slices that run over two axes."""
    grid = grid_of(8, dp=2, pp=2, tp=2)
    assert slices(grid, "tp") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert slices(grid, "pp") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert slices(grid, "dp") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert slices(grid_of(6, dp=3, tp=2), "dp") == [[0, 2, 4], [1, 3, 5]]
    for axis in AXES:  # every rank is in one group of each axis
        assert sorted(
            rank for group in slices(grid_of(12, dp=2, pp=3, tp=2), axis) for rank in group
        ) == list(range(12))


def test_a_failed_mesh_names_every_factor():
    """Mutation: the product compared with `<=`; an axis of size 1 not named; a size of 0 or 2.0 let
    through to view."""
    with pytest.raises(ValueError, match="^dp 2 x pp 3 x tp 1 = 6 ranks, but the world has 8.$"):
        grid_of(8, dp=2, pp=3)
    with pytest.raises(ValueError, match="^dp 1 x pp 1 x tp 2 = 2 ranks, but the world has 8.$"):
        grid_of(8, tp=2)
    for size in (0, -2, 2.0, True, "2"):
        with pytest.raises(
            ValueError, match="^tp = .*: the size of an axis is an integer of at least 1.$"
        ):
            grid_of(8, tp=size)
    with pytest.raises(ValueError, match="there is none here: make it on a rank"):
        Mesh(dp=1)


def test_a_mesh_on_ranks():
    """Mutation: each rank makes only its own groups (a deadlock, or groups mixed up), or takes its
    place from the wrong axis."""

    def work():
        from shardlab.mesh import Mesh

        mesh = Mesh(dp=2, tp=2)
        sums = []
        for axis in (mesh.dp, mesh.pp, mesh.tp):
            x = torch.tensor([float(dist.get_rank())])
            dist.all_reduce(x, group=axis.group)
            sums.append(x.item())
        return sums, (mesh.dp.rank, mesh.pp.rank, mesh.tp.rank), mesh.tp.size, repr(mesh)

    with ranks(4, announce=False, device="cpu") as world:
        found = world.run(work)
    assert [sums for sums, *_ in found] == [[2, 0, 1], [4, 1, 1], [2, 2, 5], [4, 3, 5]]
    assert [place for _, place, *_ in found] == [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1)]
    assert found[3][2:] == (2, "Mesh(dp=2, pp=1, tp=2; rank 3 is dp 1, pp 0, tp 1)")
