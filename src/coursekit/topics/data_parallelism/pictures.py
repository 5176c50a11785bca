"""Still picture of the chapter on data parallelism: a step as it ran, on two streams."""

from coursekit.recordings.recordings import recording_of
from coursekit.show.drawing import Drawing
from coursekit.show.format import format_as

TRACE_GROUP = "data_parallel_trace"
ENDS = ("forward_seconds", "last_gradient_seconds", "whole_seconds")


def recorded_step():
    """The newest recording of a traced step, the megabits per second of its link, the seconds of
    ENDS, and (begin, duration) of each message. Raises LookupError where there is none."""
    recording = recording_of(f"{TRACE_GROUP}.{ENDS[0]}")
    ends = [recording.find(f"{TRACE_GROUP}.{name}")[0].value for name in ENDS]
    begins = recording.find(f"{TRACE_GROUP}.message_begin")
    durations = recording.find(f"{TRACE_GROUP}.message")
    link = begins[0].case["megabits_per_second"]
    pairs = zip(begins, durations, strict=True)
    return recording, link, ends, [(a.value, b.value) for a, b in pairs]


def draw_two_streams():
    recording, link, (forward, computed, whole), messages = recorded_step()
    drawing = Drawing("two-streams", "A step of data parallelism as it ran: computing and messages")
    left, right, top, pitch = 68, 396, 64, 25
    x = lambda seconds: left + (right - left) * min(seconds / whole, 1)
    said = lambda seconds: format_as(seconds, "short duration")
    drawing.text(0, 43, "computes", "small")
    drawing.box(left, 26, x(forward) - left, 26, "forward cut")
    drawing.box(x(forward), 26, x(computed) - x(forward), 26, "backward cut")
    drawing.box(x(computed), 26, right - x(computed), 26, "idle dashed")
    drawing.text((left + x(forward)) / 2, 44, "forward", "middle small white")
    drawing.text((x(forward) + x(computed)) / 2, 44, "backward", "middle small ink")
    for number, (begin, seconds) in enumerate(messages):
        y = top + pitch * number
        drawing.box(x(begin), y, x(begin + seconds) - x(begin), 22, "communication")
        drawing.text(x(begin) - 6, y + 16, f"bucket {number + 1}", "end small")
    bottom = top + pitch * len(messages) + 4
    drawing.path(f"M{x(computed):.1f} 26V{bottom}", "line dashed")
    drawing.path(f"M{left} {bottom}H{right}")
    drawing.text(left, bottom + 18, "0", "small")
    drawing.text(right, bottom + 18, said(whole), "end small bold")
    drawing.text(right, 16, f"nothing computes for {said(whole - computed)}", "end small bold")
    source = f"2 ranks, {link} Mbit/s between them, {recording.label}"
    drawing.text(0, bottom + 38, source, "small soft")
    each = "; ".join(
        f"bucket {number} from {said(begin)} on for {said(seconds)}"
        for number, (begin, seconds) in enumerate(messages, 1)
    )
    words = (
        f"Bars over the {said(whole)} of a step of {source}. Above, forward until"
        f" {said(forward)}, then backward until its last gradient at {said(computed)}; after that"
        f" nothing computes for {said(whole - computed)}. Beneath, a bar for each message, from its"
        f" hand-over until it is done: {each}. The last one is handed over when backward is done."
    )
    return drawing.svg(bottom + 44, words)


PICTURES = {"two-streams": draw_two_streams}
