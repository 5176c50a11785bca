"""Decision lists of `mistakes.md`: conditions, asked in order, and the sentence of the first that
is true. They stand under an exercise's heading, below the wrong solutions:

    times = [one / two for one, two in zip(found, right)]

    set(times) == {2}
    :   each is twice what it should be: an addition has two operands.

    ### len(found) > n → of {n} ranks,

    else
    :   one has {max(times):g} times its share.

A term is a condition, a paragraph `name = value` names a value for what follows. A heading asks a
condition for all below it, whose sentences begin with the words after its arrow. `else` is always
true, and the sentence `...` says nothing and ends the list. Conditions and braces are Python: they
know `found`, `right`, the arguments of the `case`, the names of the topic's exercises.py and GIVEN.
A rule, `---`, begins another list: of several, the one that speaks in most of the wrong cases is
heard. Below `### each alone` every line is a list of its own, a formula that is named only where it
gives the answer in every case, or, below a heading with a condition, evidence of the cases that
meet it. Below `### joined by "; "` each heading is asked, and what they say becomes one sentence,
with a full stop. Below `### errors` a term is a pattern in the text of an error. `## one, another`
heads the lists of two exercises.
"""

import math
import re
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import CodeType
from typing import Any, NamedTuple

import torch

from .answers import drawn, nine_digits, share_of_each, times_of_parts
from .checker import Failure
from .numbers import same
from .properties import OfRanks

GIVEN = dict(math=math, torch=torch, drawn=drawn, nine_digits=nine_digits, same=same)
GIVEN |= dict(share_of_each=share_of_each, times_of_parts=times_of_parts)
GIVEN |= dict(Failure=Failure, OfRanks=OfRanks, statistics=statistics)
_ERRORS, _EACH_ALONE, _RULE = "### errors", "### each alone", "---"
_JOINED = re.compile('### joined by "(.+)"')
_ALWAYS, _SAYS_NOTHING = "else", "..."


class DecisionLine(NamedTuple):
    """A condition and its sentence; or names and their values, an assignment."""

    condition: str
    sentence: str = ""
    assignment: str = ""


class DecisionGroup(NamedTuple):
    """The lines below a heading, its condition, and the words that their sentences begin with."""

    condition: str
    beginning: str
    lines: list[DecisionLine]


@dataclass(frozen=True)
class DecisionList:
    """One list, a property of an exercise: the sentence for a wrong answer, or None."""

    module: str  # whose names the conditions know
    where: str  # file and heading, for tracebacks
    groups: tuple[DecisionGroup, ...]
    of_all: bool = False  # whether it must speak in every case, as a formula does
    joined: str = ""  # the words between what each heading says; empty where only one is heard

    def __post_init__(self):
        for group in self.groups:
            self._asked(group.condition)
            for line in group.lines:
                self._asked(line.condition)
                self._told(group, line)
                _compiled(line.assignment, self.where, "exec")

    def __call__(self, found: Any, right: Any, **case) -> str | None:
        said = [one for _, one in self.speaking(found, right, **case) if one]
        return self.joined.join(said) + "." * bool(self.joined) if said else None

    def speaking(self, found: Any, right: Any, **case) -> Iterator[tuple[DecisionLine, str | None]]:
        """The first line that is true, and what it says; of each heading where they are joined."""
        given = dict(found=found, right=right, case=case)
        known = {**GIVEN, **vars(import_module(self.module)), **given, **case}
        for group in self.groups:
            if not eval(self._asked(group.condition), known):
                continue
            for line in group.lines:
                if line.assignment:
                    exec(_compiled(line.assignment, self.where, "exec"), known)
                elif eval(self._asked(line.condition), known):
                    says_nothing = line.sentence == _SAYS_NOTHING
                    yield line, None if says_nothing else eval(self._told(group, line), known)
                    if not self.joined:
                        return
                    break

    def _asked(self, condition: str) -> CodeType:
        return _compiled("True" if condition in ("", _ALWAYS) else condition, self.where)

    def _told(self, group: DecisionGroup, line: DecisionLine) -> CodeType:
        words = f"{group.beginning} {line.sentence}".strip()
        return _compiled(f'f"""{words} """[:-1]', self.where)


@cache
def _compiled(source: str, where: str, mode: str = "eval") -> CodeType:
    return compile(source, f"<{where}>", mode)


class Decisions(NamedTuple):
    """All that an exercise has beside its wrong solutions: lists, and (pattern, sentence) of
    errors."""

    lists: tuple[DecisionList, ...]
    errors: tuple[tuple[str, str], ...]


def decisions_of(blocks: Iterable[str], module: str, where: str) -> Decisions:
    """The decisions in the blocks of an exercise."""
    begun = [DecisionGroup("", "", [])]
    lists, errors, kind = [(begun, False, "")], [], _RULE
    for block in blocks:
        term, colon, sentence = (" ".join(part.split()) for part in block.partition("\n: "))
        line = DecisionLine(term, sentence) if colon else DecisionLine("", assignment=term)
        joined = _JOINED.fullmatch(block)
        if joined or block in (_RULE, _EACH_ALONE, _ERRORS):
            kind, begun = block, [DecisionGroup("", "", [])]
            lists.append((begun, False, joined[1] if joined else ""))
        elif kind == _ERRORS:
            errors.append((term, sentence))
        elif block.startswith("### "):
            condition, _, beginning = term.removeprefix("### ").partition(" → ")
            begun.append(DecisionGroup(condition, beginning, []))
        elif kind == _EACH_ALONE and colon:
            *before, last = begun
            alone = [*before, last._replace(lines=[*last.lines, line])]
            lists.append((alone, not last.condition, ""))
        else:
            begun[-1].lines.append(line)
    told = [
        DecisionList(module, where, tuple(groups), *rest)
        for groups, *rest in lists
        if any(line.sentence for group in groups for line in group.lines)
    ]
    return Decisions(tuple(told), tuple(errors))
