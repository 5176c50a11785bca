"""A plotly figure: what a rank keeps and sends, by the number of ranks.

shares_figure("One MLP", (1, 2, 4), {"kept": [64, 32, 16], "sent": [0, 4, 6]}, 4, (16, 6))
"""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from coursekit.formulas import evaluate
from coursekit.show.figures import draw_lines, new_figure
from coursekit.show.palette import LINES
from coursekit.show.tables import Table

SHARES_PIXELS = 360
_WORDS = {
    "Tokens": "cut along the vocabulary; then leave",
    "Around": "enter, once for all that is inside",
    "Columns": "cut by columns",
    "Rows": "cut by rows; then leave, then the bias",
    "Drops": "the mask is drawn whole, and cut",
    "Whole": "whole, on every rank",
}


def shares_figure(
    title: str,
    counts: Sequence[int],
    lines: Mapping[str, Sequence[float]],
    measured_at: int,
    measured: Sequence[float],
) -> go.Figure:
    """`lines`: name -> bytes for each of the counts of ranks, by formula; `measured`: bytes for
    each line, on `measured_at` ranks."""
    figure = new_figure(title, SHARES_PIXELS)
    places = list(range(len(counts)))
    at = list(counts).index(measured_at)
    formula = {
        f"{name}, by formula": (places, [size / 1000 for size in nbytes])
        for name, nbytes in lines.items()
    }
    draw_lines(figure, formula, "ranks", "kB", "%{y} kB")
    for stroke, name, found in zip(LINES, lines, measured):
        figure.add_trace(
            go.Scatter(
                x=[at],
                y=[found / 1000],
                mode="markers",
                name=f"{name}, measured",
                marker=dict(symbol=stroke.mark, size=11, color=stroke.colour),
                hovertemplate="%{y} kB<extra>measured</extra>",
            )
        )
    return figure.update_xaxes(tickvals=places, ticktext=list(map(str, counts)))


def mlp_figure(on_ranks):
    """One MLP on more and more ranks by formula, and the measured bytes."""
    counts, numbers = (1, 2, 4, 8, 16), dict(rank=0, message_elements=16 * 32)
    sent = [
        evaluate(["ring_all_reduce_sent_bytes"], ranks=n, message_element_bytes=8, **numbers)
        for n in counts
    ]
    lines = {
        "weights that a rank keeps": [2 * 8 * 128 * 32 // n for n in counts],
        "what a rank sends": [one["ring_all_reduce_sent_bytes"] for one in sent],
    }
    measured = 8 * on_ranks[0]["weights_kept"], on_ranks[0]["bytes_sent"]
    return shares_figure("One MLP on more and more ranks", counts, lines, len(on_ranks), measured)


def table_of_plan(plan):
    """Each module of the plan, and its fate."""
    kinds = {
        name: [type(one).__name__ for one in (entry if isinstance(entry, tuple) else (entry,))]
        for name, entry in plan.items()
        if not name.endswith("position_ids")
    }
    rows = [[name, "; ".join(_WORDS[kind] for kind in own)] for name, own in kinds.items()]
    return Table(["module", "what becomes of it"], rows)
