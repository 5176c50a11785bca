"""Exercises whose right solution is source, a lab's own cell or a function of the topic, and whose
wrong solutions are edits of it. The topic's `mistakes.md` has them beside their sentences:

    ## mlp_on_ranks

    nobody makes the sum: each rank has its own term of y. [learner]

        leave(inner @ own_down.T) => inner @ own_down.T

A heading is an exercise, a paragraph a sentence, and each indented block below it one wrong
solution: lines `old => new`, or all of the source. In an edit `\\n` is the end of a line. For an
exercise whose value is checked the block is the wrong value. In brackets stands where the mistake
was seen: an answer of a learner, or the page that tells of it; an author's guess says author. The
decision lists for answers that nobody listed follow (decisions.py).
"""

import inspect
import sys
from collections.abc import Callable, Mapping
from importlib.resources import files
from textwrap import dedent
from types import FunctionType
from typing import Any

from .checker import Exercise, Misconception
from .decisions import decisions_of
from .mistakes import decisions_in, mistakes_in, solutions


def edited(source: str, lines: list[str]) -> str:
    """The source after the lines `old => new`; lines without an arrow are a source themselves.
    Raises ValueError if an old text is not in it."""
    if not all(" =>" in line for line in lines):
        return "\n".join(lines)
    for line in lines:
        old, _, new = (part.replace("\\n", "\n") for part in f"{line} ".partition(" => "))
        if old not in source:
            raise ValueError(f"{old!r} is not in {source!r}: an edit replaces a part of it.")
        source = source.replace(old, new.removesuffix(" "))
    return source


def made(source: str, names: Mapping[str, Any], name: str) -> Any:
    """The last function or class that the source makes, in a module with these names."""
    scope = dict(names)
    exec(compile(source, f"<{name}>", "exec"), scope)
    new = [value for key, value in scope.items() if value is not names.get(key)]
    return [value for value in new if isinstance(value, (FunctionType, type))][-1]


class Topic:
    """The exercises of a topic, each with its own paragraph of `mistakes.md`.

    topic = Topic(__name__)
    mlp_on_ranks = topic.exercise("mlp_on_ranks", cases=..., answer=..., right=...)     # of the lab
    own_vectors = topic.exercise("own_vectors", vectors, cases=..., right=...)          # of a page
    found = topic.exercise("states_on_two_ranks", [16, 16], right=..., of_a_value=True)
    """

    def __init__(self, module: str):
        self.module = sys.modules[module]
        self.name = module.split(".")[-2]
        path = files(self.module.__package__).joinpath("mistakes.md")
        self.before: dict[str, Any] = {}  # solutions that a later one may use, as in the lab
        self.mistakes = mistakes_in(path.read_text("utf-8"))
        self.decisions = decisions_in(path.read_text("utf-8"))

    def exercise(self, key: str, solution: Any = None, **rest) -> Exercise:
        """The exercise. Without a `solution` the right one is that of the lab, a stored cell tagged
        solution that checks it. Raises KeyError if no lab has one, ValueError if an edit finds
        nothing."""
        where = f"{self.name}/mistakes.md, {key}"
        found = decisions_of(self.decisions.get(key, []), self.module.__name__, where)
        rest |= dict(properties=found.lists, errors=found.errors)
        of_lab = f"{self.name}.{key}"
        rest["half"] = solutions().get(of_lab, {}).get("half", "")
        if rest.get("of_a_value"):
            found = solution if callable(solution) else lambda: solution
            wrong = self._misconceptions(key, lambda block: _returning("\n".join(block)))
            return Exercise(reference=found, misconceptions=wrong, **rest)
        lab = solutions()[of_lab] if solution is None else {}
        source = lab.get("solution") or dedent(inspect.getsource(solution))
        names: dict[str, Any] = {}
        exec(lab.get("imports", ""), names)
        names |= {**vars(self.module), **self.before}
        reference = solution or made(source, names, key)
        rest = {"name": reference.__name__, **rest}
        wrong = self._misconceptions(key, lambda block: made(edited(source, block), names, key))
        self.before[reference.__name__] = reference
        return Exercise(reference=reference, misconceptions=wrong, **rest)

    def _misconceptions(self, key: str, wrong: Callable) -> tuple[Misconception, ...]:
        """The misconceptions of an exercise; `wrong` makes a solution of a block."""
        listed = self.mistakes.get(key, ())
        return tuple(Misconception(wrong(b), one.sentence) for one in listed for b in one.blocks)


def _returning(expression: str) -> Callable[[], Any]:
    value = eval(expression)
    return lambda: value
