"""Where stages 1 and 2 were wrong without a word: each case once returned a wrong number, or a
sentence that named neither the thing nor the rule. More sentences are in test_zero_misuses.py."""

import gc
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import tables
import torch
import torch.distributed as dist
from refusals import answer_of
from tables import check, drawn, far, linears, right, takes
from torch import nn
from torch.func import functional_call, hessian, jacrev, jvp, vmap
from torch.optim import SGD

from shardlab import zero
from shardlab.data_parallel import DistributedDataParallel
from shardlab.gradient_clipping import clip_gradients
from shardlab.mixed_precision import MasterWeights


def own_input(features):
    """1, 1, ... on rank 0; 2, 2, ... on rank 1: the mean is 1.5."""
    return torch.full((1, features), 1.0 + dist.get_rank(), dtype=torch.float64)


def half_replicated(door):
    """A sharded layer, and one that is replicated, in one optimizer."""
    makes = partial(nn.Linear, 4, 4), partial(nn.Linear, 4, 2)
    sharded, whole = (drawn(make, 0) for make in makes)
    door.shard(sharded, SGD)
    model, plain = (nn.Sequential(sharded, DistributedDataParallel(whole)), nn.Sequential())
    plain.extend(drawn(make, 0) for make in makes)
    optimizer = SGD(model.parameters(), lr=0.1)
    model(own_input(4)).sum().backward()
    (sum(plain(torch.full((1, 4), 1.0 + rank)).sum() for rank in range(2)) / 2).backward()
    norms = clip_gradients(optimizer, 1e9), nn.utils.clip_grad_norm_(plain.parameters(), 1e9)
    return right(far(*norms) < 1e-12, True)


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, dtype=torch.complex128))

    def forward(self):
        return (self.weight * torch.tensor([3, 4j, 0])).real.sum()


def complex_clipped(door, by_torch):
    """|(3, 4i, 0)| = 5."""
    net = Complex()
    model, optimizer = door.shard(net, SGD, lr=0.1)
    model().backward()
    if by_torch:
        return right(round(nn.utils.clip_grad_norm_(net.parameters(), 1e9).item(), 9), 5.0)
    return right(round(clip_gradients(optimizer, 1e9).item(), 9), 5.0)


def clipped_once_it_is_gone(door):
    """The model is a plain one again, with gradients of this rank's own."""
    norms = []
    for sharded in (True, False):
        net = drawn(partial(linears, 4, 2), 0)
        if sharded:
            door.shard(net, SGD)
            gc.collect()
        net(own_input(4)).sum().backward()
        norms.append(nn.utils.clip_grad_norm_(net.parameters(), 1e9))
    return right(far(*norms), 0.0)


@pytest.mark.parametrize(
    "door, row, args, expected",
    [
        # a norm that is complex, which cannot be clamped
        *takes(("replicas", "stage 1", "stage 2", "stage 3"), (complex_clipped, False)),
        *takes(("replicas", "stage 3"), (complex_clipped, True)),
        # squares of the replicated part added up over the ranks
        *takes(("stage 3",), half_replicated),
        # a refusal that outlives the optimizer
        *takes(("stage 1",), clipped_once_it_is_gone),
    ],
)
def test_a_row(worlds, door, row, args, expected):
    """Must catch: what is said at each."""
    check(worlds(2, patience_seconds=30), door, row, args, expected)


def norm_by_torch(stage, masters=False):
    """The answers of get_total_norm for the gradients of a model's parameters, and for those that
    the optimizer updates."""
    net = linears(4, 2).to(torch.float16 if masters else torch.float64)
    rule = dict(of=torch.optim.SGD) if masters else {}
    optimizer_cls = MasterWeights if masters else torch.optim.SGD
    model, optimizer = zero.shard(net, optimizer_cls, stage=stage, lr=0.1, **rule)
    model(own_input(4).to(net[0].weight.dtype)).sum().backward()
    if masters:
        optimizer.take_gradients()
    of_optimizer = optimizer.param_groups[0]["params"]
    return [answer_of(norm_of, p) for p in (net.parameters(), of_optimizer)]


def norm_of(parameters):
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return nn.utils.get_total_norm(gradients).item()


