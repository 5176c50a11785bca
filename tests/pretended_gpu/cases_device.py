"""Refusals, counts and pretences: the rules by which the other cases are judged."""

import time

import pytest
import torch
import torch.distributed as dist
from pretended import cuda, nccl
from pretended.step import Step, watched
from torch.utils.weak import TensorWeakRef

from ranklab.measure.waits import HostWaits


def two_devices_are_refused():
    on_gpu, on_host = torch.ones(3, device="cuda"), torch.ones(3)
    for refused in (
        lambda: on_gpu + on_host,
        lambda: on_gpu @ on_host,
        lambda: torch.cat([on_gpu, on_host]),
        lambda: on_gpu.index_select(0, torch.tensor([1])),
        lambda: torch.nn.functional.embedding(torch.tensor([0]), on_gpu.view(1, 3)),
    ):
        with pytest.raises(RuntimeError, match="same device"):
            refused()
    assert (on_gpu * torch.tensor(2.0)).tolist() == [2, 2, 2]  # a number may come from the host
    assert on_gpu[torch.tensor([0, 2])].shape == (2,)  # and so may indices


def waits_are_counted():
    pinned, x = torch.ones(3, pin_memory=True), torch.ones(3, device="cuda")
    cuda.take_waits()
    x.add_(1).mul_(2)
    x.copy_(pinned, non_blocking=True)
    pinned.copy_(x, non_blocking=True)
    x[x > 0] = 1.0
    assert cuda.take_waits() == {}
    for waiting, cause in (
        (x.sum().item, "aten::_local_scalar_dense"),
        (x.nonzero, "aten::nonzero"),
        (lambda: x[x > 0], "aten::nonzero"),
        (lambda: x.index_put_([x > 0], x * 1), "aten::index_put by a mask"),
        (x.cpu, "copy to pageable memory"),
        (lambda: x.copy_(pinned), "copy from pinned memory"),
        (
            lambda: x.copy_(torch.ones(3), non_blocking=True),
            "non-blocking copy from pageable memory",
        ),
        (torch.cuda.synchronize, "synchronize a device"),
        (torch.cuda.current_stream().synchronize, "synchronize a stream"),
    ):
        waiting()
        assert (waits := cuda.take_waits()) == {cause: 1}, waits


def hidden_waits_are_the_devices_own():
    """HostWaits beside what the device itself counts, for a step with AdamW in a loop."""
    model = torch.nn.Linear(3, 2).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    pinned = torch.ones(4, 3, pin_memory=True)

    def step(reads):
        x = pinned.to("cuda", non_blocking=True)
        loss = model(x).square().sum()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if reads:
            x[x > 0], x.nonzero(), x.cpu(), loss.tolist(), torch.ones(3).to("cuda")
            assert norm > 0
        optimizer.step()

    for reads, wanted in ((False, 0), (True, 6)):
        step(reads)
        cuda.take_waits()
        with HostWaits() as waits:
            step(reads)
        assert waits.total() == sum(cuda.take_waits().values()) == wanted, waits


def memory_is_counted_and_holds_garbage():
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    x = torch.empty(300, device="cuda")
    assert (x.abs() > 1e30).all()
    y = x * 2  # a result of a CPU kernel counts too
    assert torch.cuda.memory_allocated() - before == 2 * 1536  # whole blocks of 512 bytes
    x.untyped_storage().resize_(0)
    del y
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() - before >= 2 * 1536


def backward_runs_in_another_thread():
    import threading

    threads = []
    x = torch.ones(3, device="cuda", requires_grad=True)
    x.register_post_accumulate_grad_hook(lambda _: threads.append(threading.get_ident()))
    (2 * x).sum().backward()
    assert x.grad.tolist() == [2, 2, 2] and threads != [threading.get_ident()]


def random_numbers_are_the_devices_own():
    torch.manual_seed(5)
    state, of_host = torch.cuda.get_rng_state(), torch.get_rng_state()
    drawn = torch.rand(3, device="cuda")
    assert torch.equal(torch.get_rng_state(), of_host)
    torch.rand(3)
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.rand(3, device="cuda"), drawn)


