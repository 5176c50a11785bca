"""Lab 11 beside its cells: tables and a figure of traces."""

import plotly.graph_objects as go

from coursekit.show.figures import axis, new_figure
from coursekit.show.palette import TIMELINE
from coursekit.show.tables import Table
from shardlab.measure.slim_trace import COMPUTES, SlimTrace, SpanKind, covered

from .traces import FOLDER

_COLOURS = {
    SpanKind.FORWARD: TIMELINE["forward"],
    SpanKind.BACKWARD: TIMELINE["backward"],
    SpanKind.UPDATE: TIMELINE["weight_gradient"],
    SpanKind.MESSAGE: TIMELINE["communication"],
    SpanKind.WAIT: TIMELINE["idle"],
}


def stored(name: str) -> SlimTrace:
    """A trace that the book keeps."""
    return SlimTrace.from_json((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def shares_of(trace: SlimTrace) -> dict[str, float]:
    """Phase -> its share, in percent, of the time in operators."""
    spans = {kind: [(s.start, s.end) for s in trace.of(kind)] for kind in COMPUTES}
    whole = sum(map(covered, spans.values()))
    return {kind.value: 100 * covered(own) / whole for kind, own in spans.items()}


def figure_of_trace(trace: SlimTrace, end: float | None = None) -> go.Figure:
    """The lanes, to zoom into; until `end`, in milliseconds."""
    figure = new_figure(trace.title, 130 + 34 * len(trace.lanes))
    for kind, swatch in _COLOURS.items():
        own = [s for s in trace.of(kind) if end is None or 1e3 * s.start * trace.unit < end]
        if own:
            figure.add_trace(
                go.Bar(
                    orientation="h",
                    name=kind.value,
                    y=[trace.lanes[span.lane] for span in own],
                    base=[round(1e3 * span.start * trace.unit, 3) for span in own],
                    x=[round(1e3 * span.length * trace.unit, 3) for span in own],
                    marker=dict(color=swatch.light, line=dict(color=swatch.line, width=0.5)),
                    text=[trace.names[span.name] for span in own],
                    hovertemplate="%{text}, %{x} ms<extra></extra>",
                    textposition="none",
                )
            )
    figure.update_layout(barmode="overlay", showlegend=True, legend=dict(orientation="h", y=-0.4))
    figure.update_xaxes(axis(ticksuffix=" ms", showgrid=True))
    return figure.update_yaxes(axis(autorange="reversed", categoryorder="array"))


def figure_of_calls(before: list[float], after: list[float]) -> go.Figure:
    """Each call, in milliseconds, in the order of the calls."""
    figure = new_figure("A alone, then B beside its neighbours: each call, in ms", 300)
    for name, times, swatch in (("A", before, "forward"), ("B", after, "communication")):
        found = dict(color=TIMELINE[swatch].line, size=4)
        ms = [round(1e3 * seconds, 3) for seconds in times]
        figure.add_trace(go.Scatter(y=ms, mode="markers", name=name, marker=found))
    figure.update_layout(showlegend=True, legend=dict(orientation="h", y=-0.2))
    figure.update_xaxes(axis())
    return figure.update_yaxes(axis(ticksuffix=" ms", type="log", showgrid=True))


def table_of_ratios(a: list[float], b: list[float], found: float) -> Table:
    """B over A, in four ways."""
    ordered = [sorted(times) for times in (a, b)]
    (mean_a, median_a), (mean_b, median_b) = (
        (sum(times) / len(times), times[len(times) // 2]) for times in ordered
    )
    ratios = mean_b / mean_a, median_b / median_a, found
    return Table(
        ["B over A", "means", "medians", "your ratio, in turns"],
        [["", *map("{:.2f}".format, ratios)]],
    )


def table_of_programs(found: dict) -> Table:
    """Counts and shares of each program's step, and its time."""
    rows = []
    for letter, budget in found.items():
        whole, parts, counts = sum(budget.parts().values()), budget.parts(), budget.counts()
        shares = (f"{parts[part] / whole:.0%}" for part in ("operators", "the loader"))
        ms = f"{1e3 * budget.seconds:.1f}"
        rows.append([letter, ms, *shares, counts["operators"], counts["waits of the host"]])
    return Table(["program", "ms", "in operators", "in the loader", "operators", "waits"], rows)
