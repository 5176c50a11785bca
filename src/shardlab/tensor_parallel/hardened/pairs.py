"""The messages of tensor and sequence parallelism: five functions of a tensor, each of which says
what it does forward and what it does backward.

                     forward             backward
    enter            nothing             all-reduce           before a layer cut by columns
    leave            all-reduce          nothing              after a layer cut by rows
    gather           all-gather          reduce-scatter       enter, if each rank has own tokens
    reduce_scatter   reduce-scatter      all-gather           leave, if each rank has own tokens
    scatter          own part            all-gather           whole on all ranks, to own tokens

`enter` and `leave` are each other's backward, and so are `gather` and `reduce_scatter`: a conjugate
pair. Why, in one line: if y = sum of f_r(x) over the ranks r, then x is used by all ranks, so its
gradient is a sum over them, and each f_r has the whole gradient of y.

All ranks of the group call them, in the same order. Parts are equally large, so the size of `dim`
is a multiple of the number of ranks.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from ... import collectives_fast
from ...collective_wire import (
    Group,
    all_gather_single,
    backend_for,
    place,
    reduce_scatter_single,
)

# --- the functions --------------------------------------------------------------------------------


def enter(x: Tensor, group: Group = None) -> Tensor:
    """The tensor x, which all ranks share and multiply by different weights."""
    return _Enter.apply(x, group)


def leave(x: Tensor, group: Group = None) -> Tensor:
    """The sum over all ranks, in the memory of x."""
    return _Leave.apply(x, group)


def gather(x: Tensor, dim: int, group: Group = None) -> Tensor:
    """All ranks' parts, one after the other along dim, before ranks go on with different
    weights."""
    return _Gather.apply(x, dim, group)


def reduce_scatter(x: Tensor, dim: int, group: Group = None) -> Tensor:
    """This rank's part, along dim, of the sum over all ranks."""
    return _ReduceScatter.apply(x, dim, group)


def scatter(x: Tensor, dim: int, group: Group = None) -> Tensor:
    """This rank's part, along dim, of what all ranks have."""
    return _Scatter.apply(x, dim, group)


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return leave(gradient.clone(), ctx.group), None  # others may use this gradient as it is


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        ctx.mark_dirty(x)
        return summed(x, group)

    @staticmethod
    def backward(ctx, gradient):
        return enter(gradient, ctx.group), None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dim, group):
        ctx.dim, ctx.group = dim, group
        return all_gathered(x, dim, group)

    @staticmethod
    def backward(ctx, gradient):
        return reduce_scatter(gradient, ctx.dim, ctx.group), None, None


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dim, group):
        ctx.dim, ctx.group = dim, group
        return reduce_scattered(x, dim, group)

    @staticmethod
    def backward(ctx, gradient):
        return gather(gradient, ctx.dim, ctx.group), None, None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dim, group):
        ctx.dim, ctx.group = dim, group
        return own_slice(x, dim, group).clone()  # so that the whole can go

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        return all_gathered(gradient, ctx.dim, ctx.group), None, None


# --- the moves ------------------------------------------------------------------------------------


def summed(x: Tensor, group: Group) -> Tensor:
    """The sum over the ranks, in place."""
    if x.is_contiguous():
        dist.all_reduce(x, group=group)
        return x
    return x.copy_(summed(x.contiguous(), group))


def all_gathered(x: Tensor, dim: int, group: Group) -> Tensor:
    """Ranks' parts arrive one after the other. Along another dim than the first they must be moved
    to where they belong, which is a copy."""
    n, _ = place(group)
    parts = x.new_empty((n, *x.shape))
    all_gather, _ = collectives_for(x, group)
    all_gather(parts, x.contiguous(), group=group)
    return parts.movedim(0, dim).flatten(dim, dim + 1).contiguous()


def reduce_scattered(x: Tensor, dim: int, group: Group) -> Tensor:
    n, _ = place(group)
    check_even(x, dim, n)
    parts = x.unflatten(dim, (n, -1)).movedim(dim, 0).contiguous()
    own = torch.empty_like(parts[0])
    _, reduce_scatter = collectives_for(x, group)
    reduce_scatter(own, parts, group=group)
    return own


def own_slice(x: Tensor, dim: int, group: Group) -> Tensor:
    """A view."""
    n, me = place(group)
    check_even(x, dim, n)
    return x.unflatten(dim, (n, -1)).select(dim, me)


def check_even(x: Tensor, dim: int, n: int):
    if x.shape[dim] % n:
        raise ValueError(
            f"dim {dim} of {list(x.shape)} is cut for {n} ranks: {x.shape[dim]} must be a multiple"
            f" of {n}."
        )


def collectives_for(x: Tensor, group: Group) -> tuple[Callable, Callable]:
    """(all-gather, reduce-scatter) for x. gloo makes its reduce-scatter by an all-reduce, so this
    book's ring sends half as much."""
    if backend_for(x.device.type, group) == "gloo":
        return collectives_fast.all_gather, collectives_fast.reduce_scatter
    return all_gather_single, reduce_scatter_single
