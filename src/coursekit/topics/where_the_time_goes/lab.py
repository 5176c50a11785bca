"""Lab 11 beside its cells: tables and a figure of traces."""

from statistics import mean, median

import plotly.graph_objects as go

from coursekit.show.figures import axis, new_figure
from coursekit.show.palette import TIMELINE
from coursekit.show.tables import Table
from ranklab.measure.slim_trace import COMPUTES, SlimTrace, SpanKind

from .traces import FOLDER

_COLOURS = {
    SpanKind.FORWARD: TIMELINE["forward"],
    SpanKind.BACKWARD: TIMELINE["backward"],
    SpanKind.UPDATE: TIMELINE["weight_gradient"],
    SpanKind.MESSAGE: TIMELINE["communication"],
}


def stored(name: str) -> SlimTrace:
    """A trace that the book keeps."""
    return SlimTrace.from_json((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def shares_of(trace: SlimTrace, steps: int) -> dict[str, float]:
    """Phase -> its share, in percent, of the time in operators: of each operator the fastest of
    the steps, which all have the same ones."""
    spans = trace.of(*COMPUTES)
    each = len(spans) // steps
    found = dict.fromkeys((kind.value for kind in COMPUTES), 0)
    for own in zip(*(spans[each * step : each * (step + 1)] for step in range(steps))):
        found[trace.kinds[own[0].kind]] += min(span.length for span in own)
    return {phase: 100 * took / sum(found.values()) for phase, took in found.items()}


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
    ratios = mean(b) / mean(a), median(b) / median(a), found
    return Table(
        ["B over A", "means", "medians", "your ratio, in turns"],
        [["", *map("{:.2f}".format, ratios)]],
    )


def table_of_programs(found: dict) -> Table:
    rows = []
    for letter, budget in found.items():
        whole, parts, counts = sum(budget.parts().values()), budget.parts(), budget.counts()
        shares = (f"{parts[part] / whole:.0%}" for part in ("operators", "the loader"))
        ms = f"{1e3 * budget.seconds:.1f}"
        rows.append([letter, ms, *shares, counts["operators"], counts["waits of the host"]])
    return Table(["program", "ms", "in operators", "in the loader", "operators", "waits"], rows)
