"""The formulas from a shell: `python -m shardlab explain` prints the tree below a number. What is
asked wrongly is one sentence, and exit code 2.
"""

import argparse
import json
import sys

from .explain import explained
from .registry import BOOK, InvalidQuantity


def add_explain(commands):
    kinds = ", ".join(BOOK.presets)
    parser = commands.add_parser(
        "explain",
        help="print what a number follows from, with units and sources",
        description="Print what quantities follow from: the tree of formulas below them, with"
        " numbers, units and sources, and what was assumed.",
        epilog=f"""for example: python -m shardlab explain states_bytes model="GPT-2 124M"
        recipe="fp32 Adam". Presets are given by their kind: {kinds}.""",
    )
    parser.add_argument("names", nargs="+", metavar="QUANTITY", help="such as peak_bytes")
    parser.add_argument(
        "--levels", type=int, metavar="N", help="print the tree down to so many steps, not all"
    )
    parser.add_argument(
        "--allow-unused",
        action="store_true",
        help="ignore given names on which no asked quantity depends, which are refused otherwise",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_explain)


def run_explain(asked: argparse.Namespace) -> int:
    names = [word for word in asked.names if "=" not in word]
    try:
        given = dict(pair(word) for word in asked.names if "=" in word)
        found = explained(names, allow_unused=asked.allow_unused, levels=asked.levels, **given)
    except (InvalidQuantity, TypeError) as refused:
        return refuse(refused)
    print(json.dumps(found.as_json(), indent=1) if asked.json else found)
    return 0


def pair(word: str):
    """(name, value) of NAME=VALUE: a number where it is one."""
    name, _, text = word.partition("=")
    for number in (int, float):
        try:
            return name, number(text)
        except ValueError:
            pass
    return name, text


def refuse(error) -> int:
    print(error, file=sys.stderr)
    return 2
