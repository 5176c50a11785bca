"""Data parallelism against the plain model on the whole batch: gradients, updates, messages, and
what happens when."""

import copy
import sys
import time
from contextlib import nullcontext

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from coursekit.formulas import evaluate
from shardlab import collectives, zero
from shardlab.data_parallel import (
    Bucketed,
    CannotReplicate,
    DistributedDataParallel,
    ParameterServer,
    PerTensor,
    core,
    make_buckets,
)
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.measure.communication import CommunicationLog
from shardlab.measure.ledger import Ledger
from shardlab.measure.trace import trace_step
from shardlab.ranks import ranks
from shardlab.zero.core import ShardedGradients

cloudpickle.register_pickle_by_value(sys.modules[__name__])
KINDS = (ParameterServer, PerTensor, Bucketed, DistributedDataParallel)
SMALL = 150  # bytes: several buckets in every model here
CLOSE = 1e-12  # relative, in float64: only the order of a few sums differs


@pytest.fixture(scope="module", params=(1, 2, 3, 4))
def world(request):
    with ranks(request.param, device="cpu", announce=False) as world:
        yield world


@pytest.fixture(scope="module")
def three():
    with ranks(3, device="cpu", announce=False) as world:
        yield world


# --- models with a trap in each -------------------------------------------------------------------


def plain():
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 5))


def frozen():
    net = plain()
    net[0].weight.requires_grad_(False)
    net[2].bias.requires_grad_(False)
    return net


def with_buffers():
    return nn.Sequential(nn.Linear(5, 7, bias=False), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 5))


class Tied(nn.Module):
    """One weight in two places."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, 7), nn.Linear(7, 5)
        self.last.weight = nn.Parameter(torch.randn(5, 7))
        self.tied = nn.Linear(7, 5)
        self.tied.weight = self.last.weight

    def forward(self, x):
        return self.last(torch.tanh(self.first(self.tied(torch.tanh(self.first(x))))))


class Twice(nn.Module):
    """A layer that runs twice, and a parameter of no dimension."""

    def __init__(self):
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.randn(())), nn.Linear(5, 5)

    def forward(self, x):
        return self.layer(torch.tanh(self.scale * self.layer(x)))


class Unused(nn.Module):
    """A layer that nobody uses, and one that is used where the first number is positive: on some
    ranks. It has the last bucket."""

    def __init__(self):
        super().__init__()
        self.sometimes, self.never, self.always = nn.Linear(5, 5), nn.Linear(5, 3), nn.Linear(5, 5)

    def forward(self, x):
        x = self.always(x)
        return self.sometimes(x) if x[0, 0] > 0 else x


class SmallGPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.gpt = GPT(GPTConfig(layers=1, hidden=8, heads=2, vocabulary=11, max_sequence=5))

    def forward(self, x):
        return self.gpt((x.abs() * 1000).long() % 11)


MODELS = (plain, frozen, with_buffers, Tied, Twice, Unused, SmallGPT)


def built(make, seed):
    """The model with random biases, in float64."""
    torch.manual_seed(seed)
    net = make().double()
    for name, parameter in net.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    return net


def wrapped(kind, net, **options):
    return (
        kind(net, **options)
        if kind in (ParameterServer, PerTensor)
        else kind(net, bucket_bytes=SMALL, **options)
    )


def part(step, rank, rows=3):
    """Rows of a rank in a step; every rank can make everyone's."""
    return torch.randn(
        rows, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1000 * step + rank)
    )


def far(ours, theirs):
    """Two tensors that differ. Where the plain model has no gradient, neither must we: momentum
    would move on zeros. Gradients that are 0 but for rounding, such as a key bias's, are compared
    with 0.001."""
    if ours is None or theirs is None:
        return ours is not theirs
    return not bool((ours - theirs).detach().norm() <= CLOSE * max(theirs.detach().norm(), 1e-3))


def loss_of(y):
    return y.square().mean() if y.dim() == 2 else y.log_softmax(-1)[..., 3].mean()


# --- parity ---------------------------------------------------------------------------------------


