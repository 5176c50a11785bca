"""Where stages 1 and 2 were wrong without a word: now the plain model's result, or one sentence.
More sentences are in test_zero_misuses.py.

Each case once returned a wrong number, or a sentence that named neither the thing nor the rule.
"""

import gc
import sys
from functools import partial

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD

from shardlab import zero
from shardlab.common.backward import NotOurGradient
from shardlab.data_parallel import DistributedDataParallel
from shardlab.gradient_clipping import clip_gradients
from shardlab.mixed_precision import MasterWeights
from shardlab.ranks import ranks
from shardlab.saving import save
from shardlab.tensor_parallel.hardened.apply import apply_tensor_parallel
from shardlab.tensor_parallel.hardened.plan import Around, Columns, Rows
from shardlab.zero import core_stage3
from shardlab.zero.hardened import fast_ring, stage1, stage2
from shardlab.zero.hardened.flat import Native, Ring
from shardlab.zero.hardened.full_parameters import unsharded
from shardlab.zero.hardened.offload import cpu_offload

cloudpickle.register_pickle_by_value(sys.modules[__name__])
STAGES = (stage1, stage2)


@pytest.fixture(scope="module")
def two():
    with ranks(2, device="cpu", announce=False) as world:
        yield world


def layers(*sizes):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])))


def own_input(features):
    """1, 1, ... on rank 0; 2, 2, ... on rank 1: the mean is 1.5."""
    return torch.full((1, features), 1.0 + dist.get_rank())


def said(work):
    """The sentence with which the work is refused, or its result."""
    try:
        return work()
    except (ValueError, NotOurGradient, TypeError) as error:
        return f"{type(error).__name__}: {error}"


# --- who averages ---------------------------------------------------------------------------------


def under_data_parallelism(module):
    net = layers(64, 64, 64)
    model = DistributedDataParallel(net)
    optimizer = module.ShardedOptimizer(model.parameters(), torch.optim.SGD, lr=1.0)

    def step():
        before = net[0].bias.detach().clone()
        model(own_input(64)).sum().backward()
        optimizer.step()
        return (before - net[0].bias).unique().numel() > 0

    def plain_step():
        plain = layers(64, 64, 64)
        inputs = [torch.full((1, 64), 1.0 + rank) for rank in range(2)]
        (sum(plain(x).sum() for x in inputs) / 2).backward()
        torch.optim.SGD(plain.parameters(), lr=1.0).step()
        return max((a - b).abs().max().item() for a, b in zip(net.parameters(), plain.parameters()))

    found = said(step)
    return found if isinstance(found, str) else plain_step()


def test_under_data_parallelism(two):
    """Stage 1 under it is right, as PyTorch's ZeroRedundancyOptimizer is; stage 2 is refused.

    Must catch: stage 2 takes gradients whose all-reduce is under way."""
    assert max(two.run(under_data_parallelism, stage1)) < 1e-5
    for sentence in two.run(under_data_parallelism, stage2):
        assert sentence.startswith("CannotReplicate: a newer ShardedOptimizer averages gradients")


# --- in which order -------------------------------------------------------------------------------


def cut_afterwards(net, how):
    """How a model is changed after an optimizer of its parameters was made; returns the model to
    call and what steps."""
    if how == "stage 3":
        return zero.shard(net, SGD, stage=3, lr=1.0)
    if how == "tensor parallelism":
        plan = {"0": Around(), "0.0": Columns(6), "0.1": Rows(6)}
        return apply_tensor_parallel(nn.Sequential(net), plan), None
    if how == "16 bits":
        return net.bfloat16(), None
    if how.startswith("stage"):
        return zero.shard(net, SGD, stage=int(how[6]), hardened="core" not in how, lr=1.0)
    if how == "copies":
        return net.bfloat16(), MasterWeights(net.parameters(), SGD, lr=1.0)


