"""A learner's file as the instructor reads it: its fields, and what may be in them.

The file was written on another machine, perhaps by hand. It must be a regular file of a moderate
size, and its fields must have the types below. Texts are cut, and lose each sign that a terminal
would obey.
"""

from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from coursekit.machine.regular_file import regular_json
from coursekit.show.format import printable

HANDED_IN_SCHEMA = 1
MOST_ITEMS = 1_000  # of a list
LONGEST_TEXT = 200
LONGEST_NAME = 40
LARGEST = 1e30  # number


class LabState(NamedTuple):
    """Where a learner's notebook stands: the heading above the last cell that has run, and each
    exercise as "right", "not yet" or "open"."""

    lab: str
    section: str
    exercises: dict[str, str]
    measured: dict[str, float]


class HandedIn(NamedTuple):
    """One learner's file."""

    name: str
    ready: bool | None
    missing: list[str]
    labs: list[LabState]
    predictions: dict[str, dict[str, float]]
    reports: list[dict[str, Any]]


def handed_in(path: Path) -> HandedIn:
    """The learner's file. Raises OSError or ValueError where it is damaged."""
    given = typed(regular_json(path), dict[str, Any])
    if given.pop("schema", None) != HANDED_IN_SCHEMA:
        raise ValueError(f"its schema is not {HANDED_IN_SCHEMA}, which this shardlab reads")
    found = typed(given, HandedIn)
    return found._replace(name=found.name[:LONGEST_NAME])


def typed(value: Any, kind: Any, field: str = "the content") -> Any:
    """The value as this type of Python, such as dict[str, float] or a NamedTuple. Raises ValueError
    with the name of the field."""
    base, inside = get_origin(kind) or kind, get_args(kind)
    if kind is Any or isinstance(kind, UnionType) and type(value) in inside:
        return value
    if base is str and isinstance(value, str):
        return printable(value)[:LONGEST_TEXT]
    if base is float and type(value) in (int, float) and abs(value) <= LARGEST:
        return float(value)
    if base is list and isinstance(value, list) and len(value) <= MOST_ITEMS:
        return [typed(each, inside[0], field) for each in value]
    if base is dict and isinstance(value, dict) and len(value) <= MOST_ITEMS:
        return {typed(k, inside[0]): typed(v, inside[1], printable(k)) for k, v in value.items()}
    if hasattr(base, "_fields") and isinstance(value, dict) and set(value) == set(base._fields):
        hints = get_type_hints(base)
        return base(**{name: typed(each, hints[name], name) for name, each in value.items()})
    wanted = kind.__name__ if base is kind else str(kind).replace("typing.", "")
    shown = ascii(value)[:LONGEST_NAME]
    raise ValueError(f"{field[:LONGEST_NAME]} = {shown}, not {wanted}")
