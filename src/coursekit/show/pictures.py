"""The pictures of explorers, as data: which quantities are drawn how. They are drawn by
static/pictures.js, timeline.js, curves.js and streams.js."""

import re
from dataclasses import dataclass, field

from coursekit.formulas.events import holds, operation_count, quantities_of

from .format import format_as


@dataclass(frozen=True)
class Part:
    """One piece of a bar: its quantity, the label beside it, and its colour's name in
    palette.MEMORY."""

    quantity: str
    label: str
    colour: str


# Category of memory, as in palette.MEMORY -> its label.
MEMORY_LABELS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer states",
    "activations": "activations",
    "temporaries": "temporaries",
}


def memory_parts(**quantities):
    """A part for each category of memory, `category="its quantity"`, in the order given: what lasts
    longest comes first, from zero on or at the bottom of a column."""
    return tuple(
        Part(quantity, MEMORY_LABELS[category], category)
        for category, quantity in quantities.items()
    )


@dataclass(frozen=True)
class MemoryBar:
    """Bytes end to end from zero; on a GPU the card's capacity as a line, free room outlined, bytes
    beyond the capacity hatched. The axis is as long as the bar and the card need, and at least
    `least` bytes."""

    title: str
    parts: tuple
    total: str
    capacity: str = ""
    least: int = 0
    kind: str = field(default="memory", init=False)

    @property
    def quantities(self):
        card = (self.capacity,) if self.capacity else ()
        return (*(part.quantity for part in self.parts), self.total, *card)

    def room(self, values):
        """The card's free room, its missing room, and whether the card holds the bar: the names
        that an explorer's sentences may use."""
        left = values[self.capacity] - values[self.total]
        return dict(free_bytes=max(left, 0), missing_bytes=max(-left, 0), fits=int(left >= 0))


@dataclass(frozen=True)
class Column:
    """One point of a timeline: its name, its phase, all its bytes, its parts from the bottom up.
    It is there when all of `when` holds."""

    name: str
    phase: str
    total: str
    parts: tuple
    when: tuple = ()


@dataclass(frozen=True)
class TimelinePicture:
    """A column of bytes for each point of the step, from zero, time from left to right; the highest
    is marked, the card's capacity is a line."""

    title: str
    columns: tuple
    capacity: str
    kind: str = field(default="timeline", init=False)

    @property
    def quantities(self):
        names = []
        for column in self.columns:
            names += [column.total, *(part.quantity for part in column.parts)]
            names += [name for name, _ in column.when]
        return (*names, self.capacity)

    def shown(self, values):
        """The columns that are there."""
        return [
            column
            for column in self.columns
            if all(values[name] == value for name, value in column.when)
        ]


@dataclass(frozen=True)
class TimeAxis:
    """A logarithmic axis of time with one marker."""

    title: str
    quantity: str  # in seconds
    ticks: tuple = (
        ("hour", 3600),
        ("day", 86_400),
        ("month", 2_628_000),
        ("year", 31_536_000),
        ("century", 3_153_600_000),
        ("10,000 years", 315_360_000_000),
    )
    least: float = 60
    most: float = 3e12
    kind: str = field(default="time", init=False)

    @property
    def quantities(self):
        return (self.quantity,)


@dataclass(frozen=True)
class StreamsPicture:
    """A step as two streams on one axis of time, computing and the link unless `rows` names others;
    spans in which nothing computes are hatched, and named by `idle`. `step` are phases of
    formulas/events.py: the simulator plays them, nothing else is computed. `colours` are triples
    (event, words in the key, colour). The colour is a palette and a name in it, as pages write
    them: "timeline-weight-gradient". An event without a colour is not drawn. A step of more than
    `most` operations is not played: the picture says so, and the formulas still give its
    seconds."""

    title: str
    step: tuple
    colours: tuple
    most: int = 4000  # stops give up to 1,300; a bar of a fifth of a pixel is no picture
    rows: tuple = ("computing", "link")
    idle: str = "exposed"
    kind: str = field(default="streams", init=False)

    @property
    def quantities(self):
        return tuple(quantities_of(self.step))

    def too_many(self, values):
        """Why the step is not drawn, in words; "" where it is."""
        found = operation_count(self.step, values)
        if found <= self.most:
            return ""
        return (
            f"{format_as(found, 'count')} pieces: up to {format_as(self.most, 'count')} are drawn"
        )


@dataclass(frozen=True)
class Line:
    """One line of Curves: its quantity, the words at its end (with {quantity:style} where they hold
    a number), and what has to hold for it to be there: pairs (quantity, value), as in a Column.

    `given` are pairs, too: quantities that have these values for this line, whatever the reader's.
    """

    quantity: str
    label: str
    when: tuple = ()
    unless: tuple = ()
    given: tuple = ()

    @property
    def name(self):
        """Under which it is computed and measured: "zero_sent_bytes(zero_stage=1)"."""
        given = ", ".join(f"{name}={value}" for name, value in self.given)
        return f"{self.quantity}({given})" if given else self.quantity

    def shown(self, values):
        return holds(self, values)


@dataclass(frozen=True)
class CurveAxis:
    """Its title, and how its numbers are printed, without `unit` if the title names the unit.
    `scale` is "log", or "linear" from zero. Where there are no ticks, they are made for what is
    drawn."""

    words: str
    style: str
    unit: str = ""
    scale: str = "log"
    ticks: tuple = ()

    def text(self, value):
        """A tick's text."""
        return "0" if value == 0 else format_as(value, self.style).removesuffix(self.unit).rstrip()


@dataclass(frozen=True)
class Curves:
    """Quantities along a swept one, which takes the values of `stops`, while all others stay the
    reader's.

    `point` is the quantity that is marked where the reader is, with `words` beside it, above the
    lines or below. `marks` are pairs (quantity, words): places along x worth a line, and, with
    `corners`, at which the lines bend. `note` is a pair (place along x, words) under the first
    line.
    """

    title: str
    sweep: str
    stops: tuple  # ascending
    x: CurveAxis
    y: CurveAxis
    lines: tuple
    point: str
    words: str
    above: bool = True
    marks: tuple = ()
    corners: bool = False
    note: tuple = ()
    kind: str = field(default="curves", init=False)

    @property
    def quantities(self):
        words = [self.words, *(line.label for line in self.lines), *self.note[1:]]
        words += [words for _, words in self.marks]
        pairs = [pair for line in self.lines for pair in (*line.when, *line.unless)]
        names = [self.sweep, *(line.quantity for line in self.lines), self.point]
        names += [name for name, _ in (*self.marks, *pairs)]
        names += [name for text in words for name in re.findall(r"\{(\w+)", text)]
        return tuple(dict.fromkeys(names))

    def shown(self, values):
        """Pairs (place in `lines`, line) of the lines that are there."""
        return [(place, line) for place, line in enumerate(self.lines) if line.shown(values)]


def measurable(picture):
    """The quantities of a picture beside which a measured value can be drawn. Of a step that ran
    there are figures: trace_figure and a topic's figures.py draw what was measured."""
    if picture.kind == "curves":
        return [line.name for line in picture.lines]
    if picture.kind == "memory":
        return [part.quantity for part in picture.parts]
    return [picture.quantity] if picture.kind == "time" else []
