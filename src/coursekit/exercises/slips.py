"""Wrong predictions, and what they come from: a locked number is answered like a function.

A topic's `predictions.md` has the slips of its lab, see wrong_numbers.py. Slips of any quantity
(elements for bytes, GB for GiB, the factor of the ranks) are known without a list, from the unit in
the prediction's name and its number of ranks.
"""

import math
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from types import MappingProxyType

from coursekit.sentences import with_values

from .properties import UNITS_OF_SIZE, UNITS_OF_TIME
from .wrong_numbers import Slips, slips_of

OWN_FIT = 0.03  # a slip of the quantity explains a number that is so near to it
GENERAL_HANDICAP = 0.005  # of two slips that fit alike, the quantity's own is the likelier
SPAN_HANDICAP = 0.05  # of many numbers: said where no slip of one fits; of two, the first
GENERAL_FIT = 0.015
NEAR_A_SLIP = 0.05  # further from it a number is about so many times the measured one
SAID_AT_MOST = 3  # causes of one number
ORDERS = 100  # times as much or as little: a unit, whose guess was a rough one
FEW_RANKS = 16
WILD = 20  # times as much, or as little

_TIMES = {**UNITS_OF_TIME, "ms": UNITS_OF_TIME["milliseconds"]}
# how near a right prediction is to the measured number; of what is timed or rated
WITHIN, WITHIN_TIMED = 0.03, 0.25
WITHIN_PERCENT = 1.0  # points


def may_be_negative(name: str) -> bool:
    """Whether a reader may predict a number below zero: one that compares, or has such a slip."""
    ends = (end for slip in slips_of(name).slips for end in slip.times_and_more)
    known = any(not times and more < 0 for times, more in ends)
    return known or re.search(r"\b(longer|higher|lower)\b", name) is not None


def unit_in(name: str) -> str:
    """The unit that a prediction's name ends with, or begins its last part with; "rate" for one of
    something a second."""
    if re.search(r"\w/s\b", name):
        return "rate"
    last = name.split(",")[-1].split()
    units = (*UNITS_OF_SIZE, *_TIMES, "percent")
    return next((word for word in (*last[::-1], *name.split()) if word in units), "")


def cause(
    name: str,
    predicted: float,
    measured: float,
    known: Mapping[str, float] = MappingProxyType({}),
    slips: Slips | None = None,
) -> str:
    """The sentence for a wrong prediction: what it comes from; empty where it is near
    enough, or where nothing is known of such a number."""
    given = slips_of(name) if slips is None else slips
    unit = unit_in(name) if given.unit is None else given.unit
    within = _within(unit) if given.within is None else given.within
    points = within if unit == "percent" else within * abs(measured)
    if abs(predicted - measured) <= points:
        return ""
    found = [*_own(given, predicted, measured, known, points)]
    if given.general and measured:
        found += _of_any(given, unit, predicted, measured, points)
    if found:
        return min(found, key=lambda one: one[0])[1]
    return _far_off(predicted, measured) if given.general else ""


def _own(given, predicted, measured, known, points) -> Iterator[tuple[float, str]]:
    """(how far from the predicted number, with a handicap; sentence) of the listed slips that
    fit."""
    near = _apart(predicted, measured)
    for slip in given.slips:
        if (ends := slip.ends(measured, known)) is None:
            continue
        beside_right, nearest = (min(max(one, ends[0]), ends[1]) for one in (measured, predicted))
        apart, of_many = _apart(predicted, nearest), ends[0] < ends[1]
        fit = 0.0 if of_many or given.within == 0 else OWN_FIT
        if apart <= fit and apart < near and abs(beside_right - measured) > points / 2:
            yield apart + SPAN_HANDICAP * of_many, slip.sentence