def stepped_after_a_cut(make, how):
    """The sentence of the first step of an optimizer that was made before the model was cut."""
    net = layers(4, 6, 3)
    for parameter in net.parameters() if how == "stage 1 of 16 bits" else ():
        parameter.data = parameter.data.bfloat16()
    former = make(net.parameters())
    model, _ = cut_afterwards(net, how)
    halved = how == "copies" or how.endswith("16 bits")
    inputs = torch.ones(1, 4) if how == "tensor parallelism" else own_input(4)
    model(inputs.to(torch.bfloat16 if halved else torch.float32)).sum().backward()
    return said(former.step)


MADE_BEFORE = "was made before"
TAKES = "of these two optimizers let that one step alone"


@pytest.mark.parametrize(
    "how, make, sentence",
    [
        ("stage 3", "plain", f"SGD {MADE_BEFORE} fully_shard: its parameter of shape [6, 4]"),
        ("stage 3", "of copies", f"MasterWeights {MADE_BEFORE} fully_shard: its parameter"),
        ("stage 3", "offloaded", f"SGDOffloaded {MADE_BEFORE} fully_shard: its parameter"),
        ("stage 3", "stage 2", f"ShardedOptimizer {MADE_BEFORE} fully_shard: its parameter"),
        ("tensor parallelism", "plain", f"SGD {MADE_BEFORE} apply_tensor_parallel: its parameter"),
        ("stage 1", "plain", f"gradient ShardedOptimizer takes: {TAKES}"),
        ("stage 2", "plain", f"gradient ShardedOptimizer takes: {TAKES}"),
        ("stage 1 of 16 bits", "of copies", f"gradient ShardedOptimizer takes: {TAKES}"),
        ("copies", "plain", f"gradient MasterWeights takes: {TAKES}"),
        ("stage 3 by the core", "plain", f"SGD {MADE_BEFORE} fully_shard: its parameter of shape"),
        ("stage 3 by the core", "stage 2", f"ShardedOptimizer {MADE_BEFORE} fully_shard: its"),
        ("stage 1 by the core", "plain", f"gradient ShardedStates takes: {TAKES}"),
        ("stage 2 by the core", "plain", f"gradient ShardedGradients takes: {TAKES}"),
        ("16 bits", "of copies", "became torch.bfloat16 after the optimizer was made"),
        ("16 bits", "stage 1", "a parameter was moved after the sharded optimizer was made"),
        ("16 bits", "plain", None),
    ],
)
def test_an_optimizer_that_was_made_before_the_cut(two, how, make, sentence):
    """It would step with parameters that the model no longer has, or that another one averages.

    Must catch: a step that moves nothing, or norms and biases only, without a word; a refusal of
    what is right."""
    makers = {
        "plain": partial(SGD, lr=1.0),
        "of copies": partial(MasterWeights, of=SGD, lr=1.0),
        "offloaded": partial(cpu_offload(SGD), lr=1.0),
        "stage 1": partial(stage1.ShardedOptimizer, optimizer_cls=SGD, lr=1.0),
        "stage 2": partial(stage2.ShardedOptimizer, optimizer_cls=SGD, lr=1.0),
    }
    for found in two.run(stepped_after_a_cut, makers[make], how):
        assert found is None if sentence is None else sentence in found, found


# --- gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize("collectives", [Ring(), Native(), fast_ring.Ring()])
def test_16_bits_do_not_overflow(two, collectives):
    """2 x 40,000 is more than fp16 has numbers for; their mean is not.

    Must catch: a sum that is divided after it was added."""

    def reduced(stage):
        layer = nn.Linear(1, 2, bias=False, dtype=torch.float16)
        options = dict(units=[layer]) if stage == 3 else {}
        _, optimizer = zero.shard(
            layer, torch.optim.SGD, stage=stage, collectives=collectives, lr=1.0, **options
        )
        layer(torch.full((1, 1), 40_000.0, dtype=torch.float16)).sum().backward()
        if stage == 1:
            optimizer.reduce_gradients()
        shards = [p for group in optimizer.param_groups for p in group["params"]]
        return [shard.grad.tolist() for shard in shards]

    for stage in (1, 2, 3):
        assert two.run(reduced, stage) == [[[[40_000.0]] if stage == 3 else [40_000.0]]] * 2, stage


