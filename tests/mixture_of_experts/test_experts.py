"""A mixture of experts beside loops over tokens, and on ranks beside one process. Sums are made in
another order than in one process, hence 1e-12 of the largest element; float64 throughout, with
random biases."""

import copy
import math
from fractions import Fraction
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from drawn import drawn
from published import PUBLISHED
from refusals import answer_of, begins
from solved import Given
from told import sections
from torch import nn

from coursekit.formulas import parameters, quantities
from coursekit.planner.model_config import read_config
from coursekit.topics.data_parallelism.ladder import Bucketed  # noqa: F401 (told.md names it)
from ranklab.measure.communication import CommunicationLog
from shardlab import zero  # noqa: F401 (told.md names it)
from shardlab.experts.core import (
    Experts,
    MixtureOfExperts,
    Router,
    groups_are_right,
    mixtures,
    move_biases,
)
from shardlab.experts.core_parallel import ExpertParallel, average_gradients, expert_parallel
from shardlab.experts.hardened import beside
from shardlab.experts.hardened.apply import apply_expert_parallel
from shardlab.gpt import GPT, GPTConfig, make_mlp, next_token_loss
from shardlab.mesh import Mesh
from shardlab.recompute.core import checkpoint_by_function

SIZES = dict(layers=2, hidden=12, heads=2, feed_forward=20, vocabulary=31, max_sequence=9)
LLAMA = dict(learned_positions=0, biases=0, gated_mlp=1, tied_head=0)
KINDS = {  # sizes, settings of routers, capacity
    "top 2": (dict(experts=12, experts_per_token=2), {}, None),
    "top 1, shared": (dict(LLAMA, experts=12, experts_per_token=1, shared_experts=2), {}, None),
    "sigmoid, losses, bias": (
        dict(LLAMA, experts=12, experts_per_token=3, shared_experts=1),
        dict(sigmoid=True, balance=0.3, z=0.2, bias_step=0.5),
        None,
    ),
    "capacity": (dict(experts=12, experts_per_token=2), dict(z=0.3), 1.0),
    "all to two experts": (dict(experts=12, experts_per_token=2), dict(bias_step=9.0), None),
}


def model_of(kind, **changes):
    sizes, settings, capacity = KINDS[kind]
    torch.manual_seed(0)
    model = GPT(GPTConfig(**{**SIZES, **sizes, **changes})).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.4)
    for layer in mixtures(model):
        layer.capacity = capacity
        vars(layer.router).update(settings)
        layer.router.moves += torch.randint(-2, 3, layer.router.moves.shape)
        if kind == "all to two experts":  # of one rank: the others' get no row
            layer.router.moves.copy_((torch.arange(12) < 2).long())
    return model


def batch_of(ranks, sequences=2):
    tokens = torch.randint(
        31, (2, ranks * sequences, 9), generator=torch.Generator().manual_seed(1)
    )
    return tokens


def gradients(model):
    return {name: p.grad for name, p in model.named_parameters()}


def assert_same(found, right, where=""):
    assert found.shape == right.shape, where
    scale = right.abs().max().clamp(min=1e-6)
    assert (found - right).abs().max() <= 1e-12 * scale, where


def layer_of(hidden=8, experts=6, per_token=2, inner=16, gated=True, biases=True, shared=None):
    def layer():
        mlps = Experts(experts, hidden, inner, gated, biases)
        return MixtureOfExperts(Router(hidden, experts, per_token), mlps, shared).double()

    return drawn(layer)


