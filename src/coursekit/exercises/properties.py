"""Properties of wrong answers that belong to no exercise: how all of it differs from what is right,
whatever was computed. A check says the first that holds in every case that is wrong.

how_they_differ(tries, OfRanks)      # "the output is right; the gradient of x is the number of
                                     # ranks (2, 3) times what it should be", or ""

Within one answer a property looks at one field at a time (of a NamedTuple), on all ranks.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from coursekit.sentences import with_values
from coursekit.show.format import BINARY, DECIMAL, DURATIONS

from .numbers import is_number, plain_number, ranks_in_words

UNITS_OF_SIZE = {"bits": 1 / 8, "bytes": 1.0, **dict(DECIMAL[1:4] + BINARY[1:4])}
UNITS_OF_TIME = {f"{name}s": size for name, size in DURATIONS if name != "year"}
NEAR = 0.02  # a difference of so much, in every case, is no other formula


def about_numbers(wanted: Sequence, given: Sequence, unit: str = "") -> str:
    """How numbers differ that differ in the same way in every case; empty for what is no number or
    differs in several ways."""
    wanted, given = [[plain_number(one) for one in some] for some in (wanted, given)]
    if not all(is_number(one) and abs(one) < 1e300 for one in (*wanted, *given)) or not all(wanted):
        return ""
    if any(mine != theirs for mine, theirs in zip(given, wanted)) and (
        any(all(_each_alike(given, [round(w, k) for w in wanted])) for k in range(4))
        or all(_each_alike(given, [math.floor(w) for w in wanted]))
    ):
        return "yours is rounded. Keep all digits, and divide with /, not //"
    ratios = [mine / theirs for mine, theirs in zip(given, wanted)]
    if len(wanted) > 1 and all(_each_alike(ratios, ratios[:1] * len(ratios))):
        return _one_ratio(ratios[0], unit)
    if all(abs(ratio - 1) < NEAR for ratio in ratios):
        return "yours is near, in every case: a number in it is rounded, or a small term is missing"
    if all(_each_alike(given, [1 / one for one in wanted])):
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


def _each_alike(some: Sequence, others: Sequence) -> list[bool]:
    return [math.isclose(one, other, rel_tol=1e-9) for one, other in zip(some, others)]


class CaseTried(NamedTuple):
    """One case of a check: the arguments, the answer that was found, and the right one."""

    case: Mapping[str, Any]
    found: Any
    right: Any


class Field(NamedTuple):
    """One field of an answer in one case, as it is on each rank."""

    case: Mapping[str, Any]
    found: list
    right: list
    ranks: int  # 1 where the answer is that of one process


def how_they_differ(tries: Sequence[CaseTried], of_ranks: type) -> str:
    """Words for the difference in all these cases; empty where no property holds. An answer of
    `of_ranks` is a list with one for each rank."""
    cases = [_fields(tried, of_ranks) for tried in tries]
    if not all(cases) or len({tuple(case) for case in cases}) > 1:
        return ""
    named = {name: [case[name] for case in cases] for name in cases[0]}
    wrong = [name for name, fields in named.items() if not all(map(_is_right, fields))]
    if not wrong:
        return ""
    right = [name for name in named if name not in wrong]
    said = [_said(name, [one for one in named[name] if not _is_right(one)]) for name in wrong]
    if not any(said):
        return ""
    first = next(filter(None, said))
    if not right:
        return first
    return f"{_listed(right)} {'is' if len(right) == 1 else 'are'} right; {first}"


def _fields(tried: CaseTried, of_ranks: type) -> dict[str, Field]:
    """Each field of the answers, by name; empty where they are of different kinds."""
    many = isinstance(tried.right, of_ranks)
    if many and not (isinstance(tried.found, of_ranks) and len(tried.found) == len(tried.right)):
        return {}
    found, right = (
        (list(tried.found), list(tried.right)) if many else ([tried.found], [tried.right])
    )
    ranks, first = len(right), right[0]
    if not hasattr(first, "_fields"):
        return {"": Field(tried.case, found, right, ranks)}
    if any(type(one) is not type(first) for one in found):
        return {}
    of = lambda answers, name: [getattr(one, name) for one in answers]
    return {
        name.replace("_", " "): Field(tried.case, of(found, name), of(right, name), ranks)
        for name in first._fields
    }


def _is_right(field: Field) -> bool:
    return _equal(field.found, field.right)


def _said(name: str, fields: list[Field]) -> str:
    """Words for one field: the first property that holds in all its cases."""
    subject = f"the {name}" if name else "yours"
    for words in (_nothing, _of_ranks, _form, _a_factor):
        try:
            said = words(fields)
        except (OverflowError, ValueError):  # a number too large for a float, or to be written
            continue
        if said:
            return f"{subject} {said}"
    return ""


# --- properties, each of all the wrong cases of a field -------------------------------------------


def _form(fields: list[Field]) -> str | None:
    """A type or a length that cannot be right."""
    field = fields[0]
    found, right = next(pair for pair in zip(field.found, field.right) if not _equal(*pair))
    if found is None:
        return "is missing, None"
    if is_number(right) and isinstance(found, (list, tuple)):
        return f"has {len(found)} values, and one number is wanted"
    if isinstance(right, (list, tuple)) and not isinstance(found, (list, tuple)):
        return f"is one {type(found).__name__}, and a list of {len(right)} is wanted"
    if isinstance(right, (list, tuple)) and len(found) != len(right):
        are = "is" if len(right) == 1 else "are"
        return f"has {len(found)} where {len(right)} {are} wanted" if found else "is empty"
    return None


def _nothing(fields: list[Field]) -> str | None:
    """Nothing but zeros, or nan and infinity."""
    found = [_flat(field.found) for field in fields]
    if any(isinstance(one, float) and math.isnan(one) for each in found for one in each or ()):
        return "is not a number (nan): zero divided by zero, or infinity minus infinity"
    if any(isinstance(one, float) and math.isinf(one) for each in found for one in each or ()):
        return "is infinite: something was divided by zero, or is larger than a float can hold"
    if not all(found) or not all(_numbers(one) for one in found):
        return None
    right = [_flat(field.right) for field in fields]
    if max(map(len, found)) > 1 and any(map(any, right)) and not any(map(any, found)):
        return "is zero everywhere"
    return None


def _of_ranks(fields: list[Field]) -> str | None:
    """Relations between ranks."""
    fields = [field for field in fields if field.ranks > 1]
    if not fields:
        return None
    found = [list(map(_flat, field.found)) for field in fields]
    right = [list(map(_flat, field.right)) for field in fields]
    if any(one is None for case in (*found, *right) for one in case):
        return None
    if any(len({len(one) for one in (*f, *r)}) > 1 for f, r in zip(found, right)):
        return None
    pairs = list(zip(found, right))
    if all(_alike(r) for r in right):  # every rank is to have the same
        if all(_alike(f) for f in found):
            return None
        own = next((f, r) for f, r in pairs if not _alike(f))
        good = [rank for rank, one in enumerate(own[0]) if _equal(one, own[1][0])]
        if good:
            return f"is right on {ranks_in_words(good)} alone, and all ranks are to have the same"
        for words, combine in (
            ("one rank's own part, and their sum is right: nobody adds them up", _sum),
            ("each rank's own, and their mean is right: nobody takes the mean", _mean),
        ):
            if all(_equal(combine(f), r[0]) for f, r in pairs):
                return f"is {words}"
        place = next(k for k in range(len(own[0][0])) if not _equal(own[0][0][k], own[0][-1][k]))
        return (
            f"differs from rank to rank ({_show(own[0][0][place])} on rank 0,"
            f" {_show(own[0][-1][place])} on rank {len(own[0]) - 1}), and is to be the same on all"
        )
    for f, r in pairs:
        if _alike(f) and not _alike(r):
            whose = [rank for rank, one in enumerate(r) if _equal(one, f[0])]
            if whose:
                return f"is that of rank {whose[0]} on every rank, and each is to have its own"
            return "is the same on every rank, and each is to have its own"
    return None


def _a_factor(fields: list[Field]) -> str | None:
    """One factor between all that was found and what is right, such as the number of ranks."""
    ratios = []
    for field in fields:
        found, right = _flat(field.found), _flat(field.right)
        if not (_numbers(found) and _numbers(right) and len(found) == len(right) and any(right)):
            return None
        ratio = next(f / r for f, r in zip(found, right) if r)
        if not ratio or not all(_near(f, ratio * r) for f, r in zip(found, right)):
            return None
        ratios.append(ratio)
    if all(_near(ratio, -1) for ratio in ratios):
        return "has the wrong sign everywhere"
    for words, factors in _factors(fields):
        if all(map(_near, ratios, factors)):
            return f"is {words}"
    if all(_near(ratio, ratios[0]) for ratio in ratios) and len(fields) + len(found) > 2:
        return f"is {ratios[0]:.4g} times what it should be, everywhere"
    return None


def _factors(fields: list[Field]) -> Iterator[tuple[str, list[float]]]:
    """(words, a factor of each field) by the numbers of a case: its ranks, and whole arguments."""
    counts = {"the number of ranks": [field.ranks for field in fields]}
    counts |= {name: [field.case.get(name) for field in fields] for name in fields[0].case}
    for name, values in counts.items():
        if not all(type(value) is int and value > 1 for value in values):
            continue
        known = dict(name=name, of_ranks=name == "the number of ranks")
        known |= dict(many=f"{name} ({', '.join(dict.fromkeys(map(str, values)))})")
        known |= dict(told_apart=min(values) > 2 or len(set(values)) > 1)
        each = [with_values("slips.md", "a factor of an answer", known | dict(n=n)) for n in values]
        for lines in zip(*each):
            yield lines[0][2], [factor for factor, _, _ in lines]


# --- values ---------------------------------------------------------------------------------------


def _flat(value) -> list | None:
    """All elements of nested lists in a row; None where there is anything but numbers and words."""
    value = plain_number(value)
    if isinstance(value, (list, tuple)):
        parts = [_flat(one) for one in value]
        return None if any(part is None for part in parts) else [x for part in parts for x in part]
    return [value] if isinstance(value, (int, float, str)) else None


def _numbers(values: list | None) -> bool:
    return bool(values) and all(map(is_number, values))


def _near(one: float, other: float) -> bool:
    try:
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=2e-9)
    except OverflowError:  # an int beyond floats
        return one == other


def _equal(one, other) -> bool:
    one, other = plain_number(one), plain_number(other)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_equal, one, other))
    if is_number(one) and is_number(other):
        return _near(one, other)
    return type(one) is type(other) and one == other


def _alike(parts: Sequence) -> bool:
    return all(_equal(part, parts[0]) for part in parts)


def _sum(parts: list[list]) -> list | None:
    return [sum(one) for one in zip(*parts)] if all(map(_numbers, parts)) else None


def _mean(parts: list[list]) -> list | None:
    return [sum(one) / len(one) for one in zip(*parts)] if all(map(_numbers, parts)) else None


def _listed(names: Sequence[str]) -> str:
    *most, last = (f"the {name}" for name in names)
    return f"{', '.join(most)} and {last}" if most else last


def _show(value) -> str:
    value = plain_number(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:_}" if type(value) is int else repr(value)[:60]
