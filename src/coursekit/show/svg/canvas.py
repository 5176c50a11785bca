"""A picture as SVG: text that stands in an `ipywidgets.HTML`, so that JupyterLab, VS Code, Colab
and a stored notebook show the same.

Words and axes take the colour of the text around the picture, and fills and their lines are the
palette's, which stand on light and on dark. Attributes say all of that: no style sheet, no script,
no id, so that two pictures in a notebook never meet. Lengths are pixels; the width of words is
estimated as on the pages (static/svg.js).
"""

import math
from dataclasses import dataclass, field, replace
from html import escape

from coursekit.show.palette import MEMORY, TIMELINE, Swatch

SVG_WIDTH = 620
FULL, SOFT, AXIS, FAINT = "1", "0.75", "0.6", "0.18"  # opacity of the text's colour
WARN = "#c75800"  # read on light and dark pages
PALETTES = dict(memory=MEMORY, timeline=TIMELINE)
LETTER, WORDS_ROW, KEY_ROW = 7.0, 16, 18
WIDEST_LETTER = 8.3  # of system-ui, where that is DejaVu Sans, in the largest of these sizes
# A seam around words that lie on lines, in the colour of the page as far as the text's colour says
# it: white around dark words, black around light ones. Browsers that cannot compute it draw none.
SEAM = (
    "paint-order:stroke;stroke-width:3px;stroke-linejoin:round;"
    "stroke:oklch(from currentColor calc((0.6 - l) * 1000) 0 0)"
)

WORD_KINDS = {
    "": 'font-size="13"',  # beside a bar
    "name": 'font-size="12"',
    "tick": f'font-size="12" fill-opacity="{SOFT}"',
    "strong": 'font-size="14" font-weight="600"',
    "warn": f'font-size="14" font-weight="600" fill="{WARN}"',
    "digit": 'font-size="11" style="stroke:none"',  # on a pale fill
    "white": 'font-size="11" style="stroke:none" fill="#fff"',  # on a full one
}


def clamp(value: float, least: float, most: float) -> float:
    return max(least, min(most, value))


def swatch_of(colour: str) -> Swatch:
    """The swatch of a palette's colour, written as on the pages: "timeline-weight-gradient"."""
    palette, _, name = colour.partition("-")
    return PALETTES[palette][name.replace("-", "_")]


def pale(swatch: Swatch, alpha: str = "5c") -> Swatch:
    """The swatch with a fill that lets the page through."""
    return replace(swatch, light=swatch.light + alpha)


def one(value: float) -> str:
    """A length with one digit after the point, and without a point where the digit is 0."""
    return f"{value:.1f}".removesuffix(".0")