def _of_any(given, unit, predicted, measured, points) -> Iterator[tuple[float, str]]:
    """One of those for the slips that any quantity of that unit has: all that give the same
    number."""
    fitting = []
    for wrong, words in _general(unit, given.ranks, measured):
        apart, times = _apart(predicted, wrong), wrong / measured
        roughly = unit in _TIMES or not 1 / ORDERS < times < ORDERS
        fit = WITHIN_TIMED if roughly else GENERAL_FIT
        fit = min(fit, _apart(predicted, measured) / 2)  # it explains most of the difference
        if apart <= fit and times > 0 and abs(wrong - measured) > points:
            fitting.append((apart, times, words))
    if fitting:
        nearest, times, _ = min(fitting)
        words = [words for apart, _, words in fitting if apart <= nearest + GENERAL_FIT / 2]
        said = ", or ".join(list(dict.fromkeys(words))[:SAID_AT_MOST])
        ratio = _how_much(float(f"{times:.9g}"))
        if nearest > NEAR_A_SLIP:
            ratio = f"about {_how_much(float(f'{predicted / measured:.2g}'))}".capitalize()
        yield nearest + GENERAL_HANDICAP, f"{ratio} the measured number: {said}?"


def _within(unit: str) -> float:
    if unit == "percent":
        return WITHIN_PERCENT
    return WITHIN_TIMED if unit in (*_TIMES, "rate") else WITHIN


def _apart(one: float, other: float) -> float:
    """How far two numbers are apart, relative to the larger: 0 for equal ones, above 1 for those of
    different signs."""
    most = max(abs(one), abs(other))
    return abs(one - other) / most if most else 0.0


def _general(unit: str, ranks: int, right: float) -> Iterator[tuple[float, str]]:
    """(wrong number, words) of the slips that any quantity of that unit on so many ranks has."""
    units = UNITS_OF_TIME if unit in _TIMES else UNITS_OF_SIZE if unit in UNITS_OF_SIZE else {}
    size = {**UNITS_OF_SIZE, **_TIMES}.get(unit)
    for other, other_size in units.items():
        if other_size != size:
            yield right * size / other_size, f"{other}, where {unit} are asked for"
    counted = unit not in (*_TIMES, "percent")
    headings = {
        "a size": unit in UNITS_OF_SIZE,
        "a percentage": unit == "percent",
        "a prefix": unit in ("", "rate"),
        "a count": counted,
        "a number of ranks": counted and unit != "rate" and ranks > 1,
    }
    known = dict(right=right, n=ranks, few=FEW_RANKS)
    for heading in filter(headings.get, headings):
        yield from ((wrong, words) for wrong, _, words in with_values("slips.md", heading, known))


def _how_much(times: float) -> str:
    """A ratio in words: 4 times, a quarter of, 3/4 of, about 143,000 times."""
    words = {0.5: "Half", 0.25: "A quarter of", 2.0: "Twice"}
    if times in words:
        return words[times]
    if times >= WILD:
        return f"{float(f'{times:.3g}'):,.0f} times"
    near = Fraction(times).limit_denominator(10)
    if near and math.isclose(near, times, rel_tol=1e-6):
        return f"{near.numerator} times" if near.denominator == 1 else f"{near} of"
    return f"{times:.3g} times" if times > 0.1 else f"1/{float(f'{1 / times:.3g}'):,.0f} of"


def _far_off(predicted: float, measured: float) -> str:
    """A sentence for a number of another order or another sign, whose cause is not known."""
    if not measured:
        return "Nothing at all was measured: what you count is not there, or not there yet."
    if not predicted:
        return "You predicted nothing, and there is something."
    if predicted * measured < 0:
        return "The measured number has the other sign: look at which way it goes."
    times = predicted / measured
    if 1 / WILD < times < WILD:
        return ""
    said = "Many orders of magnitude from the measured number"
    if 1e-12 < times < 1e12:
        said = _how_much(float(f"{times:.2g}"))
        said = f"About {said[0].lower()}{said[1:]} the measured number"
    return f"{said}: look at the unit, and at what is counted."
