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
from functools import partial
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
    """A condition and its sentence; or names and their values, without a sentence."""

    condition: str
    sentence: str
    asked: CodeType
    told: CodeType | None


class DecisionGroup(NamedTuple):
    """The lines below a heading, its condition, and the words that their sentences begin with."""

    condition: str
    beginning: str
    asked: CodeType
    lines: list[DecisionLine]


@dataclass(frozen=True)
class DecisionList:
    """One list, a property of an exercise: the sentence for a wrong answer, or None."""

    module: str  # whose names the conditions know
    groups: tuple[DecisionGroup, ...]
    of_all: bool = False  # whether it must speak in every case, as a formula does
    joined: str = ""  # the words between what each heading says; empty where only one is heard

    def __call__(self, found: Any, right: Any, **case) -> str | None:
        said = [one for _, one in self.speaking(found, right, **case) if one]
        return self.joined.join(said) + "." * bool(self.joined) if said else None

    def speaking(self, found: Any, right: Any, **case) -> Iterator[tuple[DecisionLine, str | None]]:
        """The first line that is true, and what it says; of each heading where they are joined."""
        given = dict(found=found, right=right, case=case)
        known = {**GIVEN, **vars(import_module(self.module)), **given, **case}
        for group in self.groups:
            for line in group.lines if eval(group.asked, known) else ():
                if line.told is None:
                    exec(line.asked, known)
                elif eval(line.asked, known):
                    yield line, eval(line.told, known)
                    if not self.joined:
                        return
                    break


class Decisions(NamedTuple):
    """All that an exercise has beside its wrong solutions: lists, and (pattern, sentence) of
    errors."""

    lists: tuple[DecisionList, ...]
    errors: tuple[tuple[str, str], ...]


def decisions_of(blocks: Iterable[str], module: str, where: str) -> Decisions:
    """The decisions in the blocks of an exercise; `where` is their place in tracebacks. Raises
    SyntaxError for a condition or a sentence that is no Python."""
    compiled = partial(compile, filename=f"<{where}>", mode="eval")

    def group(condition: str, beginning: str) -> DecisionGroup:
        asked = compiled("True" if condition in ("", _ALWAYS) else condition)
        return DecisionGroup(condition, beginning, asked, [])

    begun = [group("", "")]
    lists, errors, kind = [(begun, False, "")], [], _RULE
    for block in blocks:
        term, colon, sentence = (" ".join(part.split()) for part in block.partition("\n: "))
        joined = _JOINED.fullmatch(block)
        if joined or block in (_RULE, _EACH_ALONE, _ERRORS):
            kind, begun = block, [group("", "")]
            lists.append((begun, False, joined[1] if joined else ""))
        elif kind == _ERRORS:
            errors.append((term, sentence))
        elif block.startswith("### "):
            condition, _, beginning = term.removeprefix("### ").partition(" → ")
            begun.append(group(condition, beginning))
        elif not colon:
            line = DecisionLine("", "", compile(term, f"<{where}>", "exec"), None)
            begun[-1].lines.append(line)
        else:
            *before, last = begun
            told = f'f"""{last.beginning} {sentence} """.strip()'
            told = compiled("None" if sentence == _SAYS_NOTHING else told)
            line = DecisionLine(term, sentence, group(term, "").asked, told)
            if kind == _EACH_ALONE:
                alone = [*before, last._replace(lines=[*last.lines, line])]
                lists.append((alone, not last.condition, ""))
            else:
                last.lines.append(line)
    told = [
        DecisionList(module, tuple(groups), *rest)
        for groups, *rest in lists
        if any(line.sentence for group in groups for line in group.lines)
    ]
    return Decisions(tuple(told), tuple(errors))
