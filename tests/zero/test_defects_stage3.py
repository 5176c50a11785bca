"""Stage 3 where users stand: on every path the result is the plain model's, or a refusal in one
sentence.

Each case failed on stage 3 as it was at commit 7ab9e30: with wrong numbers, with a crash of the
process, or with an error that names neither the thing nor a way out. "Plain" is the same model on
all ranks' inputs in one process, with the mean of their losses; float64, so 1e-12 is rounding.
"""

import copy
import dataclasses
import sys
from collections import UserDict
from contextlib import closing, nullcontext
from functools import partial

import cloudpickle
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from bench.prefetch import Prefetch
from shardlab.common.optimizer_checks import averaged_by_hand
from shardlab.data_parallel import DistributedDataParallel
from shardlab.ranks import RankError, ranks
from shardlab.saving.resharding import flats_of
from shardlab.zero.hardened import stage1, stage2, stage3
from shardlab.zero.hardened.api import default_units
from shardlab.zero.hardened.full_parameters import unsharded
from shardlab.zero.hardened.stage3 import gather_in

cloudpickle.register_pickle_by_value(sys.modules[__name__])
ROUNDING = 1e-12


@pytest.fixture
def pair(worlds):
    return worlds(2, patience_seconds=30)


def linears(*sizes, bias=True):
    pairs = zip(sizes, sizes[1:])
    return nn.Sequential(*[nn.Linear(before, after, bias=bias) for before, after in pairs])


def seeded(make):
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    return make()


def far(ours, plain):
    """Largest difference, relative to the largest element."""
    return ((ours - plain).abs().max() / plain.abs().max().clamp(min=1e-300)).item()


def far_from_plain(
    make,
    loss,
    units=lambda model: list(model.children()),
    steps=2,
    sharded=lambda model: nullcontext(),
    **options,
):
    """How far the parameters are from the plain model's after steps of SGD. `loss(model, x)` of
    x [4, 8], other numbers on each rank and in each step; `sharded` is closed before they are
    compared."""
    n, me = dist.get_world_size(), dist.get_rank()
    plain, ours = seeded(make), seeded(make)
    stage3.fully_shard(ours, units(ours), **options)
    around = sharded(ours)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (plain, ours)]
    for step in range(steps):
        torch.manual_seed(step)
        inputs = torch.randn(n, 4, 8)
        for optimizer in optimizers:
            optimizer.zero_grad()
        for x in inputs:
            (loss(plain, x) / n).backward()
        loss(ours, inputs[me]).backward()
        for optimizer in optimizers:
            optimizer.step()
    with around, unsharded(ours):
        pairs = zip(ours.parameters(), plain.parameters(), strict=True)
        return max(far(mine, theirs) for mine, theirs in pairs)


def said(function, *args) -> str:
    """The type and the sentence of what the function raises."""
    try:
        return f"nothing, and {function(*args)}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def answers(world, function, *args):
    """The answers of all ranks, once."""
    found = world.run(function, *args)
    assert all(answer == found[0] for answer in found), found
    return found[0]


# --- a parameter that is not there ----------------------------------------------------------------


class Tied(nn.Module):
    """Tied by use, not by assignment."""

    def __init__(self):
        super().__init__()
        self.embedding, self.middle = nn.Embedding(11, 8), nn.Linear(8, 8)

    def forward(self, tokens):
        return F.linear(self.middle(self.embedding(tokens)), self.embedding.weight)


def used_outside():
    model = stage3.fully_shard(seeded(lambda: linears(8, 8, 8, bias=False)))
    x, weight = torch.ones(1, 8), model[1].weight
    tied = stage3.fully_shard(seeded(Tied), [])
    alone = seeded(Tied)
    stage3.fully_shard(alone, [alone.embedding])
    return dict(
        layer=said(lambda: model[1](model[0](x))),
        matmul=said(lambda: x @ weight),
        norm=said(weight.norm),
        value=said(lambda: weight[0, 0].item()),
        stack=said(lambda: torch.stack([weight, weight])),
        copied=said(lambda: torch.zeros(8, 8).copy_(weight)),
        tied=said(lambda: alone(torch.arange(5))),
        within=list(tied(torch.arange(5)).shape),
        shape=(weight.shape, weight.dim(), weight.numel(), weight.dtype, weight.requires_grad),
        printed=repr(weight),
    )


def test_a_parameter_that_is_gone_refuses(pair):
    """A layer of the root called by itself, a weight in a product, an embedding that is a unit and
    is used as the head: torch 2.13 computes such a product from memory that nobody wrote. What has
    no values can be read.

    Must catch: a placeholder that is a plain meta tensor; one that refuses its shape."""
    found = answers(pair, used_outside)
    for case in ("layer", "matmul", "norm", "value", "stack", "copied", "tied"):
        assert found[case].startswith("NotGathered: "), (case, found[case])
        assert "gathers this parameter only while" in found[case]
    assert found["layer"].startswith("NotGathered: linear of 0.weight [8, 8]: ")
    assert "only while Embedding computes" in found["tied"]
    assert found["within"] == [5, 11]
    assert found["shape"] == (torch.Size([8, 8]), 2, 64, torch.float64, True)
    assert found["printed"] == "Placeholder(shape=[8, 8], dtype=torch.float64)"


def containers():
    class Listed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(8, 8, bias=False)])

        def forward(self, x):
            return self.layers[0](x)

    return [
        said(stage3.fully_shard, model, units(model))
        for model, units in (
            (Listed(), lambda model: [model.layers]),
            (nn.ModuleDict({"a": nn.Linear(2, 2)}), lambda model: []),
        )
    ]


def test_a_unit_that_is_never_called(pair):
    """The star forgotten in `[*model.blocks]`. FSDP2 refuses it as well.

    Must catch: a container accepted, whose parameters nobody gathers."""
    first, second = answers(pair, containers)
    assert first.startswith("CannotShard: ModuleList is never called")
    assert second.startswith("CannotShard: ModuleDict is never called")


def initialised_later():
    """(what each way says, how far the parameters are from the plain model's, initialised alike
    within `unsharded`)"""

    def zeros(module):
        if hasattr(module, "weight"):
            nn.init.zeros_(module.weight)

    def like_transformers(module):
        if isinstance(module, nn.Linear):
            module.weight.data.normal_(mean=0.0, std=0.02)
            module.bias.data.zero_()

    def reset(module):
        if isinstance(module, nn.Linear):
            module.reset_parameters()

    @torch.no_grad()
    def by_hand(module):
        if isinstance(module, nn.Linear):
            module.weight *= 3
            module.weight[1] = 5.0
            module.bias.data = torch.full((8,), 7.0)

    refused, same = [], []
    for way in (zeros, like_transformers, reset, by_hand):
        plain, ours = seeded(lambda: linears(8, 8, 8)), seeded(lambda: linears(8, 8, 8))
        stage3.fully_shard(ours, [ours[0]])
        refused.append(said(ours.apply, way))
        for model in (plain, ours):
            torch.manual_seed(1 + (model is ours) * dist.get_rank())
            with unsharded(model, write=True):
                model.apply(way)
        with unsharded(ours):
            same += [torch.equal(*p) for p in zip(ours.parameters(), plain.parameters())]
    return refused, all(same)


