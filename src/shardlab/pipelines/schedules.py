"""Which rank of a pipeline does what, in which order, as data.

    one_f_one_b(3, 4)           a schedule: for each rank the list of its actions
    one_f_one_b(3, 4)[0]        [0F0, 0F1, 0F2, 0B0, 0F3, 0B1, 0B2, 0B3]
    schedule("1F1B", 3, 4)      the same by its name

0B1 is an action: stage 0 does the backward of microbatch 1. pipeline.py runs these lists,
simulation.py validates and simulates them, the explorer draws them, and the formulas count them. A
schedule knows neither tensors nor times, so this module needs no torch.

    F    forward of a stage, which sends its output to the next stage
    B    whole backward of a stage, which sends the gradient of its input to the previous stage
    I    the part of B that makes the gradient of the input and sends it
    W    the part of B that makes the gradients of the weights, which nobody waits for

A rank has three things in order, its forwards, its backwards and, where they are split, its weight
gradients. The schedules differ in how they merge the three, and the warm-up, which is the number of
forwards before the first backward, is most of the difference.
"""

from collections.abc import Callable, Iterator
from enum import Enum
from itertools import islice
from typing import NamedTuple


class InvalidSchedule(ValueError):
    """Why a schedule cannot be made or cannot run, with the grid where there is one."""


class Kind(Enum):
    FORWARD = "F"
    BACKWARD = "B"
    INPUT = "I"
    WEIGHT = "W"


class Action(NamedTuple):
    stage: int
    kind: Kind
    microbatch: int

    def __repr__(self):
        return f"{self.stage}{self.kind.value}{self.microbatch}"


Schedule = list[list[Action]]  # the actions of each rank


# --- how a rank merges what it has to do ----------------------------------------------------------


def whole(forwards: Iterator, backwards: Iterator, warm: int) -> Iterator[Action]:
    """Warm-up: forwards. Steady: one forward, one backward. Cool-down: the backwards left."""
    yield from islice(forwards, warm)
    for forward in forwards:
        yield forward
        yield next(backwards)
    yield from backwards


def split(
    forwards: Iterator, inputs: Iterator, weights: Iterator, warm: int, late: int
) -> Iterator[Action]:
    """I and W instead of B: W follows `late` pairs behind I, and fills the cool-down."""
    yield from islice(forwards, warm)
    for pair, forward in enumerate(forwards):
        yield forward
        yield next(inputs)
        if pair >= late:
            yield next(weights)
    for gradient in inputs:
        yield gradient
        yield next(weights)
    yield from weights


def all_of(stage: int, kind: Kind, microbatches: int) -> Iterator[Action]:
    return (Action(stage, kind, microbatch) for microbatch in range(microbatches))


# --- the schedules --------------------------------------------------------------------------------


def with_warm_up(ranks: int, microbatches: int, warm: Callable[[int], int]) -> Schedule:
    """One stage on each rank; `warm(rank)` forwards before the first pair."""
    check_sizes(ranks, microbatches)
    return [
        list(
            whole(
                all_of(rank, Kind.FORWARD, microbatches),
                all_of(rank, Kind.BACKWARD, microbatches),
                min(microbatches, warm(rank)),
            )
        )
        for rank in range(ranks)
    ]


def gpipe(ranks: int, microbatches: int) -> Schedule:
    """All forwards, then all backwards: Huang et al. 2019."""
    return with_warm_up(ranks, microbatches, lambda rank: microbatches)


def one_f_one_b(ranks: int, microbatches: int) -> Schedule:
    """The fewest forwards before the first backward that keep every rank at work: Narayanan et
    al. 2021 (PipeDream-Flush)."""
    return with_warm_up(ranks, microbatches, lambda rank: ranks - rank - 1)


def eager_one_f_one_b(ranks: int, microbatches: int) -> Schedule:
    """Twice the warm-up, so that a message has time to travel: Zhuang et al. 2023 (arXiv
    2211.05322)."""
    return with_warm_up(ranks, microbatches, lambda rank: 2 * (ranks - rank - 1))


def interleaved(ranks: int, microbatches: int, stages_per_rank: int = 2) -> Schedule:
    """Rank r has the stages r, r + p, r + 2p, ... and does p microbatches of one, then p of the
    next: Narayanan et al. 2021, section 2.2."""
    check_sizes(ranks, microbatches, stages_per_rank)
    if microbatches % ranks:
        raise InvalidSchedule(
            f"microbatches = {microbatches}: interleaving takes them in groups of one for each"
            f" rank, so their number must be a multiple of ranks = {ranks}."
        )

    def grouped(rank: int, kind: Kind, chunks: range) -> Iterator[Action]:
        for first in range(0, microbatches, ranks):
            for chunk in chunks:
                for microbatch in range(first, first + ranks):
                    yield Action(chunk * ranks + rank, kind, microbatch)

    chunks = range(stages_per_rank)
    return [
        list(
            whole(
                grouped(rank, Kind.FORWARD, chunks),
                grouped(rank, Kind.BACKWARD, chunks[::-1]),
                min(
                    microbatches * stages_per_rank,
                    2 * (ranks - rank - 1) + (stages_per_rank - 1) * ranks,
                ),
            )
        )
        for rank in range(ranks)
    ]


def zero_bubble(ranks: int, microbatches: int, deep: int) -> Schedule:
    """`deep` times the warm-up of 1F1B. On rank r, W stays `deep` times r pairs behind."""
    check_sizes(ranks, microbatches)
    return [
        list(
            split(
                all_of(rank, Kind.FORWARD, microbatches),
                all_of(rank, Kind.INPUT, microbatches),
                all_of(rank, Kind.WEIGHT, microbatches),
                min(microbatches, deep * (ranks - rank - 1)),
                deep * rank,
            )
        )
        for rank in range(ranks)
    ]


def zero_bubble_h1(ranks: int, microbatches: int) -> Schedule:
    """The memory of 1F1B's first rank on every rank, and less idle time: Qi et al. 2024, H1."""
    return zero_bubble(ranks, microbatches, deep=1)


def zero_bubble_h2(ranks: int, microbatches: int) -> Schedule:
    """No rank is idle between its first action and its last, for almost twice the memory: Qi et
    al. 2024, H2."""
    return zero_bubble(ranks, microbatches, deep=2)


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "GPipe": gpipe,
    "1F1B": one_f_one_b,
    "eager 1F1B": eager_one_f_one_b,
    "interleaved 1F1B": interleaved,
    "zero-bubble H1": zero_bubble_h1,
    "zero-bubble H2": zero_bubble_h2,
}


def schedule(name: str, ranks: int, microbatches: int, **options: int) -> Schedule:
    """A schedule by its name. Interleaving takes stages_per_rank, 2 by itself."""
    if name not in SCHEDULES:
        raise InvalidSchedule(f"schedule = {name!r}: there are {', '.join(SCHEDULES)}.")
    if set(options) - {"stages_per_rank"} or options and name != "interleaved 1F1B":
        raise InvalidSchedule(f"{', '.join(options)}: {name} takes ranks and microbatches alone.")
    return SCHEDULES[name](ranks, microbatches, **options)


def check_sizes(ranks: int, microbatches: int, stages_per_rank: int = 1):
    numbers = dict(ranks=ranks, microbatches=microbatches, stages_per_rank=stages_per_rank)
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidSchedule(f"{name} = {value!r}: it must be a whole number of at least 1.")
