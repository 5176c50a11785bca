"""The duration of some work: warm up, repeat, take the median. On a GPU the GPU's own clock is
read.

CUDA calls return before the work is done, so a clock on the CPU, read too early, measures how fast
work is handed over.
"""

import statistics
import time
from collections.abc import Callable, Iterable

import torch

BUSY_SPREAD = 0.3


def median_seconds(
    work: Callable[[], object], device: torch.device, repeats: int = 11, warm_up: int = 3
) -> "MedianSeconds":
    """Median time of one call of `work`, in seconds, over `repeats` calls after `warm_up` calls
    that are not counted: a float that knows its spread."""
    if repeats < 1 or warm_up < 0:
        raise ValueError(
            f"repeats = {repeats}, warm_up = {warm_up}: repeats must be at least 1, warm_up at"
            " least 0."
        )
    once = _gpu_seconds if device.type == "cuda" else _cpu_seconds
    for _ in range(warm_up):
        work()
    return MedianSeconds(once(work) for _ in range(repeats))


class MedianSeconds(float):
    """The median of some times, in seconds. `spread` is the range of the middle half of them, over
    the median: 0.1 says that times differ by a tenth."""

    def __new__(cls, times: Iterable[float]):
        times = sorted(times)
        found = super().__new__(cls, statistics.median(times))
        low, high = times[len(times) // 4], times[-1 - len(times) // 4]
        found.spread = (high - low) / found if found else 0.0
        return found

    def __reduce__(self):
        return float, (float(self),)


def say_if_busy(*measured: float) -> None:
    """Print one line if times of the same work differ so much that the machine must be busy."""
    widest = max((getattr(one, "spread", 0.0) for one in measured), default=0.0)
    if widest > BUSY_SPREAD:
        print(f"this machine is busy (times differ by {widest:.0%}): repeat")


def _cpu_seconds(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _gpu_seconds(work):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000