def test_initialised_after_sharding(pair):
    """`apply`, nn.init, `.data`, reset_parameters and operations in place are refused, and within
    `unsharded` change the whole parameter: each rank's shard of rank 0's values. FSDP2 allows both.

    Must catch: a write that reaches a placeholder alone; each rank's own random numbers."""
    refused, same = answers(pair, initialised_later)
    assert same
    names = ("zero_", "data", "kaiming_uniform_", "mul_")
    for sentence, name in zip(refused, names, strict=True):
        assert sentence.startswith(f"NotGathered: {name} of weight [8, 8]: stage 3"), sentence
        assert sentence.endswith("within `with unsharded(model, write=True)`.")


def tied_later():
    found = []
    for assigned in (lambda m: m[0].weight, lambda m: nn.Parameter(torch.zeros(8, 8))):
        model = seeded(lambda: linears(8, 8, 8))
        stage3.fully_shard(model, list(model))
        model[1].weight = assigned(model)
        found.append(said(lambda model=model: model(torch.ones(1, 8))))
    with_write = seeded(lambda: linears(8, 8, 8))
    stage3.fully_shard(with_write)

    def tie():
        with unsharded(with_write, write=True):
            with_write[1].weight = with_write[0].weight

    return *found, said(tie)


def test_tied_after_sharding(pair):
    """Must catch: an assigned parameter that the next forward overwrites without a word."""
    first, second, third = answers(pair, tied_later)
    for sentence in (first, second):
        assert sentence.startswith("RuntimeError: Linear.weight was assigned after fully_shard")
    assert third.startswith("ValueError: Linear.weight was tied within")


# --- copies ---------------------------------------------------------------------------------------


def averaged():
    """How far an average of weights, and its output, are from the plain model's. The average is
    made before the model is sharded, and sharded alike."""
    outputs = []
    for sharded in (False, True):
        model = seeded(lambda: linears(8, 8, 2))
        average = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)
        )
        if sharded:
            stage3.fully_shard(model, list(model))
            stage3.fully_shard(average.module, list(average.module))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 8)).sum().backward()
            optimizer.step()
            average.update_parameters(model)
        outputs.append(average(torch.ones(1, 8)))
    return far(outputs[1], outputs[0])


def copied(path):
    model = stage3.fully_shard(linears(2, 2))
    parts = stage3.fully_shard(linears(2, 2, 2), [])
    return [
        said(lambda: torch.save(model, path)),
        said(copy.deepcopy, model),
        said(copy.deepcopy, parts[1]),
    ]


def test_copies(pair, tmp_path):
    """A copy, or a pickle, of a sharded model is refused, as FSDP2 refuses the copy: the model is
    copied before, so an average of weights works.

    Must catch: a copy that computes with the original's unit; a pickle of one shard."""
    assert answers(pair, averaged) <= ROUNDING
    for sentence in answers(pair, copied, str(tmp_path / "model")):
        start = "TypeError: Sequential is sharded, and neither copied nor pickled: copy"
        assert sentence.startswith(start), sentence


def replaced_shards():
    def assigned(model):
        state = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
        model.load_state_dict(state, assign=True)

    def made_anew(model):
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        model.double()
        torch.__future__.set_overwrite_module_params_on_conversion(False)

    found, right = [], []
    for change in (assigned, made_anew, nn.Module.double, nn.Module.bfloat16):
        model = seeded(lambda: linears(8, 2)).float()
        stage3.fully_shard(model)
        model(torch.ones(1, 8, dtype=torch.float32))
        change(model)
        found.append(said(lambda model=model: model(torch.ones(1, 8, dtype=torch.float32))))
        model = stage3.fully_shard(seeded(lambda: linears(8, 2)))
        state = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
        model.to("cpu").load_state_dict(state)
        right.append(model(torch.ones(1, 8)).abs().max().item())
    return found, right


def test_shards_that_were_replaced(pair):
    """FSDP2 follows; here the model is converted, and its state assigned, before fully_shard. What
    leaves the shards where they are is right.

    Must catch: a unit that computes with the shards that it was made with, without a word."""
    for found, right in pair.run(replaced_shards):  # each rank names a shard of its own
        *assigned, _, _ = found
        for sentence in assigned:
            assert sentence.startswith("RuntimeError: Linear.weight was assigned after fully_shard")
        converted = found[2:]
        for sentence in converted:
            assert sentence.startswith("CannotShard: a shard of shape ["), sentence
            assert " was moved after fully_shard (by model.to, " in sentence
        assert right == [0.0] * 4


# --- backward by other ways -----------------------------------------------------------------------


class Beside(nn.Module):
    """Hands out a second loss as an attribute."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        hidden = torch.tanh(self.inner(x))
        self.beside = self.inner.weight.pow(2).sum() + (hidden @ self.inner.weight).pow(2).sum()
        return hidden


def by_attribute(order):
    def loss(model, x):
        out = sum(layer(x).sum() for layer in model)
        beside = sum(layer.beside for layer in model)
        return {0: out + beside, 1: beside + out, 2: beside, 3: beside * out}[order]

    return far_from_plain(lambda: nn.Sequential(Beside(), Beside()), loss)


@dataclasses.dataclass
class Output:
    last: torch.Tensor
    more: dict = None


class Frozen(dict):
    """A dictionary of a kind that PyTorch's trees take for a leaf."""


class Hands(nn.Module):
    """Hands its output on in a container."""

    def __init__(self, pack):
        super().__init__()
        self.inner, self.pack = nn.Linear(8, 8), pack

    def forward(self, x):
        return self.pack(self.inner(torch.tanh(self.inner(x))))


CONTAINERS = {
    "a dataclass": (lambda y: Output(y, {"last": y}), lambda out: out.last + out.more["last"]),
    "a dict subclass": (lambda y: Frozen(last=y), lambda out: out["last"]),
    "a UserDict": (lambda y: UserDict(last=y), lambda out: out["last"]),
    "a closure": (lambda y: lambda: y, lambda out: out()),
    "a generator": (lambda y: iter([y]), lambda out: next(out)),
    "a nested dataclass": (lambda y: [Output(None, Output(y))], lambda out: out[0].more.last),
}


