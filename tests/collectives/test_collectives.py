"""Collectives against PyTorch's own, their messages against their plans, their bytes against the
formulas."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from night import at_night, world_of
from refusals import said_by
from solved import Given

from ranklab.measure.communication import CommunicationLog
from ranklab.ranks import RanksDisagree
from shardlab import collective_plans as plans
from shardlab import collectives, collectives_fast
from shardlab.collective_plans import follow

MANY = range(1, 18)
both = pytest.mark.parametrize("module", [collectives, collectives_fast], ids=["readable", "fast"])
ALL_REDUCES = (plans.ring_all_reduce, plans.tree_all_reduce, plans.naive_all_reduce)
world = world_of(3, *at_night(2, 5))


# --- plans, without a rank ------------------------------------------------------------------------


def everyone(n, chunks):
    """Each rank with its own part in each of the chunks."""
    return [{chunk: frozenset([rank]) for chunk in range(chunks)} for rank in range(n)]


@pytest.mark.parametrize("n", MANY)
def test_plans_of_reductions(n):
    """Mutations: `+=` for `=` in the all-gather; a ring one step too short; chunk `rank - step` off
    by one; a reduce that is not the broadcast backwards, so that a part is added twice."""
    full = frozenset(range(n))
    scattered = follow(plans.ring_reduce_scatter(n), everyone(n, n))[-1]
    assert all(scattered[rank][rank] == full for rank in range(n))
    for make in ALL_REDUCES:
        chunks = n if make is plans.ring_all_reduce else 1
        done = follow(make(n), everyone(n, chunks))[-1]
        assert done == [dict.fromkeys(range(chunks), full)] * n
    for root in range(n):
        assert follow(plans.tree_reduce(n, root), everyone(n, 1))[-1][root] == {0: full}


@pytest.mark.parametrize("n", MANY)
def test_plans_that_hand_out(n):
    """Mutations: the root forgotten in the number of the sender; a gather that does not turn the
    scatter around; a target's own chunk sent instead of the one that is for the other."""
    own = [{rank: frozenset([rank])} for rank in range(n)]
    assert (
        follow(plans.ring_all_gather(n), own)[-1]
        == [{rank: frozenset([rank]) for rank in range(n)}] * n
    )
    for root in range(n):
        has = [{0: frozenset([root])} if rank == root else {} for rank in range(n)]
        assert follow(plans.tree_broadcast(n, root), has)[-1] == [{0: frozenset([root])}] * n
        has = [{c: frozenset([c]) for c in range(n)} if rank == root else {} for rank in range(n)]
        assert [
            held[rank] for rank, held in enumerate(follow(plans.scatter(n, root), has)[-1])
        ] == [{r} for r in range(n)]
        assert follow(plans.gather(n, root), own)[-1][root] == {
            rank: frozenset([rank]) for rank in range(n)
        }
    letters = [{n * rank + to: frozenset([n * rank + to]) for to in range(n)} for rank in range(n)]
    for rank, held in enumerate(follow(plans.all_to_all(n), letters)[-1]):
        assert {n * other + rank for other in range(n)} <= set(held)


# --- results: PyTorch's own -----------------------------------------------------------------------


def whole_numbers(size, dtype, rank):
    """Numbers whose sum over 8 ranks is exact in their dtype, in every order, and no other one."""
    shape = size if isinstance(size, tuple) else (size,)
    generator = torch.Generator().manual_seed(sum(shape))  # of one stream, a part for each rank
    numbers = torch.randint(-8, 9, (rank + 1, *shape), generator=generator)[rank].to(dtype)
    return numbers * (2**40 + 1) if dtype is torch.float64 else numbers


def strided(tensor):
    """A tensor of the same elements, one apart in memory."""
    return (
        torch.stack([tensor, torch.full_like(tensor, 99)], -1)[..., 0] if tensor.numel() else tensor
    )


def tensors(sizes, dtypes):
    """Each size with each dtype, as a copy or strided by turns: each of them meets both ways."""
    for first, size in enumerate(sizes):
        for other, dtype in enumerate(dtypes):
            yield size, dtype, (torch.clone, strided)[(first + other) % 2]


def sizes(n):
    """Elements, and a tensor with two dims whose rows the ranks divide."""
    return 0, 1, n - 1, n, n + 1, 3 * n + 2, (2 * n, 3)


