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
from ..core_sequence import Paired

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


def gather(x: Tensor, group: Group = None) -> Tensor:
    """All ranks' tokens, before ranks go on with different weights."""
    return Paired.apply(x, group, all_gathered, reduce_scatter)


def reduce_scatter(x: Tensor, group: Group = None) -> Tensor:
    """This rank's tokens of the sum over all ranks."""
    return Paired.apply(x, group, reduce_scattered, gather)


def all_gathered(x: Tensor, group: Group) -> Tensor:  # [B, S/t, H]
    parts, wait = begin_gather(x, group)
    wait()
    return in_order(parts)


def begin_gather(x: Tensor, group: Group) -> tuple[Tensor, Callable]:
    """Ranks' parts [t, *x.shape], which are there once the function has been called."""
    n, _ = place(group)
    parts = x.new_empty((n, *x.shape))
    if goes_round(x, group):
        collectives_fast.all_gather(parts, x.contiguous(), group=group)
        return parts, lambda: None
    return parts, all_gather_single(parts, x.contiguous(), group=group, async_op=True).wait


def in_order(parts: Tensor) -> Tensor:  # [t, B, S/t, H]
    """Ranks' parts arrive one after the other. They must be moved to where they belong, which is a
    copy."""
    return parts.movedim(0, 1).flatten(1, 2).contiguous()  # [B, S, H]


def reduce_scattered(x: Tensor, group: Group) -> Tensor:  # [B, S, H]
    parts = tokens_by_rank(x, group).contiguous()
    own = torch.empty_like(parts[0])
    begin_scatter(own, parts, group)()
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


def begin_scatter(own: Tensor, parts: Tensor, group: Group) -> Callable:
    """This rank's part of the sum, which is there once the function has been called. It may lie
    where this rank's term was."""
    if goes_round(parts, group):
        collectives_fast.reduce_scatter(own, parts, group=group)
        return lambda: None
    return reduce_scatter_single(own, parts, group=group, async_op=True).wait


def begin_sum(x: Tensor, group: Group) -> Callable:
    """The sum over ranks, in the memory of x, once the function has been called."""
    return dist.all_reduce(x, group=group, async_op=True).wait


def goes_round(x: Tensor, group: Group) -> bool:
    """Whether the ring of this book sends x, which has arrived when the call returns. gloo makes
    its reduce-scatter by an all-reduce."""
    return backend_for(x.device.type, group) == "gloo"
