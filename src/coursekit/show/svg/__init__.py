"""The pictures of an explorer (pictures.py) as SVG, for notebooks: the drawing of the pages in
Python, with what was measured beside it.

    for drawn in drawings(spec, spec.compute(values), measured={}):
        drawn.svg("what it shows, in words")
"""

from .bars import memory_svg, timeline_svg
from .curves import curves_svg
from .spans import duration_svg, schedule_svg, streams_svg

DRAWN = dict(timeline=timeline_svg, time=duration_svg, streams=streams_svg, schedule=schedule_svg)


def measurable(picture):
    """The quantities of a picture beside which a measured value can be drawn. Of a step that ran
    there are figures: trace_figure and a topic's figures.py draw what was measured."""
    if picture.kind == "curves":
        return [line.name for line in picture.lines]
    if picture.kind == "memory":
        return [part.quantity for part in picture.parts]
    return [picture.quantity] if picture.kind == "time" else []


def drawings(spec, computed, measured=None, measured_at=""):
    """A Canvas for each picture of an Explorer, from the result of its compute(). `measured` has
    measured values by quantity, for measurable quantities; for a line of curves, pairs (value of
    the swept quantity, measured value). `measured_at` says at which values, where the picture
    shows others."""
    measured = measured or {}
    drawn = {
        "curves": lambda picture: curves_svg(picture, computed, measured, spec, measured_at),
        "memory": lambda picture: memory_svg(picture, computed, measured, measured_at),
    }
    return [
        drawn[picture.kind](picture)
        if picture.kind in drawn
        else DRAWN[picture.kind](picture, computed, measured)
        for picture in spec.pictures
    ]
