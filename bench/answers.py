"""Answers that plausible learners give to the exercises of the labs, and what the checks say.

The answers are data, one text file for each topic in tests/answers/. A file begins with imports. A
line `## name` begins an exercise, and under it stands a right answer. Then come the others:

    - what is wrong :: words that the verdict must hold
        the whole answer, or lines `old => new` that change the right one everywhere
    + what is different, and right all the same
        the same

In `old => new`, `\\n` is the end of a line.
"""

import contextlib
import importlib
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import FunctionType
from typing import NamedTuple

import torch

from coursekit.exercises.checker import Exercise, Verdict, judge
from coursekit.exercises.edits import edited

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "answers"
NAMED = 0.85  # of the wrong answers, at least
WRONG, RIGHT = 300, 70  # answers, at least


@dataclass(frozen=True)
class Answer:
    """One answer. `phrase` is what the verdict must hold, empty for a right answer."""

    topic: str
    exercise_name: str
    what: str
    phrase: str
    code: str
    setup: str

    @property
    def right(self) -> bool:
        return not self.phrase

    @property
    def exercise(self) -> Exercise:
        module = importlib.import_module(f"coursekit.topics.{self.topic}.exercises")
        return getattr(module, self.exercise_name)

    @cached_property
    def solution(self):
        """The last function or class that the code makes."""
        names: dict = {"__name__": "answer"}
        exec(self.setup, names)
        for name in [name for name, value in names.items() if _is_own(value)]:
            names[name].__module__ = "setup"
        exec(self.code, names)
        return [value for value in names.values() if _is_own(value)][-1]

    @cached_property
    def verdict(self) -> Verdict:
        with contextlib.redirect_stdout(io.StringIO()), torch.enable_grad():
            return judge(self.exercise, self.solution)

    @property
    def named(self) -> bool:
        """Whether the verdict says the misconception."""
        return not self.verdict and self.phrase.lower() in self.verdict.sentence.lower()


def _is_own(value) -> bool:
    return isinstance(value, (FunctionType, type)) and value.__module__ == "answer"


class Shares(NamedTuple):
    """How many answers are wrong, how many of those hear their misconception, and what a check gets
    wrong, in words."""

    wrong: int
    right: int
    named: int
    called_right: list[str]
    refused: list[str]


@contextlib.contextmanager
def tried_once():
    """Each solution of an exercise is tried once, and its answers remembered: the misconceptions
    would be tried for every wrong answer."""
    tried, known = Exercise.tried, {}

    def remembered(exercise, solution, number):
        key = id(exercise), solution, number
        if key not in known:
            known[key] = tried(exercise, solution, number)
        return known[key]

    Exercise.tried = remembered
    try:
        yield
    finally:
        Exercise.tried = tried


@tried_once()
def shares(some: Iterable[Answer]) -> Shares:
    """The shares of wrong and right answers among these."""
    wrong, right, named, called_right, refused = 0, 0, 0, [], []
    for answer in some:
        said = f"{answer.exercise_name}: {answer.what}"
        if answer.right:
            right += 1
            refused += [] if answer.verdict else [said]
        else:
            wrong += 1
            named += answer.named
            called_right += [said] if answer.verdict else []
    return Shares(wrong, right, named, called_right, refused)


def answers(folder: Path = FOLDER) -> Iterator[Answer]:
    """All answers, topic by topic."""
    for path in sorted(folder.glob("*.txt")):
        setup, *exercises = ("\n" + path.read_text(encoding="utf-8")).split("\n## ")
        for text in exercises:
            first, *others = re.split(r"\n(?=[-+] )", text)
            name, _, right = first.partition("\n")
            for other in others:
                head, *lines = other.rstrip().splitlines()
                what, _, phrase = head[2:].partition(" :: ")
                if (head[0] == "-") != bool(phrase):
                    raise ValueError(f"{path.name}, {name}: {head}")
                lines = [line[4:] for line in lines]
                try:
                    code = edited(right, lines)
                except ValueError as error:
                    raise ValueError(f"{path.name}, {name}, {what}: {error}") from None
                yield Answer(path.stem, name, what, phrase, code, setup)
