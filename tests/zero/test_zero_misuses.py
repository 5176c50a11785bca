"""Misuses of ZeRO: each is one sentence on all ranks, that names the thing, the rule and a way out.

What other techniques share is in test_zero_rows.py. Each once gave a wrong number without a word,
crashed the process, or raised PyTorch's own words on one rank while the others waited. FSDP2
accepts many of them, and forgets or does not average.
"""

import copy
import io
import re
import sys
from functools import partial

import cloudpickle
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn import Parameter
from torch.optim import SGD

from shardlab import zero
from shardlab.zero.hardened import stage1
from shardlab.zero.hardened.full_parameters import unsharded

cloudpickle.register_pickle_by_value(sys.modules[__name__])
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
    try:
        model = make()
        optimizer = sharded(model, stage)
        return f"nothing, and {does(model, optimizer)}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


# --- models ---------------------------------------------------------------------------------------


def two_layers():
    return linears(8, 8, 8)


def one_unit():
    model = two_layers()
    model.units = ()
    return model


def one_layer():
    return linears(8, 8)


def with_a_list():
    model = nn.Sequential()
    model.layers = nn.ModuleList([nn.Linear(8, 8)])
    model.units = [model.layers]
    return model


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


# torch 2.13 computes with it from memory that nobody wrote
GONE = {
    "": lambda model, _: ONES @ model[1].weight,
    "__getitem__ of weight [8, 8]": lambda model, _: model[1].weight[0, 0].item(),
    "norm of weight [8, 8]": lambda model, _: model[1].weight.norm(),
    "stack of weight [8, 8]": lambda model, _: torch.stack([model[1].weight] * 2),
    "copy_ of weight [8, 8]": lambda model, _: torch.zeros(8, 8).copy_(model[1].weight),
}


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


ASSIGNED = "RuntimeError: Linear.weight was assigned after fully_shard"
CONVERTED = "CannotShard: a shard of shape [... was moved after fully_shard (by model.to, "
NO_COPY = "TypeError: Sequential is sharded, and neither copied nor pickled: copy"


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

