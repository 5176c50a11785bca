"""Row layers that multiply their tokens in chunks. The sum over ranks of a chunk travels while the
next chunk is multiplied.

                      forward                        backward
    SummedChunks      products and all-reduces       nothing is sent, as with `leave`
    ScatteredChunks   products and reduce-scatters   all-gathers and products

A chunk that is scattered has tokens that each rank will own, so x is put in the order of ranks
first. A plain layer does that to the product, which is wider.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ...common.collective_wire import Group
from .late import LateProduct, as_autocast_does, gradient_of_weight
from .layers import RowLinear
from .pairs import (
    begin,
    begin_gather,
    begin_sum,
    collectives_for,
    enter,
    gather,
    leave,
    tokens_by_rank,
)


class RowsInChunks(RowLinear):
    """A RowLinear joined by `leave` or `reduce_scatter`."""

    def __init__(self, chunks: int, *layer):
        super().__init__(*layer)
        self.chunks = chunks

    def forward(self, x: Tensor) -> Tensor:  # [..., in/t]
        late = vars(self).get("product")
        if late is not None and not isinstance(late, LateProduct):
            return super().forward(x)
        x, weight = as_autocast_does(x, self.weight if late is None else late.view)
        rows = SummedChunks if self.join is leave else ScatteredChunks
        y = rows.apply(x, weight, self.group, self.chunks, late)  # [..., out]
        return y if self.bias is None else y.add_(self.bias)


def weight_gradient(ctx, x: Tensor, dy: Tensor) -> Tensor | None:
    """At once, or put off."""
    if not ctx.needs_input_grad[1]:
        return None
    return gradient_of_weight(x, dy) if ctx.late is None else ctx.late.put_off(x, dy)


class SummedChunks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, group, chunks, late):
        ctx.save_for_backward(x, weight)
        ctx.group, ctx.late = group, late
        y = x.new_empty(*x.shape[:-1], len(weight))
        waits = []
        for own, total in zip(chunks_of(x, chunks), chunks_of(y, chunks)):
            torch.mm(own, weight.t(), out=total)
            waits.append(begin_sum(total, group))
        for wait in waits:
            wait()
        return y

    @staticmethod
    def backward(ctx, dy):
        if torch.is_grad_enabled():  # the gradients of all ranks will be made of this one
            dy = enter(dy, ctx.group)
        x, weight = ctx.saved_tensors
        dx = dy @ weight if ctx.needs_input_grad[0] else None
        return dx, weight_gradient(ctx, x, dy), None, None, None


class ScatteredChunks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, group, chunks, late):
        ctx.save_for_backward(x, weight)
        ctx.group, ctx.chunks, ctx.late = group, chunks, late
        parts = in_order_of_ranks(x, group)  # [t, tokens, in/t]
        n, sequence = len(parts), x.shape[1]
        own = x.new_empty(len(x), sequence // n, *x.shape[2:-1], len(weight))
        _, reduce_scatter = collectives_for(x, group)
        leaving = []
        for part, total in zip(parts.chunk(chunks, 1), chunks_of(own, chunks)):
            terms = F.linear(part, weight)
            leaving.append((terms, begin(reduce_scatter, total, terms, group)))
        for _, wait in leaving:
            wait()
        return own

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        if torch.is_grad_enabled():
            dy = gather(dy, ctx.group)
            return dy @ weight, weight_gradient(ctx, x, dy), None, None, None
        coming = [begin_gather(own, ctx.group) for own in chunks_of(dy, ctx.chunks)]
        ctx.maybe_clear_saved_tensors()  # unless the graph is kept: x goes after its last use here
        batch, extra = len(x), x.shape[2:-1]
        parts = list(in_order_of_ranks(x, ctx.group).chunk(ctx.chunks, 1))
        ask = ctx.late.late.ask if ctx.late is not None else lambda: None
        if len(parts) < 3:  # of more, the first one's products are over before all have come
            ask()
        x, dw, dxs = None, None, []
        while parts:
            part, (dys, wait) = parts.pop(0), coming.pop(0)
            wait()
            if ctx.needs_input_grad[1]:
                dw = gradient_of_weight(part, dys, dw)
            part = None  # the last one goes before it has a gradient
            dxs.append(dys @ weight)
            dys = None
            ask()
        dx = dxs[0] if len(dxs) == 1 else torch.cat(dxs, 1)
        dx = dx.unflatten(1, (batch, -1, *extra)).movedim(0, 1).flatten(1, 2)
        return dx, dw, None, None, None


def chunks_of(x: Tensor, chunks: int) -> tuple[Tensor, ...]:
    """Chunks of the tokens, [tokens, ...]"""
    return x.reshape(-1, x.shape[-1]).chunk(chunks)


def in_order_of_ranks(x: Tensor, group: Group) -> Tensor:
    """x [B, S, ..., in/t] to [t, tokens of a rank, in/t]."""
    return tokens_by_rank(x, group).flatten(1, -2).contiguous()