def by_container(kind):
    pack, unpack = CONTAINERS[kind]

    def loss(model, x):
        for layer in model:
            x = unpack(layer(x))
        return x.pow(2).sum()

    return far_from_plain(lambda: nn.Sequential(Hands(pack), Hands(pack)), loss)


def test_a_loss_by_attribute(pair):
    """Must catch: backward that gathers at outputs only: the process died, or "setStorage"."""
    for order in range(4):
        assert answers(pair, by_attribute, order) <= ROUNDING, order


def test_containers_of_every_kind(pair):
    """Must catch: the same, for a tensor that is not seen among the outputs."""
    for kind in CONTAINERS:
        assert answers(pair, by_container, kind) <= ROUNDING, kind


class Table(nn.Module):
    """Positions: a unit that returns a parameter, or a view of one."""

    def __init__(self, hand):
        super().__init__()
        self.weight, self.hand = nn.Parameter(torch.randn(9, 8)), hand

    def forward(self, length):
        return self.hand(self.weight, length)


def table_used(hand, take=lambda out: out):
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.positions, self.layer = Table(hand), nn.Linear(8, 8)

        def forward(self, x):
            return self.layer(x + take(self.positions(len(x)))).tanh().sum()

    return far_from_plain(Positions, lambda model, x: model(x))


def test_a_returned_parameter(pair):
    """Must catch: a view of memory that is given back (the process died)."""
    hands = (
        (lambda weight, n: weight[:n], lambda out: out),
        (lambda weight, n: weight, lambda out: out[:4]),
        (lambda weight, n: (weight.T, {"n": n}), lambda out: out[0].T[: out[1]["n"]]),
    )
    for hand, take in hands:
        assert answers(pair, table_used, hand, take) <= ROUNDING
    refused = answers(
        pair, refused_view, lambda weight, n: Output(weight[:n]), lambda out: out.last
    )
    assert refused.startswith("TypeError: Table returns a parameter, or a view of one, inside a")


def refused_view(hand, take):
    return said(lambda: table_used(hand, take))


class Penalised(nn.Module):
    """Forces: a gradient taken in forward, of which backward takes another."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        x = x.detach().requires_grad_()
        energy = torch.tanh(self.inner(x)).pow(2).sum()
        (force,) = torch.autograd.grad(energy, x, create_graph=True)
        return energy, force


def second_gradients():
    def penalty():
        model = stage3.fully_shard(seeded(lambda: linears(8, 8, 1)))
        x = torch.ones(2, 8, requires_grad=True)
        (g,) = torch.autograd.grad(model(x).tanh().sum(), x, create_graph=True)
        g.pow(2).sum().backward()

    def loss(model, x):
        energy, force = model(x)
        return energy + force.pow(2).sum()

    return said(penalty), far_from_plain(Penalised, loss, lambda model: [])


class BackwardInside(nn.Module):
    """A backward of a part, within forward, to the parameters."""

    def __init__(self):
        super().__init__()
        self.inner, self.part = nn.Linear(8, 8), 1 / dist.get_world_size()  # of the mean over ranks

    def forward(self, x):
        hidden = torch.tanh(self.inner(x))
        (hidden.pow(2).sum() * self.part).backward(retain_graph=True)
        return self.inner(hidden).sum()


def backward_inside():
    def loss(model, x):
        model.part = 1 if hasattr(model, "sharded_unit") else model.part
        return model(x)

    return far_from_plain(BackwardInside, loss, lambda model: [])


def test_gradients_of_gradients(pair):
    """Across a unit's end they are refused (FSDP2: "setStorage"); inside its forward they work, and
    so does a whole backward.

    Must catch: memory that is given back while the unit computes, by a backward of its own."""
    sentence, distance = answers(pair, second_gradients)
    assert sentence.startswith("NoSecondGradient: create_graph=True: Sequential gives")
    assert max(distance, answers(pair, backward_inside)) <= ROUNDING


# --- activation checkpointing ---------------------------------------------------------------------


class Again(nn.Module):
    """Computes parts of itself again in backward."""

    def __init__(self, reentrant, everything):
        super().__init__()
        self.first, self.second, self.last = (nn.Linear(8, 8) for _ in range(3))
        self.reentrant, self.everything = reentrant, everything

    def forward(self, x):
        x = x if self.everything else self.first(x)
        for layer in (self.second, self.last):
            x = checkpoint(
                lambda x, layer=layer: torch.tanh(layer(x)), x, use_reentrant=self.reentrant
            )
        return x if self.everything else self.first(x)


def computed_again(reentrant, everything, units):
    def loss(model, x):
        x = x.requires_grad_()
        for layer in model:
            x = layer(x) + x
        return x.pow(2).sum()

    return far_from_plain(
        lambda: nn.Sequential(*(Again(reentrant, everything) for _ in range(2))),
        loss,
        {"units": list, "root": lambda model: []}[units],
    )


class RootCalled(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.layers = nn.Sequential(*(Again(reentrant, False) for _ in range(2)))

    def forward(self, x):
        x = x.requires_grad_()
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=layer.reentrant)
        return x.pow(2).sum()


def checkpointed_layers(reentrant, units):
    return far_from_plain(
        lambda: RootCalled(reentrant),
        lambda model, x: model(x),
        {"units": lambda model: list(model.layers), "root": lambda model: []}[units],
    )


def forward_replaced(reentrant, deeper):
    """The forward of each unit, replaced after sharding by a checkpoint of it."""

    def make():
        kind = (
            Deep if deeper else lambda: nn.Sequential(nn.Linear(8, 5), nn.GELU(), nn.Linear(5, 8))
        )
        return nn.Sequential(*(kind() for _ in range(3)))

    def loss(model, x):
        for unit in model:
            if hasattr(unit, "sharded_unit") and not hasattr(unit, "replaced"):
                unit.forward = partial(checkpoint, unit.forward, use_reentrant=reentrant)
                unit.replaced = True
        return model(x.requires_grad_()).pow(2).sum()

    return far_from_plain(make, loss)


def test_checkpointing_inside_units(pair):
    """Both kinds of checkpoints work with parts of a unit, with layers that are no units, with
    units whose parts are computed again, and with a unit's forward from inside.

    Must catch: placeholders inside backward; gradients that the reentrant kind leaves at leaves,
    also where autograd itself sees no use of the parameters (`everything`); a forward that gathers
    when it is computed again and did not the first time (CheckpointError)."""
    for reentrant in (False, True):
        for deeper in (False, True):
            distance = answers(pair, forward_replaced, reentrant, deeper)
            assert distance <= ROUNDING, (reentrant, deeper)
    for reentrant in (False, True):
        for everything in (False, True):
            distance = answers(pair, computed_again, reentrant, everything, "units")
            assert distance <= ROUNDING, (reentrant, everything)
        for units in ("units", "root"):
            assert answers(pair, checkpointed_layers, reentrant, units) <= ROUNDING, units


# --- prefetch, branches, buffers ------------------------------------------------------------------


class Repeated(nn.Module):
    """A universal transformer: one unit, six times in a row; the embedding is the root's."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
        self.inner = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8))

    def forward(self, tokens):
        x = self.embedding(tokens)
        for _ in range(6):
            x = self.inner(x)
        return x


