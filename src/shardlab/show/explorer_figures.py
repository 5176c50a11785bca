"""The plotly figures of an explorer (spec.py): one for each of its pictures."""

from .curve_figures import curves_figure
from .figures import Bytes, columns_figure, duration_figure, memory_figure
from .schedule_figures import schedule_figure
from .stream_figures import streams_figure


def measurable(picture):
    """The quantities of a picture beside which a measured value can be drawn."""
    if picture.kind in ("streams", "schedule"):
        return []  # of a step that ran, trace_figure draws what was measured
    if picture.kind == "timeline":
        return []  # a measured step is drawn by timeline_figure in the topic's figures.py
    if picture.kind == "curves":
        return [line.name for line in picture.lines]
    return (
        [part.quantity for part in picture.parts]
        if picture.kind == "memory"
        else [picture.quantity]
    )


def explorer_figures(spec, computed, measured=None):
    """One figure for each picture of an Explorer, from the result of its compute(). `measured` has
    measured values by quantity, for measurable quantities; for a line of curves, pairs (value of
    the swept quantity, measured value)."""
    measured = measured or {}
    figures = []
    for picture in spec.pictures:
        if picture.kind == "memory":
            rows = [
                Bytes(part.label, part.colour, computed[part.quantity], measured.get(part.quantity))
                for part in picture.parts
            ]
            figures.append(memory_figure(picture.title, rows, computed.get(picture.capacity)))
        elif picture.kind == "curves":
            figures.append(
                curves_figure(
                    picture,
                    computed,
                    spec.swept(picture, computed),
                    {
                        line.name: measured[line.name]
                        for line in picture.lines
                        if line.name in measured
                    },
                )
            )
        elif picture.kind == "streams":
            figures.append(streams_figure(picture, computed))
        elif picture.kind == "schedule":
            figures.append(schedule_figure(picture, computed))
        elif picture.kind == "timeline":
            columns = [
                (
                    column.name,
                    [
                        Bytes(part.label, part.colour, computed[part.quantity])
                        for part in column.parts
                    ],
                )
                for column in picture.shown(computed)
            ]
            figures.append(columns_figure(picture.title, columns, computed[picture.capacity]))
        else:
            figures.append(
                duration_figure(
                    picture.title,
                    computed[picture.quantity],
                    picture.ticks,
                    picture.least,
                    picture.most,
                    measured.get(picture.quantity),
                )
            )
    return figures
