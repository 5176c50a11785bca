"""Thread ranks: what a check of an exercise runs on. Nothing that a reader writes there can
hang."""

import threading
import time

import pytest
import torch

from coursekit.exercises import thread_ranks as thread_ranks
from coursekit.exercises.checker import judge
from coursekit.exercises.thread_ranks import Stuck, answer_of_ranks, on_threads, value_of_ranks
from coursekit.topics.collectives.exercises import (
    all_reduce_from_send_and_recv,
    chunks_that_do_not_divide,
    one_place_around_the_ring,
    pass_on,
)
from shardlab import collectives


def test_messages_arrive_in_order_and_are_copies():
    """Mutations: the tensor itself handed over, so that a later change of the sender's arrives;
    last in, first out; all ranks given one number."""

    def work(dist):
        x, other = torch.tensor([float(dist.get_rank())]), 1 - dist.get_rank()
        first = dist.isend(x, other)
        x += 10
        dist.isend(x, other)
        got = [torch.empty(1), torch.empty(1)]
        for y in got:
            dist.recv(y, other)
        first.wait()
        return [y.item() for y in got]

    assert on_threads(2, work) == [[1, 11], [0, 10]]
    assert on_threads(3, lambda dist: (dist.get_rank(), dist.get_world_size())) == [
        (0, 3),
        (1, 3),
        (2, 3),
    ]


def test_a_batch_of_messages():
    """Must catch: a right ring refused because it is a batch; a batch whose messages wait for each
    other; a function that is no isend or irecv of this rank called."""

    def around(outgoing, room, dist):
        n, me = dist.get_world_size(), dist.get_rank()
        arriving = torch.empty_like(room)
        ring = [
            dist.P2POp(dist.irecv, arriving, (me - 1) % n),
            dist.P2POp(dist.isend, outgoing, (me + 1) % n),
        ]
        for work in dist.batch_isend_irecv(ring):
            work.wait()
        return arriving

    assert judge(one_place_around_the_ring, around)
    batches = ([1], lambda dist: [dist.P2POp(dist.send, torch.ones(1), 0)])
    for batch in batches:
        with pytest.raises(ValueError, match="wants a list of P2POp.dist.isend or dist.irecv"):
            on_threads(
                2, lambda dist, b=batch: dist.batch_isend_irecv(b(dist) if callable(b) else b)
            )


def test_a_reduction_is_by_number():
    """A real all-reduce knows no names. Mutation: reductions matched by anything else, so that a
    mismatched order comes out right."""

    def work(dist):
        mine = torch.tensor([1.0, 10.0]) * (1 + dist.get_rank())
        for place in ((0, 1), (1, 0))[dist.get_rank()]:
            dist.all_reduce(part := mine[place : place + 1])
        return mine.tolist(), part.numel()

    assert on_threads(2, work) == [([21, 12], 1), ([12, 21], 1)]


@pytest.mark.parametrize(
    "work, error, sentence",
    [
        (
            lambda dist: dist.recv(torch.empty(1), 1 - dist.get_rank()),
            Stuck,
            "rank 0 waits for rank 1; rank 1 waits for rank 0: nobody can go on.",
        ),
        (
            lambda dist: dist.send(torch.ones(1), 1 - dist.get_rank()),
            Stuck,
            "rank 0 waits until rank 1 takes its message; rank 1 waits until rank 0 takes its",
        ),
        (
            lambda dist: dist.get_rank() or dist.all_reduce(torch.ones(1)),
            Stuck,
            "rank 0 waits in all-reduce 1: nobody can go on.",
        ),
        (
            lambda dist: time.sleep(0.2) if dist.get_rank() else dist.all_reduce(torch.ones(1)),
            Stuck,
            "rank 0 waits in all-reduce 1",
        ),
        (
            lambda dist: dist.all_reduce(torch.ones(1 + dist.get_rank())),
            ValueError,
            "all-reduce 1: the ranks bring 1, 2 elements.",
        ),
        (
            lambda dist: dist.isend(torch.ones(1), 2),
            ValueError,
            "has no peer 2: there are ranks 0 to 1.",
        ),
        (
            lambda dist: (
                dist.isend(torch.ones(3), 1)
                if dist.get_rank() == 0
                else dist.recv(torch.ones(2), 0)
            ),
            ValueError,
            "rank 0 sent 3 elements to rank 1, which made room for 2.",
        ),
        (
            lambda dist: (
                1 / dist.get_rank() if dist.get_rank() == 0 else dist.recv(torch.empty(1), 0)
            ),
            ZeroDivisionError,
            "division",
        ),
    ],
)
def test_no_fault_hangs(work, error, sentence):
    """Mutations: no look at who waits when a rank ends; a send that never waits."""
    with pytest.raises(error, match=sentence):
        on_threads(2, work)


