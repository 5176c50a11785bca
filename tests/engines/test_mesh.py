"""The grid of ranks: groups are slices, neighbours are where they should be, a failed mesh names
every factor."""

import pytest
import torch
import torch.distributed as dist

from shardlab.mesh import AXES, Mesh, grid_of, slices


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


def test_groups_along_several_axes():
    """Mutation: the axes of a plane in the order in which they are asked for, a plane that takes in
    an axis of its own accord, or an axis of size 1 dropped."""
    grid = grid_of(8, dp=2, pp=2, tp=2)
    assert slices(grid, "pp", "tp") == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert slices(grid, "tp", "pp") == slices(grid, "pp", "tp")
    assert slices(grid, "dp", "tp") == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert slices(grid, "dp", "cp") == slices(grid, "dp")
    assert slices(grid, *AXES) == [list(range(8))]
    assert slices(grid_of(8, cp=4, tp=2), "cp") == [[0, 2, 4, 6], [1, 3, 5, 7]]
    # experts: an axis that is cut out of dp
    with_experts = grid_of(8, dp=4, tp=2).unflatten(0, (-1, 2))
    names = ("dp", "ep", *AXES[1:])
    assert slices(with_experts, "ep", names=names) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    with pytest.raises(ValueError, match="^ep is no axis of this grid: it has dp, pp, cp, tp.$"):
        slices(grid, "ep")


def test_a_failed_mesh_names_every_factor():
    """Mutation: the product compared with `<=`; an axis of size 1 not named; a size of 0 or 2.0 let
    through to view."""
    with pytest.raises(
        ValueError, match="^dp 2 x pp 3 x cp 1 x tp 1 = 6 ranks, but the world has 8.$"
    ):
        grid_of(8, dp=2, pp=3)
    with pytest.raises(
        ValueError, match="^dp 1 x pp 1 x cp 1 x tp 2 = 2 ranks, but the world has 8.$"
    ):
        grid_of(8, tp=2)
    for size in (0, -2, 2.0, True, "2"):
        with pytest.raises(
            ValueError, match="^tp = .*: the size of an axis is an integer of at least 1.$"
        ):
            grid_of(8, tp=size)
    with pytest.raises(ValueError, match="^ep: the axes are dp, pp, cp, tp.$"):
        grid_of(8, ep=2)
    with pytest.raises(ValueError, match="there is none here: make it on a rank"):
        Mesh(dp=1)


def test_a_mesh_on_ranks(four):
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

    found = four.run(work)
    assert [sums for sums, *_ in found] == [[2, 0, 1], [4, 1, 1], [2, 2, 5], [4, 3, 5]]
    assert [place for _, place, *_ in found] == [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1)]
    assert found[3][2:] == (2, "Mesh(dp=2, pp=1, cp=1, tp=2; rank 3 is dp 1, pp 0, cp 0, tp 1)")


def test_a_line_is_made_once(four):
    """Mutation: a line made anew each time it is asked for: ranks run out of groups, or wait for
    each other."""

    def work():
        from shardlab.mesh import Mesh

        mesh = Mesh(dp=2, tp=2)
        both, again = mesh.line("tp", "dp"), mesh.line("dp", "tp")
        x = torch.tensor([float(dist.get_rank())])
        dist.all_reduce(x, group=both.group)
        return x.item(), both is again, both.rank

    assert four.run(work) == [(6, True, rank) for rank in range(4)]
