"""Would this schedule run, how long would it take, and what would each rank hold?

    validate_schedule(plan, microbatches=4)         raises InvalidSchedule, with the bad cell
    timeline = simulate(plan, Costs(forward=1, input=1, weight=1, transfer=0))
    timeline.seconds                        of the whole step
    timeline.idle_of_rank                   of each rank, between its first action and its last
    timeline.idle_of_step                   of each rank, between the step's begin and its end
    in_flight(plan)                         of each rank: microbatches that it holds at the peak

What is simulated is the list that pipeline.py runs, by the same rules. A rank does its actions in
order, each as soon as the message that it needs has come. A message sets out when the action that
made it ends, and travels while both ranks compute; each link carries one message at a time, each
way. Sending costs a rank no time. Seconds may be integers or fractions: then sums are exact.
"""

from collections.abc import Sequence
from typing import NamedTuple

from .schedule_checks import check_order, picture
from .schedules import Action, InvalidSchedule, Kind, Schedule

Seconds = float | Sequence[float]  # of all stages, or of each


class Costs(NamedTuple):
    """How long an action takes, and a message. A whole backward is input + weight."""

    forward: Seconds = 1
    input: Seconds = 1
    weight: Seconds = 1
    transfer: float = 0

    def of(self, action: Action) -> float:
        parts = {
            Kind.FORWARD: (self.forward,),
            Kind.BACKWARD: (self.input, self.weight),
            Kind.INPUT: (self.input,),
            Kind.WEIGHT: (self.weight,),
        }[action.kind]
        return sum(part[action.stage] if isinstance(part, Sequence) else part for part in parts)


EQUAL = Costs()


class Span(NamedTuple):
    action: Action
    begin: float
    end: float


class Timeline(NamedTuple):
    spans: list[list[Span]]  # of each rank

    @property
    def seconds(self) -> float:
        return max(own[-1].end for own in self.spans) - min(own[0].begin for own in self.spans)

    @property
    def busy(self) -> list[float]:
        return [sum(span.end - span.begin for span in own) for own in self.spans]

    @property
    def idle_of_rank(self) -> list[float]:
        return [own[-1].end - own[0].begin - busy for own, busy in zip(self.spans, self.busy)]

    @property
    def idle_of_step(self) -> list[float]:
        return [self.seconds - busy for busy in self.busy]


class Deadlock(InvalidSchedule):
    """`waits`: for each rank that cannot go on, the action in which it waits, and the actions for
    which it waits with the rank that does them, None if no rank does."""

    def __init__(self, plan: Schedule, waits: dict[int, tuple[Action, dict[Action, int | None]]]):
        self.waits = waits
        lines = []
        for rank, (action, missing) in waits.items():
            of = [
                f"{need!r} of rank {other}"
                if other is not None
                else f"{need!r}, which no rank does"
                for need, other in missing.items()
            ]
            lines.append(f"rank {rank} waits in {action!r} for {' and '.join(of)}")
        cells = {(rank, plan[rank].index(action)) for rank, (action, _) in waits.items()}
        grid = picture(plan, cells)
        super().__init__(f"this schedule cannot go on: {'; '.join(lines)}.\n{grid}")


# --- what an action needs -------------------------------------------------------------------------


def needs(action: Action, last_stage: int, split: set[tuple[int, int]]) -> list[Action]:
    """Actions that must be done before the action. `split` are the (stage, microbatch) whose
    backward is I and W."""
    stage, kind, microbatch = action
    if kind is Kind.FORWARD:
        return [Action(stage - 1, Kind.FORWARD, microbatch)] if stage else []
    if kind is Kind.WEIGHT:
        return [Action(stage, Kind.INPUT, microbatch)]
    found = [Action(stage, Kind.FORWARD, microbatch)]
    if stage < last_stage:
        kind = Kind.INPUT if (stage + 1, microbatch) in split else Kind.BACKWARD
        found.append(Action(stage + 1, kind, microbatch))
    return found


def home_of(plan: Schedule) -> dict[int, int]:
    """The rank of each stage."""
    return {action.stage: rank for rank, actions in enumerate(plan) for action in actions}


def simulate(plan: Schedule, costs: Costs = EQUAL) -> Timeline:
    """Raises Deadlock if ranks wait for each other, or for what no rank does."""
    home = home_of(plan)
    every = {action: rank for rank, actions in enumerate(plan) for action in actions}
    split = {(action.stage, action.microbatch) for action in every if action.kind is Kind.INPUT}
    arrived: dict[tuple[Action, int], float] = {}  # what an action made, at a rank
    link_free: dict[tuple[int, int], float] = {}
    spans: list[list[Span]] = [[] for _ in plan]
    going = True
    while going:
        going = False
        for rank, own in enumerate(spans):
            while len(own) < len(plan[rank]):
                action = plan[rank][len(own)]
                wanted = [(need, rank) for need in needs(action, max(home), split)]
                if any(want not in arrived for want in wanted):
                    break
                free = own[-1].end if own else 0
                begin = max([free, *(arrived[want] for want in wanted)])
                end = begin + costs.of(action)
                own.append(Span(action, begin, end))
                arrived[action, rank] = end
                other = home.get(action.stage + (1 if action.kind is Kind.FORWARD else -1), rank)
                if other != rank and action.kind is not Kind.WEIGHT:
                    leaves = max(end, link_free.get((rank, other), 0))
                    arrived[action, other] = link_free[rank, other] = leaves + costs.transfer
                going = True
    waits = {}
    for rank, own in enumerate(spans):
        if len(own) < len(plan[rank]):
            action = plan[rank][len(own)]
            missing = [n for n in needs(action, max(home), split) if (n, rank) not in arrived]
            waits[rank] = action, {need: every.get(need) for need in missing}
    if waits:
        raise Deadlock(plan, waits)
    return Timeline(spans)


def in_flight(plan: Schedule) -> list[int]:
    """The most microbatches at a time whose activations the stages of each rank hold: from their F
    to their B, or to their W, which needs what the forward kept."""
    peaks = []
    for actions in plan:
        held = most = 0
        for action in actions:
            held += action.kind is Kind.FORWARD
            most = max(most, held)
            held -= action.kind in (Kind.BACKWARD, Kind.WEIGHT)
        peaks.append(most)
    return peaks


def validate_schedule(plan: Schedule, microbatches: int) -> None:
    """Raises InvalidSchedule, with the grid and the bad cell, unless each stage is on one rank and
    does each microbatch once, in order; Deadlock if the ranks would not get through."""
    check_order(plan, microbatches)
    simulate(plan)
