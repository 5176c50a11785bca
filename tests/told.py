"""Refusals as text: told.md has what a test is given, or does, and the words that it waits for."""

import re
from functools import cache
from pathlib import Path
from typing import Any


@cache
def sections() -> dict[str, list[tuple[str, str]]]:
    text = Path(__file__).with_name("told.md").read_text("utf-8")
    parts = (part.split("\n", 1) for part in text.split("\n## ")[1:])
    return {name: re.findall(r"^- `(.*)` => (.*)$", lines, re.M) for name, lines in parts}


def told(section: str, names: dict[str, Any]) -> list[tuple]:
    """The rows of a test: its values, in the names of its module, then the words."""
    return [(*eval(f"({values},)", names), words) for values, words in sections()[section]]
