"""Random models from a grammar, trained plainly and by a technique: do they come out alike?
`outcome(case_of(17))` on each rank: "parity", "refused: ..." or what differs. The plain model sees
the parts of all ranks. A case that is neither parity nor a typed refusal is a fault of the
technique."""

import random
import warnings
from collections import UserDict
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import utils
from torch.utils.checkpoint import checkpoint

from coursekit.topics.data_parallelism.ladder import Bucketed, ParameterServer, PerTensor
from coursekit.topics.zero.fast_ring import FastRing
from shardlab import zero
from shardlab.common.backward import NoSecondGradient
from shardlab.common.shards import CannotShard
from shardlab.common.torch_internals import tree_leaves
from shardlab.data_parallel import CannotReplicate, DistributedDataParallel
from shardlab.gradient_clipping import clip_gradients
from shardlab.zero.hardened.flat import Native, Ring
from shardlab.zero.hardened.full_parameters import unsharded
from shardlab.zero.hardened.stage3 import NotGathered

REFUSALS = (CannotReplicate, CannotShard, NotGathered, NoSecondGradient)
LADDER = {
    kind.__name__: kind for kind in (ParameterServer, PerTensor, Bucketed, DistributedDataParallel)
}
TECHNIQUES = (*LADDER, "stage 1", "stage 2", "stage 3")
OUTPUTS = ("tensor", "tuple", "dict", "list", "named tuple", "dataclass", "attribute")
SCALERS = ("none", "none", "none", "fine", "overflow")
# relative; sums over ranks are made in another order, and single precision rounds to 1e-7
CLOSE = {False: 1e-10, True: 2e-4}


class Case(NamedTuple):
    seed: int
    ranks: int
    technique: str
    width: int
    pieces: tuple[str, ...]
    output: str
    unused: bool
    units: tuple[int, ...]  # stage 3: the pieces that are units
    optimizer: str
    microbatches: int
    steps: int
    no_sync: bool
    clip: float | None
    set_to_none: bool
    collectives: str
    bucket_bytes: int
    scaler: str  # of the loss: "none", "fine", or "overflow" of rank 0's gradients in step 0


class Point(NamedTuple):
    """All ranks know it."""

    step: int
    microbatch: int


def case_of(seed: int) -> Case:
    draw = random.Random(seed)
    technique = draw.choice(TECHNIQUES)
    pieces = ("layer", *draw.choices(PIECES, k=draw.randint(1, 5)))
    if technique == "stage 3":
        # In stage 3, as in FSDP2, a unit is used by all ranks or by none: see test_peer_fsdp2.py. A
        # rank's data decides which part of a unit computes.
        pieces = tuple("either by data" if name == "by data" else name for name in pieces)
    return Case(
        seed=seed,
        ranks=draw.choice((2, 2, 2, 3, 4)),
        technique=technique,
        width=draw.randint(2, 7),
        pieces=pieces,
        output=draw.choice(OUTPUTS),
        unused=draw.random() < 0.3,
        units=tuple(number for number in range(len(pieces)) if draw.random() < 0.7),
        optimizer=draw.choice(("SGD", "momentum", "AdamW")),
        microbatches=draw.choice((1, 1, 2, 3)),
        steps=draw.choice((1, 2, 3)),
        no_sync=draw.random() < 0.5,
        clip=draw.choice((None, 0.1, 1e6)),
        set_to_none=draw.random() < 0.8,
        collectives=draw.choice(("default", "faster", "small parts", "native")),
        bucket_bytes=draw.choice((1, 100, 400, 10**6)),
        scaler="none" if technique == "ParameterServer" else draw.choice(SCALERS),
    )


# --- the grammar ----------------------------------------------------------------------------------


class Layer(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x, point):
        return torch.tanh(self.linear(x))


class Tied(Layer):
    def __init__(self, width, before):
        super().__init__(width)
        self.linear.weight = before[0].linear.weight


class HalfFrozen(Layer):
    def __init__(self, width):
        super().__init__(width)
        self.linear.weight.requires_grad_(False)


class Scale(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x, point):
        return x * self.scale


class Norm(nn.LayerNorm):
    def forward(self, x, point):
        return super().forward(x)


class Twice(Layer):
    def forward(self, x, point):
        return super().forward(super().forward(x, point), point)


class Residual(Layer):
    def forward(self, x, point):
        return x + super().forward(x, point)


