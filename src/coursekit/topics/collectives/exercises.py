"""Chapter 4: collectives. Plans are followed as data, code runs on thread ranks (thread_ranks.py):
no check can hang."""

from functools import partial
from typing import NamedTuple

import torch

from coursekit.exercises.checker import Exercise, Failure, Misconception
from coursekit.exercises.thread_ranks import answer_of_ranks, value_of_ranks
from shardlab import collective_plans as plans
from shardlab.collective_plans import Move, follow

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


def _scatter(chunk, operator="+=", more=0):
    return lambda n: [
        [Move(rank, (rank + 1) % n, chunk(rank, step) % n, operator) for rank in range(n)]
        for step in range(1, n + more)
    ]


plan_of_a_ring_reduce_scatter = Exercise(
    name="reduce_scatter_plan",
    reference=plans.ring_reduce_scatter,
    cases=(dict(n=2), dict(n=3), dict(n=5)),
    answer=partial(_what_a_plan_does, lambda rank, n: [rank]),
    hint="Follow one chunk. It takes n - 1 steps to the right and ends at the rank of its number:"
    " where does it set out? In each step a rank sends what it has just received.",
    misconceptions=(
        Misconception(
            _scatter(lambda rank, step: rank),
            "every rank sends the chunk of its own number in every step. After the first step that"
            " adds the same part again: a rank must pass on what it received in the step before,"
            " with its own part in it.",
        ),
        Misconception(
            _scatter(lambda rank, step: rank - step + 1),
            "every chunk is summed, and none is at home: rank r ends with chunk r + 1. A chunk that"
            " is to end at rank r sets out at the rank to its right.",
        ),
        Misconception(
            _scatter(lambda rank, step: rank - step - 1),
            "every chunk is summed, and none is at home: rank r ends with chunk r - 1. That chunk"
            " has gone one place too far, or set out one place too late.",
        ),
        Misconception(
            _scatter(lambda rank, step: rank + step),
            "chunks travel to the right, so the number that a rank sends falls from step to step."
            " With + a rank sends a chunk that nobody has added to yet, and the one it has just"
            " received stays where it is.",
        ),
        Misconception(
            _scatter(lambda rank, step: rank + step - 1),
            "two things: in its first step a rank does not send its own chunk, which is to come"
            " home last, but its left neighbour's, rank - 1; and that number falls from step to"
            " step, for a rank passes on what came from the left.",
        ),
        Misconception(
            _scatter(lambda rank, step: rank - step, operator="="),
            "what arrives replaces what was there, so each rank ends with somebody else's part:"
            " reducing means +=.",
        ),
        Misconception(
            _scatter(lambda rank, step: rank - step, more=1),
            "one step too many: after n - 1 steps each chunk has met every rank, and the next one"
            " adds parts a second time.",
        ),
        Misconception(
            _scatter(lambda rank, step: rank - step, more=-1),
            "one step too few: a chunk that collects the parts of n ranks travels n - 1 times.",
        ),
        Misconception(
            _scatter(lambda rank, step: step),
            "every rank sends the same chunk in a step, the step's number. In each step"
            " the n ranks must send n different chunks: rank and step both count.",
        ),
        Misconception(
            _scatter(lambda rank, step: rank + 1),
            "every rank sends the same chunk in every step, its right neighbour's. It must pass"
            " on what it received in the step before, with its own part in it.",
        ),
        Misconception(
            _scatter(lambda rank, step: rank - 1),
            "every rank sends the same chunk in every step, its left neighbour's. It must pass"
            " on what it received in the step before, with its own part in it.",
        ),
        Misconception(
            lambda n: [list(moves) for moves in zip(*plans.ring_reduce_scatter(n))],
            "the loops are exchanged: yours is a list of n lists, each with the moves of one rank."
            " A step has the moves of all ranks, and there are n - 1 steps.",
        ),
        Misconception(
            lambda n: [
                [Move(m.target, m.source, *m[2:]) for m in moves]
                for moves in plans.ring_reduce_scatter(n)
            ],
            "source and target are exchanged: Move(source, target, ...), and the target is the"
            " rank to the right.",
        ),
        Misconception(
            lambda n: [
                [Move(m.source, m.chunk, m.target, m.operator) for m in moves]
                for moves in plans.ring_reduce_scatter(n)
            ],
            "target and chunk are exchanged: Move(source, target, chunk, operator).",
        ),
        Misconception(
            _scatter(lambda rank, step: rank - step + 1, more=1),
            "one step too many, the first: range(n) begins with 0, and in that step a rank sends"
            " its own chunk, which is to come home last. range(1, n) has the n - 1 steps.",
        ),
        Misconception(
            plans.ring_all_reduce,
            "that is a whole all-reduce: after its first n - 1 steps each rank has the sum of its"
            " own chunk, and a reduce-scatter ends there.",
        ),
    ),
    errors=(
        (
            "Move.__new__",
            'A move has four parts: Move(source, target, chunk, "+=").',
        ),
    ),
    right=(
        "chunk c sets out at rank c + 1, collects a part at each stop, and is whole when it comes"
        " home."
    ),
)


