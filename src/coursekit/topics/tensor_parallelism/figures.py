"""A plotly figure: what a rank keeps and sends, by the number of ranks.

shares_figure("One MLP", (1, 2, 4), {"kept": [64, 32, 16], "sent": [0, 4, 6]}, 4, (16, 6))
"""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from coursekit.show.figures import axis, legend_below, new_figure
from coursekit.show.palette import LINES

SHARES_PIXELS = 360


def shares_figure(
    title: str,
    counts: Sequence[int],
    lines: Mapping[str, Sequence[float]],
    measured_at: int,
    measured: Sequence[float],
) -> go.Figure:
    """`lines`: name -> bytes for each of the counts of ranks, by formula; `measured`: bytes for
    each line, on `measured_at` ranks."""
    figure = new_figure(title, SHARES_PIXELS)
    places = list(range(len(counts)))
    at = list(counts).index(measured_at)
    for stroke, (name, nbytes), found in zip(LINES, lines.items(), measured, strict=False):
        figure.add_trace(
            go.Scatter(
                x=places,
                y=[size / 1000 for size in nbytes],
                mode="lines",
                name=f"{name}, by formula",
                line=dict(
                    color=stroke.colour,
                    width=2,
                    dash=",".join(f"{pixels}px" for pixels in stroke.dash) or "solid",
                ),
                hovertemplate="%{y} kB<extra>" + name + "</extra>",
            )
        )
        figure.add_trace(
            go.Scatter(
                x=[at],
                y=[found / 1000],
                mode="markers",
                name=f"{name}, measured",
                marker=dict(symbol=stroke.mark, size=11, color=stroke.colour),
                hovertemplate="%{y} kB<extra>measured</extra>",
            )
        )
    words = dict(font=dict(size=12), standoff=6)
    figure.update_xaxes(
        axis(
            title=dict(text="ranks", **words),
            tickvals=places,
            ticktext=[str(count) for count in counts],
            showline=True,
        )
    )
    figure.update_yaxes(axis(title=dict(text="kB", **words), showgrid=True, rangemode="tozero"))
    figure.update_layout(margin_b=120, **legend_below(-0.22))
    return figure
