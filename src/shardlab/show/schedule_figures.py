"""plotly figure of a pipeline's schedule (SchedulePicture), as static/schedules.js draws it on the
pages: a row for each rank, and what it holds at the peak."""

import plotly.graph_objects as go

from shardlab.schedule_simulation import in_flight
from shardlab.schedules import Kind

from .figures import FOOT_PIXELS, HEAD_PIXELS, axis, new_figure, round_up
from .format import format_as
from .palette import TIMELINE

RANK_PIXELS = 34
ACTION_WORDS = {
    Kind.FORWARD: ("forward", "forward"),
    Kind.BACKWARD: ("backward", "backward"),
    Kind.INPUT: ("gradient of the input", "backward"),
    Kind.WEIGHT: ("gradients of the weights", "weight_gradient"),
}


def schedule_figure(picture, computed):
    """`computed` is what the explorer's compute() returned: the picture plays its lists with it."""
    timeline, held = picture.timeline(computed), in_flight(picture.plan(computed))
    found = picture.derived(computed)
    share = format_as(found["simulated_share_of_total"], "percent")
    words = f"{share} of {format_as(timeline.seconds, 'short duration')} idle"
    figure = new_figure(
        f"{picture.title}<br><span style='font-size:13px'>{words}</span>",
        HEAD_PIXELS + FOOT_PIXELS + 28 + RANK_PIXELS * len(held),
        barmode="overlay",
        bargap=0,
    )
    figure.update_layout(margin=dict(t=HEAD_PIXELS + 12, b=FOOT_PIXELS + 16))
    for kind, (label, colour) in ACTION_WORDS.items():
        spans = [
            (rank, span)
            for rank, own in enumerate(timeline.spans)
            for span in own
            if span.action.kind is kind and span.end > span.begin
        ]
        if spans:
            figure.add_trace(_bars(label, spans, TIMELINE[colour]))
    figure.update_layout(showlegend=True, legend=dict(orientation="h", y=-0.35, x=0))
    figure.update_xaxes(
        axis(
            range=[0, round_up(1000 * timeline.seconds or 1)],
            showgrid=True,
            nticks=6,
            title=dict(text="milliseconds", font=dict(size=12), standoff=4),
        )
    )
    figure.update_yaxes(
        axis(
            range=[len(held) - 0.5, -0.5],
            tickmode="array",
            tickvals=list(range(len(held))),
            ticktext=[f"rank {rank}: {most} in flight" for rank, most in enumerate(held)],
            ticks="outside",
            tickwidth=0,
            ticklen=8,
        )
    )
    return figure


def _bars(label, spans, swatch):
    return go.Bar(
        orientation="h",
        name=label,
        base=[_milliseconds(span.begin) for _, span in spans],
        x=[_milliseconds(span.end - span.begin) for _, span in spans],
        y=[rank for rank, _ in spans],
        width=[0.8] * len(spans),
        marker=dict(color=swatch.light, line=dict(color=swatch.line, width=1)),
        text=[str(span.action.microbatch) for _, span in spans],
        textposition="inside",
        insidetextanchor="middle",
        hovertext=[
            f"stage {span.action.stage}, {label} of microbatch {span.action.microbatch}"
            for _, span in spans
        ],
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _milliseconds(seconds):
    return float(f"{1000 * seconds:.5g}")
