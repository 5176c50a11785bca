"""plotly figure of what was measured: gradients by size beside what a format holds.

sizes_figure("Gradients, divided by 2,048", sizes, CARD_FORMATS["fp16"], exponent=-11)
"""

import plotly.graph_objects as go

from coursekit.show.figures import axis, draw_line, new_figure, write_words
from coursekit.show.palette import MEMORY
from coursekit.topics.mixed_precision.formats import ShownFormat
from coursekit.topics.mixed_precision.histogram import Sizes

FIGURE_PIXELS = 320


def sizes_figure(title: str, sizes: Sizes, kind: ShownFormat, exponent: int = 0) -> go.Figure:
    """How many gradients there are of each size, times 2^exponent; lines where the format rounds to
    zero, where it has all of its bits, and where it overflows."""
    places = [place + exponent for place in range(sizes.first, sizes.first + len(sizes.counts))]
    total = sum(sizes.counts)
    swatch = MEMORY["gradients"]
    figure = new_figure(title, FIGURE_PIXELS, bargap=0.1)
    figure.add_trace(
        go.Bar(
            x=[place + 0.5 for place in places],
            y=[100 * count / total for count in sizes.counts],
            marker=dict(color=swatch.light, line=dict(color=swatch.line, width=1)),
            text=[
                f"from 2^{place}: {count / total:.2%}" for place, count in zip(places, sizes.counts)
            ],
            textposition="none",
            hovertemplate="%{text}<extra></extra>",
        )
    )
    words = dict(font=dict(size=12), standoff=6)
    figure.update_xaxes(
        axis(
            title=dict(text="size, power of two", **words),
            range=[min(places[0], -42), max(places[-1] + 1, 18)],
            showline=True,
            dtick=10,
        )
    )
    figure.update_yaxes(
        axis(title=dict(text="percent of all", **words), showgrid=True, rangemode="tozero")
    )
    edges = (  # words of neighbours have heights of their own: a phone has no room beside them
        (kind.smallest_exponent - 1, "becomes 0", 1.0),
        (kind.least_exponent, "fewer bits", 0.88),
        (kind.greatest_exponent + 1, "fits", 1.0),
    )
    for place, said, height in edges:
        draw_line(figure, x=place, width=1, dash="dash")
        write_words(figure, f"{said} ", x=place, y=height, yref="paper", xanchor="right")
    return figure