def a_collective_wants_contiguous_tensors_of_the_gpu():
    with pytest.raises(RuntimeError, match="contiguous"):
        dist.all_reduce(torch.ones(4, 4, device="cuda").t())
    with pytest.raises(RuntimeError, match="no type"):
        dist.all_reduce(torch.ones(4, device="cuda", dtype=torch.int16))


def collectives_give_sums_and_averages():
    n, me = dist.get_world_size(), dist.get_rank()
    mean = (n - 1) / 2
    with watched() as step:
        x = torch.full((3,), float(me), device="cuda")
        dist.all_reduce(x, op=dist.ReduceOp.AVG)
        full, part = torch.empty(2 * n, device="cuda"), torch.full((2,), float(me), device="cuda")
        dist.all_gather_into_tensor(full, part)
        out = torch.empty(2, device="cuda")
        dist.reduce_scatter_tensor(out, full)
        swapped = torch.empty(n, device="cuda")
        dist.all_to_all_single(swapped, torch.arange(float(n), device="cuda"))
    assert x.tolist() == [mean] * 3
    assert full.tolist() == [float(rank) for rank in range(n) for _ in range(2)]
    assert out.tolist() == [float(n * me)] * 2
    assert swapped.tolist() == [float(me)] * n
    return step


def each_rank_of_a_circle_receives_first():
    """Each rank waits in the communicator of another pair. gloo would deliver these messages."""
    n, me, group = dist.get_world_size(), dist.get_rank(), dist.new_group()
    x, y = torch.ones(1, device="cuda"), torch.ones(1, device="cuda")
    patience, nccl.HANGS_AFTER_SECONDS = nccl.HANGS_AFTER_SECONDS, 1.0
    try:
        received = dist.irecv(x, (me - 1) % n, group=group)
        dist.isend(y, (me + 1) % n, group=group).wait()
        received.wait()
    finally:
        nccl.HANGS_AFTER_SECONDS = patience


def tags_are_ignored():
    if dist.get_rank() < 2:
        a, b = torch.zeros(1, device="cuda"), torch.ones(1, device="cuda")
        if dist.get_rank() == 0:
            works = [dist.isend(a, 1, tag=7), dist.isend(b, 1, tag=8)]
        else:
            works = [dist.irecv(b, 0, tag=8), dist.irecv(a, 0, tag=7)]
        for work in works:
            work.wait()
        assert (a.item(), b.item()) == ((0, 1) if dist.get_rank() == 0 else (1, 0))


def a_message_in_a_batch_has_no_work():
    n, me = dist.get_world_size(), dist.get_rank()
    x, y = torch.full((2,), float(me), device="cuda"), torch.empty(2, device="cuda")
    messages = [dist.P2POp(dist.isend, x, (me + 1) % n), dist.P2POp(dist.irecv, y, (me - 1) % n)]
    with watched() as step:
        works = dist.batch_isend_irecv(messages)
        for work in works:
            work.wait()
    assert len(works) == 1 and y.tolist() == [float((me - 1) % n)] * 2
    return step


def a_future_gives_tensors_and_keeps_none():
    """On NCCL, and on gloo, by which ranks talk that share a GPU."""
    for group in (None, dist.new_group(backend="gloo")):
        x = torch.ones(3, device="cuda")
        work = dist.all_reduce(x, group=group, async_op=True)
        for _ in range(2):  # a log asks, and then DDP
            (given,) = work.get_future().wait()
            assert given.tolist() == [dist.get_world_size()] * 3
        left = TensorWeakRef(x)
        del x, given
        for _ in range(100):  # the future's thread is about to end
            time.sleep(0.01 * (left() is not None))
        assert left() is None


def ranks_disagree():
    """A step of ranks that make their calls in different orders, without making them."""
    mine = [
        nccl.Entry("0", nccl.COLLECTIVES, dist.get_rank(), operation, None, 4, "float32")
        for operation in ("allreduce_", "broadcast_")
    ]
    return Step(calls=mine[:: 1 if dist.get_rank() else -1])