def train_beside(kind, make, steps, set_to_none):
    """Differences between the replicas, seeded by rank, and the plain model of rank 0 that sees
    everyone's part."""
    n, me = dist.get_world_size(), dist.get_rank()
    model, reference = wrapped(kind, built(make, seed=50 + me)), built(make, seed=50)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, reference)]
    wrong = []
    for step in range(steps):
        mine, every = model(part(step, me)), [reference(part(step, rank)) for rank in range(n)]
        wrong += [f"{step}: output"] * far(mine, every[me])
        loss_of(mine).backward()
        (sum(map(loss_of, every)) / n).backward()
        if kind is not ParameterServer or me == 0:
            for (name, ours), theirs in zip(
                model.module.named_parameters(), reference.parameters()
            ):
                wrong += [f"{step}: {name}.grad"] * far(ours.grad, theirs.grad)
        elif any(parameter.grad is not None for parameter in model.parameters()):
            wrong.append(f"{step}: a worker has gradients")
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none)
        if kind is not ParameterServer or me == 0:
            for (name, ours), theirs in zip(
                model.module.named_parameters(), reference.parameters()
            ):
                wrong += [f"{step}: {name}"] * far(ours, theirs)
    return wrong


@pytest.mark.parametrize("kind", KINDS)
def test_parity_with_the_plain_model(world, kind):
    """Outputs, every gradient and every update of several steps, for every trap.

    Mutations: the parameter averaged instead of its gradient; no division, or one before and
    one after; a broadcast left out, or only of what is trained; None taken for zeros where nobody
    has more; a rank that drops what others have used; the last bucket forgotten; a bucket that
    leaves before its last gradient; the server's parameters fetched once only, or its gradients
    given to all."""
    for make in MODELS:
        # its many small messages are slow on a busy machine
        if kind is not ParameterServer or make in (plain, frozen, Unused):
            assert world.run(train_beside, kind, make, 3, True) == [[]] * world.world_size, (
                make.__name__
            )


def test_parity_with_gradients_that_are_kept(world):
    """zero_grad(set_to_none=False): the next backward adds to last step's memory.

    Mutation: a gradient that has a bucket's memory already is left there, so that it is averaged
    where nobody sums."""
    for make in (plain, Unused):
        assert (
            world.run(train_beside, DistributedDataParallel, make, 3, False)
            == [[]] * world.world_size
        ), make.__name__


def accumulate(kind, make, microbatches):
    """Gradients of all microbatches of all ranks, all but the last under no_sync, against one batch
    of everything; and what was sent."""
    n, me = dist.get_world_size(), dist.get_rank()
    model, reference = wrapped(kind, built(make, seed=50 + me)), built(make, seed=50)
    with CommunicationLog() as log:
        for number in range(microbatches - 1):
            with model.no_sync():
                (loss_of(model(part(number, me))) / microbatches).backward()
    sent = sum(m.operation == "all_reduce" for m in log.messages)
    with CommunicationLog() as log:
        (loss_of(model(part(microbatches - 1, me))) / microbatches).backward()
    parts = [reference(part(number, rank)) for number in range(microbatches) for rank in range(n)]
    (sum(map(loss_of, parts)) / len(parts)).backward()
    pairs = zip(model.module.named_parameters(), reference.parameters())
    wrong = [name for (name, ours), theirs in pairs if far(ours.grad, theirs.grad)]
    return wrong, sent, sum(m.operation == "all_reduce" for m in log.messages) - len(model.buckets)


@pytest.mark.parametrize("make", [plain, Unused, SmallGPT])
def test_accumulation(world, make):
    """Three microbatches on each rank are one batch, and only the last of them sends. In `Unused` a
    layer may be used in an earlier microbatch and not in the last: its sum must be sent all the
    same.

    Mutations: hooks that ignore no_sync; a flag that stays off after it; only what arrived in the
    last backward averaged."""
    assert (
        world.run(accumulate, DistributedDataParallel, make, 3) == [([], 0, 0)] * world.world_size
    )


def one_large_batch():
    """Equal parts: the mean over ranks of means is the mean over the whole batch."""
    n, me = dist.get_world_size(), dist.get_rank()
    model, reference = (
        wrapped(DistributedDataParallel, built(plain, seed=50 + me)),
        built(plain, seed=50),
    )
    loss_of(model(part(0, me))).backward()
    loss_of(reference(torch.cat([part(0, rank) for rank in range(n)]))).backward()
    return [
        far(ours.grad, theirs.grad)
        for ours, theirs in zip(model.parameters(), reference.parameters())
    ]


def test_the_large_batch(world):
    """Mutation: a sum instead of the mean, which the reference above would share if it also
    summed."""
    assert not any(map(any, world.run(one_large_batch)))


