"""Strange tensors, wrong shards, and the speed of what is right."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from coursekit.exercises.on_a_rank import Here, Wrong, demand, expect, groups, race_of_two, refuses

from .given import ASSIGNMENT, RACED, brought_by, sum_of_ranks, two_nodes

# --- faults --------------------------------------------------------------------------------------


@ASSIGNMENT.trial("faults", "reduce_scatter")
def full_is_unchanged(mine):
    """full stays what it was, also in a second call"""
    for here in groups(3):
        full = brought_by(here.me, 7)
        shard = full.tensor_split(here.n)[here.me].clone()
        for call in ("first", "second"):
            mine.reduce_scatter(shard, full, here.group)
            demand(
                torch.equal(full, brought_by(here.me, 7)),
                f"reduce_scatter changed full in the {call} call: add in a copy.",
            )
            expect(
                f"shard after the {call} reduce_scatter",
                shard,
                sum_of_ranks(here.n, 7).tensor_split(here.n)[here.me],
            )


@ASSIGNMENT.trial("faults", "reduce_scatter")
def wrong_shards_of_sums(mine):
    """a shard of another size or dtype than its chunk is refused before anything is sent"""
    for here in groups(3):
        full = brought_by(here.me, 7)
        call = partial(mine.reduce_scatter, full=full, group=here.group)
        _refuses_shards(call, full, here)


@ASSIGNMENT.trial("faults", "all_gather")
def wrong_shards_to_gather(mine):
    """a shard of another size or dtype than its chunk is refused before anything is sent"""
    for here in groups(3):
        full = brought_by(here.me, 7)
        _refuses_shards(partial(mine.all_gather, full, group=here.group), full, here)


def _refuses_shards(call: Callable, full: Tensor, here: Here):
    chunk = full.tensor_split(here.n)[here.me]
    for words, shard in (
        (f"{len(chunk) + 1} elements", chunk.new_zeros(len(chunk) + 1)),
        ("float32", chunk.float()),
    ):
        refuses(
            f"a shard of {words}, where rank {here.me}'s chunk is {len(chunk)} of float64,",
            call,
            shard=shard,
            errors=(ValueError,),
        )


@ASSIGNMENT.trial("faults", "all_reduce")
def strange_tensors_around_a_ring(mine):
    """columns, integers, parameters, fewer elements than ranks, a second call"""
    _strange(mine.all_reduce, "all_reduce")


@ASSIGNMENT.trial("faults", "tree_all_reduce")
def strange_tensors_along_a_tree(mine):
    """columns, integers, parameters, a second call"""
    _strange(mine.tree_all_reduce, "tree_all_reduce")


@ASSIGNMENT.trial("faults", "hierarchical_all_reduce")
def strange_tensors_over_nodes(mine):
    """columns, integers, parameters, a second call"""
    node, across = two_nodes()
    _strange(
        lambda tensor, _: mine.hierarchical_all_reduce(tensor, node, across),
        "hierarchical_all_reduce",
        sizes=(4,),
    )


def _strange(all_reduce: Callable, name: str, sizes: tuple[int, ...] = (3, 4)):
    for here in groups(*sizes):
        grid = brought_by(here.me, 12).view(3, 4).clone()
        all_reduce(grid[:, 1:3], here.group)
        wanted = brought_by(here.me, 12).view(3, 4).clone()
        wanted[:, 1:3] = sum_of_ranks(here.n, 12).view(3, 4)[:, 1:3]
        expect(
            f"a grid [3, 4] after {name} of its columns 1 and 2",
            grid,
            wanted,
            {
                "Nothing changed: columns are not contiguous, so a flat copy was summed; copy the"
                " result back.": brought_by(here.me, 12).view(3, 4)
            },
        )
        counts = torch.tensor([here.me, 10, 2**60])
        all_reduce(counts, here.group)
        expect(
            f"integers after {name}",
            counts,
            torch.tensor([sum(range(here.n)), 10 * here.n, here.n * 2**60]),
            close=0,
        )
        parameter = torch.nn.Parameter(brought_by(here.me, 5))
        try:
            all_reduce(parameter, here.group)
        except RuntimeError as error:
            raise Wrong(
                f"{name} of a parameter raised {error}: autograd must not see it, detach() first."
            ) from error
        expect(f"a parameter after {name}", parameter, sum_of_ranks(here.n, 5))
        demand(
            parameter.is_leaf and parameter.requires_grad,
            f"{name} made autograd record the sum of a parameter: detach() first.",
        )
        twice = brought_by(here.me, 6)
        all_reduce(twice, here.group)
        all_reduce(twice, here.group)
        expect(f"a tensor after two calls of {name}", twice, sum_of_ranks(here.n, 6) * here.n)


# --- speed ---------------------------------------------------------------------------------------


def _race(mine: Callable, name: str) -> tuple[float, float]:
    tensor = torch.ones(RACED)
    return race_of_two(lambda: mine(tensor), lambda: ASSIGNMENT.reference[name](tensor))


@ASSIGNMENT.trial("speed", "all_reduce")
def seconds_of_a_ring(mine):
    """4 MB on 4 ranks"""
    return _race(mine.all_reduce, "all_reduce")


@ASSIGNMENT.trial("speed", "tree_all_reduce")
def seconds_of_a_tree(mine):
    """4 MB on 4 ranks"""
    return _race(mine.tree_all_reduce, "tree_all_reduce")
