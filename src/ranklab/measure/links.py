"""The speed of the links between ranks: seconds of a message, and the latency and bandwidth that
explain those of several sizes.

    with ranks(2) as world:
        seconds = [world.run(time_message, nbytes)[0] for nbytes in sizes]
    fit_link(sizes, seconds)            # Link(latency_seconds=..., bytes_per_second=...)

A ping-pong: rank `here` sends, rank `there` sends it back, and half of the time is one message.
Medians, after a warm-up.
"""

import time
from collections.abc import Iterable
from typing import NamedTuple

import numpy
import torch
import torch.distributed as dist

from .clock import MedianSeconds

REPEATS, WARM_UP = 21, 3


class Link(NamedTuple):
    latency_seconds: float  # of a message of 4 bytes
    bytes_per_second: float  # of a message of 16 MB, without the latency


def time_message(
    nbytes: int,
    here: int = 0,
    there: int = 1,
    group: dist.ProcessGroup | None = None,
    device: str | torch.device = "cpu",
    repeats: int = REPEATS,
) -> MedianSeconds:
    """Median seconds of one message between two ranks of the group, with their spread. All ranks of
    the group call this function, and all get the result."""
    n = dist.get_world_size(group)
    if not (0 <= here < n and 0 <= there < n and here != there):
        raise ValueError(f"a link joins two ranks of the group's {n}: not {here} and {there}.")
    if nbytes < 1 or repeats < 1:
        raise ValueError(f"nbytes = {nbytes}, repeats = {repeats}: both must be at least 1.")
    ball, times = torch.zeros(nbytes, dtype=torch.uint8, device=device), []
    me = dist.get_rank(group)
    dist.barrier(group)
    for _ in range(WARM_UP + repeats):
        finish(ball)
        begin = time.perf_counter()
        if me == here:
            dist.send(ball, group=group, group_dst=there)
            dist.recv(ball, group=group, group_src=there)
        elif me == there:
            dist.recv(ball, group=group, group_src=here)
            dist.send(ball, group=group, group_dst=here)
        finish(ball)
        times.append((time.perf_counter() - begin) / 2)
    found = torch.tensor(times[WARM_UP:], dtype=torch.float64, device=device)
    dist.broadcast(found, group=group, group_src=here)
    return MedianSeconds(found.tolist())


def fit_link(sizes: Iterable[int], seconds: Iterable[float]) -> Link:
    """Latency and bandwidth of the line seconds = latency + bytes / bandwidth nearest to the
    measured times, with relative errors: absolute errors would fit the line to the largest message
    alone.

    Raises ValueError for fewer than two sizes, or for messages that do not take longer when they
    are larger.
    """
    sizes, seconds = list(sizes), list(seconds)
    if len(sizes) != len(seconds) or len(set(sizes)) < 2 or not min(seconds) > 0:
        raise ValueError(
            f"a line wants seconds above 0 for two sizes or more: {len(seconds)} for"
            f" {len(set(sizes))} sizes are too few."
        )
    weights = [1 / one for one in seconds]
    seconds_a_byte, latency = numpy.polyfit(sizes, seconds, 1, w=weights).tolist()
    if seconds_a_byte <= 0:
        raise ValueError(
            "these messages do not take longer when they are larger: take larger ones."
        )
    return Link(max(latency, 0.0), 1 / seconds_a_byte)


def finish(x: torch.Tensor):
    """CUDA calls return before the work is done."""
    if x.device.type == "cuda":
        torch.cuda.synchronize(x.device)
