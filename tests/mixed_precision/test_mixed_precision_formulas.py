"""The formulas of formats, rounding, loss scales and bytes, against PyTorch's own casts and a run
of each."""

import math

import pytest
import torch
from torch import nn

from coursekit import formulas
from coursekit.topics.mixed_precision.bits import number_format
from ranklab.measure.ledger import Ledger
from shardlab.mixed_precision.stochastic_rounding import round_stochastically

DTYPES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8 e4m3": torch.float8_e4m3fn,
    "fp8 e5m2": torch.float8_e5m2,
}


def patterns_of(dtype):
    """[2^bits]: every number that the dtype has, by its bits."""
    bits = 8 * dtype.itemsize
    whole = {8: torch.uint8, 16: torch.int16}[bits]
    return torch.arange(1 << bits).to(whole).view(dtype)


def value_of(name, **given):
    return formulas.BOOK.formulas[name](**given)


@pytest.mark.parametrize("name", [name for name in DTYPES if name != "fp32"])
def test_every_pattern(name):
    """Must catch: a bias of 2^(e-1); subnormal numbers with a 1 before their fraction; an e4m3
    whose top exponent is kept for infinities; the largest number without its fraction."""
    torch_values = patterns_of(DTYPES[name]).float()
    ours = number_format(name)
    for pattern, value in enumerate(torch_values.tolist()):
        found = ours.decode(pattern)
        assert found == value or (math.isnan(found) and math.isnan(value)), (pattern, found, value)
        if not math.isnan(value):
            assert ours.encode(value) == pattern
            assert math.copysign(1, found) == math.copysign(1, value)  # also of zero
    finite = torch_values[torch_values.isfinite() & (torch_values > 0)]
    limits = torch.finfo(DTYPES[name])
    assert value_of("number_bits", number_format=name) == limits.bits
    assert value_of("largest_number", number_format=name) == finite.max().item() == limits.max
    assert value_of("smallest_subnormal", number_format=name) == finite.min().item()
    assert value_of("smallest_normal", number_format=name) == limits.smallest_normal
    assert value_of("relative_spacing", number_format=name) == limits.eps
    room = math.log2(finite.max().item() / finite.min().item())
    assert value_of("range_binades", number_format=name) == math.floor(room) + 1


def neighbours(value):
    """fp32 numbers just below, at and just above a value."""
    at = torch.tensor(value, dtype=torch.float32)
    return [torch.nextafter(at, torch.tensor(0.0)), at, torch.nextafter(at, at * 2)]


@pytest.mark.parametrize("name", [name for name in DTYPES if name != "fp32"])
def test_thresholds(name):
    """Must catch: the smallest number taken for the threshold, whose half still rounds up to it; a
    tie taken for an overflow in e4m3."""
    dtype = DTYPES[name]
    low = value_of("underflow_threshold", number_format=name)
    assert [v.to(dtype).item() > 0 for v in neighbours(low)] == [False, False, True]
    high = value_of("overflow_threshold", number_format=name)
    largest = value_of("largest_number", number_format=name)
    below, at, above = (v.to(dtype).float() for v in neighbours(high))
    assert below == largest
    if name == "fp8 e4m3":  # without infinities: a tie is the largest, and beyond is as torch says
        assert at == largest and (above.isnan() or above == largest)
    else:
        assert at.isinf() and above.isinf()


@pytest.mark.parametrize("name", ["fp16", "bf16"])
@pytest.mark.parametrize("exponent", [-20, -7, 0, 3])
def test_spacing_and_lost_updates(name, exponent):
    """Must catch: the spacing of the exponent above; half a spacing lost twice; the spacing below
    the normal numbers going on shrinking."""
    dtype = DTYPES[name]
    given = dict(number_format=name, value_exponent=exponent)
    gap = value_of("number_spacing", **given)
    values = patterns_of(dtype)
    size = values.float()
    there = values[(size >= 2.0**exponent) & (size < 2.0 ** (exponent + 1))]
    following = (there.view(torch.int16) + 1).view(dtype).double().tolist()
    there = there.double().tolist()
    assert there and {after - value for value, after in zip(there, following)} == {gap}
    lost, ours = value_of("lost_update", **given), number_format(name)
    # sums of float64, which are exact, rounded once
    assert [ours.nearest(value + lost * (1 - 1e-6)) for value in there] == there
    assert [ours.nearest(value + lost * (1 + 1e-6)) for value in there] == following


