"""Still pictures as SVG, drawn from data and formulas: what a topic's `pictures.py` draws and the
directive {picture} puts on a page.

    drawing = Drawing("stages", "What a rank keeps")
    drawing.box(0, 20, 120, 24, "parameters")
    drawing.text(60, 36, "10 GB", "middle white")
    drawing.svg(60, "A bar of 10 GB of parameters.")

Lengths are units of the drawing, which is WIDTH wide. Looks are words, and classes: a name of
palette.MEMORY or palette.TIMELINE fills and outlines, static/drawing.css has the others: `line`
does not fill, `small` and `bold` set a text. bookkit/pictures.py writes the style sheet of both. So
one drawing follows the light and the dark page.
"""

import re
from html import escape
from math import hypot
from pathlib import Path

from .palette import MEMORY, TIMELINE

PICTURE_WIDTH = 400
LETTER_UNITS = 14
COLOUR_WORDS = tuple(name.replace("_", "-") for name in (*MEMORY, *TIMELINE))
_SHEET = Path(__file__).with_name("static") / "drawing.css"
LOOKS = dict(re.findall(r"(?m)^\.(\w+) {(.*)}", _SHEET.read_text("utf-8")))  # with declarations


class Drawing:
    """Marks, in the order in which they are drawn. `name` is the picture's, one on a page."""

    def __init__(self, name: str, title: str):
        self.name, self.title, self.marks = name, title, []

    def box(self, x, y, wide, high, looks, corner=0):
        place = f'x="{_short(x)}" y="{_short(y)}" width="{_short(wide)}" height="{_short(high)}"'
        round_ = f' rx="{corner}"' * bool(corner)
        self.marks.append(f"<rect {place}{round_}{_looks(looks)}/>")

    def boxes(self, places, looks):
        """Several as one path: x, y, width and height of each."""
        steps = "".join(
            f"M{_short(x)} {_short(y)}h{_short(wide)}v{_short(high)}h{_short(-wide)}z"
            for x, y, wide, high in places
        )
        self.path(steps, looks)

    def dots(self, centres, radius, looks):
        """Several as one path: x and y of each."""
        arc = f"a{radius} {radius} 0 1 0"
        circle = f"{arc} {2 * radius} 0{arc} {-2 * radius} 0z"
        self.path("".join(f"M{_short(x - radius)} {_short(y)}{circle}" for x, y in centres), looks)

    def path(self, steps, looks="line", width=None):
        """`steps` as SVG writes them."""
        wide = f' stroke-width="{_short(width)}"' if width else ""
        self.marks.append(f'<path d="{steps}"{wide}{_looks(looks)}/>')

    def arrow(self, x, y, to_x, to_y, looks="line"):
        """A straight line with a head at its end."""
        length = hypot(to_x - x, to_y - y)
        across, down = (to_x - x) / length, (to_y - y) / length
        back_x, back_y = to_x - 7 * across, to_y - 7 * down
        corners = (
            (back_x - 4 * down, back_y + 4 * across),
            (back_x + 4 * down, back_y - 4 * across),
        )
        points = "L".join(f"{_short(a)} {_short(b)}" for a, b in ((to_x, to_y), *corners))
        head = " ".join(word for word in looks.split() if word in COLOUR_WORDS)
        shaft = f"M{_short(x)} {_short(y)}L{_short(back_x)} {_short(back_y)}"
        self.path(shaft, looks if "line" in looks.split() else f"line {looks}")
        self.path(f"M{points}z", head)

    def text(self, x, y, words, looks=""):
        """`y` is the line on which the letters stand."""
        place = f'x="{_short(x)}" y="{_short(y)}"'
        self.marks.append(f"<text {place}{_looks(looks)}>{escape(str(words))}</text>")

    def signs(self, places, y, looks=""):
        """Signs of one letter in a row, as one text: pairs of x and the sign."""
        xs = " ".join(_short(x) for x, _ in places)
        words = escape("".join(str(sign) for _, sign in places))
        self.marks.append(f'<text x="{xs}" y="{_short(y)}"{_looks(looks)}>{words}</text>')

    def legend(self, x, y, labels, column=0, most=9, letter=7):
        """Pairs of a look and its label, `most` in a line, each a `column` from the one before, or
        as far as its letters need."""
        for number, (look, label) in enumerate(labels):
            line, at = divmod(number, most)
            left = x + at * column if column else x
            self.box(left, y + 18 * line, 11, 11, look)
            self.text(left + 15, y + 10 + 18 * line, label, "small")
            x += 0 if column else 32 + letter * len(label)

    def bar(self, x, y, high, parts) -> float:
        """Pairs of a look and a width, one after the other; the end of the bar."""
        for look, wide in parts:
            self.box(x, y, wide, high, look)
            x += wide
        return x

    def svg(self, height, words) -> str:
        """The picture; `words` say all that it shows, to readers who hear it."""
        name, wide = self.name, PICTURE_WIDTH
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {_short(height)}"'
            f' width="{wide}" role="img" aria-labelledby="{name}-title {name}-text">'
            f'<title id="{name}-title">{escape(self.title)}</title>'
            f'<desc id="{name}-text">{escape(words)}</desc>{"".join(self.marks)}</svg>\n'
        )


def _looks(words):
    unknown = set(words.split()) - {*COLOUR_WORDS, *LOOKS}
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))}: a look is one of LOOKS or of a palette.")
    return f' class="{words}"' if words else ""


def _short(number):
    return f"{number:.1f}".removesuffix(".0")
