"""Chapter 11: where the time goes."""

import statistics
from typing import NamedTuple

import torch

from coursekit.exercises.edits import Topic
from coursekit.lab import batches, small_gpt
from ranklab.measure.waits import HostWaits

topic = Topic(__name__)


def _as(value, sentence):
    """A property: the answer is this value of the case, which the sentence names."""

    def asked(found, right, **case):
        if isinstance(found, (int, float)) and abs(found - value(**case)) < 1e-9:
            return sentence

    return asked


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
    properties=(
        _as(
            lambda kernels, launch, kernel: kernels * (launch + kernel),
            "that is the sum for each kernel: the host launches the next one while this one runs.",
        ),
        _as(
            lambda kernels, launch, kernel: launch + kernels * kernel,
            "that holds for kernels longer than a launch. Shorter ones wait for their launches.",
        ),
        _as(
            lambda kernels, launch, kernel: kernels * launch + kernel,
            "that holds for kernels shorter than a launch. Longer ones wait for each other.",
        ),
        _as(
            lambda kernels, launch, kernel: launch + (kernels - 1) * max(launch, kernel),
            "the last kernel is missing: it has to run as well.",
        ),
        _as(
            lambda kernels, launch, kernel: (kernels - 1) * max(launch, kernel) + kernel,
            "the first launch is missing: no kernel starts before it.",
        ),
        _as(
            lambda kernels, launch, kernel: launch + kernels * max(launch, kernel) + kernel,
            "one too many: beside the first launch and the last kernel, the slower of the two"
            " counts for all but one.",
        ),
        _as(
            lambda kernels, launch, kernel: launch + (kernels - 1) * min(launch, kernel) + kernel,
            "that is the faster of the two. The slower one sets the pace.",
        ),
    ),
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
    ),
    words=("short kernels, each read", "short kernels, every 20th", "long kernels, every 10th"),
    properties=(
        _as(
            lambda kernels, launch, kernel, every: kernels * (launch + max(launch, kernel)),
            "that reads after each kernel: there is one read for `every` of them.",
        ),
        _as(
            lambda kernels, launch, kernel, every: kernels * (launch + kernel),
            "that adds launch and kernel for each one: between reads the host still runs ahead.",
        ),
        _as(
            lambda kernels, launch, kernel, every: queue_us(kernels, launch, kernel),
            "that is the queue without a read: each read empties it, and is one launch more.",
        ),
        _as(
            lambda kernels, launch, kernel, every: (
                kernels // every * queue_us(every, launch, kernel)
            ),
            "the queue of each group is right, and its read is missing: it is one launch more.",
        ),
        _as(
            lambda kernels, launch, kernel, every: kernels // every * (every + 1) * launch,
            "the pace is that of the slower one, so a maximum, not the launch alone.",
        ),
        _as(
            lambda kernels, launch, kernel, every: (
                read_us(kernels, launch, kernel, every) + kernels // every * kernel
            ),
            "the last kernel of each group is in it twice.",
        ),
        _as(
            lambda kernels, launch, kernel, every: (
                every * (launch + kernels // every * max(launch, kernel))
            ),
            "turned round: there are kernels // every groups, and every kernels in each.",
        ),
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
    properties=(
        _as(
            lambda a, b: sum(a) / sum(b),
            "that is the ratio of the means: a neighbour who meets one of the two decides it.",
        ),
        _as(
            lambda a, b: statistics.median(a) / statistics.median(b),
            "that is the ratio of two medians, which may come from different turns: take the ratio"
            " within each turn first.",
        ),
        _as(
            lambda a, b: statistics.mean(x / y for x, y in zip(a, b)),
            "that is the mean of the ratios: the last turn, where one was disturbed, pulls at it.",
        ),
        _as(
            lambda a, b: min(a) / min(b),
            "that is the ratio of the best times, of two turns that nobody chose.",
        ),
        _as(
            lambda a, b: statistics.geometric_mean(x / y for x, y in zip(a, b)),
            "that is a mean of the ratios, too: the last turn, where one was disturbed, pulls at"
            " it.",
        ),
        _as(
            lambda a, b: faster(sorted(a), sorted(b)),
            "sorted before they are divided, so that each ratio is one of two different turns.",
        ),
        _as(
            lambda a, b: a[len(a) // 2] / b[len(b) // 2],
            "that is the middle turn, not the middle ratio: sort the ratios first.",
        ),
        _as(lambda a, b: a[-1] / b[-1], "the last turn alone: one turn is one neighbour."),
        _as(lambda a, b: statistics.median(y / x for x, y in zip(a, b)), "turned round: A over B."),
    ),
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
    properties=(
        _as(
            lambda sample_us, batch, step_us: -(-sample_us // step_us),
            "that loads one sample for a step: a batch has more of them.",
        ),
        _as(
            lambda sample_us, batch, step_us: batch * sample_us // step_us,
            "rounded down: with that many, steps still wait. Round up.",
        ),
        _as(
            lambda sample_us, batch, step_us: -(-batch * sample_us // step_us) + 1,
            "one more than needed: while the step runs, all of them load.",
        ),
        _as(
            lambda sample_us, batch, step_us: -(-batch * sample_us // (step_us + sample_us)),
            "the step is there already: the batch has to come within step_us.",
        ),
        _as(
            lambda sample_us, batch, step_us: -(-batch // (step_us // sample_us)),
            "that rounds down to the samples that a worker finishes within a step. It loads a whole"
            " batch, and goes on while the next step runs.",
        ),
    ),
    right="the batch's work over the step, rounded up: in flight = rate times latency.",
)


# --- a budget -------------------------------------------------------------------------------------


def mfu_and_hfu(flops, again, peak, rate, rest):
    step = (flops + again) / (rate * peak) + rest
    return flops / peak / step, (flops + again) / peak / step


def _nine_digits(found):
    return tuple(round(one, 9) for one in found) if isinstance(found, (tuple, list)) else found


def _swapped_or_off(found, right, **case):
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        return "two numbers are wanted: MFU, then HFU."
    mfu, hfu = found
    if found[::-1] == right:
        return "in the other order: MFU first, which is never above HFU."
    if mfu == right[1] and case["again"]:
        return "operations that are done again do not count in MFU: they train nothing."
    if hfu == right[0] and case["again"]:
        return "operations that are done again count in HFU: the hardware did them."
    if case["again"] and mfu == right[0] and abs(mfu + hfu - right[1]) < 1e-8:
        return "all operations count in HFU, not only those that are done again."
    if abs(mfu - 100 * right[0]) < 1e-6:
        return "in percent: shares of 1 are wanted."
    if case["rest"] and abs(hfu - case["rate"]) < 1e-9:
        return "the rest of the step takes time, too: rest seconds in which nothing is multiplied."
    work = case["flops"] + case["again"]
    if (
        case["rest"]
        and abs(hfu - case["rate"] * work / (work + case["rest"] * case["peak"])) < 1e-9
    ):
        return "the rest is in seconds already: only products are divided by their rate."
    if mfu > 1:
        return (
            "an MFU above 1: the datasheet's rate is the most, so divide by peak and by the step."
        )


budget_of_a_step = topic.exercise(
    "budget_of_a_step",
    mfu_and_hfu,
    cases=(
        dict(flops=600e12, again=0.0, peak=1000e12, rate=0.6, rest=0.0),
        dict(flops=600e12, again=200e12, peak=1000e12, rate=0.5, rest=0.5),
    ),
    words=("products alone", "a third more, and a rest of 0.5 s"),
    answer=lambda solution, **case: _nine_digits(solution(**case)),
    properties=(_swapped_or_off,),
    right="the least time over the step's time; HFU counts what is done again as well.",
)


# --- bug hunt of the lab: a loop that reads too often ---------------------------------------------


class _Trained(NamedTuple):
    waits: int
    mean_loss: float
    largest_norm: float


def _train(solution, steps):
    """The waits before the last update, and what the loop returns."""
    model, stream = small_gpt(layers=1, hidden=16, heads=2), batches(2, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with HostWaits(cuda=False) as waits:
        before = [0]
        optimizer.register_step_pre_hook(lambda *_: before.append(waits.total()))
        found = solution(model, optimizer, [next(stream) for _ in range(steps)])
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        return "two numbers are wanted: the mean loss and the largest norm."
    if any(isinstance(number, torch.Tensor) for number in found):
        return "these are tensors, which nobody has read: read both after the last step."
    return _Trained(before[-1], *(round(float(number), 5) for number in found))


def _reads_in_the_loop(found, right, steps):
    same = found[1:] == right[1:]
    if same and found.waits >= 2 * (steps - 1):
        return "both numbers are read in every step: the host waits twice in each."
    if same and found.waits >= steps - 1:
        return "one number is still read in every step: keep both as tensors, and read at the end."
    if found.waits <= right.waits and not same:
        return "no wait is left, and neither are the numbers: the loop must return the same ones."


read_at_the_end = topic.exercise(
    "read_at_the_end",
    cases=(dict(steps=4), dict(steps=3)),
    words=("four steps", "three steps"),
    answer=_train,
    properties=(_reads_in_the_loop,),
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
