"""A step in virtual time (ranklab.virtual) as SVG: a row for each stream, and hatched where the
model waits. Kernels are thousands: those of one phase with less than half a pixel between them are
one shape.

Words and axes take the colour of the text around the picture, and fills and their lines are the
palette's, which stand on light and on dark. Attributes say all of that: no style sheet, no script,
no id, so that two pictures in a notebook never meet.
"""

from html import escape

from .format import format_as, round_up
from .palette import TIMELINE

WIDTH, _LEFT, TALL, FIRST_ROW, PITCH, KEY_ROW = 620, 68, 34, 22, 42, 18
AS_ONE = 0.5  # pixels
WARN = "#c75800"  # read on light and dark pages
PHASES = {  # of a phase on the stream that computes
    "forward": TIMELINE["forward"],
    "backward": TIMELINE["backward"],
    "update": TIMELINE["weight_gradient"],
}
MESSAGES = TIMELINE["communication"]
WORD_KINDS = {
    "name": 'font-size="12"',
    "tick": 'font-size="12" fill-opacity="0.75"',
    "strong": 'font-size="14" font-weight="600"',
}


def virtual_step_svg(step, title: str) -> str:
    lanes = dict.fromkeys(["compute", *(span.stream for span in step.spans)])
    rows = {lane: FIRST_ROW + PITCH * number for number, lane in enumerate(lanes)}
    under = FIRST_ROW + PITCH * len(rows) + 6
    most = round_up(step.seconds or 1)

    def x(nanoseconds):
        return _LEFT + nanoseconds / 1e9 / most * (WIDTH - _LEFT - 8)

    shapes, words, key = [], [], {}
    for lane, y in rows.items():
        sends = not isinstance(lane, str)
        words.append(_text("messages" if sends else lane, 0, y + TALL / 2 + 4))
        own = [span for span in step.spans if span.stream == lane]
        kinds = {"messages": MESSAGES} if sends else PHASES
        for kind, swatch in kinds.items():
            spans = [(x(s.start), x(s.end)) for s in own if sends or s.phase == kind]
            if spans:
                shapes.append(_boxes(merged(spans), y, TALL, swatch.light, swatch.line))
                key[kind] = swatch
    gaps = [(x(gap.start), x(gap.end)) for gap in step.gaps if gap.stream == "compute"]
    shapes += [
        _hatch(left, FIRST_ROW, right - left, TALL)
        for left, right in merged(gaps)
        if right - left > 2 * AS_ONE
    ]
    at = _LEFT
    for kind, swatch in [*key.items(), ("nothing computes", None)]:
        y = under + 40
        shapes.append(
            _boxes([(at, at + 11)], y, 11, swatch.light, swatch.line)
            if swatch
            else _hatch(at, y, 11, 11, apart=5)
        )
        words.append(_text(kind, at + 16, y + 10))
        at += 24 + 6.9 * len(kind)
    idle = f"{_short(step.idle_seconds())} of {_short(step.seconds)} nothing computes, virtual"
    words.append(_text(idle, max(x(step.end), 7 * len(idle)), 14, "end", "strong"))
    tick, ticks = round_up(most / 4), []
    while len(ticks) * tick <= most * 1.0001:
        ticks.append(len(ticks) * tick)
    axis = f"M{_LEFT} {under}H{_one(x(1e9 * most))}"
    axis += "".join(f"M{_one(x(1e9 * seconds))} {under}v5" for seconds in ticks)
    shapes.append(_path(axis, "none", "currentColor"))
    for seconds in ticks:
        middle = min(x(1e9 * seconds), WIDTH - 3.5 * len(_short(seconds)))
        words.append(_text(_short(seconds), middle, under + 20, "middle", "tick"))
    high = under + 40 + 2 * KEY_ROW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{WIDTH}" height="{high}"'
        f' viewBox="0 0 {WIDTH} {high}" style="max-width:100%;height:auto;display:block;'
        'overflow:visible;font-family:system-ui,sans-serif;font-variant-numeric:tabular-nums">'
        f"<title>{escape(title)}</title><desc>{escape(str(step))}</desc>"
        f'{"".join(shapes)}<g fill="currentColor">{"".join(words)}</g></svg>'
    )


def merged(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Spans from left to right; neighbours that are near are one."""
    found: list[tuple[float, float]] = []
    for left, right in sorted(spans):
        if found and left - found[-1][1] < AS_ONE:
            found[-1] = found[-1][0], max(right, found[-1][1])
        else:
            found.append((left, right))
    return found


def _short(seconds):
    return format_as(seconds, "short duration")


def _one(value: float) -> str:
    """A length with one digit after the point, and without a point where the digit is 0."""
    return f"{value:.1f}".removesuffix(".0")


def _path(steps, fill, line, width=1.0):
    return f'<path d="{steps}" fill="{fill}" stroke="{line}" stroke-width="{width}"/>'


def _boxes(spans, y, tall, fill, line):
    """Boxes from left to right as one shape."""
    steps = (f"M{_one(left)} {y}H{_one(right)}v{tall}H{_one(left)}z" for left, right in spans)
    return _path("".join(steps), fill, line, 0.5)


def _hatch(x, y, wide, tall, apart=7):
    """Slanted lines over a box, and a frame around it."""
    steps = f"M{_one(x)} {_one(y)}h{_one(wide)}v{_one(tall)}h{_one(-wide)}z"
    for far in range(apart, int(wide + tall) + 1, apart):
        low, high = max(0, far - tall), min(far, wide)
        down, up = min(far, tall), far - high
        steps += f"M{_one(x + low)} {_one(y + down)}L{_one(x + high)} {_one(y + up)}"
    return _path(steps, "none", WARN, 1.5)


def _text(words, x, y, anchor="start", kind="name"):
    place = f'x="{_one(x)}" y="{_one(y)}" text-anchor="{anchor}"'
    return f"<text {place} {WORD_KINDS[kind]}>{escape(words)}</text>"
