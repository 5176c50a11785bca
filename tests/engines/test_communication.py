"""The communication log against formulas: logical bytes exact, for this package's code and
PyTorch's, on real and on fake ranks."""

from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn

from ranklab.measure import communication
from ranklab.measure.communication import CommunicationLog
from ranklab.ranks import ranks

SIZES = (7, 12, 5)  # of a small network: odd, so that shards are padded


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(SIZES[0], SIZES[1]), nn.Linear(SIZES[1], SIZES[2]))


def brief(log):
    return [(m.operation, m.nbytes, m.group_size, m.reduction) for m in log.messages]


def every_collective():
    rank, size = dist.get_rank(), dist.get_world_size()
    whole, part = torch.ones(6), torch.ones(2)
    neighbour, other = (rank + 1) % size, (rank - 1) % size
    with CommunicationLog() as log:
        dist.all_reduce(whole, dist.ReduceOp.MAX)
        dist.broadcast(whole.double(), 1)
        dist.reduce(whole, 2)
        dist.all_gather([torch.empty(2) for _ in range(size)], part)
        dist.reduce_scatter_tensor(part, torch.ones(2 * size))
        dist.all_to_all_single(torch.empty(6), whole)
        dist.gather(part, [torch.empty(2) for _ in range(size)] if rank == 0 else None, 0)
        dist.scatter(part, [torch.ones(2) for _ in range(size)] if rank == 0 else None, 0)
        work = dist.isend(part, neighbour, tag=rank)
        dist.recv(torch.empty(2), other, tag=other)
        work.wait()
        dist.barrier()
    dist.all_reduce(whole)  # after the log
    return log.messages


def test_every_collective(three):
    """Mutation: a part counted instead of the whole; a root's number lost; a log that goes on
    after it was left."""
    messages = three.run(every_collective)[1]
    wanted = "all_reduce broadcast reduce all_gather reduce_scatter all_to_all gather scatter"
    sizes = [24, 48, *[24] * 6, 8, 8, 0]
    assert [m.operation for m in messages] == [*wanted.split(), "send", "recv", "barrier"]
    assert [m.nbytes for m in messages] == sizes
    with_peers = ("broadcast", "reduce", "send", "recv")
    peers = [(m.peer, m.chunk) for m in messages if m.operation in with_peers]
    assert peers == [(1, 0), (2, 0), (2, 1), (0, 0)]
    assert messages[0].reduction == "max" and messages[1].dtype == "float64"
    known = [m for m in messages if m.operation not in ("send", "recv")]
    assert all(m.seconds > 0 for m in known)
    assert [m.began_seconds for m in messages] == sorted(m.began_seconds for m in messages)


def messages_of_nccl():
    """Known seconds where NCCL plays the backend, and where a message of its batch has no work."""
    x, found = torch.ones(3), []
    for fake in (
        patch.object(communication, "backend_for", lambda *_: "nccl"),
        patch.object(dist.Work, "unbox", lambda work: None),
    ):
        with fake, CommunicationLog() as log:
            dist.all_reduce(x, async_op=True).wait()
            dist.all_reduce(x)
        found += [(message.nbytes, message.seconds) for message in log.messages]
    return found, log.totals()["all_reduce"].seconds


def test_what_nccl_does_not_tell(three):
    """Must catch: the time of enqueueing passed off as a message's; a message of a batch, which has
    no work, that ends the program."""
    assert three.run(messages_of_nccl) == [([(12, None)] * 4, 0.0)] * 3


def every_reduction():
    from torch.distributed import _functional_collectives as functional

    whole, part = torch.ones(6), torch.ones(2)
    with CommunicationLog() as log:
        dist.all_reduce(whole, dist.ReduceOp.MAX)
        dist.reduce(whole, 0, dist.ReduceOp.MIN)
        dist.reduce_scatter_tensor(part, whole, dist.ReduceOp.PRODUCT)
        dist.group.WORLD.allreduce(whole).wait()
        functional.all_reduce(whole, "max", dist.group.WORLD).wait()
        functional.reduce_scatter_tensor(whole, "min", 0, dist.group.WORLD).wait()
        dist.all_reduce(whole)
    return [message.reduction for message in log.messages]


def test_every_reduction(three):
    """Before torch 2.10 the operator's argument does not tell the reduction. Must catch: one that
    stays for the next call; one of the functional collectives taken for a sum."""
    assert three.run(every_reduction)[1] == ["max", "min", "product", "sum", "max", "min", "sum"]


def data_parallel():
    model = nn.parallel.DistributedDataParallel(network())
    # at the second step the buckets are arranged anew, by the order in which gradients came
    for _ in range(2):
        model(torch.ones(2, SIZES[0])).sum().backward()
    with CommunicationLog() as log:
        model(torch.ones(2, SIZES[0])).sum().backward()
    return brief(log)


