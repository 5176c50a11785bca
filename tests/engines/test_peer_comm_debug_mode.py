"""The communication log beside PyTorch's own CommDebugMode, on the same steps."""

import sys

import cloudpickle
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ranklab.measure.communication import CommunicationLog
from ranklab.ranks import ranks

cloudpickle.register_pickle_by_value(sys.modules[__name__])
NAMES = {
    "c10d.allreduce_": "all_reduce",
    "c10d._allgather_base_": "all_gather",
    "c10d._reduce_scatter_base_": "reduce_scatter",
}


def fsdp_step():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, mesh = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), init_device_mesh("cpu", (2,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return lambda: model(torch.ones(2, 8, requires_grad=True)).sum().backward()


def ddp_step():
    model = DistributedDataParallel(nn.Linear(8, 8))
    return lambda: model(torch.ones(2, 8, requires_grad=True)).sum().backward()


def messages():
    other = 1 - dist.get_rank()

    def there_and_back():
        sent = dist.isend(torch.ones(2), other)
        dist.recv(torch.empty(2), other)
        sent.wait()

    return there_and_back


def counted(make):
    """(what CommDebugMode counts, what the log has), of one step."""
    from torch.distributed.tensor.debug import CommDebugMode

    step = make()
    with CommDebugMode() as theirs, CommunicationLog() as log:
        step()
    return (
        {str(name): count for name, count in theirs.get_comm_counts().items()},
        {name: total.messages for name, total in log.totals().items()},
    )


def test_the_same_collectives():
    """Both see the same collectives, of FSDP2 and of DDP. They differ in what else there is:
    CommDebugMode sees what passes a dispatch mode in Python and tells the module, the log sees send
    and recv as well and tells bytes and seconds.

    Must catch: a collective that the log counts twice, or does not see; a send that it misses."""
    with ranks(2, device="cpu", announce=False) as world:
        for make in (fsdp_step, ddp_step):
            for theirs, ours in world.run(counted, make):
                assert {NAMES[name]: count for name, count in theirs.items()} == ours
                assert sum(ours.values()) > 0
        assert world.run(counted, messages) == [({}, {"send": 1, "recv": 1})] * 2
