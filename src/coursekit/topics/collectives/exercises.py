"""Chapter 4: collectives. Plans are followed as data, code runs on thread ranks (thread_ranks.py):
no check can hang."""

from functools import partial
from typing import NamedTuple

import torch

from coursekit.exercises.checker import Failure
from coursekit.exercises.edits import Topic
from coursekit.exercises.thread_ranks import answer_of_ranks, value_of_ranks
from shardlab.collective_plans import Move, follow, ring_all_gather, ring_reduce_scatter

topic = Topic(__name__)

# --- plans ----------------------------------------------------------------------------------------


def _what_a_plan_does(goal, solution, n):
    """One sentence: the first thing wrong with solution(n), or that all is right. goal(rank, n) are
    the chunks that must be whole there."""
    plan = solution(n)
    if plan is None or plan is ...:
        return plan
    try:
        plan = [[Move(*move) for move in moves] for moves in plan]
    except TypeError:
        raise TypeError(
            "a plan is a list of steps, and a step a list of moves, Move(source, target, chunk,"
            " operator)."
        ) from None
    if any(part is ... for moves in plan for move in moves for part in move):
        return ...
    if not any(plan):
        return "nothing moves: the plan has no moves."
    for number, moves in enumerate(plan, 1):
        for move in moves:
            if move.chunk not in range(n):
                return (
                    f"step {number}: rank {move.source} sends chunk {move.chunk}, and chunks are"
                    f" numbered 0 to {n - 1}: take the number % n."
                )
            if move.target != (move.source + 1) % n:
                return (
                    f"step {number}: rank {move.source} sends to rank {move.target}, which is not"
                    " the rank to its right."
                )
    try:
        held = follow(
            plan, [{chunk: frozenset([rank]) for chunk in range(n)} for rank in range(n)]
        )[-1]
    except ValueError as error:
        return str(error)
    steps = f"{len(plan)} step{'s' * (len(plan) != 1)}"
    sums = [(rank, chunk, held[rank][chunk]) for rank in range(n) for chunk in goal(rank, n)]
    lacking = [(rank, chunk, parts) for rank, chunk, parts in sums if len(parts) < n]
    if lacking and (idle := _idle(plan, n)):
        return idle
    if lacking:
        rank, chunk, parts = lacking[0]
        missing = sum(n - len(parts) for *_, parts in lacking)
        there = ", ".join(map(str, sorted(parts)))
        return (
            f"after {steps} {missing} parts are missing, the first in chunk {chunk} of rank {rank},"
            f" which has {'those of ranks' if len(parts) > 1 else 'that of rank'} {there}."
        )
    return f"every sum is where it belongs, after {steps}."


def _idle(plan, n):
    for number, moves in enumerate(plan, 1):
        for rank in range(n):
            if all(move.source != rank for move in moves):
                return (
                    f"step {number}: rank {rank} sends nothing, and every rank sends in every step."
                )
    return ""


plan_of_a_ring_reduce_scatter = topic.exercise(
    "plan_of_a_ring_reduce_scatter",
    cases=(dict(n=2), dict(n=3), dict(n=5)),
    answer=partial(_what_a_plan_does, lambda rank, n: [rank]),
    hint="Follow one chunk. It takes n - 1 steps to the right and ends at the rank of its number:"
    " where does it set out? In each step a rank sends what it has just received.",
    right="chunk c sets out at rank c + 1, collects a part at each stop, and is whole when it comes"
    " home.",
)


def _all_reduce_plan(n):
    return ring_reduce_scatter(n) + ring_all_gather(n)


ring_that_adds_too_often = topic.exercise(
    "ring_that_adds_too_often",
    _all_reduce_plan,
    name="all_reduce_plan",
    cases=(dict(n=2), dict(n=3), dict(n=4)),
    answer=partial(_what_a_plan_does, lambda rank, n: range(n)),
    right="+= on the way around that adds up, = on the one that hands out.",
)


# --- code -----------------------------------------------------------------------------------------


