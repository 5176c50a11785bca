"""Cases as text: told.md has what a test is given, or does, and the words that it waits for; the
folder samples has pages and lists that tests read or build."""

import re
from ast import literal_eval
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

TOLD = Path(__file__).with_name("told.md")


def sample(name: str) -> str:
    return Path(__file__).parent.joinpath("samples", name).read_text("utf-8")


@cache
def sections() -> dict[str, list[tuple[str, str]]]:
    text = TOLD.read_text("utf-8")
    parts = (part.split("\n", 1) for part in text.split("\n## ")[1:])
    return {name: re.findall(r"^- `(.*)` => ?(.*)$", lines, re.M) for name, lines in parts}


def told(section: str, names: dict[str, Any]) -> list[tuple]:
    """The rows of a test: its values, in the names of its module, then the words."""
    return [(*eval(f"({values},)", names), words) for values, words in sections()[section]]


def valued(section: str, names: dict[str, Any]) -> list[tuple]:
    """The rows of a test that have a value instead of words."""
    return [(*given, eval(value, names)) for *given, value in told(section, names)]


def cells(section: str, **names: str) -> list[tuple[str, ...]]:
    """The rows of a test whose values are text, with bars between; `{name}` is one of the names."""
    rows = [(*values.split(" | "), words) for values, words in sections()[section]]
    return [tuple(cell.format_map(names) for cell in row) for row in rows] if names else rows


def from_told(arguments: str, read: Callable = told, **names: str) -> Callable:
    """Parametrizes a test with the rows of its heading in told.md, `module::test`, as `told`,
    `valued` or `cells` reads them; rows know the names of the test's module, cells these names."""

    def with_rows(test):
        section = f"{test.__module__}::{test.__name__}"
        rows = read(section, **names) if read is cells else read(section, test.__globals__)
        return pytest.mark.parametrize(arguments, rows)(test)

    return with_rows


def given(cell: str) -> dict[str, Any]:
    """`layers=2.5, gpu=T4` as keyword arguments: what Python reads as a value is that value."""
    return {name: _value(text) for name, text in (pair.split("=", 1) for pair in cell.split(", "))}


def _value(text: str) -> Any:
    try:
        return literal_eval(text)
    except (SyntaxError, ValueError):
        return float(text) if text == "nan" else text
