"""Recordings of `make gpu` and races of `make bench` for context parallelism: this book's three
mixes, a ring that does not overlap, and the core's, beside PyTorch's ring, whose keys are passed on
or gathered. PyTorch's context_parallel gives that one to GPUs alone; handed a kernel, it runs on
CPUs too, in the zigzag order that it calls head-tail.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import lcm

import torch
import torch.distributed as dist
from torch import Tensor, nn

from coursekit.recordings import races
from coursekit.recordings.attempts import attempt
from coursekit.recordings.races import TINY, TURNS, Bench, Result, Run, TrainingTask, Way
from coursekit.recordings.recordings import Row
from shardlab import context_parallel
from shardlab.common.torch_internals import fused_block, fused_block_backward
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


def torch_ring(rotate: str) -> tuple[Callable, Callable]:
    """PyTorch's ring attention, forward and backward. Keys and values are passed on ("alltoall") or
    gathered ("allgather", its default)."""
    from torch.distributed.tensor.experimental import _attention

    _attention.set_rotate_method(rotate)
    forward = _attention._templated_ring_attention
    return forward, sys.modules[forward.__module__]._templated_ring_attention_backward


class TorchRing(torch.autograd.Function):
    """PyTorch's ring with the fused kernel of the device."""

    @staticmethod
    def forward(ctx, q, k, v, group, rotate):
        kernel = lambda q, k, v, is_causal: fused_block(q, k, v, is_causal)
        mixed, lse = torch_ring(rotate)[0](group, 2, kernel, q, k, v, is_causal=True)
        ctx.save_for_backward(q, k, v, mixed, lse)
        ctx.group, ctx.rotate = group, rotate
        return mixed

    @staticmethod
    def backward(ctx, grad):
        q, k, v, mixed, lse = ctx.saved_tensors
        given = dict(query=q, key=k, value=v, out=mixed, logsumexp=lse, is_causal=True)
        kernel = lambda query, key, value, out, logsumexp, is_causal, grad: fused_block_backward(
            grad, query, key, value, out, logsumexp, is_causal
        )
        backward = torch_ring(ctx.rotate)[1]
        return *backward(ctx.group, 2, kernel, grad, "grad", **given)[:3], None, None


class TorchRingAttention(core.Mix):
    rotate = "alltoall"

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return TorchRing.apply(q, k, v, self.context.group or dist.group.WORLD, self.rotate)


class TorchGatheredAttention(TorchRingAttention):
    rotate = "allgather"


def in_context(
    net: nn.Module, optimizer_cls: type, mix: type, by=context_parallel, zigzag=True, **settings
) -> tuple:
    """(loss and gradients of whole sequences, optimizer): every rank computes with its tokens, and
    gradients are averaged as data parallelism averages them. Fused kernels of a GPU take 16 bits.
    """
    if next(net.parameters()).is_cuda:
        net.to(torch.bfloat16)
    context = (Context if by is context_parallel else by.Context)(zigzag=zigzag)
    called = DistributedDataParallel(by.context_parallel(net, context, mix))
    optimizer = optimizer_cls(net.parameters(), **settings)

    def gradients(tokens: Tensor, targets: Tensor) -> Tensor:
        own, count = context.own(targets), tokens.numel() / context.ranks
        loss = next_token_loss(called(context.own(tokens)), own, count)
        loss.backward()
        return loss.detach()

    return gradients, optimizer


OWN_RING, TORCH_RING, TORCH_GATHERED = "ring", "PyTorch, ring", "PyTorch, gathered"
TORCH_MIXES = TORCH_RING, TORCH_GATHERED
WAYS = {
    OWN_RING: Way(in_context, dict(mix=context_parallel.RingAttention), TORCH_MIXES),
    "ring, no overlap": Way(in_context, dict(mix=RingWithoutOverlap), TORCH_MIXES),
    "ring, core": Way(in_context, dict(mix=core.RingAttention, by=core), TORCH_MIXES),
    "gathered": Way(in_context, dict(mix=context_parallel.GatheredAttention), TORCH_MIXES),
    "Ulysses": Way(in_context, dict(mix=context_parallel.Ulysses, zigzag=False), TORCH_MIXES),
    TORCH_RING: Way(in_context, dict(mix=TorchRingAttention)),
    TORCH_GATHERED: Way(in_context, dict(mix=TorchGatheredAttention)),
}
weighed_sequences = partial(races.weighed, **races.OWN_BACKWARD)


# --- make gpu -------------------------------------------------------------------------------------


def long_sequences(
    device: torch.device, task: TrainingTask | None = None, turns: int = 7
) -> Iterator[Row]:
    """Right gradients, bytes sent, peaks and times of a step of each mix."""
    for case, trained in races.layouts(device, task):
        part = f"long_sequences, {case['ranks']} ranks"
        trained = in_one_sequence(trained, case["ranks"])
        case |= dict(heads=trained.sizes["heads"], tokens=trained.sizes["max_sequence"])
        given = "context_parallel", part, case, WAYS, trained, turns, rows_of
        yield from attempt(part, races.rows_of_ways(*given, **races.OWN_BACKWARD))


def in_one_sequence(task: TrainingTask, count: int) -> TrainingTask:
    """The task's tokens as one sequence, of which each rank has two chunks, and as many heads."""
    tokens = lcm(task.microbatch * task.sizes["max_sequence"], 2 * count)
    sizes = {**task.sizes, "max_sequence": tokens}
    return races.cut_heads(task._replace(sizes=sizes, microbatch=1), count)


def rows_of(world, way: Way, task: TrainingTask, case: dict) -> Iterator[Row]:
    device = case["device"]
    right, of = world.run(right_means, way, task, device)[0]
    yield Row("context_parallel.right_gradients", right, "count", case, "parameter_tensors", of)
    found = world.run(weighed_sequences, way, task, device=device)[0]
    yield from races.weight_rows("context_parallel", found, case)


def right_means(way: Way, task: TrainingTask, device: str) -> tuple[int, int]:
    """On a rank: (parameters whose gradient is the plain model's, all of them)"""
    plain, net, tokens = task.model(device), task.model(device), task.shared_tokens(device)
    gradients, _ = way.build(net, torch.optim.SGD, lr=0.1)
    gradients(tokens, tokens)
    plain.to(next(net.parameters()).dtype)
    next_token_loss(plain(tokens), tokens).backward()
    pairs, within = zip(net.parameters(), plain.parameters()), 0.1 if device == "cuda" else 1e-4
    close = [(a.grad - b.grad).norm() <= within * b.grad.norm() for a, b in pairs]
    return sum(map(bool, close)), len(close)


# --- make bench -----------------------------------------------------------------------------------


def race(
    tasks: Sequence[TrainingTask] = LONG_TASKS, counts: Sequence[int] = (2, 4), turns: int = TURNS
) -> list[Result]:
    """Step times in turns, peak bytes and bytes sent of each way, beside PyTorch's ring."""
    given = WAYS, weighed_sequences, tasks, counts, turns
    return races.race_of_ways("context_parallel", *given, **races.OWN_BACKWARD)


WIDE_TINY = TINY._replace(
    sizes={**TINY.sizes, "hidden": 64}
)  # 8 heads of 8, which a GPU's kernel takes
RUNS = (Run(46, long_sequences, dict(task=WIDE_TINY, turns=1)),)
# a sequence of 8 tokens is cut for two ranks
BENCHES = (Bench("long-sequences", race, dict(tasks=(TINY,), counts=(2,), turns=2)),)
