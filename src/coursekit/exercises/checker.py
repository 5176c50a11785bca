"""Checks of a reader's solution. A check compares the solution with the reference in several cases.
If they differ, the check looks for a wrong solution of the exercise that gives the reader's
answers, and says its misconception; then for a property of the answers, of the exercise and of any.

    check(training_seconds_from_rate, my_function)     # shows "right: ..." or "not yet: ...", and
                                                       # is true or false
"""

import copy
import functools
import inspect
import io
import os
import re
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from types import FunctionType
from typing import Any, NamedTuple

from coursekit.machine.apart import CannotGoApart, Ended, apart
from coursekit.sentences import data_text
from ranklab.ranks.messages import text_of

from .missing_names import ShownAlone
from .numbers import is_number, plain_number, same
from .patience import at_most
from .properties import OfRanks, about_numbers, not_finite

LIMIT_SECONDS = 30.0  # for all cases together
SHOWN_CHARACTERS = 240  # of a value in a sentence
_ABSENT = object()  # an argument that was left away
ERRORS = re.findall(r"(?m)^(\S.*)\n:   (.*(?:\n    .*)*)", data_text("errors.md"))
MARKUP = re.compile(r"[\\`*_\[\]{}<>#$|~!]")  # what Markdown would take for more than a character


@dataclass(frozen=True)
class Misconception:
    """A wrong solution that readers really write, and the sentence that helps."""

    solution: Callable
    sentence: str


class NoExercise(ShownAlone, TypeError):
    """The exercise is missing from a call of check or hint."""


class CheckInterrupted(KeyboardInterrupt):
    """The reader stopped a check."""

    _render_traceback_ = ShownAlone._render_traceback_


class Failure(str):
    """The error of a solution in one line, used as its answer. Two solutions that fail alike give
    the same answer."""

    @classmethod
    def of(cls, error: BaseException, where: str = "") -> "Failure":
        first = (text_of(error).strip().splitlines() or [""])[0][:200]
        place, colon = f" on {where}" * bool(where), ": " * bool(first)
        return cls(f"{type(error).__name__}{place}{colon}{first}")


def is_blank(error: BaseException) -> bool:
    """Whether the value comes from a blank that was not filled in, `...`."""
    return "ellipsis" in text_of(error).lower()


class CaseTried(NamedTuple):
    """One case of a check: the arguments, the answer that was found, and the right one."""

    case: dict[str, Any]
    found: Any
    right: Any


@dataclass(frozen=True)
class Exercise:
    """A function to write. `cases` are the arguments of the check; `right` is the sentence when all
    answers agree.

    Arguments that print badly, such as tensors, have `words` instead, one for each case. If the
    result itself is not compared, as with a training loop, `answer` (solution, **case) computes the
    compared value, for example the bytes that the ledger counted. `hint` is a reader's first help,
    `half`, a half-written solution, the next, `right` the last. `errors` has (pattern,
    sentence): the sentence explains an error of a solution whose text has the pattern in it. `unit`
    is that of a result that is one number: "bytes", "seconds". `properties` (found, right, **case)
    look at a wrong answer beside the right one, and return the sentence of what it lacks ("two
    shards overlap"), or nothing; the one that holds in most cases is said. `of_a_value`: readers
    hand over what their cell found, not a function; reference, misconceptions and `answer` get it
    from a function without arguments.
    """

    name: str
    reference: Callable
    cases: tuple[dict[str, Any], ...]
    misconceptions: tuple[Misconception, ...]
    right: str
    words: tuple[str, ...] = ()
    answer: Callable = lambda solution, **case: solution(**case)
    hint: str = ""
    half: str = ""
    errors: tuple[tuple[str, str], ...] = ()
    unit: str = ""
    properties: tuple[Callable[..., str | None], ...] = ()
    of_a_value: bool = False

    def answers(self, solution: Callable) -> list:
        return [self.tried(solution, number) for number in range(len(self.cases))]

    def tried(self, solution: Callable, number: int) -> Any:
        """The solution's answer in one case. The solution gets copies of the arguments, so its
        changes do not reach the next case."""
        return self.answer(solution, **copy.deepcopy(self.cases[number]))

    def written(self, number: int, solution: Callable | None = None) -> str:
        """The call of one case as a reader would write it, by the name of their own function."""
        case = self.cases[number]
        order = [name for name in inspect.signature(self.reference).parameters if name in case]
        arguments = ", ".join(f"{name}={_show(case[name])}" for name in order)
        called = own_name(solution, self.name)
        called_with = f"{called}({self.words[number] if self.words else arguments})"
        return self.name if self.of_a_value else called_with