@dataclass
class Canvas:
    """A picture in the making: shapes, and the words that are drawn over all of them."""

    title: str
    height: float
    width: float = SVG_WIDTH
    shapes: list = field(default_factory=list)
    words: list = field(default_factory=list)

    # --- shapes -----------------------------------------------------------------------------------

    def path(self, d, line="currentColor", width=1.0, opacity=FULL, fill="none", dash="", more=""):
        """Any path; `more` are further attributes."""
        if d:
            dashes = f' stroke-dasharray="{dash}"' if dash else ""
            self.shapes.append(
                f'<path d="{d}" fill="{fill}" stroke="{line}" stroke-width="{width}"'
                f' stroke-opacity="{opacity}"{dashes}{" " * bool(more)}{more}/>'
            )

    def box(self, x, y, width, height, swatch, name="", filled=True, line_width=1.5):
        """A part of a bar; `name` is what a pointer reads, and a test."""
        said = f"<title>{escape(name)}</title>" if name else ""
        self.shapes.append(
            f'<rect x="{one(x)}" y="{one(y)}" width="{max(width, 0):.3f}" height="{one(height)}"'
            f' fill="{swatch.light if filled else "none"}" stroke="{swatch.line}"'
            f' stroke-width="{line_width}">{said}</rect>'
        )

    def hatch(self, x, y, width, height, apart=7):
        """Slanted lines over a box, and a frame around it: too much, or exposed."""
        drawn = ""
        if width > 0:
            for k in range(1, int((width + height) // apart) + 1):
                low, high = (
                    (max(0, apart * k - height), min(apart * k, height)),
                    (min(apart * k, width), apart * k - min(apart * k, width)),
                )
                drawn += (
                    f"M{one(x + low[0])} {one(y + low[1])}L{one(x + high[0])} {one(y + high[1])}"
                )
            drawn += f"M{one(x)} {one(y)}h{one(width)}v{one(height)}h{one(-width)}z"
        self.path(drawn, WARN, 1.5)

    def triangle(self, x, y, side):
        """A mark beyond the right (1) or the left (-1) end of an axis."""
        drawn, look = f"M{one(x + 8 * side)} {one(y)}l{-14 * side} -7v14z", TIMELINE["forward"]
        self.path(drawn, fill=look.light, line=look.line)

    def disc(self, x, y, radius, filled=True, name=""):
        colour = TIMELINE["forward"].line
        said = f"<title>{escape(name)}</title>" if name else ""
        self.shapes.append(
            f'<circle cx="{one(x)}" cy="{one(y)}" r="{radius}" stroke="{colour}" stroke-width="2"'
            f' fill="{colour if filled else "none"}">{said}</circle>'
        )

    # --- words ------------------------------------------------------------------------------------

    def text(self, words, x, y, anchor="start", kind=""):
        """Words of a `kind`, a key of WORD_KINDS."""
        if words != "":
            self.words.append(
                f'<text x="{one(x)}" y="{one(y)}" text-anchor="{anchor}" {WORD_KINDS[kind]}>'
                f"{escape(str(words))}</text>"
            )

    def label(self, words, x, y, anchor="start", kind="", width=None):
        """Words at x, moved so that they stay between 0 and `width`; returns whether they moved
        to the left. Where they come near the right edge in the widest font, they end there in any
        font."""
        wide, widest = len(words) * LETTER, len(words) * WIDEST_LETTER
        left = dict(start=0, middle=wide / 2, end=wide)[anchor]
        width = self.width if width is None else width
        at = clamp(x, left, max(left, width - wide + left))
        if anchor != "end" and at + dict(start=widest, middle=widest / 2)[anchor] > width:
            self.text(words, width, y, "end", kind)
        else:
            self.text(words, at, y, anchor, kind)
        return at < x

    def key(self, entries, left, y):
        """Rows of colours and what they stand for, pairs (words, swatch), or None for hatched."""
        at, row = left, 0
        for words, swatch in entries:
            wide = 24 + 6.9 * len(words)
            if at + wide > self.width and at > left:
                at, row = left, row + 1
            if swatch is None:
                self.hatch(at, y + row * KEY_ROW, 11, 11, apart=5)
            else:
                self.box(at, y + row * KEY_ROW, 11, 11, swatch)
            self.text(words, at + 16, y + 10 + row * KEY_ROW, kind="name")
            at += wide

    # --- all of it --------------------------------------------------------------------------------

    def svg(self, description: str) -> str:
        """The picture; `description` says in words what it shows."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{one(self.width)}"'
            f' height="{one(self.height)}" viewBox="0 0 {one(self.width)} {one(self.height)}"'
            ' style="max-width:100%;height:auto;display:block;overflow:visible;'
            'font-family:system-ui,sans-serif;font-variant-numeric:tabular-nums">'
            f"<title>{escape(self.title)}</title><desc>{escape(description)}</desc>"
            f'{"".join(self.shapes)}<g fill="currentColor" style="{SEAM}">{"".join(self.words)}</g>'
            "</svg>"
        )


def round_up(value: float) -> float:
    """The smallest round number that is not below value."""
    scale = 10.0 ** math.floor(math.log10(value))
    return next(
        step * scale
        for step in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12)
        if step * scale >= value
    )
