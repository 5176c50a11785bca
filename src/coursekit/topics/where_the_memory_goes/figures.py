"""plotly figure of a training step as the byte ledger saw it: live bytes by category after every
operation, the peak named, and what the formulas say of its points as rings.

    timeline_figure(ledger.timeline, predicted=step_timeline(**quantities))
"""

import plotly.graph_objects as go

from coursekit.show.figures import (
    INK,
    axis,
    draw_line,
    legend_below,
    new_figure,
    round_up,
    unit_of,
    write_words,
)
from coursekit.show.format import BINARY, format_bytes, format_exact
from coursekit.show.palette import MEMORY

STACK = {
    "parameters": "parameters",
    "optimizer": "optimizer states",
    "gathered": "gathered",
    "gradients": "gradients",
    # from the bottom up: what lasts longest lies lowest
    "activations": "activations",
    "temporaries": "temporaries",
}
MOST_POINTS = 240
NARROW = 0.07  # a phase of a smaller share of the operations has no room for its name


def timeline_figure(timeline, predicted=None, title="The bytes of a training step"):
    """Stacked steps, one for each line of a Ledger's timeline; a long one is thinned to its highest
    lines, the peak among them.

    `timeline`: lines with `bytes` (named by category), `phase`, `operation`, `module`. `predicted`:
    pairs (point, category -> bytes) as step_timeline() of formulas.step returns them.

    Raises ValueError for a timeline without lines.
    """
    if not timeline:
        raise ValueError("the timeline has 0 lines: run the step inside the ledger, then draw it.")
    totals = [sum(line.bytes) for line in timeline]
    expected = [(point, sum(categories.values())) for point, categories in predicted or ()]
    most = max([*totals, *(total for _, total in expected), 1])
    unit, scale = unit_of(most, BINARY)
    kept = thin(
        totals,
        {k for k in range(len(timeline)) if k == 0 or timeline[k].phase != timeline[k - 1].phase},
    )
    said = [title, f"<span style='font-size:12px'>{_peak_in_words(timeline, totals)}</span>"]
    if expected:
        said.append("<span style='font-size:12px'>rings: predicted, fill: measured</span>")
    # below the title, where a phone has room for the words too
    figure = new_figure("<br>".join(said), 420)
    figure.update_layout(
        hovermode="x", margin_t=104 if expected else 88, margin_b=76, **legend_below(-0.16)
    )
    figure.update_xaxes(
        axis(
            title=dict(
                text="operations, in the order in which they ran", font=dict(size=12), standoff=4
            ),
            range=[0, max(len(timeline) - 1, 1)],
            showline=True,
            showticklabels=False,
            ticks="",
        )
    )
    figure.update_yaxes(
        axis(
            range=[0, round_up(1.08 * most / scale)], ticksuffix=f" {unit}", nticks=6, showgrid=True
        )
    )
    rounded = [round(size / scale, 3) for size in (totals[k] for k in kept)]
    for category, label in STACK.items():
        sizes = [getattr(timeline[k].bytes, category, 0) for k in kept]
        if any(sizes):
            figure.add_trace(
                go.Scatter(
                    x=kept,
                    y=[round(size / scale, 3) for size in sizes],
                    name=label,
                    stackgroup="bytes",
                    mode="lines",
                    line=dict(width=0.5, shape="hv", color=MEMORY[category].line),
                    fillcolor=MEMORY[category].light,
                    hovertemplate=f"{label}: %{{y}} {unit}<extra></extra>",
                )
            )
    figure.add_trace(
        go.Scatter(
            x=kept,
            y=rounded,
            name="together",
            mode="lines",
            showlegend=False,
            line=dict(width=1, shape="hv", color=INK),
            text=[timeline[k].operation or "before the step" for k in kept],
            hovertemplate=f"<b>%{{text}}</b>: %{{y}} {unit}<extra></extra>",
        )
    )
    _mark_phases(figure, timeline)
    _mark_peak(figure, totals, scale)
    if expected:
        figure.add_trace(_rings(timeline, totals, expected, scale))
    return figure


def thin(totals, wanted=(), most_points=MOST_POINTS):
    """Which lines to draw, ascending: all, or the highest of each of most_points equal parts, the
    first, the last and the wanted."""
    count = len(totals)
    if count <= most_points:
        return list(range(count))
    edges = [count * part // most_points for part in range(most_points + 1)]
    highest = (
        max(range(start, end), key=totals.__getitem__) for start, end in zip(edges, edges[1:])
    )
    return sorted({0, count - 1, *highest, *sorted(wanted)[: most_points // 4]})


def _mark_phases(figure, timeline):
    """A line where a phase begins, and its name above where there is room."""
    starts = [
        k for k in range(len(timeline)) if k == 0 or timeline[k].phase != timeline[k - 1].phase
    ]
    for start, end in zip(starts, [*starts[1:], len(timeline)]):
        if end - start >= NARROW * len(timeline):
            if start:
                draw_line(figure, x=start, width=1, dash="dot")
            write_words(figure, timeline[start].phase, x=(start + end) / 2, y=1, yref="paper")


def _peak(totals):
    """The first line of most bytes."""
    return max(range(len(totals)), key=totals.__getitem__)


def _peak_in_words(timeline, totals):
    """The peak, and the operation that made it."""
    at = _peak(totals)
    where = (
        f"{timeline[at].operation}, {timeline[at].phase}"
        if timeline[at].operation
        else "before the step"
    )
    return f"▼ <b>peak {format_bytes(totals[at])}</b>: {where}"


def _mark_peak(figure, totals, scale):
    at = _peak(totals)
    hover = f"peak: {format_exact(totals[at])} B"
    write_words(figure, "▼", x=at, y=totals[at] / scale, hovertext=hover)


def _rings(timeline, totals, expected, scale):
    """A ring at each predicted point: over the line of its phase that comes nearest to it."""
    places, texts = [], []
    for point, total in expected:
        lines = [k for k in range(len(timeline)) if timeline[k].phase == point.phase] or range(
            len(timeline)
        )
        places.append(min(lines, key=lambda k: abs(totals[k] - total)))
        texts.append(f"{point.name}: {format_bytes(total)}")
    return go.Scatter(
        x=places,
        y=[round(total / scale, 3) for _, total in expected],
        mode="markers",
        name="predicted",
        cliponaxis=False,
        text=texts,
        marker=dict(symbol="circle-open", size=12, color=INK, line=dict(width=2.5, color=INK)),
        hovertemplate="predicted, %{text}<extra></extra>",
    )
