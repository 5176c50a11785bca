"""Messages, memory, refusals and the trace of data parallelism. Parity with the plain model on the
whole batch is in test_random_models.py and rows.md."""

import copy
import time
from contextlib import nullcontext
from itertools import chain

import pytest
import torch
import torch.distributed as dist
from night import world_of
from refusals import said_by
from solved import Given
from torch import nn

from coursekit.topics.data_parallelism.ladder import Bucketed, ParameterServer, PerTensor
from coursekit.topics.data_parallelism.trace import trace_step
from ranklab.measure.communication import CommunicationLog
from ranklab.measure.ledger import Ledger
from shardlab import collectives
from shardlab.data_parallel import DistributedDataParallel, make_buckets
from shardlab.data_parallel.buckets import OwnMemory

SMALL = 150  # bytes: several buckets in every model here

world = world_of(1, 2, 3)


# --- models ---------------------------------------------------------------------------------------


def plain():
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 5))


def with_buffers():
    return nn.Sequential(nn.Linear(5, 7, bias=False), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 5))


class Twice(nn.Module):
    """A layer that runs twice and has two names, and a parameter of no dimension."""

    def __init__(self):
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.randn(())), nn.Linear(5, 5)
        self.again = self.layer

    def forward(self, x):
        return self.again(torch.tanh(self.scale * self.layer(x)))


def built(make, seed):
    """The model with random biases, in float64."""
    torch.manual_seed(seed)
    net = make().double()
    for name, parameter in net.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    return net


def wrapped(kind, net, **options):
    if kind in (Bucketed, DistributedDataParallel):
        options["bucket_bytes"] = SMALL
    return kind(net, **options)


def part(step, rank, rows=3):
    """Rows of a rank in a step; every rank can make everyone's."""
    draw = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(rows, 5, dtype=torch.float64, generator=draw)


def loss_of(y):
    return y.square().mean()


# --- what is sent, and when -----------------------------------------------------------------------


def messages_of_a_step(kind, make, accumulation_steps=1):
    model = wrapped(kind, built(make, seed=0))
    with CommunicationLog() as log:
        for _ in range(accumulation_steps):
            loss_of(model(part(0, 0))).backward()
    return [(m.operation, m.nbytes) for m in log.messages], len(getattr(model, "buckets", []))


def step_of(make):
    """The quantities that the formulas take, of the parameters that are trained."""
    trained = [p for p in make().double().parameters() if p.requires_grad]
    nbytes = sum(p.nbytes for p in trained)
    of_step = dict(parameter_bytes=nbytes, gradient_bytes=nbytes, gradient_element_bytes=8)
    return dict(parameter_tensors=len(trained), **of_step)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("make", [plain, Twice])
def test_what_each_kind_sends(world, make):
    """Mutations: a message for each parameter where buckets are promised; buckets that carry a
    parameter twice or pad; gradients sent to the server that are not its own; a rank that is
    counted in where rank 0 talks to the others."""
    n, step = world.world_size, step_of(make)
    reduced, tensors = Given(**step).reduced_bytes, step["parameter_tensors"]
    for kind in (PerTensor, Bucketed, DistributedDataParallel):
        for sent, buckets in world.run(messages_of_a_step, kind, make):
            assert {operation for operation, _ in sent} == {"all_reduce"} and sum(
                nbytes for _, nbytes in sent
            ) == reduced
            assert len(sent) == (tensors if kind is PerTensor else buckets)
            most = Given(bucket_bytes=SMALL, **step).gradient_buckets_at_most
            assert kind is PerTensor or len(sent) <= most <= tensors
    for rank, (sent, _) in enumerate(world.run(messages_of_a_step, ParameterServer, make)):
        want = Given(data_parallel=n, rank=rank, **step)
        nbytes_of = dict(send=want.server_sent_bytes, recv=want.server_received_bytes)
        for operation, nbytes in nbytes_of.items():
            found = [size for name, size in sent if name == operation]
            assert (len(found), sum(found)) == (want.server_messages, nbytes)
    without = Given(accumulation_steps=3, **step).reduced_bytes_without_no_sync
    for sent, _ in world.run(messages_of_a_step, DistributedDataParallel, make, 3):
        assert sum(nbytes for _, nbytes in sent) == without


def sent_around_a_ring(elements):
    with CommunicationLog() as log:
        collectives.all_reduce(torch.zeros(elements, dtype=torch.float64))
    return sum(m.nbytes for m in log.messages if m.operation == "send")


def test_what_a_ring_sends(world):
    """Mutation: one way around the ring counted; n for n - 1."""
    for elements in (12, 5040):
        want = Given(data_parallel=world.world_size, reduced_bytes=8 * elements)
        assert set(world.run(sent_around_a_ring, elements)) == {want.data_parallel_sent_bytes}