def test_a_hook_that_changes_a_gradient(two):
    """Registered after the optimizer: it sees this rank's own gradient, before stage 2 takes it.

    Must catch: a hook that finds no gradient."""

    def masked(stage):
        net = layers(4, 2)
        before = net[0].weight.detach().clone()
        _, optimizer = zero.shard(net, torch.optim.SGD, stage=stage, lr=1.0)

        def mask(parameter):
            parameter.grad[0] = 0

        net[0].weight.register_post_accumulate_grad_hook(mask)
        optimizer.zero_grad()
        net(own_input(4)).sum().backward()
        optimizer.step()
        return (before - net[0].weight).unique(dim=1).flatten().tolist()

    for stage in (1, 2):
        assert two.run(masked, stage) == [pytest.approx([0.0, 1.5])] * 2, stage


# --- parameters -----------------------------------------------------------------------------------


@pytest.mark.parametrize("module", STAGES)
def test_unfrozen_later(two, module):
    """Must catch: a parameter that was given and never trains."""

    def step():
        net = layers(4, 3, 2)
        net[0].weight.requires_grad_(False)
        optimizer = module.ShardedOptimizer(net.parameters(), torch.optim.SGD, lr=0.1)
        net[0].weight.requires_grad_()
        net(own_input(4)).sum().backward()
        return said(optimizer.step)

    for sentence in two.run(step):
        assert "parameter 0 was frozen when the sharded optimizer was made, and is" in sentence


def test_frozen_parameters_and_buffers_of_any_strides(two):
    """And what is not given to the optimizer, through the one door.

    Must catch: the memory behind a strided tensor sent instead of its elements; values of each
    rank's own."""

    def handed_out(stage):
        torch.manual_seed(dist.get_rank())
        net = nn.Linear(3, 3)
        net.weight = nn.Parameter(torch.randn(3, 3).t(), requires_grad=False)
        net.register_buffer("part", torch.randn(4, 4)[:, :2])
        net.register_buffer("repeated", torch.randn(1).expand(200_000))
        zero.shard(net, torch.optim.SGD, stage=stage, lr=0.1)
        return net.weight.tolist(), net.part.tolist(), net.repeated.unique().tolist()

    for stage in (1, 2):
        first, second = two.run(handed_out, stage)
        assert first == second, stage


def test_what_has_no_order_and_what_is_no_leaf(two):
    """PyTorch makes a list of a bare set; the keys of a dictionary have an order.

    Must catch: values of one size swapped between parameters, because sets have another order on
    another rank; a tensor that is computed, taken for a parameter."""

    def tried():
        net = layers(3, 3, 3)
        every, head = set(net.parameters()), set(net[1].parameters())
        make = partial(stage1.ShardedOptimizer, optimizer_cls=SGD)
        return [
            *(
                said(partial(make, given))
                for given in (
                    every - head,
                    frozenset(every),
                    iter(every),
                    (p for p in every),
                    (p for p in (p for p in every) if p.requires_grad),
                    [dict(params=every)],
                    [dict(params=(p for p in every))],
                )
            ),
            said(lambda: make([net[0].weight * 2])),
            len(make(dict.fromkeys(net.parameters()).keys()).buckets),
            len(make({name: p for name, p in net.named_parameters()}.values()).buckets),
            len(make(p for p in net.parameters()).buckets),
        ]

    for *sets, computed, keys, values, generator in two.run(tried):
        assert all(each.startswith("TypeError: the parameters are a set") for each in sets), sets
        assert "is computed from other tensors: an optimizer takes leaves" in computed
        assert keys == values == generator == 1


# --- optimizers -----------------------------------------------------------------------------------


class ByLayer(torch.optim.Optimizer):
    """LARS in three lines: each tensor's step is as long as the tensor."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure=None):
        for p in (p for group in self.param_groups for p in group["params"]):
            p.sub_(p.grad * p.norm() / p.grad.norm(), alpha=self.param_groups[0]["lr"])


class MyAdafactor(torch.optim.Adafactor):
    pass


class DecaysMatrices(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        for p in (p for group in self.param_groups for p in group["params"]):
            if p.dim() > 1:
                p.mul_(0.9)
        super().step(closure)


class ByLayerLater(torch.optim.Optimizer):
    """Its second step has the length of the first gradient."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure=None):
        for p in (p for group in self.param_groups for p in group["params"]):
            before = self.state[p].setdefault("first", p.grad.clone())
            length = 1.0 if before.equal(p.grad) else before.norm()
            p.sub_(p.grad * length, alpha=self.param_groups[0]["lr"])


