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


def _passed_on(solution, n, size, longer=0):
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
        waited = arrived.tolist() != wanted or all(sent.is_done for sent in dist.isends)
        return Passed(arrived.tolist(), room.eq(7).all().item(), waited)

    found = value_of_ranks(n, work)
    if isinstance(found, Failure) and "which made room" in found:  # on whichever rank comes first
        return Failure("ValueError: a rank receives into a tensor larger or smaller than was sent")
    return found


def _from_another_rank(found, right, n, size, longer=0):
    """Whose chunk has arrived, and what became of the room."""
    sent = {rank: _numbers(rank, size + longer * rank).tolist() for rank in range(n)}
    for rank, one in enumerate(found):
        left = (rank - 1) % n
        if one.arrived == sent[left]:
            continue
        whose = next((other for other, chunk in sent.items() if chunk == one.arrived), None)
        if whose is not None:
            return (
                f"rank {rank} returns the chunk of rank {whose}, and that of its left neighbour,"
                f" rank {left}, is wanted: send to (me + 1) % n, receive from (me - 1) % n."
            )
        if set(one.arrived) == {7.0}:
            return (
                "room is what was returned or sent: outgoing goes out, and what arrives is"
                " returned."
            )
        return (
            f"rank {rank} returns {one.arrived}, which no rank has sent: return the tensor that"
            " recv has written into, as it is."
        )
    return None


one_place_around_the_ring = topic.exercise(
    "one_place_around_the_ring",
    cases=(dict(n=3, size=2), dict(n=4, size=1), dict(n=3, size=1, longer=1)),
    words=("3 ranks, 2 elements", "4 ranks, 1 element", "3 ranks, chunks of 1, 2 and 3 elements"),
    answer=_passed_on,
    hint="dist.isend(tensor, rank) and dist.recv(tensor, rank): to whom, and from whom? The last"
    " rank's right neighbour is rank 0: % n.",
    properties=(_from_another_rank,),
    right="isend to the right, recv from the left: nobody waits for a neighbour who sends, too.",
)


pass_on = one_place_around_the_ring.reference


def _sent_for_nothing(found, right, size):
    """The sums are right: how they were sent."""
    messages = sum(found.messages_of_each_rank)
    if not messages:
        return (
            "the sum is right, and dist has made it. Build it yourself, with pass_on: what does"
            " all_reduce do inside?"
        )
    if found.elements_sent == messages * size:
        return (
            f"the sum is right, but whole arrays travel, {messages} of them: a ring sends chunks,"
            " and so 2 (n - 1) / n of an array over every link."
        )
    return (
        f"the sums are right, in {messages} messages with {found.elements_sent} elements, and"
        f" {sum(right.messages_of_each_rank)} with {right.elements_sent} are enough: in each round"
        " n - 1 messages of one chunk a rank."
    )


def _parts_in_each_element(found, right, n, size):
    """How often each rank's part is in the elements: rank r brings 10**r times 1, 2, 3, ..."""
    if found.full == right.full:
        return _sent_for_nothing(found, right, size)
    if all(
        abs(n * value - wanted) < 1e-9
        for own, wanted_of_all in zip(found.full, right.full)
        for value, wanted in zip(own, wanted_of_all)
    ):
        return "that is the mean; all-reduce is to give the sum here."
    own_chunks = [chunk.tolist() for chunk in torch.arange(size).tensor_split(n)]
    if all(
        (own[k] == wanted[k]) == (k in chunk)
        for own, wanted, chunk in zip(found.full, right.full, own_chunks)
        for k in range(size)
    ):
        return (
            "each rank has the sum of its own chunk, and of no other: that is a reduce-scatter. The"
            " second round, which hands the sums out, is missing, or does nothing with what"
            " arrives."
        )
    where, element = next(
        (rank, k)
        for rank, (own, wanted) in enumerate(zip(found.full, right.full))
        for k, pair in enumerate(zip(own, wanted))
        if pair[0] != pair[1]
    )
    value = found.full[where][element] / (element + 1)
    if value == int(value) and 0 <= value < 10**n:
        times = [int(value) // 10**rank % 10 for rank in range(n)]
        said = [
            f"the part of rank {rank} {'is missing' if not count else f'is in it {count} times'}"
            for rank, count in enumerate(times)
            if count != 1
        ]
        return (
            f"element {element} on rank {where} is no sum of all {n} parts:"
            f" {', '.join(said)}. A part that is there twice was added to a sum that had it; one"
            " that is missing was replaced, never sent, or added to what is no view of full."
        )
    whole = right.full[0][element]
    return (
        f"element {element} on rank {where} is {found.full[where][element]:.4g} and not"
        f" {whole:g}: the sum itself is changed, or something else is added than the ranks' parts."
    )


CASES = (dict(n=2, size=4), dict(n=3, size=7), dict(n=4, size=9))
WORDS = ("2 ranks, 4 elements", "3 ranks, 7 elements", "4 ranks, 9 elements")

all_reduce_from_send_and_recv = topic.exercise(
    "all_reduce_from_send_and_recv",
    cases=CASES,
    words=WORDS,
    answer=_on_ranks,
    hint="Two loops over n - 1 steps. In step 1, 2, ... of the first, rank me sends chunk me - step"
    " and adds what arrives to chunk me - step - 1; the second hands the finished sums out.",
    properties=(_parts_in_each_element,),
    right="+= in the first round, = in the second: a reduce-scatter and an all-gather.",
)


def _parts_in_each_chunk(found, right, n, size):
    """The parts in arrays alone, however they were sent."""
    if all(own == _numbers(rank, size).tolist() for rank, own in enumerate(found.full)):
        return (
            "nothing in full has changed: what the ring works on must be views of full, not copies."
        )
    return _parts_in_each_element(Summed(found.full, [], 0), Summed(right.full, [], 0), n, size)


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
    properties=(_parts_in_each_chunk,),
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
