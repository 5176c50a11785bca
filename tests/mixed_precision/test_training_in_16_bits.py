"""The chapter's trainings in 16 bits, run again: what fails, what a master copy and a loss scale
mend, and the small sums of the page."""

from functools import partial

import pytest
import torch

from coursekit.topics.mixed_precision.trainings import build_model, outputs_of_a_loop, training_data
from shardlab.gpt import next_token_loss
from shardlab.mixed_precision import LossScaler, MasterWeights
from shardlab.mixed_precision.stochastic_rounding import StochasticRounding

pytestmark = pytest.mark.usefixtures("one_thread")
ACCUMULATED = 2048  # microbatches of 8 x 32 tokens: 0.5 million tokens a step, as GPT-2 had
SCALE = 2.0**24  # no step overflows with it, and no gradient becomes zero


def losses_of(dtype, loss_scale=1.0, microbatches=ACCUMULATED):
    """The losses of SGD with momentum, with fp32 masters and a static scale. One microbatch runs,
    and its gradients are multiplied by their number after they are unscaled: 16 bits lose on the
    way what a step of all loses."""
    vocabulary, data = training_data(seed=0)
    model = build_model(vocabulary, dtype)
    optimizer = MasterWeights(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    scaler = LossScaler(loss_scale, growth_factor=1.0, backoff_factor=1.0)
    losses = []
    for _, (tokens, targets) in zip(range(150), data):
        optimizer.zero_grad()
        loss = next_token_loss(model(tokens).float(), targets)
        scaler.scale(loss / microbatches).backward()
        scaler.unscale_(optimizer)
        for _, master in optimizer.pairs:
            if master.grad is not None:
                master.grad *= microbatches  # as if all of them were this one
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


def mean_of_last(losses, count=20):
    return sum(losses[-count:]) / count


def bf16_training(optimizer_of):
    """(losses of all steps, share of the norms' weights that are still what they began with) of
    AdamW on a model whose parameters are bf16; `optimizer_of(parameters)` makes it."""
    vocabulary, data = training_data(seed=0)
    model = build_model(vocabulary, torch.bfloat16)
    optimizer, losses = optimizer_of(model.parameters()), []
    for _, (tokens, targets) in zip(range(300), data):
        optimizer.zero_grad()
        loss = next_token_loss(model(tokens).float(), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    named = model.named_parameters()
    norms = [p for name, p in named if "norm" in name and name.endswith("weight")]
    return losses, torch.cat([(weight.detach() == 1).float() for weight in norms]).mean().item()


@pytest.fixture(scope="module")
def wanted():
    """The losses in fp32."""
    return losses_of(torch.float32)


@pytest.mark.nightly  # by day: masters and scalers step by step
@pytest.mark.slow
def test_fp16_needs_a_scale(wanted):
    """Scaled, each loss is fp32's to 0.0005 (roundings of other kernels have forty times the room);
    without, the end was 0.7 to 2.5 above on other CPUs, of which a third is asked. Must catch: a
    scale that is not divided out; masters left in fp16; gradients scaled after they were cast."""
    unscaled, scaled = losses_of(torch.float16), losses_of(torch.float16, SCALE)
    assert mean_of_last(unscaled) > mean_of_last(wanted) + 0.25 and max(unscaled) > 4.5
    assert mean_of_last(wanted) < wanted[0] - 0.8
    assert max(abs(ours - theirs) for ours, theirs in zip(scaled, wanted)) < 0.02
    assert len(wanted) == 150


@pytest.mark.nightly  # that a scale is what fp16 lacks is tested above
def test_one_microbatch_needs_none(wanted):
    """Ends were 0.001 apart, and a run that fails is 0.7 away. Must catch: a demonstration that
    fails for another reason than the division by k."""
    end = mean_of_last(wanted)
    assert mean_of_last(losses_of(torch.float16, microbatches=1)) == pytest.approx(end, abs=0.05)
    assert mean_of_last(losses_of(torch.bfloat16)) == pytest.approx(end, abs=0.05)


@pytest.mark.nightly  # by day test_sums_of_the_page and the masters' parity
def test_norms_never_move():
    """160 of 160 weights, and 16 with a copy, on the page's machine; bounds leave room, as AdamW is
    chaotic. Must catch: bf16 weights that are updated through an fp32 copy that nobody asked for; a
    copy that is rounded after each update."""
    alone, unmoved = bf16_training(lambda parameters: torch.optim.AdamW(parameters, lr=1e-3))
    assert unmoved > 0.9
    drawn = dict(generator=torch.Generator().manual_seed(0))
    for kind, options in ((MasterWeights, {}), (StochasticRounding, drawn)):
        losses, unmoved = bf16_training(partial(kind, of=torch.optim.AdamW, lr=1e-3, **options))
        assert unmoved < 0.5 and mean_of_last(losses) < mean_of_last(alone)


def test_a_step_has_half_a_million_tokens():
    """Must catch: a k that no longer is what the page says."""
    tokens, _ = next(training_data(seed=0)[1])
    assert ACCUMULATED == 2048 and tokens.numel() * ACCUMULATED == 524_288


def test_sums_of_the_page():
    """Must catch: a page that says the update is the problem; an average that rounds down; a loss
    that is scaled in fp16."""
    one, step = torch.tensor(1.0, dtype=torch.bfloat16), torch.tensor(0.001, dtype=torch.bfloat16)
    assert step != 0 and one - step == one and one + step == one
    assert torch.tensor(2e-8).half() == 0
    assert torch.tensor(40_000.0).half() * 2 == torch.inf
    assert torch.tensor(4.2).half() * 2.0**16 == torch.inf
    for _ in range(100):
        one = one * 0.999
    assert one == 1


@pytest.mark.parametrize(("dtype", "end"), [(torch.bfloat16, 0.5), (torch.float16, 4.0)])
def test_ten_thousand_times_a_thousandth(dtype, end):
    """Must catch: an end that is the sum's, which torch.sum keeps in fp32."""
    total, summand = torch.zeros((), dtype=dtype), torch.tensor(0.001, dtype=dtype)
    for _ in range(10_000):
        total = total + summand
    assert total.item() == end
    assert summand.expand(10_000).sum().item() == pytest.approx(10, rel=0.01)


@pytest.mark.slow
def test_adam_in_fp16_is_not_a_number():
    """eps is 0 in fp16, and second moments are.

    Must catch: an eps that survives, with which the claim would be wrong."""
    assert torch.tensor(1e-8).half() == 0
    vocabulary, data = training_data(seed=0)
    model = build_model(vocabulary, torch.float16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(30):
        tokens, targets = next(data)
        optimizer.zero_grad()
        next_token_loss(model(tokens), targets).backward()
        optimizer.step()
    assert any(parameter.isnan().any() for parameter in model.parameters())


def test_a_loop_inside_one_autocast_computes_with_old_weights():
    """Must catch: a version of PyTorch whose cache hears of updates: then the page is wrong."""
    weights, outputs = outputs_of_a_loop(context_around_loop=True)
    assert weights == [1, 0, -1, -2] and outputs == [1, 1, 1, 1]
    weights, outputs = outputs_of_a_loop(context_around_loop=False)
    assert weights == outputs == [1, 0, -1, -2]
