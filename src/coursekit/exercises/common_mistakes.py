"""Mistakes that belong to no exercise: what an error of PyTorch comes from, and numbers in another
unit, upside down or rounded.

about_an_error("RuntimeError: element 0 of tensors does not require grad ...")   # a sentence, or ""
about_numbers([80, 16], [10, 2])               # "yours is 0.125 times that, in every case"
"""

import math
import re
from collections.abc import Sequence
from importlib.resources import files

from coursekit.show.format import BINARY, DECIMAL, DURATIONS

from .numbers import is_number, plain_number

_TEXT = files("coursekit").joinpath("data", "errors.md").read_text("utf-8")
ERRORS = [
    (pattern, " ".join(sentence.split()))
    for pattern, sentence in re.findall(r"(?m)^(\S.*)\n:   (.*(?:\n    .*)*)", _TEXT)
]
UNITS_OF_SIZE = {"bits": 1 / 8, "bytes": 1.0, **dict(DECIMAL[1:4] + BINARY[1:4])}
UNITS_OF_TIME = {f"{name}s": size for name, size in DURATIONS if name != "year"}
NEAR = 0.02  # a difference of so much, in every case, is no other formula


def about_an_error(failure: str, known: Sequence[tuple[str, str]] = ()) -> str:
    """The sentence of the first pattern that the error has in it; those of the exercise, `known`,
    come first."""
    for pattern, sentence in (*known, *ERRORS):
        if re.search(pattern, failure):
            return sentence
    return ""


def about_numbers(wanted: Sequence, given: Sequence, unit: str = "") -> str:
    """How numbers differ that differ in the same way in every case; empty for what is no number or
    differs in several ways."""
    wanted, given = [[plain_number(one) for one in some] for some in (wanted, given)]
    if not all(is_number(one) and abs(one) < 1e300 for one in (*wanted, *given)) or not all(wanted):
        return ""
    if any(mine != theirs for mine, theirs in zip(given, wanted)) and (
        any(all(_alike(given, [round(w, k) for w in wanted])) for k in range(4))
        or all(_alike(given, [math.floor(w) for w in wanted]))
    ):
        return "yours is rounded. Keep all digits, and divide with /, not //"
    ratios = [mine / theirs for mine, theirs in zip(given, wanted)]
    if len(wanted) > 1 and all(_alike(ratios, ratios[:1] * len(ratios))):
        return _one_ratio(ratios[0], unit)
    if all(abs(ratio - 1) < NEAR for ratio in ratios):
        return "yours is near, in every case: a number in it is rounded, or a small term is missing"
    if all(_alike(given, [1 / one for one in wanted])):
        return "yours is upside down"
    return ""


def _one_ratio(ratio: float, unit: str) -> str:
    if ratio == 0:
        return ""
    for units in (UNITS_OF_SIZE, UNITS_OF_TIME):
        for name, size in units.items():
            if unit in units and math.isclose(ratio, units[unit] / size, rel_tol=1e-9):
                return f"those are {name}, and {unit} are wanted"
    if abs(ratio - 1) < NEAR:
        return f"yours is {ratio:.4g} times that, in every case: a number in it is rounded"
    return f"yours is {ratio:.4g} times that, in every case"


def _alike(some: Sequence, others: Sequence) -> list[bool]:
    return [math.isclose(one, other, rel_tol=1e-9) for one, other in zip(some, others)]