def prefetched():
    """(the same parameters, units that were filled while they computed)"""
    ends, in_use = [], []
    for ahead in (False, True):
        model = seeded(Repeated)
        stage3.fully_shard(model, [model.inner])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        prefetch = Prefetch(model) if ahead else None
        if ahead:
            submit = prefetch.thread.submit

            def noted(fill, unit, group, prefetch=prefetch, submit=submit):
                in_use.append(prefetch.last[1] is unit)
                return submit(fill, unit, group)

            prefetch.thread.submit = noted
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.arange(5)).tanh().sum().backward()
            optimizer.step()
        if ahead:
            prefetch.close()
        with unsharded(model):
            ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    return torch.equal(*ends), len(in_use) > 0, sum(in_use)


def test_prefetch_of_a_unit_that_follows_itself(pair):
    """Must catch: a unit that is filled by the thread while it computes."""
    assert answers(pair, prefetched) == (True, True, 0)


def different_units():
    model = seeded(lambda: linears(8, 8, 8, bias=False))
    stage3.fully_shard(model, list(model))
    dist.barrier()
    model[dist.get_rank()](torch.ones(1, 8))


def test_ranks_that_run_different_units():
    """LayerDrop by each rank's own number, experts, a branch by data: units of one size must not be
    gathered crosswise, as FSDP2 gathers them. Both wait, and are named.

    Must catch: messages of two units that fit each other."""
    with ranks(2, device="cpu", announce=False, patience_seconds=4) as world:
        with pytest.raises(RankError) as caught:
            world.run(different_units)
    sentence = str(caught.value)
    assert (
        "rank 0 waits for rank 1 in a send to rank 1 of float64, 32 elements, of unit 1" in sentence
    )
    assert (
        "rank 1 waits for rank 0 in a send to rank 0 of float64, 32 elements, of unit 2" in sentence
    )


def dropped_layers(sharded):
    """All ranks drop the same layers, others in each step: as in the plain model."""

    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

        def forward(self, x):
            for number, layer in enumerate(self.layers):
                if (number + torch.initial_seed()) % 3:  # the seed is the number of the step
                    x = torch.tanh(layer(x))
            return x.sum()

    return far_from_plain(
        Dropping, lambda model, x: model(x), lambda model: model.layers, 4, sharded
    )


def with_prefetch(model):
    return closing(Prefetch(model))


@pytest.mark.parametrize(
    "sharded", [lambda model: nullcontext(), with_prefetch], ids=["", "prefetch"]
)
def test_layers_that_all_ranks_drop(pair, sharded):
    """Must catch: a layer that computes with the parameters that were prefetched for the layer
    dropped before it."""
    assert answers(pair, dropped_layers, sharded) <= ROUNDING


def buffers():
    me = dist.get_rank()
    model = linears(3, 3)
    kinds = dict(
        columns=(torch.arange(16.0).view(4, 4) + 100 * me)[:, :2],
        expanded=torch.full((1,), 7.0 + me).expand(200_000),
        transposed=(torch.arange(6.0).view(2, 3) + me).T,
        number=torch.tensor(5 + me),
        flags=torch.tensor([True, bool(me)]),
        uint16=torch.full((3,), 7 + me, dtype=torch.uint16),
        float8=torch.full((3,), 2.0 + 2 * me).to(torch.float8_e4m3fn),
        complex=torch.full((2,), 1j + me),
        empty=torch.zeros(0),
    )
    for name, value in kinds.items():
        model.register_buffer(name, value)
    stage3.fully_shard(model)
    return [
        buffer.to(torch.complex128).tolist()[:8] if buffer.dim() else buffer.item()
        for buffer in model.buffers()
    ], len(model.expanded)


def test_buffers_of_any_kind(pair):
    """Strides, dtypes that no backend sums, a number, nothing: rank 0's values everywhere.

    Must catch: a broadcast of raw memory (half of it rank 1's own, or past its end)."""
    values, elements = answers(pair, buffers)
    assert values[0] == [[0, 1], [4, 5], [8, 9], [12, 13]]
    assert values[1] == [7] * 8 and elements == 200_000
    assert values[2] == [[0, 3], [1, 4], [2, 5]]
    assert values[3:] == [5, [1, 0], [7] * 3, [2] * 3, [1j] * 2, []]


# --- dtypes ---------------------------------------------------------------------------------------


def sums_in_16_bits(dtype, compute):
    torch.set_default_dtype(torch.float32)
    model = nn.Linear(4, 1, bias=False)
    model = model if compute else model.to(dtype)
    stage3.fully_shard(model, compute_dtype=dtype if compute else None)
    x = torch.full((1, 4), 40_000.0, dtype=dtype)
    model(x).sum().backward()
    (shard,) = model.parameters()
    return shard.grad.float().unique().tolist()


def test_16_bit_gradients_are_divided_before_they_are_summed(pair):
    """Two gradients of 40,000, whose sum fp16 cannot hold and whose mean it can.

    Must catch: the division after the sum (inf)."""
    for compute in (False, True):
        assert answers(pair, sums_in_16_bits, torch.float16, compute) == [40_000.0]


def not_rounded():
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    plain = linears(50, 50)
    model = stage3.fully_shard(copy.deepcopy(plain), compute_dtype=torch.bfloat16)
    with unsharded(model, write=True):
        same = [torch.equal(*p) for p in zip(model.parameters(), plain.parameters())]
    with unsharded(model):
        same += [torch.equal(*p) for p in zip(model.parameters(), plain.parameters())]
        array = model[0].weight.detach().numpy()
        with unsharded(model):
            kept = model[0].weight
        inside = model[0].weight
    array[0, 0] += 0  # its memory is there
    return all(same), kept is inside, array.shape, kept.sum().isfinite().item()


def test_unsharded_shows_what_the_shards_hold(pair):
    """Under compute_dtype, as NumPy arrays, one within the other; what was read can be read
    afterwards.

    Must catch: `write` that rounds the shards to 16 bits; memory that is shrunk under an array; an
    inner `unsharded` that closes the outer one's model."""
    assert answers(pair, not_rounded) == (True, True, (50, 50), True)


