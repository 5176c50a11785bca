"""plotly figure of quantities along a swept one (pictures.Curves), as static/curves.js draws it on
the pages; measured points are drawn beside the lines.

    curves_figure(curves, computed, swept, measured={"ring_all_reduce_seconds": [(65_536, 210e-6),
    (1_048_576, 1.9e-3)]})
"""

import math

import plotly.graph_objects as go

from .figures import HEAD_PIXELS, INK, LINE, axis, new_figure, round_up
from .format import format_as
from .palette import LINES
from .spec import fill_in

# pixels; labels at the ends of lines are at least so far apart
HEIGHT, FOOT, LABELS_APART = 430, 64, 17
LETTER = 7.2


def curves_figure(curves, computed, swept, measured=None):
    """`computed` is the result of the explorer's compute(), `swept` the result of its swept() for
    this picture. `measured`: a line's quantity -> pairs (value of the swept quantity, measured
    value), drawn as filled marks beside the line.

    Raises ValueError for a measured point that a logarithmic axis cannot show.
    """
    swept, measured, shown = list(swept), measured or {}, curves.shown(computed)
    points = [(quantity, x, y) for quantity, pairs in measured.items() for x, y in pairs]
    for quantity, x, y in points:
        if (x <= 0 and curves.x.scale == "log") or (y <= 0 and curves.y.scale == "log"):
            raise ValueError(
                f"{quantity} was measured as {y} at {curves.sweep} = {x}: a logarithmic axis has"
                " only places above 0."
            )
    title = curves.title + (
        "<br><span style='font-size:13px'>lines: predicted, marks: measured</span>"
        if points
        else ""
    )
    head = HEAD_PIXELS + 14 + (12 if points else 0)
    labels = {place: fill_in(line.label, computed) for place, line in shown}
    figure = new_figure(title, HEIGHT)
    figure.update_layout(
        margin=dict(
            t=head, b=FOOT, r=round(LETTER * max(map(len, labels.values()), default=0)) + 14
        )
    )

    drawn = [values[line.name] for _, values in swept for _, line in shown]
    span = range_of(curves.y, drawn + [y for _, _, y in points], curves.above)
    width = [curves.stops[0] if curves.x.scale == "log" else 0, curves.stops[-1]]
    inside = [x for _, x, _ in points if x > 0]
    width = [min([width[0], *inside]), max([width[1], *inside])]
    figure.update_xaxes(_axis(curves.x, width))
    figure.update_yaxes(_axis(curves.y, span))

    for name, words in curves.marks:
        if width[0] <= computed[name] <= width[1]:
            figure.add_trace(
                go.Scatter(
                    x=[computed[name]] * 2,
                    y=list(span),
                    mode="lines+text",
                    line=dict(color=INK, width=1, dash="dot"),
                    cliponaxis=False,
                    text=["", fill_in(words, computed)],
                    textposition="top center",
                    hoverinfo="skip",
                    name=name,
                )
            )
    for place, line in shown:
        stroke, sizes = LINES[place], [values[line.name] for _, values in swept]
        figure.add_trace(
            go.Scatter(
                x=[_short(stop) for stop, _ in swept],
                y=[_short(size) for size in sizes],
                mode="lines",
                name=labels[place],
                line=dict(
                    color=stroke.colour,
                    width=2.5,
                    dash=",".join(f"{length}px" for length in stroke.dash) or "solid",
                ),
                text=[
                    f"{line.label if '{' not in line.label else line.name}:"
                    f" {format_as(size, curves.y.style)}"
                    for size in sizes
                ],
                hovertemplate="%{text}<extra></extra>",
            )
        )
        pairs = measured.get(line.name, ())
        if pairs:
            figure.add_trace(
                go.Scatter(
                    x=[_short(x) for x, _ in pairs],
                    y=[_short(y) for _, y in pairs],
                    mode="markers",
                    name=f"{labels[place]}, measured",
                    marker=dict(
                        symbol=stroke.mark,
                        size=9,
                        color=stroke.colour,
                        line=dict(width=1, color=INK),
                    ),
                    cliponaxis=False,
                    text=[f"measured: {format_as(y, curves.y.style)}" for _, y in pairs],
                    hovertemplate="%{text}<extra></extra>",
                )
            )
    figure.add_trace(_words_at_the_ends(curves, shown, labels, swept, span, HEIGHT - head - FOOT))
    figure.add_trace(_point(curves, computed, width, span, bool(points)))
    return figure


