"""PyTorch's own reduce-scatter and all-gather of flat tensors: NCCL's rings, on GPUs."""

from bisect import bisect_right

import torch
from torch import Tensor

from ...collective_wire import (
    Group,
    all_gather_single,
    backend_for,
    place,
    reduce_scatter_single,
)
from .flat import Ring, chunk_of, own_chunk


class Native(Ring):
    """PyTorch's own collectives. They need chunks of one size: if n does not divide the elements,
    each chunk that is smaller than the first has a zero behind it on its way."""

    def reduce_scatter(
        self, tensors: list[Tensor], group: Group = None, share: float = 1.0
    ) -> list[Tensor]:
        n, me = place(group)
        own = chunk_of(me, sum(tensor.numel() for tensor in tensors), n)
        even = padded(tensors, n).mul_(share)
        tensors.clear()
        shard = even.tensor_split(n)[me]
        reduce_scatter_single(shard, even, group=group)
        return [shard[: len(own)].clone()]

    def all_gather(self, flat: Tensor, group: Group = None):
        n, me = place(group)
        own = own_chunk(flat, group)
        if flat.numel() % n == 0:
            all_gather_single(flat, own, group=group)
            return
        rows = flat.new_empty(n, flat.numel() // n + 1)
        rows[me, : own.numel()] = own
        all_gather_single(rows.view(-1), rows[me], group=group)
        chunks = zip(rows, flat.tensor_split(n))
        torch.cat([row[: chunk.numel()] for row, chunk in chunks], out=flat)


def padded(tensors: list[Tensor], n: int) -> Tensor:
    """A copy of the tensors, one after the other, in n chunks of one size: a zero ends each chunk
    that flat.py makes smaller than the first."""
    elements = sum(tensor.numel() for tensor in tensors)
    smaller = range(elements % n or n, n)
    ends = [chunk_of(rank, elements, n).stop for rank in smaller]
    zero, parts, begin = tensors[0].new_zeros(1), [], 0
    for tensor in tensors:
        end = begin + tensor.numel()
        inside = ends[bisect_right(ends, begin) : bisect_right(ends, end)]
        first, *others = tensor.detach().reshape(-1).tensor_split([e - begin for e in inside])
        parts.append(first)
        for part in others:
            parts += [zero, part]
        begin = end
    return torch.cat(parts)


def best_collectives(device: torch.device, group: Group = None) -> Ring:
    """The fastest collectives for the group. gloo makes a reduce-scatter from an all-reduce, so
    Ring is faster; NCCL has rings of its own."""
    return Ring() if backend_for(device.type, group) == "gloo" else Native()