class Checkpointed(nn.Module):
    def __init__(self, width, reentrant):
        super().__init__()
        self.inside, self.reentrant = Layer(width), reentrant

    def forward(self, x, point):
        return checkpoint(self.inside, x, point, use_reentrant=self.reentrant)


class ByTurns(nn.Module):
    """All ranks take the same way, another one in each step or in each microbatch."""

    def __init__(self, width, turns, odd):
        super().__init__()
        self.turns, self.even, self.odd = turns, Layer(width), odd(width)

    def forward(self, x, point):
        return (self.odd if getattr(point, self.turns) % 2 else self.even)(x, point)


class ByData(nn.Module):
    """Each rank takes its own way."""

    def __init__(self, width):
        super().__init__()
        self.sometimes = Layer(width)

    def forward(self, x, point):
        return self.sometimes(x, point) if x.detach().sum() > 0 else x


class EitherByData(nn.Module):
    """Each rank takes its own way, through one of two layers."""

    def __init__(self, width):
        super().__init__()
        self.above, self.below = Layer(width), Residual(width)

    def forward(self, x, point):
        return (self.above if x.detach().sum() > 0 else self.below)(x, point)


class Dropped(Layer):
    """LayerDrop: in a half of all microbatches it is not called, on all ranks alike."""

    def is_dropped(self, point):
        return random.Random(f"{point} {self.linear.in_features}").random() < 0.5


class Recomputed(Layer):
    """Called through checkpoint, as a whole."""

    def __init__(self, width, reentrant):
        super().__init__(width)
        self.reentrant = reentrant


class WeightNorm(nn.Linear):
    """A weight computed from two parameters by a hook before forward."""

    def forward(self, x, point):
        return torch.tanh(super().forward(x))


def by_norm(norm, layer):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return norm(layer)


class Inside(nn.Module):
    """Calls a layer that knows no point."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x, point):
        return torch.tanh(self.inner(x))


class Transposed(Layer):
    """A parameter that is not contiguous."""

    def __init__(self, width):
        super().__init__(width)
        self.linear.weight = nn.Parameter(torch.empty(width, width).t())


class UsedByAnother(nn.Module):
    """Tied by use and not by assignment: the weight of the first piece."""

    def __init__(self, width, before):
        super().__init__()
        self.first = before[:1]  # not registered

    def forward(self, x, point):
        return nn.functional.linear(x, self.first[0].linear.weight)


class OtherMethod(Layer):
    def encode(self, x, point):
        return torch.tanh(self.linear(x))


class Buffer(Layer):
    def __init__(self, width):
        super().__init__(width)
        self.register_buffer("shift", torch.full((1,), 0.3).expand(width))

    def forward(self, x, point):
        return super().forward(x, point) + self.shift


class SinglePrecision(Layer):
    def __init__(self, width):
        super().__init__(width)
        self.linear.float()

    def forward(self, x, point):
        return super().forward(x.float(), point).to(x.dtype)


class Table(nn.Module):
    """Gives its parameter or a view of it, as a table of positions does."""

    GIVEN = {
        "table": (lambda rows: rows[1:2], lambda out: out),
        "whole table": (lambda rows: rows, lambda out: out[1:]),
        "turned table": (
            lambda rows: (rows.T, {"from": 1}),
            lambda out: out[0].T[out[1]["from"] :],
        ),
    }

    def __init__(self, width, name):
        super().__init__()
        self.rows = nn.Parameter(torch.empty(3, width))
        self.give, self.take = self.GIVEN[name]

    def forward(self, x, point):
        return self.give(self.rows)


class Nested(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.ModuleList([Layer(width), Residual(width)])

    def forward(self, x, point):
        for layer in self.inner:
            x = layer(x, point)
        return x


class Beside(Layer):
    """Hands out a second result as an attribute."""

    def forward(self, x, point):
        hidden = super().forward(x, point)
        self.beside = torch.tanh((hidden @ self.linear.weight).pow(2).sum())
        return hidden


@dataclass
class Packed:
    last: Tensor | None
    more: object = None


class Named(dict):
    """A dictionary of a kind that PyTorch's trees take for a leaf."""


class Hands(Layer):
    """Hands its output on in a container."""

    CONTAINERS = {
        "a dataclass": (lambda y: Packed(y, {"last": y}), lambda out: out.last + out.more["last"]),
        "a dict subclass": (lambda y: Named(last=y), lambda out: out["last"]),
        "a UserDict": (lambda y: UserDict(last=y), lambda out: out["last"]),
        "a closure": (lambda y: lambda: y, lambda out: out()),
        "a generator": (lambda y: iter([y]), next),
        "a nested dataclass": (lambda y: [Packed(None, Packed(y))], lambda out: out[0].more.last),
    }

    def __init__(self, width, container):
        super().__init__(width)
        self.pack, self.unpack = self.CONTAINERS[container]

    def forward(self, x, point):
        return self.pack(super().forward(x, point))


