"""The duration of some work: warm up, repeat, take the median. On a GPU the GPU's own clock is
read.

CUDA calls return before the work is done, so a clock on the CPU, read too early, measures how fast
work is handed over.
"""

import statistics
import time
from collections.abc import Callable

import torch


def median_seconds(
    work: Callable[[], object], device: torch.device, repeats: int = 11, warm_up: int = 3
) -> float:
    """Median time of one call of `work`, in seconds, over `repeats` calls after `warm_up` calls
    that are not counted."""
    if repeats < 1 or warm_up < 0:
        raise ValueError(
            f"repeats = {repeats}, warm_up = {warm_up}: repeats must be at least 1, warm_up at"
            " least 0."
        )
    once = _gpu_seconds if device.type == "cuda" else _cpu_seconds
    for _ in range(warm_up):
        work()
    return statistics.median(once(work) for _ in range(repeats))


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
