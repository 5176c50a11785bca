"""Rows on their way to experts while the shared experts compute, forward and backward.

Autograd runs backward in the opposite order of forward. `Begin`, the shared experts and `Arrive`
stand in this order, so backward begins the way back in Arrive, computes the shared experts'
gradients, and waits in Begin.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from ...common.collective_wire import Group
from ..core import MixtureOfExperts


class Trip:
    """Rows to ranks and their gradients back: what is on its way, and the work to wait for."""

    def __init__(self, sent: list[int], received: list[int], group: Group):
        self.sent, self.received, self.group = sent, received, group

    def begin(self, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        self.leaving = rows.contiguous()  # its memory is read until the work is done
        got = rows.new_empty(sum(received), *rows.shape[1:])
        self.work = dist.all_to_all_single(
            got, self.leaving, received, sent, group=self.group, async_op=True
        )
        return got

    def wait(self):
        self.work.wait()
        self.work = self.leaving = None  # the work holds what came, too


class Begin(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, trip):
        ctx.trip = trip
        return trip.begin(rows, trip.sent, trip.received)

    @staticmethod
    def backward(ctx, gradient):
        ctx.trip.wait()
        back, ctx.trip.back = ctx.trip.back, None
        return back, None


class Arrive(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, trip):
        ctx.trip = trip
        trip.wait()
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx, gradient):
        trip = ctx.trip
        trip.back = trip.begin(gradient, trip.received, trip.sent)
        return gradient, None  # Begin has what comes back


def travel_beside(
    rows: Tensor, sent: list[int], received: list[int], group: Group, compute: Callable
) -> tuple[Tensor, Tensor]:
    """(the rows that come, what was computed meanwhile)"""
    trip = Trip(sent, received, group)
    coming = Begin.apply(rows, trip)
    made = compute()
    return Arrive.apply(coming, trip), made


def compute_beside(layer: MixtureOfExperts):
    """The layer computes its shared experts while rows travel, in place."""
    layer.forward = partial(forward_beside, layer)


def forward_beside(layer: MixtureOfExperts, x: Tensor) -> Tensor:  # [..., H]
    if x.is_meta:
        return torch.empty_like(x)
    layer.experts.meanwhile = partial(layer.shared, x)
    y = layer.routed(x)
    shared, layer.experts.meanwhile = layer.experts.meanwhile, None
    return y + shared
