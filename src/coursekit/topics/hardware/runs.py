"""Measurements of the machine itself for `make gpu`: its roofline and its copies, and the rungs by
which a training step fills it."""

from collections.abc import Iterator, Sequence

import torch

from coursekit.recordings.attempts import attempt
from coursekit.recordings.races import TINY, Run
from coursekit.recordings.recordings import Row
from coursekit.topics.hardware import probes as roofline
from coursekit.topics.hardware.one_gpu import one_gpu


def machine(
    device: torch.device,
    sizes: Sequence[int] | None = None,
    memory_bytes: int | None = None,
    copy_bytes: int = roofline.COPY_BYTES,
) -> Iterator[Row]:
    """Products by size, memory, launch, and copies between host and GPU."""
    yield from attempt("machine, products", product_rates(device, sizes))
    yield from attempt("machine, memory_and_launch", memory_and_launch(device, memory_bytes))
    if device.type == "cuda":
        yield from attempt("machine, copies", copies(device, copy_bytes))


def product_rates(device: torch.device, sizes: Sequence[int] | None) -> Iterator[Row]:
    for product in roofline.products(device, sizes=sizes):
        case = dict(dtype=product.dtype, size=product.size, intensity=product.intensity)
        yield Row("roofline.matmul", product.flops_per_second, "FLOP/s", case)


def memory_and_launch(device: torch.device, nbytes: int | None) -> Iterator[Row]:
    yield Row("roofline.memory", roofline.memory_bytes_per_second(device, nbytes), "bytes/s")
    yield Row("roofline.launch", roofline.launch_seconds(device), "seconds")
    yield Row("roofline.launch_and_read", roofline.launch_seconds(device, reads=True), "seconds")


def copies(device: torch.device, nbytes: int) -> Iterator[Row]:
    for to_device in (True, False):
        for pinned in (True, False):
            rate = roofline.copy_bytes_per_second(device, to_device, pinned, nbytes)
            case = dict(direction="to the GPU" if to_device else "to the host", pinned=pinned)
            yield Row("roofline.copy", rate, "bytes/s", case)


QUICK = dict(sizes=(8, 16), memory_bytes=2**20, copy_bytes=2**20)
RUNS = (
    Run(25, one_gpu, dict(task=TINY, steps=2, product_size=32, compiles=False)),
    Run(5, machine, QUICK),
)
