"""PyTorch's DistributedDataParallel over a model of experts, whose routers count the rows of all
replicas: it averages gradients, and would balance each rank by its own rows."""

import functools

from torch.nn.parallel import DistributedDataParallel

from ...common.torch_internals import leave_to_ranks
from ..core import Router
from ..core_parallel import count_everywhere


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
