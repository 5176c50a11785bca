"""Modules that stay whole and compute with parts: a gradient is a sum over the ranks. A small
attention with a module between Columns and Rows, trained beside the plain one."""

import copy
import re
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from drawn import drawn
from night import at_night
from refusals import said_by
from torch import nn
from torch.nn.utils import clip_grad_norm_

from shardlab import zero
from shardlab.gradient_clipping import clip_gradients
from shardlab.mesh import Mesh
from shardlab.pipelines.hardened.split_backward import WeightGradientsLater, make_weight_gradients
from shardlab.recompute import checkpoint
from shardlab.recompute.core import checkpoint_by_function
from shardlab.saving import resume, save
from shardlab.tensor_parallel import (
    CannotSplit,
    apply_tensor_parallel,
    overlapped,
    sequence_parallel,
    sum_gradients,
)
from shardlab.tensor_parallel.hardened.plan import Around, Columns, Rows, Whole
from shardlab.zero.hardened.full_parameters import unsharded

HEADS, SIZE = 4, 3


class Scale(nn.Module):
    """One learned number."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return x * self.scale


BETWEEN = {
    "a norm of each head": lambda: nn.RMSNorm(SIZE),
    "a norm with a bias": lambda: nn.LayerNorm(SIZE),
    "a linear layer of each head": lambda: nn.Linear(SIZE, SIZE),
    "a scale": Scale,
}


class Mixed(nn.Module):
    """Takes x by name, beside a number of heads; `temperature` is a parameter of its own, and
    `behind` a module that comes after the rows."""

    def __init__(self, between):
        super().__init__()
        hidden = HEADS * SIZE
        self.q, self.v = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
        self.norm, self.behind = BETWEEN[between](), nn.LayerNorm(hidden)
        self.temperature = nn.Parameter(torch.ones(SIZE))
        self.output = nn.Linear(hidden, hidden)

    def forward(self, hidden, *, options):
        q, v = (layer(hidden).unflatten(-1, (-1, SIZE)) for layer in (self.q, self.v))
        mixed = (self.norm(q) * self.temperature).tanh() * (v + options["shift"])
        return {"made": self.behind(self.output(mixed.flatten(-2)))}


class Net(nn.Module):
    def __init__(self, between):
        super().__init__()
        self.first, self.mixed = nn.LayerNorm(HEADS * SIZE), Mixed(between)
        self.shift = nn.Parameter(torch.zeros(SIZE))  # reaches the heads as an argument
        self.last = nn.LayerNorm(HEADS * SIZE)

    def forward(self, x):
        made = self.mixed(options={"shift": self.shift}, hidden=self.first(x))["made"]
        return self.last(x + made)


def built(between, seed=3):
    return drawn(lambda: Net(between).double(), seed, std=1.0)


def plan_of(**others):
    plan = dict(
        first=Whole(),
        mixed=Around(),
        last=Whole(),
        **{
            "": Whole(),
            "mixed.q": Columns(HEADS),
            "mixed.v": Columns(HEADS),
            "mixed.norm": Whole(),
            "mixed.behind": Whole(),
            "mixed.output": Rows(HEADS),
        },
    )
    return {**plan, **others}


def batch_of(step):
    return torch.randn(4, 6, HEADS * SIZE, generator=torch.Generator().manual_seed(step)).double()


def trained(net, optimizer, step_of, first=0, steps=3):
    for step in range(first, first + steps):
        step_of(step)
        optimizer.step()
        optimizer.zero_grad()
    return {name: p.detach().clone() for name, p in net.named_parameters()}


def plain(between, steps=3):
    net = built(between)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step_of(step):
        net(batch_of(step)).square().sin().mean().backward()
        clip_grad_norm_(net.parameters(), 0.01)

    return trained(net, optimizer, step_of, steps=steps)


WAYS = "found", "overlapped", "sequence", "checkpoint", "by function", "a copy"


def apart(between, way):
    """How far a rank's whole parameters are from the plain model's after three clipped steps."""
    torch.set_num_threads(1)
    net, plan = built(between, 3 + dist.get_rank()), plan_of()
    plan = sequence_parallel(plan) if way == "sequence" else plan
    plan = overlapped(plan, 2) if way == "overlapped" else plan
    apply_tensor_parallel(net, plan)
    net = copy.deepcopy(net) if way == "a copy" else net
    by = {"checkpoint": checkpoint, "by function": checkpoint_by_function}.get(way)
    called = (lambda x: by(net, x)) if by else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    me, n = dist.get_rank(), dist.get_world_size()

    def step_of(step):
        x = batch_of(step)
        if way == "sequence":  # this rank's tokens of the mean
            called(x.chunk(n, 1)[me]).square().sin().mean().div(n).backward()
            sum_gradients(optimizer)
        else:
            called(x).square().sin().mean().backward()
        clip_grad_norm_(net.parameters(), 0.01)

    own, want = trained(net, optimizer, step_of), plain(between)
    return max(float((own[k] - w).abs().max()) for k, w in want.items() if own[k].shape == w.shape)


# By day each way is gone by one of them, and each of them goes the first way.
ROWS = [(between, way) for between in BETWEEN for way in WAYS]
BY_DAY = [row for k, row in enumerate(ROWS) if row[1] == "found" or k % 4 == 3]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "between, way", BY_DAY + at_night(*(row for row in ROWS if row not in BY_DAY))
)
def test_what_computes_with_heads_is_summed(worlds, between, way):
    """Must catch: a gradient of one rank's heads, also of Around's own parameter or of an argument;
    a gradient that is summed and was whole; a second sum beside sum_gradients; a copy that talks to
    nobody."""
    for error in worlds(2).run(apart, between, way):
        assert error < 1e-12


def apart_on_a_mesh(stage, folder):
    """With ZeRO beside, saved after two steps and resumed for two more, on 4 ranks."""
    torch.set_num_threads(1)
    mesh, between = Mesh(dp=2, tp=2), "a norm with a bias"

    def run(first, seed):
        net = built(between, seed)
        apply_tensor_parallel(net, plan_of(), mesh.tp.group)
        made = zero.shard(net, torch.optim.SGD, stage=stage, group=mesh.dp.group, lr=0.1)
        called, optimizer = made
        if first:
            resume(folder, net, optimizer)
        for step in range(first, first + 2):
            called(batch_of(step).chunk(2)[mesh.dp.rank]).square().sin().mean().backward()
            clip_gradients(optimizer, 0.01)
            optimizer.step()
            optimizer.zero_grad()
        return net, optimizer

    save(folder, *run(0, 3), 2)
    net, _ = run(2, 4)
    with unsharded(net) if stage == 3 else nullcontext():
        own, want = {k: p.detach().clone() for k, p in net.named_parameters()}, plain(between, 4)
    return max(float((own[k] - w).abs().max()) for k, w in want.items() if own[k].shape == w.shape)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("stage", (0, 1, 2, 3))
def test_beside_zero_and_saved(worlds, stage, tmp_path):
    """Must catch: views of parameters that a unit has given back; a norm of each head that counts
    once a rank in the norm of all gradients."""
    for error in worlds(4).run(apart_on_a_mesh, stage, str(tmp_path / "run")):
        assert error < 1e-12


def put_off():
    """(a layer's gradient, what a pipeline with two halves of backward left to the second)"""
    net = built("a linear layer of each head")
    apply_tensor_parallel(net, plan_of())
    later, found = WeightGradientsLater(net), []
    for _ in range(2):
        net(batch_of(0)).square().sin().mean().backward()
        products = later.take()
        found.append({id(product.parameter) for product in products})
        make_weight_gradients(products)
    norm = net.mixed.norm.weight
    return norm.grad, id(norm) in found[0] | found[1], len(found[0])


def test_a_pipeline_in_halves_leaves_the_sum_alone(worlds):
    """Must catch: a product of a layer of each head that is put off, whose gradient is of one
    rank's heads."""
    net = built("a linear layer of each head")
    for _ in range(2):
        net(batch_of(0)).square().sin().mean().backward()
    for gradient, is_put_off, others in worlds(2).run(put_off):
        assert torch.allclose(gradient, net.mixed.norm.weight.grad, rtol=1e-12, atol=0)
        assert not is_put_off and others > 0


def refused():
    net, around = built("a norm of each head"), {"mixed": Whole()}
    around |= {f"mixed.{key}": (Columns(HEADS), Around()) for key in "qv"}
    apply_tensor_parallel(net, plan_of(**around))
    return said_by(net(batch_of(0)).square().sin().mean().backward, CannotSplit)


def test_ranks_that_would_drift_apart(worlds):
    """Must catch: whole parameters with other gradients on each rank, without a word."""
    words = r"(mixed|mixed.norm)\.\w+ is whole, and the ranks' gradients of it differ: .*Around\(\)"
    for said in worlds(2).run(refused):
        assert re.match(words, said), said
