"""The pictures of an explorer (pictures.py) as SVG, for notebooks: the drawing of the pages in
Python, with what was measured beside it.

    for drawn in drawings(spec, spec.compute(values), measured={}):
        drawn.svg("what it shows, in words")
"""

from .bars import memory_svg, timeline_svg
from .curves import curves_svg
from .spans import duration_svg, schedule_svg, streams_svg

DRAWN = dict(memory=memory_svg, timeline=timeline_svg, curves=curves_svg, time=duration_svg)
DRAWN |= dict(streams=streams_svg, schedule=schedule_svg)


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
    shown = computed, measured or {}, spec, measured_at
    return [DRAWN[picture.kind](picture, *shown) for picture in spec.pictures]
