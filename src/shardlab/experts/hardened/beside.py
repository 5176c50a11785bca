"""Rows on their way to experts while the shared experts compute, forward and backward.

                  forward                    backward
    set out       rows begin to travel       their gradients have come
    arrive        rows have come             gradients begin to travel

Autograd runs backward in the opposite order of forward, and the shared experts stand between the
two: so they compute during both journeys.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from ...common.collective_wire import Group
from ...tensor_parallel.core_sequence import Paired
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

    def set_out(self, rows: Tensor, _) -> Tensor:
        return self.begin(rows, self.sent, self.received)

    def arrive(self, rows: Tensor, _) -> Tensor:
        self.wait()
        return rows.view_as(rows)

    def set_out_back(self, gradient: Tensor, _) -> Tensor:
        self.back = self.begin(gradient, self.received, self.sent)
        return gradient  # of which nothing is used: arrive_back has what comes

    def arrive_back(self, *_) -> Tensor:
        self.wait()
        back, self.back = self.back, None
        return back


def travel_beside(
    rows: Tensor, sent: list[int], received: list[int], group: Group, compute: Callable
) -> tuple[Tensor, Tensor]:
    """(the rows that come, what was computed meanwhile)"""
    trip = Trip(sent, received, group)
    coming = Paired.apply(rows, group, trip.set_out, trip.arrive_back)
    made = compute()
    return Paired.apply(coming, group, trip.arrive, trip.set_out_back), made


def forward_beside(layer: MixtureOfExperts, x: Tensor) -> Tensor:  # [..., H]
    """A layer's forward that computes its shared experts while rows travel."""
    if x.is_meta:
        return torch.empty_like(x)
    layer.experts.meanwhile = partial(layer.shared, x)
    y = layer.routed(x)
    shared, layer.experts.meanwhile = layer.experts.meanwhile, None
    return y + shared
