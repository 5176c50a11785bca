"""Chapter 2: hardware."""

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch

from coursekit.exercises.checker import Exercise, Misconception

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


def _probe(middle=statistics.median, warm_up=1, together=False, more=0, twice=False, calls=None):
    def typical_seconds(work, clock, repeats):
        for _ in range(warm_up):
            work()
        times, start = [], clock()
        for _ in range(calls or repeats + more):
            if not together:
                start = clock()
            if twice:
                work()
            work()
            times.append(clock() - start)
        return middle(times)

    return typical_seconds


def _readings_of_the_clock(work, clock, repeats):
    readings = []
    for _ in range(repeats):
        work()
        readings.append(clock())
    return statistics.median(readings)


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
    hint="Do the work once without a clock. Then look at the clock before and after each repeat,"
    " and take statistics.median of the differences.",
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
            "that is the time of all repeats together; the time of one is wanted.",
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
        Misconception(
            _probe(statistics.mean, warm_up=0),
            "two things: the first call sets things up, and you time it with the others; and the"
            " mean is moved by every call that something else has disturbed. Warm up, and take"
            " the median.",
        ),
        Misconception(
            _probe(max),
            "that is the slowest: what disturbed it says nothing about the work. Take the median.",
        ),
        Misconception(
            _probe(calls=1),
            "one call says little: whatever disturbs it is in your number. Repeat it as often as"
            " you are told, and take the median.",
        ),
        Misconception(
            _probe(calls=1, warm_up=0),
            "one call says little, and the first one sets things up besides. Warm up, then"
            " repeat, and take the median.",
        ),
        Misconception(
            _probe(lambda times: times[-1]),
            "that is the last of the repeats, and one call says little: take the median of all.",
        ),
        Misconception(
            _probe(twice=True), "each repeat does the work twice: warm up once, before the loop."
        ),
        Misconception(
            _probe(lambda times: statistics.median(times[1:]), warm_up=0),
            "you time the first call and leave it out of the median, so one of the repeats is"
            " missing. Do the work once before the loop, then time repeats calls.",
        ),
        Misconception(
            _readings_of_the_clock,
            "those are readings of the clock. A time is the difference of two: the clock after"
            " the work, less the clock before it.",
        ),
        Misconception(_probe(more=-1), "one repeat too few: the warm-up is not one of them."),
        Misconception(_probe(more=1), "one repeat too many is in the median."),
        Misconception(
            _probe(lambda times: 1000 * statistics.median(times)),
            "those are milliseconds; the clock gives seconds, and seconds are wanted.",
        ),
        Misconception(
            _probe(lambda times: -statistics.median(times)),
            "a negative time: the later look at the clock minus the earlier one.",
        ),
        Misconception(
            _probe(lambda times: times[len(times) // 2]),
            "that is the middle one in the order in which they ran: sort the times by length"
            " first, as statistics.median does.",
        ),
    ),
    right="one call to set up, then repeats that are timed one by one, and their median.",
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
    hint="Count operations: two for each row, column and inner index. Then count the numbers of"
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
            lambda rows, columns, depth, element_bytes: 2 * rows * depth * columns / element_bytes,
            "all the operations, over the bytes of a single number: below the line are the bytes"
            " of three matrices.",
        ),
        Misconception(
            lambda rows, columns, depth, element_bytes: (
                1 / _intensity(rows, columns, depth, element_bytes)
            ),
            "that is bytes for each operation: upside down.",
        ),
        Misconception(
            lambda rows, columns, depth, element_bytes: (
                rows * columns * depth / (element_bytes * (rows * depth + depth * columns))
            ),
            "two things: a multiplication and an addition are two operations; and the result has to"
            " be written to memory too.",
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
        Misconception(
            lambda rows, columns, depth, element_bytes: (
                2 * rows * depth * columns / (element_bytes * rows * depth)
            ),
            "that is the first matrix alone; the second one is read too, and the result is"
            " written.",
        ),
        Misconception(
            lambda rows, columns, depth, element_bytes: 2 * depth / (3 * element_bytes),
            "that holds for square matrices only, three of the same size; count each of them"
            " from its own sizes.",
        ),
        Misconception(
            lambda rows, columns, depth, element_bytes: (
                _intensity(rows, columns, depth, 1) * element_bytes
            ),
            "element_bytes belongs below the line: the more bytes a number has, the fewer"
            " operations for each byte.",
        ),
        Misconception(
            lambda rows, columns, depth, element_bytes: (
                2
                * rows
                * depth
                * columns
                / element_bytes
                * (rows * depth + depth * columns + rows * columns)
            ),
            "parentheses are missing: a / b * c is (a / b) * c. All of the bytes belong below"
            " the line.",
        ),
        Misconception(
            lambda rows, columns, depth, element_bytes: (
                2 * rows * depth * columns / element_bytes * rows * depth
                + depth * columns
                + rows * columns
            ),
            "parentheses are missing: all of the bytes, the sum of three matrices, belong below"
            " the line.",
        ),
        Misconception(
            lambda rows, columns, depth, element_bytes: 2 * rows * depth * columns,
            "those are the operations; divide by the bytes that move.",
        ),
        Misconception(
            lambda rows, columns, depth, element_bytes: (
                element_bytes * (rows * depth + depth * columns + rows * columns)
            ),
            "those are the bytes; how many operations are done with each?",
        ),
        Misconception(
            lambda rows, columns, depth, element_bytes: (
                2
                * rows
                * depth
                * columns
                / (element_bytes * (rows * depth + depth * columns + 2 * rows * columns))
            ),
            "the result is read as well as written there. Here each matrix moves once, and so"
            " the result moves once.",
        ),
        Misconception(
            lambda rows, columns, depth, element_bytes: _intensity(
                rows, columns, depth, 8 * element_bytes
            ),
            "those are operations for each bit: bytes are wanted, not bits.",
        ),
        Misconception(
            lambda rows, columns, depth, element_bytes: (
                _intensity(rows, columns, depth, element_bytes) * (2 * depth - 1) / (2 * depth)
            ),
            "exact, because the first product of a sum needs no addition. Everybody, and the"
            " book counts so too, takes 2 for each place: the difference is small.",
        ),
        Misconception(
            lambda rows, columns, depth, element_bytes: (
                rows * depth * columns / (element_bytes * (rows + depth + columns))
            ),
            "a matrix has as many numbers as the product of its two sizes, not their sum: take"
            " three products of two sizes.",
        ),
    ),
    right="two operations for each row, column and step of the sum; three matrices, each moved"
    " once.",
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
        dict(flops_per_second=100, bytes_per_second=10, intensity=3),
        dict(flops_per_second=4, bytes_per_second=9, intensity=0.5),
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
        Misconception(
            lambda flops_per_second, bytes_per_second, intensity: min(
                flops_per_second, intensity / bytes_per_second
            ),
            "operations a byte over bytes a second is no rate of operations: multiply.",
        ),
        Misconception(
            lambda flops_per_second, bytes_per_second, intensity: min(
                flops_per_second, bytes_per_second
            ),
            "bytes a second are not operations a second: each byte brings work for intensity"
            " operations, so multiply by the intensity.",
        ),
        Misconception(
            lambda flops_per_second, bytes_per_second, intensity: min(
                flops_per_second * intensity, bytes_per_second
            ),
            "the intensity belongs to the bandwidth: bytes a second times operations a byte are"
            " operations a second.",
        ),
        Misconception(
            lambda flops_per_second, bytes_per_second, intensity: (
                (flops_per_second + intensity * bytes_per_second) / 2
            ),
            "that is the mean of two roofs. Both are at work at once, so the slower of the two"
            " decides.",
        ),
        Misconception(
            lambda flops_per_second, bytes_per_second, intensity: (
                flops_per_second + intensity * bytes_per_second
            ),
            "that adds the two roofs up, and the slower of the two decides alone.",
        ),
        Misconception(
            lambda flops_per_second, bytes_per_second, intensity: (
                flops_per_second / bytes_per_second
            ),
            "that is the ridge, an intensity, where one roof meets the other. A rate is wanted:"
            " the lower roof at this intensity.",
        ),
        Misconception(
            lambda flops_per_second, bytes_per_second, intensity: flops_per_second / intensity,
            "those are the bytes a second that full speed would need. A rate of operations is"
            " wanted: the lower of two roofs.",
        ),
        Misconception(
            lambda flops_per_second, bytes_per_second, intensity: (
                flops_per_second if intensity >= 1 else intensity * bytes_per_second
            ),
            "the ridge is where both roofs meet, flops_per_second / bytes_per_second, and not at"
            " 1.",
        ),
        Misconception(
            lambda flops_per_second, bytes_per_second, intensity: min(
                1, intensity * bytes_per_second / flops_per_second
            ),
            "that is a share of the peak; operations a second are wanted.",
        ),
    ),
    right="the lower of two roofs: a slope, the bandwidth, and a ceiling, the arithmetic.",
)


