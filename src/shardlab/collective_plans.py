"""The plan of every collective, as data: who sends which chunk to whom.

    ring_all_reduce(3)                     a plan: a list of steps, each a list of moves
    ring_all_reduce(3)[0]                  [Move(0, 1, 2, "+="), Move(1, 2, 0, "+="), Move(2, 0, 1,
                                           "+=")]
    follow(ring_all_reduce(3), have)       what every rank holds after every step

collectives.py runs these lists, the stepper in the chapter draws them, the formulas count them. A
plan knows neither tensors nor sizes, so this module needs no torch. It is written for ranks 0 ... n
- 1 of one group.

A move is one message: chunk c of rank `source` goes to rank `target`, which adds it to its own
chunk c (`+=`) or replaces its own chunk with it (`=`). The moves of one step travel at the same
time; a rank begins a step when its moves of the step before are done. Each link is used by one
message at a time, each way, so the number of steps is the number of times that a latency is paid.
"""

from typing import NamedTuple


class Move(NamedTuple):
    source: int
    target: int
    chunk: int
    operator: str  # "+=" or "="


Plan = list[list[Move]]


# --- around a ring: every rank sends to its right and receives from its left in every step --------


def ring_reduce_scatter(n: int) -> Plan:
    """Chunk c sets out at rank c + 1, collects every rank's part on its way, and ends complete at
    rank c."""
    return [
        [Move(rank, (rank + 1) % n, (rank - step) % n, "+=") for rank in range(n)]
        for step in range(1, n)
    ]


def ring_all_gather(n: int) -> Plan:
    """Chunk c sets out complete at rank c, and every rank keeps a copy."""
    return [
        [Move(rank, (rank + 1) % n, (rank - step) % n, "=") for rank in range(n)]
        for step in range(n - 1)
    ]


def ring_all_reduce(n: int) -> Plan:
    """Once around the ring to add up, once around to hand out: Patarasuk and Yuan 2009. No
    algorithm sends fewer bytes; the number of steps grows with n."""
    return ring_reduce_scatter(n) + ring_all_gather(n)


# --- along a tree: after step k, 2^k ranks are in the know ----------------------------------------


def tree_broadcast(n: int, root: int = 0) -> Plan:
    """In each step every rank that has the message (chunk 0 is the whole message) sends it to a
    rank that does not have it yet."""
    plan, known = [], 1
    while known < n:
        plan.append(
            [
                Move((root + place) % n, (root + place + known) % n, 0, "=")
                for place in range(min(known, n - known))
            ]
        )
        known *= 2
    return plan


def tree_reduce(n: int, root: int = 0) -> Plan:
    """The broadcast, run backwards, is a sum."""
    return [
        [Move(target, source, 0, "+=") for source, target, *_ in moves]
        for moves in reversed(tree_broadcast(n, root))
    ]


def tree_all_reduce(n: int) -> Plan:
    """A plan for small messages: few steps, but each step carries the whole message."""
    return tree_reduce(n) + tree_broadcast(n)


# --- by way of rank 0, whose link everything passes -----------------------------------------------


def naive_all_reduce(n: int) -> Plan:
    """All ranks send everything to rank 0. Rank 0 adds up and sends the sum to all ranks, one after
    the other."""
    return [[Move(rank, 0, 0, "+=")] for rank in range(1, n)] + [
        [Move(0, rank, 0, "=")] for rank in range(1, n)
    ]


# --- one to all, all to one, all to all -----------------------------------------------------------


def scatter(n: int, root: int = 0) -> Plan:
    """The root sends chunk c to rank c, one after the other."""
    return [[Move(root, (root + step) % n, (root + step) % n, "=")] for step in range(1, n)]


def gather(n: int, root: int = 0) -> Plan:
    """The scatter, run backwards."""
    return [
        [Move(target, source, chunk, "=") for source, target, chunk, _ in moves]
        for moves in reversed(scatter(n, root))
    ]


def all_to_all(n: int) -> Plan:
    """In step k each rank sends to the rank k places to its right. Chunk n * s + t goes from rank s
    to rank t."""
    return [
        [Move(rank, (rank + step) % n, n * rank + (rank + step) % n, "=") for rank in range(n)]
        for step in range(1, n)
    ]


def barrier(n: int) -> Plan:
    """Dissemination (Hensgen, Finkel and Manber 1988): after step k a rank has heard, through
    others, from the 2^k ranks to its left. Each message is the sender's token: a rank that sends it
    has heard from all ranks that it waited for."""
    plan, distance = [], 1
    while distance < n:
        plan.append([Move(rank, (rank + distance) % n, rank, "=") for rank in range(n)])
        distance *= 2
    return plan


# --- what a plan does -----------------------------------------------------------------------------

# for each rank: its chunks, and the ranks whose parts are in each chunk
Holdings = list[dict[int, frozenset[int]]]


def follow(plan: Plan, have: Holdings) -> list[Holdings]:
    """The chunks that every rank holds before the first step and after each step.

    Raises ValueError, with the step and the move, if a rank sends what it does not have, sends a
    chunk in the step in which it receives it, or adds a part that the sum already has.
    """
    pictures = [have]
    for number, moves in enumerate(plan, 1):
        before, after = pictures[-1], [dict(chunks) for chunks in pictures[-1]]
        sent = {(move.source, move.chunk) for move in moves}
        for move in moves:
            source, target, chunk, operator = move
            arriving, there = before[source].get(chunk), after[target].get(chunk, frozenset())
            if arriving is None:
                raise ValueError(
                    f"step {number}, {move}: rank {source} does not have chunk {chunk}."
                )
            if (target, chunk) in sent:
                raise ValueError(
                    f"step {number}, {move}: rank {target} sends chunk {chunk} while it"
                    " receives it."
                )
            if operator == "+=" and arriving & there:
                raise ValueError(
                    f"step {number}, {move}: rank {target} has the part of rank"
                    f" {min(arriving & there)} already."
                )
            after[target][chunk] = arriving | there if operator == "+=" else arriving
        pictures.append(after)
    return pictures
