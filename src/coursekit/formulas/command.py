"""The formulas from a shell: `python -m shardlab explain` prints the tree below a number. A wrong
question gets one sentence, and exit code 2.
"""

import argparse
import sys

from .explain import explained
from .registry import BOOK


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
    parser.set_defaults(run=run_explain)


def run_explain(asked: argparse.Namespace) -> int:
    names = [word for word in asked.names if "=" not in word]
    try:
        given = given_pairs(word for word in asked.names if "=" in word)
        print(explained(names, **given))
    except TypeError as refused:
        return say_refused(refused)
    return 0


class OneSentence(argparse.ArgumentParser):
    """Says what is wrong in one sentence, without a page of usage."""

    def error(self, message):
        self.exit(2, f"{self.prog}: {message:.500}; --help says what it takes.\n")


def given_pairs(words) -> dict:
    """The names and values of NAME=VALUE. Raises TypeError for a word without a name, or a name
    given twice."""
    given = {}
    for name, value in map(pair, words):
        if not name:
            raise TypeError(f"={value}: there is no name before the equals sign.")
        if name in given:
            raise TypeError(f"{name} is given twice: {given[name]} and {value}.")
        given[name] = value
    return given


def pair(word: str):
    """(name, value) of NAME=VALUE: a number where it is one."""
    name, _, text = word.partition("=")
    for number in (int, float):
        try:
            return name, number(text)
        except ValueError:
            pass
    return name, text


def say_refused(error) -> int:
    print(f"{error!s:.3000}", file=sys.stderr)  # it may hold what was typed
    return 2
