"""plotly figure of what a rank keeps in each stage."""

import plotly.graph_objects as go

from coursekit.show.figures import FOOT_PIXELS, HEAD_PIXELS, axis, legend_below, new_figure
from coursekit.show.palette import MEMORY

STAGE_PIXELS = 44
_KINDS = {"parameters": "parameters", "gradients": "gradients", "optimizer": "optimizer states"}


def stages_figure(kept):
    """A bar for each stage: name -> {kind: bytes}, of the kinds parameters, gradients and
    optimizer. Stacked, in kB."""
    height = HEAD_PIXELS + 2 * FOOT_PIXELS + STAGE_PIXELS * len(kept)
    title = "What does rank 0 keep, in kB?"
    figure = new_figure(title, height, barmode="stack", bargap=0.35)
    for kind, words in _KINDS.items():
        swatch = MEMORY[kind]
        figure.add_trace(
            go.Bar(
                orientation="h",
                name=words,
                x=[counts[kind] / 1000 for counts in kept.values()],
                y=list(kept),
                marker=dict(color=swatch.light, line=dict(color=swatch.line, width=1.5)),
                hovertemplate=f"%{{y}}: {words}, %{{x:,.0f}} kB<extra></extra>",
            )
        )
    figure.update_layout(margin_b=2 * FOOT_PIXELS, **legend_below(-0.2))
    figure.update_xaxes(axis(showgrid=True))
    figure.update_yaxes(axis(autorange="reversed"))
    return figure
