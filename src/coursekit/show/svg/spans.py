"""Pictures of time as SVG: a duration on an axis (TimeAxis), a step as two streams
(StreamsPicture), the ranks of a pipeline (SchedulePicture), as static/timeline.js, streams.js and
schedules.js draw them on the pages."""

import math

from coursekit.formulas.events import COMPUTE, end_seconds, operations, play, waiting
from coursekit.show.format import format_as
from coursekit.show.palette import MEMORY, TIMELINE
from shardlab.pipelines.schedules import Kind
from shardlab.pipelines.simulation import in_flight

from .canvas import AXIS, KEY_ROW, SVG_WIDTH, Canvas, clamp, one, pale, round_up, swatch_of

EDGE = 10
STREAM_LEFT, STREAM_TALL, ROWS, AXIS_AT = 68, 34, (22, 64), 108  # of streams
RANK_LEFT, RANK_RIGHT, RANKS_TOP, RANKS_TALL, DIGIT = 16, 74, 24, 152, 6.6
ACTIONS = {
    Kind.BACKWARD: ("backward", "backward"),
    Kind.INPUT: ("backward of the input", "backward"),
    Kind.WEIGHT: ("of the weights", "weight_gradient"),
}


def short(seconds):
    return format_as(seconds, "short duration")


def duration_svg(picture, values, measured, *_):
    """A ring is predicted, a disc measured; a lone prediction is a disc, and one beyond an end of
    the axis an arrow there."""
    found = measured.get(picture.quantity)
    y = 34
    canvas = Canvas(picture.title, y + 28 + (KEY_ROW if found is not None else 0))
    span = math.log(picture.most / picture.least)

    def x(seconds):
        share = math.log(seconds / picture.least) / span if seconds > 0 else 0
        return EDGE + (SVG_WIDTH - 2 * EDGE) * clamp(share, 0, 1)

    canvas.path(f"M{EDGE} {y}.5H{SVG_WIDTH - EDGE}", opacity=AXIS)
    for name, seconds in picture.ticks:
        canvas.path(f"M{one(x(seconds))} {y - 4}v9", opacity=AXIS)
        canvas.label(name, x(seconds), y + 21, "middle", "tick")
    marks = [("predicted", values[picture.quantity], 7, found is None, y - 16)]
    if found is not None:
        marks.append(("measured", found, 4, True, y + 40))
    for kind, seconds, radius, filled, level in marks:
        beyond = (seconds > picture.most) - (seconds < picture.least)
        words = format_as(seconds, "duration")
        if beyond:
            canvas.triangle(x(seconds), y, beyond)
        else:
            canvas.disc(x(seconds), y, radius, filled=filled, name=f"{kind}: {words}")
        said = words if found is None else f"{words} {kind}"
        canvas.label(said, x(seconds), level, "middle", "strong")
    return canvas


def streams_svg(picture, values, *_):
    """Computing and the link, and hatched what is exposed; nothing measured is drawn in this
    picture."""
    canvas = Canvas(picture.title, AXIS_AT + 40 + 3 * KEY_ROW)
    for row, words in enumerate(picture.rows):
        canvas.text(words, 0, ROWS[row] + STREAM_TALL / 2 + 4, kind="name")
    if too_many := picture.too_many(values):
        canvas.text(too_many, STREAM_LEFT, 14, kind="strong")
        return canvas
    ran = play(operations(picture.step, values))
    idle, end = list(waiting(ran)), end_seconds(ran)
    most = round_up(end or 1)

    def x(seconds):
        return STREAM_LEFT + seconds / most * (SVG_WIDTH - STREAM_LEFT - 8)

    key = []
    for event, label, colour in picture.colours:
        swatch = swatch_of(colour)
        bars = [span for span in ran if span.name == event and span.end > span.start]
        for span in bars:
            name = f"{label}: {short(span.end - span.start)} from {short(span.start)} on"
            at, y = x(span.start), ROWS[int(span.stream != COMPUTE)]
            canvas.box(at, y, x(span.end) - at, STREAM_TALL, swatch, name, line_width=0.75)
        if bars:
            key.append((label, swatch))
    for _, start, stop in idle:
        canvas.hatch(x(start), ROWS[0], x(stop) - x(start), STREAM_TALL)
    canvas.key([*key, (picture.idle, None)], STREAM_LEFT, AXIS_AT + 40)
    exposed = sum(stop - start for _, start, stop in idle)
    canvas.label(f"{short(exposed)} of {short(end)} {picture.idle}", x(end), 14, "end", "strong")
    draw_seconds(canvas, x, most, STREAM_LEFT, AXIS_AT, 4)
    return canvas


