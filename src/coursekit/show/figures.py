"""plotly figures of formulas and measurements.

Predicted values are outlines, measured values fills. Bytes start at zero, and the words beside a
bar say the same as its colour. The background is transparent, and text is a grey that is readable
on a light and on a dark page (the book sets its own colours). The JSON is small and the same for
the same numbers: plain lists, no template, no ids.
"""

from dataclasses import dataclass

import plotly.graph_objects as go

from .format import DECIMAL, decimal_bytes, format_exact, round_up
from .palette import LINES, MEMORY, PAGE, TIMELINE

CLEAR = "rgba(0,0,0,0)"
INK = PAGE.line
LINE = TIMELINE["forward"].line
ROW_PIXELS, HEAD_PIXELS, FOOT_PIXELS = 44, 56, 40


# --- what all figures share -----------------------------------------------------------------------


def new_figure(title, height, **layout):
    """An empty figure of `height` pixels under a title of one line, or two with <br>, that starts
    at the left."""
    return go.Figure(
        layout=dict(
            template=go.layout.Template(),
            paper_bgcolor=CLEAR,
            plot_bgcolor=CLEAR,
            height=height,
            showlegend=False,
            font=dict(color=INK, size=13),
            margin=dict(l=10, r=16, t=HEAD_PIXELS, b=FOOT_PIXELS),
            title=dict(
                text=title,
                x=0,
                xref="container",
                xanchor="left",
                y=1,
                yref="container",
                yanchor="top",
                pad=dict(t=22 if "<br>" in title else 8),
                font=dict(size=15),
            ),
            **layout,
        )
    )


def axis(**given):
    """An axis without a zero line of its own; the page colours grid and ticks."""
    return {
        **dict(
            showgrid=False,
            zeroline=False,
            linecolor=INK,
            tickcolor=INK,
            gridcolor="rgba(117,123,132,0.25)",
            tickangle=0,
            fixedrange=True,
            automargin=True,
        ),
        **given,
    }


def draw_line(figure, x=None, y=None, **line):
    """A line across the figure: at x from bottom to top, or at y from left to right."""
    ends = dict(x0=x, x1=x, y0=0, y1=1, yref="paper")
    if x is None:
        ends = dict(x0=0, x1=1, y0=y, y1=y, xref="paper")
    figure.add_shape(type="line", line=dict(color=INK, **line), **ends)


def write_words(figure, words, **place):
    """Words without an arrow, above their place."""
    figure.add_annotation(text=words, yanchor="bottom", showarrow=False, **place)


def name_rows(figure, names):
    """A name beside each row of bars; the first row is on top."""
    down = dict(range=[len(names) - 0.5, -0.5], tickvals=list(range(len(names))), ticktext=names)
    look = dict(tickmode="array", ticks="outside", tickwidth=0, ticklen=8)
    figure.update_yaxes(axis(**down, **look))


def reach(figure, most, words):
    """An axis along, from zero to `most` or a round number above, with these words below."""
    title = dict(text=words, font=dict(size=12), standoff=4)
    figure.update_xaxes(axis(range=[0, round_up(most)], showgrid=True, nticks=6, title=title))


def legend_below(y):
    """The layout of a legend in one row below the figure."""
    legend = dict(orientation="h", x=0, xanchor="left", y=y, yanchor="top", traceorder="normal")
    return dict(showlegend=True, legend=dict(font=dict(size=12), itemclick=False, **legend))


# --- bytes ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bytes:
    """One row of a figure of bytes: its label, its colour's name in palette.MEMORY, and the bytes;
    None if nothing is predicted, or nothing measured."""

    label: str
    colour: str
    predicted: int | None = None
    measured: int | None = None

    @property
    def size(self):
        return self.predicted if self.predicted is not None else self.measured


# The quantities that a figure of model states may be asked for, in the order of their rows.
STATES = {
    "parameter_bytes": ("parameters", "parameters"),
    "gradient_bytes": ("gradients", "gradients"),
    "optimizer_bytes": ("optimizer states", "optimizer"),
    "step_counter_bytes": ("step counters", "optimizer"),
}


def states_figure(predicted, measured, title="Model states"):
    """Bytes of model states, formula -> bytes, predicted and measured: the keys of both are the
    same names of STATES."""
    there = sorted({*predicted, *measured}, key=[*STATES].index)
    rows = [Bytes(*STATES[name], predicted[name], measured[name]) for name in there]
    return memory_figure(title, rows)


