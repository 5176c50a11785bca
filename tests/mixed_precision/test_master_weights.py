"""Master weights beside the same thing written by hand and beside torch.amp; their bytes."""

from functools import partial

import pytest
import torch
from drawn import drawn
from solved import Given
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from coursekit.formulas import RECIPES, evaluate
from coursekit.topics.mixed_precision.ladder import SmallestMasters, SmallestScaler
from ranklab.measure.ledger import Ledger
from ranklab.measure.weigh import storage_bytes
from shardlab.common.torch_internals import FakeTensorMode
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.gradient_clipping import clip_gradients
from shardlab.mixed_precision import LossScaler, MasterWeights, core
from shardlab.mixed_precision.hardened.master_weights import CannotCopy
from shardlab.mixed_precision.stochastic_rounding import StochasticRounding, round_stochastically

OPTIMIZERS = {
    torch.optim.AdamW: dict(lr=1e-2, weight_decay=0.1),
    torch.optim.SGD: dict(lr=0.1, momentum=0.9),
    torch.optim.Adagrad: dict(lr=0.1),
}
STEPS = 5


def net_of(dtype, sizes=(6, 9, 5, 3)):
    def model():
        layers = [nn.Linear(i, o) for i, o in zip(sizes, sizes[1:])]
        return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])

    return drawn(model).to(dtype)


def batches(count=STEPS):
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(7, 6, generator=draw) for _ in range(count)]


def loss_of(model, x, dtype=None):
    return model(x if dtype is None else x.to(dtype)).float().square().mean()


def in_groups(parameters):
    """Two groups of named parameters, each with a rate of its own."""
    first, *others = ((str(number), p) for number, p in enumerate(parameters))
    return [dict(params=[first], lr=0.05), dict(params=others, lr=0.02)]


