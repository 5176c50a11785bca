"""Misuses of ZeRO: each is one sentence on all ranks, that names the thing, the rule and a way out.
Each once gave a wrong number, crashed, or raised on one rank while the others waited; FSDP2 accepts
many of them."""

import copy  # noqa: F401 (told.md names it)
import io  # noqa: F401 (told.md names it)
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from refusals import answer_of, begins
from told import from_told, sections
from torch import nn
from torch.nn import Parameter
from torch.optim import SGD

from shardlab import zero
from shardlab.zero.hardened import stage1
from shardlab.zero.hardened.full_parameters import unsharded

ONES = torch.ones(1, 8)


def linears(*sizes, bias=True):
    torch.manual_seed(0)
    pairs = zip(sizes, sizes[1:])
    return nn.Sequential(*[nn.Linear(before, after, bias=bias) for before, after in pairs])


def step(model, optimizer, x=ONES):
    model(x).sum().backward()
    optimizer.step()


def sharded(model, stage):
    """The optimizer. Units of stage 3 are the layers of a model of several, or those it names."""
    layers = list(model) if isinstance(model, nn.Sequential) and len(model) > 1 else []
    options = dict(units=getattr(model, "units", layers)) if stage == 3 else {}
    return zero.shard(model, SGD, stage=stage, lr=0.1, momentum=0.9, **options)[1]


def said(does, make, stage) -> str:
    """On a rank: the type and the sentence of what the misuse raises."""
    torch.set_default_dtype(torch.float32)
    return answer_of(misused, does, make, stage)


def misused(does, make, stage):
    model = make()
    return f"nothing, and {does(model, sharded(model, stage))}"


# --- models ---------------------------------------------------------------------------------------


def two_layers():
    return linears(8, 8, 8)


def one_unit():
    model = two_layers()
    model.units = ()
    return model


def one_layer():
    return linears(8, 8)


def with_units_of_the_rank():
    model = linears(4, 4, 4)
    model.units = [model[dist.get_rank()]]
    return model


def hooked(on_rank_1=False):
    model = linears(8, 2)
    if not on_rank_1:
        model[0].weight.register_hook(lambda gradient: gradient * 2)
    elif dist.get_rank() == 1:
        model[0].bias.register_post_accumulate_grad_hook(lambda parameter: None)
    return model


# --- what is done with them ----


def nothing(model, optimizer):
    """The model alone is refused."""


def zero_grad_of_the_model(model, optimizer):
    for _ in range(3):
        model.zero_grad()
        step(model, optimizer)


def second_gradient(model, optimizer):
    x = torch.ones(2, 8, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(x).tanh().sum(), x, create_graph=True)
    gradient.pow(2).sum().backward()


def norm_of_type_0(model, optimizer):
    model(ONES).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type=0)


class Tied(nn.Module):
    """Tied by use, not by assignment."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.units = (self.embedding,)

    def forward(self, tokens):
        return F.linear(self.embedding(tokens), self.embedding.weight)


@torch.no_grad()
def by_hand(module):
    module.weight *= 3
    module.weight[1] = 5.0
    module.bias.data = torch.full((8,), 7.0)


# a write would reach a placeholder alone
INITIALISED = {
    "zero_": lambda module: nn.init.zeros_(module.weight),
    "data": lambda module: module.weight.data.normal_(mean=0.0, std=0.02),
    "kaiming_uniform_": nn.Linear.reset_parameters,
    "mul_": by_hand,
}


def initialise(model, way):
    model.apply(lambda module: way(module) if isinstance(module, nn.Linear) else None)


def tied(model, optimizer):
    model[1].weight = model[0].weight
    model(ONES)


def replaced(model, optimizer):
    model[1].weight = Parameter(torch.zeros(8, 8))
    model(ONES)


def tied_within(model, optimizer):
    with unsharded(model, write=True):
        model[1].weight = model[0].weight


def after(change):
    def use(model, optimizer):
        model(ONES)
        change(model)
        model(ONES)

    return use


def assigned(model):
    state = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    model.load_state_dict(state, assign=True)


def made_anew(model):
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        model.double()
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)


class Changed(nn.Linear):
    def forward(self, x):
        hidden = super().forward(x).exp()
        result = hidden * hidden
        hidden.mul_(2)
        return result


class Clamped(nn.Linear):
    def forward(self, x):
        self.weight.clamp_(-0.1, 0.1)
        return super().forward(x)


class Answer:
    def __init__(self, last):
        self.last = last


class Positions(nn.Embedding):
    def forward(self, length):
        return Answer(self.weight[:length])


def backward_within(model, optimizer):
    with unsharded(model):
        step(model, optimizer)


# --- the table -------


@from_told("stages, does, make, sentence")
def test_a_misuse(worlds, stages, does, make, sentence):
    """Must catch: any of the checks left out, or made by one rank alone."""
    for stage in stages:
        for found in worlds(2, patience_seconds=30).run(said, does, make, stage):
            assert begins(found, sentence), (stage, found)


# --- refused at once ------------------------------------------------------------------------------

STAGE_1 = partial(stage1.ShardedOptimizer, optimizer_cls=SGD)
SHARD = partial(zero.shard, optimizer_cls=SGD)


def on_meta():
    with torch.device("meta"):
        return linears(2, 2)


def of_another_size():
    optimizer = STAGE_1(linears(3, 2).parameters())
    state = {0: dict(momentum_buffer=torch.ones(99))}
    optimizer.load_state_dict(dict(state=state, param_groups=optimizer.param_groups))


def not_refused(rows) -> list[str]:
    """On a rank: whatever does not say its sentence, of a set of parameters, `every`, whose order
    differs between ranks, and of one, `p`; the keys of a dictionary have an order."""
    net, wrong = linears(3, 3, 3), []
    every, p = set(net.parameters()), Parameter(torch.ones(3))
    for call, sentence in rows:
        try:
            wrong.append(f"{call(every, p)} instead of {sentence}")
        except (TypeError, ValueError) as error:
            if not f"{type(error).__name__}: {error}".startswith(sentence):
                wrong.append(f"{type(error).__name__}: {error}")
    STAGE_1(dict.fromkeys(net.parameters()).keys())
    STAGE_1(dict(net.named_parameters()).values())
    STAGE_1(p for p in net.parameters())
    return wrong


def test_what_is_refused_at_once(worlds):
    """Must catch: any of these accepted."""
    rows = sections()["test_zero_misuses::test_what_is_refused_at_once"]
    calls = [(eval(f"lambda every, p: {call}", globals()), said) for call, said in rows]
    assert worlds(2).run(not_refused, calls) == [[], []]


# --- initialised within unsharded -----------------------------------------------------------------


def initialised():
    """On a rank: whether each way gives the plain model's values."""
    same = []
    for way in INITIALISED.values():
        plain, ours = linears(8, 8, 8), linears(8, 8, 8)
        sharded(ours, 3)
        for model in (plain, ours):
            torch.manual_seed(1 + (model is ours) * dist.get_rank())
            with unsharded(model, write=True):
                initialise(model, way)
        with unsharded(ours):
            same.append(all(map(torch.equal, ours.parameters(), plain.parameters())))
    return same


def test_initialised_within_unsharded(worlds):
    """Must catch: a write that reaches a placeholder alone; each rank's own random numbers."""
    assert worlds(2, patience_seconds=30).run(initialised) == [[True] * 4] * 2
