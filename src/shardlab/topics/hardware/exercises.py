"""Chapter 2: hardware."""

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch

from shardlab.exercises.checker import Exercise, Misconception

# --- a probe --------------------------------------------------------------------------------------


class Probed(NamedTuple):
    """What a probe found, and how often it did the work."""

    seconds: float
    calls: int


def _probe_played(solution, durations):
    """solution(work, clock, repeats) on a clock that is played; what comes after the durations
    takes as long as the last of them."""
    now, calls = [0.0], []

    def work():
        now[0] += durations[min(len(calls), len(durations) - 1)]
        calls.append(None)

    found = solution(work, lambda: now[0], len(durations) - 1)
    if found is None or found is ...:
        return found
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        raise TypeError(f"it returned {found!r}; it is to return one time, in seconds.")
    return Probed(round(found, 9), len(calls))


def _probe(middle=statistics.median, warm_up=1, together=False):
    def typical_seconds(work, clock, repeats):
        for _ in range(warm_up):
            work()
        times, start = [], clock()
        for _ in range(repeats):
            if not together:
                start = clock()
            work()
            times.append(clock() - start)
        return middle(times)

    return typical_seconds


seconds_of_some_work = Exercise(
    name="typical_seconds",
    reference=_probe(),
    cases=(
        dict(durations=(100.0, 3.0, 1.0, 2.0, 90.0, 2.5)),
        dict(durations=(9.0, 5.0, 4.0, 30.0)),
    ),
    words=(
        "work that takes 100 s once, then 3, 1, 2, 90 and 2.5 s, 5 repeats",
        "work that takes 9 s once, then 5, 4 and 30 s, 3 repeats",
    ),
    answer=_probe_played,
    hint="Once without a clock. Then look at the clock before and after each repeat; of the"
    " differences take statistics.median.",
    misconceptions=(
        Misconception(
            _probe(statistics.mean),
            "that is the mean: one call that something else has disturbed moves it. Take the"
            " median.",
        ),
        Misconception(
            _probe(warm_up=0),
            "the first call sets things up, and you time it with the others. Do the work once"
            " before you look at the clock.",
        ),
        Misconception(
            _probe(min),
            "that is the fastest of all: it will not happen again. Take the median.",
        ),
        Misconception(
            _probe(sum),
            "that is all repeats together; one of them is wanted.",
        ),
        Misconception(
            _probe(together=True),
            "the clock was read once, before all repeats: each time has those before in it.",
        ),
        Misconception(
            _probe(lambda times: times[0]),
            "one call says little: whatever disturbs it is in your number. Repeat it, and take the"
            " median.",
        ),
    ),
    right="once to set up, then repeats that are timed one by one, and of those the median.",
)


# --- the intensity of a product -------------------------------------------------------------------


def _intensity(rows, columns, depth, element_bytes):
    return (
        2
        * rows
        * depth
        * columns
        / (element_bytes * (rows * depth + depth * columns + rows * columns))
    )