def _numbers(rank, size):
    """A rank's part: small whole numbers, so that sums are exact in any order."""
    return torch.arange(1, size + 1, dtype=torch.float64) * (10**rank)


class Summed(NamedTuple):
    """The sums that all ranks hold, and what they sent for them."""

    full: list
    messages_of_each_rank: list
    elements_sent: int


def _on_ranks(solution, n, size):
    """The sums of all ranks after solution(full, dist), and what was sent."""

    def work(dist):
        full = _numbers(dist.get_rank(), size)
        solution(full, dist)
        return full.tolist(), dist.messages_sent, dist.elements_sent

    found = answer_of_ranks(n, work)
    if not isinstance(found, list):
        return found
    full, messages, elements = map(list, zip(*found))
    if full == [_numbers(rank, size).tolist() for rank in range(n)]:
        return Summed(full, [], 0)  # nothing has changed, whatever was sent
    return Summed(full, messages, sum(elements))


class Held(NamedTuple):
    """The arrays that all ranks hold."""

    full: list


def _held(solution, n, size):
    """The arrays of all ranks after solution(full, dist), however much was sent: a chunk may be
    padded."""
    found = _on_ranks(solution, n, size)
    if isinstance(found, Summed) and found.messages_of_each_rank == [0] * n:
        return "the sum is right, and dist has made it: repair the ring instead."
    return Held(found.full) if isinstance(found, Summed) else found


class Passed(NamedTuple):
    """The array that a rank got, whether the room that it was shown is as it was, and whether it
    waited for each isend."""

    arrived: list
    room_is_as_it_was: bool
    isend_was_waited_for: bool


def _passed_on(solution, n, size, longer):
    """The arrays of each rank after solution(outgoing, room, dist); for each rank before it a chunk
    is `longer` elements longer."""

    def work(dist):
        rank = dist.get_rank()
        outgoing = _numbers(rank, size + longer * rank)
        room = torch.full((size + longer * ((rank - 1) % n),), 7.0).double()
        arrived = solution(outgoing, room, dist)
        if arrived is None or arrived is ...:
            return arrived
        if not isinstance(arrived, torch.Tensor):
            raise TypeError(
                f"it returned something of type {type(arrived).__name__}: recv returns the number"
                " of the rank, isend and irecv return a handle. What arrives is in the tensor that"
                " the call was given: return that one."
            )
        if arrived.dtype != room.dtype:
            raise TypeError(
                f"it returned a tensor of {arrived.dtype}, and room is of {room.dtype}:"
                " torch.empty_like(room) has the type of room, too. Real ranks send bytes, and"
                " those of another type are other numbers."
            )
        left = (rank - 1) % n
        wanted = _numbers(left, size + longer * left).tolist()
        waited = arrived.tolist() != wanted or not any(sent.rest for sent in dist.isends)
        return Passed(arrived.tolist(), room.eq(7).all().item(), waited)

    found = value_of_ranks(n, work)
    if isinstance(found, Failure) and "which made room" in found:  # on whichever rank comes first
        return Failure("ValueError: a rank receives into a tensor larger or smaller than was sent")
    return found


one_place_around_the_ring = topic.exercise(
    "one_place_around_the_ring",
    cases=(
        dict(n=3, size=2, longer=0),
        dict(n=4, size=1, longer=0),
        dict(n=3, size=1, longer=1),
    ),
    words=("3 ranks, 2 elements", "4 ranks, 1 element", "3 ranks, chunks of 1, 2 and 3 elements"),
    answer=_passed_on,
    hint="dist.isend(tensor, rank) and dist.recv(tensor, rank): to whom, and from whom? The last"
    " rank's right neighbour is rank 0: % n.",
    right="isend to the right, recv from the left: nobody waits for a neighbour who sends, too.",
)


pass_on = one_place_around_the_ring.reference


