"""fp8 emulated: what a cast keeps, what products make of it, against PyTorch's casts and its own
scaled product."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from coursekit.topics.mixed_precision.float8 import (
    Float8Product,
    Float8Recipe,
    from_float8,
    to_float8,
)
from shardlab.common.backward import NoSecondGradient

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def gradients_like(size=65_536):
    """Log-normal, as gradients are: sizes around 1e-6 that differ by many binades."""
    draw = torch.Generator().manual_seed(0)
    return (
        torch.randn(size, generator=draw) * torch.exp(3 * torch.randn(size, generator=draw)) * 1e-6
    )


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize("block", [None, 32, 100])
def test_cast_and_back(dtype, block):
    """Must catch: the scale of another block, where the block does not divide the size; a largest
    element that overflows; a scale of zero for a block of zeros."""
    tensor = gradients_like(1000).view(8, 125)
    tensor[2] = 0
    packed = to_float8(tensor, dtype, block)
    assert packed.values.dtype is dtype and packed.values.numel() == 1000
    size = block or 1000
    assert len(packed.scales) == -(-1000 // size)
    flat, largest = tensor.flatten(), torch.finfo(dtype).max
    for number, scale in enumerate(packed.scales):
        part = flat[number * size : (number + 1) * size]
        wanted = (part / scale).clamp(-largest, largest).to(dtype)
        there = packed.values[number * size : (number + 1) * size]
        assert torch.equal(there.view(torch.uint8), wanted.view(torch.uint8))
        assert part.abs().max() == 0 or there.float().abs().max() == largest
    back = from_float8(packed)
    assert back.shape == tensor.shape and torch.equal(back[2], torch.zeros(125))
    exact = torch.tensor([largest, -1.0, 0.5, 0.0])
    assert torch.equal(from_float8(to_float8(exact, dtype, scaled=False)), exact)


def test_what_a_scale_is_for():
    """Range and not precision: the error of a Gaussian is the same; bounds of zeros leave a factor
    of three. Must catch: scales that are not used; blocks that all have the tensor's scale; a page
    that says a scale is for precision."""
    draw = torch.Generator().manual_seed(0)
    gaussian = torch.randn(65_536, generator=draw)

    def error(**how):
        back = from_float8(to_float8(gaussian, E4M3, **how))
        return ((back - gaussian).norm() / gaussian.norm()).item()

    for how in (dict(scaled=False), dict(), dict(block=128)):
        assert error(**how) == pytest.approx(0.026, abs=0.0015)

    small = gradients_like()

    def zeros(dtype, **how):
        return (from_float8(to_float8(small, dtype, **how)) == 0).double().mean().item()

    assert zeros(E4M3, scaled=False) > 0.9
    assert 0.3 < zeros(E4M3) < 0.8
    assert zeros(E4M3, block=128) < 0.15
    assert zeros(E5M2) < 0.01 and zeros(E5M2, block=128) < 1e-4


@pytest.mark.parametrize(
    "recipe", [Float8Recipe(), Float8Recipe(block=4), Float8Recipe(scaled=False)]
)
def test_products_forward_and_backward(recipe):
    """Must catch: gradients rounded to e4m3; a weight gradient of the x that was not rounded; the
    factors' scales forgotten; blocks of the forward, which lie along another dim,
    reused in backward."""
    torch.manual_seed(0)
    layer = nn.Linear(12, 8)
    x = torch.randn(5, 3, 12, requires_grad=True)
    dy = torch.randn(5, 3, 8) * 1e-3
    y = Float8Product.apply(x, layer.weight, recipe) + layer.bias
    y.backward(dy)

    def rounded(tensor, dtype):
        return from_float8(to_float8(tensor, dtype, recipe.block, recipe.scaled)).double()

    tokens, changes, w = x.flatten(0, 1), dy.flatten(0, 1), layer.weight
    forward = rounded(tokens, E4M3) @ rounded(w, E4M3).mT  # sums over the inputs
    to_x = rounded(changes, E5M2) @ rounded(w.mT, E4M3).mT  # over the outputs
    to_w = rounded(changes.mT, E5M2) @ rounded(tokens.mT, E4M3).mT  # over the tokens
    wanted = {
        "y": (y, forward.view(5, 3, 8) + layer.bias.double()),
        "dx": (x.grad, to_x.view(5, 3, 12)),
        "dw": (w.grad, to_w),
        "db": (layer.bias.grad, dy.double().sum((0, 1))),
    }
    for name, (found, exact) in wanted.items():
        scale = exact.abs().max()
        assert (found.double() - exact).abs().max() <= 16 * 2.0**-24 * scale * 15, name


def test_gradients_of_gradients_are_refused():
    """Must catch: a penalty on gradients from which the layers in 8 bits are missing."""
    x, w = (torch.randn(4, 4, requires_grad=True) for _ in "xw")
    y = Float8Product.apply(x, w, Float8Recipe())
    with pytest.raises(NoSecondGradient, match="rounding to 8 bits has no gradient"):
        torch.autograd.grad(y.pow(2).sum() + x.pow(3).sum(), x, create_graph=True)


def test_the_same_as_a_scaled_product():
    """Must catch: a scale that is divided where it is to be multiplied."""
    torch.manual_seed(0)
    x, w = torch.randn(32, 64), torch.randn(16, 64) * 1e-3
    x8, w8 = to_float8(x, E4M3), to_float8(w, E4M3)
    factors = x8.values.view(32, 64), w8.values.view(16, 64).t()
    try:
        scales = dict(scale_a=x8.scales[0], scale_b=w8.scales[0], out_dtype=torch.float32)
        theirs = torch._scaled_mm(*factors, **scales)
    except NotImplementedError:
        pytest.skip("this PyTorch has no product of 8-bit factors on a CPU")
    ours = F.linear(from_float8(x8), from_float8(w8))
    assert torch.allclose(ours, theirs, rtol=0, atol=64 * 2.0**-24 * ours.abs().max().item())