# (the stages, what the sentence begins with; what is done, with which model). "..." stands for what
# is in between. A row says what it must catch besides the misuse accepted.
SHARDED = [
    # a rank that waits for another unit
    (
        (3,),
        "CannotShard: rank 0 has the unit 0, rank 1 has the unit 1: all",
        with_units_of_the_rank,
    ),
    # the star forgotten in [*model.blocks]: parameters that nobody gathers
    ((3,), "CannotShard: ModuleList is never called", with_a_list),
    (
        (3,),
        "CannotShard: ModuleDict is never called",
        lambda: nn.ModuleDict({"a": nn.Linear(2, 2)}),
    ),
    # a hook that is lost with its parameter
    ((3,), "CannotShard: rank 0: 0.weight has a hook on its gradient, but becomes part", hooked),
    ((3,), "CannotShard: rank 1: 0.bias has a hook on its gradient", partial(hooked, True)),
]
IN_STAGES_1_AND_2 = [
    # gradients of all steps before, added up forever; weights that decay where nothing was learned
    ("CannotShard: the shards still have the gradients of the step", zero_grad_of_the_model),
    ("CannotShard: step() without a gradient on this rank", lambda _, optimizer: optimizer.step()),
]
IN_STAGE_3 = [
    ("NoSecondGradient: create_graph=True: Sequential gives", second_gradient, one_layer),
    ("CannotShard: torch.nn.utils.clip_grad_norm_(norm_type=0.0) of", norm_of_type_0, one_layer),
    *(
        (f"NotGathered: {name}...this parameter only while Linear", use, two_layers)
        for name, use in GONE.items()
    ),
    (
        "NotGathered: linear of 0.weight [8, 8]: ...this parameter only while Sequential computes",
        lambda model, _: model[0](ONES),
        one_layer,
    ),
    (
        "NotGathered: ...this parameter only while Embedding computes",
        lambda model, _: model(torch.arange(5)),
        Tied,
    ),
    *(
        (
            f"NotGathered: {name} of weight [8, 8]: stage 3...unsharded(model, write=True)`.",
            lambda model, _, way=way: initialise(model, way),
            two_layers,
        )
        for name, way in INITIALISED.items()
    ),
    # the next forward overwrites it, or computes with the shards of before
    (ASSIGNED, tied, two_layers),
    (ASSIGNED, replaced, two_layers),
    ("ValueError: Linear.weight was tied within", tied_within, one_unit),
    (ASSIGNED, after(assigned), one_layer),
    (ASSIGNED, after(made_anew), one_layer),
    (CONVERTED, after(nn.Module.double), one_layer),
    (CONVERTED, after(nn.Module.bfloat16), one_layer),
    # it computes with the original's unit, or has one shard
    (NO_COPY, lambda model, _: copy.deepcopy(model), one_layer),
    (NO_COPY, lambda model, _: copy.deepcopy(model[0]), one_unit),
    (NO_COPY, lambda model, _: torch.save(model, io.BytesIO()), one_layer),
    # autograd does not look at versions where there are hooks
    ("RuntimeError: ...modified by an inplace operation", step, lambda: Changed(8, 8)),
    (
        "RuntimeError: Clamped.weight was changed in place while Clamped",
        torch.no_grad()(step),
        lambda: Clamped(8, 8),
    ),
    # gradients that nobody gets
    ("RuntimeError: backward within `with unsharded(...)`", backward_within, one_layer),
    (
        "RuntimeError: a tensor that autograd keeps for Linear is read outside",
        lambda model, _: model(ONES.clone().requires_grad_()).grad_fn._saved_mat2,
        lambda: nn.Linear(8, 8, bias=False),
    ),
    (
        "NotGathered: requires_grad_ of weight [8, 8]: stage 3 gathers",
        lambda model, _: model[0].weight.requires_grad_(False),
        two_layers,
    ),
    # memory that is given back: the process died
    (
        "TypeError: Positions returns a parameter, or a view of one, inside a Answer",
        lambda model, _: model(4),
        lambda: Positions(9, 8),
    ),
    (
        "NotGathered: Sequential is called within a transform of torch.func",
        lambda model, _: torch.func.vmap(model)(torch.ones(2, 8)),
        one_layer,
    ),
]
MISUSES = [
    *((stages, sentence, lambda *_: None, make) for stages, sentence, make in SHARDED),
    *(((1, 2), *row, two_layers) for row in IN_STAGES_1_AND_2),
    *(((3,), *row) for row in IN_STAGE_3),
]


@pytest.mark.parametrize("stages, sentence, does, make", MISUSES)
def test_a_misuse(worlds, stages, sentence, does, make):
    """Every rank says the sentence, and the ranks go on.

    Must catch: any of the checks left out, or made by one rank alone."""
    for stage in stages:
        for found in worlds(2, patience_seconds=30).run(said, does, make, stage):
            assert re.match(re.escape(sentence).replace(r"\.\.\.", ".*"), found), (stage, found)


# --- refused at once ------------------------------------------------------------------------------

STAGE_1 = partial(stage1.ShardedOptimizer, optimizer_cls=SGD)
SET = "TypeError: the parameters are a set"
SHARD = partial(zero.shard, optimizer_cls=SGD)


def on_meta():
    with torch.device("meta"):
        return linears(2, 2)


def of_another_size():
    optimizer = STAGE_1(linears(3, 2).parameters())
    state = {0: dict(momentum_buffer=torch.ones(99))}
    optimizer.load_state_dict(dict(state=state, param_groups=optimizer.param_groups))


