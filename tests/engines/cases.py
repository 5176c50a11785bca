"""Cases of a test as text: a row a line, its cells between bars; an indented line goes on."""

import ast
import re
from typing import Any


def cases(table: str) -> list[tuple[str, ...]]:
    rows = re.sub(r"\n\s+", " ", table.strip("\n")).splitlines()
    return [tuple(cell.strip() for cell in row.split(" | ")) for row in rows]


def given(cell: str) -> dict[str, Any]:
    """`layers=2.5, gpu=T4` as keyword arguments: what Python reads as a value is that value."""
    return {name: _value(text) for name, text in (pair.split("=", 1) for pair in cell.split(", "))}


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return float(text) if text == "nan" else text
