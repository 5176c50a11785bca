"""plotly figure of a step as two streams (pictures.Streams), as static/streams.js draws it on the
pages: computing, the link, and hatched what is exposed."""

import plotly.graph_objects as go

from shardlab.formulas.events import COMPUTE, LINK, end_seconds, operations, run, waiting

from .figures import FOOT_PIXELS, HEAD_PIXELS, INK, axis, new_figure, round_up
from .format import format_as
from .palette import MEMORY, TIMELINE

STREAM_ROW_PIXELS = 52
PALETTES = dict(memory=MEMORY, timeline=TIMELINE)


def streams_figure(picture, computed):
    """`computed` is what the explorer's compute() returned: the simulator plays the picture's step
    with it."""
    ran = run(operations(picture.step, computed))
    idle, end = list(waiting(ran)), end_seconds(ran)
    exposed = sum(stop - start for _, start, stop in idle)
    words = f"{format_as(exposed, 'short duration')} of {format_as(end, 'short duration')} exposed"
    figure = new_figure(
        f"{picture.title}<br><span style='font-size:13px'>{words}</span>",
        HEAD_PIXELS + FOOT_PIXELS + 28 + 2 * STREAM_ROW_PIXELS,
        barmode="overlay",
        bargap=0,
    )
    figure.update_layout(margin=dict(t=HEAD_PIXELS + 12, b=FOOT_PIXELS + 16))
    for event, label, colour in picture.colours:
        palette, _, name = colour.partition("-")
        bars = [one for one in ran if one.name == event and one.end > one.start]
        if bars:
            swatch = PALETTES[palette][name.replace("-", "_")]
            spans = [(one.stream, one.start, one.end) for one in bars]
            figure.add_trace(_bars(label, spans, dict(color=swatch.light), swatch.line))
    if idle:
        hatch = dict(color="rgba(0,0,0,0)", pattern=dict(shape="/", size=7, fgcolor=INK))
        spans = [(COMPUTE, start, stop) for _, start, stop in idle]
        figure.add_trace(_bars("exposed: nothing computes", spans, hatch, INK))
    figure.update_layout(showlegend=True, legend=dict(orientation="h", y=-0.35, x=0))
    figure.update_xaxes(
        axis(
            range=[0, round_up(1000 * end or 1)],
            showgrid=True,
            nticks=6,
            title=dict(text="milliseconds", font=dict(size=12), standoff=4),
        )
    )
    figure.update_yaxes(
        axis(
            range=[1.5, -0.5],
            tickmode="array",
            tickvals=[0, 1],
            ticktext=["computing", "link"],
            ticks="outside",
            tickwidth=0,
            ticklen=8,
        )
    )
    return figure


def _bars(label, spans, fill, line):
    rows = {COMPUTE: 0, LINK: 1}
    return go.Bar(
        orientation="h",
        name=label,
        base=[_milliseconds(start) for _, start, _ in spans],
        x=[_milliseconds(stop - start) for _, start, stop in spans],
        y=[rows[stream] for stream, *_ in spans],
        width=[0.7] * len(spans),
        marker=dict(**fill, line=dict(color=line, width=1)),
        text=[
            f"{label}: {format_as(stop - start, 'short duration')} from"
            f" {format_as(start, 'short duration')} on"
            for _, start, stop in spans
        ],
        textposition="none",
        hovertemplate="%{text}<extra></extra>",
    )


def _milliseconds(seconds):
    return float(f"{1000 * seconds:.5g}")