@pytest.mark.parametrize("name", ["fp16", "bf16"])
@pytest.mark.parametrize("loss_scale, k", [(1, 1), (1, 64), (2.0**10, 64), (2.0**16, 2048)])
def test_loss_scale_of_a_backward(name, loss_scale, k):
    """Must catch: k dividing instead of multiplying; the scale on the wrong side; the tie taken for
    a survivor."""
    dtype = DTYPES[name]
    given = dict(number_format=name, loss_scale=loss_scale, accumulation_steps=k)
    lost = value_of("lost_gradient", **given)
    draw = torch.Generator().manual_seed(0)
    near = lost * (0.5 + torch.rand(200, generator=draw, dtype=torch.float64))
    gradients = torch.cat([near, torch.tensor([lost, lost * (1 + 1e-4)])]).double()
    weight = nn.Parameter(torch.zeros(len(gradients), dtype=torch.float32))
    # the cast is where backward's gradient enters the 16-bit part of the model
    loss = (weight.to(dtype).to(torch.float64) * gradients).sum() / k * loss_scale
    loss.backward()
    small = weight.grad == 0
    assert (small == (gradients <= lost)).all() and small.any() and not small.all()

    high = value_of("largest_loss_scale", number_format=name, largest_gradient=3.0)
    for scale, finite in ((high * (1 - 1e-6), True), (high * (1 + 1e-6), False)):
        overflown = torch.tensor(3.0 * scale, dtype=torch.float64).float().to(dtype)
        assert overflown.isfinite().item() == finite


@pytest.mark.parametrize("update", [1e-3, 1e-4, 1e-5])
def test_noise_of_stochastic_rounding(update):
    """20,000 weights, 300 updates, five standard errors. Must catch: the variance of one rounding
    taken for that of all; u * spacing without the rest."""
    count, updates = 20_000, 300
    given = dict(
        number_format="bf16",
        value_exponent=0,
        update_size=update,
        updates=updates,
        allow_unused=True,
    )
    draw = torch.Generator().manual_seed(0)
    weights = torch.ones(count, dtype=torch.bfloat16)
    for _ in range(updates):
        weights = round_stochastically(weights.float() + update, draw)
    moved = weights.double() - 1
    noise, drift = value_of("rounding_noise", **given), value_of("drift", **given)
    assert abs(moved.mean().item() - drift) < 5 * noise / math.sqrt(count)
    # few of the rarest moves: the deviation of a count, relative to it
    rare = math.sqrt(1 / (count * drift / value_of("number_spacing", **given)))
    assert moved.std().item() == pytest.approx(noise, rel=5 * (rare + 1 / math.sqrt(2 * count)))


def test_bytes_of_mx_and_nvfp4():
    """Must catch: a scale of four bytes, which makes 1.125 bytes an element of MXFP8's 1.031; an
    element of fp4 that takes a byte; the tensor's own fp32 number forgotten; floor instead of
    ceil."""
    for elements in (32, 1000, 4096):
        mx = [torch.empty(elements, dtype=torch.float8_e4m3fn)]
        mx += [torch.empty(-(-elements // 32), dtype=torch.float8_e8m0fnu)]
        nv = [torch.empty(elements // 2, dtype=torch.uint8), torch.empty(())]
        nv += [torch.empty(-(-elements // 16), dtype=torch.float8_e4m3fn)]
        for tensors, given in (
            (mx, dict(block_elements=32, scale_bytes=1)),
            (
                nv,
                dict(block_elements=16, scale_bytes=1, scaled_element_bits=4, tensor_scale_bytes=4),
            ),
        ):
            weighed = sum(tensor.untyped_storage().nbytes() for tensor in tensors)
            assert weighed == value_of("block_scaled_bytes", scaled_elements=elements, **given)


def test_cache_of_autocast():
    """Must catch: fp32 copies counted; biases forgotten; the input's copy counted."""
    model = nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 7))
    x = torch.randn(3, 24)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    with Ledger(model) as ledger, torch.no_grad():
        before = ledger.bytes.total
        with torch.autocast("cpu", torch.bfloat16):
            model(x)
            held = ledger.bytes.total - before
        after = ledger.bytes.total - before
    given = dict(cached_parameters=parameters, compute_element_bytes=2)
    assert held == value_of("autocast_cache_bytes", **given) and after == 0