def padded(number, rank):
    """Targets of a microbatch: 0 to 14 of its 15 are padding."""
    draw = torch.Generator().manual_seed(1000 * number + rank)
    targets = torch.randint(5, (3, 5), generator=draw)
    targets.view(-1)[: (5 * number + 4 * rank) % 15] = -100
    return targets


def accumulate_padded(kind, microbatches):
    """Differences from one mean over all targets of all microbatches and ranks."""
    n, me = dist.get_world_size(), dist.get_rank()
    model, reference = wrapped(kind, built(plain, seed=50 + me)), built(plain, seed=50)
    count = sum((padded(number, me) != -100).sum() for number in range(microbatches))
    dist.all_reduce(count)
    for number in range(microbatches):
        with nullcontext() if number == microbatches - 1 else model.no_sync():
            scores = model(part(number, me, 15)).view(3, 5, 5)
            next_token_loss(scores, padded(number, me), count / n).backward()
    every = [(number, rank) for number in range(microbatches) for rank in range(n)]
    scores = reference(torch.cat([part(*one, 15) for one in every])).view(-1, 5, 5)
    next_token_loss(scores, torch.cat([padded(*one) for one in every])).backward()
    pairs = zip(model.module.parameters(), reference.parameters())
    return [far(ours.grad, theirs.grad) for ours, theirs in pairs]


def test_padded_targets(world):
    """Must catch: a mean of ranks' means or of microbatches' means; a sum over the count of all
    ranks that is averaged over ranks as well; targets of -100 that count."""
    assert not any(map(any, world.run(accumulate_padded, DistributedDataParallel, 3)))


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
    return dict(
        parameter_tensors=len(trained),
        parameter_bytes=nbytes,
        gradient_bytes=nbytes,
        gradient_element_bytes=8,
    )


@pytest.mark.parametrize("make", [plain, frozen, Twice, SmallGPT])
def test_what_each_kind_sends(world, make):
    """Every message and every byte is the formulas'.

    Mutations: a message for each parameter where buckets are promised; buckets that carry a
    parameter twice or pad; gradients sent to the server that are not its own; a rank that is
    counted in where rank 0 talks to the others."""
    n, step = world.world_size, step_of(make)
    reduced, tensors = (
        evaluate(["reduced_bytes"], allow_unused=True, **step)["reduced_bytes"],
        step["parameter_tensors"],
    )
    for kind in (PerTensor, Bucketed, DistributedDataParallel):
        for sent, buckets in world.run(messages_of_a_step, kind, make):
            assert {operation for operation, _ in sent} == {"all_reduce"} and sum(
                nbytes for _, nbytes in sent
            ) == reduced
            assert len(sent) == (tensors if kind is PerTensor else buckets)
            most = evaluate(
                ["gradient_buckets_at_most"], allow_unused=True, bucket_bytes=SMALL, **step
            )["gradient_buckets_at_most"]
            assert kind is PerTensor or len(sent) <= most <= tensors
    for rank, (sent, _) in enumerate(
        world.run(messages_of_a_step, ParameterServer, make) if make is not SmallGPT else ()
    ):
        want = evaluate(
            ["server_messages", "server_sent_bytes", "server_received_bytes"],
            allow_unused=True,
            data_parallel=n,
            rank=rank,
            **step,
        )
        for operation, nbytes in (
            ("send", want["server_sent_bytes"]),
            ("recv", want["server_received_bytes"]),
        ):
            found = [size for name, size in sent if name == operation]
            assert (len(found), sum(found)) == (want["server_messages"], nbytes)
    without = evaluate(
        ["reduced_bytes_without_no_sync"], allow_unused=True, accumulation_steps=3, **step
    )["reduced_bytes_without_no_sync"]
    for sent, _ in world.run(messages_of_a_step, DistributedDataParallel, make, 3):
        assert sum(nbytes for _, nbytes in sent) == without


def sent_around_a_ring(elements):
    with CommunicationLog() as log:
        collectives.all_reduce(torch.zeros(elements, dtype=torch.float64))
    return sum(m.nbytes for m in log.messages if m.operation == "send")


