"""Checks of what a reader wrote. A check compares it with the reference on several cases; where they differ, it looks whether
one of the wrong solutions that are kept beside the exercise gives the reader's answers, and says which misconception that one
stands for.

    check(states_bytes_of_fp32_adam, my_function)      # shows "right: ..." or "not yet: ...", and is true or false
"""

import inspect
import math
import re
from dataclasses import dataclass
from typing import Any, Callable

MARKUP = re.compile(r"[\\`*_\[\]{}<>#$|~!]")  # what Markdown would take for more than a character


@dataclass(frozen=True)
class Misconception:
    """A wrong solution that readers really write, and the sentence that helps."""
    solution: Callable
    sentence: str


def call(solution, **case):
    """What a solution answers where nothing else is said: its own result."""
    return solution(**case)


@dataclass(frozen=True)
class Exercise:
    """A function to write. `cases` are the arguments it is tried with; `right` is said when all agree.

    Arguments that print badly, such as tensors, have `words` instead, one for each case. Where the result is not what counts, as
    with a training loop, `answer` (solution, **case) makes of it what is compared, for example the bytes that the ledger counted.
    """
    name: str
    reference: Callable
    cases: tuple[dict[str, Any], ...]
    misconceptions: tuple[Misconception, ...]
    right: str
    words: tuple[str, ...] = ()
    answer: Callable = call

    def __post_init__(self):
        if self.words and len(self.words) != len(self.cases):
            raise ValueError(f"{self.name}: {len(self.words)} words for {len(self.cases)} cases: "
                             "each case has its own, or none has.")

    def answers(self, solution: Callable) -> list:
        return [self.answer(solution, **case) for case in self.cases]

    def written(self, number: int) -> str:
        """The call of one case as a reader would write it."""
        case = self.cases[number]
        order = [name for name in inspect.signature(self.reference).parameters if name in case]
        return f"{self.name}({self.words[number] if self.words else ', '.join(f'{name}={_show(case[name])}' for name in order)})"


@dataclass(frozen=True)
class Verdict:
    """True if the solution is right; prints as one sentence, which a notebook breaks into lines."""
    right: bool
    sentence: str

    def __bool__(self):
        return self.right

    def __repr__(self):
        return f"{'right' if self.right else 'not yet'}: {self.sentence}"

    def _repr_markdown_(self):
        words = MARKUP.sub(r"\\\g<0>", self.sentence)
        return f"**{'right' if self.right else 'not yet'}:** {words}"


def same(a, b) -> bool:
    """Equal; floats to nine digits, which no misconception survives."""
    if isinstance(a, float) or isinstance(b, float):
        return isinstance(a, (int, float)) and isinstance(b, (int, float)) and math.isclose(a, b, rel_tol=1e-9)
    return type(a) is type(b) and a == b


def check(exercise: Exercise, solution: Callable) -> Verdict:
    """Try `solution` on the exercise's cases. Never raises for what the reader wrote: an error in it is part of the verdict."""
    if not callable(solution):
        return Verdict(False, f"{exercise.name} wants a function, this is a {type(solution).__name__}.")
    given = []
    try:
        for case in exercise.cases:
            given.append(exercise.answer(solution, **case))
    except Exception as error:  # whatever a reader's first attempt may raise
        first = (str(error).strip().splitlines() or [""])[0][:200]
        return Verdict(False, f"{exercise.written(len(given))} raised {type(error).__name__}: {first}")
    wanted = exercise.answers(exercise.reference)
    wrong = next((n for n, pair in enumerate(zip(given, wanted)) if not same(*pair)), None)
    if wrong is None:
        return Verdict(True, exercise.right)
    if given[wrong] is None or given[wrong] is ...:
        return Verdict(False, f"{exercise.written(wrong)} gave {given[wrong]!r}: fill in the blank.")
    for misconception in exercise.misconceptions:
        if all(same(*pair) for pair in zip(given, exercise.answers(misconception.solution))):
            return Verdict(False, misconception.sentence)
    return Verdict(False, f"{exercise.written(wrong)} should give {_show(wanted[wrong])}, yours gives {_show(given[wrong])}.")


def _show(value):
    return f"{value:_}" if isinstance(value, int) and not isinstance(value, bool) else repr(value)
