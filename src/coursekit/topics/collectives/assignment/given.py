"""Helpers that the trials of the assignment share."""

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from coursekit.exercises.grading import Assignment
from coursekit.exercises.on_a_rank import Here, new_groups
from shardlab import collectives
from shardlab.collective_plans import Plan, tree_all_reduce

COLLECTIVES = {
    "reduce_scatter": collectives.reduce_scatter,
    "all_gather": collectives.all_gather,
    "all_reduce": collectives.all_reduce,
    "tree_all_reduce": partial(collectives.all_reduce, plan=tree_all_reduce),
    "hierarchical_all_reduce": collectives.hierarchical_all_reduce,
}
ASSIGNMENT = Assignment(
    "collectives",
    reference=COLLECTIVES,
    core=COLLECTIVES,  # collectives_fast.py has other promises of memory
    forbidden=("torch.distributed._functional_collectives", "torch.distributed.nn"),
)
LENGTHS = (13, 7, 4, 2, 1)  # elements; the longest tell misconceptions apart
RACED = 1_000_000  # elements
EIGHT_BYTES = 8


def brought_by(rank: int, elements: int) -> Tensor:
    """The array of a rank: different on each rank, and no sum is a multiple of another."""
    return torch.sin(torch.arange(1.0, elements + 1, dtype=torch.float64) * (rank + 1)) + rank


def sum_of_ranks(n: int, elements: int) -> Tensor:
    return sum(brought_by(rank, elements) for rank in range(n))


def moved(plan: Plan, values: list[Tensor]) -> list[Tensor]:
    """The arrays of the ranks after a plan: where a misconception leads."""
    cut = len(values)
    held_by = [list(value.clone().tensor_split(cut)) for value in values]
    for moves in plan:
        sent = [held_by[move.source][move.chunk].clone() for move in moves]
        for move, arrived in zip(moves, sent):
            before = held_by[move.target][move.chunk]
            held_by[move.target][move.chunk] = (
                before + arrived if move.operator == "+=" else arrived
            )
    return [torch.cat(chunks) for chunks in held_by]


def of_elements(function: str, elements: int, here: Here) -> str:
    return f"{function} of {elements} elements, rank {here.me} of {here.n}"


def two_nodes() -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """(this rank's node, the ranks in its place on all nodes): two nodes of two."""
    node, across = new_groups([0, 1], [2, 3], [0, 2], [1, 3])
    return node.group, across.group
