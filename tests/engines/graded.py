"""Helpers of the tests of assignments: a source graded on the ranks of a test module."""

import inspect
import re
from dataclasses import replace
from types import ModuleType

from pages import ROOT

from coursekit.exercises.assignments import assignment
from coursekit.exercises.grading import TRIAL_SECONDS, Grader


def results(
    world, topic: str, source: str, *works: str, trial_seconds: float = TRIAL_SECONDS
) -> list:
    """The results of the trials with these names, by default of all but the speeds."""
    asked = assignment(topic)
    chosen = [
        trial
        for trial in asked.trials
        if (trial.work.__name__ in works if works else trial.group != "speed")
    ]
    assert len(chosen) == len(works) or not works
    chosen = replace(asked, trials=chosen)
    grader = Grader(chosen, source, f"{topic}.py", lambda: world, trial_seconds)
    return list(grader.all_results())


def text_of(*modules: ModuleType) -> str:
    """The text of these modules as one file, as a learner would have written it: a mutation of it
    is a wrong solution."""
    names = "|".join(module.__name__.rpartition(".")[2] for module in modules)
    text = "".join(map(inspect.getsource, modules))
    text = re.sub(rf"^from \.({names}) import .*\n", "", text, flags=re.MULTILINE)
    package = modules[0].__package__
    outer = package.rpartition(".")[0]
    text = re.sub(r"^from \.\.(\w)", rf"from {outer}.\1", text, flags=re.MULTILINE)
    return re.sub(r"^from \.(\w)", rf"from {package}.\1", text, flags=re.MULTILINE)


def skeleton(topic: str) -> str:
    return (ROOT / "assignments" / topic / f"{topic}.py").read_text(encoding="utf-8")


def mutated(source: str, *changes: str) -> str:
    """The source with each `before` replaced by the `after` behind it; each must be there."""
    for before, after in zip(changes[::2], changes[1::2]):
        assert before in source, before
        source = source.replace(before, after)
    return source


def check_sentence(
    world, topic: str, solution: str, wrong: tuple, trial_seconds: float = TRIAL_SECONDS
):
    """`wrong`: (trial, group, changes of the solution, part of the sentence that they get)."""
    work, group, changes, sentence = wrong
    [found] = results(world, topic, mutated(solution, *changes), work, trial_seconds=trial_seconds)
    assert (found.said, found.trial.group) == ("not yet", group)
    assert sentence in found.sentence, found.sentence