def other_dtypes():
    torch.set_default_dtype(torch.float32)

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))
            for name, value in dict(
                whole=torch.tensor([3, 300]).to(torch.int16),
                flags=torch.tensor([True, False]),
                phase=torch.tensor([1j, 2.0]),
            ).items():
                setattr(self, name, nn.Parameter(value, requires_grad=False))

        def forward(self):
            return self.weight.dtype, self.whole.dtype, self.flags.dtype, self.phase.tolist()

    model = stage3.fully_shard(Odd(), compute_dtype=torch.bfloat16)
    return model()


def test_compute_dtype_is_for_floating_point(pair):
    """Must catch: whole numbers, flags and complex numbers that are cast (1j became 0)."""
    found = answers(pair, other_dtypes)
    assert found == (torch.bfloat16, torch.int16, torch.bool, [1j, 2.0])


def changed_later(frozen):
    """Trained parameters frozen after the first step, or frozen ones trained."""

    def make():
        model = linears(8, 8, 2)
        return model if frozen else model[0].requires_grad_(False) and model

    plain, ours = seeded(make), seeded(make)
    stage3.fully_shard(ours, list(ours))
    optimizers = [
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
        for model in (plain, ours)
    ]
    for step in range(3):
        for model, optimizer in zip((plain, ours), optimizers):
            model[0].requires_grad_(bool(step) != frozen)
            optimizer.zero_grad()
            model(torch.ones(1, 8)).sum().backward()
            optimizer.step()
    with unsharded(ours):
        return max(far(*pair) for pair in zip(ours.parameters(), plain.parameters()))


def test_requires_grad_that_is_changed_later(pair):
    """Must catch: a unit that remembers what was trained when it was sharded."""
    for frozen in (False, True):
        assert answers(pair, changed_later, frozen) <= ROUNDING, frozen


# --- modules of other kinds, other methods, compilers ---------------------------------------------


class Deep(nn.Module):
    """Calls itself."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x, depth=3):
        return torch.tanh(self.layer(x if depth == 0 else self(x, depth - 1)))


class Normed(nn.Module):
    """A weight computed from two parameters, by a hook before forward."""

    def __init__(self):
        super().__init__()
        self.layer = nn.utils.weight_norm(nn.Linear(8, 8))

    def forward(self, x):
        return self.layer(x)


class Parametrised(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))

    def forward(self, x):
        return self.layer(x)


class Encoder(nn.Module):
    """Has a method besides forward."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def encode(self, x):
        return torch.tanh(self.first(x))

    def forward(self, x):
        return self.second(self.encode(x))


def hooked():
    """Its weight is seen by hooks before and after forward, in backward too."""
    layer = nn.Linear(8, 8)
    layer.register_forward_pre_hook(lambda module, args: (args[0] + module.weight.sum(0),))
    layer.register_forward_hook(lambda module, args, out: out * module.weight.sum())
    layer.register_full_backward_hook(
        lambda module, grads, _: (grads[0] * module.weight.detach().sum(),)
    )
    return layer


KINDS = {
    "calls itself": (Deep, lambda out: out.sum()),
    "recurrent": (lambda: nn.LSTM(8, 8), lambda out: out[0].sum()),
    "weight_norm": (Normed, lambda out: out.sum()),
    "weight_norm of the unit itself": (
        lambda: nn.utils.weight_norm(nn.Linear(8, 8)),
        lambda out: out.tanh().sum(),
    ),
    "spectral_norm of the unit itself": (
        lambda: nn.utils.spectral_norm(nn.Linear(8, 8)).eval(),
        lambda out: out.tanh().sum(),
    ),
    "hooks of the unit itself": (hooked, lambda out: out.tanh().sum()),
    "parametrised": (Parametrised, lambda out: out.sum()),
    "attention": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0),
        lambda out: out.tanh().sum(),
    ),
}


def of_a_kind(kind, compiled=False):
    make, take = KINDS[kind]

    def made():
        torch.set_default_dtype(torch.float64)
        module = make()
        if compiled:
            module.compile(backend="aot_eager")
        return nn.Sequential(module)

    return far_from_plain(made, lambda model, x: take(model[0](x)))


def test_modules_of_every_kind(pair):
    """spectral_norm in eval mode: in training it counts calls, and the plain model is called for
    each rank.

    Must catch: a unit that is freed by a call inside its own; parameters that are put where a
    recurrent module does not look; hooks of a unit that run before it is whole."""
    for kind in KINDS:
        assert answers(pair, of_a_kind, kind) <= ROUNDING, kind


def test_compiled_modules(pair):
    """Units run as they are; what compiles is the rest. Must catch: a compiler that traces the
    gathering ("Output 0 of T is a view")."""
    assert answers(pair, of_a_kind, "calls itself", True) <= ROUNDING


def other_methods(registered):
    def units(model):
        return []

    def loss(model, x):
        if registered and hasattr(model, "sharded_unit") and not hasattr(model, "known"):
            gather_in(model, "encode")
            model.known = True
        return model.encode(x).sum() + model(x).sum()

    return said(lambda: far_from_plain(Encoder, loss, units))


def test_another_method_than_forward(pair):
    """Refused, or gathered where it is said.

    Must catch: `encode` with values of nobody; a unit that is freed when encode is called within
    forward."""
    refused, works = answers(pair, other_methods, False), answers(pair, other_methods, True)
    assert refused.startswith("NotGathered: linear of first.weight [8, 8]: ")
    assert "gather_in(Encoder, 'method')" in refused
    assert works.startswith("nothing, and ") and float(works.split()[-1]) <= ROUNDING


def odd_steps():
    class Changed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            hidden = self.layer(x).exp()
            result = hidden * hidden
            hidden.mul_(2)
            return result

    class Clamped(nn.Linear):
        def forward(self, x):
            self.weight.clamp_(-0.1, 0.1)
            return super().forward(x)

    clamped = stage3.fully_shard(Clamped(8, 8))
    changed = stage3.fully_shard(Changed())
    sparse = stage3.fully_shard(nn.Embedding(5, 4, sparse=True))
    shown = stage3.fully_shard(linears(8, 2))
    alone = stage3.fully_shard(nn.Linear(8, 8, bias=False))

    def inside():
        with unsharded(shown):
            shown(torch.ones(1, 8)).sum().backward()

    return (
        said(lambda: changed(torch.ones(1, 8)).sum().backward()),
        said(lambda: sparse(torch.arange(3)).sum().backward()),
        said(inside),
        said(torch.no_grad()(clamped), torch.ones(1, 8)),
        said(lambda: alone(torch.ones(1, 8, requires_grad=True)).grad_fn._saved_mat2),
        said(lambda: shown[0].weight.requires_grad_(False)),
        said(lambda: shown(torch.ones(1, 8)).sum().isfinite()),
        [name for name, _ in shown.named_parameters()],
    )


