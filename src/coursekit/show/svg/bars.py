"""Pictures of bytes as SVG: parts end to end (MemoryBar) and a column for each point of a step
(TimelinePicture), as static/pictures.js and static/timeline.js draw them on the pages. What was
measured is filled inside the outline of what is predicted."""

from itertools import accumulate

from coursekit.show.format import decimal_bytes, format_exact
from coursekit.show.palette import MEMORY

from .canvas import AXIS, FAINT, KEY_ROW, SOFT, SVG_WIDTH, Canvas, one, round_up

PART_ROW, PARTS_TOP, PARTS_TALL, GAP = 19, 2, 48, 74
INSIDE = 14  # from the outline of a prediction to what was measured
FAR_RIGHT = 30  # a card of this many times the bytes is named at the edge: the bar would vanish
FAR_ABOVE = 3  # the same for columns, which need their height; static/timeline.js draws the same
COLUMNS_TALL, COLUMNS_LEFT, HEAD, NAMES_CLOSE = 176, 50, 30, 62


def memory_svg(picture, values, measured, _, measured_at=""):
    """`measured` has bytes by the names of parts; total and card are the prediction's."""
    compared = [part for part in picture.parts if part.quantity in measured]
    y = PARTS_TOP + PART_ROW * len(picture.parts) + 6 + (KEY_ROW if compared else 0)
    under = y + PARTS_TALL
    used = values[picture.total]
    room = values[picture.capacity] if picture.capacity else None
    near = room is not None and room <= FAR_RIGHT * max(used, 1)
    canvas = Canvas(picture.title, under + (26 if room is None else 56))
    sizes = [values[part.quantity] for part in picture.parts]
    found = [measured.get(part.quantity, size) for part, size in zip(picture.parts, sizes)]
    longest = max(used, sum(found))
    most = round_up(max(1.02 * max(longest, room) if near else 1.02 * longest, picture.least, 1))

    def x(count):
        return count / most * (SVG_WIDTH - GAP) + 1

    if compared:
        words = f"outline: predicted, fill: measured{measured_at}"
        canvas.text(words, 0, PARTS_TOP + 11, kind="tick")
    starts, places = accumulate(sizes, initial=0), accumulate(found, initial=0)
    for row, (part, size, at, start) in enumerate(zip(picture.parts, sizes, starts, places)):
        if not size and not measured.get(part.quantity):
            continue
        swatch, predicted = MEMORY[part.colour], decimal_bytes(size)
        words = f"{part.label} {predicted}"
        ours = part in compared
        whole = f"{part.label}, predicted: {predicted} = {format_exact(size)} B"
        canvas.box(x(at), y, x(at + size) - x(at), PARTS_TALL, swatch, whole, filled=not ours)
        if ours:
            count = measured[part.quantity]
            whole = f"{part.label}, measured: {decimal_bytes(count)} = {format_exact(count)} B"
            inner = PARTS_TALL - 2 * INSIDE
            canvas.box(x(start), y + INSIDE, x(start + count) - x(start), inner, swatch, whole)
            words += ", measured " + ("the same" if count == size else decimal_bytes(count))
        middle, level = x(at + size / 2), y - 6 - PART_ROW * (len(picture.parts) - row)
        moved = canvas.label(words, middle + 5, level + 13)
        canvas.path(f"M{one(middle)} {y}V{level + (PART_ROW - 1 if moved else 2)}", opacity=SOFT)
    if near:
        _draw_card(canvas, x, used, room, y)
    else:
        _draw_axis(canvas, x, most, under)
        canvas.label(decimal_bytes(used), x(used) + 8, y + PARTS_TALL / 2 + 5, kind="strong")
        if room is not None:
            words = (
                f"{decimal_bytes(room)} card: far to the right, {decimal_bytes(room - used)} free"
            )
            canvas.label(f"{words} →", SVG_WIDTH, under + 42, "end", "name")
    return canvas


def _draw_card(canvas, x, used, room, y):
    """The card as a line, what is beyond it hatched or what is free in a dashed frame, and the
    difference below."""
    under, fits = y + PARTS_TALL, used <= room
    if fits:
        frame = f"M{one(x(used))} {y}H{one(x(room))}V{under}H{one(x(used))}z"
        canvas.path(frame, opacity=AXIS, dash="4 3")
    else:
        canvas.hatch(x(room), y, x(used) - x(room), PARTS_TALL)
    canvas.path(f"M{one(x(room))} {y - 5}V{under + 5}", width=2.5)
    if x(room) >= 70:
        canvas.text("0", 1, under + 18, kind="tick")
    canvas.label(f"{decimal_bytes(room)} card", x(room), under + 19, "middle", "strong")
    words = decimal_bytes(used)  # beyond the line where there is too little free space for them
    past = fits and x(room) - x(used) < 8 * len(words) + 12
    canvas.label(words, x(room if past else used) + 8, y + PARTS_TALL / 2 + 5, kind="strong")
    gap = f"M{one(x(used))} {under + 26}v6H{one(x(room))}v-6"
    canvas.path(gap, opacity=AXIS)
    words = decimal_bytes(abs(room - used)) + (" free" if fits else " too much")
    kind = "strong" if fits else "warn"
    canvas.label(words, (x(used) + x(room)) / 2, under + 48, "middle", kind)


