"""Are the sums and the chunks right?"""

from collections.abc import Callable

import torch
import torch.distributed as dist

from coursekit.exercises.on_a_rank import expect, groups
from shardlab.collective_plans import Move, Plan, ring_all_gather, ring_reduce_scatter

from .given import ASSIGNMENT, LENGTHS, brought_by, moved, of_elements, sum_of_ranks, two_nodes


@ASSIGNMENT.trial("parity", "reduce_scatter")
def chunks_of_sums(mine):
    """each rank's chunk of the sum, on 1 to 4 ranks, 1 to 13 elements"""
    for here in groups(4, 3, 2, 1):
        for elements in LENGTHS:
            full = brought_by(here.me, elements)
            shard = torch.full_like(full.tensor_split(here.n)[here.me], 99.0)
            mine.reduce_scatter(shard, full, here.group)
            parts = [brought_by(rank, elements) for rank in range(here.n)]
            whole = sum(parts)
            what = of_elements("shard after reduce_scatter", elements, here)
            chunk, instead = whole.tensor_split(here.n)[here.me], {}
            for by in (1, -1):
                other = (here.me + by) % here.n
                instead[
                    f"That is the sum of chunk {other}, which belongs to rank {other}: chunk c sets"
                    " out at rank c + 1, so that rank c is the last to add."
                ] = whole.tensor_split(here.n)[other]
            instead["No part of another rank is in it."] = parts[here.me].tensor_split(here.n)[
                here.me
            ]
            short = moved(ring_reduce_scatter(here.n)[1:], parts)[here.me]
            instead[f"A part is missing: a chunk travels {here.n - 1} times."] = short.tensor_split(
                here.n
            )[here.me]
            instead["That is the mean; the sum is asked for."] = chunk / here.n
            expect(what, shard, chunk, instead)
            expect(
                f"full after reduce_scatter of {elements} elements",
                full,
                parts[here.me],
                {"": full},
            )


@ASSIGNMENT.trial("parity", "all_gather")
def all_chunks(mine):
    """the chunks of all ranks in rank order, on 1 to 4 ranks, 1 to 13 elements"""
    for here in groups(4, 3, 2, 1):
        for elements in LENGTHS:
            whole = brought_by(7, elements)
            shard = whole.tensor_split(here.n)[here.me].clone()
            full = torch.full_like(whole, 99.0)
            mine.all_gather(full, shard, here.group)
            what = of_elements("full after all_gather", elements, here)
            begin = torch.full_like(whole, 99.0)
            begin.tensor_split(here.n)[here.me].copy_(shard)
            begins = []
            for rank in range(here.n):
                one = torch.full_like(whole, 99.0)
                one.tensor_split(here.n)[rank].copy_(whole.tensor_split(here.n)[rank])
                begins.append(one)
            adding = [[Move(*move[:3], "+=") for move in step] for step in ring_all_gather(here.n)]
            instead = {
                "This rank's own chunk alone arrived.": begin,
                f"The chunks stop too early: each travels {here.n - 1} times.": moved(
                    ring_all_gather(here.n)[:-1], begins
                )[here.me],
                "A chunk that arrives is added to the one in full; it replaces that one.": moved(
                    adding, begins
                )[here.me],
                "The chunks are in another order: chunk c is that of rank c.": torch.cat(
                    list(whole.tensor_split(here.n))[::-1]
                ),
            }
            expect(what, full, whole, instead)


def _sums(mine_all_reduce: Callable, name: str, ring: bool):
    for here in groups(4, 3, 2, 1):
        for elements in LENGTHS:
            tensor = brought_by(here.me, elements)
            mine_all_reduce(tensor, here.group)
            parts = [brought_by(rank, elements) for rank in range(here.n)]
            whole = sum(parts)
            instead = {
                "Nothing changed: the result is not written into the tensor.": parts[here.me],
                "That is the mean; the sum is asked for.": whole / here.n,
            }
            if ring:
                rounds = ring_reduce_scatter(here.n), ring_all_gather(here.n)
                adding = [[Move(*move[:3], "+=") for move in step] for step in rounds[1]]
                instead |= {
                    "The first round alone: each rank has one whole sum, which the others still"
                    " need.": moved(rounds[0], parts)[here.me],
                    "In the second round whole sums travel: what arrives replaces, it is not"
                    " added.": moved([*rounds[0], *adding], parts)[here.me],
                    f"The second round stops early: a sum travels {here.n - 1} times.": moved(
                        [*rounds[0], *rounds[1][:-1]], parts
                    )[here.me],
                    f"The first round stops early: a chunk travels {here.n - 1} times.": moved(
                        [*rounds[0][:-1], *rounds[1]], parts
                    )[here.me],
                    "The second round begins with the wrong chunk: after the first, rank r has the"
                    " sum of chunk r.": moved([*rounds[0], *_begins_late(here.n)], parts)[here.me],
                }
            elif here.me:
                instead[
                    "It is rank 0 that has the whole sum: it must come down the tree again."
                ] = tensor
            expect(of_elements(f"tensor after {name}", elements, here), tensor, whole, instead)


def _begins_late(n: int) -> Plan:
    """The second round, begun with the chunk of the right neighbour."""
    return [
        [Move(rank, (rank + 1) % n, (rank - step + 1) % n, "=") for rank in range(n)]
        for step in range(n - 1)
    ]


@ASSIGNMENT.trial("parity", "all_reduce")
def sums_around_a_ring(mine):
    """the sum on all ranks, on 1 to 4 ranks, 1 to 13 elements"""
    _sums(mine.all_reduce, "all_reduce", ring=True)


@ASSIGNMENT.trial("parity", "tree_all_reduce")
def sums_along_a_tree(mine):
    """the sum on all ranks, on 1 to 4 ranks, 1 to 13 elements"""
    _sums(mine.tree_all_reduce, "tree_all_reduce", ring=False)


@ASSIGNMENT.trial("parity", "hierarchical_all_reduce")
def sums_over_two_nodes(mine):
    """the sum over two nodes of two ranks, 1 to 13 elements"""
    node, across = two_nodes()
    me = dist.get_rank()
    for elements in LENGTHS:
        tensor = brought_by(me, elements)
        mine.hierarchical_all_reduce(tensor, node, across)
        of_node = sum(brought_by(rank, elements) for rank in (me // 2 * 2, me // 2 * 2 + 1))
        of_places = sum(brought_by(rank, elements) for rank in (me % 2, me % 2 + 2))
        expect(
            f"tensor after hierarchical_all_reduce of {elements} elements, rank {me}",
            tensor,
            sum_of_ranks(4, elements),
            {
                "That is the sum of this node alone: nothing went across.": of_node,
                "That is the sum across alone: the node's other rank is missing.": of_places,
                "Nothing changed: the result is not written into the tensor.": (
                    brought_by(me, elements)
                ),
            },
        )
