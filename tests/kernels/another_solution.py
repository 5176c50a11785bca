"""The assignment on kernels, as a learner may solve it: tiles of 16 queries and of 32 keys."""

import torch

from shardlab.kernels.tiles import cdiv, run, tl

ROWS, COLUMNS = 16, 32


def forward_kernel(q, k, v, o, sums, S, T, D, scale, CAUSAL: tl.constexpr, WIDTH: tl.constexpr):
    batch, d = tl.program_id(1), tl.arange(0, WIDTH)[None, :]
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at, inside = (batch * S + row[:, None]) * D + d, (row[:, None] < S) & (d < D)
    query = tl.load(q + at, mask=inside, other=0.0)
    top = tl.full((ROWS,), -float("inf"), tl.float32)
    total, mixed = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(0, T, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        k_at = (batch * T + column[:, None]) * D + d
        k_inside = (column[:, None] < T) & (d < D)
        scores = tl.dot(query, tl.trans(tl.load(k + k_at, mask=k_inside, other=0.0))) * scale
        seen = column[None, :] < T
        if CAUSAL:
            seen = seen & (column[None, :] <= row[:, None])
        scores = tl.where(seen, scores, -float("inf"))
        higher = tl.maximum(top, tl.max(scores, axis=1))
        shrink = tl.exp(top - higher)
        powers = tl.exp(scores - higher[:, None])
        total = total * shrink + tl.sum(powers, axis=1)
        value = tl.load(v + k_at, mask=k_inside, other=0.0)
        mixed = mixed * shrink[:, None] + tl.dot(powers, value)
        top = higher
    tl.store(o + at, mixed / total[:, None], mask=inside)
    tl.store(sums + batch * S + row, top + tl.log(total), mask=row < S)


def queries_kernel(
    q, k, v, o, sums, up, dq, S, T, D, scale, CAUSAL: tl.constexpr, WIDTH: tl.constexpr
):
    batch, d = tl.program_id(1), tl.arange(0, WIDTH)[None, :]
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at, inside = (batch * S + row[:, None]) * D + d, (row[:, None] < S) & (d < D)
    query = tl.load(q + at, mask=inside, other=0.0)
    above = tl.load(up + at, mask=inside, other=0.0)
    along = tl.sum(above * tl.load(o + at, mask=inside, other=0.0), axis=1)
    log_sum = tl.load(sums + batch * S + row, mask=row < S, other=0.0)
    grad = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(0, T, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        k_at = (batch * T + column[:, None]) * D + d
        k_inside = (column[:, None] < T) & (d < D)
        key = tl.load(k + k_at, mask=k_inside, other=0.0)
        value = tl.load(v + k_at, mask=k_inside, other=0.0)
        seen = column[None, :] < T
        if CAUSAL:
            seen = seen & (column[None, :] <= row[:, None])
        scores = tl.dot(query, tl.trans(key)) * scale
        p = tl.where(seen, tl.exp(scores - log_sum[:, None]), 0.0)
        grad += tl.dot(p * (tl.dot(above, tl.trans(value)) - along[:, None]), key)
    tl.store(dq + at, grad * scale, mask=inside)


def keys_kernel(
    q, k, v, o, sums, up, dk, dv, S, T, D, scale, CAUSAL: tl.constexpr, WIDTH: tl.constexpr
):
    batch, d = tl.program_id(1), tl.arange(0, WIDTH)[None, :]
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    k_at = (batch * T + column[:, None]) * D + d
    k_inside = (column[:, None] < T) & (d < D)
    key = tl.load(k + k_at, mask=k_inside, other=0.0)
    value = tl.load(v + k_at, mask=k_inside, other=0.0)
    grad_k = tl.zeros((COLUMNS, WIDTH), tl.float32)
    grad_v = tl.zeros((COLUMNS, WIDTH), tl.float32)
    for start in range(0, S, ROWS):
        row = start + tl.arange(0, ROWS)
        at, inside = (batch * S + row[:, None]) * D + d, (row[:, None] < S) & (d < D)
        query = tl.load(q + at, mask=inside, other=0.0)
        above = tl.load(up + at, mask=inside, other=0.0)
        along = tl.sum(above * tl.load(o + at, mask=inside, other=0.0), axis=1)
        log_sum = tl.load(sums + batch * S + row, mask=row < S, other=0.0)
        seen = row[:, None] < S
        if CAUSAL:
            seen = seen & (column[None, :] <= row[:, None])
        scores = tl.dot(query, tl.trans(key)) * scale
        p = tl.where(seen, tl.exp(scores - log_sum[:, None]), 0.0)
        grad_v += tl.dot(tl.trans(p), above)
        part = p * (tl.dot(above, tl.trans(value)) - along[:, None])
        grad_k += tl.dot(tl.trans(part), query)
    tl.store(dk + k_at, grad_k * scale, mask=k_inside)
    tl.store(dv + k_at, grad_v, mask=k_inside)


class FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        if k.shape != v.shape or q.shape[-1] != k.shape[-1]:
            raise ValueError(f"q {list(q.shape)}, k {list(k.shape)} and v {list(v.shape)}")
        q, k, v = (x.contiguous() for x in (q, k, v))
        (batch, S, D), T = q.shape, k.shape[1]
        ctx.numbers = S, T, D, D**-0.5
        ctx.options = dict(CAUSAL=is_causal, WIDTH=1 << (D - 1).bit_length())
        o, sums = torch.empty_like(q), q.new_empty(batch, S)
        grid = cdiv(S, ROWS), batch
        run(forward_kernel, grid, q, k, v, o, sums, *ctx.numbers, **ctx.options)
        ctx.save_for_backward(q, k, v, o, sums)
        return o

    @staticmethod
    def backward(ctx, up):
        saved, up = ctx.saved_tensors, up.contiguous()
        dq, dk, dv = (torch.empty_like(x) for x in saved[:3])
        S, T, batch = ctx.numbers[0], ctx.numbers[1], len(up)
        run(queries_kernel, (cdiv(S, ROWS), batch), *saved, up, dq, *ctx.numbers, **ctx.options)
        grid = cdiv(T, COLUMNS), batch
        run(keys_kernel, grid, *saved, up, dk, dv, *ctx.numbers, **ctx.options)
        return dq, dk, dv, None