# --- parity ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_smallest_versions_train_as_the_core(dtype):
    """Must catch: gradients divided by the scale in 16 bits; a copy that is not written back."""
    ended = []
    for masters, scaler in (
        (SmallestMasters, SmallestScaler(2.0**8)),
        (core.MasterWeights, core.LossScaler(2.0**8)),
    ):
        model = net_of(dtype)
        optimizer = masters(model.parameters(), torch.optim.AdamW, lr=1e-2)
        for x in batches():
            scaler.scale(loss_of(model, x, dtype)).backward()
            scaler.step(optimizer)
            if isinstance(scaler, core.LossScaler):
                scaler.update()
                optimizer.zero_grad()
        ended.append([p.detach() for p in model.parameters()])
    assert all(map(torch.equal, *ended))
    assert not any(map(torch.equal, ended[0], net_of(dtype).parameters()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("of", OPTIMIZERS)
@pytest.mark.parametrize("at_once_bytes", [1, 200, 1 << 20])
def test_parity_with_copies_by_hand(dtype, of, at_once_bytes):
    """Must catch: states of the first pile that are updated once for each pile; an update of the
    rounded weight instead of the master; a master made of a weight that has changed; a group whose
    settings are lost."""
    ours, theirs = net_of(dtype), net_of(dtype)
    for model in (ours, theirs):
        model[2].bias.requires_grad_(False)
    options = dict(at_once_bytes=at_once_bytes, **OPTIMIZERS[of])
    optimizer = MasterWeights(in_groups(ours.parameters()), of, **options)
    trained = [p for p in theirs.parameters() if p.requires_grad]
    masters = [nn.Parameter(p.detach().float()) for p in trained]
    by_hand = of(in_groups(masters), **OPTIMIZERS[of])
    for x in batches():
        optimizer.zero_grad()
        loss_of(ours, x, dtype).backward()
        optimizer.step()
        loss_of(theirs, x, dtype).backward()
        for parameter, master in zip(trained, masters):
            master.grad, parameter.grad = parameter.grad.float(), None
        by_hand.step()
        with torch.no_grad():
            for parameter, master in zip(trained, masters):
                parameter.copy_(master)
    for (parameter, master), other, rounded in zip(optimizer.pairs, masters, trained, strict=True):
        assert torch.equal(master, other) and torch.equal(parameter, rounded)
        assert not torch.equal(master, parameter.float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parity_with_autocast_bit_for_bit(dtype):
    """Linear layers, of which autocast casts the same weights. Must catch: gradients unscaled in 16
    bits; a master that is updated by a rounded gradient twice; a scale that is not a factor of
    backward."""
    ours, theirs = net_of(dtype), net_of(torch.float32)
    with torch.no_grad():  # both begin with the same numbers
        for left, right in zip(ours.parameters(), theirs.parameters()):
            right.copy_(left)
    optimizer = MasterWeights(ours.parameters(), torch.optim.AdamW, lr=1e-2)
    plain = torch.optim.AdamW(theirs.parameters(), lr=1e-2)
    scaler, peer = LossScaler(2.0**12), torch.amp.GradScaler("cpu", init_scale=2.0**12)
    for x in batches():
        optimizer.zero_grad()
        scaler.scale(loss_of(ours, x, dtype)).backward()
        scaler.step(optimizer)
        scaler.update()
        plain.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = loss_of(theirs, x)
        peer.scale(loss).backward()
        peer.step(plain)
        peer.update()
    for (_, master), parameter in zip(optimizer.pairs, theirs.parameters(), strict=True):
        assert torch.equal(master, parameter)


CONFIG = GPTConfig(layers=2, hidden=24, heads=3, vocabulary=31, max_sequence=10)


@pytest.mark.parametrize("before", ["nothing", "a step", "a step and a loaded state"])
def test_a_parameter_that_was_written_to(before):
    """Must catch: the loaded weights overwritten by the old masters, in silence; a master made
    before ranks begin alike, which overwrites what they begin with."""
    weight = nn.Parameter(torch.tensor([1.0, 2.0], dtype=torch.bfloat16))
    optimizer = MasterWeights([weight], torch.optim.SGD, lr=2.0**-12)
    weight.grad = -torch.ones_like(weight)
    steps = 0 if before == "nothing" else 1
    if steps:
        optimizer.step()
    if before == "a step and a loaded state":
        optimizer.load_state_dict(optimizer.state_dict())
    if before == "a step":
        with torch.no_grad():
            weight[1] = 5.0
    else:  # no version counts it
        weight.data.copy_(torch.tensor([1.0, 5.0]))
    optimizer.step()
    assert optimizer.pairs[0][1].tolist() == [1 + (steps + 1) * 2.0**-12, 5 + 2.0**-12]
    weight.data = torch.tensor([1.0, 7.0], dtype=torch.bfloat16)
    optimizer.step()
    assert optimizer.pairs[0][1].tolist() == [1 + (steps + 2) * 2.0**-12, 7 + 2.0**-12]


class Counting(torch.optim.Optimizer):
    """Counts its steps in the group, as schedule-free optimizers do."""

    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr, steps=0))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["steps"] += 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter -= group["lr"] / group["steps"] * parameter.grad


@pytest.mark.parametrize("of", (Counting, torch.optim.NAdam), ids=lambda of: of.__name__)
def test_a_step_is_counted_once(of):
    """Must catch: a step that is counted once a pile; a trial that is heard of."""
    heard = []
    handle = register_optimizer_step_post_hook(lambda *_: heard.append(1))
    plain = [nn.Parameter(torch.ones(4)) for _ in range(6)]
    weights = [nn.Parameter(torch.ones(4, dtype=torch.bfloat16)) for _ in range(6)]
    ours, theirs = MasterWeights(weights, of, lr=0.25), of(plain, lr=0.25)
    handle.remove()
    for _ in range(2):
        for weight, like in zip(weights, plain):
            weight.grad, like.grad = torch.ones_like(weight), torch.ones_like(like)
        ours.step()
        theirs.step()
    assert not heard
    assert all(torch.equal(master, like) for (_, master), like in zip(ours.pairs, plain))
    if of is Counting:
        assert ours.param_groups[0]["steps"] == 2
    else:
        assert len(list(ours.piles())) > 1


def test_gradients_that_come_late():
    """Must catch: a gradient that is left out because its master has one, or zeros, already."""
    weight = nn.Parameter(torch.zeros((), dtype=torch.bfloat16))
    optimizer = MasterWeights([weight], torch.optim.SGD, lr=1.0)
    for step in (1, 2):
        for factor in (256, 1, 4):
            (weight * factor).backward()
            if factor != 4:
                optimizer.take_gradients()
        optimizer.step()
        assert optimizer.pairs[0][1].item() == -261 * step
        assert optimizer.pairs[0][1].grad == 257 and weight.grad == 4
        optimizer.zero_grad(set_to_none=False)
    weight.backward()
    optimizer.step()
    assert optimizer.pairs[0][1].item() == -523


def test_what_is_refused():
    """Must catch: a parameter that is trained later and has no copy; a state without masters that
    is loaded as if it had them."""
    weight = nn.Parameter(torch.ones(2, dtype=torch.float16))
    with pytest.raises(CannotCopy, match="given twice"):
        MasterWeights([weight, weight], torch.optim.SGD, lr=0.1)
    optimizer = MasterWeights([weight], torch.optim.SGD, lr=0.1)
    with pytest.raises(CannotCopy, match="has no master"):
        optimizer.load_state_dict(torch.optim.SGD([weight], lr=0.1).state_dict())
    frozen = nn.Parameter(torch.ones(3, dtype=torch.float16), requires_grad=False)
    optimizer = MasterWeights([("head", frozen), ("body", weight)], torch.optim.SGD, lr=0.1)
    frozen.requires_grad_()
    with pytest.raises(CannotCopy, match="frozen, unfrozen or converted"):
        optimizer.step()
    with pytest.raises(TypeError, match="bf16"):
        StochasticRounding([weight], torch.optim.SGD, lr=0.1)
    optimizer = StochasticRounding([weight.detach().bfloat16().requires_grad_()], torch.optim.SGD)
    with pytest.raises(CannotCopy, match="no copies between steps"):
        clip_gradients(optimizer, 1.0)


# --- bytes ----------------------------------------------------------------------------------------
PARTS = ["parameter_bytes", "gradient_bytes", "optimizer_bytes"]


class Bf16Moments(MasterWeights):
    """Its moments have fewer bytes between steps; none is read here."""

    kept = torch.bfloat16

    def after_update(self, parameter, master):
        super().after_update(parameter, master)
        state = self.inner.state[master]
        state.update({name: m.to(self.kept) for name, m in state.items() if name != "step"})


class EightBitMoments(Bf16Moments):
    kept = torch.uint8


def one_step(recipe):
    """(model, optimizer, further states) after a step under the recipe, with its gradients."""
    dtype = torch.float16 if recipe.startswith("fp16") else torch.bfloat16
    model = GPT(CONFIG).to(torch.float32 if recipe == "8-bit Adam" else dtype)
    kinds = {
        "8-bit Adam": EightBitMoments,
        "bf16 + fp32 master, bf16 moments": Bf16Moments,
        "bf16, stochastic rounding": StochasticRounding,
    }
    optimizer = kinds.get(recipe, MasterWeights)(model.parameters(), torch.optim.AdamW, lr=1e-3)
    tokens = torch.randint(31, (2, 11))
    next_token_loss(model(tokens[:, :-1]).float(), tokens[:, 1:]).backward()
    if recipe == "bf16 + fp32 gradients":
        optimizer.take_gradients()
    if recipe != "fp16 + fp32 gradients":
        optimizer.step()
    else:  # as Megatron-LM does: the gradient in fp16 stays beside its fp32 copy
        for parameter, master in optimizer.pairs:
            master.grad = parameter.grad.float()
        optimizer.inner.step()
    return model, optimizer


@pytest.mark.parametrize(
    "recipe",
    [
        "bf16 + fp32 master",
        "bf16 + fp32 gradients",
        "fp16 + fp32 gradients",
        "bf16 + fp32 master, bf16 moments",
        "bf16, stochastic rounding",
        "8-bit Adam",
    ],
)
def test_state_bytes(recipe):
    """Must catch: 16-bit gradients that stay beside the fp32 ones, or fp32 ones that stay after an
    update; a master of a parameter that has none; moments that stay in fp32."""
    model, optimizer = one_step(recipe)
    parameters = list(model.parameters())
    masters = [m for p, m in optimizer.pairs if m is not p]
    every = [*parameters, *masters]
    gradients = [p.grad for p in every if p.grad is not None]
    states = optimizer.inner.state.values()
    moments = [kept for state in states for name, kept in state.items() if name != "step"]
    both = recipe == "fp16 + fp32 gradients"  # the second one is an optimizer state there
    found = dict(
        parameter_bytes=storage_bytes(parameters),
        gradient_bytes=storage_bytes([p.grad for p in parameters] if both else gradients),
        optimizer_bytes=storage_bytes(
            [*masters, *moments, *([m.grad for m in masters] if both else [])]
        ),
    )
    given = {**CONFIG.quantities(), **RECIPES[recipe].quantities}
    assert found == evaluate(PARTS, **given)
    assert RECIPES[recipe].verified.endswith("test_state_bytes")


@pytest.mark.parametrize("phase", ["backward", "optimizer"])
def test_peak_of_a_step(phase):
    """To the byte but for step counters. Must catch: masters called temporaries; fp32 gradients of
    all parameters at once; a composed peak that does not ask how many bytes an element has."""
    recipe, batch, sequence = "bf16 + fp32 master", *((8, 32) if phase == "backward" else (1, 2))
    config = GPTConfig(layers=2, hidden=32, heads=4, vocabulary=61, max_sequence=32)
    model = GPT(config).bfloat16()
    optimizer = MasterWeights(model.parameters(), torch.optim.AdamW, lr=1e-3, foreach=False)
    given = dict(
        **config.quantities(),
        **RECIPES[recipe].quantities,
        **dict(dropout=0, fused_attention=1, microbatch=batch, sequence=sequence),
        **dict(accumulation_steps=1, first_step=0, optimizer_mode=0),
    )
    wanted = Given(**given)

    def step(look=lambda: None):
        tokens = torch.zeros(batch, sequence, dtype=torch.long)
        loss = next_token_loss(model(tokens), torch.zeros_like(tokens))
        look()
        loss.backward()
        look()
        optimizer.step()
        optimizer.zero_grad()

    step()
    seen = []
    with Ledger(model, optimizer) as ledger:
        step(lambda: seen.append(ledger.bytes))
    counters = 4 * len(optimizer.pairs)
    assert ledger.timeline[0].bytes.optimizer == wanted.optimizer_bytes + counters
    assert ledger.timeline[0].bytes.parameters == wanted.parameter_bytes
    assert seen[0].activations == wanted.activation_bytes
    assert seen[1].gradients == wanted.gradient_bytes
    assert ledger.peak.phase == phase
    found = ledger.peak.bytes.total - counters
    assert found == pytest.approx(wanted.peak_bytes, rel=0.01)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("how", ["plain", "looked at", "accumulated", "fp64 beside it"])
@pytest.mark.parametrize("consumes", [False, True])
def test_unscaled_pile_by_pile(dtype, how, consumes):
    """Must catch: a pile that is not unscaled, or twice; gradients of fp32 or fp64 that keep the
    scale; an overflow that only fp32 gradients would show; an inverse that outlives its step; a
    pile that is sorted away."""
    runs = []
    ways = [
        (partial(torch.amp.GradScaler, "cpu"), partial(MasterWeights, at_once_bytes=1 << 40)),
        (LossScaler, partial(MasterWeights, consume_gradients=consumes)),
    ]
    for scaler_of, kind in ways:
        model = net_of(dtype)
        if how == "fp64 beside it":
            model[2].bias = nn.Parameter(model[2].bias.double())
            model[2].register_forward_pre_hook(lambda layer, x: None)
            model[2].forward = lambda x, layer=model[2]: x @ layer.weight.t() + layer.bias.to(dtype)
        optimizer = kind(model.parameters(), torch.optim.AdamW, lr=1e-2)
        scaler, scales = scaler_of(init_scale=2.0**10, growth_interval=2), []
        for number, x in enumerate(batches(8)):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, x, dtype)).backward()
            if number in (2, 5):
                model[0].weight.grad[1, 2] = float("inf")
            if how == "looked at" and number % 2:
                scaler.unscale_(optimizer)
            if how == "accumulated":
                optimizer.take_gradients()
                scaler.scale(loss_of(model, x, dtype)).backward()
                optimizer.take_gradients()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        runs.append([*(t for pair in optimizer.pairs for t in pair), torch.tensor(scales)])
    assert all(torch.equal(left, right) for left, right in zip(*runs, strict=True))
    assert len(set(runs[0][-1].tolist())) > 1


