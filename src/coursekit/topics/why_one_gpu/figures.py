"""plotly figure of model states: predicted bytes as outlines, measured bytes as fills."""

from typing import NamedTuple

import plotly.graph_objects as go

from coursekit.show.figures import (
    CLEAR,
    FOOT_PIXELS,
    HEAD_PIXELS,
    INK,
    ROW_PIXELS,
    axis,
    name_rows,
    new_figure,
    unit_of,
)
from coursekit.show.format import DECIMAL, decimal_bytes, format_exact, round_up
from coursekit.show.palette import MEMORY

# The quantities that the figure may be asked for, in the order of their rows.
STATES = {
    "parameter_bytes": ("parameters", "parameters"),
    "gradient_bytes": ("gradients", "gradients"),
    "optimizer_bytes": ("optimizer states", "optimizer"),
    "step_counter_bytes": ("step counters", "optimizer"),
}


class State(NamedTuple):
    """A row: its label, its colour's name in palette.MEMORY, its bytes."""

    label: str
    colour: str
    predicted: int
    measured: int | None


def states_figure(predicted, measured, title="Model states"):
    """Bytes, formula -> bytes, each bar starting where the one above ended, and their sum. Both
    have the same names of STATES, or `measured` None: then predicted bars are fills."""
    there = sorted({*predicted, *(measured or ())}, key=[*STATES].index)
    of_measured = measured or dict.fromkeys(predicted)
    rows = [State(*STATES[name], predicted[name], of_measured[name]) for name in there]
    whole = sum(measured.values()) if measured else None
    together = State("together", "", sum(predicted.values()), whole)
    most = max(together.predicted, together.measured or 0, 1)
    unit, scale = unit_of(most, DECIMAL)
    if measured:
        title += "<br><span style='font-size:13px'>outline: predicted, fill: measured</span>"
    head_pixels = HEAD_PIXELS + (12 if measured else 0)
    height = head_pixels + FOOT_PIXELS + ROW_PIXELS * (len(rows) + 1)
    figure = new_figure(title, height, barmode="overlay", bargap=0)
    figure.update_layout(margin_t=head_pixels)
    along = [0, round_up(1.02 * most / scale)]
    figure.update_xaxes(axis(range=along, ticksuffix=f" {unit}", nticks=5, showgrid=True))
    name_rows(figure, [_words(row) for row in [*rows, together]])

    start = 0
    for place, row in enumerate([*rows, together]):
        base = 0 if row is together else start
        figure.add_trace(_bar(row, "predicted", place, base, row.predicted, scale))
        if measured:
            figure.add_trace(_bar(row, "measured", place, base, row.measured, scale))
        start = base + row.predicted
    return figure


def _words(row):
    """The words beside a bar: its name, its bytes, and the prediction if it differs."""
    shown = row.predicted if row.measured is None else row.measured
    beside = f", predicted {decimal_bytes(row.predicted)}" if shown != row.predicted else ""
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
        width=[0.56 if kind == "predicted" else 0.32],
        name=f"{row.label}, {kind}",
        hovertemplate=f"{words}<extra></extra>",
    )
