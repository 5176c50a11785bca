"""PyTorch's DistributedDataParallel, FSDP and fully_shard over a model of experts, whose routers
count the rows of all ranks: they average gradients, and would balance each rank by its own rows."""

import functools
import sys

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ...common.shards import CannotShard, replicated_experts
from ...common.torch_internals import leave_to_ranks, watch_fsdp
from ..core import Router, mixtures
from ..core_parallel import TotalCounts, count_everywhere


def count_in_torch_shards(modules: tuple[nn.Module, ...], parameters: list[Tensor], groups, _):
    """Raises CannotShard for experts that ranks divide."""
    for p in parameters:
        if p in replicated_experts:
            ranks = dist.get_process_group_ranks(replicated_experts[p].divide)
            raise CannotShard(
                f"ranks {ranks} have different experts, and FSDP would make one tensor of them:"
                " zero.shard(..., stage=3, group=axes.everyone.group) knows them."
            )
    for router in (layer.router for module in modules for layer in mixtures(module)):
        if isinstance(router.total, nn.Identity):
            router.total = TotalCounts(*groups)


def watch_torch():
    """From now on; FSDP only if it has been imported, because that takes a second."""
    count_in_torch_replicas()
    if "torch.distributed.fsdp" in sys.modules:
        watch_fsdp(count_in_torch_shards)


@functools.cache
def count_in_torch_replicas():
    """From now on. Rank 0's load is not given to the others, to be counted twice."""
    make = DistributedDataParallel.__init__

    @functools.wraps(make)
    def counted(self, module, *args, **named):
        routers = [name for name, one in module.named_modules() if isinstance(one, Router)]
        if routers:
            leave_to_ranks(module, [f"{name}.load" for name in routers])
        make(self, module, *args, **named)
        count_everywhere(module, self.process_group)

    DistributedDataParallel.__init__ = counted
