"""Calls that are refused, in one process: a heading of told.md that begins with `refused:` has the
modules whose names its rows use, and the call, in which a row takes the place of the dots."""

import importlib
import re

import pytest
import torch
from told import sections

REFUSED = [
    (*section.split(": ", 2)[1:], *row)
    for section, rows in sections().items()
    if section.startswith("refused: ")
    for row in rows
]


@pytest.mark.parametrize("modules, call, given, said", REFUSED)
def test_a_call_is_refused(modules, call, given, said):
    """Must catch: the check left out: a wrong number or picture, or an error in other words."""
    names = {"torch": torch}
    for module in modules.split(", "):
        names |= vars(importlib.import_module(module))
    kind, words = said.split(": ", 1)
    with pytest.raises(Exception, match=re.escape(words).replace(r"\.\.\.", ".*")) as caught:
        eval(call.replace("...", given), names)
    assert kind in [base.__name__ for base in type(caught.value).__mro__]
