"""The core's three mixes, by fused kernels: scores of a block are never in memory.

A causal ring has one kernel a turn, because the halves of a rank that meet those of another one
make a rectangle. Other rules and packed rows take the core's blocks, whose scores [s/2, s/2] are in
memory one block at a time. Of PyTorch's kernels that return a log-sum-exp, flash on a GPU takes no
mask, and the others take a bias that is in memory.

Messages travel while blocks are computed: gloo has threads for them, NCCL a stream. The ring keeps
what is sent until its work was waited for, so the memory is not given to another tensor before.
"""

from collections.abc import Iterator

import torch.nn.functional as F
from torch import Tensor

from ...common.torch_internals import (
    disable_modes,
    fused_block,
    fused_block_backward,
    has_fused_blocks,
    never_compiled,
)
from .. import core
from ..core_masks import Causal
from ..core_ring import Blocks, Passing, RingOfKeys


class PassingOrPlanned(Passing):
    """No message on the meta device, on which a pipeline is planned."""

    def __init__(self, x: Tensor, context, by: int = 1):
        super().__init__(x, context, 0 if x.is_meta else by)


class FusedBlocks(Blocks):
    """The blocks of a turn as one rectangle. What is seen is True for a causal square, False for a
    rectangle that is seen whole."""

    passing = PassingOrPlanned

    def at(self, turn: int, q: Tensor) -> Iterator[tuple[slice, slice, Tensor | bool]]:
        context, half, whole = self.context, q.shape[-2] // 2, slice(None)
        later = turn > context.rank  # these keys came round from a rank with a higher number
        fused = has_fused_blocks(q.flatten(1, 2), q[:, :, 0])  # a key for each group of queries
        if not fused or not is_causal(context, self.positions):
            yield from super().at(turn, q)
        elif not turn:
            yield whole, whole, True
        elif not context.zigzag and not later:
            yield whole, whole, False
        elif context.zigzag:  # to the first half of earlier keys, or by the second of own queries
            second = slice(half, None)
            yield (second, whole, False) if later else (whole, slice(half), False)

    def attend(self, q, k, v, seen):
        if isinstance(seen, Tensor):
            return super().attend(q, k, v, seen)
        mixed, lse = fused_block(q.flatten(1, 2), k.squeeze(2), v.squeeze(2), seen)
        return mixed.unflatten(1, q.shape[1:3]), lse.unflatten(1, q.shape[1:3]).unsqueeze(-1)

    def backward(self, dmixed, mixed, lse, q, k, v, seen):
        if isinstance(seen, Tensor):
            return super().backward(dmixed, mixed, lse, q, k, v, seen)
        dmixed, heads, mixed = (t.flatten(1, 2) for t in (dmixed, q, mixed))
        lse = lse.flatten(1, 2).squeeze(-1).contiguous()
        given = dmixed, heads, k.squeeze(2), v.squeeze(2), mixed, lse
        dq, dk, dv = fused_block_backward(*given, seen)
        return dq.unflatten(1, q.shape[1:3]), dk.unsqueeze(2), dv.unsqueeze(2)


def is_causal(context: core.Context, positions: Tensor | None) -> bool:
    return type(context.rule) is Causal and positions is None


class Mix(core.Mix):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, queries: range) -> Tensor:
        """Without a mask in memory where a kernel knows a causal one: of a square everywhere, of a
        rectangle whose last rows and columns meet on a GPU."""
        square, grouped, mask = q.shape[2] == k.shape[2], q.shape[1] != k.shape[1], None
        causal = is_causal(self.context, self.context.positions)
        if not causal:  # of a GPU's fused kernels none takes both a mask and keys that heads share
            k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        if not causal or not (square or q.is_cuda):
            return super().attend(q, k, v, queries)
        if not square:
            with disable_modes():  # a ledger would look into it
                from torch.nn.attention.bias import causal_lower_right  # imports the compiler

                mask = causal_lower_right(q.shape[2], k.shape[2])
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=square, enable_gqa=grouped)


class RingAttention(Mix):
    @never_compiled
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return RingOfKeys.apply(q, k, v, FusedBlocks(self.context))


class GatheredAttention(Mix, core.GatheredAttention):
    forward = never_compiled(core.GatheredAttention.forward)


class Ulysses(Mix, core.Ulysses):
    forward = never_compiled(core.Ulysses.forward)
