"""Chapter 11: where the time goes."""

import statistics
from typing import NamedTuple

import torch

from coursekit.exercises.edits import Topic
from coursekit.lab import batches, small_gpt
from ranklab.measure.waits import HostWaits

topic = Topic(__name__)


# --- a queue --------------------------------------------------------------------------------------


def queue_us(kernels, launch, kernel):
    return launch + (kernels - 1) * max(launch, kernel) + kernel


queue_time = topic.exercise(
    "queue_time",
    queue_us,
    cases=(
        dict(kernels=100, launch=5, kernel=2),
        dict(kernels=100, launch=5, kernel=20),
        dict(kernels=1, launch=5, kernel=20),
    ),
    words=("short kernels", "long kernels", "one kernel"),
    right="the first launch, the slower of the two for all but one, and the last kernel.",
)


# --- reads ----------------------------------------------------------------------------------------


def read_us(kernels, launch, kernel, every):
    return kernels // every * (launch + every * max(launch, kernel))


read_time = topic.exercise(
    "read_time",
    read_us,
    cases=(
        dict(kernels=100, launch=5, kernel=2, every=1),
        dict(kernels=100, launch=5, kernel=2, every=20),
        dict(kernels=100, launch=5, kernel=20, every=10),
        dict(kernels=60, launch=3, kernel=7, every=4),
    ),
    words=(
        "short kernels, each read",
        "short kernels, every 20th",
        "long kernels, every 10th",
        "60 long kernels, every 4th",
    ),
    hint="How many reads are there? And from one read to the next, how long?",
    right="a read empties the queue, and costs one launch; between reads the slower sets the pace.",
)


# --- turns ----------------------------------------------------------------------------------------

_A = [2.2, 1.8, 2.0, 9.45, 8.0, 8.4, 2.4]
_B = [1.0, 1.1, 1.0, 4.5, 4.0, 4.0, 5.0]


def faster(a, b):
    return statistics.median(x / y for x, y in zip(a, b))


ratio_of_turns = topic.exercise(
    "ratio_of_turns",
    faster,
    cases=(dict(a=_A, b=_B), dict(a=_B, b=_A)),
    words=("neighbours came in the fourth turn", "the other way round"),
    right="ratios within a turn, and their median: 2 here, neighbours or not.",
)


# --- workers --------------------------------------------------------------------------------------


def workers(sample_us, batch, step_us):
    return -(-batch * sample_us // step_us)


enough_workers = topic.exercise(
    "enough_workers",
    workers,
    cases=(
        dict(sample_us=5_000, batch=8, step_us=20_000),
        dict(sample_us=5_000, batch=8, step_us=18_000),
        dict(sample_us=100, batch=64, step_us=50_000),
        dict(sample_us=5_000, batch=16, step_us=9_000),
    ),
    words=(
        "40 ms of loading, a step of 20",
        "40 ms, a step of 18",
        "6.4 ms, a step of 50",
        "80 ms, a step of 9",
    ),
    right="the batch's work over the step, rounded up: in flight = rate times latency.",
)


# --- a budget -------------------------------------------------------------------------------------


def mfu_and_hfu(flops, again, peak, rate, rest):
    step = (flops + again) / (rate * peak) + rest
    return flops / peak / step, (flops + again) / peak / step


def _nine_digits(found):
    return tuple(round(one, 9) for one in found) if isinstance(found, (tuple, list)) else found


budget_of_a_step = topic.exercise(
    "budget_of_a_step",
    mfu_and_hfu,
    cases=(
        dict(flops=600e12, again=0.0, peak=1000e12, rate=0.6, rest=0.0),
        dict(flops=600e12, again=200e12, peak=1000e12, rate=0.5, rest=0.5),
    ),
    words=("products alone", "a third more, and a rest of 0.5 s"),
    answer=lambda solution, **case: _nine_digits(solution(**case)),
    right="the least time over the step's time; HFU counts what is done again as well.",
)


# --- bug hunt of the lab: a loop that reads too often ---------------------------------------------


class _Waits(int):
    """How many, and the lines of the function in which the host waits step after step."""

    lines = ""


class _Trained(NamedTuple):
    waits: _Waits
    mean_loss: float
    largest_norm: float


def _train(solution, steps):
    """The waits before the last update, and what the loop returns."""
    model, stream = small_gpt(layers=1, hidden=16, heads=2), batches(2, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=3.0)  # the largest norm comes later
    with HostWaits(cuda=False) as waits:
        before = [0]
        optimizer.register_step_pre_hook(lambda *_: before.append(waits.total()))
        found = solution(model, optimizer, [next(stream) for _ in range(steps)])
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        return "two numbers are wanted: the mean loss and the largest norm."
    if any(isinstance(number, torch.Tensor) for number in found):
        return "these are tensors, which nobody has read: read both after the last step."
    counted, first = _Waits(before[-1]), solution.__code__.co_firstlineno
    again = {wait.line - first + 1 for wait, often in waits.found.items() if often >= steps - 1}
    counted.lines = " and ".join(map(str, sorted(again)))
    return _Trained(counted, *(round(float(number), 5) for number in found))


read_at_the_end = topic.exercise(
    "read_at_the_end",
    cases=(dict(steps=4), dict(steps=3)),
    words=("four steps", "three steps"),
    answer=_train,
    hint="Tensors can be put into a list without a read: loss.detach() and the norm. Stack them.",
    right="reads after the last step, none before: the host keeps its lead.",
)

slow_rank = topic.exercise(
    "slow_rank",
    5,
    name="slowest",
    cases=({},),
    of_a_value=True,
    hint="Add up the lengths of forward and backward in each lane that computes.",
    right="rank 5 computes longest before each message, and the seven others wait for it.",
)
