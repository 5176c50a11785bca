"""Rows of `make gpu` about the machine: its roofline, and all-reduces between ranks, also over a
slow link."""

from collections.abc import Iterable, Iterator
from functools import partial

import torch
import torch.distributed as dist

from .. import collectives
from ..mesh import Mesh
from ..ranks import ranks
from ..ranks.links import LinksUnavailable, two_hosts
from . import roofline
from .attempts import attempt
from .links import Timing, all_reduce_timings
from .recordings import Recording, Row

ALL_REDUCE_BYTES = (4096, 1 << 20, 1 << 26)
SLOW_MEGABITS_PER_SECOND, SLOW_BYTES = 100, (4_000, 1_000_000)


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


def all_reduces(device: torch.device) -> Iterator[Row]:
    """PyTorch's and ours: a rank for each GPU with NCCL where there are two or more; else two ranks
    with gloo, on one GPU if any."""
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    with ranks(max(2, gpus), device=device.type, announce=False) as world:
        backend = "nccl" if gpus > 1 else "gloo"
        case = dict(ranks=world.world_size, backend=backend, device=device.type)
        right, timings = world.run(on_a_rank, ALL_REDUCE_BYTES, device.type)[0]
        yield Row("collectives.right_sums", right, "count", case)
        for name, found in timings.items():
            for timing in found:
                yield Row(
                    "collectives.all_reduce",
                    timing.bus_bytes_per_second,
                    "bytes/s",
                    dict(**case, implementation=name, nbytes=timing.nbytes, seconds=timing.seconds),
                )


def on_a_rank(sizes, device: str):
    """How many of our all-reduces are right where this device's tensors live, and the timings of
    both implementations."""
    right = 0
    for plan in (
        collectives.ring_all_reduce,
        collectives.tree_all_reduce,
        collectives.naive_all_reduce,
    ):
        x = torch.arange(1001.0, device=device)
        want = dist.get_world_size() * x
        collectives.all_reduce(x, plan=plan)
        right += torch.equal(x, want)
    return right, {
        name: all_reduce_timings(sizes, function, device)
        for name, function in (("PyTorch", dist.all_reduce), ("shardlab", collectives.all_reduce))
    }


def slow_links(device: torch.device) -> Iterator[Row]:
    """Our all-reduces on two ranks here and two there, on the CPU, with a slow link between; no
    rows where the system refuses it."""
    try:
        with (
            two_hosts(SLOW_MEGABITS_PER_SECOND) as hosts,
            ranks(4, device="cpu", hosts=hosts, announce=False) as world,
        ):
            found = world.run(over_a_link, SLOW_BYTES)[0]
    except LinksUnavailable:
        return
    for name, timings in found.items():
        for timing in timings:
            yield Row(
                "collectives.slow_link",
                timing.seconds,
                "seconds",
                dict(
                    implementation=name,
                    nbytes=timing.nbytes,
                    ranks=4,
                    hosts=2,
                    megabits_per_second=SLOW_MEGABITS_PER_SECOND,
                ),
            )


def replay(recordings: Iterable[Recording], nbytes: int) -> tuple[dict[str, float], str]:
    """What slow_links() wrote into the first of the recordings that has it: (seconds of each way,
    where it was recorded).

    Raises LookupError where none has."""
    for recording in recordings:
        if rows := recording.find("collectives.slow_link", nbytes=nbytes):
            return {row.case["implementation"]: row.value for row in rows}, recording.label
    raise LookupError(f"no recording has an all-reduce of {nbytes:,} bytes over a slow link.")


def over_a_link(sizes) -> dict[str, list[Timing]]:
    """On each of four ranks, two of them on either host: timings of each way to all-reduce so many
    bytes."""
    mesh = Mesh(dp=2, tp=2)  # tp: the ranks of a host, dp: those across
    ways = {
        name: partial(collectives.all_reduce, plan=getattr(collectives, f"{name}_all_reduce"))
        for name in ("ring", "tree", "naive")
    }
    ways["hierarchical"] = lambda x: collectives.hierarchical_all_reduce(
        x, mesh.tp.group, mesh.dp.group
    )
    return {
        name: all_reduce_timings(sizes, way, repeats=3, warm_up=1) for name, way in ways.items()
    }
