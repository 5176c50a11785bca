"""ZeRO++ beside the core of stage 3 and its definition; LARS and LAMB beside their definitions."""

import pytest
import torch
import torch.distributed as dist
from drawn import drawn
from night import at_night, world_of
from torch import nn

from shardlab.compression import LAMB, LARS, zero_plus_plus
from shardlab.mesh import Mesh
from shardlab.zero.core_stage3 import fully_shard, whole_parameters

OFF = dict(weight_bits=None, gradient_bits=None, secondary=False)
NODES = {2: (1, 2), 3: (3, 1), 4: (2, 2)}


class Net(nn.Module):
    """Odd sizes, a tied weight, and a frozen one."""

    def __init__(self):
        super().__init__()
        self.first, self.middle, self.tied = nn.Linear(7, 11), nn.Linear(11, 7), nn.Linear(7, 11)
        self.tied.weight, self.last = self.first.weight, nn.Linear(11, 3)
        self.middle.bias.requires_grad_(False)

    def forward(self, x):
        return self.last(torch.tanh(self.tied(torch.tanh(self.middle(torch.tanh(self.first(x)))))))


def net(seed):
    return drawn(lambda: Net().double(), seed, std=0.4)


def sharded(**settings):
    made = net(dist.get_rank())
    nodes, m = NODES[dist.get_world_size()]
    mesh = Mesh(dp=nodes, tp=m)
    groups = dict(inside=mesh.tp.group, across=mesh.dp.group)
    return zero_plus_plus(made, [made.middle, made.last], **groups, **settings)


def loss_of(model, step, rank):
    draw = torch.Generator().manual_seed(100 * step + rank)
    return model(torch.randn(4, 7, dtype=torch.float64, generator=draw)).square().mean()


