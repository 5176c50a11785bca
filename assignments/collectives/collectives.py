"""Assignment: collectives from send and recv. README.md beside this file says what to build.

Try it with `python -m shardlab grade collectives`.
"""

import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup | None  # None is the world


def reduce_scatter(shard: Tensor, full: Tensor, group: Group = None):
    """`shard` [chunk of E] becomes this rank's chunk of the sum over all ranks' `full` [E], which
    stays what it was. Raises ValueError for a shard that is not the chunk's size or dtype."""
    # TODO: n - 1 steps around the ring; what arrives is added
    raise NotImplementedError("reduce_scatter is a TODO")


def all_gather(full: Tensor, shard: Tensor, group: Group = None):
    """`full` [E] becomes all ranks' shards, in rank order. Raises ValueError for a shard that is
    not the chunk's size or dtype."""
    # TODO: n - 1 steps around the ring; what arrives replaces
    raise NotImplementedError("all_gather is a TODO")


def all_reduce(tensor: Tensor, group: Group = None):
    """`tensor` becomes the sum over all ranks, around the ring, in place. At most two chunks of
    memory besides."""
    # TODO: both rounds, on chunks of the tensor itself
    raise NotImplementedError("all_reduce is a TODO")


def tree_all_reduce(tensor: Tensor, group: Group = None):
    """The sum of all ranks along a binomial tree, for small messages."""
    # TODO: up to rank 0, and down again
    raise NotImplementedError("tree_all_reduce is a TODO")


def hierarchical_all_reduce(tensor: Tensor, node: Group, across: Group):
    """`tensor` becomes the sum over all ranks of all nodes; chunks alone cross between nodes."""
    # TODO: three of the functions above
    raise NotImplementedError("hierarchical_all_reduce is a TODO")
