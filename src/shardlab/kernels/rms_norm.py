"""RMSNorm, forward and backward. The weight's gradient is a sum over all rows: a program sums its
own rows, and a second sum adds the programs' parts. One number a row is kept for backward.
"""

import torch
from torch import Tensor

from .launch import block_for, launch, operator, wide
from .tiles import tl


def rms_norm_kernel(x, weight, out, scale, columns, eps, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    at, inside = row * columns + column, column < columns
    values = tl.cast(tl.load(x + at, mask=inside, other=0.0), WIDE)
    normal = 1 / tl.sqrt(tl.sum(values * values, axis=0) / columns + eps)
    by = tl.cast(tl.load(weight + column, mask=inside, other=0.0), WIDE)
    tl.store(out + at, values * normal * by, mask=inside)
    tl.store(scale + row, normal)


def rms_norm_backward_kernel(
    grad, x, weight, scale, grad_x, parts, rows, columns, BLOCK: tl.constexpr, WIDE: tl.constexpr
):
    program, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside = column < columns
    by = tl.cast(tl.load(weight + column, mask=inside, other=0.0), WIDE)
    grad_weight = tl.zeros((BLOCK,), WIDE)
    for row in range(program, rows, tl.num_programs(0)):
        at = row * columns + column
        normal = tl.load(scale + row)
        x_hat = tl.cast(tl.load(x + at, mask=inside, other=0.0), WIDE) * normal
        up = tl.cast(tl.load(grad + at, mask=inside, other=0.0), WIDE)
        inner = up * by
        along = tl.sum(inner * x_hat, axis=0) / columns  # this part of x_hat changes the norm
        tl.store(grad_x + at, normal * (inner - x_hat * along), mask=inside)
        grad_weight += up * x_hat
    tl.store(parts + program * columns + column, grad_weight, mask=inside)


@operator
def scaled_rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(x [..., H] / its root mean square * weight [H], 1 / the root [...])"""
    x, weight, columns = x.contiguous(), weight.contiguous(), x.shape[-1]
    out, scale = torch.empty_like(x), x.new_empty(x.shape[:-1], dtype=wide(x.dtype))
    constants = dict(BLOCK=block_for(columns), WIDE=wide(x.dtype))
    launch(rms_norm_kernel, (scale.numel(),), x, weight, out, scale, columns, eps, **constants)
    return out, scale


@operator
def rms_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, scale: Tensor, programs: int
) -> tuple[Tensor, Tensor]:
    grad, x, weight = grad.contiguous(), x.contiguous(), weight.contiguous()
    rows, columns = scale.numel(), x.shape[-1]
    programs = min(programs, rows)
    grad_x, parts = torch.empty_like(x), scale.new_empty(programs, columns)
    given = (grad, x, weight, scale, grad_x, parts, rows, columns)
    constants = dict(BLOCK=block_for(columns), WIDE=wide(x.dtype))
    launch(rms_norm_backward_kernel, (programs,), *given, **constants)
    return grad_x, parts.sum(0).to(weight.dtype)


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2], output[1])
    ctx.mark_non_differentiable(output[1])


def _backward(ctx, grad, _):
    return *rms_norm_backward(grad, *ctx.saved_tensors, programs=64), None


scaled_rms_norm.register_autograd(_backward, setup_context=_keep)


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    """x / sqrt(mean(x * x) + eps) * weight, of x [..., H] and weight [H]."""
    return scaled_rms_norm(x, weight, eps)[0]
