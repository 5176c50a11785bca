"""Gradients of stage 3 on their way to shards in the memory of the host.

They go through pinned memory, in a stream of their own, while backward computes. The host waits for
a GPU once a backward, at its end.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from ...common.backward import owners, when_backward_ends
from ...common.shards import CannotShard
from ...common.torch_internals import current_backward, hooks_of_others, in_plain_backward
from ...recompute.host_copies import OverlappedCopies


class Landing:
    """Mean gradients on their way from a GPU to the host, in one stream, until backward ends.
    `units` are all of a model, and `running` is not 0 once a backward through them raised."""

    def __init__(self):
        self.units, self.running = [], 0
        self.copies: OverlappedCopies | None = None
        self.leaving: tuple[Tensor, object] | None = None  # the last mean, and the end of its copy
        self.coming: list[tuple[object, Tensor]] = []  # flat tensors, and the means of their shards
        self.end = None  # refers weakly to the end of the backward that they belong to

    def when_backward_ends(self, function: Callable[[], None]):
        def end():
            self.running -= 1
            function()

        self.running += 1
        return when_backward_ends(end)

    def check(self):
        """Raise CannotShard if a backward raised, and gradients of its units are there."""
        if self.running and current_backward() is None:
            if any(s.grad is not None and s.grad.any() for u in self.units for s in u.shards):
                raise CannotShard(
                    "a backward raised, and stage 3 may have lost gradients of the unit in which it"
                    " did: call zero_grad() before the next forward or step."
                )
            self.running = 0
            for unit in [unit for unit in self.units if unit.backward]:
                unit.leave_backward()

    def bring(self, mean: Tensor, flat):
        if self.end is None or self.end() is None:
            self.coming = []  # of a backward that raised
            self.end = when_backward_ends(self.arrive)
        if self.copies is None:
            self.copies = OverlappedCopies(mean.device)
        if self.leaving is not None:  # its memory goes, once the copy has ended
            self.copies.wait(*self.leaving)
        host = self.copies.room(mean)
        self.leaving = mean, self.copies.copy(host, mean, mean.device)
        self.coming.append((flat, host))

    def arrive(self):
        self.copies.finish()
        coming, self.coming, self.leaving, self.end = self.coming, [], None, None
        for flat, host in coming:
            add_gradients(zip(flat.shards, flat.parts(host)))


def brought_home(mean: Tensor, flat) -> list[Tensor | None]:
    """The gradient of each shard, where it rests. On its way from a GPU to the host it is not read
    before backward ends: then it becomes part of shard.grad, and autograd gets None."""
    if mean.is_cuda and not flat.chunk.is_cuda and may_come_late(flat.shards):
        flat.landing.bring(mean.to(flat.chunk.dtype), flat)
        return [None for _ in flat.shards]
    parts = zip(flat.shards, flat.parts(mean.to(flat.chunk)))
    return [part if shard.requires_grad else None for shard, part in parts]


def may_come_late(shards: list[nn.Parameter]) -> bool:
    """Whether gradients may become part of shard.grad later in this backward: not so where a hook
    wants to see them, or nobody fills .grad."""
    watched = any(map(is_watched, shards))
    return not watched and current_backward() is not None and in_plain_backward()


def is_watched(shard: nn.Parameter) -> bool:
    return shard.requires_grad and (shard in owners or hooks_of_others(shard))


def add_gradients(pairs: Iterable[tuple[nn.Parameter, Tensor | None]]):
    for shard, gradient in pairs:
        if gradient is not None and is_watched(shard):
            torch.autograd.backward(shard, gradient)  # calls the hooks
        elif gradient is not None and shard.requires_grad:
            shard.grad = gradient if shard.grad is None else shard.grad.add_(gradient)