def range_of(y, sizes, above):
    """[least, most] of an axis: half powers of ten around all sizes, with room for the point's
    words; or from zero."""
    sizes = [size for size in sizes if size > 0]
    if not sizes:
        return [1, 10] if y.scale == "log" else [0, 1]
    if y.scale != "log":
        return [0, round_up(1.15 * max(sizes))]
    low, high = math.log10(min(sizes)), math.log10(max(sizes))
    room = 0.15 * max(high - low, 1)
    return [
        10 ** (math.floor(2 * (low - (0 if above else room))) / 2),
        10 ** (math.ceil(2 * (high + (room if above else 0))) / 2),
    ]


def _axis(drawn, span):
    log = drawn.scale == "log"
    ticks = drawn.ticks
    if log and not ticks:
        ticks = [
            10.0**power
            for power in range(
                math.ceil(math.log10(span[0]) - 1e-9), math.floor(math.log10(span[1]) + 1e-9) + 1
            )
        ]
    numbers = (
        dict(tickmode="array", tickvals=list(ticks), ticktext=[drawn.text(tick) for tick in ticks])
        if ticks
        else dict(nticks=6)
    )
    return axis(
        type="log" if log else "linear",
        range=[round(math.log10(end), 4) for end in span] if log else list(span),
        showgrid=True,
        showline=True,
        title=dict(text=drawn.words, font=dict(size=13), standoff=8),
        **numbers,
    )


def _short(value):
    return value if isinstance(value, int) else float(f"{value:.5g}")


def _place(value, span, log):
    """0 at the least of an axis, 1 at its most."""
    return (
        math.log(value / span[0]) / math.log(span[1] / span[0])
        if log
        else (value - span[0]) / (span[1] - span[0])
    )


def _words_at_the_ends(curves, shown, labels, swept, span, pixels):
    """The label at the end of each line; labels of lines that end close together are pushed
    apart."""
    log, ends, last = curves.y.scale == "log", [], swept[-1][1] if swept else {}
    for place, line in shown:
        if last and (last[line.name] > 0 or not log):
            ends.append([_place(last[line.name], span, log), labels[place]])
    ends.sort(reverse=True)
    for k, end in enumerate(ends[1:], 1):
        end[0] = min(end[0], ends[k - 1][0] - LABELS_APART / pixels)
    for k, end in enumerate(reversed(ends)):
        end[0] = max(end[0], k * LABELS_APART / pixels)
    at = [
        span[0] * (span[1] / span[0]) ** share if log else span[0] + share * (span[1] - span[0])
        for share, _ in ends
    ]
    return go.Scatter(
        x=[curves.stops[-1]] * len(ends),
        y=[_short(float(y)) for y in at],
        mode="text",
        text=[f" {label}" for _, label in ends],
        textposition="middle right",
        cliponaxis=False,
        hoverinfo="skip",
        name="",
    )


def _point(curves, computed, width, span, ring):
    """The reader's point, with its number: a disc, or a ring if something was measured; an arrow if
    the point is beyond the axis."""
    here, size = computed[curves.sweep], computed[curves.point]
    symbol = (
        "triangle-right"
        if here > width[1]
        else "triangle-left"
        if here < width[0]
        else "circle-open"
        if ring
        else "circle"
    )
    at = min(max(here, width[0]), width[1])
    share = _place(at, width, curves.x.scale == "log")
    side = (
        ("top left" if share > 0.15 else "top right")
        if curves.above
        else ("bottom right" if share < 0.85 else "bottom left")
    )
    return go.Scatter(
        x=[at],
        y=[min(max(_short(size), span[0]), span[1])],
        mode="markers+text",
        name="here",
        cliponaxis=False,
        marker=dict(symbol=symbol, size=13, color=LINE, line=dict(width=2, color=LINE)),
        text=[f"<b>{fill_in(curves.words, computed)}</b>"],
        textposition=side,
        hovertemplate=f"{fill_in(curves.words, computed)}<extra></extra>",
    )
