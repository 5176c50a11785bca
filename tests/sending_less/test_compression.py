"""Hooks of data parallelism: what was sent, what is left, bytes, states, models that are traps.
Sums over ranks and steps are made in another order than the reference's, hence 1e-11 of the largest
element."""

import copy
from functools import partial

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from drawn import drawn
from torch import nn

from coursekit.lab.virtual import recorded_gpu
from ranklab.measure.communication import CommunicationLog
from ranklab.virtual import VirtualGPUs
from shardlab.compression import Compressed, four_bits, power_sgd, signs, sixteen_bits, top_k
from shardlab.data_parallel import DistributedDataParallel

HOOKS = {
    "top k": partial(top_k, one_in=7),
    "signs": signs,
    "four bits": four_bits,
    "power sgd": partial(power_sgd, rank=1),
}
EXACT = partial(sixteen_bits, dtype=torch.float64)
CLOSE = 1e-11


class Trap(nn.Module):
    """Odd sizes, a tied weight, a part that some steps leave out, one that is never used, and rows
    of a table whose gradient is always zero."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(9, 7)
        self.up, self.tied, self.down = nn.Linear(7, 13), nn.Linear(7, 13), nn.Linear(13, 5)
        self.tied.weight = self.up.weight
        self.sometimes, self.never = nn.Linear(5, 5), nn.Linear(3, 2)
        self.with_all = True

    def forward(self, tokens):
        x = self.rows(tokens)
        y = self.down(torch.tanh(self.up(x)) + torch.tanh(self.tied(-x)))
        return self.sometimes(y) if self.with_all else y


def trap(seed=0):
    return drawn(lambda: Trap().double(), seed)


def tokens_of(step, rank):
    draw = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(6, (4, 3), generator=draw)  # rows 6 to 8 have no gradient


def me():
    return dist.get_rank()


def same(ours, theirs):
    scale = theirs.abs().max().clamp(min=1e-6)
    return bool((ours - theirs).abs().max() <= CLOSE * scale)


def backward(model, step, rank=None):
    model(tokens_of(step, me() if rank is None else rank)).square().mean().backward()


def gradients(net):
    """Clones of all gradients in one tensor; None as zeros."""
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in net.parameters()]
    return torch.cat([g.flatten() for g in found]).clone()


def mean_gradient(net, step):
    """The exact mean over ranks, on a copy of the net."""
    net = copy.deepcopy(net)
    net.zero_grad()
    for rank in range(dist.get_world_size()):
        (net(tokens_of(step, rank)).square().mean() / dist.get_world_size()).backward()
    return gradients(net)


def errors_of(model):
    """The sum over ranks of all that is left, in the order of parameters."""
    left = {}
    for bucket, kept in zip(model.buckets, model.hook_state_dict()):
        error = kept["error"].clone()
        if "server_error" in kept:
            own = kept["server_error"].flatten()
            whole = own.new_zeros(len(own) * dist.get_world_size())
            whole[me() * len(own) : (me() + 1) * len(own)] = own
            error += whole[: len(error)]
        dist.all_reduce(error)
        parts = error.split([p.numel() for p in bucket])
        left |= dict(zip(bucket, parts))
    return torch.cat([left[p] for p in model.module.parameters() if p.requires_grad])


def rounded_up(elements, unit):
    return elements + -elements % unit


# --- values ---------------------------------------------------------------------------------------


def sum_of_what_was_sent(name, bucket_bytes):
    model = Compressed(trap(me()), HOOKS[name], bucket_bytes=bucket_bytes)
    sent, exact, apart = 0, 0, False
    for step in range(5):
        model.module.with_all = step != 2
        model.zero_grad()
        backward(model, step)
        mean = mean_gradient(model.module, step)
        apart |= not same(gradients(model.module), mean)
        sent, exact = sent + gradients(model.module), exact + mean
        for p in model.module.parameters():
            p.data -= 0.1 * p.grad
    return apart, same(sent, exact - errors_of(model)), fingerprint(model.module)


def fingerprint(net):
    """A tensor that differs where any bit of any parameter does."""
    return torch.cat([p.detach().flatten() for p in net.parameters()]).view(torch.int64).tolist()


@pytest.mark.parametrize("bucket_bytes", [700, 1 << 20])
@pytest.mark.parametrize("name", HOOKS)
def test_nothing_is_lost(world, name, bucket_bytes):
    """Must catch: an error that is dropped, added twice, or kept of the gradient without the error
    before; a chunk's error that is forgotten; Q drawn from a seed of the rank; vectors whose error
    is kept though they go whole."""
    found = world.run(sum_of_what_was_sent, name, bucket_bytes)
    assert all(apart and kept for apart, kept, _ in found)
    assert all(bits == found[0][2] for *_, bits in found)


def beside_plain():
    """Whether bits of parameters, and messages, are those of plain data parallelism."""
    ends, logs = [], []
    for kind in (Compressed, DistributedDataParallel):
        model = kind(trap(me()), bucket_bytes=700)
        with CommunicationLog() as log:
            ends.append(trained(model, 3))
        logs.append([(m.operation, m.nbytes) for m in log.messages])
    return ends[0] == ends[1], logs[0] == logs[1]


@pytest.mark.parametrize(("elements", "dtype"), [(2**31, "int32"), (2**31 + 1, "int64")])
def test_places_in_a_large_bucket(elements, dtype):
    """On a GPU that is not there. Must catch: places beyond 2^31 that wrap round in 32 bits."""
    with VirtualGPUs(2, recorded_gpu("H200 SXM")):
        net = nn.Linear(elements, 1, bias=False, dtype=torch.bfloat16)
        model = Compressed(net, partial(top_k, one_in=2**20))
        with CommunicationLog() as log:
            model(torch.ones(1, elements, dtype=torch.bfloat16)).sum().backward()
    assert [message.dtype for message in log.messages] == ["bfloat16", dtype]


def test_hook_off_is_data_parallelism(world):
    """Must catch: an error that is added without a hook, a bucket that leaves otherwise."""
    assert world.run(beside_plain) == [(True, True)] * world.world_size


# --- states, copies, changes ----------------------------------------------------------------------


def trained(model, steps, begin=0):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(begin, begin + steps):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
    return fingerprint(model.module)


def resumed(hook, feedback):
    right = Compressed(trap(me()), hook, feedback=feedback, bucket_bytes=700)
    trained(right, 3)
    wire = cloudpickle.dumps((right.state_dict(), right.hook_state_dict()))
    ours = Compressed(trap(50 + me()), hook, feedback=feedback, bucket_bytes=700)
    saved, left = cloudpickle.loads(wire)
    ours.load_state_dict(saved)
    ours.load_hook_state_dict(left)
    return trained(ours, 3, begin=3) == trained(right, 3, begin=3)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("feedback", [True, False])
@pytest.mark.parametrize("name", HOOKS)
def test_resumed(worlds, name, feedback):
    """A run that is saved and resumed has the same bits as one that went on.
    Must catch: a state without errors, without those of chunks, without Q."""
    assert worlds(3).run(resumed, HOOKS[name], feedback) == [True] * 3


def frozen_midway(hook):
    model = Compressed(trap(me()), hook, bucket_bytes=700)
    trained(model, 2)
    model.module.up.bias.requires_grad_(False)
    before = model.module.up.bias.clone()
    trained(model, 2, begin=2)
    return torch.equal(before, model.module.up.bias), fingerprint(model.module)


@pytest.mark.parametrize("name", HOOKS)
def test_frozen_midway(worlds, name):
    """Must catch: an old error that moves a parameter which is frozen now."""
    found = worlds(2).run(frozen_midway, HOOKS[name])
    assert all(still and bits == found[0][1] for still, bits in found)


def constant_zero(hook):
    """Must catch: a scale of zero that divides; zeros that become a code without a level."""
    model = Compressed(trap(me()), hook, bucket_bytes=1)  # a bucket for each parameter
    before = [p.clone() for p in model.module.never.parameters()]
    trained(model, 3)
    return all(map(torch.equal, before, model.module.never.parameters()))


def overflow(hook):
    """An infinite gradient on rank 1: all ranks see it, and the next step is finite again. Must
    catch: a number instead of an infinity, which no loss scaler sees; errors that stay infinite for
    good."""
    model = Compressed(trap(me()), hook, bucket_bytes=700)
    backward(model, 0)
    model.zero_grad()
    factor = float("inf") if me() == 1 else 1.0
    (model(tokens_of(1, me())).square().mean() * factor).backward()
    seen = all(not p.grad.isfinite().all() for p in model.module.down.parameters())
    model.zero_grad()
    backward(model, 2)
    return seen and all(p.grad.isfinite().all().item() for p in model.parameters())


def changed_hook():
    """Hooks that keep errors, of other kinds and ranks, and in the end an exact one."""
    model, sent, exact = Compressed(trap(me())), 0, 0
    hooks = [None, HOOKS["top k"], HOOKS["power sgd"], partial(power_sgd, rank=2), EXACT, EXACT]
    for step, model.hook in enumerate(hooks):
        exact = exact + mean_gradient(model.module, step)
        trained(model, 1, begin=step)
        sent = sent + gradients(model.module)
    return same(sent, exact), fingerprint(model.module)


def test_hooks_that_change(worlds):
    """Must catch: a Q of another rank that is used; an error that is added at each step by a hook
    that leaves none."""
    found = worlds(3).run(changed_hook)
    assert all(kept and bits == found[0][1] for kept, bits in found)


def interrupted(hook):
    """A backward that raises leaves the state as it was. Must catch: an error that is replaced
    before the bucket has arrived."""
    model = Compressed(trap(me()), hook, bucket_bytes=700)
    trained(model, 2)
    kept = cloudpickle.dumps(model.hook_state_dict())
    y = model(tokens_of(2, me()))
    model.module.rows.weight.register_hook(lambda g: 1 / 0)
    try:
        y.square().mean().backward()
    except ZeroDivisionError:
        pass
    before = cloudpickle.loads(kept)
    return all(
        torch.equal(a[k], b[k])
        for a, b in zip(before, model.hook_state_dict())
        for k in a
        if k != "q"
    )


@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.parametrize("row", [constant_zero, overflow, interrupted])
def test_what_a_hook_leaves(worlds, row, name):
    """Must catch: what is said at each row."""
    assert worlds(2).run(row, HOOKS[name]) == [True, True]