@dataclass(frozen=True)
class Verdict:
    """True if the solution is right. Prints as one sentence, which a notebook wraps."""

    right: bool
    sentence: str

    def __bool__(self):
        return self.right

    def __repr__(self):
        return f"{'right' if self.right else 'not yet'}: {self.sentence}"

    def _repr_markdown_(self):
        words = MARKUP.sub(r"\\\g<0>", self.sentence)
        return f"**{'right' if self.right else 'not yet'}:** {words}"


def own_name(solution: Callable | None, otherwise: str) -> str:
    """The name that a reader gives their function or class; a lambda has no name."""
    name = getattr(solution, "__name__", "")
    return name if isinstance(name, str) and name.isidentifier() else otherwise


BLANK = "gave Ellipsis: fill in the blank."
NO_VALUE = "is None: give it the value that the cell has found."
NO_RETURN = (
    "returns nothing. A value that is printed, or has a name, is not handed back: end with return,"
    " and the result."
)
# of the checks so far, in this process, without those that passed since
failed: list[Exercise] = []


def check(exercise: Exercise, solution: Any = _ABSENT, seconds: float = LIMIT_SECONDS) -> Verdict:
    """Try `solution` on the exercise's cases, in a process of its own where the system has a fork
    server. Never raises for an error in the solution, which is part of the verdict, and returns
    within the limit. The stop button ends the check at once: CheckInterrupted, which is a
    KeyboardInterrupt. NoExercise, a TypeError, for what is no exercise."""
    if not isinstance(exercise, Exercise) or solution is _ABSENT:
        alone = solution is _ABSENT
        has = "this call has one of them" if alone else f"the first is a {type(exercise).__name__}"
        name = own_name(exercise if alone else None, "your_function")
        raise NoExercise(
            f"check wants an exercise and then your function, and {has}: check(the_exercise,"
            f" {name})."
        )
    verdict = _tried(exercise, solution, seconds)
    before = sum(one is exercise for one in failed)
    failed[:] = [one for one in failed if one is not exercise]
    if verdict:
        return verdict
    failed.extend([exercise] * (before + 1))
    return Verdict(False, f"{verdict.sentence} (hint() helps.)") if before else verdict


def _tried(exercise: Exercise, solution: Any, seconds: float) -> Verdict:
    if exercise.of_a_value:
        return judge(exercise, lambda: solution, seconds)
    if not callable(solution):
        kind = type(solution).__name__
        return Verdict(False, f"{exercise.name} wants a function, and got: {kind}.")
    try:
        # the limit within is for where there is no process: this one ends first
        return apart(judge, exercise, solution, 2 * seconds, seconds=seconds)
    except CannotGoApart:
        return judge(exercise, solution, seconds)
    except (TimeoutError, Ended) as error:
        return Verdict(False, f"{own_name(solution, exercise.name)}: {error}")
    except KeyboardInterrupt:
        raise CheckInterrupted(
            f"the check of {own_name(solution, exercise.name)} was stopped before it had a verdict:"
            " run the cell again."
        ) from None