def reductions(collectives, sizes, dtypes):
    n, me = dist.get_world_size(), dist.get_rank()
    wrong = []
    for size, dtype, lay in tensors(sizes, dtypes):
        full = whole_numbers(size, dtype, me)
        want = full.clone()
        dist.all_reduce(want)
        for make in ALL_REDUCES:
            got = lay(full).requires_grad_(dtype.is_floating_point)
            collectives.all_reduce(got, plan=make)
            wrong += [(make.__name__, size, dtype)] * (not torch.equal(got, want))
        given, shard = lay(full), lay(torch.full_like(full.tensor_split(n)[me], 77))
        collectives.reduce_scatter(shard, given)
        wrong += [("reduce_scatter", size, dtype)] * (
            not torch.equal(shard, want.tensor_split(n)[me])
        )
        wrong += [("reduce_scatter changed its input", size, dtype)] * (
            not torch.equal(given, full)
        )
        root, got = full.numel() % n, lay(full)
        collectives.reduce(got, root)
        wrong += [("reduce", size, dtype)] * (not torch.equal(got, want if me == root else full))
    return wrong


@both
def test_reductions(world, module):
    """Mutations: `+=` for `=` in run(); the last chunk forgotten; partial sums left on other ranks;
    reduce_scatter adds into its input; a copy of a strided tensor not brought back; shards cut
    along the wrong dim; a sum in float32; autograd sees it, and refuses to write into a leaf."""
    n = world.world_size
    every = (torch.float64, torch.float32, torch.bfloat16, torch.int64)
    assert world.run(reductions, module, sizes(n), every) == [[]] * n


def sums_in_lists():
    """How many pieces of each chunk a rank has at the end, whether the sum is right and whether the
    pieces given are as they were."""
    n, me = dist.get_world_size(), dist.get_rank()
    given = [[torch.full((3,), float(me)), torch.full((2,), 10.0 * me)] for _ in range(n)]
    chunks = [list(chunk) for chunk in given]
    collectives_fast.run(plans.ring_reduce_scatter(n), chunks, None)
    total = n * (n - 1) / 2
    return (
        [len(chunk) for chunk in chunks],
        torch.equal(torch.cat(chunks[me]), torch.tensor([total] * 3 + [10 * total] * 2)),
        all(
            torch.equal(torch.cat(chunk), torch.tensor([me] * 3 + [10.0 * me] * 2))
            for chunk in given
        ),
    )


def test_chunks_in_lists(world):
    """Mutations: sums made in the pieces given; sent pieces kept, which would be all of a bucket;
    the pieces of a chunk exchanged."""
    n = world.world_size
    assert world.run(sums_in_lists) == [
        ([2 * (chunk == rank) for chunk in range(n)], True, True) for rank in range(n)
    ]


def hand_outs(collectives, sizes, dtypes):
    n, me = dist.get_world_size(), dist.get_rank()
    wrong = []
    for size, dtype, lay in tensors(sizes, dtypes):
        full = whole_numbers(size, dtype, me)
        everybody = [torch.empty_like(full) for _ in range(n)]
        dist.all_gather(everybody, full)
        root = (full.numel() + 1) % n
        got = lay(full)
        collectives.broadcast(got, root)
        wrong += [("broadcast", size, dtype)] * (not torch.equal(got, everybody[root]))
        mine = full.tensor_split(n)[me]
        shard = lay(torch.full_like(mine, 77))
        collectives.scatter(shard, lay(full) if me == root else None, root)
        wrong += [("scatter", size, dtype)] * (
            not torch.equal(shard, everybody[root].tensor_split(n)[me])
        )
        gathered = torch.cat([other.tensor_split(n)[rank] for rank, other in enumerate(everybody)])
        into = lay(torch.full_like(full, 77))
        collectives.all_gather(into, lay(mine))
        wrong += [("all_gather", size, dtype)] * (not torch.equal(into, gathered))
        into = lay(torch.full_like(full, 77))
        collectives.gather(lay(mine), into if me == root else None, root)
        wrong += [("gather", size, dtype)] * (me == root and not torch.equal(into, gathered))
        exchanged = torch.cat([other.tensor_split(n)[me] for other in everybody])
        into = lay(torch.full_like(exchanged, 77))
        collectives.all_to_all(into, lay(full))
        wrong += [("all_to_all", size, dtype)] * (not torch.equal(into, exchanged))
    return wrong


@both
def test_hand_outs(world, module):
    """Mutations: a rank's own chunk not put in its place; all_to_all with source and target
    exchanged; root 0 always."""
    n = world.world_size
    every = (torch.float64, torch.bfloat16, torch.int64)
    assert world.run(hand_outs, module, sizes(n), every) == [[]] * n