def test_what_a_ring_sends(world):
    """Mutation: one way around the ring counted; n for n - 1."""
    for elements in (12, 5040):
        want = evaluate(
            ["data_parallel_sent_bytes"], data_parallel=world.world_size, reduced_bytes=8 * elements
        )
        assert (
            world.run(sent_around_a_ring, elements)
            == [want["data_parallel_sent_bytes"]] * world.world_size
        )


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
    """Buckets leave while backward has gradients to make, and wait for its end where they are told
    to. By order of events.

    Mutations: buckets sent in backward_ends(); buckets in the order of parameters, of which the
    first is full last; `overlap` ignored."""
    # the third has the last gradient in it
    assert world.run(order_of_events, True) == [(2, 3, 3)] * world.world_size
    assert world.run(order_of_events, False) == [(0, 3, 3)] * world.world_size


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
        strangers = sum(
            len({p.grad.untyped_storage().data_ptr() for p in bucket}) > 1
            for bucket in model.buckets
        )
        strangers += sum(
            p.grad.untyped_storage().nbytes() != sum(q.nbytes + 4 for q in b)
            for b in model.buckets
            for p in b
        )
        optimizer.zero_grad(set_to_none)
        # gloo's thread lets go of a buffer a moment after its work is done
        deadline = time.monotonic() + 10
        while set_to_none and ledger.bytes.total > before and time.monotonic() < deadline:
            time.sleep(0.01)
        return (
            strangers,
            after,
            ledger.bytes.total - before,
            max(point.bytes.total for point in ledger.timeline) - before,
        )


def test_gradients_are_memory_of_their_bucket(three):
    """And of nothing else: no second copy, and nothing is left when they are gone. The peak is less
    than the gradients and one bucket more, as a bucket is made when it is full.

    Mutations: results copied back from the bucket to gradients of their own; a bucket that is kept
    for the next step; all of them made at once."""
    every, bucket, activations = 4 * (4 * 32 * 33 + 8), 2 * 4 * 32 * 33, 8 * 4 * 32
    for strangers, after, left, peak in three.run(memory_of_gradients, True):
        assert (strangers, after, left) == (0, every, 0) and peak <= every + bucket + activations
    for strangers, after, left, _ in three.run(memory_of_gradients, False):
        assert (strangers, after, left) == (0, every, every)