def judge(exercise: Exercise, solution: Callable, seconds: float = LIMIT_SECONDS) -> Verdict:
    """The verdict of check, in this process."""
    given = []
    try:
        with at_most(seconds):
            for number in range(len(exercise.cases)):
                given.append(exercise.tried(solution, number))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a reader's first attempt may raise anything, also SystemExit
        if is_blank(error):
            said = "met ..., a blank that is left: fill in the blank."
            return Verdict(False, f"{exercise.written(len(given), solution)} {said}")
        return Verdict(False, _raised(exercise, len(given), solution, Failure.of(error)))
    wanted = exercise.answers(exercise.reference)
    wrong = next((n for n, pair in enumerate(zip(given, wanted)) if not same(*pair)), None)
    if wrong is None:
        return Verdict(True, exercise.right)
    written = exercise.written(wrong, solution)
    if given[wrong] is ...:
        return Verdict(False, f"{written} {BLANK}")
    for misconception in exercise.misconceptions:
        if all(same(*pair) for pair in zip(given, exercise.answers(misconception.solution))):
            return Verdict(False, misconception.sentence)
    if given[wrong] is None:
        return Verdict(False, f"{written} {NO_VALUE if exercise.of_a_value else NO_RETURN}")
    if isinstance(given[wrong], Failure):
        return Verdict(False, _raised(exercise, wrong, solution, given[wrong]))
    found, right = given[wrong], wanted[wrong]
    every = [*map(CaseTried, exercise.cases, given, wanted)]
    tries = [tried for tried in every if not same(tried.found, tried.right)]
    if lacks := _lacks(exercise, every, tries):
        return Verdict(False, lacks)
    if own := _own_sentence(right, found):
        return Verdict(False, f"{written}: {own}")
    how = _wanted_form(right, found) or about_numbers(wanted, given, exercise.unit)
    how = how or not_finite(found)
    said = _words_for_a_difference(exercise, written, right, found)
    return Verdict(False, f"{said}: {how}." if how else f"{said}.")


def _own_sentence(wanted: Any, given: Any) -> str:
    """An answer that is a sentence, of the first rank where ranks differ; empty for another."""
    alone = not is_number(wanted)
    if isinstance(given, OfRanks) and isinstance(wanted, OfRanks):
        alone = not isinstance(wanted[0], str)
        given = next((one for one, right in zip(given, wanted) if not same(one, right)), None)
    return given if alone and isinstance(given, str) and given.endswith(".") else ""


def _wanted_form(wanted: Any, given: Any) -> str:
    """The form that is wanted, where an answer has another; empty where it has that."""
    if is_number(wanted):
        return "" if is_number(plain_number(given)) else "a number is wanted"
    several = isinstance(wanted, (list, tuple))
    alike = several and isinstance(given, (list, tuple)) and len(given) == len(wanted)
    return f"a list of {len(wanted)} is wanted" if several and not alike else ""


def _lacks(exercise: Exercise, every: list[CaseTried], wrong: list[CaseTried]) -> str:
    """The sentence of the exercise's property that holds in most of the wrong cases; a formula
    gives the answers of every case, or is not meant."""
    said = []
    for asked in exercise.properties:
        formula = getattr(asked, "of_all", False)
        tries = [t for t in (every if formula else wrong) if _alike_in_form(t.found, t.right)]
        each = [_asked(asked, tried) for tried in tries]
        if all(each) or not formula:
            said.append((sum(map(bool, each)), formula, each))
    most = max(said, key=lambda one: one[:2], default=(0, False, []))
    return next(filter(None, most[-1]), "")


def _asked(asked: Callable[..., str | None], tried: CaseTried) -> str | None:
    """The property's sentence for this answer. One that fails has none, as for 10**5000."""
    try:
        return asked(tried.found, tried.right, **copy.deepcopy(tried.case))
    except Exception:
        return None


def _alike_in_form(found: Any, right: Any) -> bool:
    """Whether a property can look at one as at the other: fields, on as many ranks."""
    if isinstance(right, OfRanks):
        return isinstance(found, OfRanks) and all(map(_alike_in_form, found, right))
    if hasattr(right, "_fields") or isinstance(right, (list, tuple)):
        lists = {type(found), type(right)} <= {list, tuple}
        return lists or type(found) is type(right)
    return is_number(right) == is_number(found)


