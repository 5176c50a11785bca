"""The core of ZeRO++: stage 3 that sends few bytes from node to node (Wang et al. 2023).

    mesh = Mesh(dp=nodes, tp=ranks_of_a_node)
    zero_plus_plus(net, units, inside=mesh.tp.group, across=mesh.dp.group)

    weights     leave as 8 bits; the whole is the same on all ranks, and each shard stays exact
    secondary   who has had the whole keeps a part, one of a node's, until its shard changes: until
                then the whole comes from the node, as in backward
    gradients   as 4 bits to the node's rank of that place, added, as 4 bits to the owner's node

Letters: m ranks of a node, N nodes, n = mN ranks, E elements, C = E/n of a shard.
"""

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from ..common.collective_wire import Group, all_gather_single
from ..common.torch_internals import version
from ..zero.core_stage3 import Flat, fully_shard
from .core_bits import from_codes, to_codes

BLOCK = 256  # elements that share a scale


class FlatInNodes(Flat):
    """A unit's parameters. Rank m node + place owns chunk m node + place."""

    def __init__(
        self, sites, group, *, inside, across, weight_bits=8, gradient_bits=4, secondary=True
    ):
        self.inside, self.across, self.secondary = inside, across, secondary
        self.weight_bits, self.gradient_bits, self.part_of = weight_bits, gradient_bits, None
        super().__init__(sites, group)
        m, me, ranks_of = dist.get_world_size(inside), dist.get_rank(), dist.get_process_group_ranks
        grid = torch.arange(dist.get_world_size()).view(-1, m).tolist()
        if ranks_of(inside) != grid[me // m] or ranks_of(across) != [row[me % m] for row in grid]:
            raise ValueError("the groups are no grid: take Mesh(dp=nodes, tp=ranks of a node).")

    def all_gather(self, full: Tensor):  # [E]
        if self.secondary and self.part_of == version(self.shard):
            return all_gather_single(full, self.part, group=self.inside)
        if self.weight_bits:
            small = to_codes(self.shard.detach()[None], self.weight_bits, BLOCK)
            everyone = small.new_empty(self.n, small.shape[1])
            all_gather_single(everyone, small, group=self.group)
            values = from_codes(everyone, self.weight_bits, BLOCK, full)
            full.view(self.n, -1).copy_(values[:, : len(self.shard)])
        else:
            super().all_gather(full)
        if self.secondary:
            m, place = dist.get_world_size(self.inside), dist.get_rank(self.inside)
            self.part, self.part_of = full.view(m, -1)[place].clone(), version(self.shard)

    def reduce_scatter(self, gradient: Tensor) -> Tensor:  # [E] -> [C]
        if not self.gradient_bits:
            return super().reduce_scatter(gradient)
        m, nodes = dist.get_world_size(self.inside), dist.get_world_size(self.across)
        by_place = (gradient / self.n).view(nodes, m, -1).transpose(0, 1)  # [m, N, C]
        by_node = self.summed(by_place.flatten(1), self.inside).view(nodes, -1)  # [N, C]
        return self.summed(by_node, self.across)

    def summed(self, rows: Tensor, group: Group) -> Tensor:
        """Row r of each rank, added by rank r."""
        small = to_codes(rows, self.gradient_bits, BLOCK)
        arrived = torch.empty_like(small)
        dist.all_to_all_single(arrived, small, group=group)
        return from_codes(arrived, self.gradient_bits, BLOCK, rows)[:, : rows.shape[1]].sum(0)


def zero_plus_plus(module, units=(), **settings):
    """fully_shard() over all ranks with FlatInNodes' settings: inside=, across=, the groups of this
    rank's node and of its place; weight_bits=8, gradient_bits=4, secondary=True, of which None and
    False leave a part out."""
    return fully_shard(module, units, None, partial(FlatInNodes, **settings))