class Again(nn.Module):
    """Computes parts of itself again in backward."""

    def __init__(self, width, reentrant):
        super().__init__()
        self.first, self.parts = Layer(width), nn.ModuleList([Layer(width), Residual(width)])
        self.reentrant = reentrant

    def forward(self, x, point):
        x = self.first(x, point)
        for layer in self.parts:
            x = checkpoint(lambda x, of=layer: of(x, point), x, use_reentrant=self.reentrant)
        return self.first(x, point)


class Replaced(Recomputed):
    """Its forward is replaced by a checkpoint of it when the technique is there already."""

    def __init__(self, width, reentrant):
        super().__init__(width, reentrant)
        self.second = nn.Linear(width, width)

    def forward(self, x, point):
        return self.second(super().forward(x, point))


class Deep(Layer):
    def forward(self, x, point, depth=2):
        return super().forward(self(x, point, depth - 1) if depth else x, point)


class Recurrent(nn.LSTM):
    def forward(self, x, point):
        return super().forward(x)[0]


class Attention(nn.TransformerEncoderLayer):
    def forward(self, x, point):
        return super().forward(x)


def hooked(layer: Layer) -> Layer:
    """Hooks around it that use its weight, backward too."""

    def before(module, args):
        return (args[0] + module.linear.weight.sum(0), *args[1:])

    def after(module, args, out):
        return out * module.linear.weight.sum()

    layer.register_forward_pre_hook(before)
    layer.register_forward_hook(after)
    layer.register_full_backward_hook(
        lambda module, gradients, _: (
            gradients[0] * module.linear.weight.detach().sum(),
            *gradients[1:],
        )
    )
    return layer


# name -> a piece of a width, and of the pieces before it where it needs them
MAKERS = {
    "layer": Layer,
    "tied": Tied,
    "shared": lambda width, before: before[-1],
    "frozen": lambda width: Layer(width).requires_grad_(False),
    "half frozen": HalfFrozen,
    "scale": Scale,
    "norm": Norm,
    "twice": Twice,
    "residual": Residual,
    "checkpointed": partial(Checkpointed, reentrant=False),
    "checkpointed reentrant": partial(Checkpointed, reentrant=True),
    "by step": partial(ByTurns, turns="step", odd=Layer),
    "by data": ByData,
    "transposed": Transposed,
    "used by another": UsedByAnother,
    "other method": OtherMethod,
    "buffer": Buffer,
    "single precision": SinglePrecision,
    "table": partial(Table, name="table"),
    "nested": Nested,
    "either by data": EitherByData,
    "by microbatch": partial(ByTurns, turns="microbatch", odd=Residual),
    "dropped": Dropped,
    "recomputed": partial(Recomputed, reentrant=False),
    "recomputed reentrant": partial(Recomputed, reentrant=True),
    "weight norm": lambda width: by_norm(utils.weight_norm, WeightNorm(width, width)),
    "hooked": lambda width: hooked(Layer(width)),
    "beside": Beside,
    **{name: partial(Hands, container=name) for name in Hands.CONTAINERS},
    **{name: partial(Table, name=name) for name in ("whole table", "turned table")},
    "again": partial(Again, reentrant=False),
    "again reentrant": partial(Again, reentrant=True),
    "replaced": partial(Replaced, reentrant=False),
    "replaced reentrant": partial(Replaced, reentrant=True),
    "calls itself": Deep,
    "recurrent": lambda width: Recurrent(width, width),
    "weight norm inside": lambda width: Inside(by_norm(utils.weight_norm, nn.Linear(width, width))),
    # in training it counts calls, and the plain model is called for each rank
    "spectral norm": lambda width: by_norm(utils.spectral_norm, WeightNorm(width, width)).eval(),
    "parametrised": lambda width: Inside(
        utils.parametrizations.weight_norm(nn.Linear(width, width))
    ),
    "attention": lambda width: Attention(width, 1, width, dropout=0.0),
}
NEED_OTHERS = ("tied", "shared", "used by another")
PIECES = ("layer", *MAKERS)  # the layer twice as often


