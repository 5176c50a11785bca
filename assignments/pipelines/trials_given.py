"""Helpers that the trials of the assignment share. A learner's schedule has words instead of
actions: "0B1" is the backward of microbatch 1 on stage 0."""

import re
from collections.abc import Callable

from coursekit.exercises.assignments import Assignment
from shardlab.pipelines import core, schedules
from shardlab.pipelines.hardened.pipeline import Pipeline
from shardlab.pipelines.partition import check_order_of_messages, plan_pipeline
from shardlab.pipelines.schedules import Action, InvalidSchedule, Kind, Schedule
from shardlab.pipelines.simulation import validate_schedule

from ..asking import demand

Words = list[list[str]]  # a learner's schedule: of each rank, its actions


def words_of(plan: Schedule) -> Words:
    return [[repr(action) for action in own] for own in plan]


def actions_of(words: Words) -> Schedule:
    """Raises InvalidSchedule for a text that names no action."""
    return [[_action(word) for word in own] for own in words]


def _action(word: str) -> Action:
    found = re.fullmatch(r"(\d+)([FB])(\d+)", word) if isinstance(word, str) else None
    if not found:
        raise InvalidSchedule(
            f"{word!r} is no action: 0B1 is the backward of microbatch 1, stage 0."
        )
    return Action(int(found[1]), Kind(found[2]), int(found[3]))


def plan_of(what: str, words) -> Schedule:
    """The plan of a learner's lists; Wrong if a learner's function returned anything but lists of
    lists of words."""
    demand(
        isinstance(words, list)
        and all(isinstance(own, list) and all(isinstance(w, str) for w in own) for own in words),
        f"{what} should return, for each rank, a list of words such as '0F0'.",
    )
    try:
        return actions_of(words)
    except InvalidSchedule as error:
        demand(False, f"{what}: {error}")


def in_words(schedule: Callable[..., Schedule]) -> Callable[..., Words]:
    return lambda *sizes: words_of(schedule(*sizes))


def check_schedule(words: Words, microbatches: int):
    """The reference's."""
    plan = actions_of(words)
    validate_schedule(plan, microbatches)
    check_order_of_messages(plan)


class PipelineOfWords(Pipeline):
    """The reference: the pipeline of the shelf, planned by itself."""

    def __init__(self, layers, schedule: Words, example, loss, group=None):
        plan = plan_pipeline(layers, actions_of(schedule), example)
        super().__init__(layers, plan, loss, group)


class CoreOfWords(core.Pipeline):
    """The core, which takes lists of actions."""

    def __init__(self, layers, schedule: Words, example, loss, group=None):
        super().__init__(layers, actions_of(schedule), example, loss, group)


LISTS = {
    "gpipe": in_words(schedules.gpipe),
    "one_f_one_b": in_words(schedules.one_f_one_b),
    "interleaved": in_words(schedules.interleaved),
    "check_schedule": check_schedule,
}
ASSIGNMENT = Assignment(
    "pipelines",
    reference={**LISTS, "Pipeline": PipelineOfWords},
    core={**LISTS, "Pipeline": CoreOfWords},
    forbidden=("torch.distributed.pipelining",),
)
