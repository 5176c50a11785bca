"""The ring of flat.py, faster and harder to read: gradients are sent from their own memory, and the
optimizer updates a shard in the parts in which it travels.

    ShardedOptimizer(model.parameters(), AdamW, collectives=fast_ring.Ring())
    zero.shard(model, AdamW, stage=1, collectives=fast_ring.Ring())

Savings on CPU ranks: no flat copy of all gradients in fresh memory, whose pages the kernel must
find and clear; and fewer cache misses, because a part of a few megabytes is still in the cache when
it is updated. Results differ by rounding only. Both are raced in `python -m bench zero`.
"""

from itertools import groupby

import torch
from torch import Tensor

from ... import collective_plans as plans
from ... import collectives_fast
from ...collectives_fast import PIECE_BYTES
from ...common.collective_wire import Group, place, wire
from . import flat
from .flat import chunk_of

SMALL_BYTES = 512 << 10  # a tensor below that is sent together with its neighbours


class Ring(flat.Ring):
    """Parts below `small_bytes` are copied and sent together, larger parts are sent from their own
    memory, in pieces of at most `piece_bytes`."""

    run = staticmethod(collectives_fast.run)

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
        chunk, begin, parts = chunk_of(rank, sum(tensor.numel() for tensor in tensors), n), 0, []
        for tensor in tensors:
            start, stop = max(chunk.start - begin, 0), max(chunk.stop - begin, 0)
            part = tensor.detach().reshape(-1)[start:stop]
            if part.numel():
                parts += part.split(max(1, self.piece_bytes // part.element_size()))
            begin += tensor.numel()
        return [
            part
            for small, neighbours in groupby(parts, lambda part: part.nbytes < self.small_bytes)
            for part in ([torch.cat(list(neighbours))] if small else neighbours)
        ]