def piece(name: str, width: int, before: list[nn.Module]) -> nn.Module:
    return MAKERS[name](width, before) if name in NEED_OTHERS else MAKERS[name](width)


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


@dataclass
class Answer:
    value: Tensor


class Model(nn.Module):
    def __init__(self, case: Case):
        super().__init__()
        self.output, made = case.output, []
        for name in case.pieces:
            made.append(piece(name, case.width, made))
        self.pieces = nn.ModuleList(made)
        if case.unused:
            self.unused = nn.Linear(case.width, 2)

    def forward(self, x, point):
        for each in self.pieces:
            if isinstance(each, OtherMethod):
                x = each.encode(x, point)
            elif isinstance(each, Dropped) and each.is_dropped(point):
                continue
            elif type(each) is Recomputed:
                x = checkpoint(each, x, point, use_reentrant=each.reentrant)
            elif isinstance(each, Table):
                x = x + each.take(each(x, point))
            elif isinstance(each, Hands):
                x = each.unpack(each(x, point))
            elif isinstance(each, Beside):
                x = each(x, point) * (1 + each.beside)
            else:
                x = each(x, point)
        return self.packed(x)

    def packed(self, x):
        if self.output == "attribute":
            self.aside = x.pow(2).mean()
        made = {
            "tuple": lambda: (x, 2 * x),
            "dict": lambda: {"values": x, "name": "y"},
            "list": lambda: [x, [x + 1, None]],
            "named tuple": lambda: Pair(x, x * x),
            "dataclass": lambda: Answer(x),
        }
        return made.get(self.output, lambda: x)()


def build(case: Case, seed: int) -> Model:
    """In float64, every parameter drawn at random."""
    torch.manual_seed(seed)
    model = Model(case)
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            nn.init.normal_(parameter, std=0.6)
    single = {
        id(p) for m in model.modules() if isinstance(m, SinglePrecision) for p in m.parameters()
    }
    for tensor in (*model.parameters(), *model.buffers()):
        if id(tensor) not in single:
            tensor.data = tensor.data.double()
    return model


# --- the two trainings ----------------------------------------------------------------------------


def optimizer_of(case: Case) -> tuple[type, dict]:
    """Where a parameter may lack a gradient, stage 3 has zeros or none, as its unit has; plain SGD
    does the same with both."""
    ways = {"by step", "by data", "either by data", "by microbatch", "dropped"}
    lacking = case.unused or ways & set(case.pieces)
    if case.optimizer == "SGD" or (case.technique == "stage 3" and lacking):
        return torch.optim.SGD, dict(lr=0.1)
    if case.optimizer == "momentum":
        return torch.optim.SGD, dict(lr=0.1, momentum=0.9, weight_decay=0.01)
    # a large eps: where a gradient is zero but for rounding, a small one would enlarge the rounding
    return torch.optim.AdamW, dict(lr=0.05, eps=1e-2)


def wrapped(case: Case, model: Model) -> tuple[nn.Module, torch.optim.Optimizer]:
    cls, settings = optimizer_of(case)
    if case.technique in LADDER:
        options = {}
        if case.technique in ("Bucketed", "DistributedDataParallel"):
            options = dict(bucket_bytes=case.bucket_bytes)
        replicas = LADDER[case.technique](model, **options)
        return replicas, cls(replicas.parameters(), **settings)
    stage = int(case.technique[-1])
    options = dict(bucket_bytes=case.bucket_bytes)
    if stage == 3:
        options = dict(units=dict.fromkeys(model.pieces[number] for number in case.units))
    options["prefetch"] = case.seed % 2 == 1
    chosen = {
        "faster": FastRing(),
        "small parts": FastRing(small_bytes=16, piece_bytes=80),
        "native": Native(),
        "default": Ring(),
    }
    return zero.shard(
        model, cls, stage=stage, collectives=chosen[case.collectives], **options, **settings
    )


def inputs_of(case: Case, number: int) -> list[Tensor]:
    """The inputs of all ranks."""
    draw = torch.Generator().manual_seed(1000 * case.seed + number)
    return [
        torch.randn(2, case.width, generator=draw, dtype=torch.float64) for _ in range(case.ranks)
    ]


def values_of(output) -> list[Tensor]:
    output = output.value if isinstance(output, Answer) else output
    return [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]


def loss_of(case: Case, model: Model, output) -> Tensor:
    if case.output == "attribute":
        return model.aside
    return sum(value.pow(2).mean() for value in values_of(output))


