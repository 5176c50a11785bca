"""Tensor parallelism whose messages travel while the GPU multiplies.

    plan = overlapped(gpt_plan(config), chunks=2)     # or of sequence_parallel(gpt_plan(config))
    apply_tensor_parallel(model, plan, group)

Forward, a row layer multiplies its tokens in chunks, and the sum of a chunk travels while the next
one is multiplied (chunks.py). Backward, the gradients of weights are made last, while the gradient
of the module's input travels (late.py):

    compute     | rows 1 | rows 2 |                    | dx of rows | dx of columns | dW of both |
    messages             | sum 1  | sum 2 |                                         | sum of dx  |

With sequence parallelism dW of the rows hides the tokens that are gathered again, and dW of the
columns hides the reduce-scatter of dx.

Each chunk pays the latency of a message, so more chunks gain time only where the product of a chunk
takes longer than that. With one chunk, backward alone overlaps.

Backward of a module keeps what its weight gradients are made of until then, and a step of a GPT
peaks no higher than without overlap. The gradient of x is made in memory from which it is sent: the
sum of dx takes the place of dx, and with sequence parallelism dx is multiplied in the order of
ranks, while the gathered tokens are still there. A layer alone, without a model around it, keeps
the rows' input longer.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from ..core import Enter
from .chunks import RowsInChunks
from .late import LateGradients
from .layers import Parts, RowLinear
from .pairs import begin_scatter, begin_sum, gather, leave, reduce_scatter, tokens_by_rank
from .plan import Around, Rows, TensorPlan, Whole
from .sequence import AroundGathered, keeps_own_tokens


def overlapped(plan: TensorPlan, chunks: int = 1) -> dict[str, tuple[Whole, ...]]:
    """The plan with messages that overlap with products. A kind of entry or a join of your own
    stays as it is. Linear layers whose weight gradients a pipeline puts off overlap no messages.

    Raises ValueError for fewer than one chunk."""
    if isinstance(chunks, bool) or not isinstance(chunks, int) or chunks < 1:
        raise ValueError(f"chunks = {chunks!r}: a row layer's tokens are cut into 1 chunk or more.")

    def overlaps(entry: Whole) -> Whole:
        if type(entry) is Around:
            return AroundLate()
        if type(entry) is AroundGathered:
            return AroundGatheredLate(entry.regather)
        if type(entry) is Rows and entry.join in (leave, reduce_scatter):
            return RowsByChunks(entry.pieces, entry.heads, entry.join, chunks)
        return entry

    return {
        name: tuple(map(overlaps, entry if isinstance(entry, tuple) else (entry,)))
        for name, entry in plan.items()
    }


@dataclass(frozen=True)
class RowsByChunks(Rows):
    chunks: int = 1

    def split(self, module: nn.Linear, parts: Parts) -> RowLinear:
        return RowsInChunks(self.chunks, module, self.cuts(module), parts, self.join)


class AroundLate(Around):
    """Around, with weight gradients that are made while the gradient of x travels."""

    def run(self, module: nn.Module, compute: Callable, group, x: Tensor) -> Tensor:
        late = LateGradients()
        with late.weights_of(module):
            return compute(EnterLate.apply(x, group, late))


class AroundGatheredLate(AroundGathered):
    def run(self, module: nn.Module, compute: Callable, group, x: Tensor) -> Tensor:
        late = LateGradients()
        with late.weights_of(module):
            whole = GatherLate.apply(x, group, late, not self.regather)
            if not self.regather:
                return compute(whole)
            with keeps_own_tokens(whole, x, group) as kept:
                late.regathered = weakref.ref(kept)
                return compute(whole)


# --- autograd functions ---------------------------------------------------------------------------


class EnterLate(Enter):
    """In front of columns, as `enter` is."""

    @staticmethod
    def forward(ctx, x, group, late):
        ctx.set_materialize_grads(False)
        ctx.late = late
        return Enter.forward(ctx, x, group)

    @staticmethod
    def backward(ctx, dx):
        if torch.is_grad_enabled():
            return *Enter.backward(ctx, dx), None
        total = ctx.late.input_gradient(dx, lambda y: y.unsqueeze(0))
        if total is None and dx is None:
            return None, None, None
        total = dx.clone(memory_format=torch.contiguous_format) if total is None else total[0]
        wait = begin_sum(total, ctx.group)
        ctx.late.make()
        wait()
        return total, None, None


class GatherLate(torch.autograd.Function):
    """In front of columns, as `gather` is."""

    @staticmethod
    def forward(ctx, x, group, late, in_place):
        ctx.set_materialize_grads(False)
        ctx.late, ctx.group, ctx.in_place = late, group, in_place
        return gather(x, group)

    @staticmethod
    def backward(ctx, dx):
        if torch.is_grad_enabled():
            return reduce_scatter(dx, ctx.group), None, None, None
        by_rank = partial(tokens_by_rank, group=ctx.group)
        parts = ctx.late.input_gradient(dx, by_rank)
        if parts is None and dx is None:
            return None, None, None, None
        in_place = ctx.in_place and parts is not None
        parts = by_rank(dx).contiguous() if parts is None else parts
        own, wait = begin_scatter(parts, ctx.group, in_place)
        ctx.late.make()
        wait()
        return own.clone() if in_place else own, None, None, None
