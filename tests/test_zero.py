"""ZeRO against the plain model on the whole batch: outputs, every gradient, every parameter; bytes kept and sent against the formulas.

Each rank draws its model from a seed of its own, so that only rank 0's values, handed out, give the plain model's. Sums over ranks
are made in another order than the plain model's over the batch, hence 1e-12 and not equality; float64 throughout. Which plain
model is meant: a mean over the whole batch, of which each rank has an equal part.
"""

import math
import sys
from functools import partial

import cloudpickle
import pytest

from shardlab.formulas import RECIPES, evaluate

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from shardlab import collectives  # noqa: E402
from shardlab.gpt import GPT, GPTConfig, next_token_loss  # noqa: E402
from shardlab.measure.communication import CommunicationLog  # noqa: E402
from shardlab.measure.ledger import Ledger  # noqa: E402
from shardlab.ranks import ranks  # noqa: E402
from shardlab.zero import stage1, stage2, stage3  # noqa: E402
from shardlab.zero.flat import Native, Ring, own_chunk  # noqa: E402

cloudpickle.register_pickle_by_value(sys.modules[__name__])
STAGES = (1, 2, 3)


@pytest.fixture(scope="module", params=(2, 3, 4))
def world(request):
    with ranks(request.param, device="cpu", announce=False) as world:
        yield world


# --- models: two GPTs, and one with every trap -------------------------------------------------------------------------

class Adapted(nn.Module):
    """A frozen weight beside two small trained ones, whose gradients are there before backward is through with the frozen one."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(7, 7)
        self.down, self.up = nn.Linear(7, 1, bias=False), nn.Linear(1, 7, bias=False)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        return self.frozen(x) + self.up(self.down(x))


class Traps(nn.Module):
    """Odd sizes, a number as a parameter, a weight tied across units, a unit used twice, one that is frozen, one that is unused."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.first, self.other = nn.Linear(5, 7), nn.Linear(5, 7)
        self.other.weight = self.first.weight
        self.register_buffer("shift", torch.full((7,), 0.1))
        self.frozen = nn.Linear(7, 7).requires_grad_(False)
        self.twice, self.adapted = nn.Linear(7, 7), Adapted()
        self.unused, self.last = nn.Linear(3, 2), nn.Sequential(nn.LayerNorm(7), nn.Linear(7, 3))

    def forward(self, x):  # [B, 5]
        hidden = self.scale * self.first(x) + self.other(x.flip(-1)) + self.shift
        hidden = torch.tanh(self.frozen(hidden))
        return self.last(self.adapted(self.twice(torch.tanh(self.twice(hidden)))))  # [B, 3]


def random_values(make, seed):
    """The model with every parameter drawn at random, biases too."""
    torch.manual_seed(seed)
    model = make()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


TIED = dict(layers=2, hidden=8, heads=2, vocabulary=11, max_sequence=5)
GATED = dict(layers=3, hidden=12, heads=2, key_value_heads=1, feed_forward=19, vocabulary=13, max_sequence=5, learned_positions=0,
             biases=0, gated_mlp=1, tied_head=0)
MODELS = {"tied": lambda: GPT(GPTConfig(**TIED)), "gated": lambda: GPT(GPTConfig(**GATED)), "traps": Traps}


def units_of(model):
    if isinstance(model, GPT):
        return [model.embedding, *model.blocks, model.head]
    return [model.first, model.other, model.frozen, model.twice, model.adapted, model.unused, model.last]


def output_of(model, batch):
    return model(batch[:, :-1]) if isinstance(model, GPT) else model(batch)


def mean_loss(model, output, batch):
    return next_token_loss(output, batch[:, 1:]) if isinstance(model, GPT) else (output - 1).pow(2).mean()


def loss_of(model, batch):
    return mean_loss(model, output_of(model, batch), batch)


def batches(model, count, size, seed=1):
    torch.manual_seed(seed)
    if isinstance(model, GPT):
        return [torch.randint(model.config.vocabulary, (size, 6)) for _ in range(count)]
    return [torch.randn(size, 5) for _ in range(count)]


def shard(stage, model, optimizer_cls, bucket_bytes=6000, **kwargs):
    """The optimizer under the stage. Buckets are small, so that there are several."""
    if stage < 3:
        return (stage1, stage2)[stage - 1].ShardedOptimizer(model.parameters(), optimizer_cls, bucket_bytes=bucket_bytes, **kwargs)
    stage3.fully_shard(model, units_of(model))
    return optimizer_cls(model.parameters(), **kwargs)


def flats_of(stage, model, optimizer):
    """(shard, elements of the flat tensor that it is cut from), of trained parameters."""
    if stage < 3:
        return [(bucket.shard, bucket.flat.numel()) for bucket in optimizer.buckets]
    flats = [flat for unit in stage3.sharded_units(model) for flat in unit.sharded_unit.flats]
    return [(flat.shard, flat.full.numel()) for flat in flats if flat.shard.requires_grad]


