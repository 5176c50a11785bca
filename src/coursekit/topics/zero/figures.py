"""plotly figure of bytes by kind: what a rank keeps in each stage, at rest and at its peak."""

import plotly.graph_objects as go

from coursekit.show.figures import FOOT_PIXELS, HEAD_PIXELS, axis, legend_below, new_figure
from coursekit.show.palette import MEMORY

_ROW_PIXELS = 44
_UNITS = {"kB": 1000, "GiB": 2**30}
_WORDS = {"optimizer": "optimizer states"}


def kinds_figure(title, rows, unit):
    """A bar for each row, name -> bytes of kinds in the memory palette, a NamedTuple or a dict.
    Stacked, in kB or GiB."""
    rows = {name: own if isinstance(own, dict) else own._asdict() for name, own in rows.items()}
    height = HEAD_PIXELS + 2 * FOOT_PIXELS + _ROW_PIXELS * len(rows)
    figure = new_figure(f"{title} ({unit})", height, barmode="stack", bargap=0.35)
    for kind in next(iter(rows.values())):
        swatch, words = MEMORY[kind], _WORDS.get(kind, kind)
        figure.add_trace(
            go.Bar(
                orientation="h",
                name=words,
                x=[counts[kind] / _UNITS[unit] for counts in rows.values()],
                y=list(rows),
                marker=dict(color=swatch.light, line=dict(color=swatch.line, width=1.5)),
                hovertemplate=f"%{{y}}: {words}, %{{x:,.4~g}} {unit}<extra></extra>",
            )
        )
    figure.update_layout(margin_b=2 * FOOT_PIXELS, **legend_below(-0.2))
    figure.update_xaxes(axis(showgrid=True))
    figure.update_yaxes(axis(autorange="reversed"))
    return figure
