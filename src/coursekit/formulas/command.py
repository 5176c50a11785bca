"""The formulas from a shell: `python -m shardlab explain` prints the tree below a number. A wrong
question gets one sentence, and exit code 2.
"""

import argparse
import sys

from .explain import explain


def run_explain(asked: argparse.Namespace) -> int:
    names = [word for word in asked.names if "=" not in word]
    try:
        given = given_pairs(word for word in asked.names if "=" in word)
        explain(names, **given)
    except TypeError as refused:
        return say_refused(refused)
    return 0


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