def _first_that_is_no_sum(full, sums):
    """(rank, element, how often each rank's part is in it) of the first element that is no sum of
    all parts, rank r's being 10**r times 1, 2, 3, ...; no times where it is none of parts."""
    rank, element = next(
        (rank, k) for rank, own in enumerate(full) for k in range(len(own)) if own[k] != sums[k]
    )
    parts, n = full[rank][element] / (element + 1), len(full)
    whole = parts == int(parts) and 0 <= parts < 10**n
    return rank, element, [int(parts) // 10**part % 10 for part in range(n)] if whole else []


CASES = (dict(n=2, size=4), dict(n=3, size=7), dict(n=4, size=9))
WORDS = ("2 ranks, 4 elements", "3 ranks, 7 elements", "4 ranks, 9 elements")

all_reduce_from_send_and_recv = topic.exercise(
    "all_reduce_from_send_and_recv",
    cases=CASES,
    words=WORDS,
    answer=_on_ranks,
    hint="Two loops over n - 1 steps. In step 1, 2, ... of the first, rank me sends chunk me - step"
    " and adds what arrives to chunk me - step - 1; the second hands the finished sums out.",
    right="+= in the first round, = in the second: a reduce-scatter and an all-gather.",
)


chunks_that_do_not_divide = topic.exercise(
    "chunks_that_do_not_divide",
    cases=(dict(n=4, size=8), dict(n=4, size=10), dict(n=4, size=5), dict(n=3, size=5)),
    words=(
        "4 ranks, 8 elements",
        "4 ranks, 10 elements",
        "4 ranks, 5 elements",
        "3 ranks, 5 elements",
    ),
    answer=_held,
    hint="Which elements of full are in no chunk, where n does not divide their number?",
    right="n chunks, every element in one of them, whether n divides their number or not.",
)


# --- bug hunt: ranks that do not agree on the order -----------------------------------------------


def _summed(solution, orders, sizes):
    """The gradients of all ranks, by name, after solution(gradients, dist); rank r has its
    gradients in the order orders[r]."""

    def work(dist):
        rank = dist.get_rank()
        places = {name: "abc".index(name) for name in orders[rank]}
        # another one on every other rank
        largest = {name: place if rank % 2 else 3 - place for name, place in places.items()}
        gradients = {
            name: (1 + largest[name]) * _numbers(rank, sizes[place])
            for name, place in places.items()
        }
        solution(gradients, dist)
        return {name: gradients[name].tolist() for name in sorted(gradients)}

    return answer_of_ranks(len(orders), work)


def _sum_gradients(gradients, dist):
    for name in sorted(gradients):
        dist.all_reduce(gradients[name])


order_that_differs = topic.exercise(
    "order_that_differs",
    _sum_gradients,
    name="sum_gradients",
    cases=(
        dict(orders=("ab", "ab"), sizes=(2, 2)),
        dict(orders=("ab", "ba"), sizes=(2, 2)),
        dict(orders=("abc", "bca", "abc"), sizes=(1, 2, 3)),
    ),
    words=(
        "2 ranks, the same order",
        "2 ranks, orders ab and ba, all of one size",
        "3 ranks, one in another order, three sizes",
    ),
    answer=_summed,
    right="an order that every rank finds by itself, and the same for all: here the names.",
)


# --- two ranks of one's own -----------------------------------------------------------------------


def _as_lists(solution):
    """The array of each rank as a list, whether it comes as one or as a tensor."""
    found = solution()
    if callable(found):
        return "that is a function: hand over what run gives back when it is given that function."
    if isinstance(found, (list, tuple)):
        return [own.tolist() if isinstance(own, torch.Tensor) else own for own in found]
    return found


_SUM_OF_TWO = [0, 3, 6, 9, 12]


sums_of_two_ranks = topic.exercise(
    "sums_of_two_ranks",
    [_SUM_OF_TWO, _SUM_OF_TWO],
    name="found_by_two",
    cases=({},),
    answer=_as_lists,
    of_a_value=True,
    hint="A function that takes no argument does everything on a rank: full, an empty shard,"
    " reduce_scatter, all_gather. `with ranks(2) as two:`, and two.run of that function gives a"
    " list for each rank.",
    right="reduce-scatter, then all-gather: the same sum on both ranks, and an all-reduce is that.",
)
