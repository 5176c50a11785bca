"""Calls that are refused, in one process or on all ranks: a heading of told.md that begins with
`refused` has the modules whose names its rows use, and the call, in which a row takes the place of
the dots. Dots in a sentence stand for what is in between."""

import importlib
import re

import pytest
import torch
import torch.distributed as dist
from told import sections

ROWS = [
    (ranks, modules, call.replace("...", given), said)
    for section, rows in sections().items()
    for ranks, modules, call in re.findall(r"^refused(?: on (\d) ranks)?: (.*?): (.*)", section)
    for given, said in rows
]


def answer(modules, call):
    """(names of the error's type and its bases, its sentence) of a call in the modules' names."""
    names = dict(torch=torch, dist=dist)
    for module in modules.split(", "):
        names |= vars(importlib.import_module(module))
    try:
        return [], f"no error, and {eval(call, names)}"
    except Exception as error:
        return [kind.__name__ for kind in type(error).__mro__], str(error)


def is_what_is_said(found, said):
    (kinds, sentence), (kind, words) = found, said.split(": ", 1)
    return kind in kinds and re.search(re.escape(words).replace(r"\.\.\.", ".*"), sentence)


@pytest.mark.parametrize("modules, call, said", [row for ranks, *row in ROWS if not ranks])
def test_a_call_is_refused(modules, call, said):
    """Must catch: the check left out: a wrong number or picture, or an error in other words."""
    found = answer(modules, call)
    assert is_what_is_said(found, said), found


@pytest.mark.parametrize("ranks, modules, call, said", [row for row in ROWS if row[0]])
def test_a_call_is_refused_on_all_ranks(worlds, ranks, modules, call, said):
    """Must catch: the check left out, or made before all ranks can hear of it, so that one raises
    and the others wait: wrong numbers, a send without its recv, PyTorch's own words."""
    for found in worlds(int(ranks)).run(answer, modules, call, limit_seconds=20):
        assert is_what_is_said(found, said), found
