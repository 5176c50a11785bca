"""What the stages of ZeRO share: flat tensors, of which each rank owns one chunk, and the two
collectives on them.

Many tensors are laid one after the other in one flat tensor, which is cut into n chunks as
collectives.py cuts: chunk r belongs to rank r, and where n does not divide the elements, the first
chunks have one more. Nothing is padded, so bytes are exact.

There are two collectives on it:

    reduce_scatter(tensors)  returns, of the flat tensor that these would make, this rank's chunk of
                             the sum over all ranks: [about E/n] in one new tensor or several, one
                             after the other. The given ones stay what they are
    all_gather(flat)         in place: the other chunks become what their ranks have in them

A stage calls them on an object: Ring() or Native(), or one of your own with these two methods.
`best_collectives` chooses.
"""

from itertools import groupby

import torch
import torch.distributed as dist
from torch import Tensor

from .. import collective_plans as plans
from ..collectives import Group, land, pieces, place, run, wire

SMALL_BYTES = 512 << 10  # a tensor below that is sent together with its neighbours


class Ring:
    """Our ring of sends and receives: (n - 1)/n of the bytes cross each link, and only what is
    small is copied."""

    def reduce_scatter(self, tensors: list[Tensor], group: Group = None) -> list[Tensor]:
        n, me = place(group)
        # themselves, unless the backend cannot send them from where they are
        flats = [wire(tensor, group) for tensor in tensors]
        chunks = [cut(flats, rank, n) for rank in range(n)]
        run(plans.ring_reduce_scatter(n), chunks, group)
        return [part.to(tensors[0].device, copy=n == 1) for part in chunks[me] or [flats[0][:0]]]

    def all_gather(self, flat: Tensor, group: Group = None):
        n, _ = place(group)
        on_the_wire = wire(flat, group)
        run(plans.ring_all_gather(n), on_the_wire.tensor_split(n), group)
        land(on_the_wire, flat)

    def __repr__(self):
        return "Ring()"


class Native:
    """PyTorch's own, which want chunks of one size: where n does not divide, they get a padded
    copy."""

    def reduce_scatter(self, tensors: list[Tensor], group: Group = None) -> list[Tensor]:
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        even, shard = self._even(flat, group)
        # renamed in PyTorch 2.13
        function = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        function(shard, even, group=group)
        return [shard[: own_chunk(flat, group).numel()].clone()]

    def all_gather(self, flat: Tensor, group: Group = None):
        even, shard = self._even(flat, group)
        function = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        function(even, shard, group=group)
        if even is not flat:
            n, _ = place(group)
            torch.cat(
                [
                    row[: chunk.numel()]
                    for row, chunk in zip(even.view(n, -1), flat.tensor_split(n))
                ],
                out=flat,
            )

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

    def __repr__(self):
        return "Native()"


def best_collectives(device: torch.device, group: Group = None) -> Ring | Native:
    """What is fastest there. gloo reduce-scatters by an all-reduce, so our ring wins; NCCL has
    rings of its own."""
    backends = dict(pair.split(":") for pair in dist.get_backend_config(group).split(","))
    return Ring() if backends.get(device.type) == "gloo" else Native()


def own_chunk(flat: Tensor, group: Group = None) -> Tensor:
    """This rank's chunk of a flat tensor [E], as a view [about E/n]."""
    n, me = place(group)
    chunk = chunk_of(me, flat.numel(), n)
    return flat.narrow(0, chunk.start, len(chunk))


def chunk_of(rank: int, elements: int, n: int) -> range:
    """The elements of a flat tensor that belong to the rank, as tensor_split cuts it: the first
    chunks have one more."""
    start = rank * (elements // n) + min(rank, elements % n)
    return range(start, start + len(range(rank, elements, n)))


def first_rank(group: Group = None) -> int:
    """The number in the world of the group's rank 0, whose values all ranks begin with."""
    return dist.get_global_rank(group or dist.group.WORLD, 0)


def cut(tensors: list[Tensor], rank: int, n: int) -> list[Tensor]:
    """The rank's chunk of the flat tensor that they would make: views of them of at most
    PIECE_BYTES, or, where they are small, copies of several together."""
    chunk, begin, parts = chunk_of(rank, sum(tensor.numel() for tensor in tensors), n), 0, []
    for tensor in tensors:
        parts += pieces(
            tensor.detach().reshape(-1)[max(chunk.start - begin, 0) : max(chunk.stop - begin, 0)]
        )
        begin += tensor.numel()
    return [
        part
        for small, neighbours in groupby(parts, lambda part: part.nbytes < SMALL_BYTES)
        for part in ([torch.cat(list(neighbours))] if small else neighbours)
    ]


def filled(tensors: list[Tensor | None], shapes: list[torch.Size], like: Tensor) -> list[Tensor]:
    """None stands for zeros of the shape that belongs in its place."""
    return [
        like.new_zeros(shape) if tensor is None else tensor
        for tensor, shape in zip(tensors, shapes)
    ]
