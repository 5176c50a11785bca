"""Data of the chapter's cards: a number's bits in six formats (``bookkit/bits.py``).

The page computes the same in JavaScript (``bookkit/static/bits.js``); tests compare the two.
"""

import math
from decimal import ROUND_HALF_UP, Decimal
from typing import NamedTuple

from coursekit.show.pictures import CurveAxis, Curves, Line
from coursekit.show.spec import Control, Explorer, ExplorerTable, Menu, Say
from coursekit.show.stops import powers_of_two
from coursekit.topics.mixed_precision.formats import CARD_FORMATS, ShownFormat

LARGEST_GRADIENTS = tuple(10.0**power for power in range(-8, 3))

# A number and what is added to it, with the words of the menu; the first is shown at the start.
EXAMPLES = (
    ("0.1: no format has it", 0.1, 0.0001),
    ("a norm's weight and a step of AdamW", 1.0, -0.001),
    ("a small gradient", 2e-8, 1e-8),
    ("a large activation", 70_000.0, 1.0),
    ("two gradients, summed before they are divided", 40_000.0, 40_000.0),
    ("the last whole number that fp32 counts to", 16_777_216.0, 1.0),
)


def written(value: float, digits: int = 9) -> str:
    """The number with at most that many significant digits, halves up, no zeros at the end:
    0.0999755859, 5.96e-8, 65504, infinity, NaN."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "-infinity" if value < 0 else "infinity"
    if value == 0:
        return "-0" if math.copysign(1.0, value) < 0 else "0"
    exact = abs(Decimal(value))
    step = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    rounded = exact.quantize(step, rounding=ROUND_HALF_UP)
    sign, power = "-" if value < 0 else "", rounded.adjusted()
    if -4 <= power < 9:
        text = f"{rounded:f}"
        return sign + (text.rstrip("0").rstrip(".") if "." in text else text)
    significand = f"{rounded.scaleb(-power):f}".rstrip("0").rstrip(".")
    return f"{sign}{significand}e{power}"


class FormatWords(NamedTuple):
    """One format's words for a number."""

    bits: str  # "0 01011 1001100110": sign, exponent, fraction
    value: str
    significand: str  # the value is this times 2 to the power; "" for zero, infinity and NaN
    power: int
    error: str
    neighbours: str
    sum: str  # what becomes of it when the step is added
    moves: bool  # whether that is another number


def format_words(kind: ShownFormat, pattern: int, given: float, step: float) -> FormatWords:
    """The words for a pattern of a format, which stands for the given number; `step` is added."""
    value, text = kind.decode(pattern), f"{pattern:0{kind.bits}b}"
    bits = f"{text[0]} {text[1 : 1 + kind.exponent_bits]} {text[1 + kind.exponent_bits :]}"
    significand, power = "", 0
    if math.isfinite(value) and value:
        power = max(math.frexp(value)[1] - 1, kind.least_exponent)
        significand = written(math.ldexp(value, -power))
    total = kind.nearest(value + kind.nearest(step))
    return FormatWords(
        bits,
        written(value),
        significand,
        power,
        error(value, given),
        around(kind, pattern),
        after(kind, value, step, total),
        bool(math.isfinite(value) and total != value),
    )


def error(value: float, given: float) -> str:
    """How far a format's number is from the one that was given."""
    if value == given or (math.isnan(value) and math.isnan(given)):
        return "exact"
    if not math.isfinite(given) or not math.isfinite(value):
        return "too large for it"
    if value == 0:
        return "lost: it becomes 0"
    return f"off by {written(abs(value - given) / abs(given) * 100, 3)}%"


def around(kind: ShownFormat, pattern: int) -> str:
    """The neighbours, in words."""
    value, (below, above) = kind.decode(pattern), kind.neighbours(pattern)
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return f"beyond the largest number, {written(kind.largest_number)}"
    if math.isinf(above):
        return f"the largest number; below it {written(below)}"
    if math.isinf(below):
        return f"the lowest number; above it {written(above)}"
    return f"next numbers {written(below)} and {written(above)}"


