"""The picture of a pipeline's schedule, as data (show/pictures.py): which quantities say what is
drawn, and what the simulation says beside the formulas. schedules.js of show/static draws it, and
plays the lists that shardlab.pipelines.schedules makes.

    picture.plan(values)        the lists
    picture.timeline(values)    when each action begins and ends
    picture.derived(values)     what the sentences may say of it: names of SIMULATED_WORDS
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from coursekit.show.pictures import Picture
from shardlab.pipelines.schedules import (
    SCHEDULES,
    InvalidSchedule,
    Kind,
    Schedule,
    schedule,
)
from shardlab.pipelines.simulation import Costs, Timeline, in_flight, simulate

# What a simulated schedule gives an explorer's sentences, and how it is printed.
SIMULATED_WORDS = {
    "simulated_seconds": "short duration",  # of the step
    "simulated_work_seconds": "short duration",  # of a rank in the step, the mean of all ranks
    "simulated_idle_seconds": "short duration",  # of a rank in the step, the mean of all ranks
    "simulated_share_of_total": "percent",
    "simulated_share_of_ideal": "percent",
    "simulated_own_idle_seconds": "short duration",  # between a rank's first and last action
    "first_in_flight": "exact",
    "last_in_flight": "exact",
    "first_held_models": "number",  # in flight on rank 0, over all stages
    "as_by_formula": "exact",  # 1 where the formula says the same idle time
}
KEY = (  # of its colours, in schedules.js
    "forward before the first backward",
    "other forwards",
    "backward",
    "backward of the input",
    "of the weights",
)
SAME = 1e-9  # relative


@dataclass(frozen=True)
class SchedulePicture(Picture):
    """A row for each rank, its actions from left to right, and at the end of the row what it holds
    at the peak. The fields are names of quantities; the schedule is its place in SCHEDULES, from
    1. `last` is how many times as long the last rank takes: its last stage has the head."""

    title: str
    schedule: str
    ranks: str
    microbatches: str
    stages_per_rank: str
    forward: str  # seconds of a rank's layers for one microbatch
    input: str
    weight: str
    transfer: str
    last: str
    ideal: str  # by formula, without idle time
    idle: str
    kind, script, says = "schedule", "schedules.js", SIMULATED_WORDS
    room = 212, 16, 0, [22 + 6.4 * len(text) for text in KEY]

    @property
    def quantities(self) -> tuple[str, ...]:
        return (*self.sizes, *self.seconds, self.ideal, self.idle)

    @property
    def sizes(self) -> tuple[str, ...]:
        return self.schedule, self.ranks, self.microbatches, self.stages_per_rank

    @property
    def seconds(self) -> tuple[str, ...]:
        return self.forward, self.input, self.weight, self.transfer, self.last

    def plan(self, values: Mapping) -> Schedule:
        return _plan(*(values[name] for name in self.sizes))

    def timeline(self, values: Mapping) -> Timeline:
        return _played(*(values[name] for name in (*self.sizes, *self.seconds)))

    def derived(self, values: Mapping) -> dict[str, float]:
        """The names of SIMULATED_WORDS."""
        found = simulated(*(values[name] for name in (*self.sizes, *self.seconds)))
        seconds, predicted = found["simulated_seconds"], values[self.ideal] + values[self.idle]
        return {**found, "as_by_formula": float(abs(seconds - predicted) <= SAME * seconds)}

    def data(self, spec, measured):
        own = dict(sizes=self.sizes, seconds=self.seconds, ideal=self.ideal, idle=self.idle)
        return own | dict(plays=PLAYS, lists=dict(self.lists(spec)))

    def lists(self, spec) -> Iterator[tuple[str, str]]:
        """Sizes, "2,4,8,1", and the ranks' packed lists, of each schedule that there is among those
        that the explorer offers."""
        for sizes in self.offered(spec):
            with suppress(InvalidSchedule):
                ranks = letters(_plan(*sizes))
                yield ",".join(map(str, sizes)), " ".join(map(packed_list, ranks))

    def offered(self, spec) -> Iterator[tuple[int, ...]]:
        """Every choice of the sizes that the explorer's menus and buttons offer."""
        schedules = {
            (preset[self.schedule], preset[self.stages_per_rank])
            for menu in spec.menus
            for preset in (spec.preset(menu.kind, name) for name in menu.names)
            if self.schedule in preset
        }
        start = spec.start()
        schedules.add((start[self.schedule], start[self.stages_per_rank]))
        stops = {control.quantity: control.stops for control in spec.controls}
        for (number, stages), ranks, microbatches in product(
            sorted(schedules), stops[self.ranks], stops[self.microbatches]
        ):
            yield number, ranks, microbatches, stages