intensity_of_a_product = Exercise(
    name="intensity",
    reference=_intensity,
    cases=(
        dict(rows=1, depth=1, columns=1, element_bytes=4),
        dict(rows=4096, depth=4096, columns=4096, element_bytes=2),
        dict(rows=3, depth=5, columns=7, element_bytes=2),
        dict(rows=1, depth=1600, columns=4800, element_bytes=2),
    ),
    hint="Count operations: two for each row, column and place between. Then count the numbers of"
    " three matrices, and their bytes.",
    misconceptions=(
        Misconception(
            lambda rows, columns, depth, element_bytes: _intensity(rows, depth, columns, 1),
            "operations for each element; an element has element_bytes bytes.",
        ),
        Misconception(
            lambda rows, columns, depth, element_bytes: (
                _intensity(rows, columns, depth, element_bytes) / 2
            ),
            "a multiplication and an addition are two operations.",
        ),
        Misconception(
            lambda rows, columns, depth, element_bytes: (
                1 / _intensity(rows, columns, depth, element_bytes)
            ),
            "that is bytes for each operation: upside down.",
        ),
        Misconception(
            lambda rows, columns, depth, element_bytes: (
                2 * rows * depth * columns / (element_bytes * (rows * depth + depth * columns))
            ),
            "both inputs are there. The result has to be written to memory too.",
        ),
        Misconception(
            lambda rows, columns, depth, element_bytes: (
                2 * rows * depth * columns / (element_bytes * depth * columns)
            ),
            "that is the second matrix alone, the weight. The first one is read and the result is"
            " written as well.",
        ),
        Misconception(
            lambda rows, columns, depth, element_bytes: (
                2 * rows * depth * columns / (element_bytes * (rows * depth + rows * columns))
            ),
            "what comes in and what goes out are there; the second matrix, the weight, has to be"
            " read too.",
        ),
        Misconception(
            lambda rows, columns, depth, element_bytes: (
                2 * rows * depth * columns / (element_bytes * rows * columns)
            ),
            "that is the result alone; both inputs have to be read.",
        ),
        Misconception(
            lambda rows, columns, depth, element_bytes: 2 * rows / (3 * element_bytes),
            "that holds for square matrices only: three of the same size.",
        ),
    ),
    right="two operations for each row, column and place between; three matrices, each moved once.",
)


# --- the roof -------------------------------------------------------------------------------------

attainable_rate = Exercise(
    name="attainable",
    reference=lambda flops_per_second, bytes_per_second, intensity: min(
        flops_per_second, intensity * bytes_per_second
    ),
    cases=(
        dict(flops_per_second=100, bytes_per_second=10, intensity=0.5),
        dict(flops_per_second=100, bytes_per_second=10, intensity=20),
        dict(flops_per_second=4, bytes_per_second=8, intensity=1),
    ),
    hint="Memory brings bytes_per_second bytes. How many operations can be done with those?",
    misconceptions=(
        Misconception(
            lambda flops_per_second, bytes_per_second, intensity: max(
                flops_per_second, intensity * bytes_per_second
            ),
            "a roof is the lower of the two: what arithmetic allows and what memory delivers.",
        ),
        Misconception(
            lambda flops_per_second, bytes_per_second, intensity: flops_per_second,
            "that is what the arithmetic units could do if the bytes were there. Memory delivers "
            "intensity x bytes_per_second operations' worth of them in a second.",
        ),
        Misconception(
            lambda flops_per_second, bytes_per_second, intensity: intensity * bytes_per_second,
            "that is what memory delivers; the arithmetic units may be slower than that.",
        ),
        Misconception(
            lambda flops_per_second, bytes_per_second, intensity: min(
                flops_per_second, bytes_per_second / intensity
            ),
            "bytes a second over operations a byte is no rate of operations: multiply.",
        ),
        Misconception(
            lambda flops_per_second, bytes_per_second, intensity: (
                flops_per_second
                if intensity > bytes_per_second / flops_per_second
                else intensity * bytes_per_second
            ),
            "your ridge is upside down: it is operations a second over bytes a second.",
        ),
        Misconception(
            lambda flops_per_second, bytes_per_second, intensity: (
                1 / (1 / flops_per_second + 1 / (intensity * bytes_per_second))
            ),
            "that is a machine that reads first and computes then. A GPU does both at once, so the"
            " slower of the two decides.",
        ),
    ),
    right="the lower of two roofs: a slope, the bandwidth, and a ceiling, the arithmetic.",
)


# --- what a datasheet prints ----------------------------------------------------------------------

SCALES = {"TFLOP/s": 1e12, "GB/s": 1e9, "Gb/s": 1e9 / 8}
TWICE = ("with sparsity", "both ways")


def _usable(printed, unit, counted):
    return printed * SCALES[unit] / (2 if counted in TWICE else 1)


