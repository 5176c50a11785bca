"""Races of `make bench` for context parallelism: this book's three mixes, a ring that does not
overlap, and the core's, beside PyTorch's ring. PyTorch's context_parallel gives that one to GPUs
alone; handed the kernel of the CPU, it runs here too, in the zigzag order that it calls head-tail.
"""

from collections.abc import Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from coursekit.recordings import races
from coursekit.recordings.races import TINY, TURNS, Bench, Result, TrainingTask, Way
from shardlab import context_parallel
from shardlab.common.torch_internals import (
    FUSED_ATTENTION,
    FUSED_ATTENTION_BACKWARD,
    torch_ring,
)
from shardlab.context_parallel import Context, core
from shardlab.context_parallel.core_ring import RingOfKeys
from shardlab.context_parallel.hardened.mixes import FusedBlocks, PassingOrPlanned
from shardlab.data_parallel import DistributedDataParallel
from shardlab.gpt import next_token_loss

LONG_TASKS = (
    TrainingTask(
        "2,048 tokens",
        dict(layers=2, hidden=128, heads=8, vocabulary=512, max_sequence=2048, key_value_heads=4),
        1,
    ),
)


# --- the ways -------------------------------------------------------------------------------------


class PassingThatWaits(PassingOrPlanned):
    """A tensor that the next rank has before anything is computed."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.wait()
        self.works = []


class BlocksAfterMessages(FusedBlocks):
    passing = PassingThatWaits


class RingWithoutOverlap(core.Mix):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return RingOfKeys.apply(q, k, v, BlocksAfterMessages(self.context))


class TorchRing(torch.autograd.Function):
    """PyTorch's ring with the fused kernel of the CPU."""

    @staticmethod
    def forward(ctx, q, k, v, group):
        forward, _ = torch_ring()
        mixed, lse = forward(group, 2, FUSED_ATTENTION[0], q, k, v, is_causal=True)
        ctx.save_for_backward(q, k, v, mixed, lse)
        ctx.group = group
        return mixed

    @staticmethod
    def backward(ctx, grad):
        q, k, v, mixed, lse = ctx.saved_tensors
        _, backward = torch_ring()
        given = dict(query=q, key=k, value=v, out=mixed, logsumexp=lse, is_causal=True)
        kernel = FUSED_ATTENTION_BACKWARD[0]
        found = backward(ctx.group, 2, kernel, grad, "grad_out", **given, dropout_p=0.0)
        return *found[:3], None


class TorchRingAttention(core.Mix):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return TorchRing.apply(q, k, v, self.context.group or dist.group.WORLD)


def in_context(
    net: nn.Module, optimizer_cls: type, mix: type, by=context_parallel, **settings
) -> tuple:
    """(loss and gradients of whole sequences, optimizer): every rank computes with its tokens, and
    gradients are averaged as data parallelism averages them."""
    context = Context() if by is context_parallel else by.Context()
    called = DistributedDataParallel(by.context_parallel(net, context, mix))
    optimizer = optimizer_cls(net.parameters(), **settings)

    def gradients(tokens: Tensor, targets: Tensor) -> Tensor:
        own, count = context.own(targets), tokens.numel() / context.ranks
        loss = next_token_loss(called(context.own(tokens)), own, count)
        loss.backward()
        return loss.detach()

    return gradients, optimizer


OWN_RING, TORCH_RING = "ring", "PyTorch, ring"
WAYS = {
    OWN_RING: Way(in_context, dict(mix=context_parallel.RingAttention), (TORCH_RING,)),
    "ring, no overlap": Way(in_context, dict(mix=RingWithoutOverlap), (TORCH_RING,)),
    "ring, core": Way(in_context, dict(mix=core.RingAttention, by=core), (TORCH_RING,)),
    "gathered": Way(in_context, dict(mix=context_parallel.GatheredAttention), (TORCH_RING,)),
    "Ulysses": Way(in_context, dict(mix=context_parallel.Ulysses), (TORCH_RING,)),
    TORCH_RING: Way(in_context, dict(mix=TorchRingAttention)),
}
weighed_sequences = partial(races.weighed, step=races.step_by, tokens=TrainingTask.shared_tokens)


# --- make bench -----------------------------------------------------------------------------------


def race(
    tasks: Sequence[TrainingTask] = LONG_TASKS, counts: Sequence[int] = (2, 4), turns: int = TURNS
) -> list[Result]:
    """Step times in turns, peak bytes and bytes sent of each way, beside PyTorch's ring."""
    settings = dict(step=races.step_by, tokens=TrainingTask.shared_tokens)
    given = WAYS, weighed_sequences, tasks, counts, turns
    return races.race_of_ways("context_parallel", *given, **settings)


# a sequence of 8 tokens is cut for two ranks
BENCHES = (Bench("long-sequences", race, dict(tasks=(TINY,), counts=(2,), turns=2)),)
