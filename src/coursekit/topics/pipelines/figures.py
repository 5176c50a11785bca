"""plotly figures of pipelines: who works on which microbatch, and when; how a loss falls."""

from collections.abc import Sequence

import plotly.graph_objects as go

from coursekit.show.figures import (
    FOOT_PIXELS,
    HEAD_PIXELS,
    legend_below,
    name_rows,
    new_figure,
    reach,
)
from coursekit.show.palette import TIMELINE
from shardlab.pipelines.schedules import Kind, Schedule
from shardlab.pipelines.simulation import EQUAL, Costs, Span, simulate

RANK_ROW_PIXELS = 40

_COLOURS = {
    Kind.FORWARD: ("F", "forward"),
    Kind.BACKWARD: ("B", "backward"),
    Kind.INPUT: ("I, gradients of inputs", "backward"),
    Kind.WEIGHT: ("W, gradients of weights", "weight_gradient"),
}


def pipeline_figure(
    title: str,
    lists: Schedule,
    costs: Costs = EQUAL,
    measured: Sequence[Sequence[Span]] = (),
    until: float = 0.0,
) -> go.Figure:
    """The simulated timeline, a row for each rank, with the numbers of the microbatches. Measured
    spans fill it, and leave the simulated ones as outlines. The axis reaches `until`, in the unit
    of the costs, or farther: figures to compare have one axis."""
    simulated = simulate(lists, costs).spans
    scale, unit = (1000, "milliseconds") if measured else (1, "time of a forward")
    if measured:
        title += "<br><span style='font-size:13px'>outline: simulated, fill: measured</span>"
    layers = [(simulated, 0.78, not measured)]
    layers += [(from_zero(measured), 0.5, True)] if measured else []
    ends = [span.end for spans, *_ in layers for own in spans for span in own]
    head = HEAD_PIXELS + (12 if measured else 0)
    height = head + FOOT_PIXELS + 70 + RANK_ROW_PIXELS * len(lists)
    figure = new_figure(title, height, barmode="overlay", bargap=0)
    figure.update_layout(margin=dict(t=head, b=FOOT_PIXELS + 70), **legend_below(-0.28))
    for spans, width, filled in layers:
        for kind in Kind:
            chosen = [(rank, span) for rank, own in enumerate(spans) for span in own]
            chosen = [(rank, span) for rank, span in chosen if span.action.kind is kind]
            if chosen:
                figure.add_trace(bars_of(kind, chosen, width, filled, scale))
    reach(figure, scale * max(until, *ends), unit)
    name_rows(figure, [f"rank {rank}" for rank in range(len(lists))])
    return figure


def bars_of(
    kind: Kind, spans: Sequence[tuple[int, Span]], width: float, filled: bool, scale: float
) -> go.Bar:
    words, colour = _COLOURS[kind]
    swatch = TIMELINE[colour]
    numbers = [str(span.action.microbatch) for _, span in spans]
    return go.Bar(
        orientation="h",
        name=words,
        showlegend=filled,
        y=[rank for rank, _ in spans],
        base=[float(f"{scale * span.begin:.4g}") for _, span in spans],
        x=[float(f"{scale * (span.end - span.begin):.4g}") for _, span in spans],
        width=[width] * len(spans),
        marker=dict(
            color=swatch.light if filled else "rgba(0,0,0,0)",
            line=dict(color=swatch.line, width=1 if filled else 2),
        ),
        text=numbers if filled else None,
        textposition="inside",
        textangle=0,
        insidetextanchor="middle",
        insidetextfont=dict(color="white" if kind is Kind.FORWARD else "black", size=11),
        hovertemplate=f"{words}: microbatch %{{text}}<extra></extra>" if filled else None,
        hoverinfo=None if filled else "skip",
    )


def from_zero(spans: Sequence[Sequence[Span]]) -> list[list[Span]]:
    """Spans of one clock, from the first begin on."""
    first = min(span.begin for own in spans for span in own)
    return [[Span(a, begin - first, end - first) for a, begin, end in own] for own in spans]