def far(ours: Tensor, plain: Tensor) -> float:
    if not plain.isfinite().all():  # a step that overflows
        return 0.0 if torch.equal(ours.isfinite(), plain.isfinite()) else float("inf")
    scale = max(plain.abs().max().item(), 1e-3)
    return (ours.double() - plain.double()).abs().max().item() / scale


def outcome(case: Case) -> str:
    """ "parity", "refused: " and the sentence, or what is wrong; on every rank the same kind."""
    try:
        return trained(case)
    except REFUSALS as refusal:
        return f"refused: {type(refusal).__name__}: {refusal}"


def trained(case: Case) -> str:
    me, single = dist.get_rank(), "single precision" in case.pieces
    cls, settings = optimizer_of(case)
    plain, ours = build(case, case.seed), build(case, case.seed + 100 * me)
    if me == 0:
        ours.load_state_dict(plain.state_dict())
    model, optimizer = wrapped(case, ours)
    for each in (module for net in (plain, ours) for module in net.modules()):
        if isinstance(each, Replaced):
            each.forward = partial(checkpoint, each.forward, use_reentrant=each.reentrant)
    plain_optimizer = cls([p for p in plain.parameters() if p.requires_grad], **settings)
    worst = {"output": 0.0}
    scalers = [
        torch.amp.GradScaler("cpu", init_scale=64.0, enabled=case.scaler != "none")
        for _ in range(2)
    ]
    for step in range(case.steps):
        for number in range(case.microbatches):
            parts, point = inputs_of(case, 10 * step + number), Point(step, number)
            if case.scaler == "overflow" and step == 0:
                parts[0][0, 0] = float("inf")
            last = number == case.microbatches - 1
            quiet = case.technique in LADDER and case.no_sync and not last
            with model.no_sync() if quiet else nullcontext():
                output = model(parts[me], point)
                loss = loss_of(case, ours, output) / case.microbatches
                scalers[0].scale(loss).backward()
            losses = []
            for rank, part in enumerate(parts):
                theirs = plain(part, point)
                losses.append(loss_of(case, plain, theirs) / case.microbatches)
                if rank == me:
                    pairs = zip(values_of(output), values_of(theirs))
                    worst["output"] = max(worst["output"], *(far(a, b) for a, b in pairs))
            scalers[1].scale(sum(losses) / case.ranks).backward()
        if case.technique in ("stage 1", "stage 2"):  # they have zeros where a gradient lacks
            for parameter in plain.parameters():
                if parameter.requires_grad and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        for each, scaler in zip((optimizer, plain_optimizer), scalers):
            if case.clip:
                scaler.unscale_(each)
                # of parameters in two precisions: squares in the wider one, as in this book
                clip_gradients(each, case.clip)
            scaler.step(each)
            scaler.update()
            each.zero_grad(set_to_none=case.set_to_none)
    worst["scale"] = abs(scalers[0].get_scale() - scalers[1].get_scale())
    if case.technique != "ParameterServer" or me == 0:
        with unsharded(ours) if case.technique == "stage 3" else nullcontext():
            found = dict(ours.named_parameters(remove_duplicate=False))
            for name, parameter in plain.named_parameters(remove_duplicate=False):
                worst[name] = far(found[name].detach(), parameter.detach())
    wrong = {name: value for name, value in worst.items() if not value <= CLOSE[single]}
    return f"differs: {wrong}" if wrong else "parity"


def outcomes(world, cases: list[Case]) -> dict[int, str]:
    """Seed -> what came out, of cases for this many ranks. All in one call; if that fails, one by
    one, so that the seed is known."""
    try:
        every = world.run(batch, cases)
        return {case.seed: worst_of(found) for case, *found in zip(cases, *every)}
    except Exception as error:
        if len(cases) == 1:
            return {cases[0].seed: f"raised: {type(error).__name__}: {str(error)[:2000]}"}
        half = len(cases) // 2
        return outcomes(world, cases[:half]) | outcomes(world, cases[half:])


def batch(cases: list[Case]) -> list[str]:
    torch.set_default_dtype(torch.float32)
    return [outcome(case) for case in cases]


def worst_of(found: list[str]) -> str:
    """The worst difference of all ranks: a refusal is one on all of them."""
    wrong = [each for each in found if not each.startswith(("parity", "refused"))]
    kinds = {each.split(":")[0] for each in found}
    return wrong[0] if wrong else found[0] if len(kinds) == 1 else f"ranks disagree: {found}"
