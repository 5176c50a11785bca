"""The sentences of the checks for answers that plausible learners give: tests/answers."""

import contextlib
import copy
from functools import cache

import pytest
import torch
from night import at_night

from bench.answers import FOLDER, RIGHT, WRONG, answers, shares, tried_once
from coursekit import topics
from coursekit.exercises import checker
from coursekit.exercises.checker import Exercise, same
from coursekit.exercises.decisions import DecisionList

# by a check, too; a name that nobody gives is none of these
PASSED_OVER = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
PASSED_OVER += (StopIteration,)
# wrong answers that hear another sentence than their own: none comes on top
UNNAMED = dict(activation_checkpointing=1, mixed_precision=3, pipelines=3, tensor_parallelism=1)
# a formula is named only where it gives every answer: six sentences are silent since
UNNAMED |= dict(hardware=2, which_layout=1, slow_to_fast=1)
EXERCISES = {one.__name__.split(".")[2]: one for one in topics.modules("exercises")}
SLOW = ("slow_to_fast", "where_the_memory_goes", "where_the_time_goes")  # half of the time
BY_DAY = [topic for topic in EXERCISES if topic not in SLOW]


every_answer = cache(lambda: list(answers()))


def test_there_are_enough_answers():
    """Must catch: a file that is not read, a line of it that counts as part of another."""
    right = [answer.right for answer in every_answer()]
    assert right.count(False) >= WRONG and right.count(True) >= RIGHT
    of_topics = {answer.topic for answer in every_answer()}
    assert of_topics == {path.stem for path in FOLDER.glob("*.txt")} <= set(EXERCISES)
    assert len(of_topics) >= 10


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # of PyTorch, about wrong answers
@pytest.mark.parametrize("topic", BY_DAY + at_night(*SLOW))
def test_checks_name_the_misconception(topic):
    """Must catch: a check that calls one of the wrong answers right or refuses one of the right
    ones, a misconception taken out; a line of a decision list that one above it hides, or whose
    condition is never true."""
    of_topic = [answer for answer in every_answer() if answer.topic == topic]
    exercises = [one for one in vars(EXERCISES[topic]).values() if isinstance(one, Exercise)]
    silent = {
        (exercise.name, line.condition, line.sentence)
        for exercise in exercises
        for asked in exercise.properties
        if isinstance(asked, DecisionList)
        for group in asked.groups
        for line in group.lines
        if line.sentence not in ("", "...")
    }
    with tried_once():
        found = shares(of_topic)
        assert found.called_right == [] and found.refused == []
        assert found.wrong - found.named <= UNNAMED.get(topic, 0)
        wrong = [(one.exercise, one.solution) for one in of_topic]
        wrong += [(one, each.solution) for one in exercises for each in one.misconceptions]
        for exercise, solution in wrong:
            with torch.enable_grad():  # an answer may turn gradients off
                silent -= set(spoken_of(exercise, solution))
    told = "\n".join(map(str, sorted(silent)))
    assert not silent, f"lines that answer nobody:\n{told}"


def spoken_of(exercise, solution):
    """The lines that speak of a solution in one of the cases."""
    for number, case in enumerate(exercise.cases):
        with contextlib.suppress(Exception):  # a failure of the solution is no answer
            found, right = (exercise.tried(one, number) for one in (solution, exercise.reference))
            asked_of = checker._alike_in_form(found, right) and not same(found, right)
            for asked in exercise.properties if asked_of else ():
                with contextlib.suppress(*PASSED_OVER):
                    for line, _ in asked.speaking(found, right, **copy.deepcopy(case)):
                        yield exercise.name, line.condition, line.sentence
