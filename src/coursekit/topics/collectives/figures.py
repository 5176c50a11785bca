"""plotly figures of links and collectives: a message's time against its bytes, and ways to do the
same beside each other.

    message_figure("Messages", sizes, seconds, *link)           # link = fit_link(sizes, seconds)
    race_figure("All-reduce of 1 MB", [("ring", 0.12, 0.13), ("tree", 0.32, 0.32)])
"""

import math

import plotly.graph_objects as go

from coursekit.show.figures import (
    CLEAR,
    FOOT_PIXELS,
    HEAD_PIXELS,
    INK,
    ROW_PIXELS,
    axis,
    draw_line,
    legend_below,
    name_rows,
    new_figure,
    reach,
    write_words,
)
from coursekit.show.format import format_as
from coursekit.show.palette import LINES, TIMELINE

SWATCH = TIMELINE["communication"]
TIME_UNITS = (("seconds", 1), ("milliseconds", 1e-3), ("microseconds", 1e-6))


def message_figure(title, sizes, seconds, latency_seconds, bytes_per_second):
    """Discs: measured. Line: latency + bytes / bandwidth, and where the two are equal. Both axes
    are logarithmic.

    Raises ValueError for a size or a time that has no logarithm."""
    if not all(value > 0 for value in (*sizes, *seconds)):
        raise ValueError(
            f"sizes {list(sizes)}, seconds {list(seconds)}: all must be above 0 for logarithmic"
            " axes."
        )
    figure = new_figure(
        f"{title}<br><span style='font-size:13px'>discs: measured, line: fitted</span>", 340
    )
    figure.update_layout(margin_t=HEAD_PIXELS + 22)
    low, high = math.log10(min(sizes)), math.log10(max(sizes))
    places = [10 ** (low + (high - low) * k / 48) for k in range(49)]
    line = [latency_seconds + place / bytes_per_second for place in places]
    figure.add_trace(
        go.Scatter(
            x=[round(x, 1) for x in places],
            y=[float(f"{y:.4g}") for y in line],
            mode="lines",
            name="fitted",
            line=dict(color=INK, width=1.5),
            hoverinfo="skip",
        )
    )
    figure.add_trace(
        go.Scatter(
            x=list(sizes),
            y=[float(f"{y:.4g}") for y in seconds],
            mode="markers",
            name="measured",
            cliponaxis=False,
            text=[
                f"{format_as(x, 'decimal bytes')}: {format_as(y, 'duration')}"
                for x, y in zip(sizes, seconds)
            ],
            hovertemplate="%{text}<extra></extra>",
            marker=dict(size=10, color=SWATCH.light, line=dict(color=SWATCH.line, width=1.5)),
        )
    )
    equal = latency_seconds * bytes_per_second
    if min(sizes) < equal < max(sizes):
        draw_line(figure, x=equal, width=1, dash="dot")
        side = "right" if math.log10(equal) > (low + high) / 2 else "left"
        words = f"{format_as(equal, 'decimal bytes')}: latency = bytes"
        write_words(figure, words, x=math.log10(equal), y=1, yref="paper", xanchor=side)
    figure.update_xaxes(
        axis(type="log", showgrid=True, showline=True, **_ticks(sizes, "decimal bytes"))
    )
    figure.update_yaxes(
        axis(type="log", showgrid=True, **_ticks([*seconds, *line], "short duration"))
    )
    return figure


def _ticks(values, style):
    """One tick a power of ten, or every second or third where there are many."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    powers = range(low, high + 1, 1 + (high - low) // 5)
    return dict(
        tickmode="array",
        tickvals=[10.0**power for power in powers],
        ticktext=[format_as(10.0**power, style) for power in powers],
        range=[math.log10(min(values)) - 0.15, math.log10(max(values)) + 0.15],
    )


def race_figure(title, rows):
    """Bars of seconds from zero, one a row: (name, predicted, measured); either may be None.
    Predicted is an outline around what was measured.

    Raises ValueError without rows."""
    if not rows:
        raise ValueError(
            "a race has at least one row: (name, predicted seconds, measured seconds)."
        )
    most = max(value for _, *times in rows for value in times if value is not None)
    unit, scale = next(pair for pair in TIME_UNITS if most >= pair[1] or pair is TIME_UNITS[-1])
    figure = new_figure(
        f"{title}<br><span style='font-size:13px'>outline: predicted, fill: measured</span>",
        HEAD_PIXELS + 12 + FOOT_PIXELS + ROW_PIXELS * len(rows),
        barmode="overlay",
        bargap=0,
    )
    figure.update_layout(margin_t=HEAD_PIXELS + 12)
    for place, (name, *times) in enumerate(rows):
        for kind, value, width, fill in zip(
            ("predicted", "measured"), times, (0.6, 0.36), (CLEAR, SWATCH.light)
        ):
            if value is not None:
                figure.add_trace(
                    go.Bar(
                        orientation="h",
                        x=[float(f"{value / scale:.4g}")],
                        y=[place],
                        width=[width],
                        name=f"{name}, {kind}",
                        hovertemplate=(
                            f"{name}, {kind}: {format_as(value, 'duration')}<extra></extra>"
                        ),
                        marker=dict(color=fill, line=dict(color=SWATCH.line, width=2)),
                    )
                )
    reach(figure, 1.02 * most / scale, unit)
    figure.update_layout(margin_b=FOOT_PIXELS + 16, height=figure.layout.height + 16)
    name_rows(figure, [_words(*row) for row in rows])
    return figure


def _words(name, predicted, measured):
    said = [format_as(measured, "short duration")] if measured is not None else []
    if predicted is not None:
        said.append(f"predicted {format_as(predicted, 'short duration')}")
    return f"{name}<br>{', '.join(said)}"


def bytes_figure(sent):
    """A bar for each rank and way of an all-reduce: way -> bytes that each rank sends."""
    figure = new_figure("Bytes that each rank sends", 320, barmode="group", bargap=0.3)
    figure.update_layout(margin_b=2 * FOOT_PIXELS, **legend_below(-0.15))
    for (way, of_ranks), stroke in zip(sent.items(), LINES):
        figure.add_trace(
            go.Bar(
                name=way,
                x=[f"rank {rank}" for rank in range(len(of_ranks))],
                y=list(of_ranks),
                marker=dict(color=stroke.colour, line=dict(color=INK, width=1)),
                hovertemplate=f"{way}, %{{x}}: %{{y:,}} bytes<extra></extra>",
            )
        )
    figure.update_xaxes(axis())
    figure.update_yaxes(axis(showgrid=True, nticks=6))
    return figure
