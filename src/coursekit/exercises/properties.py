"""How wrong numbers differ from right ones, whatever was asked: in the same way in every case, or
as numbers that cannot be right. Lists of an exercise know more (decisions.py).

about_numbers([80, 16], [10, 2])     # "yours is 0.125 times that, in every case", or ""
not_finite([0.5, math.nan])          # "yours is not a number (nan): ...", or ""
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from coursekit.show.format import BINARY, DECIMAL, DURATIONS

from .numbers import is_number, plain_number

UNITS_OF_SIZE = {"bits": 1 / 8, "bytes": 1.0, **dict(DECIMAL[1:4] + BINARY[1:4])}
UNITS_OF_TIME = {f"{name}s": size for name, size in DURATIONS if name != "year"}
NEAR = 0.02  # a difference of so much, in every case, is no other formula


def about_numbers(wanted: Sequence, given: Sequence, unit: str = "") -> str:
    """How numbers differ that differ in the same way in every case; empty for what is no number or
    differs in several ways."""
    wanted, given = [[plain_number(one) for one in some] for some in (wanted, given)]
    if not all(is_number(one) and abs(one) < 1e300 for one in (*wanted, *given)) or not all(wanted):
        return ""
    rounded = [[round(one, k) for one in wanted] for k in range(4)] + [[*map(math.floor, wanted)]]
    if given != wanted and any(_alike(given, one) for one in rounded):
        return "yours is rounded. Keep all digits, and divide with /, not //"
    ratios = [mine / theirs for mine, theirs in zip(given, wanted)]
    if len(wanted) > 1 and _alike(ratios, ratios[:1] * len(ratios)):
        return _one_ratio(ratios[0], unit)
    if all(abs(ratio - 1) < NEAR for ratio in ratios):
        return "yours is near, in every case: a number in it is rounded, or a small term is missing"
    if _alike(given, [1 / one for one in wanted]):
        return "yours is upside down"
    return ""


def _one_ratio(ratio: float, unit: str) -> str:
    if ratio == 0:
        return ""
    for units in (UNITS_OF_SIZE, UNITS_OF_TIME):
        for name, size in units.items():
            if unit in units and math.isclose(ratio, units[unit] / size, rel_tol=1e-9):
                return f"those are {name}, and {unit} are wanted"
    rounded = ": a number in it is rounded" * (abs(ratio - 1) < NEAR)
    return f"yours is {ratio:.4g} times that, in every case{rounded}"


def _alike(some: Sequence, others: Sequence) -> bool:
    return all(math.isclose(one, other, rel_tol=1e-9) for one, other in zip(some, others))


class OfRanks(list):
    """One answer of each rank, in rank order."""


def not_finite(found: Any) -> str:
    """Words for an answer with a nan or an infinity in it; empty for another."""
    if any(map(math.isnan, floats := list(_floats(found)))):
        return "yours is not a number (nan): zero divided by zero, or infinity minus infinity"
    if any(map(math.isinf, floats)):
        return (
            "yours is infinite: something was divided by zero, or is larger than a float can hold"
        )
    return ""


def _floats(value: Any) -> Iterator[float]:
    """The floats of nested lists."""
    value = plain_number(value)
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _floats(one)
    elif isinstance(value, float):
        yield value