@pytest.mark.parametrize("bucket_bytes", [1, 8, 400, 1000, 10**9])
def test_buckets(bucket_bytes):
    """Each parameter once, in the given order within its dtype; closed as soon as the size is
    reached; one dtype in each.

    Mutations: closed before the size is reached; the last bucket lost; a float16 gradient in a
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


def wrapped_again():
    net = built(plain, seed=0)
    for _ in range(3):
        model = DistributedDataParallel(net, SMALL)
    with CommunicationLog() as log:
        loss_of(model(part(0, dist.get_rank()))).backward()
    return len(log.messages) - len(model.buckets)


def test_a_cell_that_runs_again(three):
    """Mutation: every replica that was made is told of a gradient and not the newest alone, so that
    each wrapping sends everything once more."""
    assert three.run(wrapped_again) == [0] * 3


def unnamed():
    n, me, net = dist.get_world_size(), dist.get_rank(), built(plain, seed=0)
    loss_of(DistributedDataParallel(net, SMALL)(part(0, me))).backward()
    reference = built(plain, seed=0)
    (sum(loss_of(reference(part(0, rank))) for rank in range(n)) / n).backward()
    return [
        far(ours.grad, theirs.grad)
        for ours, theirs in zip(net.parameters(), reference.parameters())
    ]


def test_replicas_without_a_name(three):
    """Mutation: nothing in the graph holds the replicas: they are gone before backward, which then
    averages nothing."""
    assert not any(map(any, three.run(unnamed)))


def recomputed(reentrant, shared):
    n, me = dist.get_world_size(), dist.get_rank()
    layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(2 if shared else 3))
    net, reference = built(lambda: layers, seed=0), copy.deepcopy(layers)

    def forward(net, x):
        x = checkpoint(net[0], x.requires_grad_(), use_reentrant=reentrant)
        return net[-1](torch.tanh(checkpoint(net[-2], x, use_reentrant=reentrant)))

    model = DistributedDataParallel(net, 1)
    net.forward = lambda x: forward(net, x)
    loss_of(model(part(0, me))).backward()
    (sum(loss_of(forward(reference, part(0, rank))) for rank in range(n)) / n).backward()
    return [
        far(ours.grad, theirs.grad)
        for ours, theirs in zip(net.parameters(), reference.parameters())
    ]


def refused_recomputation():
    with pytest.raises(CannotReplicate, match="more gradient after its bucket had left"):
        recomputed(True, True)


def test_recomputation(three):
    """Gradients that come from a backward within the backward. Where a bucket has left already, an
    error and no wrong number.

    Mutation: a gradient that comes after its bucket has left is added to what the others are
    reducing."""
    assert not any(map(any, three.run(recomputed, False, True)))
    assert not any(map(any, three.run(recomputed, True, False)))
    three.run(refused_recomputation)


# --- what cannot be replicated --------------------------------------------------------------------


def refused(make, options):
    try:
        DistributedDataParallel(make(dist.get_rank()), **options(dist.get_rank()))
    except CannotReplicate as error:
        return str(error)


def two_devices(rank):
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))


def extra(rank):
    return nn.Sequential(nn.Linear(2, 2), *[nn.Linear(2, 2)] * (rank == 1))


def frozen_here(rank):
    net = nn.Linear(2, 2)
    net.bias.requires_grad_(rank != 1)
    return net


@pytest.mark.parametrize(
    "make, options, sentence",
    [
        (
            lambda rank: nn.Linear(2, 2),
            lambda rank: dict(bucket_bytes=0),
            "rank 0: bucket_bytes = 0: it must be a whole number of at least 1.",
        ),
        (
            lambda rank: nn.Linear(2, 2),
            lambda rank: dict(bucket_bytes=-5 if rank == 2 else 5),
            "rank 2: bucket_bytes = -5: it must be a whole number of at least 1.",
        ),
        (
            lambda rank: nn.Linear(2, 2),
            lambda rank: dict(bucket_bytes=1e6),
            "rank 0: bucket_bytes = 1000000.0: it must be a whole number of at least 1.",
        ),
        (
            lambda rank: nn.Linear(2, 2),
            lambda rank: dict(bucket_bytes=5 + rank),
            (
                "rank 0 has bucket_bytes = 5, rank 1 has bucket_bytes = 6: all ranks replicate the"
                " same module."
            ),
        ),
        (
            lambda rank: nn.Tanh(),
            lambda rank: {},
            "rank 0: no parameter of this Tanh requires a gradient: there is nothing to average.",
        ),
        (
            two_devices,
            lambda rank: {},
            "rank 0: the parameters are on 2 devices, cpu and meta: a replica has one.",
        ),
        (
            lambda rank: nn.Linear(2, 3 + (rank == 2)),
            lambda rank: {},
            (
                "rank 0 has weight [3, 2] torch.float32, rank 2 has weight [4, 2] torch.float32:"
                " all ranks replicate the same module."
            ),
        ),
        (
            extra,
            lambda rank: {},
            (
                "rank 0 has nothing more, rank 1 has 1.weight [2, 2] torch.float32: all ranks"
                " replicate the same module."
            ),
        ),
        (
            frozen_here,
            lambda rank: {},
            (
                "rank 0 has bias [2] torch.float32, rank 1 has bias [2] torch.float32 frozen: all"
                " ranks replicate the same module."
            ),
        ),
    ],
)
def test_refused_on_all_ranks(three, make, options, sentence):
    """One sentence, the same on every rank, also where only one of them is at fault: nobody is left
    waiting.

    Mutations: a check before the gathering, so that one rank raises and the others wait; a
    comparison of the common part only."""
    assert three.run(refused, make, options, limit_seconds=20) == [sentence] * 3


def with_rows_that_change(kind, trained, stage):
    """On a rank: what is said of an embedding that shortens rows in forward, on rank 1."""
    longest = 1.0 if dist.get_rank() == 1 else None
    model = nn.Sequential(kind(5, 2, max_norm=longest), nn.Linear(2, 2))
    model[0].weight.requires_grad_(trained)
    try:
        zero.shard(model, torch.optim.SGD, stage=stage, lr=0.1)
    except ValueError as error:
        return str(error)


def test_embeddings_that_change_their_rows(three):
    """max_norm under data parallelism and ZeRO.

    Must catch: replicas that drift apart, by the rows of each rank's own batch; one rank that
    raises alone; a frozen embedding refused, whose rows are as long wherever they are looked up."""
    want = "rank 1: 0 has max_norm = 1.0: each rank would shorten the rows of its own batch, and"
    for stage, kind in ((0, nn.Embedding), (0, nn.EmbeddingBag), (1, nn.Embedding)):
        said = three.run(with_rows_that_change, kind, True, stage)
        assert all(text and text.startswith(want) for text in said), (stage, said)
        assert three.run(with_rows_that_change, kind, False, stage) == [None] * 3


def sparse():
    model = DistributedDataParallel(nn.Embedding(5, 3, sparse=True))
    with pytest.raises(CannotReplicate) as caught:
        model(torch.tensor([1, 2])).sum().backward()
    return str(caught.value)


def test_refused_in_backward(three):
    """Mutation: a sparse gradient handed on to PyTorch, which asks for a bug report."""
    assert (
        three.run(sparse)
        == [
            "a gradient is torch.sparse_coo: only dense ones are averaged; build embeddings with"
            " sparse=False."
        ]
        * 3
    )


def outside_of_the_group():
    group = dist.new_group([0, 1])
    try:
        DistributedDataParallel(nn.Linear(2, 2), group=group)
    except CannotReplicate as error:
        return str(error)


def test_refused_without_a_group(three):
    """Mutation: either check left out: PyTorch's own words, or a wait for ranks that do not
    come."""
    with pytest.raises(CannotReplicate) as caught:
        DistributedDataParallel(nn.Linear(2, 2))
    assert (
        str(caught.value)
        == "there is no process group: start ranks, or call torch.distributed.init_process_group,"
        " first."
    )
    assert three.run(outside_of_the_group, limit_seconds=20) == [
        None,
        None,
        "rank 2 is no member of the group: only members replicate a module in it.",
    ]


# --- its trace ------------------------------------------------------------------------------------


def traced(overlap):
    net = built(plain, seed=0)
    model = DistributedDataParallel(net, SMALL, overlap)
    trace = trace_step(model, lambda: loss_of(model(part(0, 0))))
    hooks = [len(parameter._post_accumulate_grad_hooks) for parameter in net.parameters()]
    return (
        trace,
        len(model.buckets),
        hooks,
        [parameter.grad is None for parameter in net.parameters()],
    )


def test_trace(three):
    """Phases follow each other, every message is there and done before backward() returns; with
    overlap the first is handed over before the last gradient, without it none is. No hook of the
    trace stays.

    Mutations: a hook left behind; the first gradient instead of the last."""
    for overlap in (True, False):
        for trace, buckets, hooks, missing in three.run(traced, overlap):
            assert 0 < trace.forward_seconds < trace.last_gradient_seconds < trace.whole_seconds
            assert len(trace.messages) == buckets and hooks == [1] * 6 and not any(missing)
            assert (min(trace.messages)[0] < trace.last_gradient_seconds) == overlap


def made_twice() -> list[str]:
    """On a rank: what is said where a cell that makes replicas, or a stage 2, runs again."""
    said = []
    for make in (
        core.DistributedDataParallel,
        lambda net: ShardedGradients(net.parameters(), torch.optim.SGD, lr=0.1),
    ):
        net = nn.Linear(3, 2)
        make(net)
        with pytest.raises(ValueError) as caught:
            make(net)
        said.append(str(caught.value))
    return said


def test_a_core_does_not_average_twice(worlds):
    """Must catch: hooks of the first replicas that stay beside those of the second (drop the call
    of check_unclaimed in either core)."""
    for said in worlds(2).run(made_twice):
        assert said == ["these gradients are averaged already: build the model anew."] * 2


class Mine(DistributedDataParallel):
    """The reader's own."""


