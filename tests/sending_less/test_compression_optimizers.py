"""1-bit Adam, DeMo and DiLoCo beside their definitions in one process, in float64.
Sums over ranks are made in another order, hence 1e-10 of the largest element."""

import copy
from functools import partial

import cloudpickle
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from refusals import answer_of, begins
from test_compression import backward, fingerprint, me, rounded_up, tokens_of, trap
from told import told

from shardlab.compression import Compressed, DeMo, DiLoCo, OneBitAdam, power_sgd, signs
from shardlab.mixed_precision import LossScaler
from shardlab.zero.core_stage3 import fully_shard

CLOSE = 1e-10


def sgd(params, **settings):
    return torch.optim.SGD(params, lr=0.05, **settings)


MAKERS = {
    "1-bit Adam": lambda params: OneBitAdam(params, lr=0.01, warm_up=2),
    "DeMo": lambda params: DeMo(params, lr=0.01, decay=0.9, chunk=16, keep=3),
    "DiLoCo": lambda params: DiLoCo(torch.optim.AdamW(params, lr=0.01), every=3),
    "streaming": lambda params: DiLoCo(torch.optim.AdamW(params, lr=0.01), every=4, parts=3),
}


def far(ours, theirs):
    pairs = zip(ours.parameters(), theirs.parameters())
    return max(((a - b).abs().max() / b.abs().max().clamp(min=1e-6)).item() for a, b in pairs)


def train(net, optimizer, steps, begin=0):
    for step in range(begin, begin + steps):
        optimizer.zero_grad()
        backward(net, step)
        optimizer.step()
    return net


def every_gradient(net, step):
    """Each rank's gradients, flat, as one process makes them all."""
    found = []
    for rank in range(dist.get_world_size()):
        net.zero_grad()
        backward(net, step, rank)
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in net.parameters()]
        found.append(torch.cat([g.flatten() for g in grads]))
    return torch.stack(found)


# --- 1-bit Adam -----------------------------------------------------------------------------------


