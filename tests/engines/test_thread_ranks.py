"""Thread ranks: what a check of an exercise runs on. Nothing that a reader writes there can
hang."""

import threading
import time

import pytest
import torch
import torch.distributed as dist
from operators import Operators
from told import cells, from_told

from coursekit.exercises import thread_ranks as thread_ranks
from coursekit.exercises.thread_ranks import Stuck, answer_of_ranks
from coursekit.topics.collectives.exercises import pass_on
from shardlab import collectives


def on_threads(n, work, seconds=thread_ranks.WORK_SECONDS):
    """The results of work(dist) on n ranks; the error of a rank is raised."""
    sheet = thread_ranks._followed(n, work, seconds)
    if error := sheet.verdict()[0]:
        raise error
    return sheet.results


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


def test_modes_of_ranks_that_overlap_are_left():
    """Must catch: a mode of rank 0 that ends between the beginning and the end of one of rank 1,
    after which torch 2.8 takes this process for one within a mode, and compiles nothing."""

    def work(dist):
        rank, x, mode = dist.get_rank(), torch.empty(1), Operators()
        for step in (mode.__enter__, lambda: mode.__exit__(None, None, None)):  # rank 0 comes first
            if rank:
                dist.recv(x, 0)
            step()
            dist.isend(x, 1 - rank)
            if not rank:
                dist.recv(x, 1)

    on_threads(2, work)
    assert not torch.utils._python_dispatch.is_in_torch_dispatch_mode()


def test_a_reduction_is_by_number():
    """A real all-reduce knows no names. Mutation: reductions matched by anything else, so that a
    mismatched order comes out right."""

    def work(dist):
        mine = torch.tensor([1.0, 10.0]) * (1 + dist.get_rank())
        for place in ((0, 1), (1, 0))[dist.get_rank()]:
            dist.all_reduce(part := mine[place : place + 1])
        return mine.tolist(), part.numel()

    assert on_threads(2, work) == [([21, 12], 1), ([12, 21], 1)]


@from_told("call, error, sentence", cells)
def test_no_fault_hangs(call, error, sentence):
    """Mutations: no look at who waits when a rank ends; a send that never waits; a function that is
    no isend or irecv of this rank called in a batch."""
    names = dict(torch=torch, time=time, Stuck=Stuck)
    with pytest.raises(eval(error, names), match=sentence):
        on_threads(2, lambda dist: eval(call, names, dict(dist=dist, me=dist.get_rank())))


def test_what_runs_on_and_on_is_stopped():
    """Mutations: a join without a limit; a rank that is left to itself, beside the next cell; the
    one that waits named, too."""
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

    for one, said in 5 * [
        (lambda dist: work(dist, [1]), "KeyError on rank 1: 'mine'"),
        (lambda dist: work(dist, [0, 2]), "KeyError on ranks 0, 2: 'mine'"),
        (lambda dist: work(dist, [0, 1, 2]), "KeyError: 'mine'"),
        (lambda dist: {}[dist.get_rank()], "KeyError on rank 0: 0"),
        (lambda dist: dist.all_reduce(torch.ones(1)) or 1 / 0, "ZeroDivisionError: division by"),
        (lambda dist: dist.recv(torch.empty(1), (dist.get_rank() + 1) % 3), "Stuck: rank 0 waits"),
    ]:
        assert answer_of_ranks(3, one).startswith(said)
    assert answer_of_ranks(2, lambda dist: dist.get_rank() / ...) is ...


def test_the_lowest_rank_that_fails_is_named():
    """Must catch: a rank that waits ended by another's error, although its message still comes."""
    threads = {}

    def work(dist):
        threads[dist.get_rank()] = threading.current_thread()
        if dist.get_rank() == 2:
            dist.isend(torch.empty(1), 0)
            raise KeyError("mine")
        dist.recv(torch.empty(1), (2, 0)[dist.get_rank()])
        threads[2].join()
        dist.send(torch.empty(2), 1)

    assert answer_of_ranks(3, work).startswith("ValueError on rank 1: rank 0 sent 2 elements")


def test_what_torch_lets_one_say():
    """Mutations: a sum where a mean or the largest was asked for; irecv that waits at once, which
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


def test_waiting_for_an_isend_is_waiting_for_a_receiver():
    """Must catch: a wait() that does nothing, so that a check calls a deadlock right; an irecv
    whose room counts for more than one message."""

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


def test_the_same_code_runs_on_real_ranks(worlds):
    """Mutation: a stand-in for torch.distributed that wants other arguments."""

    def work():
        ours = torch.arange(10.0) * (1 + dist.get_rank())
        theirs = ours.clone()
        learners_ring(ours, dist)
        collectives.all_reduce(theirs)
        return torch.equal(ours, theirs)

    assert worlds(3).run(work) == [True] * 3
