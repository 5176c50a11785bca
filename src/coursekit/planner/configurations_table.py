"""data/configurations.md: the settings of other tools, line by line, in this book's quantities."""

import json
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

from coursekit.sentences import data_text

SAYS_NOTHING = (None, "", "auto", [], {})
# what YAML reads as a truth value, and files write in quotes
AGREE = {"no": "false", "yes": "true"}


class InvalidConfiguration(ValueError):
    """Why a file is no configuration that can be read, or a layout none that can be written: one
    sentence, with the key and its line."""


@dataclass(frozen=True)
class Setting:
    """A line of the table."""

    keys: tuple
    quantity: str
    values: str = ""
    words: str = ""

    @property
    def named(self) -> str:
        return self.quantity.lstrip("<")

    @property
    def written(self) -> bool:
        return not re.match(r"[<!?-]|bucket", self.quantity)

    @property
    def pairs(self) -> list[tuple]:
        """(value of the quantity, the file's), in the order of the table."""
        return [
            (number_in(ours), there)
            for ours, there in re.findall(r"(?:^| )(.+?)=(\S+)", self.values)
        ]

    @property
    def choices(self) -> dict:
        """Value in the file -> value of the quantity."""
        return {plain_text(there): ours for ours, there in self.pairs}

    def holds(self, said) -> bool:
        """Whether a note is about these quantities: `?zero_stage=3,offload=1`; a buffer's values
        end with its stages."""
        if self.quantity == "bucket":
            return said.get("zero_stage") in map(int, self.values.split()[1:])
        wanted = [pair.split("=") for pair in self.quantity[1:].split(",") if pair]
        return all(said.get(name) == number_in(value) for name, value in wanted)

    def meets(self, value, *, absent=False) -> bool:
        """Whether one of the values is the file's."""
        if absent:
            return "absent" in self.values.split()
        if value in SAYS_NOTHING or value is False and "false" not in self.values:
            return False
        several = value if isinstance(value, list) else str(value).split() or [value]
        return any(_meets(wanted, one) for wanted in self.values.split() for one in several)


def _meets(wanted, value) -> bool:
    if wanted.startswith(">"):
        return number_in(value) > int(wanted[1:])
    return wanted == "*" or plain_text(wanted) == plain_text(value)


@dataclass(frozen=True)
class Tool:
    name: str
    settings: tuple
    version: str
    format: str
    kernels: str
    signs: list
    outside: list
    silent: dict
    recipes: dict

    def matching(self, key) -> list[Setting]:
        """The settings of a key; those with a `*` only where no other names it."""
        named = [one for one in self.settings if key in one.keys]
        return named or [
            one for one in self.settings if any(fnmatchcase(key, known) for known in one.keys)
        ]

    @property
    def lenient(self) -> bool:
        """Whether its files hold keys of others: scripts and data."""
        return self.format == "command" or "base_model" in self.signs


@cache
def tools() -> dict[str, Tool]:
    """Name in small letters -> Tool."""
    text = data_text("configurations.md")
    found = {}
    for part in text.split("\n## ")[1:]:
        name, facts, lines = part.strip().split("\n\n", 2)
        rows = (re.split(r" \| ?", line) for line in lines.splitlines())
        settings = tuple(Setting(tuple(keys.split()), *more) for keys, *more in rows)
        facts = dict(re.findall(r"(?m)^- (\w+): ?(.*)", facts))
        facts |= {fact: facts[fact].split() for fact in ("signs", "outside")}
        silent = (pair.split("=") for pair in facts["silent"].split())
        facts["silent"] = {quantity: number_in(value) for quantity, value in silent}
        facts["recipes"] = dict(re.findall(r"([\w.]+)=([^;]+)", facts["recipes"]))
        found[name.split("-")[0].lower()] = Tool(name, settings, **facts)
    return found


def plain_text(value) -> str:
    text = str(value).lower()
    return AGREE.get(text, text)


def number_in(value):
    """A whole number where the text is one, also as 1e9; else the text."""
    if isinstance(value, bool):
        return int(value)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return value
    return int(number) if number % 1 == 0 else number


def as_written(value) -> str:
    return json.dumps(value) if isinstance(value, (bool, list, dict)) else str(value)
