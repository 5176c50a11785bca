"""Still picture of the chapter on mixed precision: the range of each format on one axis, and the
recorded gradients of a small GPT beneath."""

from math import log2

from coursekit.formulas import evaluate, quantities
from coursekit.recordings.recordings import recording_of
from coursekit.show.drawing import PICTURE_WIDTH, Drawing
from coursekit.topics.mixed_precision.histogram import GRADIENT_ROW, WORDS_OF, recorded_sizes

DRAWN_FORMATS = ("fp32", "tf32", "bf16", "fp16", "fp8 e5m2", "fp8 e4m3")
DRAWN_GRADIENTS = "activations", 150  # of what, after how many steps
LEAST_DRAWN, MOST_DRAWN = -152, 132  # powers of two


def ranges():
    """Format -> log2 of its smallest subnormal, smallest normal and largest number; its significant
    bits, the one that is not stored among them; the powers of two between its ends."""
    names = ("smallest_subnormal", "smallest_normal", "largest_number", "range_binades")
    found = {}
    for name in DRAWN_FORMATS:
        given = quantities(number_format=name)
        *ends, doublings = evaluate(names, allow_unused=True, **given).values()
        found[name.removeprefix("fp8 ")] = (*map(log2, ends), given["fraction_bits"] + 1, doublings)
    return found


def recorded_gradients():
    """(the exponent of the smallest recorded gradients, counts from it on, the recording). Raises
    LookupError where there is none."""
    found, recording = recorded_sizes([recording_of(GRADIENT_ROW)])
    first, counts = found[DRAWN_GRADIENTS]
    return first, counts, recording


def draw_ranges():
    drawing = Drawing("ranges", "The range of six formats, and of recorded gradients")
    unit = PICTURE_WIDTH / (MOST_DRAWN - LEAST_DRAWN)
    x = lambda exponent: (exponent - LEAST_DRAWN) * unit
    first, counts, recording = recorded_gradients()
    last = first + len(counts)
    top, pitch = 32, 38
    floor = top + pitch * len(DRAWN_FORMATS) + 84
    drawing.box(x(first), top - 8, x(last) - x(first), floor - top + 8, "quiet")
    key = (("accent shade1", "all bits"), ("accent pale dashed", "subnormal: fewer bits"))
    drawing.legend(1, 3, key)
    heard = []
    for row, (name, (least, normal, most, bits, doublings)) in enumerate(ranges().items()):
        y = top + pitch * row
        drawing.text(2, y + 10, name, "bold")
        drawing.text(
            398, y + 10, f"{bits} significant bits, {doublings:.0f} doublings", "small end"
        )
        drawing.box(x(least), y + 15, x(normal) - x(least), 14, "accent pale dashed")
        drawing.box(x(normal), y + 15, x(most) - x(normal), 14, "accent shade1")
        heard.append(
            f"{name} from 2 to the {least:.0f}, with all {bits} bits from 2 to the {normal:.0f} on,"
            f" to 2 to the {most:.1f}".removesuffix(".0")
        )
    high = 46 / max(counts)
    bars = [
        (x(exponent), floor - count * high, unit, count * high)
        for exponent, count in enumerate(counts, first)
        if count * high >= 0.05
    ]
    drawing.boxes(bars, "gradients")
    half = x(ranges()["fp16"][1])  # from here on down fp16 has fewer bits
    drawing.path(f"M{half:.1f} {top + pitch * 3 + 29}V{floor}", "line dashed")
    label_y = floor - 62
    drawing.text(2, label_y, "recorded gradients", "bold")
    drawing.text(398, label_y, f"{len(counts)} doublings", "small end")
    drawing.path(f"M0 {floor}H{PICTURE_WIDTH}")
    for exponent in range(-150, 101, 50):
        drawing.path(f"M{x(exponent):.1f} {floor}v5")
        words = f"−{-exponent}" if exponent < 0 else exponent
        drawing.text(max(x(exponent), 14), floor + 18, words, "middle small")
    drawing.text(0, floor + 38, "log₂ of the size", "small")
    of, steps = DRAWN_GRADIENTS
    source = f"{WORDS_OF[of]}, small GPT, after {steps} steps"
    drawing.text(0, floor + 58, source, "small soft")
    drawing.text(0, floor + 75, recording.label, "small soft")
    words = (
        f"Bars on one axis of powers of two: {'; '.join(heard)}. Beneath, and as a band behind the"
        f" bars, {source}, {recording.label}: from 2 to the {first} to 2 to the {last}."
    )
    return drawing.svg(floor + 82, words)


PICTURES = {"ranges": draw_ranges}
