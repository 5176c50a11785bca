"""Lab 21 beside its cells: the ladder by the formulas, its figure, and what a GPU has recorded."""

import plotly.graph_objects as go

from coursekit.machine.capabilities import find_device
from coursekit.recordings.recordings import nearby
from coursekit.show.figures import INK, axis, new_figure
from coursekit.show.palette import MEMORY
from coursekit.show.tables import Table
from coursekit.topics.slow_to_fast.rungs import LADDER_BATCH, climb
from shardlab.gpt import GPTConfig

SIZES = dict(layers=12, hidden=96, heads=4, vocabulary=1000, max_sequence=64)
_RANKS = 4


def ladder(names=None):
    """Rung -> its bytes, place and categories, by the formulas, for this lab's GPT."""
    step = dict(LADDER_BATCH, **GPTConfig(**SIZES).quantities(), sequence=SIZES["max_sequence"])
    rungs = climb(step, ranks=_RANKS)
    return {rung.name: rung for rung in rungs if not names or rung.name in names}


def figure_of_ladder(measured):
    """`measured` is rung -> the ledger's peak. Bars are what was measured, by category; the outline
    is what the formulas say, and a dotted one the rung above."""
    rungs, figure = ladder(measured), new_figure("What a rank holds at its fullest", 380)
    names = list(rungs)
    for category in MEMORY:
        sizes = [getattr(peak.bytes, category) / 10**6 for peak in measured.values()]
        swatch = MEMORY[category]
        bar = dict(color=swatch.light, line=dict(color=swatch.line, width=1))
        figure.add_trace(go.Bar(x=names, y=sizes, name=category, marker=bar, width=0.6))
    for place, name in enumerate(names):
        before = rungs[names[max(place - 1, 0)]].nbytes
        for nbytes, dash in ((rungs[name].nbytes, "solid"), (before, "dot")):
            figure.add_shape(
                type="rect",
                x0=place - 0.36,
                x1=place + 0.36,
                y0=0,
                y1=nbytes / 10**6,
                line=dict(color=INK, width=1.5, dash=dash),
            )
    figure.update_layout(barmode="stack", showlegend=True, legend=dict(orientation="h", y=-0.12))
    figure.update_xaxes(axis())
    figure.update_yaxes(axis(ticksuffix=" MB", rangemode="tozero", showgrid=True))
    return figure


def table_of_ladder(measured):
    """AssertionError where a rung is not the formula's, to the byte; a loss that is divided is one
    number more. A GPU's attention keeps more than the formulas count."""
    rows, on_cpu = [], find_device()[0].type == "cpu"
    for name, peak in measured.items():
        rung, found = ladder()[name], peak.bytes.total
        assert found - rung.nbytes in (0, 4) or not on_cpu, (name, found, rung.nbytes)
        rows.append([name, f"{rung.nbytes:,}", f"{found:,}", rung.place])
    return Table(["rung", "formula", "ledger", "the peak is at"], rows)


def table_of_speed():
    """The rungs of seconds as a GPU recorded them."""
    names = ("tokens_per_second", "mfu", "peak")
    for recording in nearby():
        if rows := recording.find("one_gpu.tokens_per_second"):
            found = []
            for row in rows:
                rung = row.case["rung"]
                each = [recording.find(f"one_gpu.{n}", rung=rung)[0].value for n in names]
                said = f"{each[0]:,.0f}", f"{each[1]:.1%}", f"{each[2] / 10**9:.2f}"
                found.append([rung, *said])
            print(recording.label)
            return Table(["rung", "tokens/s", "of rate", "GB"], found)
    print("not yet recorded on a GPU")
    return None


def recorded_predictions():
    """No GPU has recorded the lab's own model."""
    return {}
