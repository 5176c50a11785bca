"""A plotly figure of what was measured: bytes at the peak beside the time of a step, by policy.

tradeoff_figure("Measured here", {"nothing": (0.031, 38_400_000), "each block": (0.04, 9_200_000)})
"""

from collections.abc import Mapping

import plotly.graph_objects as go

from shardlab.show.figures import axis, legend_below, new_figure
from shardlab.show.palette import LINES

TRADEOFF_PIXELS = 380
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
        axis(
            title=dict(text="a step, ms of one CPU thread", **words),
            showline=True,
            rangemode="tozero",
        )
    )
    figure.update_yaxes(
        axis(title=dict(text="peak, MB", **words), showgrid=True, rangemode="tozero")
    )
    figure.update_layout(margin_b=110, **legend_below(-0.2))
    return figure