# --- messages: the plan, no more and no less ------------------------------------------------------


def messages(collectives, size):
    """The messages of each collective in the log: (operation, peer, chunk, bytes)."""
    n, me = dist.get_world_size(), dist.get_rank()
    full = torch.zeros(size)
    shard = full.tensor_split(n)[me].clone()
    works = {
        "ring_all_reduce": lambda: collectives.all_reduce(full),
        "all_to_all": lambda: collectives.all_to_all(torch.zeros(n * shard.numel()), full),
        "tree_all_reduce": lambda: collectives.all_reduce(full, plan=plans.tree_all_reduce),
        "naive_all_reduce": lambda: collectives.all_reduce(full, plan=plans.naive_all_reduce),
        "tree_broadcast": lambda: collectives.broadcast(full),
        "tree_reduce": lambda: collectives.reduce(full),
        "scatter": lambda: collectives.scatter(shard, full if me == 0 else None),
        "gather": lambda: collectives.gather(shard, full if me == 0 else None),
        "ring_all_gather": lambda: collectives.all_gather(full, shard),
        "ring_reduce_scatter": lambda: collectives.reduce_scatter(shard, full),
        "barrier": collectives.barrier,
    }
    found = {}
    for name, work in works.items():
        with CommunicationLog() as log:
            work()
        found[name] = [(m.operation, m.peer, m.chunk, m.nbytes) for m in log.messages]
    return found


def in_its_own_memory(collectives):
    """The number of wrong results where input and output are parts of one tensor."""
    n, me = dist.get_world_size(), dist.get_rank()
    full = torch.arange(2.0 * n)
    turned = full + 100 * me
    collectives.all_to_all(turned, turned)
    wrong = [not torch.equal(turned, torch.cat([full.chunk(n)[me] + 100 * r for r in range(n)]))]
    for root in range(n):
        for place in range(n):
            own = full.clone().chunk(n)[place] if me != root else None
            whole = full.clone() if me == root else None
            shard = own if own is not None else whole.chunk(n)[place]
            collectives.scatter(shard, whole, root)
            wrong.append(not torch.equal(shard, full.chunk(n)[me]))
            gathered = full.clone()
            gathered.chunk(n)[place].fill_(me)
            collectives.all_gather(gathered, gathered.chunk(n)[place])
            wrong.append(not torch.equal(gathered, torch.arange(1.0 * n).repeat_interleave(2)))
            summed = full.clone()
            collectives.reduce_scatter(summed.chunk(n)[place], summed)
            wrong.append(not torch.equal(summed.chunk(n)[place], n * full.chunk(n)[me]))
    return sum(wrong)


@both
def test_in_and_out_in_one_memory(world, module):
    """Must catch: an all-to-all in place that sends on what has just arrived; a root whose own
    chunk overwrites one that has not left."""
    assert world.run(in_its_own_memory, module) == [0] * world.world_size


def of_a_plan(name, n, me, size):
    """The messages of the plan: in each step first those that are received, then those that are
    sent; nothing that is empty."""
    whole = name.startswith(("tree", "naive"))

    def nbytes(chunk):
        return 1 if name == "barrier" else 4 * (size if whole else len(range(chunk % n, size, n)))

    for moves in getattr(plans, name)(n):
        yield from (
            ("recv", m.source, m.chunk, nbytes(m.chunk))
            for m in moves
            if m.target == me and nbytes(m.chunk)
        )
        yield from (
            ("send", m.target, m.chunk, nbytes(m.chunk))
            for m in moves
            if m.source == me and nbytes(m.chunk)
        )


@both
def test_the_messages_are_the_plan(world, module):
    """The plan that a stepper draws is the one that runs. Mutations: the tag is not the chunk; an
    empty chunk is sent; a step's sends and receives exchanged."""
    n = world.world_size
    for size in (0, 1, n + 1, 3 * n):
        for me, found in enumerate(world.run(messages, module, size)):
            for name, log in found.items():
                assert log == list(of_a_plan(name, n, me, size)), (name, me, size)


SENT = [*(make.__name__ for make in ALL_REDUCES), "ring_reduce_scatter", "ring_all_gather"]
SENT += ["all_to_all"]


