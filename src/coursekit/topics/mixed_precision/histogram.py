"""The recorded gradients of a small GPT beside what a format can hold, as data: which share becomes
zero, which keeps fewer bits, which overflows, under a loss scale and a division by microbatches.

Counts are by powers of two, so a factor of 2^n moves them n places and every share is exact but for
one thing: what is beyond the largest number and below the next power of two counts as kept. The
page computes the same in JavaScript (``bookkit/static/gradients.js``).
"""

from collections.abc import Iterable
from typing import NamedTuple

from coursekit.recordings.recordings import Recording
from coursekit.topics.mixed_precision.explorer import written
from coursekit.topics.mixed_precision.formats import CARD_FORMATS, ShownFormat

GRADIENT_ROW = "mixed_precision.gradients"
WORDS_OF = {
    "activations": "gradients of activations",
    "qkv": "only those that enter attention",
    "parameters": "gradients of parameters",
}
HISTOGRAM_FORMATS = ("fp16", "bf16", "e4m3", "e5m2")
MOST_SCALE, MOST_MICROBATCHES = 40, 14  # exponents of two
START = dict(of="activations", steps=150, kind="fp16", microbatches=11, scale=0)
TABLE = ((0, 0), (6, 0), (11, 0), (11, 16), (11, 24), (11, 38))  # exponents of microbatches, scale


class Sizes(NamedTuple):
    """Counts of the gradients of a size from 2^first on and below its double, from there on and
    below the next double, ..."""

    first: int
    counts: tuple[int, ...]


class Shares(NamedTuple):
    """Shares of the gradients that are not zero."""

    lost: float
    fewer_bits: float
    overflow: float


def recorded_sizes(recordings: Iterable[Recording]) -> tuple[dict, Recording | None]:
    """((what, after how many steps) -> Sizes, the recording) of the first recording that has them;
    nothing where none has."""
    for recording in recordings:
        rows = recording.find(GRADIENT_ROW)
        if rows:
            found = {}
            for row in rows:
                counts = tuple(map(int, row.case["counts"].split()))
                found[row.case["of"], row.case["steps"]] = Sizes(row.case["first"], counts)
            return found, recording
    return {}, None


def shares(sizes: Sizes, kind: ShownFormat, exponent: int) -> Shares:
    """The shares of gradients that are lost, keep fewer bits or are too large if they are
    multiplied by 2^exponent and written in the format."""
    least = kind.smallest_exponent
    top = kind.greatest_exponent
    lost = fewer = overflow = 0
    for place, count in enumerate(sizes.counts, sizes.first + exponent):
        # from half of the smallest number on, the nearest number is the smallest one
        lost += count if place < least - 1 else 0
        fewer += count if least - 1 <= place < kind.least_exponent else 0
        overflow += count if place > top else 0
    total = sum(sizes.counts)
    return Shares(lost / total, fewer / total, overflow / total)


def largest_scale(sizes: Sizes, kind: ShownFormat, microbatches: int) -> int:
    """The exponent of the largest loss scale at which nothing overflows; microbatches is an
    exponent too."""
    last = sizes.first + len(sizes.counts) - 1
    return kind.greatest_exponent - last + microbatches


def percent(share: float) -> str:
    """Three digits; a share that is not whole is never rounded to 100%."""
    text = f"{written(share * 100, 3)}%" if share else "none"
    return "over 99.9%" if text == "100%" and share < 1 else text


def share_sentence(sizes: Sizes, kind: ShownFormat, microbatches: int, scale: int) -> str:
    """The picture in words."""
    lost, fewer, overflow = map(percent, shares(sizes, kind, scale - microbatches))
    return (
        f"Loss divided by {2**microbatches:,}, times a scale of {power(scale)}: in {kind.name},"
        f" {lost} of the gradients become{'s' if lost == 'none' else ''} 0, {fewer} keep"
        f"{'s' if fewer == 'none' else ''} fewer bits, {overflow}"
        f" overflow{'s' if overflow == 'none' else ''}."
    )


def share_detail(sizes: Sizes, kind: ShownFormat, microbatches: int) -> str:
    """A sentence on the best scale."""
    best = largest_scale(sizes, kind, microbatches)
    lost = percent(shares(sizes, kind, best - microbatches).lost)
    return (
        f"The largest scale at which nothing overflows is {power(best)}; {lost} become"
        f"{'s' if lost == 'none' else ''} 0 there."
    )


def power(exponent: int) -> str:
    return "1" if exponent == 0 else f"2^{exponent}"


def table_rows(sizes: Sizes) -> list[list[str]]:
    """The rows for fp16: microbatches, scale, what becomes zero, keeps fewer bits, overflows."""
    kind = CARD_FORMATS["fp16"]
    return [
        [
            f"{2**microbatches:,}",
            power(scale),
            *map(percent, shares(sizes, kind, scale - microbatches)),
        ]
        for microbatches, scale in TABLE
    ]


def histogram_data(found: dict) -> dict:
    """Data of the page's script."""
    return {
        "formats": [
            [kind.name, kind.exponent_bits, kind.fraction_bits, int(kind.infinities)]
            for kind in map(CARD_FORMATS.get, HISTOGRAM_FORMATS)
        ],
        "sizes": [[*what, sizes.first, list(sizes.counts)] for what, sizes in found.items()],
        "start": START,
    }
