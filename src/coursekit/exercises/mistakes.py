"""The mistakes of a topic as text, and the solutions of the labs: read without a check, so that a
book is built without torch. See edits.py for the form of `mistakes.md`."""

import json
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from coursekit.sentences import data_text

ORIGINS = ("learner", "page", "author")
# the first block of an exercise's decision lists (decisions.py) looks like this
DECISION = re.compile(r"#{3} |---$|\*?\w+(, \*?\w+)* = |.+(\n[^:].*)*\n: ")


class Mistake(NamedTuple):
    """A sentence, where the mistake was seen, and the blocks of edits that make it."""

    sentence: str
    origin: str
    blocks: list[list[str]]


def sections(text: str) -> Iterator[tuple[str, str]]:
    """(heading, text below it) of each heading of the second level."""
    for section in re.split(r"(?m)^## ", text)[1:]:
        name, _, rest = section.partition("\n")
        yield name.strip(), rest


def decisions_in(text: str) -> dict[str, list[str]]:
    """The blocks of the decision lists of a file, by exercise."""
    found: dict[str, list[str]] = {}
    for names, rest in sections(text):
        for name in names.split(", "):
            found[name] = [*found.get(name, []), "---", *_blocks(rest)[1]]
    return found


def _blocks(section: str) -> tuple[list[str], list[str]]:
    """The blocks of an exercise's mistakes, and those of its decision lists."""
    blocks = [block.rstrip() for block in re.split(r"\n\s*\n", section.strip("\n"))]
    first = next((k for k, block in enumerate(blocks) if DECISION.match(block)), len(blocks))
    return blocks[:first], blocks[first:]


def mistakes_in(text: str) -> dict[str, list[Mistake]]:
    """The mistakes of a file, by exercise. Raises ValueError for a sentence without an origin."""
    found: dict[str, list[Mistake]] = {}
    for name, rest in sections(text):
        mistakes = [] if ", " in name else found.setdefault(name, [])
        for block in _blocks(rest)[0]:
            lines = textwrap.dedent(block).rstrip().splitlines()
            if block.startswith("    "):
                mistakes[-1].blocks.append(lines)
            elif block:
                told = re.fullmatch(rf"(.*) \[({'|'.join(ORIGINS)})\]", " ".join(lines))
                if told is None:
                    raise ValueError(f"{name}: {lines[0]!r} ends with none of {ORIGINS}.")
                mistakes.append(Mistake(*told.groups(), []))
    return found


@cache
def solutions() -> dict[str, dict[str, str]]:
    """The solution, the lab's imports for it and its first half by topic.exercise, made from the
    labs: see tools/skeletons.py."""
    return json.loads(data_text("skeletons.json"))
