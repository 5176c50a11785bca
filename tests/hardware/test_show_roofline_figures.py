"""The figure of a machine: a roof is where the formulas say, a disc where it was measured."""

import math

import pytest

from coursekit.show.figures import INK, LINE
from coursekit.topics.hardware.figures import Point, Roof, roofline_figure

MINE, CARD = Roof("this machine", 1e11, 4e10), Roof("A100", 312e12, 2.039e12)


def traces(figure):
    return {trace.name: trace for trace in figure.data}


def test_a_roof_has_a_slope_a_ridge_and_a_ceiling():
    """Mutations: bandwidth for the ridge; the slope and the ceiling exchanged; the last machine in
    colour and not the first."""
    figure = roofline_figure("Roofs", [MINE, CARD])
    mine = traces(figure)["this machine"]
    start, ridge, end = zip(mine.x, mine.y)
    assert ridge == (2.5, 1e11) and end[1] == 1e11 and start[1] == pytest.approx(start[0] * 4e10)
    assert (mine.line.color, traces(figure)["A100"].line.color) == (LINE, INK)
    assert figure.data[-1].name == "this machine", "it is drawn above the others"
    assert {note.text for note in figure.layout.annotations} == {"<b>this machine</b>", "A100"}
    for note in figure.layout.annotations:
        assert note.y == pytest.approx(math.log10(traces(figure)[note.text.strip("</b>")].y[-1]))


def test_points_and_roofs_lie_inside_the_axes():
    """Mutations: axes that end at the roofs, so that a rate above them (a wrong measurement) is not
    seen; a value instead of its logarithm."""
    points = [Point("one row", 0.5, 1.9e10), Point("too good", 85.0, 1e15)]
    figure = roofline_figure("Roofs", [MINE], points)
    assert [mark.text for mark in figure.data[1:]] == [(point.name,) for point in points]
    x, y = figure.layout.xaxis.range, figure.layout.yaxis.range
    for trace in figure.data:
        for intensity, rate in zip(trace.x, trace.y):
            assert x[0] <= math.log10(intensity) <= x[1] and y[0] <= math.log10(rate) <= y[1], (
                trace.name
            )
    assert "0.5 FLOP/byte, 19 GFLOP/s" in traces(figure)["one row"].hovertemplate
    assert [round(math.log10(tick)) for tick in figure.layout.yaxis.tickvals] == sorted(
        {round(math.log10(t)) for t in figure.layout.yaxis.tickvals}
    )
    assert "1 TFLOP/s" in figure.layout.yaxis.ticktext


def test_nothing_to_draw():
    """Mutation: an IndexError or an empty figure."""
    with pytest.raises(ValueError, match=r"roofs = \[\]: a roofline needs the roof of at least"):
        roofline_figure("Roofs", [])
