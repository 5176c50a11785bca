"""Helpers of the tests of assignments: a source graded on the ranks of a test module."""

import inspect
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from coursekit.exercises.grading import TRIAL_SECONDS, assignment, grade

ROOT = Path(__file__).resolve().parents[2]


def results(
    world,
    topic: str,
    source: str | None,
    *works: str,
    trial_seconds: float = TRIAL_SECONDS,
    core: bool = False,
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
    return list(grade(chosen, source, f"{topic}.py", world, trial_seconds, core=core))


def check_right(world, topic: str, core: bool):
    """The core, or the hardened class, passes all trials but the speeds."""
    found = results(world, topic, None, core=core)
    assert [result for result in found if result.said != "right"] == []


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


def check_todos(world, topic: str, parts: int):
    """The skeleton passes no trial, and says of each part once that it is not written."""
    found = results(world, topic, skeleton(topic))
    assert {r.said for r in found} == {"not yet"}
    assert sum("not written yet" in r.sentence for r in found) == parts


def check_sentence(
    world, topic: str, solution: str, wrong: tuple, trial_seconds: float = TRIAL_SECONDS
):
    """`wrong`: (trial, group, changes of the solution, part of the sentence that they get)."""
    work, group, changes, sentence = wrong
    [found] = results(world, topic, mutated(solution, *changes), work, trial_seconds=trial_seconds)
    assert (found.said, found.trial.group) == ("not yet", group)
    assert sentence in found.sentence