def _ring(gather):
    return lambda n: plans.ring_reduce_scatter(n) + gather(n)


def _gather(operator="=", chunk=lambda rank, step: rank - step, steps=0):
    return lambda n: [
        [Move(rank, (rank + 1) % n, chunk(rank, step) % n, operator) for rank in range(n)]
        for step in range(n - 1 + steps)
    ]


ring_that_adds_too_often = Exercise(
    name="all_reduce_plan",
    reference=plans.ring_all_reduce,
    cases=(dict(n=2), dict(n=3), dict(n=4)),
    answer=partial(_what_a_plan_does, lambda rank, n: range(n)),
    misconceptions=(
        Misconception(
            _ring(_gather("+=")),
            "the first round is right. In the second one whole sums travel, and they are added to"
            " parts that are in them already. What does an all-gather do with what arrives?",
        ),
        Misconception(
            lambda n: _scatter(lambda rank, step: rank - step, "=")(n) + _gather()(n),
            "now nothing is added at all: the second round was to change, not the first.",
        ),
        Misconception(
            _ring(_gather(chunk=lambda rank, step: rank - step + 1)),
            "the second round sets out with the wrong chunk: after the first, rank r has the whole"
            " sum of chunk r and of no other, so that one must go first.",
        ),
        Misconception(
            _ring(lambda n: []),
            "that is the reduce-scatter alone: each rank has the sum of its own chunk. The others"
            " still have to get it.",
        ),
        Misconception(
            _ring(_gather(steps=-1)),
            "one step is missing: a sum that is to reach n - 1 other ranks travels n - 1 times.",
        ),
    ),
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


def _passing(
    to=1,
    since=1,
    back=lambda arriving, outgoing, room: arriving,
    into_room=False,
    like_outgoing=False,
    sends_room=False,
    waits=False,
    forgets=False,
):
    def pass_on(outgoing, room, dist):
        n, me = dist.get_world_size(), dist.get_rank()
        arriving = room if into_room else torch.empty_like(outgoing if like_outgoing else room)
        send = dist.send if waits else dist.isend
        sent = send(room if sends_room else outgoing, (me + to) % n)
        dist.recv(arriving, (me - since) % n)
        if not (waits or forgets):
            sent.wait()
        return back(arriving, outgoing, room)

    return pass_on


def pass_on(outgoing, room, dist):
    """Send a chunk to the right; return what comes from the left, which is as large as `room`."""
    n, me = dist.get_world_size(), dist.get_rank()
    arriving = torch.empty_like(room)
    sent = dist.isend(outgoing, (me + 1) % n)
    dist.recv(arriving, (me - 1) % n)
    sent.wait()
    return arriving


one_place_around_the_ring = Exercise(
    name="pass_on",
    reference=pass_on,
    cases=(dict(n=3, size=2), dict(n=4, size=1), dict(n=3, size=1, longer=1)),
    words=("3 ranks, 2 elements", "4 ranks, 1 element", "3 ranks, chunks of 1, 2 and 3 elements"),
    answer=_passed_on,
    hint="dist.isend(tensor, rank) and dist.recv(tensor, rank): to whom, and from whom? The last"
    " rank's right neighbour is rank 0: % n.",
    misconceptions=(
        Misconception(
            _passing(to=-1, since=-1),
            "the other way around: send to the right, (me + 1) % n, and receive from the left.",
        ),
        Misconception(
            _passing(back=lambda arriving, outgoing, room: outgoing),
            "you return what you have sent: return what has arrived.",
        ),
        Misconception(
            _passing(into_room=True),
            "you receive into room itself, and in a ring room is a part of the array that is still"
            " needed. Make a tensor of its own, torch.empty_like(room).",
        ),
        Misconception(
            lambda outgoing, room, dist: dist.recv(torch.empty_like(room), dist.get_rank() - 1),
            "rank 0's left neighbour is rank n - 1, and rank 0 is the right neighbour of that one:"
            " (me - 1) % n and (me + 1) % n. And isend comes before recv, which waits.",
        ),
        Misconception(
            lambda outgoing, room, dist: dist.recv(
                torch.empty_like(room), (dist.get_rank() - 1) % dist.get_world_size()
            ),
            "you receive before anybody has sent, and recv waits: all ranks wait for each other."
            " isend first, which returns at once.",
        ),
        Misconception(
            _passing(waits=True),
            "a send waits until somebody takes the message, and so does the wait() of an isend. All"
            " ranks wait before they receive: nobody is there to take one. isend, recv, then"
            " wait().",
        ),
        Misconception(
            _passing(since=-1),
            "you receive from the right, and nobody sends from there: what comes, comes from the"
            " left, (me - 1) % n.",
        ),
        Misconception(
            _passing(like_outgoing=True),
            "the tensor to receive into must be as large as room, torch.empty_like(room): chunks"
            " need not be of one size, and outgoing is another chunk.",
        ),
        Misconception(
            _passing(sends_room=True),
            "you send room; outgoing is what the rank to the right needs.",
        ),
        Misconception(
            _passing(back=lambda arriving, outgoing, room: arriving + room),
            "you return the sum. What has arrived is wanted alone: whoever calls pass_on knows"
            " whether to add it.",
        ),
        Misconception(
            _passing(forgets=True),
            "the right tensor, and nobody waits for the isend: until its handle's wait() is over"
            " the message may not have been read, and outgoing must not change. Call wait() after"
            " the recv.",
        ),
        Misconception(
            _passing(back=lambda arriving, outgoing, room: room),
            "room is as it was: return what has arrived, the tensor that recv wrote into.",
        ),
        Misconception(
            lambda outgoing, room, dist: torch.zeros_like(room),
            "nothing has arrived: dist.recv(arriving, (me - 1) % n) waits for the message and"
            " writes it into arriving.",
        ),
    ),
    errors=(
        (
            "larger or smaller than was sent",
            "The tensor to receive into is as large as room, torch.empty_like(room): chunks need"
            " not be of one size.",
        ),
        (
            r"has no peer tensor|(send|recv)\(\) missing|no attribute 'numel'",
            "First the tensor, then the rank: dist.isend(tensor, rank), dist.recv(tensor, rank).",
        ),
        (
            r"empty\(\)",
            "torch.empty wants a size: torch.empty_like(room) takes size and type from room.",
        ),
        (
            "Stuck",
            "Each rank sends to (me + 1) % n and receives from (me - 1) % n, the last one and the"
            " first one, too.",
        ),
        (
            "has no peer",
            "A message goes to a neighbour. The ring has no end: after rank n - 1 comes rank 0,"
            " so take the number % n.",
        ),
    ),
    right="isend to the right, recv from the left: nobody waits for a neighbour who sends, too.",
)


def _add(into, arriving):
    into += arriving


def _put(into, arriving):
    into.copy_(arriving)


def _ring_of(
    first,
    second,
    cut=lambda full, n: full.tensor_split(n),
    then=lambda full, n: None,
    rounds=lambda n: (range(1, n), range(n - 1)),
    sign=-1,
    back=1,
):
    """A ring all-reduce that does `first` with what arrives in the first round and `second` in the
    second."""

    def all_reduce(full, dist):
        n, me = dist.get_world_size(), dist.get_rank()
        chunks = cut(full, n)
        for does, steps in zip((first, second), rounds(n)):
            for step in steps:
                into = chunks[(me + sign * step - (back if does is first else 1)) % n]
                arriving = pass_on(chunks[(me + sign * step) % n], into, dist)
                does(into, arriving)
        then(full, n)

    return all_reduce


def _whole_arrays(full, dist):
    passing = full.clone()
    for _ in range(dist.get_world_size() - 1):
        passing = pass_on(passing, full, dist)
        full += passing


def _nothing(into, arriving):
    pass


CASES = (dict(n=2, size=4), dict(n=3, size=7), dict(n=4, size=9))
WORDS = ("2 ranks, 4 elements", "3 ranks, 7 elements", "4 ranks, 9 elements")

all_reduce_from_send_and_recv = Exercise(
    name="all_reduce",
    reference=_ring_of(_add, _put),
    cases=CASES,
    words=WORDS,
    answer=_on_ranks,
    hint="Two loops over n - 1 steps. In step 1, 2, ... of the first, rank me sends chunk me - step"
    " and adds what arrives to chunk me - step - 1; the second hands the finished sums out.",
    misconceptions=(
        Misconception(
            _ring_of(_nothing, _nothing),
            "nothing in full has changed: what arrives is dropped. Mind that into = ... gives the"
            " name to another tensor, while into += ... and into.copy_(...) write into full.",
        ),
        Misconception(
            _ring_of(_nothing, _put),
            "the chunks that the second round hands out come from the first, and have the part of"
            " one rank alone. Either there nothing was added: into = into + arriving gives the name"
            " to another tensor, while into += arriving writes into full. Or the first round sets"
            " out with the wrong chunk: in its step 1, 2, ... rank me sends chunk me - step, and"
            " its own chunk comes home last.",
        ),
        Misconception(
            _ring_of(_add, _add),
            "the second round adds as well: whole sums are added to parts that are in them"
            " already. In that round each arriving chunk is complete, and replaces the chunk"
            " that is there.",
        ),
        Misconception(
            _ring_of(_put, _put),
            "each chunk ends with the part of one rank alone. Either nothing is ever added: in the"
            " first round what arrives is a part of the sum, and yours is missing in it. Or the"
            " second round sets out with the wrong chunk: in its first step rank me sends chunk me,"
            " which is whole.",
        ),
        Misconception(_ring_of(_put, _add), "the two are exchanged: first add up, then hand out."),
        Misconception(
            _ring_of(_add, _nothing),
            "that is a reduce-scatter: each rank has the sum of its own chunk, and of no other. The"
            " second round still has to do something with what arrives.",
        ),
        Misconception(
            _ring_of(_add, _put, rounds=lambda n: (range(1, n), range(0))),
            "that is the first round, a reduce-scatter: each rank has the sum of its own chunk, and"
            " of no other. The second round, which hands the sums out, is missing.",
        ),
        Misconception(
            _ring_of(_add, _put, rounds=lambda n: (range(0), range(n - 1))),
            "that is the second round alone: it hands out what the first one has summed, and"
            " nothing is summed yet.",
        ),
        Misconception(
            _ring_of(_add, _put, rounds=lambda n: (range(1, n + 1), range(n))),
            "one step too many in both rounds: a chunk that is to meet all n ranks travels n - 1"
            " times.",
        ),
        Misconception(
            _ring_of(_add, _put, then=lambda full, n: full.div_(n)),
            "that is the mean; all-reduce is to give the sum here.",
        ),
        Misconception(
            _ring_of(_add, _put, rounds=lambda n: (range(1, n + 1), range(n - 1))),
            "the sums are right, and there is one step too many in the first round or the second:"
            " a chunk that is to meet all n ranks travels n - 1 times, and the next message is for"
            " nothing.",
        ),
        Misconception(
            _ring_of(_add, _put, rounds=lambda n: (range(2, n), range(n - 1))),
            "one step too few in the first round: a chunk that collects the parts of n ranks"
            " travels n - 1 times.",
        ),
        Misconception(
            _ring_of(_add, _put, rounds=lambda n: (range(1, n - 1), range(n - 1))),
            "the last step of the first round is missing: range(1, n) has n - 1 steps,"
            " range(1, n - 1) one fewer.",
        ),
        Misconception(
            _ring_of(_add, _put, rounds=lambda n: (range(1, n), range(n - 2))),
            "one step too few in the second round: a sum that is to reach n - 1 other ranks"
            " travels n - 1 times.",
        ),
        Misconception(
            _ring_of(_add, _put, back=0),
            "you add what arrives to the chunk that the rank has just sent: what comes from the"
            " left is another chunk, the one before, me - step - 1.",
        ),
        Misconception(
            _ring_of(_add, _put, sign=1),
            "chunks travel to the right, so the number that a rank sends falls from step to"
            " step: me - step, not me + step.",
        ),
        Misconception(
            lambda full, dist: dist.all_reduce(full),
            "the sum is right, and dist has made it. Build it yourself, with pass_on: what does"
            " all_reduce do inside?",
        ),
        Misconception(
            _whole_arrays,
            "the sum is right, but whole arrays travel, n - 1 of them over every link: a ring"
            " sends chunks, and so 2 (n - 1) / n of an array.",
        ),
    ),
    errors=(
        (
            "does not support item assignment",
            "chunks is a tuple, and chunks[k] += ... stores into the tuple, too. Give the chunk"
            " a name first, into = chunks[k]; then into += ... writes into full.",
        ),
        (
            r"pass_on\(\) missing",
            "pass_on wants three: the chunk that goes out, the chunk whose place it is that"
            " arrives, and dist.",
        ),
        (
            "which made room for",
            "The second argument of pass_on has the size of what arrives: it is the chunk before"
            " the one that you send, me - step - 1.",
        ),
        (
            "index out of range",
            "There are n chunks, 0 to n - 1: take the number % n, and leave chunks as it was given:"
            " chunk(n) and split(size) can make another number of them.",
        ),
    ),
    right="+= in the first round, = in the second: a reduce-scatter and an all-gather.",
)


def _slices(each):
    return lambda full, n: [
        full[k * each(full.numel(), n) : (k + 1) * each(full.numel(), n)] for k in range(n)
    ]


chunks_that_do_not_divide = Exercise(
    name="all_reduce",
    reference=_ring_of(_add, _put),
    cases=(dict(n=4, size=8), dict(n=4, size=10), dict(n=4, size=5), dict(n=3, size=5)),
    words=(
        "4 ranks, 8 elements",
        "4 ranks, 10 elements",
        "4 ranks, 5 elements",
        "3 ranks, 5 elements",
    ),
    answer=_held,
    hint="Which elements of full are in no chunk, where n does not divide their number?",
    misconceptions=(
        Misconception(
            _ring_of(_add, _put, _slices(lambda size, n: size // n)),
            "8 elements on 4 ranks are right, 10 are not: look at the last two. size // n rounds"
            " down, so they are in no chunk, nobody sends them, and each rank keeps its own.",
        ),
        Misconception(
            _ring_of(_add, _put, _slices(lambda size, n: round(size / n))),
            "rounding to the nearest loses elements whenever it rounds down: n chunks of that size"
            " end too early.",
        ),
        Misconception(
            _ring_of(_add, _put, lambda full, n: full.chunk(n)),
            "chunk(n) cuts pieces of one size, rounded up, and can run out of elements before it"
            " has n of them: 5 elements make 3 pieces of at most 2. tensor_split(n) always"
            " makes n.",
        ),
        Misconception(
            _ring_of(_nothing, _nothing),
            "nothing in full has changed: what the ring works on must be views of full, not"
            " copies.",
        ),
        Misconception(
            _ring_of(
                _add,
                _put,
                lambda full, n: [
                    full[k * (full.numel() // n) : (k + 1) * (full.numel() // n) + full.numel() % n]
                    for k in range(n)
                ],
            ),
            "some elements are in two chunks, so parts of them are added twice: a chunk ends"
            " where the next one begins.",
        ),
        Misconception(
            _ring_of(
                _add,
                _put,
                lambda full, n: [
                    full[k * (full.numel() // n) : (k + 1) * (full.numel() // n) + 1]
                    for k in range(n)
                ],
            ),
            "one element more for each chunk puts the first of a chunk into the one before it as"
            " well, and it is added twice: move where the next chunk begins, too.",
        ),
        Misconception(
            _ring_of(_add, _put, then=lambda full, n: full.div_(n)),
            "every element is summed now, and then divided: the ring is to give the sum.",
        ),
    ),
    errors=(
        (
            "index out of range",
            "chunk(n) and split(size) cut pieces of one size, rounded up, and can run out of"
            " elements before there are n of them. tensor_split(n) always makes n.",
        ),
        (
            "invalid for input of size",
            "view(n, -1) cuts only what n divides: tensor_split(n) cuts every size.",
        ),
        (
            "Assertion|ValueError: .*(divi|multiple|remainder)",
            "Refusing a size is not a repair: gradients come in any size. Cut n chunks that have"
            " every element in one of them.",
        ),
        (
            "which made room for",
            "A rank sends more or fewer elements than its neighbour has room for: all ranks must"
            " cut alike, whatever their number.",
        ),
        ("slice indices", "Bounds are whole numbers; a fraction of an element is in no chunk."),
    ),
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


def _in_order(order):
    def sum_gradients(gradients, dist):
        for name in order(gradients, dist):
            dist.all_reduce(gradients[name])

    return sum_gradients


order_that_differs = Exercise(
    name="sum_gradients",
    reference=_in_order(lambda gradients, dist: sorted(gradients)),
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
    misconceptions=(
        Misconception(
            _in_order(lambda gradients, dist: gradients),
            "with the same order on all ranks it is right. With another, one rank's a is added to"
            " the other's b: silently where they are equally large. Which order is the same on"
            " every rank, whatever became ready first?",
        ),
        Misconception(
            _in_order(
                lambda gradients, dist: sorted(gradients, key=lambda name: gradients[name].numel())
            ),
            "sorted by size, the order is the same on all ranks until two gradients are equally"
            " large: these stay in the order in which they came.",
        ),
        Misconception(
            _in_order(
                lambda gradients, dist: sorted(
                    gradients, key=lambda name: -gradients[name].sum().item()
                )
            ),
            "the order follows from values, which differ from rank to rank: if it fits here,"
            " that is luck. Sort by something that is the same everywhere, such as the names.",
        ),
        Misconception(
            _in_order(lambda gradients, dist: []),
            "nothing is summed: each rank still has its own gradients, and the models drift apart.",
        ),
        Misconception(
            _in_order(lambda gradients, dist: sorted(gradients) if dist.get_rank() == 0 else []),
            "only rank 0 takes part: it waits for the others, who never come. A collective is a"
            " call that all ranks make.",
        ),
    ),
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

sums_of_two_ranks = Exercise(
    name="found_by_two",
    reference=lambda: [_SUM_OF_TWO, _SUM_OF_TWO],
    cases=({},),
    answer=_as_lists,
    of_a_value=True,
    hint="A function that takes no argument does everything on a rank: full, an empty shard,"
    " reduce_scatter, all_gather. `with ranks(2) as two:`, and two.run of that function gives a"
    " list for each rank.",
    misconceptions=(
        Misconception(
            lambda: [[0, 3, 6], [9, 12]],
            "those are the shards: the reduce-scatter is done, and the all-gather is missing.",
        ),
        Misconception(
            lambda: [[0, 1, 2, 3, 4], [0, 2, 4, 6, 8]],
            "that is what each rank has brought: all_gather writes into its first argument, so"
            " return that one.",
        ),
        Misconception(
            lambda: [[0, 1, 2, 6, 8]] * 2,
            "gathered without a sum: the shard has a rank's own chunk in it. reduce_scatter(shard,"
            " full) fills it with the sum's.",
        ),
        Misconception(
            lambda: [[0, 1.5, 3, 4.5, 6]] * 2,
            "that is the mean: an all-reduce leaves the sum.",
        ),
        Misconception(
            lambda: [[0, 10, 20, 30, 40]] * 4,
            "four ranks have answered: that is the world of the first cell. ranks(2) starts two.",
        ),
        Misconception(
            lambda: [[0, 2, 4, 6, 8]] * 2,
            "both ranks have brought the same: (r + 1) times, with r = dist.get_rank().",
        ),
        Misconception(
            lambda: [[0, 1, 2, 3, 4]] * 2,
            "rank r brings r + 1 times the array, not r times.",
        ),
        Misconception(
            lambda: [0, 3, 6, 9, 12],
            "that is the array of one rank: hand over all that run gives back, a list for each"
            " rank.",
        ),
        Misconception(
            lambda: [[0, 0, 0, 0, 0]] * 2,
            "all zeros: the gathered array, or the shard, was never written.",
        ),
        Misconception(
            lambda: [None, None],
            "the ranks return nothing: end the function with return, and the array as a list.",
        ),
        Misconception(
            lambda: [[0, 3, 6, 9]] * 2,
            "the last element is lost: two ranks do not divide five, so the shards have 3 elements"
            " and 2.",
        ),
        Misconception(
            lambda: [[0, 3, 6, 9, 12, 0]] * 2,
            "one element too many: the shard of rank 1 has 2 elements, and the gathered array 5.",
        ),
        Misconception(
            lambda: [[0, 6, 12, 18, 24]] * 2,
            "summed twice: the reduce-scatter has added up already, and the all-gather only hands"
            " out.",
        ),
        Misconception(
            lambda: [[3, 6, 9, 12, 15]] * 2,
            "torch.arange(5) begins with 0 and ends with 4: yours begins with 1.",
        ),
        Misconception(
            lambda: [[9, 12, 0, 3, 6]] * 2,
            "the shards are exchanged: rank 0 has the first chunk, of 3 elements.",
        ),
        Misconception(
            lambda: [[[0, 3, 6], [9, 12]]] * 2,
            "those are the shards in a list: collectives.all_gather(full, shard) writes them into"
            " one array, side by side.",
        ),
        Misconception(
            lambda: [[0, 1, 2, 3, 4, 0, 2, 4, 6, 8]] * 2,
            "whole arrays were gathered, and nothing was summed: reduce-scatter first, then gather"
            " the shards.",
        ),
        Misconception(
            lambda: [[0, 3, 6, 9, 12], [0, 2, 4, 6, 8]],
            "the sum has reached rank 0 alone: all_gather is a call that both ranks make, and both"
            " return the array that it fills.",
        ),
        Misconception(
            lambda: [[0, 3, 6, 0, 0], [0, 0, 0, 9, 12]],
            "each rank has its own shard of the sum, and nobody else's: the all-gather is missing.",
        ),
        Misconception(
            lambda: [[0, 5, 10, 15, 20]] * 2,
            "ranks are counted from 0: rank 0 brings the array once, rank 1 twice.",
        ),
        Misconception(
            lambda: [[0, 3, 6, 9, 12]],
            "one rank has answered, and there are to be two: hand over all that run gives back.",
        ),
    ),
    right="reduce-scatter, then all-gather: the same sum on both ranks, and an all-reduce is that.",
)