def test_refusals(pair):
    """An activation changed in place, which autograd itself does not see where there are hooks; a
    sparse gradient; backward inside `unsharded`, whose gradients nobody would get; a parameter that
    forward changes, which FSDP2 forgets; a parameter that autograd keeps, read outside of backward;
    a parameter that is gone, frozen (its shard is in parameters()).

    Must catch: hooks that forget the version of what they keep; gradients of parameters that
    vanish; a model that stays open when its `unsharded` raised."""
    in_place, sparse, inside, clamped, kept, frozen, after, names = answers(pair, odd_steps)
    assert "has been modified by an inplace operation" in in_place
    assert sparse.startswith("CannotShard: a gradient is torch.sparse_coo: only dense ones")
    assert inside.startswith("RuntimeError: backward within `with unsharded(...)`")
    assert clamped.startswith("RuntimeError: Clamped.weight was changed in place while Clamped")
    assert kept.startswith("RuntimeError: a tensor that autograd keeps for Linear is read outside")
    assert frozen.startswith("NotGathered: requires_grad_ of 0.weight [2, 8]: stage 3 gathers")
    assert after.startswith("nothing, and") and names == ["0.weight", "0.bias"]


def another_model_on_another_rank():
    torch.manual_seed(0)
    wide, narrow = nn.Linear(4, 6, bias=False), nn.Linear(6, 4, bias=False)
    layers = [("a", wide), ("b", narrow)][:: 1 if dist.get_rank() == 0 else -1]
    model = nn.ModuleDict(dict(layers))
    model.forward = lambda x: model["b"](model["a"](x))
    units = linears(4, 4, 4)
    return (
        said(lambda: stage3.fully_shard(model)),
        said(lambda: stage3.fully_shard(units, [units[dist.get_rank()]])),
    )


def test_all_ranks_shard_the_same_model(pair):
    """Parameters in another order and of one size would be swapped; other units would wait.

    Must catch: no comparison, or one of sizes only."""
    order, units = answers(pair, another_model_on_another_rank)
    rule = "all ranks shard the same model in the same units."
    assert order.startswith("CannotShard: rank 0 has a.weight [6, 4] torch.float32, rank 1 has b")
    assert units.startswith("CannotShard: rank 0 has the unit 0, rank 1 has the unit 1: ")
    assert order.endswith(rule) and units.endswith(rule)


# --- optimizers that look at more than an element -------------------------------------------------


class ByLayer(torch.optim.SGD):
    """LARS: each tensor's step has the length of the tensor."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad, alpha=group["lr"] * (p.norm() / p.grad.norm()).item())


class MyAdafactor(torch.optim.Adafactor):
    pass


class MyAdam(torch.optim.Adam):
    pass


def by_shape(parameters):
    """A rule that no shard meets."""
    return [
        dict(params=[p for p in parameters if p.shape == (8, 8)], weight_decay=0.1),
        dict(params=[p for p in parameters if p.shape != (8, 8)], weight_decay=0.0),
    ]


def stepped(make):
    model = seeded(lambda: linears(8, 8, 2))
    stage3.fully_shard(model, list(model))
    optimizer = make(list(model.parameters()))
    model(torch.ones(1, 8)).sum().backward()
    return said(optimizer.step)


def test_optimizers_that_look_at_shapes(pair):
    """Stages 1 and 2 try the optimizer when it is made; in stage 3 it is tried when it steps.

    Must catch: a refusal by name, which a subclass passes; a rule that finds nothing without a
    word; an optimizer of a user that is right and refused."""
    for refused in (torch.optim.Adafactor, MyAdafactor, ByLayer, torch.optim.LBFGS):
        sentence = answers(pair, stepped, lambda parameters, cls=refused: cls(parameters, lr=0.1))
        assert sentence.startswith(f"TypeError: optimizer_cls = {refused.__name__}: it "), sentence
    for right in (MyAdam, torch.optim.AdamW, torch.optim.SGD):
        sentence = answers(pair, stepped, lambda parameters, cls=right: cls(parameters, lr=0.1))
        assert sentence == "nothing, and None", sentence
    sentence = answers(pair, stepped, lambda parameters: torch.optim.AdamW(by_shape(parameters)))
    assert sentence.startswith("CannotShard: parameter group 0 of AdamW is empty: a shard")


class Mixed(nn.Module):
    """A tied weight, a weight of 4 dims, a scalar, a norm, a frozen layer; no size is even."""

    def __init__(self):
        super().__init__()
        self.embedding, self.convolution = nn.Embedding(11, 5), nn.Conv2d(1, 3, 3, padding=1)
        self.block = nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 5))
        self.frozen = nn.Linear(5, 5).requires_grad_(False)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.head = nn.Linear(5, 11, bias=False)
        self.head.weight = self.embedding.weight
        for parameter in self.parameters():  # norms and biases too
            nn.init.normal_(parameter, std=0.5)

    def forward(self, tokens):
        x = self.convolution(self.embedding(tokens)[:, None]).mean(1)
        return self.head(self.frozen(x + self.block(x)) * self.scale)


def by_dims(model):
    """nanoGPT's configure_optimizers, in its words."""
    param_dict = {pn: p for pn, p in model.named_parameters()}
    param_dict = {pn: p for pn, p in param_dict.items() if p.requires_grad}
    decay_params = [p for n, p in param_dict.items() if p.dim() >= 2]
    nodecay_params = [p for n, p in param_dict.items() if p.dim() < 2]
    return [
        {"params": decay_params, "weight_decay": 0.3},
        {"params": nodecay_params, "weight_decay": 0.0},
    ]


def by_names(model):
    """Hugging Face's Trainer: get_parameter_names, and a rule by name."""

    def names_of(module):
        inner = [f"{n}.{k}" for n, m in module.named_children() for k in names_of(m)]
        return [] if isinstance(module, nn.LayerNorm) else [*module._parameters, *inner]

    decayed = {name for name in names_of(model) if "bias" not in name}
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return [
        dict(params=[p for name, p in named if name in decayed], weight_decay=0.3),
        dict(params=[p for name, p in named if name not in decayed], weight_decay=0.0),
    ]


def by_one_dim_count(model):
    """Convolutions alone, and a frozen parameter in a group."""
    return [
        dict(params=[p for p in model.parameters() if p.ndim == 4], weight_decay=0.3),
        dict(params=[p for p in model.parameters() if p.ndim != 4], weight_decay=0.0),
    ]


