"""Rows of `make gpu` about the machine: its roofline, and all-reduces between ranks."""

from typing import Iterator

import torch
import torch.distributed as dist

from .. import collectives
from ..ranks import ranks
from . import roofline
from .links import all_reduce_timings
from .recordings import Row

ALL_REDUCE_BYTES = (4096, 1 << 20, 1 << 26)


def machine(device: torch.device) -> Iterator[Row]:
    """Products by size, memory, launch, and copies between host and GPU."""
    for product in roofline.products(device):
        yield Row("roofline.matmul", product.flops_per_second, "FLOP/s",
                  dict(dtype=product.dtype, size=product.size, intensity=product.intensity))
    yield Row("roofline.memory", roofline.memory_bytes_per_second(device), "bytes/s")
    yield Row("roofline.launch", roofline.launch_seconds(device), "seconds")
    if device.type == "cuda":
        for to_device in (True, False):
            for pinned in (True, False):
                yield Row("roofline.copy", roofline.copy_bytes_per_second(device, to_device, pinned), "bytes/s",
                          dict(direction="to the GPU" if to_device else "to the host", pinned=pinned))


def all_reduces(device: torch.device) -> Iterator[Row]:
    """PyTorch's and ours: a rank for each GPU with NCCL where there are two or more; else two ranks with gloo, on one GPU if any."""
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    with ranks(max(2, gpus), device=device.type, announce=False) as world:
        backend = "nccl" if gpus > 1 else "gloo"
        case = dict(ranks=world.world_size, backend=backend, device=device.type)
        right, timings = world.run(on_a_rank, ALL_REDUCE_BYTES, device.type)[0]
        yield Row("collectives.right_sums", right, "count", case)
        for name, found in timings.items():
            for timing in found:
                yield Row("collectives.all_reduce", timing.bus_bytes_per_second, "bytes/s",
                          dict(**case, implementation=name, nbytes=timing.nbytes, seconds=timing.seconds))


def on_a_rank(sizes, device: str):
    """How many of our all-reduces are right where this device's tensors live, and the timings of both implementations."""
    right = 0
    for plan in (collectives.ring_all_reduce, collectives.tree_all_reduce, collectives.naive_all_reduce):
        x = torch.arange(1001.0, device=device)
        want = dist.get_world_size() * x
        collectives.all_reduce(x, plan=plan)
        right += torch.equal(x, want)
    return right, {name: all_reduce_timings(sizes, function, device)
                   for name, function in (("PyTorch", dist.all_reduce), ("shardlab", collectives.all_reduce))}