def _draw_axis(canvas, x, most, under):
    canvas.text("0", 1, under + 18, kind="tick")
    step = round_up(most / 6)
    for count in range(1, int(most / step * 1.0001) + 1):
        canvas.path(f"M{one(x(count * step))} {under}v5", opacity=AXIS)
        canvas.label(decimal_bytes(count * step), x(count * step), under + 18, "middle", "tick")


def timeline_svg(picture, values, *_):
    """Columns from zero, in the order of time; nothing measured is drawn in this picture."""
    shown, room = picture.shown(values), values[picture.capacity]
    under = HEAD + COLUMNS_TALL
    names, key = under + 16, under + 74
    canvas = Canvas(picture.title, key + 44)
    highest = max(shown, key=lambda column: values[column.total])  # the first of equals
    tall = values[highest.total]
    near = room <= FAR_ABOVE * tall
    most = round_up(1.02 * max(tall, room if near else 0, 1))
    pitch = (SVG_WIDTH - COLUMNS_LEFT) / len(shown)
    wide = 0.76 * pitch

    def y(count):
        return under - count / most * COLUMNS_TALL

    def x(place):
        return COLUMNS_LEFT + pitch * (place + 0.12)

    step = round_up(most / 5)
    for count in range(int(most / step * 1.0001) + 1):
        level = y(count * step)
        canvas.path(f"M{COLUMNS_LEFT} {one(level)}H{one(SVG_WIDTH)}", opacity=FAINT)
        words = decimal_bytes(count * step) if count else "0"
        canvas.text(words, COLUMNS_LEFT - 6, level + 4, "end", "tick")
    for place, column in enumerate(shown):
        start = 0
        for part in column.parts:
            count = values[part.quantity]
            if count > 0:
                name = f"{column.name}, {part.label}: {decimal_bytes(count)}"
                top = y(start + count)
                canvas.box(x(place), top, wide, y(start) - top, MEMORY[part.colour], name)
            start += count
        if start > room:
            canvas.hatch(x(place), y(start), wide, y(room) - y(start))
        low = 16 if pitch < NAMES_CLOSE and place % 2 else 0  # close names stand in two rows
        if low:
            canvas.path(f"M{one(x(place) + wide / 2)} {under + 3}v{low - 1}", opacity=SOFT)
        canvas.label(column.name, x(place) + wide / 2, names + low, "middle", "name")
    _draw_phases(canvas, shown, x, wide, under)
    _draw_peak(canvas, shown.index(highest), len(shown), tall, room, near, x, y, wide)
    kinds = {}
    for column in sorted(shown, key=lambda column: -len(column.parts)):
        for part in column.parts:
            kinds.setdefault(part.colour, part.label)
    canvas.key([(label, MEMORY[colour]) for colour, label in kinds.items()], 1, key)
    return canvas


def _draw_phases(canvas, shown, x, wide, under):
    """A line under the columns of each phase that has several, and its name."""
    for phase in dict.fromkeys(column.phase for column in shown):
        places = [place for place, column in enumerate(shown) if column.phase == phase]
        if len(places) > 1:
            left, right = x(places[0]), x(places[-1]) + wide
            canvas.path(f"M{one(left)} {under + 41}H{one(right)}", opacity=AXIS)
            canvas.label(phase, (left + right) / 2, under + 56, "middle", "tick")


def _draw_peak(canvas, place, count, tall, room, near, x, y, wide):
    """The card, named where the peak is not, and the mark above the highest column."""
    if near:
        canvas.path(f"M{COLUMNS_LEFT} {one(y(room))}H{one(SVG_WIDTH)}", width=2.5)
    right = place >= count / 2
    words = decimal_bytes(room) + (" card" if near else " card: far above")
    level = y(room) - 6 if near else 13
    at, anchor = (COLUMNS_LEFT + 4, "start") if right else (SVG_WIDTH, "end")
    canvas.label(words, at, level, anchor, "strong")
    middle, top = x(place) + wide / 2, y(tall)
    canvas.path(f"M{one(middle)} {one(top - 1)}l-5 -7h10z", fill="currentColor")
    kind = "warn" if tall > room else "strong"
    canvas.label(f"peak {decimal_bytes(tall)}", middle, top - 13, "middle", kind)