def whole_gradients(stage, model, optimizer):
    """Name -> the gradient, from the shards of all ranks; zeros where a shard has none."""
    if stage == 1:
        optimizer.reduce_gradients()
    found = {}
    if stage < 3:
        names = {id(p): name for name, p in model.named_parameters()}
        for bucket in optimizer.buckets:
            full = torch.zeros_like(bucket.flat)
            own_chunk(full).copy_(bucket.shard.grad)
            collectives.all_gather(full, own_chunk(full).clone())
            for p, part in zip(bucket.parameters, full.split([p.numel() for p in bucket.parameters])):
                found[names[id(p)]] = part.view(p.shape)
        return found
    kept = [p.detach().clone() for p in model.parameters()]
    for p in model.parameters():
        p.data.copy_(torch.zeros_like(p) if p.grad is None else p.grad)
    with stage3.unsharded(model):
        found = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    for p, value in zip(model.parameters(), kept):
        p.data.copy_(value)
    return found


def whole_parameters(stage, model):
    if stage < 3:
        return {name: p.detach().clone() for name, p in model.named_parameters()}
    with stage3.unsharded(model):
        return {name: p.detach().clone() for name, p in model.named_parameters()}


def far(ours, plain):
    """Largest difference, relative to the largest element; infinite for another shape."""
    if ours.shape != plain.shape:
        return math.inf
    scale = plain.abs().max().item()
    return (ours - plain).abs().max().item() / (scale or 1e-300)


# --- parity ------------------------------------------------------------------------------------------------------------

def distances(stage, name, optimizer_cls, kwargs, steps=2, microbatches=2, fill=False, schedule=None, **shard_kwargs):
    """Largest relative difference of outputs, gradients and parameters over the steps. `fill` gives the plain model zeros where it
    has no gradient, as stages 1 and 2 do."""
    torch.set_default_dtype(torch.float64)
    n, me = dist.get_world_size(), dist.get_rank()
    plain, ours = random_values(MODELS[name], 0), random_values(MODELS[name], 100 * me)
    plain_optimizer = optimizer_cls([p for p in plain.parameters() if p.requires_grad], **kwargs)
    optimizer = shard(stage, ours, optimizer_cls, **kwargs, **shard_kwargs)
    schedulers = [schedule(o) for o in (plain_optimizer, optimizer)] if schedule else []
    found = dict(output=0.0, gradient=0.0, parameter=0.0)

    def note(what, ours, plain):
        found[what] = max(found[what], far(ours, plain))

    for step in range(steps):
        plain_optimizer.zero_grad()
        optimizer.zero_grad()
        for batch in batches(plain, microbatches, 2 * n, seed=step):
            part = batch[2 * me:2 * me + 2]
            ours_out, plain_out = output_of(ours, part), output_of(plain, batch)
            note("output", ours_out, plain_out[2 * me:2 * me + 2])
            (mean_loss(plain, plain_out, batch) / microbatches).backward()
            (mean_loss(ours, ours_out, part) / microbatches).backward()
        gradients = whole_gradients(stage, ours, optimizer)
        for key, p in plain.named_parameters():
            if p.requires_grad:
                p.grad = torch.zeros_like(p) if p.grad is None and fill else p.grad
                note("gradient", gradients.pop(key), torch.zeros_like(p) if p.grad is None else p.grad)
        assert not gradients
        plain_optimizer.step()
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
        updated = whole_parameters(stage, ours)
        for key, p in plain.named_parameters():
            note("parameter", updated[key], p)
        assert list(updated) == [key for key, _ in plain.named_parameters()]
    return found


def test_parity(world):
    """Every stage, every model, SGD with momentum, two microbatches a step, two steps: nothing differs by more than rounding.

    Mutations: no division by the world size, or by a wrong one; parameters not handed out at the beginning; stage 1 gathers before
    it updates; stage 2 replaces the shard's gradient where it should add; a tied weight given to one of its two units; gradients of
    frozen parameters; the neighbour's chunk updated."""
    for stage in STAGES:
        for name in MODELS:
            for found in world.run(distances, stage, name, torch.optim.SGD, dict(lr=0.1, momentum=0.9)):
                assert max(found.values()) <= 1e-12, (stage, name, found)


def test_parity_with_adam(world):
    """AdamW divides by the square root of the squared gradient plus 1e-8, so rounding of a gradient that is truly zero (a key's bias)
    comes out up to 1e8 times larger: hence 1e-9. Weight decay moves an unused parameter in stages 1 and 2, whose shard mixes it with
    used ones, as it moves a plain one whose gradient is zeros and not None; in stage 3, as a unit of its own, it stays.

    Mutation: the optimizer's step counters per rank out of step; a state that goes with another bucket's shard."""
    for stage in STAGES:
        for name in ("tied", "traps"):
            kwargs = dict(lr=0.01, weight_decay=0.1)
            for found in world.run(distances, stage, name, torch.optim.AdamW, kwargs, microbatches=1, fill=stage < 3):
                assert max(found["output"], found["parameter"]) <= 1e-9 and found["gradient"] <= 1e-9, (stage, name, found)