def after(kind: ShownFormat, value: float, step: float, total: float) -> str:
    """The value in this format after the step is added to it."""
    plus = f"plus {written(step)} it "
    if not math.isfinite(value):
        return f"{plus}stays {written(value)}"
    if total != value:
        return f"{plus}becomes {written(total)}"
    if kind.nearest(step) == 0 and step != 0:
        return f"{plus}stays: {written(step)} is 0 in this format"
    return f"{plus}stays" if step == 0 else f"{plus}stays: less than half a spacing"


def words_of_all(value: float, step: float) -> dict[str, FormatWords]:
    """The words of each format for a number and what is added to it."""
    return {
        name: format_words(kind, kind.encode(value), value, step)
        for name, kind in CARD_FORMATS.items()
    }


def sentence(value: float, step: float) -> str:
    """The card in words."""
    shown = words_of_all(value, step)
    return (
        f"{written(value)} is {shown['fp16'].value} in fp16 and {shown['bf16'].value} in bf16."
        f" {moved(shown, step)}"
    )


def moved(shown: dict[str, FormatWords], step: float) -> str:
    """Which formats notice that the step was added."""
    names = [name for name, words in shown.items() if words.moves]
    who = (
        f"only {' and '.join(', '.join(names).rsplit(', ', 1))} notice"
        if names
        else "no format notices"
    )
    if len(names) == 1:
        who += "s"
    if len(names) == len(shown):
        who = "all six formats notice"
    return f"Add {written(step)}: {who}."


def bits_data() -> dict:
    """Data of the page's script: every format and example; the words are its own."""
    return {
        "formats": [
            [kind.name, kind.exponent_bits, kind.fraction_bits, int(kind.infinities)]
            for kind in CARD_FORMATS.values()
        ],
        "examples": [[value, step] for _, value, step in EXAMPLES],
    }


# --- the explorer of labs: which gradients a loss scale saves -------------------------------------

LOSS_SCALE = Explorer(
    name="loss-scale",
    title="How small may a gradient be, and how large?",
    menus=(Menu("number_format", "Format"),),
    controls=(
        Control("exponent_bits", "exponent bits", tuple(range(2, 10))),
        Control("fraction_bits", "fraction bits", tuple(range(1, 24))),
        Control("accumulation_steps", "microbatches in a step k", powers_of_two(1, 4096)),
        Control("loss_scale", "loss scale", powers_of_two(1, 2**32)),
        Control("largest_gradient", "largest gradient", LARGEST_GRADIENTS, "number"),
    ),
    begin=dict(number_format="fp16", accumulation_steps=2048, loss_scale=1, largest_gradient=1e-2),
    pictures=(
        Curves(
            title="The largest gradient of a microbatch that becomes zero, by the loss scale",
            sweep="loss_scale",
            stops=powers_of_two(1, 2**32),
            x=CurveAxis("loss scale, logarithmic", "count", ticks=(1, 2**10, 2**20, 2**30)),
            y=CurveAxis("gradient, logarithmic", "number"),
            lines=(Line("lost_gradient", "becomes zero below"),),
            point="lost_gradient",
            words="{lost_gradient:number}",
            marks=(("largest_loss_scale", "overflow at {largest_loss_scale:number}"),),
        ),
    ),
    sentence=(
        Say(
            "With the loss divided by {accumulation_steps:exact} and multiplied by"
            " {loss_scale:exact}, gradients of at most {lost_gradient:number} become zero. "
        ),
        Say(
            "If the largest gradient is {largest_gradient:number} before it is scaled, the loss"
            " scale must stay below {largest_loss_scale:number}."
        ),
    ),
    detail=(
        Say(
            "A number has {number_bits:exact} bits and a size from {smallest_subnormal:number} to"
            " {largest_number:number}: {range_binades:exact} doublings."
        ),
    ),
    table=ExplorerTable(
        "Loss divided by 2,048, without a scale",
        "number_format",
        (
            ("largest number", "largest_number", "number"),
            ("smallest", "smallest_subnormal", "number"),
            ("gradients lost up to", "lost_gradient", "number"),
            ("doublings", "range_binades", "exact"),
        ),
    ),
    adds=(("lost_gradient", "becomes zero below"),),
    outputs=("lost_gradient", "largest_loss_scale"),
)
