"""Rows of `make gpu` about ranks: do they start on this machine's GPUs, how fast, and does the fork server keep off CUDA."""

import os
from statistics import median
from time import perf_counter
from typing import Iterator

import torch

from ..ranks import ranks
from .recordings import Row

STARTS = 5


def rank_starts(device: torch.device) -> Iterator[Row]:
    """A rank on each GPU (NCCL) and two on each (gloo); two on a CPU. Seconds from asking to the end of the first all-reduce."""
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    for count in (gpus, 2 * gpus) if gpus else (2,):
        taken = []
        for _ in range(STARTS):
            begin = perf_counter()
            with ranks(count, device=device.type, announce=False) as world:
                found = world.run(look, device.type)
                taken.append(perf_counter() - begin)
        case = dict(ranks=count, backend=found[0][1])
        yield Row("ranks.start", median(taken[1:]), "seconds", case)  # the first may find the fork server cold
        yield Row("ranks.right_sums", sum(total == sum(range(count)) for total, *_ in found), "count", case)
        yield Row("ranks.device_files_of_the_fork_server", found[0][2], "count", case)


def look(kind: str) -> tuple[float, str, int]:
    """On a rank: (the sum of all ranks' numbers, the backend, how many of the GPU's files the fork server has open)."""
    import torch
    import torch.distributed as dist

    x = torch.tensor([float(dist.get_rank())], device=kind)
    dist.all_reduce(x)
    return x.item(), dist.get_backend(), files_of_the_gpu(os.getppid())


def files_of_the_gpu(process: int) -> int:
    folder = f"/proc/{process}/fd"
    found = 0
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        try:
            found += os.readlink(f"{folder}/{name}").startswith("/dev/nvidia")
        except OSError:  # closed since
            pass
    return found