def decayed(stage, groups_of_model):
    """(distance from the plain model after three steps, names and dims as in the plain model)."""
    n, me = dist.get_world_size(), dist.get_rank()
    plain, ours = seeded(Mixed), seeded(Mixed)
    optimizers = [torch.optim.AdamW(groups_of_model(plain), lr=0.1)]
    named = [(name, p.dim() or 1) for name, p in plain.named_parameters()]
    if stage == 3:
        stage3.fully_shard(ours, [ours.convolution, ours.block, ours.frozen])
        optimizers.append(torch.optim.AdamW(groups_of_model(ours), lr=0.1))
    else:
        cls = (stage1, stage2)[stage - 1].ShardedOptimizer
        optimizers.append(cls(groups_of_model(ours), torch.optim.AdamW, bucket_bytes=500, lr=0.1))
    same = stage < 3 or named == [(name, p.dim()) for name, p in ours.named_parameters()]
    for step in range(3):
        tokens = torch.randint(11, (n, 2, 7), generator=torch.Generator().manual_seed(step))
        for optimizer in optimizers:
            optimizer.zero_grad()
        for part in tokens:
            (plain(part).logsumexp(-1).mean() / n).backward()
        ours(tokens[me]).logsumexp(-1).mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    with unsharded(ours):
        pairs = zip(ours.parameters(), plain.parameters(), strict=True)
        return max(far(*pair) for pair in pairs), same


@pytest.mark.parametrize("n", (2, 3))
def test_groups_by_dims_and_by_names(worlds, n):
    """Weight decay as training scripts choose it equals the plain model's (AdamW: 1e-9, as it
    divides by roots of squares), without a change of the script: in stages 1 and 2 parameters are
    the model's own, in stage 3 a shard has its parameter's name and number of dims.

    Must catch: a flat shard, of which a rule by dims decays nothing; a rule by name that finds the
    unit; a name that moves to the unit; a tied weight with two shards."""
    for stage in (1, 2, 3):
        for groups in (by_dims, by_names, by_one_dim_count):
            for distance, same in worlds(n, patience_seconds=30).run(decayed, stage, groups):
                assert distance <= 1e-9 and same, (stage, groups.__name__, distance)


def scaled():
    """(scale, a sum of weights) after each step; the first and the third gradient are infinite, in
    one rank's shard."""
    model = seeded(lambda: linears(8, 2))
    stage3.fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler, seen = torch.amp.GradScaler("cpu", init_scale=1024.0), []
    for step in range(4):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(1, 8)).sum()).backward()
        if step in (0, 2) and dist.get_rank() == step // 2:
            next(model.parameters()).grad[0] = torch.inf
        scaler.step(optimizer)
        scaler.update()
        with unsharded(model):
            seen.append((scaler.get_scale(), model[0].weight.sum().item()))
    return seen


def test_loss_scaling(pair):
    """An inf in one rank's shard, in the first step already: no rank steps, with PyTorch's own
    scaler. FSDP2 has it as well.

    Must catch: scales that differ and a half-updated model."""
    scales, sums = zip(*answers(pair, scaled))
    assert scales == (512.0, 512.0, 256.0, 256.0)
    assert sums[1] == sums[2] and len(set(sums)) == 3


# --- hooks and parameters beside shards -----------------------------------------------------------


class Adapted(nn.Linear):
    """A layer that gets an adapter later."""

    def forward(self, x):
        y = super().forward(x)
        return y + x @ self.adapter if hasattr(self, "adapter") else y


def beside_shards(when):
    model = seeded(lambda: nn.Sequential(Adapted(8, 2)))
    if when == "before":
        model[0].adapter = nn.Parameter(torch.zeros(8, 2))
    stage3.fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        model(torch.ones(1, 8)).sum().backward()
        optimizer.step()

    if when == "after a step":
        step()
    if when != "before":
        model[0].adapter = nn.Parameter(torch.zeros(8, 2), requires_grad=when != "frozen")
        optimizer.add_param_group(dict(params=[model[0].adapter]))
    return said(step)


def averaged_elsewhere(known):
    """How far from the plain model; the norm is in no unit, and its caller averages it."""
    n, me = dist.get_world_size(), dist.get_rank()
    plain, ours = (seeded(lambda: nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5))) for _ in "12")
    stage3.fully_shard(ours[0])
    if known:
        averaged_by_hand(ours[1].parameters())
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (plain, ours)]
    for step in range(2):
        inputs = torch.randn(n, 4, 3, generator=torch.Generator().manual_seed(step))
        for optimizer in optimizers:
            optimizer.zero_grad()
        for x in inputs:
            (plain(x).pow(3).sum() / n).backward()
        ours(inputs[me]).pow(3).sum().backward()
        for parameter in ours[1].parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= n
        for optimizer in optimizers:
            optimizer.step()
    with unsharded(ours[0]):
        pairs = zip(ours.parameters(), plain.parameters(), strict=True)
        return max(far(*pair) for pair in pairs)


def test_parameters_that_their_caller_averages(pair):
    """Must catch: a refusal that nobody can answer; an answer that is taken for granted."""
    assert answers(pair, averaged_elsewhere, True) <= ROUNDING
    assert answers(pair, said, averaged_elsewhere, False).startswith(
        "CannotShard: a parameter of shape [5] is trained beside shards"
    )


class Lambda(nn.Module):
    """A penalty of a weight that a closure has kept."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        weight = self.inner.weight
        self.penalty = lambda: weight.pow(2).sum()

    def forward(self, x):
        return self.inner(x).sum() + self.penalty()


def kept_from_before(kind):
    model = seeded(lambda: nn.Sequential(Lambda()))
    kept = list(model.parameters())
    optimizer = torch.optim.SGD(kept, lr=0.1)
    stage3.fully_shard(model)
    if kind == "closure":
        return said(lambda: model(torch.ones(1, 8)))
    if kind == "list":
        return said(lambda: sum(p.abs().sum() for p in kept))
    if kind == "norm":
        return said(lambda: torch.linalg.vector_norm(kept[0]))
    if kind == "optimizer":
        optimizer.zero_grad(set_to_none=False)
        return said(optimizer.step)
    return sum(p.nbytes for p in kept), [p.grad for p in kept], repr(kept[0])


def test_parameters_kept_from_before(pair):
    """FSDP2 computes with the dead original, which no step moves.

    Must catch: a penalty of values that never change, without a word; memory that a list keeps; an
    optimizer whose sentence is another's."""
    for kind in ("closure", "list", "norm"):
        sentence = answers(pair, kept_from_before, kind)
        assert " of a parameter that was kept from before fully_shard" in sentence, sentence
        assert sentence.startswith("NotGathered: ")
    sentence = answers(pair, kept_from_before, "optimizer")
    assert sentence.startswith("CannotShard: SGD was made before fully_shard: its parameter")
    assert answers(pair, kept_from_before, "memory") == (0, [None, None], "Dissolved()")


