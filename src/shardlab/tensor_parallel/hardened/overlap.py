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

Backward of a module keeps what its weight gradients are made of until then. The sum of dx takes the
memory of dx, so that tensor parallelism has the peak that it has without overlap. With sequence
parallelism the gathered tokens are still there while dx is copied into the order of ranks: a layer
of h = 2,048, on eight ranks with two sequences of 2,048 tokens in bf16, peaks 15 MB higher, of 350,
and 3 MB higher where tokens are gathered again. One sequence needs no copy: 2 MB; gathered again,
12 MB, as the tokens arrive beside the gathered gradient of the rows.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...common.torch_internals import storage_key
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
        return RowsInChunks(module, self.pieces, parts, self.join, self.chunks)


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
            whole = GatherLate.apply(x, group, late)
            if not self.regather:
                return compute(whole)
            with keeps_own_tokens(whole, x, group) as kept:
                late.ask = kept.ask
                return compute(whole)


# --- autograd functions ---------------------------------------------------------------------------


class EnterLate(Enter):
    """In front of columns, as `enter` is."""

    @staticmethod
    def forward(ctx, x, group, late):
        ctx.late = late
        return Enter.forward(ctx, x, group)

    @staticmethod
    def backward(ctx, dx):
        if torch.is_grad_enabled():
            return *Enter.backward(ctx, dx), None
        total = (dx if ctx.late.takes_input_gradient() else dx.clone()).contiguous()
        wait = begin_sum(total, ctx.group)
        ctx.late.make()
        wait()
        return total, None, None


class GatherLate(torch.autograd.Function):
    """In front of columns, as `gather` is."""

    @staticmethod
    def forward(ctx, x, group, late):
        ctx.late, ctx.group = late, group
        return gather(x, group)

    @staticmethod
    def backward(ctx, dx):
        if torch.is_grad_enabled():
            return reduce_scatter(dx, ctx.group), None, None
        parts = tokens_by_rank(dx, ctx.group).contiguous()
        copied = storage_key(parts.untyped_storage()) != storage_key(dx.untyped_storage())
        if ctx.late.takes_input_gradient() and copied:
            dx.untyped_storage().resize_(0)  # autograd holds it to the end of this function
        own, wait = begin_scatter(parts, ctx.group)
        ctx.late.make()
        wait()
        return own, None, None