def _halves(*twice):
    return lambda printed, unit, counted: printed * SCALES[unit] / (2 if counted in twice else 1)


usable_rate = Exercise(
    name="usable",
    reference=_usable,
    cases=(
        dict(printed=312, unit="TFLOP/s", counted="dense"),
        dict(printed=1979, unit="TFLOP/s", counted="with sparsity"),
        dict(printed=900, unit="GB/s", counted="both ways"),
        dict(printed=400, unit="Gb/s", counted="one way"),
        dict(printed=63, unit="GB/s", counted="one way"),
    ),
    hint="What does a tera, a giga, a bit stand for? And what is counted twice?",
    misconceptions=(
        Misconception(
            _halves("both ways"),
            "a rate with sparsity counts multiplications by zeros that your matrices do not have:"
            " half of the rate is dense.",
        ),
        Misconception(
            _halves("with sparsity"),
            "a link that carries 900 GB/s both ways together carries half of that one way, and a"
            " message goes one way.",
        ),
        Misconception(
            _halves(),
            "what is printed with sparsity, or for both ways together, is twice what you can use.",
        ),
        Misconception(
            lambda printed, unit, counted: (
                _usable(printed, unit, counted) * (8 if unit == "Gb/s" else 1)
            ),
            "a small b is a bit, and eight of them are a byte: networks are sold in Gb/s.",
        ),
        Misconception(
            lambda printed, unit, counted: (
                _usable(printed, unit, counted) / 2 ** (counted == "one way")
            ),
            "one way is what a message can use: nothing to halve there.",
        ),
        Misconception(
            lambda printed, unit, counted: (
                _usable(printed, unit, counted) * (1 if "F" in unit else 2**30 / 1e9)
            ),
            "a vendor's GB is 10^9 bytes; 2^30 is a GiB.",
        ),
    ),
    right="dense, one way, in bytes.",
)

gib_of_a_card = Exercise(
    name="gib",
    reference=lambda memory_gb: memory_gb * 10**9 / 2**30,
    cases=(dict(memory_gb=80), dict(memory_gb=141)),
    hint="A GB is 10**9 bytes, a GiB 2**30.",
    misconceptions=(
        Misconception(
            lambda memory_gb: memory_gb,
            "then GB and GiB would be the same; one is 10^9 bytes, the other 2^30.",
        ),
        Misconception(
            lambda memory_gb: memory_gb * 2**30 / 10**9,
            "upside down: a GiB is the larger unit, so there are fewer of them.",
        ),
        Misconception(
            lambda memory_gb: memory_gb * 1000 / 1024,
            "that is one step of three, from kB to KiB: 10^9 over 2^30 is 0.931.",
        ),
    ),
    right="10^9 bytes over 2^30: seven percent fewer.",
)


# --- bug hunt: a rate above the roof --------------------------------------------------------------


class Queue:
    """Work that is handed over and done later, in order: a CUDA stream on a GPU, a thread on a CPU.
    `launch` returns at once."""

    def __init__(self, work: Callable[[], object], device: torch.device):
        self._work, self._device, self._last = work, device, None
        self._thread = None if device.type == "cuda" else ThreadPoolExecutor(1)

    def launch(self) -> None:
        """Hand the work over once more."""
        if self._thread is None:
            self._work()
        else:
            self._last = self._thread.submit(self._work)

    def synchronize(self) -> None:
        """Wait until all that was handed over is done."""
        if self._thread is None:
            torch.cuda.synchronize(self._device)
        elif self._last is not None:
            self._last.result()

    def clock(self) -> float:
        """The CPU's clock, in seconds."""
        return time.perf_counter()