@both
def test_counted_bytes_are_the_formulas(world, module):
    """Every rank sends the formulas' bytes exactly. Mutations: ceil_div instead of floor_div, a
    rank more or less in the numerator, the right neighbour of the last rank not rank 0, the parent
    forgotten in the tree."""
    n = world.world_size
    for size in (0, 1, n - 1, n + 1, 2 * n, 1000):
        for me, found in enumerate(world.run(messages, module, size)):
            want = Given(ranks=n, rank=me, message_elements=size, message_element_bytes=4)
            for name in SENT:
                sent = [nbytes for operation, *_, nbytes in found[name] if operation == "send"]
                assert sum(sent) == getattr(want, f"{name}_sent_bytes"), (name, size, me)


def in_pieces():
    x = torch.arange(200, dtype=torch.float64)
    with CommunicationLog() as log:
        collectives_fast.all_reduce(x, run=partial(collectives_fast.run, piece_bytes=40))
    return x, len(log.messages), log.totals()["send"].nbytes


def test_pieces(four):
    """Mutation: pieces added one place too far; a chunk's last, shorter piece left out."""
    for x, count, nbytes in four.run(in_pieces):
        assert torch.equal(x, 4 * torch.arange(200, dtype=torch.float64))
        assert count == 2 * 6 * 10 and nbytes == 6 * 400


# --- groups ---------------------------------------------------------------------------------------


def in_a_group():
    group = dist.new_group([1, 3, 2])  # PyTorch sorts them
    x = torch.tensor([float(dist.get_rank()), 1.0])
    if dist.get_rank(group) < 0:
        return said_by(lambda: collectives.all_reduce(x, group), ValueError)
    collectives.barrier(group)
    collectives.all_reduce(x, group)
    y = torch.tensor([float(dist.get_rank())])
    collectives.broadcast(y, 2, group)
    full = torch.empty(3)
    collectives.all_gather(full, torch.tensor([float(dist.get_rank())]), group)
    return x.tolist(), y.item(), full.tolist()


def test_a_group(four):
    """Mutation: ranks of the group taken for ranks of the world, or the world's size for the
    group's."""
    outside, *inside = four.run(in_a_group)
    assert outside == "rank 0 is no member of the group: only members call its collectives."
    assert inside == [([6, 3], 3, [1, 2, 3])] * 3


# --- waiting and refusing -------------------------------------------------------------------------


def one_is_late(late):
    import time

    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == late:
        time.sleep(0.05)
    store.add(f"here {late}", 1)
    collectives.barrier()
    return store.add(f"here {late}", 0)


def test_barrier(world):
    """Nobody passes before the last has come. Mutation: an empty barrier, or one without its last
    step."""
    n = world.world_size
    for late in (0, n - 1):
        assert world.run(one_is_late, late) == [n] * n


def test_a_root_without_its_tensor(four):
    """Mutation: None cut into chunks, an AttributeError."""
    with pytest.raises(RuntimeError, match="rank 0 is the root: it gives the full tensor."):
        four.run(lambda: collectives.scatter(torch.zeros(2)))


@pytest.mark.parametrize("name", ["ring_all_reduce", "tree_all_reduce", "naive_all_reduce"])
def test_ranks_that_disagree_about_the_size(four, name):
    """Mutation: sends made from tensors longer than they say, which gloo delivers in part, in
    silence."""

    def work():
        collectives.all_reduce(
            torch.zeros(8 if dist.get_rank() == 2 else 9), plan=getattr(plans, name)
        )

    with pytest.raises(RanksDisagree, match="send and recv of float32, . elements"):
        four.run(work)


def test_what_cannot_be_sent(four):
    """gloo sends from the host only. Mutation: CUDA tensors handed to gloo, which refuses them;
    host tensors copied in vain."""

    def work():
        x = torch.zeros(3)
        same = collectives.wire(x, None).data_ptr() == x.data_ptr()
        return [collectives.can_send(device, None) for device in ("cpu", "cuda")], same

    assert four.run(work) == [([True, False], True)] * 4


def test_the_fast_module_stands_in_for_the_readable():
    """Must catch: a collective that is not there under its name, so that an import of the one for
    the other fails; the readable run behind a fast name."""
    functions = {
        name
        for name, value in vars(collectives).items()
        if callable(value) and getattr(value, "__module__", "") == collectives.__name__
    }
    assert functions <= set(vars(collectives_fast))
    assert collectives_fast.run is not collectives.run
    for name in ("all_reduce", "all_gather"):
        assert getattr(collectives_fast, name).keywords == {"run": collectives_fast.run}