def refused(every: set) -> list[tuple]:
    """(call, its sentence), for a model's parameters."""
    p = Parameter(torch.ones(3))
    return [
        # values of one size swapped between parameters: sets have another order on another rank
        *((lambda given=given: STAGE_1(given), SET) for given in (every, frozenset(every))),
        (lambda: STAGE_1(iter(every)), SET),
        (lambda: STAGE_1(p for p in (p for p in every) if p.requires_grad), SET),
        (lambda: STAGE_1([dict(params=(p for p in every))]), SET),
        (lambda: STAGE_1([dict(params=every)]), "TypeError: "),
        # a tensor that is computed, taken for a parameter
        (lambda: STAGE_1([p * 2]), "ValueError: can't optimize a non-leaf Tensor"),
        (lambda: STAGE_1(["weight"]), "TypeError: optimizer can only optimize Tensors"),
        (lambda: STAGE_1([]), "ValueError: optimizer got an empty parameter list"),
        (lambda: STAGE_1([p], optimizer_cls="AdamW"), "TypeError: optimizer_cls = 'AdamW'"),
        (
            lambda: STAGE_1([p], bucket_bytes=0),
            "CannotShard: bucket_bytes = 0: it must be at",
        ),
        (lambda: STAGE_1([p, p]), "CannotShard: rank 0: parameter 1 of shape [3] is given twice"),
        (
            lambda: STAGE_1(on_meta().parameters()),
            "CannotShard: rank 0: parameter 0 is on the meta device: fill the model",
        ),
        (of_another_size, "CannotShard: momentum_buffer has 99 elements, this rank's shard"),
        (
            lambda: SHARD(on_meta(), stage=3),
            "CannotShard: the module is on the meta device: say where its shards shall be",
        ),
        (
            lambda: SHARD(linears(2, 2), stage=3, units=[nn.Linear(2, 2)]),
            "CannotShard: the unit Linear is not part of Sequential",
        ),
        # an option that is taken and ignored
        (lambda: SHARD(linears(2, 2), stage=4), "CannotShard: stage = 4: there are 0, 1, 2 and 3."),
        (
            lambda: SHARD(linears(2, 2), stage=1, compute_dtype=torch.bfloat16),
            "CannotShard: compute_dtype: stage 1 has bucket_bytes, collectives, offload, prefetch.",
        ),
        (
            lambda: SHARD(linears(2, 2), stage=3, bucket_bytes=100),
            "CannotShard: bucket_bytes: stage 3 has collectives, compute_dtype, device, offload,",
        ),
        (
            lambda: SHARD(linears(2, 2), stage=0, offload=True),
            "CannotShard: offload: stage 0 has bucket_bytes.",
        ),
        (lambda: SHARD(linears(2, 2), stage=1, hardened=False), "TypeError: "),
        *(
            (
                lambda stage=stage: SHARD(nn.ReLU(), stage=stage),
                "CannotShard: ReLU has no parameters: there is nothing to shard.",
            )
            for stage in (1, 3)
        ),
    ]


def not_refused() -> list[str]:
    """On a rank: whatever does not say its sentence; the keys of a dictionary have an order."""
    net, wrong = linears(3, 3, 3), []
    for call, sentence in refused(set(net.parameters())):
        try:
            wrong.append(f"{call()} instead of {sentence}")
        except (TypeError, ValueError) as error:
            if not f"{type(error).__name__}: {error}".startswith(sentence):
                wrong.append(f"{type(error).__name__}: {error}")
    STAGE_1(dict.fromkeys(net.parameters()).keys())
    STAGE_1(dict(net.named_parameters()).values())
    STAGE_1(p for p in net.parameters())
    return wrong


def test_what_is_refused_at_once(worlds):
    """Must catch: any of these accepted."""
    assert worlds(2).run(not_refused) == [[], []]


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
    """Each way changes the whole parameter: each rank's shard of rank 0's values.

    Must catch: a write that reaches a placeholder alone; each rank's own random numbers."""
    assert worlds(2, patience_seconds=30).run(initialised) == [[True] * 4] * 2