def test_the_norm_of_gradients_by_torch(worlds):
    """Must catch: 0 in stages 1 and 2 and for fp32 copies, because the list is empty; a norm of
    gradients that are not yet averaged in stage 1."""
    norm = pytest.approx(20**0.5)
    refused = "CannotShard: torch.nn.utils.get_total_norm of gradients that"
    for stage, masters in ((0, False), (3, False), (1, False), (2, False), (0, True)):
        for found, by_optimizer in worlds(2).run(norm_by_torch, stage, masters):
            if stage == 1:
                assert by_optimizer.startswith(refused)
            else:
                assert by_optimizer == norm, stage
            if stage in (0, 3) and not masters:
                assert found == norm
            else:
                assert found.startswith(refused) and "averages or has taken" in found


def doubled(weight):
    return 2 * weight


class Slow(tables.LastMoment):
    """Other threads get a turn while one waits."""

    def begin_all_gather(self, *args):
        wait = super().begin_all_gather(*args)
        return lambda: [time.sleep(0.1), wait()]


def in_threads(net):
    with ThreadPoolExecutor(3) as threads:
        return torch.stack(list(threads.map(lambda _: net[0](torch.ones(3)), range(3))))


def jacobian(net):
    state = dict(net.named_parameters())
    return jacrev(lambda p: functional_call(net, p, torch.ones(3)).sin())(state)["1.weight"]


def in_a_child(net):
    """Zeros if a forked process reads numbers. One that waits for what cannot come is ended."""
    if not (child := os.fork()):
        signal.alarm(60)
        os._exit(net[0].weight.isnan().any())
    return torch.tensor(float("nan") if os.waitpid(child, 0)[1] else 0.0)


# What reads parameters on their way, and must catch in arriving.py: Arrival.arrive without a lock,
# or that gives the class back first; without as_subclass; without watch_blind; without
# register_at_fork, so that a child waits forever; a stale alias where the docstring says that it
# is safe
WAYS = {
    "three threads": in_threads,
    "as_subclass": lambda net: net[0].weight.as_subclass(torch.Tensor) * 1,
    "as_tensor": lambda net: torch.as_tensor(net[0].weight) * 1,
    "traced": lambda net: net.traced(net[0].weight),
    "scripted": lambda net: net.scripted(torch.ones(3)),
    "while it is traced": lambda net: torch.jit.trace(net[0], torch.ones(3))(torch.ones(3)),
    "a forked child": in_a_child,
    "jacrev": jacobian,
    "hessian": lambda net: hessian(lambda p: p.pow(3).sum())(net[0].bias),
    "jvp": lambda net: jvp(doubled, (net[0].weight,), (torch.ones(4, 3),))[0],
    "vmap": lambda net: vmap(torch.sum)(net[0].weight),
    "alias after forward": lambda net: [net(torch.ones(3)), net.alias * 1][1],
    "alias after a new state_dict()": lambda net: [net.state_dict(), net.alias * 1][1],
    "alias after arrive()": lambda net: [net.optimizer.arrive(), net.alias * 1][1],
}


def read_while_they_travel(stage):
    """Ways that read what has not come."""
    early = []
    for name, way in WAYS.items():
        net, scripted = linears(3, 4, 3), torch.jit.script(linears(3, 4))
        traced = torch.jit.trace(doubled, torch.ones(4, 3))
        both = nn.ModuleList([net, scripted])
        options = dict(collectives=Slow(), prefetch=True, lr=1.0)
        _, optimizer = zero.shard(both, SGD, stage=stage, **options)
        net.__dict__.update(alias=net[0].weight.detach(), optimizer=optimizer)
        net.__dict__.update(scripted=scripted, traced=traced)
        (net(torch.ones(3)).sum() + scripted(torch.ones(3)).sum()).backward()
        optimizer.step()
        if way(net).isnan().any():
            early.append(name)
        optimizer.arrive()
    return early


@pytest.mark.one_in(2)
@pytest.mark.parametrize("stage", (1, 2))
def test_what_is_on_its_way_is_not_read(worlds, stage):
    """Messages are not a number until somebody waits for them.

    Must catch: what is said at WAYS."""
    assert worlds(2).run(read_while_they_travel, stage) == [[], []]
