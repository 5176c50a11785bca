"""How wrong answers differ from right ones, whatever was asked: in the same way in every case, in
their form, or as numbers that cannot be right. Lists of an exercise know more (decisions.py).

about_numbers([80, 16], [10, 2])     # "yours is 0.125 times that, in every case", or ""
how_they_differ(tries)               # "yours is zero everywhere", or ""
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from coursekit.show.format import BINARY, DECIMAL, DURATIONS

from .numbers import is_number, plain_number, ranks_in_words, same

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


class CaseTried(NamedTuple):
    """One case of a check: the arguments, the answer that was found, and the right one."""

    case: Mapping[str, Any]
    found: Any
    right: Any


def how_they_differ(tries: Sequence[CaseTried]) -> str:
    """Words for what is wrong with these answers in every case; empty where nothing is."""
    words = _no_numbers(tries) or _form(tries) or _right_on_some_ranks(tries) or _a_factor(tries)
    return words and f"yours {words}"


def _no_numbers(tries: Sequence[CaseTried]) -> str:
    found = [_flat(tried.found) for tried in tries]
    numbers = [one for each in found for one in each or () if isinstance(one, float)]
    if any(map(math.isnan, numbers)):
        return "is not a number (nan): zero divided by zero, or infinity minus infinity"
    if any(map(math.isinf, numbers)):
        return "is infinite: something was divided by zero, or is larger than a float can hold"
    several = all(found) and max(map(len, found)) > 1
    return "is zero everywhere" * bool(several and not any(map(any, found)))


def _of_each_rank(tried: CaseTried) -> list[tuple]:
    """(found, right) of each rank; of the one process where there are no ranks."""
    _, found, right = tried
    ranks = isinstance(found, OfRanks) and isinstance(right, OfRanks) and len(found) == len(right)
    return list(zip(found, right)) if ranks else [(found, right)]


def _right_on_some_ranks(tries: Sequence[CaseTried]) -> str:
    pairs = _of_each_rank(tries[0])
    good = [rank for rank, pair in enumerate(pairs) if same(*pair)]
    words = f"is right on {ranks_in_words(good)} alone, and all ranks are to have the same"
    return words if good and all(same(right, pairs[0][1]) for _, right in pairs) else ""


def _form(tries: Sequence[CaseTried]) -> str:
    """A type or a length that cannot be right."""
    found, right = next(pair for pair in _of_each_rank(tries[0]) if not same(*pair))
    several, wanted = (isinstance(one, (list, tuple)) for one in (found, right))
    if found is None:
        return "is missing, None"
    if is_number(right) and several:
        return f"has {len(found)} values, and one number is wanted"
    if wanted and not several:
        return f"is one {type(found).__name__}, and a list of {len(right)} is wanted"
    if wanted and len(found) != len(right):
        are = "is" if len(right) == 1 else "are"
        return f"has {len(found)} where {len(right)} {are} wanted" if found else "is empty"
    return ""


def _a_factor(tries: Sequence[CaseTried]) -> str:
    """The wrong sign, or a number of the case or of its ranks as a factor of all that is right."""
    ratios = [_ratio(_flat(tried.found), _flat(tried.right)) for tried in tries]
    if not all(ratios):
        return ""
    if all(_near(ratio, -1) for ratio in ratios):
        return "has the wrong sign everywhere"
    counts = {name: [tried.case.get(name) for tried in tries] for name in tries[0].case}
    if isinstance(tries[0].right, OfRanks):
        counts = {"the number of ranks": [len(tried.right) for tried in tries]} | counts
    for name, values in counts.items():
        if all(type(value) is int and value > 1 for value in values):
            many = f"{name} ({', '.join(dict.fromkeys(map(str, values)))})"
            if all(map(_near, ratios, values)):
                return f"is {many} times what it should be"
            if all(_near(ratio * value, 1) for ratio, value in zip(ratios, values)):
                return f"is 1/{many} of what it should be"
    return ""


def _ratio(found: list | None, right: list | None) -> float | None:
    """The one factor between all elements."""
    numbers = found and right and all(map(is_number, (*found, *right))) and any(right)
    if not numbers or len(found) != len(right):
        return None
    try:
        ratio = next(one / other for one, other in zip(found, right) if other)
        alike = all(_near(one, ratio * other) for one, other in zip(found, right))
    except OverflowError:  # an int beyond floats
        return None
    return ratio if alike else None


def _near(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-6, abs_tol=2e-9)


def _flat(value) -> list | None:
    """All elements of nested lists in a row; None where there is anything but numbers and words."""
    value = plain_number(value)
    if isinstance(value, (list, tuple)):
        parts = [_flat(one) for one in value]
        return None if any(part is None for part in parts) else [x for part in parts for x in part]
    return [value] if isinstance(value, (int, float, str)) else None
