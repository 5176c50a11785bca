"""Rows of `make gpu` about ranks: do they start on this machine's GPUs, how fast, and does the fork
server keep off CUDA."""

import os
from collections.abc import Iterator
from statistics import median
from time import perf_counter

import torch

from ..ranks import ranks
from .attempts import attempt
from .recordings import Row

STARTS = 5


def rank_starts(device: torch.device) -> Iterator[Row]:
    """A rank on each GPU (NCCL) and two on each (gloo); two on a CPU. Seconds from asking to the
    end of the first all-reduce."""
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    for count in (gpus, 2 * gpus) if gpus else (2,):
        yield from attempt(f"rank_starts, {count} ranks", starts_of(count, device))
    if gpus:
        yield from attempt("rank_starts, shared by NCCL", shared_by_nccl(2 * gpus))


def starts_of(count: int, device: torch.device) -> Iterator[Row]:
    taken = []
    for _ in range(STARTS):
        begin = perf_counter()
        with ranks(count, device=device.type, announce=False) as world:
            found = world.run(look, device.type)
            taken.append(perf_counter() - begin)
    case = dict(ranks=count, backend=found[0][1])
    # the first may find the fork server cold
    yield Row("ranks.start", median(taken[1:]), "seconds", case)
    yield Row(
        "ranks.right_sums", sum(total == sum(range(count)) for total, *_ in found), "count", case
    )
    yield Row(
        "ranks.right_messages",
        sum(got == (rank - 1) % count for rank, (*_, got) in enumerate(found)),
        "count",
        case,
    )
    yield Row("ranks.device_files_of_the_fork_server", found[0][2], "count", case)


def shared_by_nccl(count: int) -> Iterator[Row]:
    """Two ranks on each GPU by NCCL, an experiment of its version 2.30: how many had the right sum.
    An older one says so in one sentence."""
    with ranks(count, share_gpus=True, patience_seconds=20, announce=False) as world:
        found = world.run(look, "cuda")
    right = sum(total == sum(range(count)) for total, *_ in found)
    yield Row("ranks.right_sums", right, "count", dict(ranks=count, backend="nccl", gpus="shared"))


def look(kind: str) -> tuple[float, str, int, float]:
    """On a rank: (the sum of all ranks' numbers, the backend, how many of the GPU's files the fork
    server has open, the number that the rank before sent)."""
    import torch
    import torch.distributed as dist

    x = torch.tensor([float(dist.get_rank())], device=kind)
    dist.all_reduce(x)
    rank, count = dist.get_rank(), dist.get_world_size()
    mine, got = torch.tensor([float(rank)], device=kind), torch.tensor([-1.0], device=kind)
    if count == 1:  # nobody to send to
        got = mine
    else:
        ring = [
            dist.P2POp(dist.isend, mine, (rank + 1) % count),
            dist.P2POp(dist.irecv, got, (rank - 1) % count),
        ]
        for work in dist.batch_isend_irecv(ring):  # under gloo through the host
            work.wait()
    return x.item(), dist.get_backend(), files_of_the_gpu(os.getppid()), got.item()


def files_of_the_gpu(process: int) -> int:
    folder = f"/proc/{process}/fd"
    found = 0
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        try:
            found += os.readlink(f"{folder}/{name}").startswith("/dev/nvidia")
        except OSError:  # closed since
            pass
    return found