PLAYS = "from coursekit.topics.pipelines.schedule_picture import simulated\n\nsimulated"


def simulated(
    number, ranks, microbatches, stages_per_rank, forward, input, weight, transfer=0, last=1
) -> dict[str, float]:
    """Numbers of a schedule that is played, by the place of its name in SCHEDULES from 1: seconds
    of the step, and of a rank's work and idle time in it."""
    plan = _plan(number, ranks, microbatches, stages_per_rank)
    times = forward, input, weight, transfer, last
    timeline = _played(number, ranks, microbatches, stages_per_rank, *times)
    held, busy, seconds = in_flight(plan), sum(timeline.busy), timeline.seconds

    def cleaned(idle):  # of what rounding leaves where no rank is idle
        return idle if idle > SAME * seconds else 0.0

    idle = cleaned(sum(timeline.idle_of_step))
    found = dict(
        simulated_seconds=seconds,
        simulated_work_seconds=busy / ranks,
        simulated_idle_seconds=idle / ranks,
        simulated_share_of_total=idle / (ranks * seconds) if idle else 0.0,
        simulated_share_of_ideal=idle / busy if idle else 0.0,
        simulated_own_idle_seconds=cleaned(sum(timeline.idle_of_rank)) / ranks,
        first_in_flight=held[0],
        last_in_flight=held[-1],
        first_held_models=held[0] / (ranks * chunks(plan)),
    )
    # sums differ in the last digits by the order in which they are taken
    return {name: float(f"{value:.12g}") for name, value in found.items()}


def chunks(plan: Schedule) -> int:
    """Stages of a rank."""
    return len({action.stage for action in plan[0]})


@lru_cache(maxsize=64)
def _plan(number: int, ranks: int, microbatches: int, stages_per_rank: int) -> Schedule:
    name = list(SCHEDULES)[number - 1]
    options = dict(stages_per_rank=stages_per_rank) if name == "interleaved 1F1B" else {}
    return schedule(name, ranks, microbatches, **options)


@lru_cache(maxsize=64)
def _played(number, ranks, microbatches, stages_per_rank, forward, input, weight, transfer, last):
    plan = _plan(number, ranks, microbatches, stages_per_rank)
    return simulate(plan, costs_of(plan, forward, input, weight, transfer, last))


def costs_of(
    plan: Schedule, forward: float, input: float, weight: float, transfer: float, last: float
) -> Costs:
    """Seconds of each stage: a rank's, over its stages, and what the last stage has besides."""
    each, stages = chunks(plan), len(plan) * chunks(plan)

    def of_stages(seconds):
        more = (last - 1) * seconds
        return [seconds / each + (more if stage == stages - 1 else 0) for stage in range(stages)]

    return Costs(of_stages(forward), of_stages(input), of_stages(weight), transfer)


# --- for the page ---------------------------------------------------------------------------------

ACTION_LETTERS = {
    Kind.FORWARD: "ABCDEFGH",
    Kind.BACKWARD: "abcdefgh",
    Kind.INPUT: "i",
    Kind.WEIGHT: "w",
}


def letters(plan: Schedule) -> list[str]:
    """Each rank's list as text, a letter for an action: its kind and which of the rank's stages it
    is. Microbatches of a letter come in order, in every schedule of a card."""
    return [
        "".join(ACTION_LETTERS[kind][stage // len(plan)] for stage, kind, _ in actions)
        for actions in plan
    ]


def packed_list(text: str) -> str:
    """Runs of a text as what is repeated and how often: "AAAAAbAbAbbb" is "A5bA2b3"."""
    runs = re.finditer(r"(\w{1,4}?)\1+|\w", text)
    return "".join(f"{run[1] or run[0]}{len(run[0]) // len(run[1] or run[0])}" for run in runs)