def test_one_rank_alone():
    """World size 1 takes the same path. Mutation: a ring that sends to itself; chunks of a group of one."""
    with ranks(1, device="cpu", announce=False) as world:
        for stage in STAGES:
            (found,) = world.run(distances, stage, "traps", torch.optim.SGD, dict(lr=0.1))
            assert max(found.values()) <= 1e-12


def one_cycle(optimizer):
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=5)


def test_schedulers(world):
    """A scheduler that changes learning rate and momentum takes the sharded optimizer for an optimizer.

    Mutation: param_groups that are copies of those of the optimizer inside: the learning rate never changes."""
    for stage in (1, 2):
        for found in world.run(distances, stage, "gated", torch.optim.SGD, dict(lr=0.1, momentum=0.9), schedule=one_cycle, microbatches=1, steps=3):
            assert max(found.values()) <= 1e-12, (stage, found)


def in_groups(stage):
    """The same for groups with settings of their own, one of them added later."""
    torch.set_default_dtype(torch.float64)
    n, me = dist.get_world_size(), dist.get_rank()
    cls = (stage1, stage2)[stage - 1].ShardedOptimizer
    models = random_values(MODELS["tied"], 0), random_values(MODELS["tied"], me)
    optimizers = []
    for model, make in zip(models, (torch.optim.SGD, partial(cls, optimizer_cls=torch.optim.SGD, bucket_bytes=500))):
        named = dict(model.named_parameters())
        groups = [dict(params=[p for key, p in named.items() if "bias" in key], lr=0.3),
                  dict(params=[p for key, p in named.items() if "norm.weight" in key], weight_decay=0.2)]
        optimizer = make(groups, lr=0.1)
        rest = [p for key, p in named.items() if "bias" not in key and "norm.weight" not in key]
        optimizer.add_param_group(dict(params=rest, momentum=0.5))
        optimizers.append(optimizer)
    assert [{k: v for k, v in g.items() if k != "params"} for g in optimizers[0].param_groups] == [
        {k: v for k, v in g.items() if k != "params"} for g in optimizers[1].param_groups]
    for step, batch in enumerate(batches(models[0], 3, 2 * n)):
        for model, optimizer, part in zip(models, optimizers, (batch, batch[2 * me:2 * me + 2])):
            optimizer.zero_grad(set_to_none=step == 1)
            loss_of(model, part).backward()
            optimizer.step()
    return max(far(a, b) for a, b in zip(models[1].parameters(), models[0].parameters()))


def test_parameter_groups(world):
    """Mutations: buckets that mix groups; the settings of the first group for all; an added group without its hooks in stage 2."""
    for stage in (1, 2):
        assert max(world.run(in_groups, stage)) <= 1e-12


def recomputed(reentrant):
    """(largest difference of a gradient, gatherings of the blocks' units) with PyTorch's activation checkpointing around blocks."""
    torch.set_default_dtype(torch.float64)
    n, me = dist.get_world_size(), dist.get_rank()
    plain, ours = random_values(MODELS["gated"], 0), random_values(MODELS["gated"], 9 * me)
    stage3.fully_shard(ours, units_of(ours))
    gathered = []
    for unit in stage3.sharded_units(ours):
        flat = unit.sharded_unit.flats[0]
        flat.gather = lambda collectives, flat=flat, gather=flat.gather, unit=unit: (gathered.append(unit), gather(collectives))
    batch = batches(plain, 1, 2 * n)[0]
    part = batch[2 * me:2 * me + 2]
    loss_of(plain, batch).backward()
    x = ours.embedding(part[:, :-1])
    for block in ours.blocks:
        x = checkpoint(block, x, use_reentrant=reentrant)
    next_token_loss(ours.head(x), part[:, 1:]).backward()
    gradients = whole_gradients(3, ours, None)
    counts = [gathered.count(block) for block in ours.blocks]
    return max(far(gradients[key], p.grad) for key, p in plain.named_parameters()), counts


def test_with_activation_checkpointing(world):
    """Recomputing a unit in backward finds it whole and leaves it so: gathered twice, as without. The reentrant kind computes in a
    backward of its own and pays a third time (once less for the block on which PyTorch's bookkeeping has nothing to recompute).

    Mutation: a unit freed after the recomputed forward; a recomputed forward that gathers again (three times 2 in the first)."""
    for difference, counts in world.run(recomputed, False):
        assert difference <= 1e-12 and counts == [3, 3, 3]  # the third reads the gradients
    for difference, counts in world.run(recomputed, True):
        assert difference <= 1e-12