def draw_seconds(canvas, x, most, left, y, parts, width=None):
    """An axis of seconds from zero."""
    step = round_up(most / parts)
    ticks = [k * step for k in range(int(most / step * 1.0001) + 1)]
    marks = "".join(f"M{one(x(tick))} {one(y)}v5" for tick in ticks)
    canvas.path(f"M{left} {one(y)}H{one(x(most))}{marks}", opacity=AXIS)
    for tick in ticks:
        canvas.label(short(tick), x(tick), y + 20, "middle", "tick", width)


def schedule_svg(picture, values, *_):
    """A row for each rank, its microbatches, and at the end what it holds at the peak; nothing
    measured is drawn in this picture."""
    plan, timeline = picture.plan(values), picture.timeline(values)
    held, ranks, found = in_flight(plan), len(plan), picture.derived(values)
    tall = min(40, RANKS_TALL / ranks)
    bar, under = tall - 5, RANKS_TOP + tall * ranks
    canvas = Canvas(picture.title, under + 34 + 2 * KEY_ROW)
    most = max(own[-1].end for own in timeline.spans) or 1
    room, wide = SVG_WIDTH - RANK_RIGHT + 14, max(held)

    def x(seconds):
        return RANK_LEFT + seconds / most * (SVG_WIDTH - RANK_LEFT - RANK_RIGHT)

    key = {}
    for rank, own in enumerate(timeline.spans):
        y, first = RANKS_TOP + rank * tall, True
        end = one(x(most))
        canvas.path(f"M{RANK_LEFT} {one(y + bar / 2)}H{end}", width=0.75, opacity=AXIS, dash="1 2")
        for span in own:
            first = first and span.action.kind is Kind.FORWARD
            if span.end > span.begin:
                _draw_action(canvas, span, first, x, y, bar, ranks, key)
        canvas.text(rank, RANK_LEFT - 5, y + bar / 2 + 4, "end", "name")
        canvas.box(room, y, 36 * held[rank] / wide, bar, MEMORY["activations"])
        canvas.text(held[rank], SVG_WIDTH, y + bar / 2 + 4, "end", "name")
    idle = format_as(found["simulated_share_of_total"], "percent")
    words = f"{idle} of {short(found['simulated_seconds'])} idle"
    canvas.text(words, RANK_LEFT, 14, kind="strong")
    canvas.label("in flight", SVG_WIDTH, 14, "end", "tick")
    order = [forward_words(True), forward_words(False), *(words for words, _ in ACTIONS.values())]
    canvas.key([(words, key[words]) for words in order if words in key], RANK_LEFT, under + 34)
    draw_seconds(canvas, x, most, RANK_LEFT, under, 5, SVG_WIDTH - RANK_RIGHT + 20)
    return canvas


def forward_words(first):
    return "forward before the first backward" if first else "other forwards"


def _draw_action(canvas, span, first, x, y, bar, ranks, key):
    """A box with the number of its microbatch where that fits, and a stripe on what is not the
    rank's first stage."""
    stage, kind, microbatch = span.action
    words, colour = ACTIONS.get(kind) or (forward_words(first), "forward")
    swatch, left, across = TIMELINE[colour], x(span.begin), x(span.end) - x(span.begin)
    full = first and kind is Kind.FORWARD
    key[words] = swatch if full else pale(swatch, "9e" if kind is Kind.WEIGHT else "5c")
    name = f"stage {stage}, {words}, microbatch {microbatch}"
    canvas.box(left, y, across, bar, key[words], name, line_width=0.75)
    if stage >= ranks and across > 3:
        stripe = f"M{one(left + 1)} {one(y + 1)}h{one(across - 2)}v2h{one(2 - across)}z"
        canvas.path(stripe, "none", fill="currentColor")
    if across >= DIGIT * len(str(microbatch)) + 3:
        canvas.text(
            microbatch, left + across / 2, y + bar / 2 + 4, "middle", "white" if full else "digit"
        )
