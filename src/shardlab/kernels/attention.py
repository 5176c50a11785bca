"""Attention that never stores its scores: FlashAttention-2 (Dao 2023), forward and backward.

Online softmax: with m the largest score so far, l the sum of exp(score - m) and o the sum of
exp(score - m) * value, a tile with a larger score m' multiplies l and o by exp(m - m') first. The
result is o / l. Backward makes the probabilities again from m + log(l), one number a row; each
program has a tile of keys, and all programs add to the gradients of the queries.

    B  sequences    A  query heads    G  key-value heads, R = A / G    S  queries    T  keys    D
"""

import torch
from torch import Tensor

from .launch import block_for, launch, operator, wide
from .tiles import cdiv, tl


def attention_kernel(
    q, k, v, out, log_sums, queries, keys, scale, R, D: tl.constexpr, CAUSAL: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    head, d = tl.program_id(1), tl.arange(0, WIDTH)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = (head * queries + row[:, None]) * D + d[None, :]
    inside = (row[:, None] < queries) & (d[None, :] < D)
    q_tile = tl.load(q + at, mask=inside, other=0.0)  # [ROWS, WIDTH]
    highest = tl.full((ROWS,), -float("inf"), WIDE)
    total = tl.zeros((ROWS,), WIDE)
    mixed = tl.zeros((ROWS, WIDTH), WIDE)
    end = keys
    if CAUSAL:  # later keys are not seen by these rows
        end = tl.minimum(keys, (tl.program_id(0) + 1) * ROWS)
    for start in range(0, end, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        k_at = (head // R * keys + column[:, None]) * D + d[None, :]
        k_inside = (column[:, None] < keys) & (d[None, :] < D)
        k_tile = tl.load(k + k_at, mask=k_inside, other=0.0)  # [COLUMNS, WIDTH]
        v_tile = tl.load(v + k_at, mask=k_inside, other=0.0)
        scores = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * scale
        seen = column[None, :] < keys
        if CAUSAL:
            seen = seen & (column[None, :] <= row[:, None])
        scores = tl.where(seen, scores, -float("inf"))  # [ROWS, COLUMNS]
        higher = tl.maximum(highest, tl.max(scores, axis=1))
        p = tl.exp(scores - higher[:, None])
        shrink = tl.exp(highest - higher)
        total = total * shrink + tl.sum(p, axis=1)
        p = tl.cast(p, v.dtype.element_ty)
        mixed = mixed * shrink[:, None] + tl.dot(p, v_tile, input_precision="ieee")
        highest = higher
    tl.store(out + at, mixed / total[:, None], mask=inside)
    tl.store(log_sums + head * queries + row, highest + tl.log(total), mask=row < queries)


def attention_backward_kernel(
    q, k, v, log_sums, grad, inner, grad_q, grad_k, grad_v, queries, keys, scale, R,
    D: tl.constexpr, CAUSAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    group, d = tl.program_id(1), tl.arange(0, WIDTH)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    k_at = (group * keys + column[:, None]) * D + d[None, :]
    k_inside = (column[:, None] < keys) & (d[None, :] < D)
    k_tile = tl.load(k + k_at, mask=k_inside, other=0.0)  # [COLUMNS, WIDTH]
    v_tile = tl.load(v + k_at, mask=k_inside, other=0.0)
    k_grad = tl.zeros((COLUMNS, WIDTH), WIDE)
    v_grad = tl.zeros((COLUMNS, WIDTH), WIDE)
    first = 0
    if CAUSAL:  # earlier rows do not see these keys
        first = tl.program_id(0) * COLUMNS // ROWS * ROWS
    for head in range(group * R, (group + 1) * R):
        for start in range(first, queries, ROWS):
            row = start + tl.arange(0, ROWS)
            at = (head * queries + row[:, None]) * D + d[None, :]
            inside = (row[:, None] < queries) & (d[None, :] < D)
            q_tile = tl.load(q + at, mask=inside, other=0.0)  # [ROWS, WIDTH]
            up = tl.load(grad + at, mask=inside, other=0.0)
            log_sum = tl.load(log_sums + head * queries + row, mask=row < queries, other=0.0)
            along = tl.load(inner + head * queries + row, mask=row < queries, other=0.0)
            scores = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * scale
            p = tl.exp(scores - log_sum[:, None])  # [ROWS, COLUMNS]
            seen = (row[:, None] < queries) & (column[None, :] < keys)
            if CAUSAL:
                seen = seen & (column[None, :] <= row[:, None])
            p = tl.where(seen, p, 0.0)
            p_grad = tl.dot(up, tl.trans(v_tile), input_precision="ieee")
            s_grad = tl.cast(p * (p_grad - along[:, None]), k.dtype.element_ty)
            p = tl.cast(p, v.dtype.element_ty)
            v_grad += tl.dot(tl.trans(p), up, input_precision="ieee")
            k_grad += tl.dot(tl.trans(s_grad), q_tile, input_precision="ieee")
            q_grad = tl.dot(s_grad, k_tile, input_precision="ieee") * scale
            tl.atomic_add(grad_q + at, q_grad, mask=inside)  # all programs of the row add
    tl.store(grad_k + k_at, k_grad * scale, mask=k_inside)
    tl.store(grad_v + k_at, v_grad, mask=k_inside)


def kernel_arguments(
    q: Tensor, k: Tensor, causal: bool, tile: tuple[int, int]
) -> tuple[tuple, dict]:
    """(numbers that the kernels take, what they want to know when they are compiled)"""
    (_, heads, queries, size), (_, groups, keys, _) = q.shape, k.shape
    constants = dict(D=size, CAUSAL=causal, ROWS=tile[0], COLUMNS=tile[1])
    constants |= dict(WIDTH=max(16, block_for(size)), WIDE=wide(q.dtype))
    return (queries, keys, size**-0.5, heads // groups), constants


@operator
def attention_forward(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, rows: int, columns: int
) -> tuple[Tensor, Tensor]:
    """(attention [B, A, S, D], log(sum(exp(scores))) [B, A, S])"""
    q, k, v = (x.contiguous() for x in (q, k, v))
    numbers, constants = kernel_arguments(q, k, causal, (rows, columns))
    out, log_sums = torch.empty_like(q), q.new_empty(q.shape[:3], dtype=wide(q.dtype))
    grid = (cdiv(q.shape[2], rows), q.shape[0] * q.shape[1])
    launch(attention_kernel, grid, q, k, v, out, log_sums, *numbers, **constants)
    return out, log_sums


@operator
def attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, log_sums: Tensor, causal: bool,
    rows: int, columns: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    grad, q, k, v = (x.contiguous() for x in (grad, q, k, v))
    numbers, constants = kernel_arguments(q, k, causal, (rows, columns))
    inner = (grad * out).sum(-1, dtype=log_sums.dtype)  # [B, A, S]: sum(p * grad of p) of each row
    grad_q = torch.zeros_like(q, dtype=log_sums.dtype)  # programs add to it in any order
    grad_k, grad_v = torch.empty_like(k), torch.empty_like(v)
    grid = (cdiv(k.shape[2], columns), k.shape[0] * k.shape[1])
    given = (q, k, v, log_sums, grad, inner, grad_q, grad_k, grad_v)
    launch(attention_backward_kernel, grid, *given, *numbers, **constants)
    return grad_q.to(q.dtype), grad_k, grad_v


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:3], *output)
    ctx.mark_non_differentiable(output[1])
    ctx.options = inputs[3:]


def _backward(ctx, grad, _):
    return *attention_backward(grad, *ctx.saved_tensors, *ctx.options), None, None, None


attention_forward.register_autograd(_backward, setup_context=_keep)


def attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = True, tile: tuple[int, int] = (64, 64)
) -> Tensor:
    """softmax(q k^T / sqrt(D)) v, of q [B, A, S, D], k and v [B, G, T, D]. A tile has so many rows
    and columns."""
    return attention_forward(q, k, v, causal, *tile)[0]