class Doubled(torch.optim.SGD):
    """Somebody's own, which looks at each element alone."""

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        super().step(closure)


def test_optimizers_that_look_at_shapes(two):
    """They are found by what they do.

    Must catch: a list of names, which a subclass passes; one step, after which momentum is not yet
    seen; a learning rate of 0, with which all are alike."""

    def tried(stage):
        found = {}
        looking = MyAdafactor, ByLayer, ByLayerLater, DecaysMatrices, torch.optim.LBFGS
        for cls in (*looking, Doubled):
            options = dict(lr=0.0) if cls is not torch.optim.LBFGS else {}
            made = said(lambda c=cls, o=options: zero.shard(layers(3, 3), c, stage=stage, **o))
            found[cls.__name__] = made if isinstance(made, str) else "taken"
        return found

    for stage in (1, 2, 3):
        for found in two.run(tried, stage):
            assert found.pop("Doubled") == "taken"
            assert "it does not step with plain gradients of a shard" in found.pop("LBFGS")
            for name, sentence in found.items():
                want = f"TypeError: optimizer_cls = {name}: it looks at more than one element"
                assert sentence.startswith(want), sentence


# --- clipping and loss scaling --------------------------------------------------------------------


def clipped(stage):
    net = layers(4, 2)
    _, optimizer = model_and_optimizer = zero.shard(net, torch.optim.SGD, stage=stage, lr=0.1)
    model_and_optimizer[0](own_input(4)).sum().backward()
    return clip_gradients(optimizer, 1e9).item()


def test_clipping_in_every_stage(two):
    """(8 x 1.5^2 + 2)^0.5. Must catch: what all ranks have counted once for each rank."""
    for stage in range(4):
        assert two.run(clipped, stage) == pytest.approx([20**0.5] * 2), stage


def half_replicated():
    """A sharded layer, and one that is replicated, in one optimizer."""
    sharded, whole = layers(4, 4), layers(4, 2)
    zero.shard(sharded, torch.optim.SGD, stage=3, lr=0.1)
    model = nn.Sequential(sharded, DistributedDataParallel(whole))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(own_input(4)).sum().backward()
    plain = nn.Sequential(layers(4, 4), layers(4, 2))
    (sum(plain(torch.full((1, 4), 1.0 + rank)).sum() for rank in range(2)) / 2).backward()
    return (
        clip_gradients(optimizer, 1e9).item(),
        nn.utils.clip_grad_norm_(plain.parameters(), 1e9).item(),
    )


def complex_clipped(stage, by_torch):
    net = nn.Module()
    net.weight = nn.Parameter(torch.zeros(3, dtype=torch.complex128))
    net.forward = lambda: (net.weight * torch.tensor([3, 4j, 0])).real.sum()
    options = dict(units=[]) if stage == 3 else {}
    model, optimizer = zero.shard(net, torch.optim.SGD, stage=stage, lr=0.1, **options)
    model().backward()
    if by_torch:
        return nn.utils.clip_grad_norm_(net.parameters(), 1e9).item()
    return clip_gradients(optimizer, 1e9).item()


def test_clipping_complex_gradients(two):
    """|(3, 4i, 0)| = 5. Must catch: a norm that is complex, which cannot be clamped."""
    for stage in range(4):
        assert two.run(complex_clipped, stage, False) == pytest.approx([5.0] * 2), stage
    for stage in (0, 3):
        assert two.run(complex_clipped, stage, True) == pytest.approx([5.0] * 2), stage


def test_clipping_where_a_part_is_replicated(two):
    """Must catch: squares of the replicated part added up over the ranks."""
    for norm, plain in two.run(half_replicated):
        assert norm == pytest.approx(plain)


