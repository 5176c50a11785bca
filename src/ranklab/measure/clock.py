"""The duration of some work: warm up, repeat, take the median. On a GPU the GPU's own clock is
read.

CUDA calls return before the work is done, so a clock on the CPU, read too early, measures how fast
work is handed over. Beside the time on the wall a CPU has the time that it gave to this process: of
work that only computes, the rest went to other work on the machine.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial

import torch

from .timing import gpu_seconds, seconds_by, wall_seconds

BUSY_SPREAD = 0.3
LEAST_CPU_SHARE = 0.7  # of the wall's time, where the work only computes
CPU_TICK = time.get_clock_info("process_time").resolution  # seconds
TICKS = 20  # of the clock of CPU time: fewer say nothing


def median_seconds(
    work: Callable[[], object],
    device: torch.device,
    repeats: int = 11,
    warm_up: int = 3,
    calls: int = 1,
    clock: Callable[[], float] | None = None,
) -> "MedianSeconds":
    """Median time of one call of `work`, in seconds, over `repeats` calls after `warm_up` calls
    that are not counted: a float that knows its spread. `calls` says how many small operations
    `work` makes; the time is that of one. On a CPU `clock` reads the seconds, by
    default the wall's."""
    if repeats < 1 or warm_up < 0:
        raise ValueError(
            f"repeats = {repeats}, warm_up = {warm_up}: repeats must be at least 1, warm_up at"
            " least 0."
        )
    on_host = partial(seconds_by, clock) if clock else wall_seconds
    once = gpu_seconds if device.type == "cuda" else on_host
    for _ in range(warm_up):
        work()
    begin = time.process_time()
    times = [once(work) for _ in range(repeats)]
    known = device.type != "cuda" and sum(times) >= TICKS * CPU_TICK > 0
    cpu_share = (time.process_time() - begin) / sum(times) if known else 1.0
    return MedianSeconds((seconds / calls for seconds in times), cpu_share)


class MedianSeconds(float):
    """The median of some times, in seconds. `spread` is the range of the middle half of them, over
    the median: 0.1 says that times differ by a tenth. `cpu_share` is the CPU time of this process
    over the time on the wall: above 1 where several threads compute, 1 where nobody looked."""

    def __new__(cls, times: Iterable[float], cpu_share: float = 1.0):
        times = sorted(times)
        found = super().__new__(cls, statistics.median(times))
        low, high = times[len(times) // 4], times[-1 - len(times) // 4]
        found.spread = (high - low) / found if found else 0.0
        found.cpu_share = cpu_share
        return found

    def __getnewargs__(self):  # in another process; the attributes follow by themselves
        return ([float(self)],)


def say_if_busy(*measured: float) -> None:
    """Print one line if times of the same work differ so much, or the CPU was away from it for so
    long, that the machine must be busy."""
    widest = max((getattr(one, "spread", 0.0) for one in measured), default=0.0)
    least = min((getattr(one, "cpu_share", 1.0) for one in measured), default=1.0)
    if widest > BUSY_SPREAD:
        print(f"this machine is busy (times differ by {widest:.0%}): repeat")
    elif least < LEAST_CPU_SHARE:
        print(f"this machine is busy (it worked here for {least:.0%} of the time): repeat")


def say_if_most_vary(measured: Iterable[float]) -> None:
    """Say that the machine is busy if more than half of many small measurements vary; one may vary
    by chance."""
    in_order = sorted(measured, key=lambda one: getattr(one, "spread", 0.0))
    say_if_busy(*in_order[: len(in_order) // 2 + 1])


def cores() -> int:
    """The cores that this process may use."""
    able = hasattr(os, "sched_getaffinity")  # not on macOS and Windows
    return len(os.sched_getaffinity(0)) if able else os.cpu_count() or 1
