"""Softmax of rows, forward and backward: each program a row, which is read once."""

import torch
from torch import Tensor

from .launch import block_for, launch, operator, wide
from .tiles import tl


def softmax_kernel(x, out, columns, row_stride, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside = column < columns
    scores = tl.load(x + row * row_stride + column, mask=inside, other=-float("inf"))
    scores = tl.cast(scores, WIDE)
    powers = tl.exp(scores - tl.max(scores, axis=0))  # the largest power is 1
    tl.store(out + row * columns + column, powers / tl.sum(powers, axis=0), mask=inside)


def softmax_backward_kernel(grad, out, grad_x, columns, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    at, inside = row * columns + column, column < columns
    up = tl.cast(tl.load(grad + at, mask=inside, other=0.0), WIDE)
    p = tl.cast(tl.load(out + at, mask=inside, other=0.0), WIDE)
    tl.store(grad_x + at, p * (up - tl.sum(up * p, axis=0)), mask=inside)


def shape_of(x: Tensor) -> tuple[int, dict]:
    """(columns, what a kernel wants to know when it is compiled)"""
    return x.shape[-1], dict(BLOCK=block_for(x.shape[-1]), WIDE=wide(x.dtype))


@operator
def softmax(x: Tensor) -> Tensor:
    """Softmax over the last dim of x [..., C]."""
    columns, constants = shape_of(x)
    rows = x.reshape(-1, columns)
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    launch(softmax_kernel, (len(rows),), rows, out, columns, rows.stride(0), **constants)
    return out


@operator
def softmax_backward(grad: Tensor, out: Tensor) -> Tensor:
    columns, constants = shape_of(out)
    grad_x = torch.empty_like(out)
    grid = (out.numel() // columns,)
    launch(softmax_backward_kernel, grid, grad.contiguous(), out, grad_x, columns, **constants)
    return grad_x


softmax.register_autograd(
    lambda ctx, grad: softmax_backward(grad, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output),
)
