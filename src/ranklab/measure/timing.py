"""Times of work, measured right: on the clock that sees it, after a warm-up, in turns, as a median.

    times = seconds_in_turns({"loop": slow, "fused": fast}, gpu_seconds)
    median_ratio(times, "loop", "fused")

The wall's clock sees all that passes, other programs included. The CPU's clock sees the time that
this thread computed, and no waiting. The GPU's clock sees the time between two events in its queue.
"""

import statistics
import time
from collections.abc import Callable, Mapping

import torch

Work = Callable[[], object]


def seconds_by(clock: Callable[[], float], work: Work) -> float:
    start = clock()
    work()
    return clock() - start


def wall_seconds(work: Work) -> float:
    return seconds_by(time.perf_counter, work)


def cpu_seconds(work: Work) -> float:
    """Seconds that the CPU gave to this thread: those of PyTorch's other threads are not in it."""
    return seconds_by(time.thread_time, work)


def gpu_seconds(work: Work) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000


def seconds_in_turns(
    works: Mapping[str, Work],
    clock: Callable[[Work], float] = wall_seconds,
    turns: int = 11,
    warm_up: int = 3,
) -> dict[str, list[float]]:
    """Seconds of each work in each turn. A turn runs every work once, so that other load on the
    machine meets all works alike; every second turn runs them in reverse."""
    times = {name: [] for name in works}
    for turn in range(warm_up + turns):
        for name in list(works)[:: -1 if turn % 2 else 1]:
            seconds = clock(works[name])
            if turn >= warm_up:
                times[name].append(seconds)
    return times


def median_ratio(times: Mapping[str, list[float]], name: str, over: str) -> float:
    """The median of the ratios within a turn: two works of one turn had the same neighbours."""
    return statistics.median(a / b for a, b in zip(times[name], times[over]))