# --- what a datasheet prints ----------------------------------------------------------------------

SCALES = {"TFLOP/s": 1e12, "GB/s": 1e9, "Gb/s": 1e9 / 8}
TWICE = ("with sparsity", "both ways")


def _usable(printed, unit, counted):
    return printed * SCALES[unit] / (2 if counted in TWICE else 1)


def _scaled(by=lambda unit: 1, halves=lambda counted: 1):
    """The usable rate, times `by` the unit, and times `halves` what is counted twice."""
    return lambda printed, unit, counted: (
        _usable(printed, unit, counted) * by(unit) * halves(counted)
    )


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
        Misconception(
            _scaled(lambda unit: 64 if unit == "Gb/s" else 1),
            "eight bits are a byte, so there are fewer bytes than bits: divide by 8.",
        ),
        Misconception(
            _scaled(halves=lambda counted: 1 if counted in TWICE else 0.5),
            "a rate that is dense, or one way, is what you can use: there is nothing to halve"
            " there.",
        ),
        Misconception(
            _scaled(halves=lambda counted: 4 if counted in TWICE else 1),
            "what is counted twice is twice too much already: take half of it, not twice.",
        ),
        Misconception(
            _scaled(halves=lambda counted: 0.5 if counted in TWICE else 1),
            "halved two times: once is enough.",
        ),
        Misconception(
            lambda printed, unit, counted: (
                _usable(printed, unit, counted) / {"TFLOP/s": 1e12}.get(unit, 1e9)
            ),
            "that is as the datasheet prints it. Operations or bytes a second are wanted: a tera"
            " is 10^12, a giga 10^9.",
        ),
        Misconception(
            lambda printed, unit, counted: printed / (2 if counted in TWICE else 1),
            "halved where it has to be, and in the unit of the datasheet. Operations or bytes a"
            " second are wanted: a tera is 10^12, a giga 10^9, and 8 bits are a byte.",
        ),
        Misconception(
            _scaled(lambda unit: 1e-3 if "F" in unit else 1), "a tera is 10^12; 10^9 is a giga."
        ),
        Misconception(
            _scaled(
                lambda unit: 8 if unit == "Gb/s" else 1,
                lambda counted: 2 if counted in TWICE else 1,
            ),
            "two things: a small b is a bit, and eight of them are a byte; and what is printed"
            " with sparsity, or both ways, is twice what you can use.",
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
        Misconception(
            lambda memory_gb: memory_gb * (1000 / 1024) ** 2,
            "those are two steps of three, from kB to KiB and from MB to MiB: 10^9 over 2^30 is"
            " 0.931.",
        ),
        Misconception(
            lambda memory_gb: memory_gb * 10**9 / 8 / 2**30,
            "a GB counts bytes, not bits: do not divide by 8.",
        ),
    ),
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


