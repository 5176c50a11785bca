"""Cross-entropy, forward and backward. Forward reads a row of logits once, block by block: the
largest so far and the sum of powers below it are enough (Milakov and Gimelshein 2018). One number a
row is kept for backward, log(sum(exp(logits))); eager PyTorch keeps the log-softmax of all logits.
"""

import torch
from torch import Tensor

from .launch import launch, operator, wide
from .tiles import cdiv, tl


def cross_entropy_kernel(
    logits, targets, losses, log_sums, columns, padding, BLOCK: tl.constexpr, WIDE: tl.constexpr
):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    highest = tl.full((1,), -float("inf"), WIDE)
    total = tl.zeros((1,), WIDE)
    for start in range(0, columns, BLOCK):
        inside = start + column < columns
        at = logits + row * columns + start + column
        x = tl.cast(tl.load(at, mask=inside, other=-float("inf")), WIDE)
        higher = tl.maximum(highest, tl.max(x, axis=0))
        total = total * tl.exp(highest - higher) + tl.sum(tl.exp(x - higher), axis=0)
        highest = higher
    one = tl.arange(0, 1)
    target = tl.load(targets + row + one)
    known = (target >= 0) & (target < columns)
    score = tl.load(logits + row * columns + target, mask=known, other=float("nan"))
    loss = highest - tl.cast(score, WIDE) + tl.log(total)  # exact also for large logits
    loss = tl.where(target == padding, 0.0, loss)
    tl.store(losses + row + one, loss)
    tl.store(log_sums + row + one, highest + tl.log(total))


def cross_entropy_backward_kernel(
    grad, logits, targets, log_sums, grad_logits, columns, padding, BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    row, column = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    target = tl.load(targets + row)
    up = tl.where(target == padding, 0.0, tl.load(grad + row))
    x = tl.cast(tl.load(logits + row * columns + column, mask=inside, other=0.0), WIDE)
    p = tl.exp(x - tl.load(log_sums + row))
    step = up * tl.where(column == target, p - 1.0, p)
    tl.store(grad_logits + row * columns + column, step, mask=inside)


@operator
def row_losses(logits: Tensor, targets: Tensor, padding: int) -> tuple[Tensor, Tensor]:
    """(the loss of each row of logits [T, V], log(sum(exp)) [T] of each)"""
    logits, columns, kind = logits.contiguous(), logits.shape[-1], wide(logits.dtype)
    losses, log_sums = (logits.new_empty(len(logits), dtype=kind) for _ in range(2))
    given = (logits, targets.contiguous(), losses, log_sums, columns, padding)
    launch(cross_entropy_kernel, (len(logits),), *given, BLOCK=4096, WIDE=kind)
    return losses, log_sums


@operator
def row_losses_backward(
    grad: Tensor, logits: Tensor, targets: Tensor, log_sums: Tensor, padding: int
) -> Tensor:
    logits, columns, kind = logits.contiguous(), logits.shape[-1], wide(logits.dtype)
    grad_logits = torch.empty_like(logits)
    given = (grad.contiguous(), logits, targets.contiguous(), log_sums, grad_logits)
    grid = (len(logits), cdiv(columns, 1024))
    constants = dict(BLOCK=1024, WIDE=kind)
    launch(cross_entropy_backward_kernel, grid, *given, columns, padding, **constants)
    return grad_logits


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2], output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.padding = inputs[2]


def _backward(ctx, grad, _):
    return row_losses_backward(grad, *ctx.saved_tensors, ctx.padding), None, None


row_losses.register_autograd(_backward, setup_context=_keep)


def cross_entropy(logits: Tensor, targets: Tensor, padding: int = -100) -> Tensor:
    """Mean loss of logits [..., V] against targets [...], of those that are not padding."""
    losses = row_losses(logits.flatten(0, -2), targets.flatten(), padding)[0]
    return losses.sum() / (targets != padding).sum()
