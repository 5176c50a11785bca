"""plotly figures of what was measured: bytes at the peak beside the time of a step, by policy; and
what is alive after each operation of a step.

tradeoff_figure("Measured here", {"nothing": (0.031, 38_400_000), "each block": (0.04, 9_200_000)})
live_figure("A step", {"nothing": [1, 3, 2], "each block": [1, 2, 1, 2, 1]}, "vectors")
"""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from coursekit.show.figures import axis, draw_lines, legend_below, new_figure
from coursekit.show.palette import LINES

TRADEOFF_PIXELS = 380
DRAWN_PARTS = 150  # each is drawn as high as it gets
MARKS = (*(stroke.mark for stroke in LINES), "x", "star")


def tradeoff_figure(title: str, found: Mapping[str, tuple[float, float]]) -> go.Figure:
    """`found`: what is recomputed -> (seconds of a step, bytes at its peak). A mark for each, of a
    shape of its own, which the legend names."""
    figure = new_figure(title, TRADEOFF_PIXELS)
    for number, (name, (seconds, nbytes)) in enumerate(found.items()):
        figure.add_trace(
            go.Scatter(
                x=[round(1000 * seconds, 2)],
                y=[round(nbytes / 1e6, 3)],
                mode="markers",
                name=name,
                marker=dict(
                    symbol=MARKS[number % len(MARKS)],
                    size=12,
                    color=LINES[number % len(LINES)].colour,
                ),
                hovertemplate="%{x} ms, %{y} MB<extra>" + name + "</extra>",
            )
        )
    words = dict(font=dict(size=12), standoff=6)
    figure.update_xaxes(
        axis(title=dict(text="a step, ms", **words), showline=True, rangemode="tozero")
    )
    figure.update_yaxes(
        axis(title=dict(text="peak, MB", **words), showgrid=True, rangemode="tozero")
    )
    figure.update_layout(margin_b=110, **legend_below(-0.2))
    return figure


def figure_of_steps(steps: Mapping[str, Mapping], vector_bytes: int) -> go.Figure:
    """Live bytes of each step after each of its operations, in vectors."""
    lines = {
        name: [round(point.bytes.total / vector_bytes, 1) for point in step["ledger"].timeline]
        for name, step in steps.items()
    }
    return live_figure("What is alive during a step", lines, "vectors")


def figure_of_times(times: Mapping[str, Sequence[float]], steps: Mapping) -> go.Figure:
    """The fastest step of each way beside the peak of one."""
    peaks = {name: step["ledger"].peak.bytes.total for name, step in steps.items()}
    return tradeoff_figure(
        "Measured here", {name: (min(times[name]), peaks[name]) for name in times}
    )


def live_figure(title: str, steps: Mapping[str, Sequence[float]], unit: str) -> go.Figure:
    """`steps`: what is recomputed -> what is alive after each operation, in `unit`. All steps are
    drawn from the first operation on, so a longer line is a step of more operations."""
    lines = {}
    for name, live in steps.items():
        parts = min(DRAWN_PARTS, len(live))
        edges = [len(live) * part // parts for part in range(parts + 1)]
        most = [max(live[begin:end]) for begin, end in zip(edges, edges[1:])]
        lines[name] = edges[:-1], most
    figure = new_figure(title, TRADEOFF_PIXELS)
    return draw_lines(figure, lines, "operations, in their order", unit, f"%{{y}} {unit}")