def order_of_events(overlap):
    """How many all-reduces had been handed over when the last gradient of backward arrived; how
    many there were in all."""
    net, seen = built(plain, seed=0), []
    # before the model's own
    net[0].weight.register_post_accumulate_grad_hook(lambda _: seen.append(len(log.messages)))
    net[0].bias.register_post_accumulate_grad_hook(lambda _: seen.append(len(log.messages)))
    model = DistributedDataParallel(net, SMALL, overlap)
    y = model(part(0, dist.get_rank()))
    with CommunicationLog() as log:
        loss_of(y).backward()
    return max(seen), len(log.messages), len(model.buckets)


def test_overlap_is_real(world):
    """Mutations: buckets sent in backward_ends(); buckets in the order of parameters, of which the
    first is full last; `overlap` ignored."""
    # the third has the last gradient in it
    assert world.run(order_of_events, True) == [(2, 3, 3)] * world.world_size
    assert world.run(order_of_events, False) == [(0, 3, 3)] * world.world_size


def strangers_in(bucket):
    memory = [p.grad.untyped_storage() for p in bucket]
    alone = [each.nbytes() != sum(p.nbytes + 4 for p in bucket) for each in memory]
    return sum(alone) + (len({each.data_ptr() for each in memory}) > 1)


def memory_of_gradients(set_to_none):
    """(gradients that are not in one memory with their bucket, bytes after backward, after
    zero_grad and at the peak above those before)."""
    model = DistributedDataParallel(
        nn.Sequential(*(nn.Linear(32, 32) for _ in range(4))), bucket_bytes=2 * 4 * 32 * 33
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Ledger(model, optimizer) as ledger:
        before = ledger.bytes.total
        model(torch.ones(1, 32)).sum().backward()
        after = ledger.bytes.total - before
        strangers = sum(map(strangers_in, model.buckets))
        optimizer.zero_grad(set_to_none)
        # gloo's thread lets go of a buffer a moment after its work is done
        deadline = time.monotonic() + 10
        while set_to_none and ledger.bytes.total > before and time.monotonic() < deadline:
            time.sleep(0.01)
        most = max(point.bytes.total for point in ledger.timeline)
        return strangers, after, ledger.bytes.total - before, most - before


def test_gradients_are_memory_of_their_bucket(three):
    """Mutations: results copied back from the bucket to gradients of their own; a bucket that is
    kept for the next step; all of them made at once."""
    every, bucket, activations = 4 * (4 * 32 * 33 + 8), 2 * 4 * 32 * 33, 8 * 4 * 32
    for strangers, after, left, peak in three.run(memory_of_gradients, True):
        assert (strangers, after, left) == (0, every, 0) and peak <= every + bucket + activations
    for strangers, after, left, _ in three.run(memory_of_gradients, False):
        assert (strangers, after, left) == (0, every, every)


def last_buckets():
    made = lambda *sizes: nn.ParameterList(nn.Parameter(torch.ones(size)) for size in sizes[::-1])
    of_two_dtypes = made(1700, 99)
    of_two_dtypes[0] = nn.Parameter(torch.ones(99, dtype=torch.float64))
    nets = made(50, 1700, 99), made(50, 1700, 110), made(5, 50), of_two_dtypes, made(7)
    replicas = [DistributedDataParallel(net, bucket_bytes=1000) for net in nets]
    return [[[p.numel() for p in pile] for pile in each.buckets] for each in replicas]


def test_a_small_last_bucket_joins_a_large_one(worlds):
    """Must catch: a small bucket behind an ordinary one, which then leaves later; two dtypes in one
    tensor."""
    for found in worlds(1).run(last_buckets):
        assert found == [[[50, 1700, 99]], [[50, 1700], [110]], [[5, 50]], [[1700], [99]], [[7]]]


@pytest.mark.parametrize("bucket_bytes", [1, 8, 400, 1000, 10**9])
def test_buckets(bucket_bytes):
    """Mutations: closed before the size is reached; the last bucket lost; a float16 gradient in a
    float32 bucket."""
    generator = torch.Generator().manual_seed(bucket_bytes)
    sizes = torch.randint(1, 200, (40,), generator=generator).tolist()
    parameters = [
        nn.Parameter(torch.empty(size, dtype=(torch.float32, torch.float16)[size % 3 == 0]))
        for size in sizes
    ]
    buckets = make_buckets(parameters, bucket_bytes)
    for dtype in (torch.float32, torch.float16):
        alike = [bucket for bucket in buckets if bucket[0].dtype == dtype]
        assert [id(p) for bucket in alike for p in bucket] == [
            id(p) for p in parameters if p.dtype == dtype
        ]
        for bucket in alike:
            assert {p.dtype for p in bucket} == {dtype}
            assert sum(p.nbytes for p in bucket[:-1]) < bucket_bytes
            assert bucket is alike[-1] or sum(p.nbytes for p in bucket) >= bucket_bytes


# --- the module around the module -----------------------------------------------------------------


def names_and_buffers():
    """(state_dict keys are the bare module's, a round trip is exact, messages of a forward, running
    means, the same after broadcast_buffers())."""
    me = dist.get_rank()
    net = built(with_buffers, seed=50 + me)
    net[1].running_mean.fill_(me)
    keys = list(net.state_dict())
    model = DistributedDataParallel(net)
    started = net[1].running_mean.clone()
    saved = copy.deepcopy(model.state_dict())
    with CommunicationLog() as log:
        loss_of(model(part(0, me))).backward()
    sent_in_forward = [m for m in log.messages if m.operation != "all_reduce"]
    after = net[1].running_mean.clone()
    model.broadcast_buffers()
    shared = net[1].running_mean.clone()
    with torch.no_grad():
        net[0].weight.zero_()
    model.load_state_dict(saved)
    exact = all(torch.equal(saved[key], value) for key, value in net.state_dict().items())
    return list(saved) == keys, exact, len(sent_in_forward), started, after, shared


def test_state_dict_and_buffers(three):
    """Mutations: "module." before the keys; buffers of each rank its own at the start; buffers
    broadcast in every forward, which costs a message each and breaks two forwards before one
    backward; broadcast_buffers() of the parameters."""
    found = three.run(names_and_buffers)
    assert all((same, exact, sent) == (True, True, 0) for same, exact, sent, *_ in found)
    assert all(torch.equal(started, torch.zeros(7)) for _, _, _, started, _, _ in found)
    assert not torch.equal(found[0][4], found[1][4])
    assert all(torch.equal(shared, found[0][4]) for *_, shared in found)


# --- what cannot be replicated --------------------------------------------------------------------


def outside_of_the_group():
    group = dist.new_group([0, 1])
    return said_by(lambda: DistributedDataParallel(nn.Linear(2, 2), group=group), ValueError)


def test_refused_outside_of_the_group(three):
    """Mutation: the check left out: a wait for ranks that do not come."""
    assert three.run(outside_of_the_group, limit_seconds=20) == [
        None,
        None,
        "rank 2 is no member of the group: only members call its collectives.",
    ]


# --- its trace ------------------------------------------------------------------------------------


def traced(overlap):
    net = built(plain, seed=0)
    model = DistributedDataParallel(net, SMALL, overlap)
    trace = trace_step(model, lambda: loss_of(model(part(0, 0))))
    hooks = [len(parameter._post_accumulate_grad_hooks) for parameter in net.parameters()]
    missing = [parameter.grad is None for parameter in net.parameters()]
    return trace, len(model.buckets), hooks, missing


def test_trace(three):
    """Mutations: a hook left behind; the first gradient instead of the last."""
    for overlap, steps in ((True, 5), (False, 1)):
        early = []
        for trace, buckets, hooks, missing in chain.from_iterable(
            three.run(traced, overlap) for _ in range(steps)
        ):
            assert 0 < trace.forward_seconds < trace.last_gradient_seconds < trace.whole_seconds
            assert len(trace.messages) == buckets and hooks == [1] * 6 and not any(missing)
            early.append(min(trace.messages)[0] < trace.last_gradient_seconds)
        assert any(early) == overlap


class Sends(nn.Module):
    """Rank 1 alone uses `some`, and nobody `never`."""

    def __init__(self, dtype):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.some, self.never, self.last = (
            nn.Linear(8, 8, dtype=dtype) for _ in range(4)
        )

    def forward(self, x):
        x = self.first(x)
        return self.last(self.some(x) if dist.get_rank() == 1 else x)


class FromOwnMemory(DistributedDataParallel):
    def flat_bucket(self, parameters, n):
        return OwnMemory(parameters, n, large_bytes=64)


def averaged_by(cls, dtype):
    net = Sends(dtype)
    model = cls(net, bucket_bytes=256)
    draw = torch.Generator().manual_seed(dist.get_rank())
    for number in range(4):  # the second and fourth are sent, and gradients stay
        with nullcontext() if number % 2 else model.no_sync():
            model(torch.randn(4, 8, generator=draw).to(dtype)).sum().backward()
        if dist.get_rank() == 0:
            net.last.weight.grad = net.last.weight.grad.t().contiguous().t()
    return [None if p.grad is None else p.grad.clone() for p in net.parameters()]


@pytest.mark.ranks
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_in_their_own_memory(three, dtype):
    """Must catch: a sum for a mean; a parameter that nobody uses, and gets zeros; a rank that does
    not use one, and sends nothing; gradients that ranks lay out unlike."""
    kinds = DistributedDataParallel, FromOwnMemory
    for expected, found in zip(*(three.run(averaged_by, kind, dtype) for kind in kinds)):
        assert [g is None for g in found] == [number in (4, 5) for number in range(8)]
        for want, gradient in zip(expected, found):
            if want is not None:
                torch.testing.assert_close(gradient, want, rtol=0.02, atol=0.05)
