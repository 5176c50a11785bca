"""The picture of quantities along a swept one as SVG (Curves), as static/curves.js draws it on the
pages; measured points are filled marks beside the lines."""

import math

from coursekit.show.palette import LINES
from coursekit.show.spec import fill_in

from .canvas import AXIS, FAINT, LETTER, SOFT, SVG_WIDTH, WORDS_ROW, Canvas, one, round_up

TICK_LETTER, CURVES_TALL, PAD, CIRCLE = 6.5, 196, 30, 6.5
STROKE_MARKS = {
    "square": "m-4 -4h8v8h-8z",
    "diamond": "m0 -5.5l5 5.5l-5 5.5l-5 -5.5z",
    "triangle-up": "m0 -5.5l5 9h-10z",
}


def ring(radius):
    """A circle around the pen, as a path."""
    arc = f"a{radius} {radius} 0 1 0 "
    return f"m{-radius} 0{arc}{2 * radius} 0{arc}{-2 * radius} 0"


class Scale:
    """Values to pixels along an axis that is logarithmic, or linear from zero."""

    def __init__(self, span, log, start, end):
        self.span, self.log, self.start, self.end = span, log, start, end

    def __call__(self, value):
        least, most = self.span
        share = (value - least) / (most - least)
        if self.log:
            share = math.log(value / least) / math.log(most / least)
        return self.start + (self.end - self.start) * share

    def holds(self, value):
        return self.span[0] <= value <= self.span[1]

    def ticks(self):
        """Powers of ten, or 1, 2 and 5 of them where there are few; from zero on, round steps."""
        least, most = self.span
        if not self.log:
            step = round_up(most / 6)
            return [float(f"{k * step:.9g}") for k in range(int(most / step * 1.0001) + 1)]
        first, last = math.ceil(math.log10(least) - 1e-9), math.floor(math.log10(most) + 1e-9)
        if last - first >= 2:
            return [10.0**k for k in range(first, last + 1, math.ceil((last - first) / 7))]
        few = [d * 10.0**power for power in range(first - 1, last + 1) for d in (1, 2, 5)]
        return [tick for tick in few if 0.999 * least <= tick <= 1.001 * most]


def range_of(y, sizes, above):
    """[least, most] of an axis: half powers of ten around all sizes, with room for the point's
    words; or from zero."""
    sizes, pad = [size for size in sizes if size > 0], PAD / CURVES_TALL
    if not sizes:
        return [1, 10] if y.scale == "log" else [0, 1]
    if y.scale != "log":
        return [0, round_up(max(sizes) * (1 + (pad if above else 0.03)))]
    low, high = math.log10(min(sizes)), math.log10(max(sizes))
    room = max(high - low, 1) * pad
    low, high = (low - room / 5, high + room) if above else (low - room, high + room / 5)
    return [10 ** (math.floor(2 * low) / 2), 10 ** (math.ceil(2 * high) / 2)]


def curves_svg(curves, values, measured, spec, measured_at=""):
    """`measured`: a line's name -> pairs (value of the swept quantity, measured value). Raises
    ValueError for a measured point that a logarithmic axis cannot show."""
    measured = {line.name: measured.get(line.name, ()) for line in curves.lines}
    _refuse_below_zero(curves, measured)
    compared = any(measured.values())
    swept, shown = list(spec.swept(curves, values)), curves.shown(values)
    top = WORDS_ROW * (len(curves.marks) + 1) + 6 + WORDS_ROW * compared
    under = top + CURVES_TALL
    canvas = Canvas(curves.title, under + 42)
    log_x, log_y = curves.x.scale == "log", curves.y.scale == "log"

    points = [pair for pairs in measured.values() for pair in pairs]
    sizes = [found[line.name] for _, found in swept for _, line in shown]
    sizes += [size for _, size in points]
    if not any(size > 0 for size in sizes):  # the formulas refuse every place
        sizes = [values[curves.point]]
    y_span = range_of(curves.y, sizes, curves.above)
    stops = [*curves.stops, *(place for place, _ in points if place > 0 or not log_x)]
    x_span = [min(stops) if log_x else 0, max(stops)]
    y = Scale(y_span, log_y, under, top)
    rows = y.ticks()
    names = [curves.y.text(tick) for tick in rows]
    labels = {place: fill_in(line.label, values) for place, line in shown}
    left = round(TICK_LETTER * max(map(len, names), default=0)) + 10
    right = SVG_WIDTH - LETTER * max(map(len, labels.values()), default=0) - 15
    x = Scale(x_span, log_x, left, right)

    canvas.text(curves.y.words, 0, 12, kind="tick")
    if compared:
        words = f"lines: predicted, marks: measured{measured_at}"
        canvas.text(words, 0, 12 + WORDS_ROW, kind="tick")
    for tick, name in zip(rows, names):
        canvas.path(f"M{left} {one(y(tick))}H{one(right)}", opacity=FAINT)
        canvas.text(name, left - 6, y(tick) + 4, "end", "tick")
    _draw_x_axis(canvas, curves.x, x, left, right, under)
    for row, (name, words) in enumerate(curves.marks):
        if x.holds(values[name]):
            at, said = x(values[name]), fill_in(words, values)
            canvas.path(f"M{one(at)} {top - 3}V{under}", opacity=SOFT, dash="1 3")
            middle = max(left + len(said) * LETTER / 2, at)
            canvas.label(said, middle, top - 6 - WORDS_ROW * row, "middle", "name")
    for place, line in shown:
        _draw_line(canvas, curves, line, LINES[place], swept, measured[line.name], x, y)
    _draw_labels(canvas, shown, labels, swept, y, right, top, under, log_y)
    _draw_point(canvas, curves, spec, values, shown, x, y, left, right, top, under, compared)
    return canvas