def test_what_runs_on_and_on_is_stopped():
    """The ranks that are busy are named, and not those that wait for them; none of them runs on
    beside the next cell, whatever it catches.

    Mutations: a join without a limit; a rank that is left to itself; the one that waits named,
    too."""
    threads = threading.active_count()

    def work(dist):
        while dist.get_rank() == 1:
            try:
                for _ in range(10**6):
                    pass
            except Exception:
                pass
        dist.recv(torch.empty(1), 1)

    with pytest.raises(
        TimeoutError, match="^rank 1 had not ended after 0.1 s, and did not wait for another.$"
    ):
        on_threads(2, work, seconds=0.1)
    assert threading.active_count() == threads
    with pytest.raises(TimeoutError, match="^ranks 0, 2 had not ended"):
        busy = lambda dist: [None for _ in iter(int, 1)] if dist.get_rank() != 1 else None
        on_threads(3, busy, seconds=0.1)


def test_a_rank_that_raises_is_named():
    """Mutations: the rank that was stopped while it waited named; a rank named where all raise; an
    error that depends on who was first."""

    def work(dist, guilty):
        if dist.get_rank() in guilty:
            raise KeyError("mine")
        dist.all_reduce(torch.ones(1))

    for _ in range(5):
        assert answer_of_ranks(3, lambda dist: work(dist, [1])) == "KeyError on rank 1: 'mine'"
        assert (
            answer_of_ranks(3, lambda dist: work(dist, [0, 2])) == "KeyError on ranks 0, 2: 'mine'"
        )
        assert answer_of_ranks(3, lambda dist: work(dist, [0, 1, 2])) == "KeyError: 'mine'"
        assert answer_of_ranks(3, lambda dist: {}[dist.get_rank()]) == "KeyError on rank 0: 0"
        assert (
            answer_of_ranks(3, lambda dist: dist.all_reduce(torch.ones(1)) or 1 / 0)
            == "ZeroDivisionError: division by zero"
        )
        assert answer_of_ranks(
            2, lambda dist: dist.recv(torch.empty(1), 1 - dist.get_rank())
        ).startswith("Stuck: rank 0 waits")
    assert answer_of_ranks(2, lambda dist: dist.get_rank() / ...) is ...


def test_a_rank_that_hands_back_nothing():
    """None is an answer where ranks need not hand anything back, and all that a check needs where
    they must.

    Must catch: a blank, or nothing, of one rank hidden among the answers of the others; None taken
    for a blank by answer_of_ranks; a failure looked through letter by letter; an error over a
    blank."""
    nobody_at_1 = [5, None, 7]
    assert answer_of_ranks(3, lambda dist: nobody_at_1[dist.get_rank()]) == nobody_at_1
    assert value_of_ranks(3, lambda dist: nobody_at_1[dist.get_rank()]) is None
    assert value_of_ranks(2, lambda dist: [5, ...][dist.get_rank()]) is ...
    assert value_of_ranks(2, lambda dist: dist.get_rank() / ...) is ...
    assert value_of_ranks(2, lambda dist: 1 / 0) == "ZeroDivisionError: division by zero"
    assert value_of_ranks(2, lambda dist: dist.get_rank()) == [0, 1]


def test_what_torch_lets_one_say():
    """op, async_op, a receive that is waited for, a parameter that wants a gradient: as on real
    ranks.

    Mutations: a sum where a mean or the largest was asked for; irecv that waits at once, which
    deadlocks; autograd's objection to a parameter."""

    def work(dist):
        rank, n = dist.get_rank(), dist.get_world_size()
        x, y = torch.tensor([rank + 1.0]), torch.nn.Parameter(torch.tensor([rank + 1.0]))
        dist.all_reduce(x, op=dist.ReduceOp.AVG, async_op=True).wait()
        dist.all_reduce(y, dist.ReduceOp.SUM)
        largest = torch.tensor([float(rank), -rank])
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        arriving = torch.empty(1)
        receive = dist.irecv(arriving, (rank - 1) % n)
        dist.isend(torch.tensor([float(rank)]), (rank + 1) % n).wait()
        receive.wait()
        receive.wait()
        return x.item(), y.item(), largest.tolist(), arriving.item()

    assert on_threads(3, work) == [(2, 6, [2, 0], 2), (2, 6, [2, 0], 0), (2, 6, [2, 0], 1)]
    with pytest.raises(ValueError, match="an all-reduce of thread ranks is a SUM, an AVG or a MAX"):
        on_threads(2, lambda dist: dist.all_reduce(torch.ones(1), op=dist.ReduceOp.MIN))
    with pytest.raises(
        AttributeError, match="thread ranks have no all_gather; they have .*all_reduce, .*broadcast"
    ):
        on_threads(2, lambda dist: dist.all_gather)