def through_the_door() -> list[str]:
    """On a rank: the class that hardened=False gives, then what is refused beside it."""
    net, again = nn.Linear(3, 2), nn.Linear(3, 2)
    given = DistributedDataParallel(net, 4, hardened=False)
    hardened = DistributedDataParallel(again, hardened=True)
    said = [type(given).__module__, type(hardened).__module__, str(len(given.buckets))]
    for make in (
        lambda: DistributedDataParallel(net),
        lambda: DistributedDataParallel(again, hardened=False),
        lambda: DistributedDataParallel(nn.Linear(3, 2), overlap=False, hardened=False),
        lambda: Mine(nn.Linear(3, 2), hardened=False),
    ):
        with pytest.raises(CannotReplicate) as caught:
            make()
        said.append(str(caught.value))
    return said


def test_the_door_gives_the_core(worlds):
    """Must catch: hardened=False that gives the hardened class, or drops bucket_bytes; hardened
    replicas of a module that the core has, and the core of a module that has replicas, which
    average twice; options that the core has not, left out without a word."""
    for kind, other, buckets, *said in worlds(2).run(through_the_door):
        assert (kind, other) == (core.__name__, DistributedDataParallel.__module__)
        assert buckets == "2"
        assert [sentence.partition(":")[0] for sentence in said] == [
            "rank 0",  # this Linear has replicas in it already
            "hardened=False, and this module has replicas already, so its gradients would be"
            " averaged twice",
            "DistributedDataParallel with hardened=False",
            "Mine with hardened=False",
        ]
