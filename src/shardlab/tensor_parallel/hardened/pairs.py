"""The messages of tensor and sequence parallelism: four functions of a tensor, each of which says
what it does forward and what it does backward.

                     forward             backward
    enter            nothing             all-reduce           before a layer cut by columns
    leave            all-reduce          nothing              after a layer cut by rows
    gather           all-gather          reduce-scatter       enter, if each rank has own tokens
    reduce_scatter   reduce-scatter      all-gather           leave, if each rank has own tokens

They are the core's, in fewer bytes: `leave` sums in place, and on gloo the other two take the ring
of this book, which sends half as much. A function of a function's gradient sends, too, so gradients
of gradients are right.

All ranks of the group call them, in the same order.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from ... import collectives_fast
from ...common.collective_wire import (
    Group,
    all_gather_single,
    backend_for,
    place,
    reduce_scatter_single,
)
from .. import core
from ..core import enter

__all__ = ["all_gathered", "enter", "gather", "leave", "reduce_scatter"]


def leave(x: Tensor, group: Group = None) -> Tensor:
    """The sum over all ranks, in the memory of x."""
    return _LeaveInPlace.apply(x, group)


class _LeaveInPlace(core.Leave):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        ctx.mark_dirty(x)
        whole = x.contiguous()
        dist.all_reduce(whole, group=group)
        return x if whole is x else x.copy_(whole)


class _Pair(torch.autograd.Function):
    """A message forward, and the function that is its backward."""

    @staticmethod
    def forward(ctx, x, group, send, back):
        ctx.group, ctx.back = group, back
        return send(x, group)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.back(gradient, ctx.group), None, None, None


def gather(x: Tensor, group: Group = None) -> Tensor:
    """All ranks' tokens, before ranks go on with different weights."""
    return _Pair.apply(x, group, all_gathered, reduce_scatter)


def reduce_scatter(x: Tensor, group: Group = None) -> Tensor:
    """This rank's tokens of the sum over all ranks."""
    return _Pair.apply(x, group, reduce_scattered, gather)


def all_gathered(x: Tensor, group: Group) -> Tensor:  # [B, S/t, H]
    parts, wait = begin_gather(x, group)
    wait()
    return in_order(parts)


def begin_gather(x: Tensor, group: Group) -> tuple[Tensor, Callable]:
    """Ranks' parts [t, *x.shape], which are there once the function has been called."""
    n, _ = place(group)
    parts = x.new_empty((n, *x.shape))
    all_gather, _ = collectives_for(x, group)
    return parts, begin(all_gather, parts, x.contiguous(), group)


def in_order(parts: Tensor) -> Tensor:  # [t, B, S/t, H]
    """Ranks' parts arrive one after the other. They must be moved to where they belong, which is a
    copy."""
    return parts.movedim(0, 1).flatten(1, 2).contiguous()  # [B, S, H]


def reduce_scattered(x: Tensor, group: Group) -> Tensor:  # [B, S, H]
    own, wait = begin_scatter(tokens_by_rank(x, group).contiguous(), group)
    wait()
    return own  # [B, S/t, H]


def tokens_by_rank(x: Tensor, group: Group) -> Tensor:  # [B, S, H]
    """A view [t, B, S/t, H]: the tokens of each rank."""
    n, _ = place(group)
    if x.shape[1] % n:
        raise ValueError(
            f"dim 1 of {list(x.shape)} is cut for {n} ranks: {x.shape[1]} must be a multiple of"
            f" {n}."
        )
    return x.unflatten(1, (n, -1)).movedim(1, 0)


def begin_scatter(parts: Tensor, group: Group, in_place: bool = False) -> tuple[Tensor, Callable]:
    """This rank's part of the sum, which is there once the function has been called: where its own
    term was, or in memory of its own."""
    own = parts[place(group)[1]] if in_place else torch.empty_like(parts[0])
    _, reduce_scatter = collectives_for(parts, group)
    return own, begin(reduce_scatter, own, parts, group)


def begin_sum(x: Tensor, group: Group) -> Callable:
    """The sum over ranks, in the memory of x, once the function has been called."""
    return dist.all_reduce(x, group=group, async_op=True).wait


def begin(collective: Callable, to: Tensor, source: Tensor, group: Group) -> Callable:
    """Begin a collective; returns the function that waits for it. Those of this book are done when
    their call returns."""
    if collective in (all_gather_single, reduce_scatter_single):
        return collective(to, source, group=group, async_op=True).wait
    collective(to, source, group=group)
    return lambda: None


def collectives_for(x: Tensor, group: Group) -> tuple[Callable, Callable]:
    """(all-gather, reduce-scatter) for x. gloo makes its reduce-scatter by an all-reduce."""
    if backend_for(x.device.type, group) == "gloo":
        return collectives_fast.all_gather, collectives_fast.reduce_scatter
    return all_gather_single, reduce_scatter_single
