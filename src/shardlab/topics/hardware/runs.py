"""What `make gpu` measures of the machine itself: its roofline and its copies."""

from collections.abc import Iterator

import torch

from shardlab.measure.attempts import attempt
from shardlab.measure.recordings import Row
from shardlab.topics.hardware import probes as roofline


def machine(device: torch.device) -> Iterator[Row]:
    """Products by size, memory, launch, and copies between host and GPU."""
    for part in (products, memory_and_launch, *[copies] * (device.type == "cuda")):
        yield from attempt(f"machine, {part.__name__}", part(device))


def products(device: torch.device) -> Iterator[Row]:
    for product in roofline.products(device):
        yield Row(
            "roofline.matmul",
            product.flops_per_second,
            "FLOP/s",
            dict(dtype=product.dtype, size=product.size, intensity=product.intensity),
        )


def memory_and_launch(device: torch.device) -> Iterator[Row]:
    yield Row("roofline.memory", roofline.memory_bytes_per_second(device), "bytes/s")
    yield Row("roofline.launch", roofline.launch_seconds(device), "seconds")


def copies(device: torch.device) -> Iterator[Row]:
    for to_device in (True, False):
        for pinned in (True, False):
            yield Row(
                "roofline.copy",
                roofline.copy_bytes_per_second(device, to_device, pinned),
                "bytes/s",
                dict(direction="to the GPU" if to_device else "to the host", pinned=pinned),
            )


RUNS = ((80, machine),)
