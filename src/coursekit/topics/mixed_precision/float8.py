"""fp8 emulated: what a linear layer loses whose factors have 8 bits each, forward and backward. The
products are fp32, on every device. Chapter 9 says what a scale and a block are for.

    packed = to_float8(weight, torch.float8_e4m3fn, block=128)      # values of one byte, and scales
    from_float8(packed)                                             # fp32 again, rounded
    Float8Product.apply(x, weight, Float8Recipe(block=128))         # of a linear layer

    e4m3    4 exponent bits, 3 of the fraction: up to 448, no infinities. Weights, activations
    e5m2    5 and 2: up to 57,344. Gradients, whose sizes differ more

Always clamp before the cast: beyond the largest number e4m3 gives NaN in older versions of PyTorch,
the largest in newer ones. Cast from fp32: by way of bf16 3% of the values are rounded twice. With
blocks each factor is rounded twice, along its last dim for one product and across for the other, as
Transformer Engine does.

Micikevicius et al. 2022 (formats), Rouhani et al. 2023 and DeepSeek-AI 2024 (blocks).
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from shardlab.common.backward import NoSecondGradient

LEAST_SCALE = torch.finfo(torch.float32).smallest_normal


class Packed(NamedTuple):
    """A tensor in 8 bits: element i is values[i] * scales[i // block]."""

    values: Tensor  # [E], float8
    scales: Tensor  # [ceil(E / block)], fp32
    block: int
    shape: torch.Size


def to_float8(
    tensor: Tensor, dtype: torch.dtype, block: int | None = None, scaled: bool = True
) -> Packed:
    """`block` consecutive elements share a scale; by default all elements do. Without `scaled`
    the scales are 1. A value that does not fit is cut to the largest number."""
    flat = tensor.detach().float().reshape(-1)
    block = max(flat.numel(), 1) if block is None else block
    if block < 1:
        raise ValueError(f"block = {block}: a block has at least one element.")
    missing = -flat.numel() % block
    blocks = F.pad(flat, (0, missing)).view(-1, block)  # [blocks, block]
    largest = torch.finfo(dtype).max
    scales = blocks.new_ones(len(blocks))
    if scaled:
        sizes = blocks.abs().amax(1) / largest
        scales = torch.where(sizes > 0, sizes.clamp(min=LEAST_SCALE), scales)
    values = (blocks / scales[:, None]).clamp(-largest, largest).to(dtype)
    return Packed(values.view(-1)[: flat.numel()].clone(), scales, block, tensor.shape)


def from_float8(packed: Packed) -> Tensor:
    """fp32, in the shape that was packed."""
    scales = packed.scales.repeat_interleave(packed.block)[: packed.values.numel()]
    return (packed.values.float() * scales).view(packed.shape)


class Float8Recipe(NamedTuple):
    """The formats to which a product rounds its factors."""

    forward: torch.dtype = torch.float8_e4m3fn
    gradients: torch.dtype = torch.float8_e5m2
    block: int | None = None  # elements that share a scale; None: all of a tensor
    scaled: bool = True

    def rounded(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        return from_float8(to_float8(tensor, dtype, self.block, self.scaled))

    def both_ways(self, tensor: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Rounded for a sum over the last dim of a matrix, and for a sum over its first."""
        along = self.rounded(tensor, dtype)
        return along, along if self.block is None else self.rounded(tensor.mT, dtype).mT


class Float8Product(torch.autograd.Function):
    """x @ w.T, with both factors of each of its three products in 8 bits."""

    @staticmethod
    def forward(ctx, x: Tensor, w: Tensor, recipe: Float8Recipe) -> Tensor:
        """x [..., I], w [O, I] -> [..., O]"""
        rows, out = x.reshape(-1, x.shape[-1]), (*x.shape[:-1], w.shape[0])
        x8, x8_of_dw = recipe.both_ways(rows, recipe.forward)
        w8, w8_of_dx = recipe.both_ways(w, recipe.forward)
        ctx.save_for_backward(x8_of_dw, w8_of_dx)
        ctx.recipe, ctx.shape, ctx.dtypes = recipe, x.shape, (x.dtype, w.dtype)
        return F.linear(x8, w8).view(out).to(x.dtype)

    @staticmethod
    def backward(ctx, dy: Tensor):
        if torch.is_grad_enabled():
            raise NoSecondGradient(
                "create_graph=True: rounding to 8 bits has no gradient, so gradients of gradients"
                " end there; compute such a penalty with whole factors."
            )
        x8, w8 = ctx.saved_tensors
        dy8, dy8_of_dw = ctx.recipe.both_ways(dy.reshape(-1, dy.shape[-1]), ctx.recipe.gradients)
        dx, dw = (dy8 @ w8).view(ctx.shape), dy8_of_dw.mT @ x8
        return dx.to(ctx.dtypes[0]), dw.to(ctx.dtypes[1]), None