def one_bit_adam(net, steps, warm_up, lr=0.01, beta=0.9, beta2=0.999, eps=1e-8):
    """The algorithm of Tang et al. as one process sees all ranks."""
    n, elements = dist.get_world_size(), sum(p.numel() for p in net.parameters())
    chunk = -(-elements // n)

    def one_bit(x):
        size = x.abs().sum(-1, keepdim=True) / rounded_up(chunk, 8)
        return torch.where(x > 0, size, -size)

    m, v, worker, server = 0, 0, 0, 0
    for step in range(1, steps + 1):
        gradients = every_gradient(net, step - 1)
        if step <= warm_up:
            g = gradients.mean(0)
            m, v = beta * m + (1 - beta) * g, beta2 * v + (1 - beta2) * g**2
        else:
            full = (beta * m + (1 - beta) * gradients) * (v > 0) / n + worker
            sent = one_bit(F.pad(full, (0, n * chunk - elements)).view(n, n, chunk))
            worker = full - sent.flatten(1)[:, :elements]
            sums = sent.sum(0) + server  # [owner, chunk]
            server = sums - one_bit(sums)
            m = one_bit(sums).flatten()[:elements] * (v > 0)
        frozen = v / (1 - beta2 ** min(step, warm_up))
        update = lr * m / (1 - beta**step) / (frozen.sqrt() + eps)
        with torch.no_grad():
            for p, part in zip(
                net.parameters(), update.split([p.numel() for p in net.parameters()])
            ):
                p -= part.view(p.shape)
    return net


def beside_definition(steps, warm_up):
    net, plain = trap(me()), trap(0)
    train(net, OneBitAdam(net.parameters(), lr=0.01, warm_up=warm_up), steps)
    return far(net, one_bit_adam(plain, steps, warm_up)), fingerprint(net)


@pytest.mark.parametrize("warm_up", [1, 3])
def test_one_bit_adam(world, warm_up):
    """Must catch: a variance that goes on; momentum of this rank alone; an error of the owner that
    is dropped; corrections that count from the end of warm-up; another place of eps."""
    found = world.run(beside_definition, 6, warm_up)
    assert max(apart for apart, _ in found) < CLOSE
    assert all(bits == found[0][1] for _, bits in found)


def rows_without_gradient(make):
    net = trap(me())
    optimizer = make(net.parameters())
    before = net.rows.weight[6:].clone(), net.never.weight.clone()
    train(net, optimizer, 8)
    moved = (net.rows.weight[6:] - before[0]).abs().max() + (
        net.never.weight - before[1]
    ).abs().max()
    return moved.item(), all(p.isfinite().all().item() for p in net.parameters())


def test_constant_zero_gradients_do_not_blow_up(worlds):
    """Must catch: a mask that is left out, where signs of an error over a variance of 0 move rows
    by millions."""
    assert worlds(2).run(rows_without_gradient, MAKERS["1-bit Adam"]) == [(0.0, True)] * 2


# --- DeMo -----------------------------------------------------------------------------------------


def in_rows(flat, sizes, chunk):
    parts = [F.pad(part, (0, -len(part) % chunk)) for part in flat.split(sizes)]
    return torch.cat(parts).view(-1, chunk)


def beside_demo(keep, chunk=16, decay=0.9):
    """Whether each step has the signs of Peng et al., Algorithm 1, and keeps its momentum."""
    net, n = trap(me()), dist.get_world_size()
    optimizer = DeMo(net.parameters(), lr=0.0, decay=decay, chunk=chunk, keep=keep)
    sizes, updates, momenta = [p.numel() for p in net.parameters()], [], [0] * n
    optimizer.move = lambda parts: updates.append(torch.cat([part.flatten() for part in parts]))
    k = torch.arange(chunk).double()
    waves = torch.cos(torch.pi / chunk * k[:, None] * (k + 0.5))
    waves = waves / waves.norm(dim=1, keepdim=True)
    inside = in_rows(torch.ones(sum(sizes)), sizes, chunk) > 0
    for step in range(5):
        gradients, total = every_gradient(net, step) / n, 0
        net.zero_grad()
        backward(net, step)
        optimizer.step()
        for rank, g in enumerate(gradients):
            momentum = decay * momenta[rank] + in_rows(g, sizes, chunk)
            found = momentum @ waves.T
            smallest = found.abs().topk(keep).values[:, -1:]
            sent = (found * (found.abs() >= smallest)) @ waves
            momenta[rank], total = momentum - sent, total + sent
        clear = inside & (total.abs() > 1e-9)  # a sign of rounding is nobody's
        ours = in_rows(updates[-1], sizes, chunk)
        kept = (momenta[me()] - optimizer.kept["momentum"]).abs().max() < CLOSE
        if not kept or not torch.equal(ours[clear], total.sign()[clear]):
            return False
    return True


@pytest.mark.parametrize("keep", [3, 16])
def test_demo(world, keep):
    """Must catch: waves that are not orthonormal, momentum that keeps what has left, a mean of
    momenta instead of their largest waves, places of another row."""
    assert all(world.run(beside_demo, keep))


# --- DiLoCo ---------------------------------------------------------------------------------------


def diloco_by_definition(nets, steps, every, outer_lr, outer_momentum, parts):
    """Douillard et al., Algorithm 1, as one process sees all ranks; part i has its own turn."""
    inner = [sgd(net.parameters(), momentum=0.9) for net in nets]
    outer = [p.detach().clone() for p in nets[0].parameters()]
    speed = [torch.zeros_like(p) for p in outer]
    for step in range(1, steps + 1):
        for rank, (net, optimizer) in enumerate(zip(nets, inner)):
            optimizer.zero_grad()
            backward(net, step - 1, rank)
            optimizer.step()
        for i in range(len(outer)):
            if step % every == (i % parts) * every // parts:
                everyone = [[*net.parameters()][i].detach() for net in nets]
                gradient = outer[i] - sum(everyone) / len(nets)
                speed[i] = outer_momentum * speed[i] + gradient
                outer[i] = outer[i] - outer_lr * (gradient + outer_momentum * speed[i])
                for own in everyone:
                    own.copy_(outer[i])
    return nets[me()]


def beside_diloco(every, outer_lr, outer_momentum, parts):
    net = trap(me())
    inner = sgd(net.parameters(), momentum=0.9)
    train(net, DiLoCo(inner, every, outer_lr, outer_momentum, parts), 9)
    nets = [trap(0) for _ in range(dist.get_world_size())]
    return far(net, diloco_by_definition(nets, 9, every, outer_lr, outer_momentum, parts))


@pytest.mark.parametrize("case", [(3, 0.7, 0.9, 1), (4, 0.7, 0.9, 3), (2, 1.0, 0.0, 1)], ids=str)
def test_diloco(world, case):
    """Must catch: an outer gradient of the other sign; momentum that is not Nesterov's; a copy that
    is not moved; inner states that are averaged; a part that has another part's turn."""
    assert max(world.run(beside_diloco, *case)) < CLOSE


# --- states, traps -------------------------------------------------------------------------


def resumed_optimizer(name):
    """Must catch: a state without errors, without the outer copy, its momentum or the count."""
    net = trap(me())
    optimizer = MAKERS[name](net.parameters())
    train(net, optimizer, 5)
    wire = cloudpickle.dumps((net.state_dict(), optimizer.state_dict()))
    ours = trap(60 + me())
    again = MAKERS[name](ours.parameters())
    saved, state = cloudpickle.loads(wire)
    again.load_state_dict(state)
    ours.load_state_dict(saved)
    train(net, optimizer, 5, 5), train(ours, again, 5, 5)
    return fingerprint(net) == fingerprint(ours)


def skipped(name):
    """Whether weights stay in a step that overflows on rank 1 alone, and move in the next ones.
    Must catch: a scaler that asks this rank alone, so that the others wait in step()."""
    net, scaler, stays = trap(me()), LossScaler(init_scale=8.0), []
    optimizer = MAKERS[name](net.parameters())
    for step in range(6):
        before = fingerprint(net)
        factor = float("inf") if (step, me()) == (3, 1) else 1.0
        optimizer.zero_grad()
        scaler.scale(net(tokens_of(step, me())).square().mean() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        stays.append(fingerprint(net) == before)
    return stays == [step == 3 for step in range(6)]


def frozen_and_copied(name):
    """Must catch: momentum that moves a frozen parameter; a copy that steps the original."""
    net = trap(me())
    optimizer = MAKERS[name](net.parameters())
    train(net, optimizer, 3)
    net, optimizer = copy.deepcopy((net, optimizer))
    net.up.bias.requires_grad_(False)
    train(net, optimizer, 4, 3)  # ranks that differ meet once more
    before = net.up.bias.clone()
    train(net, optimizer, 8, 7)
    return torch.equal(before, net.up.bias) and all(p.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("row", [resumed_optimizer, skipped, frozen_and_copied])
def test_what_an_optimizer_keeps(worlds, row, name):
    """Must catch: what is said at each row."""
    assert worlds(3).run(row, name) == [True] * 3


def part_of_a_model():
    net = fully_shard(trap())
    return DiLoCo(sgd(net.parameters()), 4)


def wrapped(times):
    net = trap()
    for _ in range(times):
        net = Compressed(net, signs)
    return net


def of_another_state():
    big, small = (Compressed(trap(), signs, bucket_bytes=size) for size in (700, 1 << 20))
    small.load_hook_state_dict(big.hook_state_dict())


def two_dtypes():
    return DeMo([*trap().parameters(), torch.nn.Parameter(torch.ones(2))])


NAMES = dict(globals(), partial=partial, power_sgd=power_sgd)


@pytest.mark.parametrize(
    "attempt, words", told("test_compression_optimizers::test_what_is_refused", NAMES)
)
def test_what_is_refused(worlds, attempt, words):
    """Must catch: a check that is left out, so that shards of ranks become one rank's, or a part,
    a matrix or a wave is never sent, and nothing raises."""
    for said in worlds(2).run(answer_of, attempt):
        assert begins(said, words), said