def _refuse_below_zero(curves, measured):
    for name, pairs in measured.items():
        for x, y in pairs:
            if (x <= 0 and curves.x.scale == "log") or (y <= 0 and curves.y.scale == "log"):
                raise ValueError(
                    f"{name} was measured as {y} at {curves.sweep} = {x}: a logarithmic axis has"
                    " only places above 0."
                )


def _draw_x_axis(canvas, axis, x, left, right, under):
    ticks = list(axis.ticks) or x.ticks()
    texts = [axis.text(tick) for tick in ticks]
    apart = (right - left) / max(1, len(ticks) - 1)
    every = math.ceil((max(map(len, texts)) * LETTER + 6) / apart)
    for tick, words in list(zip(ticks, texts))[::every]:
        canvas.path(f"M{one(x(tick))} {under}v5", opacity=AXIS)
        canvas.label(words, x(tick), under + 18, "middle", "tick")
    canvas.path(f"M{left} {under}.5H{one(right)}", opacity=AXIS)
    canvas.label(axis.words, (left + right) / 2, under + 36, "middle", "tick")


def _draw_line(canvas, curves, line, stroke, swept, pairs, x, y):
    """The line, interrupted where a logarithmic axis has no place, and what was measured."""
    drawn, pen = "", "M"
    for place, found in swept:
        size = found[line.name]
        if y.log and not size > 0:
            pen = "M"
            continue
        drawn += f"{pen}{one(x(place))} {one(y(size))}"
        pen = "L"
    dash = " ".join(map(str, stroke.dash))
    more = f'stroke-linejoin="round" data-line="{line.name}"'
    canvas.path(drawn, stroke.colour, 2.5, dash=dash, more=more)
    for place, size in pairs:
        mark = STROKE_MARKS.get(stroke.mark, ring(4.5))
        at = f'data-measured="{line.name}"'
        canvas.path(f"M{one(x(place))} {one(y(size))}{mark}", fill=stroke.colour, more=at)


def _draw_labels(canvas, shown, labels, swept, y, right, top, under, log):
    """The words at the ends of lines, pushed apart where lines end close together."""
    last, ends = swept[-1][1] if swept else {}, []
    for place, line in shown:
        size = last.get(line.name, 0)
        ends.append([y(size) if size > 0 or not log else under, place])
    ends.sort()
    levels = []
    for end, _ in ends:
        levels.append(max(end, levels[-1] + WORDS_ROW if levels else top + 4))
    for k in range(len(levels)):
        levels[-1 - k] = min(levels[-1 - k], under - WORDS_ROW * k)
    for (end, place), level in zip(ends, levels):
        lead = f"M{one(right + 1)} {one(end)}L{one(right + 10)} {one(level)}"
        canvas.path(lead, LINES[place].colour)
        canvas.label(labels[place], right + 13, level + 4, kind="name")


def _draw_point(canvas, curves, spec, values, shown, x, y, left, right, top, under, hollow):
    """The reader's point with its number: a disc, a ring if something was measured, an arrow if it
    is beyond the axis; a mark on each line there; and the note under the first line."""
    here, size = values[curves.sweep], values[curves.point]
    beyond = (here > x.span[1]) - (here < x.span[0])
    at = (right if beyond > 0 else left) if beyond else x(here)
    level = under if y.log and not size > 0 else max(top, min(under, y(size)))
    own = dict(spec.sampled(curves, values, [here])).get(here, {})
    for place, line in shown:
        value = own.get(line.name, 0)
        if not beyond and (value > 0 or not y.log) and line.name in own:
            mark, colour = STROKE_MARKS.get(LINES[place].mark, ring(4.5)), LINES[place].colour
            canvas.path(f"M{one(at)} {one(y(value))}{mark}", colour, 0.5, fill=colour)
    canvas.path(f"M{one(at)} {one(level)}V{under}", opacity=SOFT)
    words = fill_in(curves.words, values)
    if beyond:
        canvas.triangle(at, level, beyond)
    else:
        canvas.disc(at, level, CIRCLE, filled=not hollow, name=words)
    half = len(words) * LETTER / 2  # lines rise to the right: room is above left, below right
    side = at + 10 - half if curves.above else at + 9 + half
    middle = max(left + half + 2, min(right - half, side))
    row = level + (-13 if curves.above else 23)
    canvas.label(words, middle, row, "middle", "strong")
    if curves.note:  # not where the point's words are
        place, said = curves.note[0], fill_in(curves.note[1], values)
        found = dict(spec.sampled(curves, values, [place])).get(place)
        begin, below = x(place) + 8, y(found[curves.lines[0].name]) + 14 if found else 0
        over = abs(below - row) < WORDS_ROW and begin < middle + half + 4
        over = over and begin + len(said) * LETTER > middle - half - 4
        if found and not over:
            canvas.label(said, begin, below, kind="name")