def test_data_parallel(three):
    """Mutation: the reducer in C++ not seen (it calls no Python), or its average taken for a
    sum."""
    parameters = sum(p.numel() for p in network().parameters())
    for found in three.run(data_parallel):
        assert {(operation, size) for operation, _, size, _ in found} == {("all_reduce", 3)}
        assert sum(nbytes for _, nbytes, _, _ in found) == 4 * parameters


def fully_sharded():
    from torch.distributed.fsdp import fully_shard

    model = network()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    with CommunicationLog() as log:
        model(torch.ones(2, SIZES[0])).sum().backward()
    return brief(log)


def padded(world_size):
    """Bytes of each layer when every parameter's first dim is padded to a multiple of the ranks."""

    def rows(parameter):
        return -(-parameter.shape[0] // world_size) * world_size * parameter[0].numel()

    return [4 * sum(rows(p) for p in layer.parameters()) for layer in network()]


def test_fully_sharded(three):
    """Mutation: the shard counted instead of the gathered whole, or without its padding."""
    first, second = padded(3)
    for found in three.run(fully_sharded):
        gathers = [nbytes for operation, nbytes, *_ in found if operation == "all_gather"]
        scatters = [nbytes for operation, nbytes, *_ in found if operation == "reduce_scatter"]
        # forward, and once more for backward
        assert sorted(gathers) == sorted([first, second, first, second])
        assert scatters == [second, first]


def distributed_tensor():
    from torch.distributed.tensor import (
        Partial,
        Replicate,
        Shard,
        distribute_tensor,
        init_device_mesh,
    )

    mesh = init_device_mesh("cpu", (3,))
    split = distribute_tensor(torch.ones(6, 5), mesh, [Shard(0)])
    with CommunicationLog() as log:
        split.redistribute(mesh, [Replicate()]).to_local().sum().item()
        total = torch.distributed.tensor.DTensor.from_local(torch.ones(4, 4), mesh, [Partial()])
        total.redistribute(mesh, [Replicate()]).to_local().sum().item()
        total.redistribute(mesh, [Shard(0)]).to_local().sum().item()
    return brief(log)


def test_distributed_tensor(three):
    """Mutation: a listener above the functional collectives' autograd, which hides what they
    call."""
    for found in three.run(distributed_tensor):
        assert found == [
            ("all_gather", 120, 3, ""),
            ("all_reduce", 64, 3, "sum"),
            ("reduce_scatter", 96, 3, "sum"),
        ]  # 4 rows padded to 6


def pipelined():
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank, size = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(nn.Linear(4, 4), rank, size, torch.device("cpu"))
    schedule = ScheduleGPipe(
        stage, n_microbatches=3, loss_fn=lambda out, target: (out - target).pow(2).mean()
    )
    x = torch.ones(6, 4)
    for _ in range(2):  # the first step finds out the shapes, with messages of its own
        with CommunicationLog() as log:
            schedule.step(
                *([x] if rank == 0 else []), **({"target": x} if rank == size - 1 else {})
            )
    return brief(log)


def test_pipelining(three):
    """Mutation: batched sends and recvs not seen one by one."""
    microbatch = 2 * 4 * 4
    for rank, found in enumerate(three.run(pipelined)):
        edges = (rank > 0) + (rank < 2)
        for operation in ("send", "recv"):
            assert [m[:3] for m in found if m[0] == operation] == [
                (operation, microbatch, 3)
            ] * 3 * edges
        assert len(found) == 6 * edges


def test_under_the_fake_group():
    """Mutation: a dispatch mode that fake tensors go around; sizes of the real world instead of the
    fake one's."""

    def work():
        from torch.distributed.fsdp import fully_shard

        from ranklab.torch_internals import fake_store
        from shardlab.common.torch_internals import FakeTensorMode

        dist.destroy_process_group()
        dist.init_process_group("fake", store=fake_store(), rank=0, world_size=1024)
        mesh = dist.device_mesh.init_device_mesh("cpu", (1024,))
        with FakeTensorMode(), CommunicationLog() as log:
            model = fully_shard(nn.Linear(4096, 4096, bias=False), mesh=mesh)
            model(torch.ones(1, 4096)).sum().backward()
        return brief(log)

    with ranks(1, device="cpu", announce=False) as world:
        found = world.run(work)[0]
    assert found == [
        ("all_gather", 4 * 4096**2, 1024, ""),
        ("reduce_scatter", 4 * 4096**2, 1024, found[1][3]),
    ]


def test_totals_and_nothing_left(worlds):
    """Mutation: the sum over all operations in each line; a log inside another one that ends the
    outer one."""

    def work():
        x = torch.ones(8)
        with CommunicationLog() as outer:
            dist.all_reduce(x)
            with CommunicationLog() as inner:
                dist.all_reduce(x)
                dist.broadcast(x, 0)
            dist.broadcast(x, 0)
        return [{name: total[:2] for name, total in log.totals().items()} for log in (outer, inner)]

    one, two = (dict(all_reduce=(n, 32 * n), broadcast=(n, 32 * n)) for n in (1, 2))
    assert worlds(1).run(work) == [[two, one]]
