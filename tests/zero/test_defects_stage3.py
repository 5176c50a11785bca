"""Stage 3 where users stand: on every path the result is the plain model's. Refusals are in
test_zero_misuses.py; what other techniques share in test_zero_rows.py; modules, outputs and
checkpoints of every kind in random_models.py.

Each case failed on stage 3 as it was at commit 7ab9e30: with wrong numbers, with a crash of the
process, or with an error that names neither the thing nor a way out. "Plain" is the same model on
all ranks' inputs in one process, with the mean of their losses; float64, so 1e-12 is rounding.
"""

import copy
import sys
from functools import partial

import cloudpickle
import pytest
import tables
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tables import RIGHT, Beside, check, loss_of, two_steps
from torch import nn

from shardlab import zero
from shardlab.common.optimizer_checks import averaged_by_hand
from shardlab.data_parallel import DistributedDataParallel
from shardlab.recompute import checkpoint_by_function
from shardlab.saving.resharding import flats_of
from shardlab.zero.hardened import stage1, stage2, stage3
from shardlab.zero.hardened.arriving import is_coming
from shardlab.zero.hardened.full_parameters import unsharded
from shardlab.zero.hardened.stage3 import gather_in

cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(tables)
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


# --- modules of other kinds, beside the plain model -----------------------------------------------