def test_fp32_gradients_are_never_all_there():
    """At most a third. Must catch: a scaler that takes all gradients to fp32 before the step; a
    pile of 8 MiB that is the whole of a small model."""
    model = nn.Sequential(*[nn.Linear(16, 16, bias=False) for _ in range(16)]).half()
    elements = sum(p.numel() for p in model.parameters())
    optimizer = MasterWeights(model.parameters(), torch.optim.SGD, lr=0.1, foreach=False)
    scaler = LossScaler(4.0)
    scaler.scale(model(torch.ones(1, 16).half()).float().sum()).backward()
    with Ledger(model, optimizer) as ledger:
        scaler.step(optimizer)
    scaler.update()
    peak = max(point.bytes.gradients for point in ledger.timeline)
    assert peak == 2 * elements + 4 * (elements // 16) * 5


def test_few_piles_on_a_gpu():
    """GPT-2 124M: a pile on a GPU is as large as its launches are long.

    Must catch: some 50 updates of 8 MiB, whose launches take longer than they do."""
    sizes = [50_257 * 768, 1024 * 768, *12 * [4 * 768 * 768, 3 * 768 * 768, 768 * 768, 768]]
    counts = {}
    for device in ("cpu", "cuda"):
        with FakeTensorMode():
            weights = [torch.ones(n, dtype=torch.bfloat16, device=device) for n in sizes]
            optimizer = MasterWeights(map(nn.Parameter, weights), torch.optim.AdamW, lr=1e-3)
            counts[device] = len(list(optimizer.piles()))
    assert counts["cuda"] <= 5 and counts["cpu"] >= 24


def test_consumed_gradients_are_gone():
    """Must catch: gradients kept to the end of the step; the largest tensor updated first;
    gradients consumed by a step that was skipped."""
    layers = [nn.Linear(16, 16, bias=False) for _ in range(16)]
    model = nn.Sequential(nn.Embedding(64, 16), *layers).half()
    elements = sum(p.numel() for p in model.parameters())
    optimizer = MasterWeights(
        model.parameters(), torch.optim.SGD, lr=0.1, foreach=False, consume_gradients=True
    )
    scaler = LossScaler(4.0)
    piles = [[parameter for parameter, _ in pile] for pile in optimizer.piles()]
    assert [any(p is model[0].weight for p in pile) for pile in piles] == [False] * 3 + [True]
    for factor, kept in ((float("inf"), True), (1.0, False)):
        optimizer.zero_grad()
        loss = model(torch.arange(8)).float().sum() * factor
        scaler.scale(loss).backward()
        with Ledger(model, optimizer) as ledger:
            scaler.step(optimizer)
        scaler.update()
        assert all((p.grad is not None) == kept for p in model.parameters())
    most = max(sum(p.numel() for p in pile) for pile in piles)
    found = [point.bytes.gradients for point in ledger.timeline]
    # one gradient is there in 16 and in 32 bits while it is made
    assert 2 * elements < max(found) <= 2 * elements + 2 * most + 2 * 16 * 16
    assert found[-1] == 0


# --- smaller than a master ------------------------------------------------------------------------


def test_stochastic_rounding_is_one_of_two_neighbours():
    """The mean within five standard errors. Must catch: rounding away from zero for negative
    numbers alone; infinities made of the largest numbers; NaN with its payload in the low bits that
    becomes infinite."""
    draw = torch.Generator().manual_seed(0)
    values = torch.randn(4096, generator=draw) * 10.0 ** torch.randint(
        -30, 30, (4096,), generator=draw
    )
    rounded = round_stochastically(values, draw)
    below = (values.view(torch.int32) & ~0xFFFF).view(torch.float32)
    above = ((values.view(torch.int32) & ~0xFFFF) + 0x10000).view(torch.float32)
    assert ((rounded.float() == below) | (rounded.float() == above)).all()
    exact = values.bfloat16().float()
    assert torch.equal(round_stochastically(exact, draw).float(), exact)
    largest = torch.finfo(torch.bfloat16).max
    quiet = torch.tensor([0x7F800001], dtype=torch.int32).view(torch.float32)
    ends = torch.cat([torch.tensor([torch.inf, -torch.inf, largest, -largest]), quiet])
    kept = round_stochastically(ends, draw)
    assert kept[:4].tolist() == ends[:4].tolist() and kept[4].isnan()
    value, count = 1.002344, 100_000
    mean = round_stochastically(torch.full((count,), value), draw).double().mean().item()
    share = (value - 1) * 2**7
    assert abs(mean - value) < 5 * 2.0**-7 * (share * (1 - share) / count) ** 0.5


def test_stochastic_rounding_moves_what_nearest_loses():
    """Must catch: rounding to nearest; a master that stays between updates."""
    weight = nn.Parameter(torch.ones(4096, dtype=torch.bfloat16))
    update = 2.0**-7 / 16
    optimizer = StochasticRounding(
        [weight], torch.optim.SGD, lr=update, generator=torch.Generator().manual_seed(0)
    )
    for _ in range(100):
        weight.grad = -torch.ones_like(weight)
        optimizer.step()
    noise = (100 * update * (2.0**-7 - update) / 4096) ** 0.5
    assert abs(weight.double().mean().item() - 1 - 100 * update) < 5 * noise
    assert optimizer.pairs[0][1].numel() == 0