def clipped_by_torch(stage, norm_type):
    """(norm, norm of what is left) by PyTorch's own clipping."""
    net = layers(4, 2).double()
    model, optimizer = zero.shard(net, torch.optim.SGD, stage=stage, lr=0.1)
    model(own_input(4).double()).sum().backward()

    def clip(max_norm):
        return nn.utils.clip_grad_norm_(net.parameters(), max_norm, norm_type).item()

    return said(lambda: [clip(2.0), clip(1e9)])


def test_clipping_by_torch(two):
    """Data parallelism and stage 3 are right, as FSDP2 is; stages 1 and 2 say what to call. Once
    their optimizer is gone, it is a plain model.

    Must catch: a norm of each rank's own; clipping that finds no gradients and returns 0."""
    gradients = torch.tensor([1.5] * 8 + [1.0] * 2, dtype=torch.float64)
    for norm_type in (2.0, 1.0, 3.0, float("inf")):
        norm = torch.linalg.vector_norm(gradients, norm_type).item()
        for stage in (0, 3):
            for found in two.run(clipped_by_torch, stage, norm_type):
                left = min(norm, 2.0)
                assert found == pytest.approx([norm, left], rel=1e-5), (stage, norm_type)
        for stage in (1, 2):
            for sentence in two.run(clipped_by_torch, stage, norm_type):
                assert sentence.startswith("CannotShard: torch.nn.utils.clip_grad_norm_ knows")

    def afterwards():
        net = layers(4, 2)
        _, optimizer = zero.shard(net, torch.optim.SGD, stage=1, lr=0.1)
        del optimizer
        gc.collect()
        net(own_input(4)).sum().backward()
        return nn.utils.clip_grad_norm_(net.parameters(), 1e9).item()

    first, second = two.run(afterwards)
    assert first < second  # each rank's own


def norm_by_torch(stage, masters=False):
    """The answers of get_total_norm for the gradients of a model's parameters, and for those that
    the optimizer updates."""
    a_cycle_with_a_taken_gradient()
    net = layers(4, 2).to(torch.float16 if masters else torch.float64)
    rule = dict(of=torch.optim.SGD) if masters else {}
    optimizer_cls = MasterWeights if masters else torch.optim.SGD
    model, optimizer = zero.shard(net, optimizer_cls, stage=stage, lr=0.1, **rule)
    said_before = said(lambda: norm_of(net.parameters()))  # of nothing
    model(own_input(4).to(net[0].weight.dtype)).sum().backward()
    if masters:
        optimizer.take_gradients()
    of_optimizer = optimizer.param_groups[0]["params"]
    return said_before, *(said(lambda p=p: norm_of(p)) for p in (net.parameters(), of_optimizer))


def a_cycle_with_a_taken_gradient():
    """An optimizer that nobody holds but itself, as a cell that runs again leaves one."""
    model, optimizer = zero.shard(layers(4, 2).double(), torch.optim.SGD, stage=2, lr=0.1)
    model(own_input(4).double()).sum().backward()
    optimizer.itself = optimizer


def norm_of(parameters):
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return nn.utils.get_total_norm(gradients).item()


def test_the_norm_of_gradients_by_torch():
    """On ranks of its own: PyTorch keeps the hooks of parameters, and with them what the core of
    stage 2 has taken, forever.

    Must catch: 0 in stage 2 and for fp32 copies, because the list is empty; a norm of gradients
    that are not yet averaged in stage 1; a refusal of an empty list where nothing was taken, or
    where the optimizer that took is gone but for a cycle."""
    norm = pytest.approx(20**0.5)
    ways = (0, False), (3, False), (1, False), (2, False), (0, True)
    with ranks(2, device="cpu", announce=False) as two:
        answers = [(*way, two.run(norm_by_torch, *way)) for way in ways]
    for stage, masters, of_ranks in answers:
        for nothing, found, by_optimizer in of_ranks:
            assert nothing == 0
            assert by_optimizer == (0.0 if stage == 1 else norm), stage
            if stage in (0, 3) and not masters:
                assert found == norm
            else:
                assert found.startswith("CannotShard: torch.nn.utils.get_total_norm of gradients")
                assert "averages or has taken: the norm of all is what gradient_clipping" in found