def train(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        for part in (0, 1):
            loss_of(model, 10 * part + step, dist.get_rank()).backward()
        optimizer.step()
    return model


world = world_of(4, *at_night(2, 3))


def beside_stage_3(settings, steps):
    ours, theirs = sharded(**settings), net(dist.get_rank())
    fully_shard(theirs, [theirs.middle, theirs.last])
    train(ours, steps), train(theirs, steps)
    wholes = (whole_parameters(model).values() for model in (ours, theirs))
    return all(map(torch.equal, *wholes))


@pytest.mark.parametrize("settings", [OFF, OFF | dict(secondary=True)], ids=str)
def test_without_codes(world, settings):
    """Stage 3's bits, also with secondary shards. Must catch: a part of weights that have changed;
    a part of another place."""
    assert all(world.run(beside_stage_3, settings, 4))


def coded(x, bits):
    """x [C] to the nearest of 2^bits - 1 levels, for each 256 elements."""
    padded = torch.cat([x, x.new_zeros(-len(x) % 256)]).view(-1, 256)
    half, scale = 2 ** (bits - 1) - 1, padded.abs().amax(1, keepdim=True)
    codes = ((padded / (scale + (scale == 0)) + 1) * half).round()  # sums of codes can be ties
    return ((codes * (1 / half) - 1) * scale).flatten()[: len(x)]


def by_definition():
    """One layer, one step: weights of 8 bits by shards, gradients of 4 bits in two hops."""
    n, (nodes, m) = dist.get_world_size(), NODES[dist.get_world_size()]
    torch.manual_seed(0)
    layer = nn.Linear(37, 23).double()
    flat = torch.cat([p.detach().flatten() for p in layer.parameters()])
    chunk = -(-len(flat) // n)
    shards = torch.cat([flat, flat.new_zeros(n * chunk - len(flat))]).view(n, chunk)
    whole = torch.cat([coded(shard, 8) for shard in shards])[: len(flat)]
    gradients = []
    for rank in range(n):
        weight, bias = (x.view(p.shape) for x, p in zip(whole.split([851, 23]), layer.parameters()))
        weight, bias = weight.clone().requires_grad_(), bias.clone().requires_grad_()
        x = torch.randn(4, 37, generator=torch.Generator().manual_seed(rank)).double()
        nn.functional.linear(x, weight, bias).square().mean().backward()
        found = torch.cat([weight.grad.flatten(), bias.grad]) / n
        gradients.append(torch.cat([found, found.new_zeros(n * chunk - len(found))]))
    node, place = divmod(dist.get_rank(), m)
    own = 0
    for other in range(nodes):
        rows = [gradients[other * m + i].view(nodes, m, chunk)[:, place] for i in range(m)]
        first = sum(coded(row.flatten(), 4).view(nodes, chunk) for row in rows)
        own = own + coded(first[node], 4)
    mesh = Mesh(dp=nodes, tp=m)
    model = zero_plus_plus(layer, inside=mesh.tp.group, across=mesh.dp.group)
    x = torch.randn(4, 37, generator=torch.Generator().manual_seed(dist.get_rank())).double()
    model(x).square().mean().backward()
    (shard,) = model.parameters()
    return (shard.grad - own).abs().max().item() / own.abs().max().item()


def test_two_hops_by_definition(world):
    """Must catch: a hop across before the hop inside; a mean of nodes instead of their sum."""
    assert max(world.run(by_definition)) < 1e-12


# --- large batches --------------------------------------------------------------------------------


def steps_of(make, gradients):
    torch.manual_seed(0)
    layer = nn.Linear(5, 3).double()
    optimizer = make(layer.parameters())
    for weight, bias in gradients:
        layer.weight.grad, layer.bias.grad = weight, bias
        optimizer.step()
    return [p.detach() for p in layer.parameters()]


def random_gradients():
    torch.manual_seed(1)
    return [(torch.randn(3, 5).double(), torch.randn(3).double()) for _ in range(4)]


def test_lars():
    """Equation 6 of You et al. 2017: the rate of a layer is 0.001 |w| / |g + wd w|. Must catch: a
    trust of the momentum instead of the step; a bias that has one."""
    torch.manual_seed(0)
    layer = nn.Linear(5, 3).double()
    w, b = (p.detach().clone() for p in layer.parameters())
    speed, speed_b = 0, 0
    for g, g_b in random_gradients():
        step = g + 0.1 * w
        speed = 0.9 * speed + 2.0 * 0.001 * w.norm() / step.norm() * step
        speed_b = 0.9 * speed_b + 2.0 * (g_b + 0.1 * b)
        w, b = w - speed, b - speed_b
    found = steps_of(lambda params: LARS(params, lr=2.0, weight_decay=0.1), random_gradients())
    torch.testing.assert_close(found, [w, b], rtol=1e-12, atol=1e-12)


def test_lamb():
    """AdamW's direction, whose length is the layer's own. Must catch: weight decay beside the
    trust; a trust of a bias."""
    torch.manual_seed(0)
    w = [p.detach().clone() for p in nn.Linear(5, 3).double().parameters()]
    mean, square = [0, 0], [0, 0]
    for step, gradients in enumerate(random_gradients(), start=1):
        for i, g in enumerate(gradients):
            mean[i] = 0.9 * mean[i] + 0.1 * g
            square[i] = 0.999 * square[i] + 0.001 * g * g
            u = mean[i] / (1 - 0.9**step) / ((square[i] / (1 - 0.999**step)) ** 0.5 + 1e-6)
            u = u + 0.01 * w[i]
            w[i] = w[i] - 0.02 * (w[i].norm() / u.norm() if i == 0 else 1) * u
    found = steps_of(lambda params: LAMB(params, lr=0.02, weight_decay=0.01), random_gradients())
    torch.testing.assert_close(found, w, rtol=1e-12, atol=1e-12)


def test_a_layer_of_zeros_moves():
    """Must catch: a trust of zero, with which weights of zero stay there; 0 / 0."""
    for make in (LARS, LAMB):
        layer = nn.Linear(3, 2)
        nn.init.zeros_(layer.weight)
        layer.weight.grad, layer.bias.grad = torch.ones(2, 3), torch.zeros(2)
        make(layer.parameters()).step()
        assert layer.weight.abs().min() > 0 and layer.bias.isfinite().all()
