"""The ring with which this book's stages race PyTorch's on CPU ranks."""

from itertools import groupby

import torch
from torch import Tensor

from shardlab import collective_plans as plans
from shardlab import collectives_fast
from shardlab.collectives_fast import PIECE_BYTES
from shardlab.common.collective_wire import Group, place, wire
from shardlab.zero.hardened.flat import Ring, chunk_of, places_in

SMALL_BYTES = 512 << 10  # a tensor below that is sent together with its neighbours


class FastRing(Ring):
    """The ring, faster and harder to read: gradients are sent from their own memory, and the
    optimizer updates a shard in the parts in which it travels. Parts below `small_bytes` are copied
    and sent together, larger parts are sent in pieces of at most `piece_bytes`. On CPU ranks it
    saves a flat copy of all gradients in fresh memory, whose pages the kernel must find and clear,
    and cache misses. Results differ by rounding only. Both are raced in `python -m bench zero`."""

    make_moves = staticmethod(collectives_fast.run)

    def __init__(self, small_bytes: int = SMALL_BYTES, piece_bytes: int = PIECE_BYTES):
        self.small_bytes, self.piece_bytes = small_bytes, piece_bytes

    def reduce_scatter(
        self, tensors: list[Tensor], group: Group = None, share: float = 1.0
    ) -> list[Tensor]:
        n, me = place(group)
        device = tensors[0].device
        # the tensors themselves, unless the backend cannot send from their memory
        flats = [wire(tensor, group) for tensor in tensors]
        chunks = [self.cut(flats, rank, n) for rank in range(n)]
        # shares are added where 16-bit sums could overflow; else the sum is multiplied: no copy
        before, after = (share, 1.0) if tensors[0].element_size() <= 2 else (1.0, share)
        first = (me - 1) % n  # the chunk that sets out here
        if n == 1 or before != 1.0:
            chunks[first] = [part * before for part in chunks[first]]
        self.run(plans.ring_reduce_scatter(n), chunks, group, share=before)
        own = chunks[me] or [flats[0][:0].clone()]
        tensors.clear()
        flats.clear()
        return [part.mul_(after).to(device) for part in own]

    def parts_of_a_shard(self, tensors: list[Tensor], group: Group = None) -> list[int]:
        n, me = place(group)
        return [part.numel() for part in self.cut(tensors, me, n)] or [0]

    def cut(self, tensors: list[Tensor], rank: int, n: int) -> list[Tensor]:
        """The rank's chunk of the flat tensor of these tensors: views of them, or copies of several
        small ones together."""
        sizes, parts = [tensor.numel() for tensor in tensors], []
        for tensor, places in zip(tensors, places_in(chunk_of(rank, sum(sizes), n), sizes)):
            if places:
                part = tensor.detach().reshape(-1)[places.start : places.stop]
                parts += part.split(max(1, self.piece_bytes // part.element_size()))
        return [
            part
            for small, neighbours in groupby(parts, lambda part: part.nbytes < self.small_bytes)
            for part in ([torch.cat(list(neighbours))] if small else neighbours)
        ]