def _raised(exercise: Exercise, number: int, solution: Callable, failure: Failure) -> str:
    """The error of a case, and what it comes from, where that is known."""
    written = exercise.written(number, solution)
    named = lambda known: next((why for what, why in known if re.search(what, failure)), "")
    own = named(exercise.errors)  # these come first
    back = [] if own else _handed_back(exercise, number, solution, failure)
    right = _handed_back(exercise, number, exercise.reference, failure) if back else []
    if len(back) <= len(right) and right:
        found, wanted = back[-1], right[len(back) - 1]
        if _form_of(found) != _form_of(wanted):
            nothing, verb = (NO_VALUE, "is") if exercise.of_a_value else (NO_RETURN, "returns")
            if found is None or found is ...:
                return f"{written} {BLANK if found else nothing}"
            return f"{written} {verb} {_form_of(found)}, where {_form_of(wanted)} is wanted."
    why = " ".join((own or named(ERRORS)).split())
    stop = "." * (not failure.endswith("."))
    said = f"{written} raised {failure}"
    if unread := re.match(r"\w+( on .+?)?: (it .+)", failure):  # nothing was raised
        said = f"{written}{unread[1] or ''}: {unread[2]}"
    return f"{said}{stop} {why}" if why else said


def _handed_back(exercise: Exercise, number: int, solution: Callable, failure: Failure) -> list:
    """All that a solution returns in a case, call by call, where the failure is that the exercise
    could not read it; nothing where a call raises, or the exercise has a sentence of its own."""
    called, back = [], []

    @functools.wraps(solution)
    def noted(*args, **kwargs):
        called.append(args)
        back.append(solution(*args, **kwargs))
        return back[-1]

    if isinstance(solution, FunctionType) and not re.search("^TimeoutError|: it ", failure):
        try:
            with redirect_stdout(io.StringIO()), at_most(LIMIT_SECONDS):
                exercise.tried(noted, number)
        except KeyboardInterrupt:
            raise
        except BaseException:  # as in judge
            pass
    return back if len(called) == len(back) else []


def _form_of(value: Any) -> str:
    """The form of a value, in words: a number, (Tensor, Tensor), a list."""
    kind = lambda one: "number" if is_number(plain_number(one)) else type(one).__name__
    if isinstance(value, tuple) and len(value) < 5:
        return f"({', '.join(map(kind, value))})"
    return f"a {kind(value)}"


def _words_for_a_difference(exercise: Exercise, written: str, wanted: Any, given: Any) -> str:
    """The difference between two answers, and nothing else. The answer of a task is not said."""
    if hasattr(wanted, "_fields") and type(given) is type(wanted):
        differing = [
            "{} should be {}{}, and is {}".format(field.replace("_", " "), *_first(ours, theirs))
            for field, ours, theirs in zip(wanted._fields, wanted, given)
            if not same(theirs, ours)
        ]
        return f"{written}: {'; '.join(differing)}"
    if exercise.of_a_value:
        return f"{written} is not {_around_the_difference(_show(given))[0]}"
    should, where, does = _first(wanted, given)
    return f"{written} should give {should}{where}, yours gives {does}"


def _first(wanted: Any, given: Any) -> tuple[str, str, str]:
    """(wanted, where, given) in words, at the first place where two answers differ."""
    where, places = "", []
    lists = lambda *values: all(isinstance(value, (list, tuple)) for value in values)
    while lists(wanted, given) and len(wanted) == len(given):
        first = next(n for n, pair in enumerate(zip(given, wanted)) if not same(*pair))
        if isinstance(given, OfRanks):
            where = f" on rank {first}"
        elif hasattr(wanted, "_fields"):
            where += f" for the {wanted._fields[first].replace('_', ' ')}"
        elif len(given) > 1:
            places.append(str(first))
        wanted, given = wanted[first], given[first]
    if places:
        where += f" at place {', '.join(places)} (counted from 0)"
    should, does = _around_the_difference(_show(wanted), _show(given))
    return should, where, does


def _show(value):
    try:
        whole = isinstance(value, int) and not isinstance(value, bool)
        return f"{value:_}" if whole else repr(value)
    except Exception:  # 10**5000, a __repr__ of the reader's, a list of a million lists
        return f"something of type {type(value).__name__} that cannot be shown"


def _around_the_difference(*texts: str) -> list[str]:
    """The texts, shortened to the part where they begin to differ."""
    if max(map(len, texts)) <= SHOWN_CHARACTERS:
        return list(texts)
    begin = max(0, len(os.path.commonprefix(texts)) - SHOWN_CHARACTERS // 3)
    end = begin + SHOWN_CHARACTERS
    return [
        f"{'... ' * (begin > 0)}{text[begin:end]}{' ...' * (len(text) > end)}" for text in texts
    ]
