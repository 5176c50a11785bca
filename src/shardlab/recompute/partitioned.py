"""Partitioned activations: ranks that have the same input keep a part of it each.

    y = checkpoint_partitioned(group, block, x)        # x is the same on all ranks of the group

Under tensor parallelism every rank has the whole input of each layer, so a checkpoint on each of t
ranks keeps it t times. Here a rank keeps 1/t of it, and gathers the others' parts when backward
needs it: one all-gather for each checkpoint. With sequence parallelism the input is cut by tokens
already, so there is nothing to partition, and checkpoint_partitioned refuses in backward: elements
of the first input of each shape are compared.

Source: Rajbhandari et al. 2020 (ZeRO-R), section 6.1; DeepSpeed's partition_activations.
"""

from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from ..common.collective_wire import place
from .hardened.checkpointing import CheckpointError, checkpoint, put_together, taken_apart

compared: WeakKeyDictionary = WeakKeyDictionary()  # group -> shapes that were alike on its ranks
SAMPLE = 64  # elements


def checkpoint_partitioned(group: dist.ProcessGroup | None, function: Callable, *args, **named):
    """checkpoint(function, *args, **named) whose tensors of floating point are kept in parts. They
    are the same on all ranks of the group, which call this, and run its backward, in the same
    order.

    Raises what checkpoint() raises, and CheckpointError for an input that ranks do not share."""
    whole, others = taken_apart((args, named))
    run = Partitioned(group or dist.group.WORLD, function, whole, others)
    return checkpoint(run, *map(run.part, whole))


class Partitioned:
    """A function of parts: its first run has the whole tensors, and a later one gathers them."""

    def __init__(self, group: dist.ProcessGroup, function: Callable, whole: list[Tensor], others):
        self.group, self.function, self.others = group, function, others
        self.alike = compared.setdefault(group, set())
        self.about = [(each.shape, each.requires_grad, self.new_sample(each)) for each in whole]
        self.for_the_first_run: list[Tensor] | None = whole

    def __call__(self, *parts: Tensor):
        whole, self.for_the_first_run = self.for_the_first_run, None
        if whole is None:
            whole = [self.whole(part, *about) for part, about in zip(parts, self.about)]
        args, named = put_together(whole, self.others)
        return self.function(*args, **named)

    def new_sample(self, whole: Tensor) -> Tensor | None:
        """Elements of the first input of a shape: to compare each would be a wait for a GPU."""
        if whole.shape in self.alike or dist.get_backend(self.group) == "fake":
            return None
        return sample_of(whole)

    @torch.no_grad()
    def part(self, whole: Tensor) -> Tensor:
        """This rank's run of the elements; zeros fill the last one up."""
        if not whole.is_floating_point():
            return whole
        n, me = place(self.group)
        flat, each = whole.flatten(), -(-whole.numel() // n)
        own = flat[me * each : (me + 1) * each]
        return F.pad(own, (0, each - len(own))).clone()

    @torch.no_grad()
    def whole(
        self, part: Tensor, shape: torch.Size, requires_grad: bool, sample: Tensor | None
    ) -> Tensor:
        if part.is_floating_point():
            n, _ = place(self.group)
            parts = part.new_empty(n * len(part))
            dist.all_gather(list(parts.chunk(n)), part, group=self.group)
            part = parts[: shape.numel()].view(shape)
            if sample is not None:
                self.check_alike(part, sample)
        return part.detach().requires_grad_(requires_grad)

    def check_alike(self, whole: Tensor, sample: Tensor):
        """The others' parts are of this rank's input, too."""
        if not torch.allclose(sample_of(whole), sample, rtol=0.02, equal_nan=True):
            ranks = dist.get_process_group_ranks(self.group)
            raise CheckpointError(
                f"an input of shape {list(whole.shape)} is not the same on the ranks {ranks} of"
                " checkpoint_partitioned, as under sequence parallelism, where each has its own"
                " tokens: take checkpoint, or the group whose ranks have one input."
            )
        self.alike.add(whole.shape)


def sample_of(whole: Tensor) -> Tensor:
    flat = whole.detach().flatten()
    return flat[:: max(1, len(flat) // SAMPLE)].clone()
