"""The ``{schedules}`` directive: pipeline schedules as small grids, drawn from the lists that ranks
run.

    ```{schedules} Four ways to run eight microbatches on four ranks
    :ranks: 4
    :microbatches: 8
    :transfer: 1/2

    GPipe
    interleaved 1F1B stages_per_rank=2
    GPipe microbatches=1
    ```

The argument is the title for readers who hear the figure; each line is a key of SCHEDULES and
settings that this grid alone has. A forward, and each half of a backward, takes a rank one unit; a
message takes ``:transfer:`` units. All grids have one time axis. Forwards before a rank's first
backward are filled. The figure is SVG, made while the book is built by
``shardlab.pipelines.simulation``.
"""

from fractions import Fraction
from html import escape
from typing import NamedTuple

from docutils import nodes
from docutils.parsers.rst import directives

from bookkit.cards import CardDirective
from coursekit.show.format import format_as
from shardlab.pipelines.schedules import Kind, schedule
from shardlab.pipelines.simulation import Costs, Timeline, in_flight, simulate

WIDTH, LEFT, RIGHT = 400, 16, 48  # units of the drawing: all, for ranks, for what is in flight
HEAD, ROW, GAP, KEY = 19, 15, 10, 34
ROOM_OF_A_DIGIT = 7.5
LOOKS = {  # classes of a box in book.css
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.INPUT: "backward",
    Kind.WEIGHT: "weights",
}
WORDS = {
    Kind.BACKWARD: "backward",
    Kind.INPUT: "backward of the input",
    Kind.WEIGHT: "of the weights",
}


class Grid(NamedTuple):
    """A schedule, simulated."""

    name: str
    ranks: int
    timeline: Timeline
    held: list[int]  # microbatches in flight on each rank

    @property
    def idle(self) -> Fraction:
        """Share of the step, of all ranks."""
        return Fraction(
            sum(self.timeline.idle_of_step), len(self.held) * Fraction(self.timeline.seconds)
        )

    @property
    def before(self) -> list[int]:
        """Forwards of each rank before its first backward."""
        return [
            next(
                (n for n, span in enumerate(own) if span.action.kind is not Kind.FORWARD), len(own)
            )
            for own in self.timeline.spans
        ]


def simulated(line: str, sizes: dict, transfer: Fraction | int = 0) -> Grid:
    """The grid of a line; `sizes` are ranks and microbatches, `transfer` the units that a message
    takes."""
    words = line.split()
    settings = {
        name: int(value) for name, _, value in (w.partition("=") for w in words if "=" in w)
    }
    name = " ".join(word for word in words if "=" not in word)
    given = {**sizes, **settings}
    stages = given.get("stages_per_rank", 2 if name == "interleaved 1F1B" else 1)
    plan = schedule(name, **given)
    costs = dict.fromkeys(("forward", "input", "weight"), Fraction(1, stages))
    timeline = simulate(plan, Costs(**costs, transfer=transfer))
    said = ", ".join(f"{key} = {value}" for key, value in settings.items())
    return Grid(f"{name}, {said}" if said else name, given["ranks"], timeline, in_flight(plan))


# --- the drawing ----------------------------------------------------------------------------------


def drawing(title: str, grids: list[Grid], ident: str) -> str:
    """The grids one under the other, as SVG."""
    longest = max(grid.timeline.seconds for grid in grids)
    unit = Fraction(WIDTH - LEFT - RIGHT) / longest
    parts, top = [_text(WIDTH, 13, "in flight", "end", size=11)], 0
    for grid in grids:
        parts.append(_grid(grid, top, unit))
        top += HEAD + ROW * grid.ranks + GAP
    parts.append(_key(grids, top + 4))
    height = top + KEY
    said = escape(" ".join(map(sentence, grids)))
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"
 width="{WIDTH}" role="img" aria-labelledby="{ident}-title {ident}-text" class="schedule-grids"
 font-family="inherit" fill="currentColor"><title id="{ident}-title">{escape(title)}</title>