def given_a_gradient():
    """A weight after a gradient is put on it after backward."""
    net = layers(4, 2).double()
    model, optimizer = zero.shard(net, torch.optim.SGD, stage=1, lr=0.1)
    model(own_input(4).double()).sum().backward()
    net[0].weight.grad = torch.full_like(net[0].weight, 1.0 + dist.get_rank())
    optimizer.step()
    return net[0].weight[0, 0].item()


def test_a_gradient_that_a_script_gives(two):
    """Stage 1 averages what it finds, like the plain model with the mean gradient.

    Must catch: a refusal, as in stage 2, which has averaged already."""
    start = layers(4, 2)[0].weight[0, 0].item()
    assert two.run(given_a_gradient) == pytest.approx([start - 0.1 * 1.5] * 2)


def clipped_by_value(stage, some, dtype=torch.float64):
    """How far a step moves each parameter; or what it says."""
    net = layers(4, 3, 2).to(dtype)
    before = [parameter.detach().clone() for parameter in net.parameters()]
    with_masters = dtype is torch.float16
    rule, more = (
        (MasterWeights, dict(of=torch.optim.SGD)) if with_masters else (torch.optim.SGD, {})
    )
    model, optimizer = zero.shard(net, rule, stage=stage, lr=1.0, **more)
    for _ in range(2):
        (model(own_input(4).to(dtype)).sum() / 2).backward()
    parameters = list(model.parameters())

    def step():
        nn.utils.clip_grad_value_(parameters[:1] if some else parameters, 0.4)
        optimizer.step()
        with unsharded(net) if stage == 3 else torch.no_grad():
            return [(b - p).detach() for b, p in zip(before, net.parameters())]

    return said(step)


def test_clipping_each_value(two):
    """PyTorch's own clipping by value is the plain model's in every stage; of some parameters of a
    shard it is refused.

    Must catch: each rank's own gradients clipped before they are averaged; none clipped, because
    stage 2 has taken them, or because fp32 copies have; two microbatches averaged twice; a shard
    with some parameters that are not to be clipped."""
    plain = layers(4, 3, 2).double()
    inputs = [torch.full((1, 4), 1.0 + rank, dtype=torch.float64) for rank in range(2)]
    (sum(plain(x).sum() for x in inputs) / 2).backward()
    want = [parameter.grad.clamp(-0.4, 0.4) for parameter in plain.parameters()]
    assert any((w.abs() < 0.4).any() for w in want) and any((w.abs() == 0.4).any() for w in want)
    for stage in range(4):
        for found in two.run(clipped_by_value, stage, False):
            assert all(map(partial(torch.allclose, rtol=1e-12), found, want)), stage
    for stage in (1, 2):
        for found in two.run(clipped_by_value, stage, False, torch.float16):
            assert all(torch.allclose(f.double(), w, atol=2e-3) for f, w in zip(found, want)), stage
        for sentence in two.run(clipped_by_value, stage, True):
            assert sentence.startswith(
                "CannotShard: torch.nn.utils.clip_grad_value_ of 1 of 4 parameters whose gradients"
            )


def scaled(stage, unscaled_first, **options):
    """(weights after a step that meets an infinity on rank 0 and one that does not, scales, norms)
    with PyTorch's own scaler."""
    torch.manual_seed(0)
    net = nn.Linear(4, 1, bias=False).double()  # x[0, 0] reaches rank 0's shard alone
    model, optimizer = zero.shard(net, torch.optim.SGD, stage=stage, lr=1.0, **options)
    scaler, seen = torch.amp.GradScaler("cpu", init_scale=1024.0), []
    for infinite in (True, False):
        factor = float("inf") if infinite and dist.get_rank() == 0 else 1.0
        x = own_input(4).double()
        x[0, 0] = x[0, 0] * factor
        scaler.scale(model(x).sum()).backward()
        norm = None
        if unscaled_first:
            scaler.unscale_(optimizer)
            norm = clip_gradients(optimizer, 1e9).item()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        seen.append((scaler.get_scale(), norm))
    with unsharded(net) if stage == 3 else torch.no_grad():
        return net.weight.detach().clone(), seen