def not_gathered(kind):
    """The sentence of fully_shard, or of the first use, about a model."""
    x, options = torch.ones(2, 4), {}
    if kind == "scripted":
        model = nn.Sequential(torch.jit.script(nn.Linear(4, 4)))
    elif kind == "max_norm":
        model = nn.Sequential(nn.Embedding(5, 4, max_norm=1.0))
    elif kind == "batch norm":
        model, options = nn.Sequential(nn.BatchNorm1d(4)), dict(compute_dtype=torch.bfloat16)
    elif kind == "batch norm in its dtype":
        model, options = nn.Sequential(nn.BatchNorm1d(4)), dict(compute_dtype=torch.bfloat16)
        x = x.bfloat16()
        for name in ("running_mean", "running_var"):
            setattr(model[0], name, getattr(model[0], name).bfloat16())
    elif kind == "inference mode" and dist.get_rank() == 1:
        with torch.inference_mode():
            model = linears(4, 4)
    elif kind == "inference buffer":
        model = linears(4, 4)
        with torch.inference_mode():
            model.register_buffer("table", torch.ones(3))
    else:
        model = linears(4, 4)
    sentence = said(lambda: stage3.fully_shard(model, **options) and None)
    if sentence != "nothing, and None":
        return sentence
    if kind == "vmap":
        return said(lambda: torch.func.vmap(model)(x))
    if kind == "vmap inside":
        inner = nn.Sequential(ByRows(4, 4))
        stage3.fully_shard(inner)
        return said(lambda: inner(x).sum().backward())
    if kind == "norm of zeros":
        model(x).sum().backward()
        return said(lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type=0))
    return said(lambda: model(x).sum().backward())


class ByRows(nn.Linear):
    def forward(self, x):
        return torch.func.vmap(lambda row: F.linear(row, self.weight, self.bias))(x)


@pytest.mark.parametrize(
    "kind, sentence",
    [
        ("scripted", "CannotShard: rank 0: 0 is a RecursiveScriptModule, whose parameters stay"),
        ("max_norm", "CannotShard: rank 0: 0 is a Embedding with max_norm = 1.0, which shortens"),
        (
            "batch norm",
            "CannotShard: rank 0: 0 is a BatchNorm1d with running statistics in",
        ),
        ("batch norm in its dtype", "nothing, and None"),
        (
            "inference mode",
            "CannotShard: rank 1: 0.weight was made in inference mode: make",
        ),
        (
            "inference buffer",
            "CannotShard: rank 0: table was made in inference mode: make",
        ),
        ("vmap", "NotGathered: Sequential is called within a transform of torch.func"),
        ("vmap inside", "nothing, and None"),
        ("norm of zeros", "CannotShard: torch.nn.utils.clip_grad_norm_(norm_type=0.0) of"),
    ],
)
def test_modules_that_cannot_be_gathered(pair, kind, sentence):
    """Must catch: a sentence of PyTorch's that names neither the module nor the rule; a rank that
    raises alone; a refusal of what is right."""
    found = answers(pair, not_gathered, kind)
    assert found.startswith(sentence), found


def compiled_child():
    """A compiled child, saved, whole, and as the plain model."""
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)))
    plain = copy.deepcopy(model)
    model[0] = torch.compile(model[0], backend="eager")
    stage3.fully_shard(model, list(model))
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (plain, model)]
    for m, optimizer in zip((plain, model), optimizers):
        m(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    flats = list(flats_of(model, optimizers[1]))
    with unsharded(model):
        pairs = zip(model.parameters(), plain.parameters(), strict=True)
        return max(far(*pair) for pair in pairs), [name for f in flats for name, _ in f.parameters]


def test_a_compiled_child(pair):
    """Must catch: a unit that is met twice, because a compiled module passes attributes on."""
    distance, names = answers(pair, compiled_child)
    assert distance <= ROUNDING
    assert names == ["0._orig_mod.weight", "0._orig_mod.bias", "1.weight", "1.bias"]


class Prompted(nn.Module):
    """Learned tokens in a list, and words in a dictionary."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.ParameterList([nn.Parameter(torch.randn(3)) for _ in range(2)])
        self.words = nn.ParameterDict({"a": nn.Parameter(torch.randn(3))})
        self.layers = nn.ModuleDict({"first": nn.Linear(3, 5)})

    def forward(self, x):
        return self.layers["first"](x + sum(self.tokens) * self.words["a"])


def test_lists_of_parameters(pair):
    """Without units=, the door takes the model's children.

    Must catch: a list of parameters taken for a unit, which nobody calls; one that is lost."""
    units = lambda model: list(default_units(model))
    assert (
        answers(pair, far_from_plain, Prompted, lambda m, x: m(x[:, :3]).pow(3).sum(), units)
        <= ROUNDING
    )


def hooked_parameters(kind):
    model = seeded(lambda: linears(8, 2))
    if kind == "of replicas":  # that were there before, and are gone
        DistributedDataParallel(model)
    elif kind == "gradient":
        model[0].weight.register_hook(lambda gradient: gradient * 2)
    elif dist.get_rank() == 1:
        model[0].bias.register_post_accumulate_grad_hook(lambda parameter: None)
    return said(lambda: stage3.fully_shard(model) and None)


def test_parameters_beside_shards(pair):
    """An adapter that a layer gets after it was sharded; FSDP2 trains it by each rank's own
    gradient.

    Must catch: parameters that differ between ranks from the first step on; an optimizer that is
    looked at once."""
    for when in ("after", "after a step"):
        assert answers(pair, beside_shards, when).startswith(
            "CannotShard: a parameter of shape [8, 2] is trained beside shards"
        )
    for when in ("before", "frozen"):
        assert answers(pair, beside_shards, when) == "nothing, and None"


def test_hooks_of_parameters(pair):
    """They would be lost with the parameter, as FSDP2 loses them.

    Must catch: a hook that is never called; hooks that are shardlab's own refused; a rank that
    refuses alone."""
    assert answers(pair, hooked_parameters, "gradient").startswith(
        "CannotShard: rank 0: 0.weight has a hook on its gradient, but becomes part of a shard"
    )
    assert answers(pair, hooked_parameters, "after, on one rank").startswith(
        "CannotShard: rank 1: 0.bias has a hook on its gradient"
    )
    assert answers(pair, hooked_parameters, "of replicas") == "nothing, and None"