def memory_figure(title, rows):
    """Rows of Bytes, each bar starting where the one above ended, and their sum. A predicted bar is
    an outline around a measured bar, and filled if nothing was measured."""
    compared = any(row.measured is not None for row in rows)
    measured = [row.measured for row in rows]
    together = Bytes(
        "together", "", sum(row.size for row in rows), None if None in measured else sum(measured)
    )
    most = max(together.predicted, together.measured or 0, 1)
    unit, scale = unit_of(most, DECIMAL)
    if compared:
        title += "<br><span style='font-size:13px'>outline: predicted, fill: measured</span>"
    head_pixels = HEAD_PIXELS + (12 if compared else 0)
    height = head_pixels + FOOT_PIXELS + ROW_PIXELS * (len(rows) + 1)
    figure = new_figure(title, height, barmode="overlay", bargap=0)
    figure.update_layout(margin_t=head_pixels)
    along = [0, round_up(1.02 * most / scale)]
    figure.update_xaxes(axis(range=along, ticksuffix=f" {unit}", nticks=5, showgrid=True))
    name_rows(figure, [_words(row) for row in [*rows, together]])

    start = 0
    for place, row in enumerate([*rows, together]):
        base = 0 if row is together else start
        for kind, size in (("predicted", row.predicted), ("measured", row.measured)):
            if size is not None:
                figure.add_trace(_bar(row, kind, place, base, size, scale))
        start = base + row.size
    return figure


def unit_of(most, units):
    """(unit, size): the largest unit of which `most` has at least one."""
    return next((unit, size) for unit, size in reversed(units) if most >= size or size == 1)


def _words(row):
    """The words beside a bar: its name, its bytes, and the prediction if it differs."""
    shown = row.measured if row.measured is not None else row.predicted
    differs = row.predicted not in (None, shown)
    beside = f", predicted {decimal_bytes(row.predicted)}" if differs else ""
    return f"{row.label}<br>{decimal_bytes(shown)}{beside}"


def _bar(row, kind, place, base, size, scale):
    swatch = MEMORY.get(row.colour)
    fill, line = (swatch.light, swatch.line) if swatch else (INK, INK)
    filled = kind == "measured" or row.measured is None
    words = f"{row.label}, {kind}: {decimal_bytes(size)} = {format_exact(size)} B"
    return go.Bar(
        orientation="h",
        x=[size / scale],
        base=[base / scale],
        y=[place],
        marker=dict(color=fill if filled else CLEAR, line=dict(color=line, width=2)),
        width=[0.56 if kind == "predicted" or row.predicted is None else 0.32],
        name=f"{row.label}, {kind}",
        hovertemplate=f"{words}<extra></extra>",
    )


def stacked_figure(title, rows, pieces, hover):
    """A bar for each row, of pieces one behind the other: words -> (a length for each row, swatch).
    `hover` is what a piece says behind its words, in plotly's form."""
    height = HEAD_PIXELS + 2 * FOOT_PIXELS + ROW_PIXELS * len(rows)
    figure = new_figure(title, height, barmode="stack", bargap=0.35)
    for words, (lengths, swatch) in pieces.items():
        figure.add_trace(
            go.Bar(
                orientation="h",
                name=words,
                x=lengths,
                y=list(rows),
                marker=dict(color=swatch.light, line=dict(color=swatch.line, width=1.5)),
                hovertemplate=f"{words}, {hover}<extra></extra>",
            )
        )
    figure.update_layout(margin_b=2 * FOOT_PIXELS, **legend_below(-0.2))
    figure.update_xaxes(axis(showgrid=True))
    return figure.update_yaxes(axis(autorange="reversed"))


# --- lines ----------------------------------------------------------------------------------------


def over_steps(numbers):
    """The places and heights of a line with a number for each step."""
    return range(1, len(numbers) + 1), [float(f"{number:.5g}") for number in numbers]


def draw_lines(figure, lines, along, up, hover="%{y}"):
    """Up to four lines, name -> (places, heights), from zero, above their names. `along` and `up`
    are the titles of the axes; `hover` is what a point says, in plotly's form."""
    for stroke, (name, (places, heights)) in zip(LINES, lines.items()):
        dash = ",".join(f"{pixels}px" for pixels in stroke.dash) or "solid"
        figure.add_trace(
            go.Scatter(
                x=list(places),
                y=list(heights),
                mode="lines",
                name=name,
                line=dict(color=stroke.colour, width=2, dash=dash),
                hovertemplate=f"{hover}<extra>{name}</extra>",
            )
        )
    words = dict(font=dict(size=12), standoff=6)
    figure.update_xaxes(axis(title=dict(text=along, **words), showline=True))
    figure.update_yaxes(axis(title=dict(text=up, **words), showgrid=True, rangemode="tozero"))
    figure.update_layout(margin_b=100, **legend_below(-0.22))
    return figure


def runs_figure(title, runs, unit="nats a token"):
    """Losses, or other numbers in `unit`, of up to four runs, step by step."""
    lines = {name: over_steps(numbers) for name, numbers in runs.items()}
    return draw_lines(new_figure(title, 350), lines, "step", unit, "step %{x}: %{y:.3f}")


def loss_figure(losses, levels=(), title="Loss on the batch of each step"):
    """Loss in nats against the step, from zero; `levels` are pairs (words, loss) drawn as lines
    across, to compare with."""
    figure = runs_figure(title, {"loss": losses})
    most = max([*losses, *(level for _, level in levels)])
    figure.update_yaxes(range=[0, 1.08 * most])
    for words, level in levels:
        draw_line(figure, y=level, width=1, dash="dash")
        side = dict(x=1, xref="paper", xanchor="right")
        write_words(figure, f"{words}: {level:.2f}", y=level, **side)
    return figure
