"""Chapter 2: hardware."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import NamedTuple

import torch

from coursekit.exercises.edits import Topic
from coursekit.exercises.numbers import same

topic = Topic(__name__)


# --- a probe --------------------------------------------------------------------------------------


class Probed(NamedTuple):
    """The value that a probe found, how often it did the work between its first and its last look
    at the clock, and whether the first call was one of them."""

    seconds: float
    calls_timed: int
    first_call_was_timed: bool


def _probe_played(solution, durations):
    """solution(work, clock, repeats) on a clock that is played. The first call takes the first of
    the durations; the others follow in turn, again and again, so that as many repeats take the same
    times after whatever number of calls to warm up."""
    now, calls, looks = [0.0], [], []
    first, *others = durations

    def work():
        now[0] += others[(len(calls) - 1) % len(others)] if calls else first
        calls.append(None)

    def clock():
        looks.append(len(calls))
        return now[0]

    found = solution(work, clock, len(others))
    if found is None or found is ...:
        return found
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        raise TypeError(f"it returned {found!r}; it is to return one time, in seconds.")
    if not looks:
        raise TypeError("it never looked at clock(), which the check plays: call that, no other.")
    return Probed(round(found, 9), looks[-1] - looks[0], looks[0] == 0)


seconds_of_some_work = topic.exercise(
    "seconds_of_some_work",
    cases=(
        dict(durations=(100.0, 3.0, 1.0, 2.0, 90.0, 2.5)),
        dict(durations=(9.0, 5.0, 4.0, 30.0, 6.0, 7.0)),
    ),
    words=(
        "work that takes 100 s once, then 3, 1, 2, 90 and 2.5 s, 5 repeats",
        "work that takes 9 s once, then 5, 4, 30, 6 and 7 s, 5 repeats",
    ),
    answer=_probe_played,
    hint="Do the work once without a clock. Then look at the clock before and after each repeat,"
    " and take statistics.median of the differences.",
    right="one call to set up, then repeats that are timed one by one, and their median.",
)


# --- the intensity of a product -------------------------------------------------------------------


class _Counted(NamedTuple):
    """How often each matrix moves, of how many operations, with how many bytes for a number."""

    first: int
    weight: int
    result: int
    operations: int
    width: float


def _how_it_was_counted(found, rows, columns, depth, element_bytes):
    """The count that gives the answer, with as much right as can be; the right one if none does, or
    several do, as for square matrices."""
    sizes = rows * depth, depth * columns, rows * columns
    counts = sorted(product((1, 0, 2), repeat=3), key=lambda moved: sum(n != 1 for n in moved))
    widths = element_bytes, 1, 8 * element_bytes, 1 / element_bytes
    for moved, operations, width in product(counts, (2, 1, 4), widths):
        nbytes = width * sum(n * size for n, size in zip(moved, sizes))
        square = rows == columns == depth
        if nbytes and not square and same(found, operations * rows * depth * columns / nbytes):
            return _Counted(*moved, operations, width)
    return _Counted(1, 1, 1, 2, element_bytes)


intensity_of_a_product = topic.exercise(
    "intensity_of_a_product",
    cases=(
        dict(rows=1, depth=1, columns=1, element_bytes=4),
        dict(rows=4096, depth=4096, columns=4096, element_bytes=2),
        dict(rows=3, depth=5, columns=7, element_bytes=2),
        dict(rows=1, depth=1600, columns=4800, element_bytes=2),
    ),
    hint="Count operations: two for each row, column and inner index. Then count the numbers of"
    " three matrices, and their bytes.",
    right="two operations for each row, column and step of the sum; three matrices, each moved"
    " once.",
)


# --- the roof -------------------------------------------------------------------------------------


attainable_rate = topic.exercise(
    "attainable_rate",
    cases=(
        dict(flops_per_second=100, bytes_per_second=10, intensity=0.5),
        dict(flops_per_second=100, bytes_per_second=10, intensity=20),
        dict(flops_per_second=4, bytes_per_second=8, intensity=1),
        dict(flops_per_second=100, bytes_per_second=10, intensity=3),
        dict(flops_per_second=4, bytes_per_second=9, intensity=0.5),
    ),
    hint="Memory brings bytes_per_second bytes. How many operations can be done with those?",
    right="the lower of two roofs: a slope, the bandwidth, and a ceiling, the arithmetic.",
)


# --- what a datasheet prints ----------------------------------------------------------------------

usable_rate = topic.exercise(
    "usable_rate",
    cases=(
        dict(printed=312, unit="TFLOP/s", counted="dense"),
        dict(printed=1979, unit="TFLOP/s", counted="with sparsity"),
        dict(printed=900, unit="GB/s", counted="both ways"),
        dict(printed=400, unit="Gb/s", counted="one way"),
        dict(printed=63, unit="GB/s", counted="one way"),
    ),
    hint="What does a tera, a giga, a bit stand for? And what is counted twice?",
    right="dense, one way, in bytes.",
)

gib_of_a_card = topic.exercise(
    "gib_of_a_card",
    cases=(dict(memory_gb=80), dict(memory_gb=141)),
    hint="A GB is 10**9 bytes, a GiB 2**30.",
    unit="GiB",
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
    """A probe on a clock that is played. The first call sets things up before it hands anything
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
    """The seconds that a function measured of a queue, and what was between its first and its last
    look at the clock."""

    share_of_the_true_rate: float  # to one digit
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
    one_digit = round(share, 1) if share > 0.05 else float(f"{share:.1g}")
    return Timed(one_digit, share > 1 + 1e-9, before == 0, waiting, left)


rate_above_the_roof = topic.exercise(
    "rate_above_the_roof",
    cases=(
        dict(launch_seconds=5e-6, work_seconds=20e-6, setup_seconds=10e-3),
        dict(launch_seconds=8e-6, work_seconds=40e-6, setup_seconds=80e-3),
    ),
    words=("a queue, flops", "a slower queue, flops"),
    answer=time_a_queue,
    hint="Draw a line of time: launches, work, setting up. Where are your two looks at the clock?",
    right="set up first, wait, start the clock, launch, wait, stop it.",
)


# --- a link measured alone ------------------------------------------------------------------------


class _LinkFound(NamedTuple):
    """Whether each number can be that of a link."""

    latency_in_seconds: bool
    bytes_per_second: bool
    latency_looks_like_a_rate: bool


def _link_found(found):
    """Links differ, so the check asks what each number can be: a message takes between a tenth of a
    microsecond and half a second, and a link carries between a megabyte and 10 TB a second."""
    latency, rate = (float(number) for number in found())
    return _LinkFound(1e-7 < latency < 0.5, 1e6 < rate < 1e13, latency > 1e6)


link_of_two_ranks = topic.exercise(
    "link_of_two_ranks",
    (3e-4, 3e9),
    name="the pair",
    cases=({},),
    answer=_link_found,
    of_a_value=True,
    hint="ranks(2) starts two ranks, in a with block. Both call time_message(nbytes, device=...),"
    " and run() hands back what each returns.",
    right="a latency, and a rate without it: two numbers say how long any message takes.",
)
