"""The pictures of explorers, as data: which quantities are drawn how, by which script of static/,
and which room a card keeps for the picture before its script comes. A topic may have one more
beside its explorer."""

import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from coursekit.formulas.events import holds, operation_count, quantities_of, step_as_lists

from .format import format_as
from .palette import LINES


class Picture:
    """A picture under its title: the entry `kind` of BOOK.pictures, in the script `script`. Its
    `quantities` are what it needs; beside those that are `measurable` a measured value is drawn. Of
    a step that ran there are figures: trace_figure and a topic's figures.py draw what was measured.

    `room` is what the script will take: pixels above the key, left of it and between its entries,
    and the widths of its entries; tests/browser/test_web_pages.py compares both.
    """

    measurable = ()
    # Sentences may say these of a picture though no formula computes them: name -> style.
    says = MappingProxyType({})
    styles = {}  # those of all kinds

    def __init_subclass__(cls):
        Picture.styles.update(cls.says)

    def derived(self, computed):
        """Values that the picture finds by playing: names in `says`."""
        return {}

    def data(self, spec, measured):
        """The picture of an explorer as its script reads it; a text in braces is a quantity."""
        own = {name: value for name, value in vars(self).items() if name != "title"}
        beside = {name: measured[name] for name in self.measurable if name in measured}
        return own | ({"measured": beside} if beside else {})


class Part(NamedTuple):
    """One piece of a bar: its quantity, the label beside it, and its colour's name in
    palette.MEMORY."""

    quantity: str
    label: str
    colour: str


def memory_parts(**quantities):
    """A part for each category of memory, `category="its quantity"`, in the order given: what lasts
    longest comes first, from zero on or at the bottom of a column."""
    labels = {"optimizer": "optimizer states"}
    return tuple(
        Part(quantity, labels.get(category, category), category)
        for category, quantity in quantities.items()
    )


RANK_PEAK_PARTS = memory_parts(
    parameters="rank_parameter_bytes",
    optimizer="optimizer_at_rank_peak_bytes",
    gradients="gradients_at_rank_peak_bytes",
    activations="activations_at_rank_peak_bytes",
    gathered="gathered_at_rank_peak_bytes",
    temporaries="temporaries_at_rank_peak_bytes",
)


@dataclass(frozen=True)
class MemoryBar(Picture):
    """Bytes end to end from zero; on a GPU the card's capacity as a line, free room outlined, bytes
    beyond the capacity hatched. The axis is as long as the bar and the card need, and at least
    `least` bytes."""

    title: str
    parts: tuple
    total: str
    capacity: str = ""
    least: int = 0
    kind, script = "memory", "pictures.js"
    says = dict(free_bytes="decimal bytes", missing_bytes="decimal bytes", fits="exact")

    @property
    def measurable(self):
        return [part.quantity for part in self.parts]

    @property
    def quantities(self):
        card = (self.capacity,) if self.capacity else ()
        return (*self.measurable, self.total, *card)

    @property
    def room(self):
        return 17 * len(self.parts) + (99 if self.capacity else 72), 0, 0, ()

    def of_card(self, values):
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
    unless = ()


@dataclass(frozen=True)
class TimelinePicture(Picture):
    """A column of bytes for each point of the step, from zero, time from left to right; the highest
    is marked, the card's capacity is a line."""

    title: str
    columns: tuple
    capacity: str
    kind, script = "timeline", "timeline.js"

    @property
    def quantities(self):
        names = []
        for column in self.columns:
            names += [column.total, *(part.quantity for part in column.parts)]
            names += [name for name, _ in column.when]
        return (*names, self.capacity)

    def shown(self, values):
        """The columns that are there."""
        return [column for column in self.columns if holds(column, values)]

    @property
    def room(self):
        columns = sorted(self.columns, key=lambda column: -len(column.parts))
        words = {}
        for part in (part for column in columns for part in column.parts):
            words.setdefault(part.colour, part.label)
        return 232, 0, 10, [18 + 5.9 * len(text) for text in words.values()]

    def data(self, spec, measured):
        parts = [part for column in self.columns for part in column.parts]
        kinds = list(dict.fromkeys((part.label, part.colour) for part in parts))

        def placed(column):
            places = [[part.quantity, kinds.index(part[1:])] for part in column.parts]
            return vars(column) | {"parts": places}

        return dict(capacity=self.capacity, kinds=kinds, columns=list(map(placed, self.columns)))


@dataclass(frozen=True)
class StreamsPicture(Picture):
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
    kind, script = "streams", "streams.js"

    @property
    def quantities(self):
        return tuple(quantities_of(self.step))

    @property
    def room(self):
        words = {name: words for name, words, _ in self.colours}
        return 148, 62, 0, [22 + 6.4 * len(text) for text in (*words.values(), self.idle)]

    def data(self, spec, measured):
        return super().data(spec, measured) | {"step": step_as_lists(self.step)}

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

    def drawn(self, stroke, measured):
        """The line as curves.js reads it, in the look of a palette's stroke."""
        return dict(
            quantity=self.quantity,
            **({"given": dict(self.given)} if self.given else {}),
            label=self.label,
            when=self.when,
            unless=self.unless,
            colour=stroke.colour,
            dash=" ".join(map(str, stroke.dash)) or "none",
            mark=stroke.mark,
            **({"measured": measured[self.name]} if self.name in measured else {}),
        )


@dataclass(frozen=True)
class CurveAxis:
    """Its title, and how its numbers are printed, without `unit` if the title names the unit.
    Without `log` it is linear from zero. Where there are no ticks, they are made for what is
    drawn."""

    words: str
    style: str
    unit: str = ""
    log: bool = True
    ticks: tuple = ()

    def text(self, value):
        """A tick's text."""
        return "0" if value == 0 else format_as(value, self.style).removesuffix(self.unit).rstrip()


@dataclass(frozen=True)
class Curves(Picture):
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
    kind, script = "curves", "curves.js"

    @property
    def measurable(self):
        return [line.name for line in self.lines]

    @property
    def room(self):
        return 16 * len(self.marks) + 218, 0, 0, ()

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
        return [(place, line) for place, line in enumerate(self.lines) if holds(line, values)]

    def model(self, spec):
        """The name under which the page has the function that the lines are drawn from."""
        return f"{spec.name}/{spec.pictures.index(self)}"

    def data(self, spec, measured):
        return super().data(spec, {}) | dict(
            model=self.model(spec),
            inputs=self.moving(spec),
            note=self.note or None,
            x=vars(self.x),
            y=vars(self.y),
            lines=[line.drawn(*of, measured) for line, *of in zip(self.lines, LINES)],
        )

    def moving(self, spec):
        """The inputs that move the lines: not the swept one, nor one that each line is given."""
        always = set.intersection(*(set(dict(line.given)) for line in self.lines))
        return [name for name in spec.sweep(self)[1] if name not in {self.sweep, *always}]
