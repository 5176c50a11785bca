"""plotly figure of what ran when on one rank: rows of bars over the seconds of a step.

trace_figure("A step with overlap", [("forward", "forward", [(0, 0.1)]), ("bucket 1",
"communication", [(0.15, 0.04)])])
step_figure("A step with overlap", trace)                   # trace =
# measure.trace.trace_step(...)
"""

import math

import plotly.graph_objects as go

from coursekit.show.figures import (
    FOOT_PIXELS,
    HEAD_PIXELS,
    draw_lines,
    name_rows,
    new_figure,
    over_steps,
    reach,
)
from coursekit.show.format import format_as
from coursekit.show.palette import TIMELINE

LANE_PIXELS = 30


def trace_figure(title, rows, until_seconds=None):
    """Rows are (name, colour's name in palette.TIMELINE, pairs (begin, duration) in seconds); the
    first is drawn on top. Two figures with one `until_seconds` have one scale.

    Raises ValueError without rows, or for a duration below 0; KeyError for a colour that the
    palette lacks.
    """
    rows = [(name, colour, list(bars)) for name, colour, bars in rows]
    if not rows:
        raise ValueError(
            "a trace has at least one row: (name, colour, pairs of begin and duration)."
        )
    for name, _, bars in rows:
        for begin, seconds in bars:
            if seconds < 0:
                raise ValueError(
                    f"{name}: a bar of {seconds} s from {begin} s: nothing takes less than no time."
                )
    until = max(
        [until_seconds or 0, *(begin + seconds for _, _, bars in rows for begin, seconds in bars)]
    )
    figure = new_figure(
        title, HEAD_PIXELS + FOOT_PIXELS + 16 + LANE_PIXELS * len(rows), barmode="overlay", bargap=0
    )
    figure.update_layout(margin_b=FOOT_PIXELS + 16)
    for place, (name, colour, bars) in enumerate(rows):
        swatch = TIMELINE[colour]
        said = [[format_as(time, "short duration") for time in bar] for bar in bars]
        figure.add_trace(
            go.Bar(
                orientation="h",
                name=name,
                base=[_milliseconds(begin) for begin, _ in bars],
                x=[_milliseconds(seconds) for _, seconds in bars],
                y=[place] * len(bars),
                width=[0.62] * len(bars),
                marker=dict(color=swatch.light, line=dict(color=swatch.line, width=1.5)),
                text=[f"{name}: {seconds} from {begin} on" for begin, seconds in said],
                textposition="none",
                hovertemplate="%{text}<extra></extra>",
            )
        )
    reach(figure, 1000 * until or 1, "milliseconds since forward began")
    name_rows(figure, [name for name, *_ in rows])
    return figure


def step_figure(title, trace, until_seconds=None):
    """Forward, backward until its last gradient, and a row for each message in the order in which
    they were handed over."""
    backward = trace.forward_seconds, trace.last_gradient_seconds - trace.forward_seconds
    rows = [
        ("forward", "forward", [(0, trace.forward_seconds)]),
        ("backward", "backward", [backward]),
    ]
    rows += [
        (f"message {number}", "communication", [message])
        for number, message in enumerate(trace.messages, 1)
    ]
    return trace_figure(title, rows, until_seconds)


def step_figures(traces, link):
    """A figure of each step, on one scale; `traces` is whether messages overlap -> Trace."""
    longest_seconds = max(trace.whole_seconds for trace in traces.values())
    for overlap, trace in traces.items():
        words = f"{('no overlap', 'overlap')[overlap]}, {link}: {1000 * trace.whole_seconds:.0f} ms"
        yield step_figure(words, trace, longest_seconds)


def drift_figure(copies):
    """Lines over the steps: how far apart the copies of a model are; name -> after each step, the
    distances of its tensors."""
    lengths = {
        name: over_steps([math.hypot(*one) for one in steps]) for name, steps in copies.items()
    }
    figure = new_figure("How far apart are the copies?", 320)
    return draw_lines(figure, lengths, "step", "distance from rank 0", "step %{x}: %{y}")


def handed_over_figure(counts):
    """Lines over the gradients of a backward: how many all-reduces have been handed over when each
    arrives; name -> a count at each gradient."""
    lines = {name: over_steps(of_gradients) for name, of_gradients in counts.items()}
    figure = new_figure("How many buckets have left?", 320)
    return draw_lines(figure, lines, "gradient", "all-reduces handed over", "gradient %{x}: %{y}")


def _milliseconds(seconds):
    return float(f"{1000 * seconds:.4g}")