<desc id="{ident}-text">{said}</desc>
{"".join(parts)}</svg>
"""


def sentence(grid: Grid) -> str:
    """A grid in words."""
    before, held = (", ".join(map(str, of)) for of in (grid.before, grid.held))
    return (
        f"{grid.name}: {_number(grid.timeline.seconds)} units, of which ranks are idle for"
        f" {_share(grid.idle)}; forwards before the first backward, by rank: {before};"
        f" microbatches in flight: {held}."
    )


def _grid(grid: Grid, top: int, unit: Fraction) -> str:
    end = float(LEFT + grid.timeline.seconds * unit)
    length = f"{_number(grid.timeline.seconds)} units, {_share(grid.idle)} idle"
    parts = [
        _text(LEFT, top + 13, grid.name, size=12, more=' font-weight="600"'),
        _text(WIDTH - RIGHT, top + 13, length, "end", size=11),
    ]
    tops = [top + HEAD + rank * ROW for rank in range(grid.ranks)]
    lines = "".join(f"M{LEFT} {y + 6.5}H{end:.1f}" for y in tops)
    parts.append(f'<path d="{lines}" class="idle"/>')
    boxes: dict[str, list[tuple]] = {}  # by their look
    bars, numbers, beside = [], [], []  # a bar on what is not the rank's first stage
    for rank, (own, y) in enumerate(zip(grid.timeline.spans, tops)):
        places: dict[bool, list] = {}
        for number, span in enumerate(own):
            first = number < grid.before[rank]
            x, wide = float(LEFT + span.begin * unit), float((span.end - span.begin) * unit)
            box = (span.begin, span.end - span.begin, y)
            boxes.setdefault(_look(span.action.kind, first), []).append(box)
            if span.action.stage >= grid.ranks:
                bars.append(f"M{x + 1:.1f} {y + 1}h{wide - 2:.1f}v2h-{wide - 2:.1f}z")
            if wide >= ROOM_OF_A_DIGIT and span.action.microbatch < 10:
                places.setdefault(first, []).append((x + wide / 2, span.action.microbatch))
        numbers += [_digits(found, y + 10.3, first) for first, found in places.items()]
        beside += [
            _digits([(LEFT - 5, rank)], y + 11),
            _digits([(WIDTH - 18, grid.held[rank])], y + 11),
        ]
    parts.append(f'<g transform="translate({LEFT} 0) scale({float(unit):.4f} 1)">')
    for look, found in boxes.items():
        parts.append(f'<path d="{_boxes(found)}" class="{look}"/>')
    parts.append("</g>")
    parts.append(f'<path d="{"".join(bars)}"/>' if bars else "")
    for size, anchor, texts in ((10.5, "middle", numbers), (11, "end", beside)):
        parts += [f'<g font-size="{size}" text-anchor="{anchor}">', *texts, "</g>"]
    return "".join(parts)


def _boxes(found: list[tuple]) -> str:
    """The outlines of boxes (begin, length, y), in units of time: short numbers, and no place is
    told twice."""
    parts, before, row = [], 0, None
    for begin, length, y in found:
        wide = f"{float(length):.4g}"
        start = f"m{float(begin - before):.4g} 0" if y == row else f"M{float(begin):.4g} {y}"
        parts.append(f"{start}h{wide}v{ROW - 2}h-{wide}z")
        before, row = begin, y
    return "".join(parts)


def _look(kind: Kind, first: bool) -> str:
    """The class of a box; `first` says that it is before the rank's first backward."""
    return "first" if first else LOOKS[kind]


def _digits(places: list[tuple[float, int]], y: float, first: bool = False) -> str:
    """Microbatches in their boxes: one text, in which each digit has its place."""
    xs = " ".join(f"{x:.0f}" for x, _ in places)
    fill = ' fill="#fff"' if first else ""
    words = "".join(str(number) for _, number in places)
    return f'<text x="{xs}" y="{y}"{fill}>{words}</text>'


def _key(grids: list[Grid], y: int) -> str:
    """The meanings of the fills that are there, on two lines."""
    kinds = {span.action.kind for grid in grids for own in grid.timeline.spans for span in own}
    forwards = [
        (Kind.FORWARD, True, "forward before the rank's first backward"),
        (Kind.FORWARD, False, "other forwards"),
    ]
    backwards = [(kind, False, words) for kind, words in WORDS.items() if kind in kinds]
    if {Kind.BACKWARD, Kind.INPUT} <= kinds:  # of one colour, told by their lengths
        backwards[:2] = [(Kind.INPUT, False, "backward, or its half for the input")]
    parts = []
    for row, entries in enumerate((forwards, backwards)):
        x = LEFT
        for kind, first, words in entries:
            top = y + 15 * row
            look = _look(kind, first)
            parts.append(f'<rect x="{x}" y="{top}" width="9" height="9" class="{look}"/>')
            parts.append(_text(x + 13, top + 8, words, size=11))
            x += round(26 + 5.6 * len(words))
    return "".join(parts)


def _text(x, y, words, anchor="start", size=12, more="") -> str:
    place = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x}" y="{y}" font-size="{size}"{place}{more}>{escape(str(words))}</text>'


def _number(value: Fraction) -> str:
    return format_as(float(value), "number")


def _share(value: Fraction) -> str:
    return format_as(float(value), "percent")


# --- in a page ------------------------------------------------------------------------------------


class SchedulesDirective(CardDirective):
    """The drawing alone; a `{container} figure` around it has the caption."""

    has_content = True
    option_spec = {
        "ranks": directives.positive_int,
        "microbatches": directives.positive_int,
        "transfer": Fraction,
    }

    def make(self):
        self.assert_has_content()
        sizes = {name: self.options.get(name, 4) for name in ("ranks", "microbatches")}
        transfer = self.options.get("transfer", 0)
        grids = [simulated(line, sizes, transfer) for line in self.content if line.strip()]
        ident = f"schedules-{self.env.new_serialno('schedules')}"
        made = drawing(" ".join(self.arguments[0].split()), grids, ident)
        return nodes.raw("", made, format="html")


def setup(app):
    app.add_directive("schedules", SchedulesDirective)