@pytest.mark.parametrize("unscaled_first", [True, False])
def test_loss_scaling(two, unscaled_first):
    """An infinity in one rank's shard: no rank steps, and the scales stay alike, with PyTorch's
    scaler, as with FSDP2; also where optimizer states are on the host, or one kernel steps.

    Must catch: a rank that steps alone; scales that differ from now on; gradients left scaled."""
    torch.manual_seed(0)
    want = nn.Linear(4, 1, bias=False).double().weight.detach() - 1.5
    ways = [(stage, {}) for stage in range(4)]
    ways += [(1, dict(offload=True)), (2, dict(offload=True)), (3, dict(fused=True))]
    for stage, options in ways:
        for weight, seen in two.run(scaled, stage, unscaled_first, **options):
            assert torch.allclose(weight, want), (stage, options)
            assert [scale for scale, _ in seen] == [512.0, 512.0]
            if unscaled_first:
                assert seen[1][1] == pytest.approx((4 * 1.5**2) ** 0.5)


def loaded_between(stage, kind):
    """The weights after a step, a state that is loaded into the model, and a step at a learning
    rate of 0."""
    net = layers(4, 3).to(torch.float16 if kind == "masters" else torch.float32)
    state = {name: torch.full_like(value, 0.5) for name, value in net.state_dict().items()}
    if kind == "masters":
        model, optimizer = zero.shard(net, MasterWeights, stage=stage, of=torch.optim.SGD, lr=1.0)
    elif stage:
        model, optimizer = zero.shard(net, torch.optim.SGD, stage=stage, offload=True, lr=1.0)
    else:
        model = DistributedDataParallel(net)
        optimizer = cpu_offload(torch.optim.SGD)(model.parameters(), lr=1.0)
    for rate in (1.0, 0.0):
        optimizer.zero_grad()
        model(own_input(4).to(net[0].weight.dtype)).sum().backward()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        if rate:
            model.load_state_dict(state)
    return [parameter.unique().tolist() for parameter in net.parameters()]


@pytest.mark.parametrize("kind", ["masters", "on the host"])
def test_weights_that_are_loaded_between_steps(two, kind):
    """Where an optimizer has copies of them: in fp32, on the host.

    Must catch: a step that puts the copies of before into the model again."""
    for stage in range(3):
        assert two.run(loaded_between, stage, kind) == [[[0.5], [0.5]]] * 2, stage


def by_the_core(stage):
    """(whose classes the door gives, how far two steps of SGD end from the plain model's)"""
    n, me = dist.get_world_size(), dist.get_rank()
    torch.set_default_dtype(torch.float64)
    plain, net = layers(4, 5, 3), layers(4, 5, 3)
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=1.0 + me)
    if me == 0:
        plain.load_state_dict(net.state_dict())
    for tensor in plain.state_dict().values():
        dist.broadcast(tensor, 0)
    own = {} if stage == 3 else dict(bucket_bytes=100)
    model, optimizer = zero.shard(net, torch.optim.SGD, stage=stage, hardened=False, lr=0.1, **own)
    plain_optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for step in range(2):
        inputs = torch.randn(n, 2, 4, generator=torch.Generator().manual_seed(step))
        for each in (optimizer, plain_optimizer):
            each.zero_grad()
        model(inputs[me]).square().mean().backward()
        plain(inputs.flatten(0, 1)).square().mean().backward()
        for each in (optimizer, plain_optimizer):
            each.step()
    found = core_stage3.whole_parameters(net) if stage == 3 else dict(net.named_parameters())
    torch.set_default_dtype(torch.float32)
    whose = {0: model, 3: getattr(net, "zero_unit", net[-1].__dict__.get("zero_unit"))}
    far = max((found[name] - p).abs().max().item() for name, p in plain.named_parameters())
    return type(whose.get(stage, optimizer)).__module__, far


