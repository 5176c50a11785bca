"""16-bit gradients, added over ranks in fp32.

    zero.shard(model, AdamW, stage=2, collectives=InFp32())
    fully_shard(model, units, compute_dtype=bfloat16, collectives=InFp32())

A sum of n 16-bit gradients on its way around a ring is rounded n - 1 times, and in bf16, which has
8 bits of a number, small shares are lost beside large ones. In fp32 the mean is rounded once, where
the parameter it belongs to has 16 bits, and not at all in stage 3, whose shards are fp32. Each
message has twice the bytes.

Replicas add gradients in the type that they have. For fp32 sums take ZeRO stage 1 or 2, or fp32
weights under autocast.

FSDP2 calls it reduce_dtype, Megatron-LM --accumulate-allreduce-grads-in-fp32, DeepSpeed
communication_data_type.
"""

from collections.abc import Callable
from copy import copy

import torch
from torch import Tensor

from ..collective_wire import Group
from ..zero.hardened.flat import Ring, best_collectives


class InFp32(Ring):
    """ZeRO's collectives, by default the best for the group, with a reduce-scatter that adds in
    fp32. Messages travel under backward where those collectives' do."""

    def __init__(self, collectives: Ring | None = None):
        self.asked, self.collectives = collectives, collectives or Ring()

    def on(self, device: torch.device, group: Group) -> "InFp32":
        return InFp32(best_collectives(device, group, self.asked))

    @property
    def run(self) -> Callable:
        return self.collectives.run

    @run.setter
    def run(self, run: Callable):
        """Stage 3 numbers the messages of each unit."""
        self.collectives = copy(self.collectives)
        self.collectives.run = run

    def reduce_scatter(
        self, tensors: list[Tensor], group: Group = None, share: float = 1.0
    ) -> list[Tensor]:
        return self.collectives.reduce_scatter(widened(tensors), group, share)

    def all_gather(self, flat: Tensor, group: Group = None):
        self.collectives.all_gather(flat, group)

    @property
    def begin_reduce_scatter(self) -> Callable:
        """AttributeError where the collectives cannot begin a message and go on."""
        begin = self.collectives.begin_reduce_scatter
        return lambda tensors, group, share: begin(widened(tensors), group, share)

    @property
    def begin_all_gather(self) -> Callable:
        return self.collectives.begin_all_gather

    def parts_of_a_shard(self, tensors: list[Tensor], group: Group = None) -> list[int]:
        return self.collectives.parts_of_a_shard(tensors, group)

    def zeros_behind(self, elements: int, group: Group = None) -> int:
        return self.collectives.zeros_behind(elements, group)

    def __repr__(self):
        return f"InFp32({self.collectives!r})"


def widened(tensors: list[Tensor]) -> list[Tensor]:
    """The tensors in fp32; the given list is empty then."""
    wide = [tensor.float() for tensor in tensors]
    tensors.clear()
    return wide
