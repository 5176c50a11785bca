"""The shards of a unit of stage 3, each under the name of its parameter.

    weight [6, 4]   elements  0 to 23           rank 0: weight [15, 1], bias [0]
    bias [6]        elements 24 to 29           rank 1: weight  [9, 1], bias [6]

Parameters travel together, in one flat tensor, and each rank has one chunk of it. An optimizer sees
the elements of each parameter in this chunk, if any, with as many dims as the parameter has. So a
training script may choose groups by names or dims as it does for the whole model.
"""

import torch
from torch import Tensor, nn

from ...collective_wire import Group, place
from ...common.optimizer_checks import shards as known
from ...common.optimizer_checks import watch
from ...common.shards import as_shard, groups_of_shards
from ...common.torch_internals import storage_key
from .flat import chunk_of, flattened


class Shards:
    """`chunk` [about E/n], and its views `shards`, one for each parameter."""

    def __init__(self, chunk: Tensor, parameters: list[nn.Parameter], group: Group):
        self.chunk, self.group = chunk, group
        self.shapes = [parameter.shape for parameter in parameters]
        self.sizes = sizes_of(self.shapes, group)
        self.shards = [
            as_shard(part, group, parameter.requires_grad, of=[parameter])
            for part, parameter in zip(self.parts(chunk), parameters)
        ]
        for shard in self.shards:
            watch(shard)

    def parts(self, chunk: Tensor) -> list[Tensor]:
        """The part of each parameter that a chunk has, in the shape of its shard."""
        parts = chunk.split([elements for elements, *_ in self.sizes])
        return [part.view(size) for part, size in zip(parts, self.sizes)]

    def has(self, shards: list[nn.Parameter]) -> bool:
        """Whether these are its shards, and views of its chunk."""
        memory = storage_key(self.chunk.untyped_storage())
        return all(
            shard is own and storage_key(shard.untyped_storage()) == memory
            for shard, own in zip(shards, self.shards)
        )

    @torch.no_grad()
    def take(self, shards: list[nn.Parameter]):
        """These are its shards from now on, and become views of one chunk."""
        if len(dtypes := {shard.dtype for shard in shards}) > 1:
            raise RuntimeError(
                f"shards of one unit are {' and '.join(sorted(map(str, dtypes)))} now, and travel"
                " together: convert the whole unit, or a part of it before fully_shard."
            )
        for shard, former in zip(shards, self.shards):
            groups_of_shards[shard] = groups_of_shards[former]
            watch(shard)
        self.chunk, self.shards = flattened(shards), shards
        for shard, part in zip(shards, self.parts(self.chunk)):
            shard.data = part


def sizes_of(shapes: list[torch.Size], group: Group) -> list[tuple[int, ...]]:
    """[elements of this rank, 1, ...] of each parameter."""
    n, me = place(group)
    mine = chunk_of(me, sum(shape.numel() for shape in shapes), n)
    sizes, begin = [], 0
    for shape in shapes:
        end = begin + shape.numel()
        elements = len(range(max(begin, mine.start), min(end, mine.stop)))
        sizes.append((elements, *(1 for _ in shape[1:])))
        begin = end
    return sizes


class BesideAttributes(dict):
    """A module's parameters by name, of which the module's `setattr` does not find the shards: the
    attribute of that name is another tensor, a placeholder or the gathered parameter."""

    def __contains__(self, name) -> bool:
        return super().__contains__(name) and self[name] not in known