def test_waiting_for_an_isend_is_waiting_for_a_receiver():
    """All ranks isend, wait, then receive: on real ranks nobody goes on. A rank that has room for
    the message already, by irecv, lets its sender go on.

    Must catch: a wait() that does nothing, so that a check calls a deadlock right; room that counts
    for more than one message."""

    def work(dist, receives=0, messages=1):
        other = 1 - dist.get_rank()
        arriving = torch.empty(1)
        later = [dist.irecv(arriving, other) for _ in range(receives)]
        for _ in range(messages):
            dist.isend(torch.tensor([float(dist.get_rank())]), other).wait()
        for receive in later:
            receive.wait()
        for _ in range(messages - receives):
            dist.recv(arriving, other)
        return arriving.item()

    with pytest.raises(Stuck, match="rank 0 waits until rank 1 takes its message; rank 1 waits"):
        on_threads(2, work)
    assert on_threads(2, lambda dist: work(dist, 1)) == [1, 0]
    assert on_threads(2, lambda dist: work(dist, 2, 2)) == [1, 0]
    with pytest.raises(Stuck, match="takes its message"):
        on_threads(2, lambda dist: work(dist, 1, 2))


def learners_ring(full, dist, chunks=None):
    n, me = dist.get_world_size(), dist.get_rank()
    chunks = full.tensor_split(n) if chunks is None else chunks
    for step in range(1, n):
        into = chunks[(me - step - 1) % n]
        into += pass_on(chunks[(me - step) % n], into, dist)
    for step in range(n - 1):
        into = chunks[(me - step - 1) % n]
        into.copy_(pass_on(chunks[(me - step) % n], into, dist))


def uneven(full, dist):
    """Another cut that loses nothing: the last chunk takes the rest."""
    n = dist.get_world_size()
    each = full.numel() // n
    learners_ring(full, dist, [*full[: (n - 1) * each].view(n - 1, each), full[(n - 1) * each :]])


def whole(full, dist):
    """No chunks at all: everybody sends everything to everybody."""
    n, me = dist.get_world_size(), dist.get_rank()
    for other in range(n):
        if other != me:
            dist.isend(full, other)
    for other in range(n):
        if other != me:
            dist.recv(arriving := torch.empty_like(full), other)
            full += arriving


def test_every_right_solution_is_right():
    """A check looks at what the ranks hold and send, not at how. Mutation: the reference's cut or
    order asked for."""
    for exercise, *solutions in (
        (all_reduce_from_send_and_recv, learners_ring, uneven),
        (chunks_that_do_not_divide, learners_ring, uneven, whole),
    ):
        for solution in solutions:
            assert judge(exercise, solution), judge(exercise, solution)


def test_a_sum_without_a_ring_gets_a_sentence():
    """Mutation: what is sent not compared."""
    assert "whole arrays travel" in judge(all_reduce_from_send_and_recv, whole).sentence


def test_a_solution_that_deadlocks_gets_a_sentence():
    """Mutation: Stuck let through, or a check that waits."""

    def everybody_receives_first(full, dist):
        dist.recv(torch.empty_like(full), (dist.get_rank() - 1) % dist.get_world_size())

    verdict = judge(all_reduce_from_send_and_recv, everybody_receives_first)
    assert (
        "Stuck: rank 0 waits for rank 1; rank 1 waits for rank 0: nobody can go on."
        in verdict.sentence
    )


@pytest.mark.ranks
def test_the_same_code_runs_on_real_ranks():
    """Mutation: a stand-in for torch.distributed that wants other arguments."""
    import sys

    import cloudpickle

    from ranklab.ranks import ranks

    cloudpickle.register_pickle_by_value(sys.modules[__name__])

    def work():
        import torch.distributed as dist

        ours = torch.arange(10.0) * (1 + dist.get_rank())
        theirs = ours.clone()
        learners_ring(ours, dist)
        collectives.all_reduce(theirs)
        return torch.equal(ours, theirs)

    with ranks(3, device="cpu", announce=False) as world:
        assert world.run(work) == [True] * 3
