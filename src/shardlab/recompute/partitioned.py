"""Partitioned activations: ranks that have the same input keep a part of it each.

    y = checkpoint_partitioned(group, block, x)        # x is the same on all ranks of the group

A rank keeps 1/t of the input, and gathers the others' parts when backward needs it: one all-gather
for each checkpoint. With sequence parallelism the input is cut by tokens
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
from torch.autograd.graph import saved_tensors_hooks

from ..common.collective_wire import place
from ..common.outer_hooks import OuterHooks
from .hardened.checkpointing import CheckpointError, checkpoint

compared: WeakKeyDictionary = WeakKeyDictionary()  # group -> shapes that were alike on its ranks
SAMPLE = 64  # elements


def checkpoint_partitioned(group: dist.ProcessGroup | None, function: Callable, *args, **named):
    """checkpoint(function, *args, **named) whose tensors of floating point are kept in parts. They
    are the same on all ranks of the group, which call this, and run its backward, in the same
    order.

    Raises what checkpoint() raises, and CheckpointError for an input that ranks do not share."""
    parts = Partitioned(group or dist.group.WORLD)
    with saved_tensors_hooks(parts.pack, parts.unpack):  # of what a checkpoint keeps: its inputs
        return checkpoint(function, *args, **named)


class Partitioned:
    """The hooks: a tensor is kept as this rank's part of it."""

    def __init__(self, group: dist.ProcessGroup):
        self.group, self.outer = group, OuterHooks()
        self.alike = compared.setdefault(group, set())

    def pack(self, whole: Tensor) -> tuple:
        """This rank's run of the elements; zeros fill the last one up."""
        if not whole.is_floating_point() or not whole.numel():
            return self.outer.pack(whole), None, None
        n, me = place(self.group)
        flat, each = whole.detach().flatten(), -(-whole.numel() // n)
        own = flat[me * each : (me + 1) * each]
        part = F.pad(own, (0, each - len(own))).clone()
        # of the first input of a shape: to compare each would be a wait for a GPU
        compares = whole.shape not in self.alike and dist.get_backend(self.group) != "fake"
        return self.outer.pack(part), whole.shape, sample_of(whole) if compares else None

    @torch.no_grad()
    def unpack(self, kept: tuple) -> Tensor:
        packed, shape, sample = kept
        part = self.outer.unpack(packed)
        if shape is None:
            return part
        n, _ = place(self.group)
        parts = part.new_empty(n * len(part))
        dist.all_gather(list(parts.chunk(n)), part, group=self.group)
        whole = parts[: shape.numel()].view(shape)
        if sample is not None:
            self.check_alike(whole, sample)
        return whole

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