class Penalised(nn.Linear):
    """Forces: a gradient taken in forward, of which backward takes another."""

    def forward(self, x):
        x = x.detach().requires_grad_()
        energy = torch.tanh(super().forward(x)).pow(2)
        (force,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
        return energy + force.pow(2)


class BackwardInside(nn.Linear):
    """A backward of a part, within forward, to the parameters."""

    def forward(self, x):
        hidden = torch.tanh(super().forward(x))
        hidden.pow(2).mean().backward(retain_graph=True)
        return super().forward(hidden)


class Deep(nn.Linear):
    """Calls itself."""

    def forward(self, x, depth=3):
        return torch.tanh(super().forward(x if depth == 0 else self(x, depth - 1)))


def compiled_deep():
    module = Deep(8, 8)
    module.compile(backend="aot_eager")
    return nn.Sequential(module)


def with_a_compiled_child():
    return nn.Sequential(torch.compile(nn.Linear(4, 3), backend="eager"), nn.Linear(3, 2))


class Prompted(nn.Module):
    """Learned tokens in a list, and words in a dictionary."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.ParameterList([nn.Parameter(torch.randn(3)) for _ in range(2)])
        self.words = nn.ParameterDict({"a": nn.Parameter(torch.randn(3))})
        self.layers = nn.ModuleDict({"first": nn.Linear(3, 5)})

    def forward(self, x):
        return self.layers["first"](x + sum(self.tokens) * self.words["a"])


class Dropping(nn.Sequential):
    """All ranks drop the same layers, others in each step: as in the plain model."""

    def forward(self, x):
        for number, layer in enumerate(self):
            if (number + torch.initial_seed()) % 3:  # the seed is the number of the step
                x = torch.tanh(layer(x))
        return x


def dropped_layers(door):
    beside = Beside(door, lambda: Dropping(*(nn.Linear(8, 8) for _ in range(4))))
    for step in range(4):
        torch.manual_seed(step)
        beside.steps(1)
    return beside.verdict()


class Repeated(nn.Sequential):
    """A universal transformer: one unit, several times in a row."""

    def forward(self, x):
        for _ in range(4):
            x = torch.tanh(self[0](x))
        return self[1](x)


class Stops(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, dy):
        raise KeyError("stopped")


class Stopping(nn.Sequential):
    stops = False

    @classmethod
    def of_three(cls):
        return cls(*(nn.Linear(8, 8) for _ in range(3)))

    def forward(self, x):
        for number, layer in enumerate(self):
            x = torch.tanh(layer(x))
            if self.stops and number == 1:
                x = Stops.apply(x)
        return x


def stopped_backward(door):
    beside = Beside(door, Stopping.of_three)
    for _ in range(3):
        beside.optimizer.zero_grad()
        beside.net.stops = True
        with pytest.raises(KeyError):  # the last layer's gradients are on their way
            beside.model(torch.ones(2, 8)).sum().backward()
        beside.net.stops = False
        beside.optimizer.zero_grad()
        beside.steps(1)
    return beside.verdict()


def deeper():
    return nn.Sequential(nn.Linear(8, 8), Stopping.of_three())


class Hooked(nn.Linear):
    def hook(self, net):
        weight = dict(net.named_parameters())["0.weight"]
        return weight.register_hook(lambda gradient: {}["stopped"])


def hook_stops():
    return nn.Sequential(Hooked(8, 8), nn.Linear(8, 8))


def goes_on(door, make, *then):
    """The second backward raises, with no zero_grad() after it unless `then` names it."""
    beside = Beside(door, make)
    beside.backward()
    stopping = [m for net in beside.nets for m in net.modules() if isinstance(m, Stopping)]
    for module in stopping:
        module.stops = True
    hooks = [net[0].hook(net) for net in beside.nets if make is hook_stops]
    x = beside.inputs()
    for net, own in ((beside.model, door.part(x)), (beside.plain, x)):
        with pytest.raises(KeyError):
            loss_of(net(own)).backward()
    for module in stopping:
        module.stops = False
    for hook in hooks:
        hook.remove()
    for name in then:
        if name == "zero_grad":
            beside.optimizer.zero_grad(set_to_none=False)
            beside.plain_optimizer.zero_grad(set_to_none=False)
        else:
            getattr(beside, name)()
    return beside.verdict()


def penalty_afterwards(door):
    beside = Beside(door)
    for _ in range(2):
        beside.optimizer.zero_grad()
        beside.plain_optimizer.zero_grad()
        beside.backward()
        for net in beside.nets:  # of one, the shards
            sum(parameter.pow(2).sum() for parameter in net.parameters()).backward()
        beside.step()
    return beside.verdict()


class Recomputed(nn.Sequential):
    """Its gradients come from within a reentrant backward; `tied` is met in two of them."""

    def __init__(self, way):
        super().__init__(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
        self[1].bias.requires_grad_(False)
        self.way, self.tied = way, self[0].bias

    def forward(self, x):
        return self.way(lambda x: super(Recomputed, self).forward(x) + self.tied, x)


def recomputed(way):
    return nn.Sequential(nn.Linear(8, 8), Recomputed(way))


reentrant = partial(torch.utils.checkpoint.checkpoint, use_reentrant=True)


def triple(parameter):
    parameter.grad.mul_(3)


def twice(parameter):
    parameter.register_hook(lambda gradient: 2 * gradient)
    parameter.register_post_accumulate_grad_hook(triple)
    parameter.register_hook(lambda gradient: 5 * gradient).remove()


@torch.no_grad()
def update(parameter):
    parameter.sub_(parameter.grad, alpha=0.3)
    parameter.grad = None


def step_in_backward(parameter):
    parameter.register_post_accumulate_grad_hook(update)


def hooked_shards(door, way, hook):
    beside = Beside(door, partial(recomputed, way))
    for net in beside.nets:  # of one, the shards
        for parameter in net.parameters():
            if parameter.requires_grad:
                hook(parameter)
    return beside.steps()


class Encoder(nn.Module):
    """Has a method besides forward."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def encode(self, x):
        return torch.tanh(self.first(x))

    def forward(self, x):
        return self.second(self.encode(x))


def another_method(door, registered):
    beside = Beside(door, Encoder)
    if registered:
        gather_in(beside.net, "encode")
    x = beside.inputs()
    for model, own in ((beside.model, door.part(x)), (beside.plain, x)):
        loss_of(model.encode(own) + model(own)).backward()
    beside.step()
    return beside.verdict()


LOST = "CannotShard: a backward raised, and stage 3 may have lost gradients of the unit in"
tables.DOORS["one unit"] = tables.Stage3(partial(zero.shard, stage=3, units=()))


@pytest.mark.parametrize(
    "door, row, args, expected",
    [
        # memory that is given back while the unit computes, by a backward of its own
        ("one unit", two_steps, (partial(Penalised, 8, 8),), RIGHT),
        ("one unit", two_steps, (partial(BackwardInside, 8, 8),), RIGHT),
        # a compiler that traces the gathering ("Output 0 of T is a view")
        ("stage 3", two_steps, (compiled_deep,), RIGHT),
        # a unit that is met twice, because a compiled module passes attributes on
        ("stage 3", two_steps, (with_a_compiled_child,), RIGHT),
        # a list of parameters taken for a unit, which nobody calls; one that is lost
        ("stage 3", two_steps, (Prompted,), RIGHT),
        # a layer that computes with the parameters prefetched for the layer dropped before it
        ("stage 3 ahead", dropped_layers, (), RIGHT),
        # a unit that is filled, or freed, while it computes, because it was expected next
        ("stage 3 ahead", two_steps, (lambda: Repeated(*linears(8, 8, 4)),), RIGHT),
        # gradients of a broken backward that arrive in the next one
        ("stage 3 ahead", stopped_backward, (), RIGHT),
        ("stage 2 ahead", stopped_backward, (), RIGHT),
        # gradients of a unit, on their way, or of a hook's neighbours, that plain PyTorch keeps
        # (Landing.check left out, in forward or in a step, or blind to what zero_grad() forgot)
        ("stage 2 ahead", goes_on, (deeper, "backward", "step"), RIGHT),
        ("stage 3", goes_on, (hook_stops, "backward", "step"), LOST),
        ("stage 3 ahead", goes_on, (Stopping.of_three, "backward", "step"), LOST),
        ("stage 3", goes_on, (deeper, "backward", "step"), LOST),
        ("stage 3 ahead", goes_on, (deeper, "step"), LOST),
        ("stage 3 ahead", goes_on, (deeper, "zero_grad", "step", "backward", "step"), RIGHT),
        # what autograd adds to a gradient that has not come yet (no hooks in as_gradients)
        ("stage 3 ahead", penalty_afterwards, (), RIGHT),
        # `encode` with values of nobody; a unit freed when encode is called within forward
        (
            "one unit",
            another_method,
            (False,),
            "NotGathered: linear of first.weight [8, 8]: ",
        ),
        ("one unit", another_method, (True,), RIGHT),
        # hooks on shards that nobody calls (add_gradients without them)
        ("stage 3", hooked_shards, (reentrant, twice), RIGHT),
        ("stage 3 ahead", hooked_shards, (reentrant, step_in_backward), RIGHT),
        ("stage 3 offload", hooked_shards, (checkpoint_by_function, twice), RIGHT),
    ],
)
def test_modules_of_other_kinds(pair, door, row, args, expected):
    """Must catch: what is said at each."""
    check(pair, door, row, args, expected)


def updated_in_two_parts():
    """(calls of a step's hook, shards that wait for a gradient after backward, shards that are
    updated when it comes)."""
    model, calls, updated = linears(8, 8, 8, 8, bias=False), [], []

    class Noting(tables.LastMoment):
        def begin_reduce_scatter(self, tensors, group, share):
            mean = super().begin_reduce_scatter(tensors, group, share)
            wait = mean.wait
            mean.wait = lambda: [wait(), updated.append(changed())]
            return mean

    options = dict(stage=3, collectives=Noting(), prefetch=True, lr=0.1, momentum=0.9)
    _, optimizer = zero.shard(model, torch.optim.SGD, **options)
    optimizer.register_step_pre_hook(lambda *_: calls.append(1))
    before = [shard.detach().clone() for shard in model.parameters()]

    def changed():
        pairs = zip(model.parameters(), before)
        return [not torch.equal(shard, former) for shard, former in pairs]

    model(torch.randn(4, 8)).sum().backward()
    coming = [is_coming(shard.grad) for shard in model.parameters()]
    optimizer.step()
    (group,) = optimizer.param_groups
    assert all(changed()) and group["params"] == list(model.parameters())
    return len(calls), coming, updated[-1]


def test_the_last_gradients_are_used_last(pair):
    """Must catch: a backward that waits for them (drop flat.expect); a step that waits for them
    before it updates the others (drop late_last), or calls hooks twice (super().step())."""
    torch.optim.SGD([torch.zeros(1)], lr=0.1)  # has hooks in its step from now on
    for calls, coming, updated in pair.run(updated_in_two_parts):
        assert calls == 1
        assert coming == [True, False, False] and updated == [False, True, True]


def names_to_save():
    net = with_a_compiled_child()
    stage3.fully_shard(net, list(net))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return [name for flat in flats_of(net, optimizer) for name, _ in flat.parameters]


def test_a_compiled_child_is_saved_once(pair):
    """Must catch: a unit that is met twice."""
    names = ["0._orig_mod.weight", "0._orig_mod.bias", "1.weight", "1.bias"]
    assert answers(pair, names_to_save) == names


# --- a parameter that is not there ----------------------------------------------------------------


class Tied(nn.Module):
    """Tied by use, not by assignment."""

    def __init__(self):
        super().__init__()
        self.embedding, self.middle = nn.Embedding(11, 8), nn.Linear(8, 8)

    def forward(self, tokens):
        return F.linear(self.middle(self.embedding(tokens)), self.embedding.weight)


def what_can_be_read():
    weight = stage3.fully_shard(seeded(lambda: linears(8, 8, 8, bias=False)))[1].weight
    tied = stage3.fully_shard(seeded(Tied), [])
    return dict(
        within=list(tied(torch.arange(5)).shape),
        shape=(weight.shape, weight.dim(), weight.numel(), weight.dtype, weight.requires_grad),
        printed=repr(weight),
    )


def test_what_a_parameter_that_is_gone_says(pair):
    """A shape and a dtype can be read; the root's own weights are there for all of it.

    Must catch: a placeholder that refuses its shape."""
    found = answers(pair, what_can_be_read)
    assert found["within"] == [5, 11]
    assert found["shape"] == (torch.Size([8, 8]), 2, 64, torch.float64, True)
    assert found["printed"] == "Placeholder(shape=[8, 8], dtype=torch.float64)"


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


def test_an_average_of_weights(pair):
    """Must catch: a copy that computes with the original's unit."""
    assert answers(pair, averaged) <= ROUNDING


def loaded():
    model = stage3.fully_shard(seeded(lambda: linears(8, 2)))
    state = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    model.to("cpu").load_state_dict(state)
    return model(torch.ones(1, 8)).abs().max().item()


def test_what_leaves_the_shards_where_they_are(pair):
    """Must catch: a refusal of what is right; a state that reaches no shard."""
    assert answers(pair, loaded) == 0.0


# --- dtypes ---------------------------------------------------------------------------------------


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


# --- modules of other kinds, other methods, compilers ---------------------------------------------


def after_a_backward_within():
    model = stage3.fully_shard(linears(8, 2))
    with pytest.raises(RuntimeError, match="backward within"), unsharded(model):
        model(torch.ones(1, 8)).sum().backward()
    model(torch.ones(1, 8)).sum().backward()
    return [name for name, _ in model.named_parameters()]


def test_a_model_whose_unsharded_raised(pair):
    """Must catch: a model that stays open."""
    assert answers(pair, after_a_backward_within) == ["0.weight", "0.bias"]


# --- optimizers that look at more than an element -------------------------------------------------


def empty_group():
    """A step's sentence about groups by a rule that no shard meets."""
    model = seeded(lambda: linears(8, 8, 2))
    stage3.fully_shard(model, list(model))
    wide = [p for p in model.parameters() if p.shape == (8, 8)]
    optimizer = torch.optim.AdamW([dict(params=wide), dict(params=list(model.parameters()))])
    model(torch.ones(1, 8)).sum().backward()
    return said(optimizer.step)


def test_a_rule_that_no_shard_meets(pair):
    """Must catch: a rule that finds nothing without a word."""
    sentence = answers(pair, empty_group)
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


class ByRows(nn.Linear):
    def forward(self, x):
        return torch.func.vmap(lambda row: F.linear(row, self.weight, self.bias))(x)


def in_16_bits(kind):
    """The sentence of fully_shard, or of a step, about a model that computes in 16 bits."""
    model, x = nn.Sequential(nn.BatchNorm1d(4)), torch.ones(2, 4).bfloat16()
    if kind == "batch norm in its dtype":
        for name in ("running_mean", "running_var"):
            setattr(model[0], name, getattr(model[0], name).bfloat16())
    elif kind == "vmap inside":
        model = nn.Sequential(ByRows(4, 4))
    return said(lambda: stage3.fully_shard(model, compute_dtype=torch.bfloat16)(x).sum().backward())


def test_modules_in_16_bits(pair):
    """Must catch: a refusal of what is right; PyTorch's own words about two dtypes."""
    refused = answers(pair, in_16_bits, "batch norm")
    assert refused.startswith("CannotShard: rank 0: 0 is a BatchNorm1d with running statistics in")
    for kind in ("batch norm in its dtype", "vmap inside"):
        assert answers(pair, in_16_bits, kind) == "nothing, and None", kind


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


def after_replicas():
    model = seeded(lambda: linears(8, 2))
    DistributedDataParallel(model)
    return said(lambda: stage3.fully_shard(model) and None)


def test_hooks_of_replicas_that_are_gone(pair):
    """Must catch: hooks that are shardlab's own refused."""
    assert answers(pair, after_replicas) == "nothing, and None"
