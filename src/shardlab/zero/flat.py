"""What the stages of ZeRO share: flat tensors, of which each rank owns one chunk, and the two collectives on them.

Many tensors are laid one after the other in one flat tensor, which is cut into n chunks as collectives.py cuts: chunk r belongs to
rank r, and where n does not divide the elements, the first chunks have one more. Nothing is padded, so bytes are exact.

Both collectives work in place on such a flat tensor:

    reduce_scatter(flat)     this rank's chunk becomes the sum over all ranks; the other chunks are used up
    all_gather(flat)         the other chunks become what their ranks have in them

A stage calls them on an object: Ring() or Native(), or one of your own with these two methods. `best_collectives` chooses.
"""

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from .. import collective_plans as plans
from ..collectives import Group, land, place, run, wire


class Ring:
    """Our ring of sends and receives: (n - 1)/n of the bytes cross each link, and nothing is copied."""

    def reduce_scatter(self, flat: Tensor, group: Group = None):
        self._around(plans.ring_reduce_scatter, flat, group)

    def all_gather(self, flat: Tensor, group: Group = None):
        self._around(plans.ring_all_gather, flat, group)

    def _around(self, plan, flat, group):
        n, _ = place(group)
        on_the_wire = wire(flat, group)  # flat itself, unless the backend cannot send it from where it is
        run(plan(n), on_the_wire.tensor_split(n), group)
        land(on_the_wire, flat)

    def __repr__(self):
        return "Ring()"


class Native:
    """PyTorch's own, which want chunks of one size: where n does not divide, they get a padded copy."""

    def reduce_scatter(self, flat: Tensor, group: Group = None):
        even, shard = self._even(flat, group)
        function = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # renamed in PyTorch 2.13
        function(shard, even, group=group)
        mine = own_chunk(flat, group)
        mine.copy_(shard[:mine.numel()])

    def all_gather(self, flat: Tensor, group: Group = None):
        even, shard = self._even(flat, group)
        function = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        function(even, shard, group=group)
        if even is not flat:
            n, _ = place(group)
            torch.cat([row[:chunk.numel()] for row, chunk in zip(even.view(n, -1), flat.tensor_split(n))], out=flat)

    def _even(self, flat, group):
        """(flat, or a copy of it with every chunk padded to the size of the first; this rank's chunk in it)."""
        n, me = place(group)
        even, size = flat, -(-flat.numel() // n)
        if size * n != flat.numel():
            even = flat.new_zeros(n * size)
            for row, chunk in zip(even.view(n, size), flat.tensor_split(n)):
                row[:chunk.numel()] = chunk
        return even, even.narrow(0, me * size, size)

    def __repr__(self):
        return "Native()"


def best_collectives(device: torch.device, group: Group = None) -> Ring | Native:
    """What is fastest there. gloo reduce-scatters by an all-reduce, so our ring wins; NCCL has rings of its own."""
    backends = dict(pair.split(":") for pair in dist.get_backend_config(group).split(","))
    return Ring() if backends.get(device.type) == "gloo" else Native()


def own_chunk(flat: Tensor, group: Group = None) -> Tensor:
    """This rank's chunk of a flat tensor [E], as a view [about E/n]."""
    n, me = place(group)
    chunk = chunk_of(me, flat.numel(), n)
    return flat.narrow(0, chunk.start, len(chunk))


def chunk_of(rank: int, elements: int, n: int) -> range:
    """The elements of a flat tensor that belong to the rank, as tensor_split cuts it: the first chunks have one more."""
    start = rank * (elements // n) + min(rank, elements % n)
    return range(start, start + len(range(rank, elements, n)))


def first_rank(group: Group = None) -> int:
    """The number in the world of the group's rank 0, whose values all ranks begin with."""
    return dist.get_global_rank(group or dist.group.WORLD, 0)


def flattened(tensors: Iterable[Tensor | None], shapes: Iterable[torch.Size], like: Tensor) -> Tensor:
    """[E]: the tensors one after the other in new memory. None stands for zeros of the shape that belongs in its place."""
    return torch.cat([like.new_zeros(shape.numel()) if tensor is None else tensor.detach().reshape(-1)
                      for tensor, shape in zip(tensors, shapes)])
