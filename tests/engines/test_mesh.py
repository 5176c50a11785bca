"""The grid of ranks, on ranks. Its slices and its refusals are rows of told.md."""

import torch
import torch.distributed as dist

from shardlab.mesh import Mesh


def test_a_mesh_on_ranks(four):
    """Mutation: each rank makes only its own groups (a deadlock, or groups mixed up), or takes its
    place from the wrong axis."""

    def work():
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
        mesh = Mesh(dp=2, tp=2)
        both, again = mesh.line("tp", "dp"), mesh.line("dp", "tp")
        x = torch.tensor([float(dist.get_rank())])
        dist.all_reduce(x, group=both.group)
        return x.item(), both is again, both.rank

    assert four.run(work) == [(6, True, rank) for rank in range(4)]
