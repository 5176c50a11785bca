"""Calls, in one process or on all ranks, that are refused, that say something or give a value: a
heading of told.md that begins with `refused`, `says` or `gives` has the modules whose names its
rows use, and the call, in which a row takes the place of the dots. Dots in a sentence stand for
what is in between."""

import importlib
import re

import pytest
import torch
import torch.distributed as dist
from refusals import pattern
from told import TOLD, sections

HEADING = re.compile(r"(refused|says|gives)(?: on (\d) ranks)?: (.*?): (.*)")
ROWS = [
    (*heading.groups()[:3], heading[4].replace("...", given), said)
    for section, rows in sections().items()
    if (heading := HEADING.match(section))
    for given, said in rows
]


def rows(kind, on_ranks=False):
    return [row[not on_ranks :] for of, *row in ROWS if of == kind and bool(row[0]) == on_ranks]


def names_of(modules):
    names = dict(torch=torch, dist=dist)
    for module in modules.split(", "):
        names |= vars(importlib.import_module(module))
    return names


def answer(modules, call):
    """(names of the error's type and its bases, its sentence) of a call in the modules' names."""
    try:
        return [], f"no error, and {eval(call, names_of(modules))}"
    except Exception as error:
        return [kind.__name__ for kind in type(error).__mro__], str(error)


def is_what_is_said(found, said):
    (kinds, sentence), (kind, words) = found, said.split(": ", 1)
    return kind in kinds and re.search(pattern(words), sentence)


@pytest.mark.parametrize("modules, call, said", rows("refused"))
def test_a_call_is_refused(modules, call, said):
    """Must catch: the check left out: a wrong number or picture, or an error in other words."""
    found = answer(modules, call)
    assert is_what_is_said(found, said), found


@pytest.mark.parametrize("ranks, modules, call, said", rows("refused", on_ranks=True))
def test_a_call_is_refused_on_all_ranks(worlds, ranks, modules, call, said):
    """Must catch: the check left out, or made before all ranks can hear of it, so that one raises
    and the others wait: wrong numbers, a send without its recv, PyTorch's own words."""
    for found in worlds(int(ranks)).run(answer, modules, call, limit_seconds=60):
        assert is_what_is_said(found, said), found


@pytest.mark.parametrize("modules, call, said", rows("says"))
def test_a_call_says(modules, call, said):
    """Must catch: what stands below the heading."""
    found = str(eval(call, names_of(modules)))
    assert re.fullmatch(pattern(said), found, re.DOTALL), found


@pytest.mark.parametrize("modules, call, value", rows("gives"))
def test_a_call_gives(modules, call, value):
    """Must catch: what stands below the heading."""
    names = names_of(modules)
    found, wanted = (eval(text, names) for text in (call, value))
    assert found == wanted and type(found) is type(wanted)


def test_each_table_says_what_it_must_catch():
    """Must catch: a heading of told.md below which nothing says so."""
    tables = re.findall(r"^## ((?:says|gives): .*)\n\n(.*)", TOLD.read_text("utf-8"), re.M)
    assert [one for one, below in tables if not re.match("Must catch: |Mutation", below)] == []
    assert len(tables) == len({one for one, _ in tables}) > 10
