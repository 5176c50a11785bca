"""How fast this machine is: matrix products by size and dtype, memory, copies to and from a GPU, a
kernel's launch, a link between ranks. Medians of repeated runs, timed by the GPU's own clock where
there is one (see clock.py).
"""

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import torch

from ranklab.measure.clock import median_seconds
from ranklab.measure.links import Link, time_message

PRODUCT_SIZES = {"cuda": (512, 1024, 2048, 4096, 8192), "cpu": (64, 128, 256, 512)}
MEMORY_BYTES = {"cuda": 1 << 30, "cpu": 1 << 27}  # far more than a cache holds
COPY_BYTES = 1 << 28
SMALL_MESSAGE_BYTES, LARGE_MESSAGE_BYTES = 4, 16_000_000


class ProductRate(NamedTuple):
    size: int  # of two square matrices
    dtype: str
    seconds: float
    flops_per_second: float
    intensity: float  # FLOP for each byte, when each matrix moves once


def products(
    device: torch.device,
    dtypes: Iterable[torch.dtype] = (torch.float32, torch.bfloat16),
    sizes: Iterable[int] | None = None,
    repeats: int = 11,
) -> list[ProductRate]:
    """Rates of matrix products, small to large: a small one is bound by memory and by its launch, a
    large one by arithmetic. Random numbers: a GPU that multiplies zeros needs less power, and runs
    faster than it will for you."""
    found = []
    for dtype in dtypes:
        for size in sizes or PRODUCT_SIZES[device.type]:
            a, b, c = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(3))
            seconds = median_seconds(partial(torch.mm, a, b, out=c), device, repeats)
            name, flops = str(dtype).removeprefix("torch."), 2 * size**3
            intensity = flops / (3 * size**2 * dtype.itemsize)
            found.append(ProductRate(size, name, seconds, flops / seconds, intensity))
    return found


def memory_bytes_per_second(
    device: torch.device, nbytes: int | None = None, repeats: int = 11
) -> float:
    """Bandwidth of the device's memory: bytes read and bytes written by a copy of a large tensor
    onto another."""
    nbytes = nbytes or MEMORY_BYTES[device.type]
    source, target = (torch.zeros(nbytes // 2, dtype=torch.uint8, device=device) for _ in range(2))
    return 2 * source.nbytes / median_seconds(lambda: target.copy_(source), device, repeats)


def copy_bytes_per_second(
    device: torch.device, to_device: bool, pinned: bool, nbytes: int = COPY_BYTES, repeats: int = 11
) -> float:
    """Bandwidth of a copy between host and GPU. Pinned host memory is copied by the GPU itself;
    pageable memory goes through a pinned buffer of the driver's first."""
    if device.type != "cuda":
        raise ValueError(
            f"device = {device}: host and device are copied between where there is a CUDA GPU."
        )
    host = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=pinned)
    there = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    source, target = (host, there) if to_device else (there, host)
    return nbytes / median_seconds(
        lambda: target.copy_(source, non_blocking=pinned), device, repeats
    )


def launch_seconds(
    device: torch.device, calls: int = 200, repeats: int = 11, reads: bool = False
) -> float:
    """Time of one small operation when many are queued one after the other: on a GPU what a
    kernel's launch costs. With `reads` the host reads each result before the next launch."""
    x = torch.zeros(1, device=device)

    def many():
        for _ in range(calls):
            x.add_(1)
            if reads:
                x.item()

    return median_seconds(many, device, repeats, calls=calls)


def measure_link(device: str | torch.device = "cpu") -> Link:
    """Latency and bandwidth of the link between ranks 0 and 1; tensors must be where the backend
    can send them."""
    latency, large = (
        time_message(nbytes, device=device) for nbytes in (SMALL_MESSAGE_BYTES, LARGE_MESSAGE_BYTES)
    )
    return Link(latency, LARGE_MESSAGE_BYTES / max(large - latency, 1e-9))