class Played:
    """The same on a clock that is played. The first call sets things up before it hands anything
    over, as a GPU's library does."""

    def __init__(self, launch_seconds: float, work_seconds: float, setup_seconds: float):
        self.launch_seconds, self.work_seconds, self.setup_seconds = (
            launch_seconds,
            work_seconds,
            setup_seconds,
        )
        self.now = self.done_at = 0.0
        self.launches = 0
        self.readings = []  # at each look at the clock: (launches so far, is work still waiting)

    def launch(self):
        self.now += self.launch_seconds + (0 if self.launches else self.setup_seconds)
        self.done_at = max(self.now, self.done_at) + self.work_seconds
        self.launches += 1

    def synchronize(self):
        self.now = max(self.now, self.done_at)

    def clock(self):
        self.readings.append((self.launches, self.done_at > self.now))
        return self.now


class Timed(NamedTuple):
    """What a function that times a queue measured, and what was between its first and its last look
    at the clock."""

    share_of_the_true_rate: float  # to one digit after the point
    above_the_true_rate: bool
    first_call_was_timed: bool
    work_waited_at_the_start: bool
    work_waited_at_the_end: bool


FLOPS = 2 * 512**3


def time_a_queue(rate, **queue) -> Timed:
    """Let `rate`(queue, flops) time a played queue."""
    played = Played(**queue)
    found = rate(played, FLOPS)
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        raise TypeError(f"it returned {found!r}; it is to return a rate, in operations a second.")
    if not played.readings:
        raise TypeError("it never looked at queue.clock().")
    (before, waiting), (_, left) = played.readings[0], played.readings[-1]
    share = found * played.work_seconds / FLOPS
    return Timed(round(share, 1), share > 1 + 1e-9, before == 0, waiting, left)


def _rate(
    warm_up=0,
    wait_before=False,
    wait_each=False,
    wait_after=False,
    counted=lambda launches: launches,
):
    def rate(queue, flops, launches=100):
        for _ in range(warm_up):
            queue.launch()
        if wait_before:
            queue.synchronize()
        start = queue.clock()
        for _ in range(launches):
            queue.launch()
            if wait_each:
                queue.synchronize()
        if wait_after:
            queue.synchronize()
        return counted(launches) * flops / (queue.clock() - start)

    return rate


rate_above_the_roof = Exercise(
    name="rate",
    reference=_rate(3, True, False, True),
    cases=(
        dict(launch_seconds=5e-6, work_seconds=20e-6, setup_seconds=10e-3),
        dict(launch_seconds=8e-6, work_seconds=40e-6, setup_seconds=80e-3),
    ),
    words=("a queue, flops", "a slower queue, flops"),
    answer=time_a_queue,
    hint="Draw a line of time: launches, work, setting up. Where are your two looks at the clock?",
    misconceptions=(
        Misconception(
            _rate(),
            "you time how fast work is handed over, and with it everything that the first call sets"
            " up. Look at what the queue has still to do when you stop the clock.",
        ),
        Misconception(
            _rate(wait_after=True),
            "the end is right: you wait until all is done. But the first call sets things up, once,"
            " and you time it with the others. Make it before the clock starts.",
        ),
        Misconception(
            _rate(warm_up=3),
            "the first call is out of the way. What you time is how fast work is handed over: the"
            " queue is far from done when you stop the clock.",
        ),
        Misconception(
            _rate(3, True),
            "the first call is out of the way and the queue is empty when you start. It is full"
            " when you stop.",
        ),
        Misconception(
            _rate(3, wait_after=True),
            "nearly: the warm-up may still be running when you start the clock. Wait before you"
            " start, too.",
        ),
        Misconception(
            _rate(3, True, True),
            "you wait for each product before you launch the next, and so time every launch as"
            " well. Launch them all, then wait once.",
        ),
        Misconception(
            _rate(3, True, False, True, lambda launches: 1),
            "many products were done in that time, and you count the operations of one.",
        ),
        Misconception(
            _rate(3, True, False, True, lambda launches: launches + 1),
            "still above the roof, by one product: count those that you launch between the two"
            " looks at the clock, and not the one before.",
        ),
    ),
    right="set up first, wait, start the clock, launch, wait, stop it.",
)