def token_by_token(layer, x):
    """The layer as a loop over tokens, with the bias that chooses and the capacity."""
    router, experts, taken, outputs = layer.router, layer.experts, {}, []
    most = None
    if layer.capacity:
        most = math.ceil(layer.capacity * len(x) * router.per_token / len(router.weight))
    for token in x:
        logits = router.weight @ token
        scores = logits.sigmoid() if router.sigmoid else logits.softmax(0)
        chosen = (scores + router.bias_step * router.moves).topk(router.per_token).indices.tolist()
        divisor = sum(scores[k] for k in chosen) if len(chosen) > 1 else 1
        y = torch.zeros_like(token) if layer.shared is None else layer.shared(token)
        for k in chosen:
            taken[k] = taken.get(k, 0) + 1
            if most is None or taken[k] <= most:
                up = token @ experts.up[k] + experts.up_bias[k]
                inner = F.silu(token @ experts.gate[k] + experts.gate_bias[k]) * up
                made = inner @ experts.down[k] + experts.down_bias[k]
                y = y + scores[k] / divisor * made
        outputs.append(y)
    return torch.stack(outputs)


SETTINGS = [
    dict(),
    dict(sigmoid=True, bias_step=0.2),
    dict(per_token=1),
    dict(capacity=0.7),
    dict(shared=True, capacity=1.5, sigmoid=True),
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_layer_is_a_loop_over_tokens(settings):
    """Must catch: the bias folded into the gates; gates that are not renormalised, or are for one
    expert; a row that comes back to another token; the last rows of an expert dropped first; a
    dropped row that keeps its gate."""
    shared = nn.Linear(8, 8) if settings.get("shared") else None
    layer = layer_of(per_token=settings.get("per_token", 2), shared=shared)
    layer.capacity = settings.get("capacity")
    vars(layer.router).update({k: v for k, v in settings.items() if k in ("sigmoid", "bias_step")})
    layer.router.moves += torch.arange(6) - 3
    x = torch.randn(11, 8, dtype=torch.float64, requires_grad=True)
    right = token_by_token(layer, x)
    up, given = torch.randn_like(right), [x, *layer.parameters()]
    wanted = torch.autograd.grad(right, given, up, allow_unused=True)
    for found, want in zip(torch.autograd.grad(layer(x), given, up), wanted):
        assert_same(found, torch.zeros_like(found) if want is None else want)


def test_capacity_drops_the_surplus():
    """Must catch: rows that are dropped uncounted; a capacity of tokens instead of rows; 1.1 x 100
    / 10 rows rounded up to 12, as floats are."""
    layer, x = layer_of(experts=10), torch.randn(50, 8, dtype=torch.float64)
    _, _, counts = layer.router(x)
    assert 12 in counts
    for capacity in ("0.25", "1.0", "1.1", "1.33", "10.0"):
        layer.capacity = float(capacity)
        layer(x)
        most = math.ceil(Fraction(capacity) * 100 / 10)
        assert layer.dropped == (counts - most).clamp(min=0).sum()
    assert layer.dropped == 0


@pytest.mark.parametrize("capacity", [0, -1.0, math.nan, math.inf])
def test_a_capacity_that_cannot_be(capacity):
    """Must catch: an error of indexing or of a size instead of a sentence."""
    layer = layer_of()
    layer.capacity = capacity
    with pytest.raises(ValueError, match="it must be a finite number above 0, or None"):
        layer(torch.randn(4, 8, dtype=torch.float64))


class Asked(nn.Module):
    """Counts how often a router asks for the counts of all ranks."""

    times = 0

    def forward(self, counts):
        self.times += 1
        return counts


def test_only_a_balance_loss_in_training_asks_other_ranks():
    """Must catch: an evaluation of one rank that waits for the others; a z-loss that asks; a loss
    that a checkpoint, whose first run records nothing, leaves out."""
    layer, x = layer_of(), torch.randn(9, 8, dtype=torch.float64)
    router, router.total = layer.router, Asked()
    router.z = 0.3
    layer(x).sum().backward()
    router.balance = 0.2
    with torch.no_grad():
        layer(x)
    assert router.total.times == 0
    layer.zero_grad()
    layer(x).sum().backward()
    assert router.total.times == 1
    right = router.weight.grad.clone()
    layer.zero_grad()
    checkpoint_by_function(layer, x).sum().backward()
    assert router.total.times == 2 and torch.equal(router.weight.grad, right)


def spread(load):
    return (load.max() / load.double().mean()).item()


def skewed(tokens=512):
    """Tokens that an untrained router sends to few experts."""
    draw = torch.Generator().manual_seed(1)
    return torch.randn(tokens, 8, generator=draw, dtype=torch.float64) * 0.3 + 1


@pytest.mark.parametrize("way", ["bias", "balance"])
def test_loads_become_even(way):
    """Must catch: a bias that moves towards the load; a balance loss with its sign changed, of
    counts alone, or of scores that do not add up to 1."""
    layer, x = layer_of(), skewed()
    router, optimizer = layer.router, torch.optim.SGD(layer.router.parameters(), lr=0.5)
    router.bias_step = 0.003 * (way == "bias")
    router.balance = 0.1 * (way == "balance")
    spreads = []
    for _ in range(150):
        gates, _, counts = router(x)
        (gates.sum() * 0).backward()
        spreads.append(spread(counts))
        if way == "balance":
            optimizer.step()
        optimizer.zero_grad()
        move_biases(layer)
    assert spreads[0] > 2 and spreads[-1] < 1.3


def test_loads_are_those_of_training():
    """Must catch: rows counted in forward, so that an evaluation moves the bias; a load that is not
    added up over microbatches; one that goes on after a move."""
    layer, x = layer_of(), torch.randn(9, 8, dtype=torch.float64)
    with torch.no_grad():
        layer(x)
    layer.eval()(x)
    assert layer.router.load.sum() == 0
    for _ in range(2):
        layer(x).sum().backward()
    assert layer.router.load.sum() == 2 * 9 * 2
    move_biases(layer)
    assert layer.router.load.sum() == 0 and layer.router.moves.abs().sum() > 0
    assert torch.equal(copy.deepcopy(layer).bfloat16().router.moves, layer.router.moves)


@pytest.mark.parametrize("capacity", [None, 6.0])
def test_16_bits_and_autocast(capacity):
    """bf16 has 2^-8 of a number, and PyTorch's grouped product takes it; autocast is fp32 outside
    of products. Must catch: a router in 16 bits; a product of two dtypes; a grouped product of
    another expert's weight."""
    layer, x = layer_of(hidden=16, inner=32).float(), torch.randn(33, 16)
    layer.capacity = capacity
    right = layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = layer(x)
        assert layer.router(x)[0].dtype is torch.float32
    assert found.dtype is torch.float32
    halves = copy.deepcopy(layer).bfloat16()
    halves.router.float()  # choices as in fp32
    for one in (found, halves(x.bfloat16()).float()):
        assert (one - right).norm() <= 0.02 * right.norm()
        layer.zero_grad()
    halves(x.bfloat16()).sum().backward()
    assert halves.experts.up.grad.isfinite().all()


# --- published models -----------------------------------------------------------------------------

TYPES = ("mixtral", "qwen3_moe", "gpt_oss", "llama4_text", "deepseek_v2", "deepseek_v3")
MODELS = {
    f"{one['config']['model_type']} {one['parameters'] // 10**9}B": one
    for one in PUBLISHED.values()
    if one["config"]["model_type"] in TYPES
}


def test_eight_published_models_are_here():
    """Must catch: a model that is taken out of the list below; a kind of which none is left."""
    assert len(MODELS) >= 8 and {one["config"]["model_type"] for one in MODELS.values()} == {*TYPES}


@pytest.mark.parametrize("name", MODELS)
def test_published_models_of_experts(name):
    """Experts on the meta device, the rest by formulas. Must catch: a router without a row for each
    expert; shared experts of another width; experts without biases in gpt-oss; experts that no
    token uses counted as active."""
    sizes = read_config(MODELS[name]["config"])
    biases, shared = sizes.get("biases", 0), sizes.get("shared_feed_forward", 0)
    same = dict(hidden=sizes["hidden"], gated_mlp=1, feed_forward=sizes["feed_forward"])
    experts = {k: sizes[k] for k in ("experts", "experts_per_token")}
    config = GPTConfig(
        **same, **experts, biases=biases, shared_experts=shared // sizes["feed_forward"], heads=1
    )
    with torch.device("meta"):
        layer = make_mlp(config)
    built = sum(p.numel() for p in layer.parameters())
    skipped = sum(p.numel() for p in layer.experts.parameters())
    skipped -= skipped // config.experts * config.experts_per_token
    layers = sizes["layers"] - sizes.get("dense_layers", 0)
    found = Given(**sizes)
    rest = found.parameters - layers * found.layer_mlp_parameters
    assert built == found.layer_mlp_parameters
    assert rest + layers * built + MODELS[name].get("left_out", 0) == MODELS[name]["parameters"]
    assert rest + layers * (built - skipped) == found.active_parameters


def test_mixtral_is_a_gpt_of_this_book():
    """Must catch: a preset that GPTConfig does not take; parameters that no formula counts."""
    config = GPTConfig(**quantities(model="Mixtral 8x7B"))
    with torch.device("meta"):
        model = GPT(config)
    counted = sum(p.numel() for p in model.parameters())
    assert counted == 46_702_792_704 == parameters(**config.quantities())


# --- on ranks -------------------------------------------------------------------------------------


def in_one_process(kind, ranks):
    """The whole batch at once; under a capacity each rank's part, because each rank drops."""
    model, outputs = model_of(kind), []
    parts = 1 if KINDS[kind][2] is None else ranks
    for layer in mixtures(model):
        layer.router.loss_scale = 1 / parts
    for inputs, targets in zip(*(x.chunk(parts) for x in batch_of(ranks))):
        output = model(inputs)
        (next_token_loss(output, targets) / parts).backward()
        outputs += output.detach().chunk(ranks // parts)
    loads = [layer.router.load.clone() for layer in mixtures(model)]
    move_biases(model)
    moves = [layer.router.moves for layer in mixtures(model)]
    return outputs, gradients(model), loads, moves


def beside_shared_experts(model):
    """A copy, whose rows travel while its shared experts compute."""
    n = dist.get_world_size()
    return copy.deepcopy(apply_expert_parallel(model, Mesh(dp=n).experts(n), overlap=True))


def on_a_rank(kind, divided):
    torch.set_num_threads(1)
    n, me = dist.get_world_size(), dist.get_rank()
    model = divided(model_of(kind))
    inputs, targets = (x.chunk(n)[me] for x in batch_of(n))
    output = model(inputs)
    next_token_loss(output, targets).backward()
    average_gradients(model, replicas=Mesh(dp=n).tp.group)  # of this rank alone
    loads = [layer.router.total(layer.router.load) for layer in mixtures(model)]
    move_biases(model)
    moves = [layer.router.moves for layer in mixtures(model)]
    return output.detach(), gradients(model), loads, moves


SHARED = [kind for kind, (sizes, *_) in KINDS.items() if "shared_experts" in sizes]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "kind, divided",
    [
        *((kind, expert_parallel) for kind in KINDS),
        *((kind, beside_shared_experts) for kind in SHARED),
    ],
)
@pytest.mark.parametrize("n", [2, 3, 4])
def test_parity(worlds, n, kind, divided):
    """Must catch: experts averaged over all ranks, or not divided by their degree; a balance loss
    of a rank's own counts; a choosing bias that gets into the gates; rows that come back in the
    order of ranks; a loss that a rank joins as a sum. Beside shared experts: rows that are read
    before they have come; gradients that go back with the sizes of the way there; a copy that
    computes the original's experts."""
    outputs, right, loads, moves = in_one_process(kind, n)
    found_on_ranks = worlds(n).run(on_a_rank, kind, divided)
    for rank, (output, found, own_loads, own_moves) in enumerate(found_on_ranks):
        assert_same(output, outputs[rank], "output")
        assert all(map(torch.equal, own_loads, loads))
        assert all(map(torch.equal, own_moves, moves))
        for name, gradient in found.items():
            want = right[name]
            if "experts." in name:
                want = want.chunk(n)[rank]
            assert_same(gradient, want, name)


@pytest.mark.parametrize("capability, right", [((9, 0), True), ((10, 0), False), ((10, 3), False)])
def test_gradients_of_experts_without_rows(monkeypatch, capability, right):
    """Must catch: a product of groups on Blackwell, where experts without rows get gradients."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    right = right and hasattr(F, "grouped_mm")
    assert groups_are_right(torch.device("cuda", 0)) == right


def by_ddp(model):
    return nn.parallel.DistributedDataParallel(model), gradients


def by_fsdp(model):
    from torch.distributed.fsdp import FullyShardedDataParallel

    GPTConfig(**SIZES, experts=2, experts_per_token=1)  # any model after the import
    net = FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))

    def whole(model):
        with FullyShardedDataParallel.summon_full_params(net, with_grads=True):
            return {name: p.grad.clone() for name, p in model.named_parameters()}

    return net, whole


def by_fully_shard(model, *sizes):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    GPTConfig(**SIZES, experts=2, experts_per_token=1)
    sizes = sizes or (dist.get_world_size(),)
    names = ("nodes", "ranks")[: len(sizes)]
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
    for unit in [*model.blocks, model]:
        fully_shard(unit, mesh=mesh)
    return model, lambda model: {name: g.full_tensor() for name, g in gradients(model).items()}


def in_nodes(model):
    return by_fully_shard(model, 2, 2)


def replicas_of_torch(kind, by):
    torch.set_num_threads(1)
    n, me = dist.get_world_size(), dist.get_rank()
    model = model_of(kind)
    replica, whole = by(model)
    for layer in mixtures(model):
        layer.router.loss_scale = 1 / 2
    inputs, targets = (x.chunk(n)[me] for x in batch_of(n))
    for _ in range(2):  # two microbatches of the same tokens
        (next_token_loss(replica(inputs), targets) / 2).backward()
    loads = [layer.router.total(layer.router.load) for layer in mixtures(model)]
    move_biases(model)
    return whole(model), loads, [layer.router.moves for layer in mixtures(model)]


@pytest.mark.parametrize("n, by", [(3, by_ddp), (2, by_fsdp), (3, by_fully_shard), (4, in_nodes)])
def test_replicas_of_torch_count_alike(worlds, n, by):
    """Must catch: routers under PyTorch's replicas or shards that balance by a rank's own rows;
    loads of rank 0 that are handed out and counted once for each rank."""
    kind = "sigmoid, losses, bias"
    _, right, loads, moves = in_one_process(kind, n)
    for found, own_loads, own_moves in worlds(n).run(replicas_of_torch, kind, by):
        assert all(torch.equal(own, 2 * load) for own, load in zip(own_loads, loads))
        assert all(map(torch.equal, own_moves, moves))
        for name, gradient in found.items():
            assert_same(gradient, right[name], name)


def unequal_tokens(capacity):
    model = model_of("top 2")
    for layer in mixtures(model):
        layer.capacity = capacity
    apply_expert_parallel(model, Mesh(dp=3).experts(3))
    inputs = batch_of(1)[0][:, : 9 - 3 * dist.get_rank()]  # 3, 2 and 1 rows for each expert
    try:
        model(inputs).sum().backward()
    except ValueError as refused:
        return f"{type(refused).__name__}: {refused}"
    return "trained"


@pytest.mark.parametrize("capacity, told", [(1.0, "CannotDivide: rows of"), (None, "trained")])
def test_ranks_with_unequal_tokens(worlds, capacity, told):
    """Must catch: ranks that wait for messages of a size that no one sends."""
    found = worlds(3).run(unequal_tokens, capacity, limit_seconds=60)
    assert all(said.startswith(told) for said in found)


def trips_of_a_step(kind):
    """How many trips there were, and whether they hold something after forward, and after
    backward."""
    torch.set_num_threads(1)
    n, trips = dist.get_world_size(), []

    class Remembered(beside.Trip):
        back = None

        def __init__(self, *way):
            super().__init__(*way)
            trips.append(self)

    held = lambda: any(one is not None for t in trips for one in (t.work, t.leaving, t.back))
    model = apply_expert_parallel(model_of(kind), Mesh(dp=n).experts(n), overlap=True)
    inputs, targets = (x.chunk(n)[dist.get_rank()] for x in batch_of(n))
    with mock.patch.object(beside, "Trip", Remembered):
        loss = next_token_loss(model(inputs), targets)
    after_forward = held()
    loss.backward()
    return len(trips), after_forward, held()


def test_trips_hold_nothing_when_they_are_over(worlds):
    """Must catch: rows that came and live until backward; gradients that live after it."""
    assert worlds(2).run(trips_of_a_step, "top 1, shared") == [(2, False, False)] * 2


def dtypes_under_autocast(overlap):
    torch.set_num_threads(1)
    n = dist.get_world_size()
    model = model_of("top 1, shared").float()
    model = apply_expert_parallel(model, Mesh(dp=n).experts(n), overlap=overlap)
    inputs, targets = (x.chunk(n)[dist.get_rank()] for x in batch_of(n))
    with CommunicationLog() as log:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = next_token_loss(model(inputs), targets)
        loss.backward()
    return [m.dtype for m in log.messages if m.operation == "all_to_all"]


@pytest.mark.parametrize("overlap", [False, True])
def test_rows_travel_in_autocasts_dtype(worlds, overlap):
    """Two layers, there and back, forward and backward. Must catch: rows that travel in fp32 and
    are made short afterwards."""
    for dtypes in worlds(2).run(dtypes_under_autocast, overlap):
        assert sorted(dtypes) == ["bfloat16"] * 8 + ["int64"] * 2


class Unchanged(ExpertParallel):
    """Rows go to their experts and back, and nothing is computed."""

    def local(self, rows, counts):
        return rows


def sent_and_back(seed, capacity):
    torch.manual_seed(seed + 100 * dist.get_rank())
    layer = layer_of(experts=12, per_token=3)
    nn.init.normal_(layer.router.weight, std=3)
    layer.experts = Unchanged(layer.experts)
    layer.capacity = capacity
    x = torch.randn(2, 3 + dist.get_rank() * (capacity is None), 8, dtype=torch.float64)
    x.requires_grad_()
    y = layer(x)
    (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
    nothing = layer(x[:0]) if capacity is None else x[:0]
    return x.detach(), y.detach(), gradient, nothing.shape


@pytest.mark.parametrize("capacity", [None, 12.0])
def test_tokens_in_are_tokens_out(worlds, capacity):
    """Must catch: sizes of another rank, also of one without tokens; an order of rows that is not
    undone; a factor that stays on the way back of gradients."""
    for seed in range(3):
        for x, y, gradient, nothing in worlds(3).run(sent_and_back, seed, capacity):
            assert_same(y, x)  # gates add up to 1
            assert_same(gradient, torch.ones_like(x))
            assert nothing == (0, *x.shape[1:])


def refused(misuse):
    torch.set_num_threads(1)
    mesh = Mesh(dp=4)
    return answer_of(misuse, mesh, model_of("top 2"), mesh.experts(2))


@pytest.mark.parametrize("call, sentence", sections()["test_experts::test_refusals"])
def test_refusals(worlds, call, sentence):
    """Must catch: experts that are averaged over ranks that have others; a part of a part; replicas
    of this book in PyTorch's or around them, which halve gradients; PyTorch's own words about the
    broadcast of a DTensor."""
    misuse = eval(f"lambda mesh, model, axes: {call}", globals())
    assert all(begins(said, sentence) for said in worlds(4).run(refused, misuse))