@pytest.mark.parametrize("stage", range(4))
def test_the_door_to_the_core(two, stage):
    """Must catch: a door that gives the hardened class for hardened=False; ranks that begin with
    values of their own; a model of shards that is sharded once more; a step of the former of two
    optimizers, which moves nothing."""

    def twice():
        net = layers(3, 2)
        zero.shard(net, torch.optim.SGD, stage=3, lr=1.0)
        return said(lambda: zero.shard(net, torch.optim.SGD, stage=stage, hardened=False, lr=1.0))

    def by_the_former():
        net = layers(3, 2)
        own = dict(stage=stage, hardened=False, lr=1.0)
        _, former = zero.shard(net, torch.optim.SGD, **own)
        again = said(lambda: zero.shard(net, torch.optim.SGD, **own))
        net(torch.ones(1, 3)).sum().backward()
        return said(former.step) if stage == 1 else again

    for sentence in two.run(twice):
        assert sentence.startswith("CannotShard: 0.weight is in part"), sentence
    why = ("averaged already", "a parameter was moved after", "averaged already", "0.shard_0 is in")
    for sentence in two.run(by_the_former):
        assert why[stage] in sentence, sentence
    module = ("data_parallel.core", "zero.core", "zero.core", "zero.core_stage3")[stage]
    for whose, far in two.run(by_the_core, stage):
        assert whose == f"shardlab.{module}" and far < 1e-12


def around_the_core(stage):
    """The sentences of what knows hardened classes alone; in stage 3 how far the norm is from the
    plain model's, by this book's clipping and by PyTorch's, and the scale after an infinity."""
    net = layers(3, 2)
    model, optimizer = zero.shard(net, torch.optim.SGD, stage=stage, hardened=False, lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    scaler.scale(model(torch.ones(1, 3)).sum()).backward()
    if stage < 3:
        return [
            said(lambda: clip_gradients(optimizer, 1.0)),
            said(lambda: nn.utils.clip_grad_norm_(net.parameters(), 1.0)),
            said(lambda: nn.utils.clip_grad_value_(net.parameters(), 1.0)),
            said(lambda: scaler.step(optimizer)),
            said(lambda: save("/nowhere", model, optimizer, 1)),
        ]
    whole = 64 * 8**0.5
    norms = [clip_gradients(optimizer, 1e9), nn.utils.clip_grad_norm_(net.parameters(), 1e9)]
    if dist.get_rank() == 1:
        next(net.parameters()).grad[0] = torch.inf
    scaler.step(optimizer)
    scaler.update()
    return [*(abs(norm.item() - whole) < 1e-3 for norm in norms), scaler.get_scale()]


def test_what_the_core_leaves_out(two):
    """Must catch: an AttributeError; a norm of this rank's gradients alone; a save in chunks that
    are cut otherwise; a rank that steps alone."""
    assert two.run(around_the_core, 3) == [[True, True, 32.0]] * 2
    for stage in (1, 2):
        for found in two.run(around_the_core, stage):
            for sentence in found:
                assert sentence.startswith("CannotShard: the gradients are sharded by the core of")


def test_the_door(two):
    """Must catch: an option that is taken and ignored."""

    def tried():
        make = [
            dict(stage=4),
            dict(stage=1, compute_dtype=torch.bfloat16),
            dict(stage=3, bucket_bytes=100),
            dict(stage=0, offload=True),
            dict(stage=1, offload=True, hardened=False),
        ]
        empty = [said(lambda s=s: zero.shard(nn.ReLU(), SGD, stage=s)) for s in (1, 3)]
        assert empty == ["CannotShard: ReLU has no parameters: there is nothing to shard."] * 2
        return [said(lambda o=o: zero.shard(layers(2, 2), torch.optim.SGD, **o)) for o in make]

    for found in two.run(tried):
        assert found == [
            "CannotShard: stage = 4: there are 0, 1, 2 and 3.",
            "CannotShard: compute_dtype: stage 1 has bucket_bytes, collectives, offload.",
            "CannotShard: bucket_bytes: stage 3 has collectives, compute_dtype, device, offload,"
            " units.",
            "CannotShard: offload: stage 0 has bucket_bytes.",
            "CannotShard: offload: the core of stage 1 has bucket_bytes.",
        ]
