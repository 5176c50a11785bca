"""A step in virtual time (ranklab.virtual) as SVG: a row for each stream, and hatched where the
model waits. Kernels are thousands: those of one phase with less than half a pixel between them are
one shape."""

from coursekit.show.palette import TIMELINE

from .canvas import KEY_ROW, SVG_WIDTH, Canvas, one, round_up
from .spans import STREAM_LEFT, STREAM_TALL, draw_seconds, short

FIRST_ROW, PITCH = 22, 42
AS_ONE = 0.5  # pixels
PHASES = {  # of a phase on the stream that computes
    "forward": TIMELINE["forward"],
    "backward": TIMELINE["backward"],
    "update": TIMELINE["weight_gradient"],
}
MESSAGES = TIMELINE["communication"]


def virtual_step_svg(step, title: str) -> str:
    lanes = dict.fromkeys(["compute", *(span.stream for span in step.spans)])
    rows = {lane: FIRST_ROW + PITCH * number for number, lane in enumerate(lanes)}
    under = FIRST_ROW + PITCH * len(rows) + 6
    canvas = Canvas(title, under + 40 + 2 * KEY_ROW)
    most = round_up(step.seconds or 1)

    def x(nanoseconds):
        return STREAM_LEFT + nanoseconds / 1e9 / most * (SVG_WIDTH - STREAM_LEFT - 8)

    key = []
    for lane, y in rows.items():
        sends = not isinstance(lane, str)
        canvas.text("messages" if sends else lane, 0, y + STREAM_TALL / 2 + 4, kind="name")
        own = [span for span in step.spans if span.stream == lane]
        kinds = {"messages": MESSAGES} if sends else PHASES
        for kind, swatch in kinds.items():
            spans = [(x(s.start), x(s.end)) for s in own if sends or s.phase == kind]
            shape = "".join(
                f"M{one(left)} {y}H{one(right)}v{STREAM_TALL}H{one(left)}z"
                for left, right in merged(spans)
            )
            canvas.path(shape, swatch.line, 0.5, fill=swatch.light)
            if shape and (kind, swatch) not in key:
                key.append((kind, swatch))
    gaps = [(x(gap.start), x(gap.end)) for gap in step.gaps if gap.stream == "compute"]
    for left, right in merged(gaps):
        if right - left > 2 * AS_ONE:
            canvas.hatch(left, FIRST_ROW, right - left, STREAM_TALL)
    canvas.key([*key, ("nothing computes", None)], STREAM_LEFT, under + 40)
    idle = f"{short(step.idle_seconds())} of {short(step.seconds)} nothing computes, virtual"
    canvas.label(idle, x(step.end), 14, "end", "strong")
    draw_seconds(canvas, lambda seconds: x(1e9 * seconds), most, STREAM_LEFT, under, 4)
    return canvas.svg(str(step))


def merged(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Spans from left to right; neighbours that are near are one."""
    found: list[tuple[float, float]] = []
    for left, right in sorted(spans):
        if found and left - found[-1][1] < AS_ONE:
            found[-1] = found[-1][0], max(right, found[-1][1])
        else:
            found.append((left, right))
    return found
