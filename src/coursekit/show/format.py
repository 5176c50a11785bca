"""Numbers as the book prints them: three significant digits, the unit always written.

GiB (2^30) is for memory one can measure, GB (10^9) for what vendors print; counts are 175B and
3.14e23; durations run from nanoseconds to years of 365 days. static/formulas.js writes the
same strings; a test compares the two.
"""

import math
import re
from decimal import ROUND_HALF_UP, Decimal
from functools import partial

JOINERS = "\u200c\u200d"  # invisible, and part of Persian and Indian names
DIGITS_BELOW = 1e21  # from here on nobody reads the digits of a whole number

DECIMAL = tuple(zip(("B", "kB", "MB", "GB", "TB", "PB", "EB"), (1000**k for k in range(7))))
BINARY = tuple(zip(("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"), (1024**k for k in range(7))))
LARGE = (("M", 10**6), ("B", 10**9), ("T", 10**12))
_NAMES = "nanosecond microsecond millisecond second minute hour day year".split()
DURATIONS = tuple(zip(_NAMES, (1e-9, 1e-6, 1e-3, 1, 60, 3600, 86_400, 31_536_000)))
SHORT_DURATIONS = (("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3), ("s", 1))
RATES = (("FLOP/s", 1), *((f"{prefix}FLOP/s", 1000**k) for k, prefix in enumerate("MGTPE", 2)))


def _rounded(value):
    """(text, value) of three significant digits, halves up; trailing zeros go when rounding changed
    nothing: 80, not 80.0."""
    exact = Decimal(value)
    if exact == 0:
        return "0", 0.0
    step = Decimal(1).scaleb(exact.adjusted() - 2)
    digits = exact.quantize(step, rounding=ROUND_HALF_UP)
    if digits.adjusted() > exact.adjusted():  # 9.996 became 10.00
        digits = digits.quantize(step.scaleb(1))
    text = f"{digits:f}"
    if float(text) == value and "." in text:
        text = text.rstrip("0").rstrip(".")
    return text, float(text)


def _grouped(text):
    whole, point, fraction = text.lstrip("-").partition(".")
    return "-" * text.startswith("-") + f"{int(whole):,}" + point + fraction


def format_number(value):
    """Three significant digits: 0.4, 107, 12,300; 3.14e23 from a million on and below a
    thousandth."""
    text, size = _rounded(value)
    if size and not 1e-3 <= abs(size) < 1e6:
        mantissa, _, exponent = f"{Decimal(text):e}".partition("e")
        mantissa, point, fraction = mantissa.partition(".")
        fraction = fraction[:2] if float(text) != value else fraction.rstrip("0")
        return f"{mantissa}{'.' if fraction else ''}{fraction}e{int(exponent)}"
    return _grouped(text)


def format_exact(value):
    """A whole number with all its digits: 124,439,808."""
    if abs(value) < DIGITS_BELOW and value == int(value):
        return f"{int(value):,}"
    return format_number(value)


def format_count(value):
    """All digits below a million, then 6.74B, 300B, 15T, and 3.14e23."""
    if abs(value) < 1e6 and value == int(value):
        return f"{int(value):,}"
    if abs(_rounded(value)[1]) < 1e15:
        return _scaled(value, (("", 1), *LARGE), separator="")
    return format_number(value)


def _scaled(value, units, separator=" "):
    """The value in the largest unit of which it has at least one, after rounding: 999.6 GB is 1.00
    TB."""
    name, size = units[0]
    for larger, its_size in units[1:]:
        long, inside = abs(value), abs(_rounded(_in(value, size))[1])
        if long < its_size and inside < round(its_size / size):
            break
        name, size = larger, its_size
    return f"{format_number(_in(value, size))}{separator}{name}"


def _in(value, size):
    """How many units of that size the value is. 1e-5 s are 10.0 microseconds when multiplied,
    9.999999999999999 when divided."""
    return value / size if size >= 1 else value * round(1 / size)


def format_percent(value):
    """A share as 40%, 12.3%; the point is moved in the digits, since 0.29 * 100 is not 29."""
    if value and not 1e-7 <= abs(value) < 1e6:
        return f"{format_number(100 * float(value))}%"
    return f"{_grouped(format(Decimal(_rounded(value)[0]).scaleb(2), 'f'))}%"


def format_bytes(value):
    """Bytes in the largest binary unit of which there is at least one."""
    return _scaled(value, BINARY)


def format_duration(seconds, units=DURATIONS):
    """28.5 days, 357 years, 1 hour, 0 seconds; in the largest unit of which there is at least
    one."""
    if units is DURATIONS and seconds == 0:
        units = [("second", 1)]
    text = _scaled(seconds, units)
    return text if text.startswith("1 ") else text + "s"


def format_short_duration(seconds):
    """573 µs, 3.4 ms, 0 s. Less than a femtosecond is what a difference of two times leaves when
    they are equal but for their last bits: 0 s."""
    return _scaled(seconds, SHORT_DURATIONS) if abs(seconds) >= 1e-15 else "0 s"


STYLES = {
    "exact": format_exact,
    "number": format_number,
    "count": format_count,
    "percent": format_percent,
    "yes or no": lambda value: "yes" if value else "no",
    "s": lambda value: "" if value == 1 else "s",  # GPU{gpus:s}
    "bytes": format_bytes,
    "decimal bytes": lambda value: _scaled(value, DECIMAL),
    **{unit[0]: partial(_scaled, units=[unit]) for unit in DECIMAL[1:] + BINARY[1:]},
    "duration": format_duration,
    **{f"{unit[0]}s": partial(format_duration, units=[unit]) for unit in DURATIONS},
    "short duration": format_short_duration,
    "rate": lambda value: _scaled(value, RATES),
    "bandwidth": lambda value: _scaled(value, DECIMAL) + "/s",
}
STYLE_OF_UNIT = {
    "bytes": "bytes",
    "seconds": "duration",
    "fraction": "percent",
    "FLOP/s": "rate",
    "FLOP": "count",
    "bytes/s": "bandwidth",
}


def format_as(value, style):
    """The value in one of STYLES, by name."""
    if style not in STYLES:
        raise ValueError(f"{style!r} is no way to print a number; there are {', '.join(STYLES)}.")
    return STYLES[style](value)


def decimal_bytes(nbytes) -> str:
    """Bytes as pictures say them: "23.8 GB"."""
    return format_as(nbytes, "decimal bytes")


def format_to_type(value, style):
    """The value as a reader could have typed it: in the style if that loses nothing (175B, 64 MiB),
    else with all its digits."""
    texts = format_as(value, style), format_exact(value)
    return next((text for text in texts if parse_number(text, style) == value), str(float(value)))


TYPED = re.compile(
    r"([+-]?)(\d{1,3}(?:[,_ ]\d{3})+|\d*)(\.\d*)?(?:e([+-]?\d{1,3}))?([kmbt%]?)",
    re.IGNORECASE | re.ASCII,
)
SHIFTS = {"": 0, "%": -2, "k": 3, "m": 6, "b": 9, "t": 12}
# Units that a reader may type where a quantity is printed in a style: (unit, power of ten, factor).
UNITS = {
    "bytes": (
        [(unit, len(str(size)) - 1, 1) for unit, size in DECIMAL]
        + [(unit, 0, size) for unit, size in BINARY[1:]]
    ),
    "bandwidth": [(f"{unit}/s", len(str(size)) - 1, 1) for unit, size in DECIMAL],
    "rate": [(unit, len(str(size)) - 1, 1) for unit, size in RATES],
    "short duration": [("ns", -9, 1), ("µs", -6, 1), ("us", -6, 1), ("ms", -3, 1), ("s", 0, 1)],
}


SUFFIXES = {"percent": ["%"], "count": [unit for unit, _ in LARGE]}
# A number without a unit. A million and more are meant in full: 7,000,000,000 instead of 6B.
BARE = re.compile(r"[+-]?(?:\d{1,3}[,_ ]\d{3}|\d{1,6}|(?=\.))(?:\.\d+)?", re.ASCII)
UNIT_ON_SHOW = re.compile(r"[+-]?\d[\d.,]* ?(\D+)", re.ASCII)


def parse_number(text, style=None, shown=""):
    """A number that a reader types, as int or float: 12,288, 175B, 300e9, 1.5T, 40%; with the units
    of a style 64 MiB, 3.4 µs, 450 GB/s. A bare number takes the unit of the text `shown` that it
    replaces: 90 instead of 80 ms is 90 ms. Other text comes back as text, for the registry to
    refuse with its own sentence."""
    typed = text = text.strip()
    on_show = UNIT_ON_SHOW.fullmatch(shown.strip())
    units = [unit for unit, *_ in UNITS.get(style, ())] + SUFFIXES.get(style, [])
    if on_show and on_show[1] in units and BARE.fullmatch(text):
        text += on_show[1]
    for unit, power, factor in [*UNITS.get(style, ()), ("", 0, 1)]:
        match = TYPED.fullmatch(text.removesuffix(unit).rstrip())
        if text.endswith(unit) and match and (match[2] or (match[3] or "").strip(".")):
            sign, whole, fraction, exponent, suffix = match.groups()
            shift = int(exponent or 0) + SHIFTS[suffix.lower()] + power
            digits = re.sub(r"[,_ ]", "", whole) or "0"
            # rounded once: 2.3T is 2,300,000,000,000
            value = float(f"{sign}{digits}{fraction or ''}e{shift}") * factor
            if math.isinf(value):
                return typed
            return int(value) if value.is_integer() else value
    return typed


def printable(text: str) -> str:
    """The text without signs that move the cursor, turn the line round or are not seen."""
    return "".join(each if each.isprintable() or each in JOINERS else "\ufffd" for each in text)


def round_up(value: float) -> float:
    """The smallest round number that is not below value."""
    scale = 10.0 ** math.floor(math.log10(value))
    steps = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12)
    return next(step * scale for step in steps if step * scale >= value)
