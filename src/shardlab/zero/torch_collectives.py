"""PyTorch's own reduce-scatter and all-gather of flat tensors: NCCL's rings, on GPUs."""

import torch
from torch import Tensor

from ..collective_wire import (
    Group,
    all_gather_single,
    backend_for,
    place,
    reduce_scatter_single,
)
from .flat import Ring, flattened, own_chunk


class Native(Ring):
    """PyTorch's own collectives. They need chunks of one size: if n does not divide the elements,
    they get a padded copy."""

    def reduce_scatter(
        self, tensors: list[Tensor], group: Group = None, share: float = 1.0
    ) -> list[Tensor]:
        flat = flattened(tensors).mul_(share)
        tensors.clear()
        even, shard = self._even(flat, group)
        reduce_scatter_single(shard, even, group=group)
        return [shard[: own_chunk(flat, group).numel()].clone()]

    def all_gather(self, flat: Tensor, group: Group = None):
        even, shard = self._even(flat, group)
        all_gather_single(even, shard, group=group)
        if even is not flat:
            n, _ = place(group)
            rows = zip(even.view(n, -1), flat.tensor_split(n))
            torch.cat([row[: chunk.numel()] for row, chunk in rows], out=flat)

    def _even(self, flat, group):
        """(flat, or a copy of it with every chunk padded to the size of the first; this rank's
        chunk in it)."""
        n, me = place(group)
        even, size = flat, -(-flat.numel() // n)
        if size * n != flat.numel():
            even = flat.new_zeros(n * size)
            for row, chunk in zip(even.view(n, size), flat.tensor_split(n)):
                row[: chunk.numel()] = chunk
        return even, even.narrow(0, me * size, size)


def best_collectives(device: torch.device, group: Group = None) -> Ring:
    """The fastest collectives for the group. gloo makes a reduce-scatter from an all-reduce, so
    Ring is faster; NCCL has rings of its own."""
    return Ring() if backend_for(device.type, group) == "gloo" else Native()