def _rate(
    warm_up=0,
    wait_before=False,
    wait_each=False,
    wait_after=False,
    counted=lambda launches: launches,
    turned=False,
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
        seconds = queue.clock() - start
        return seconds / counted(launches) if turned else counted(launches) * flops / seconds

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
            " up. Look at what the queue still has to do when you stop the clock.",
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
        Misconception(
            _rate(3, True, False, True, lambda launches: 1, turned=True),
            "that is a time, not a rate: operations over seconds are operations a second.",
        ),
        Misconception(
            _rate(3, True, False, True, lambda launches: launches, turned=True),
            "that is a time, not a rate, of one product: a rate is operations over seconds.",
        ),
        Misconception(
            _rate(3, True, False, True, lambda launches: launches * FLOPS, turned=True),
            "upside down, so it is a time, not a rate: divide the operations by the seconds.",
        ),
        Misconception(
            _rate(3, True, False, True, lambda launches: launches / FLOPS),
            "those are launches a second; each launch does flops operations.",
        ),
        Misconception(
            _rate(3, True, False, True, lambda launches: 2 * launches),
            "flops are operations already, a multiplication and an addition each counted: no"
            " factor of 2.",
        ),
        Misconception(
            _rate(3, True, False, True, lambda launches: launches / 1e12),
            "those are TFLOP/s; operations a second are wanted.",
        ),
    ),
    errors=(("CUDA", "The queue waits by a method of its own: queue.synchronize()."),),
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


link_of_two_ranks = Exercise(
    name="the pair",
    reference=lambda: (3e-4, 3e9),
    cases=({},),
    answer=_link_found,
    of_a_value=True,
    hint="ranks(2) starts two ranks, in a with block. Both call time_message(nbytes, device=...),"
    " and run() hands back what each returns.",
    misconceptions=(
        Misconception(
            lambda: (300.0, 3e9),
            "the latency is no number of seconds: is it in microseconds?",
        ),
        Misconception(
            lambda: (3e-4, 3.0),
            "the bandwidth is no number of bytes a second: is it in GB, or the seconds of the large"
            " message?",
        ),
        Misconception(lambda: (300.0, 3.0), "neither is in seconds, or in bytes a second."),
        Misconception(lambda: (3e9, 3e-4), "the other way round: first the latency."),
    ),
    errors=(
        (
            "too many values|not enough values|not iterable",
            "A pair is wanted: the latency and the bandwidth.",
        ),
        (
            "float\\(\\) argument",
            "A pair of numbers is wanted; run() hands back one result for each rank: take [0].",
        ),
    ),
    right="a latency, and a rate without it: two numbers say how long any message takes.",
)
