"""The pictures of hardware say what links carry and how tiles fill a chip."""

import math

import pytest
from pages import words

from coursekit.formulas import LINKS
from coursekit.show.figures import INK, LINE
from coursekit.show.format import format_as
from coursekit.topics.hardware import pictures
from coursekit.topics.hardware.figures import Point, Roof, roofline_figure


def test_each_connection_has_its_links_rate():
    """Must catch: both directions added up; bits for bytes."""
    shown = words(pictures.draw_two_nodes()).split(" | ")
    for link in pictures.NODE_PATHS.values():
        rate = LINKS[link].quantities["link_bytes_per_second"]
        assert shown.count(format_as(rate, "bandwidth")) == 2  # once a node


def test_rounds_of_tiles():
    """Must catch: rounds that are cut off, or a last round that is full."""
    for rows, columns in ((4096, 4096), (4097, 4097), (128, 256), (128 * 108, 256)):
        product = {**pictures.TILED_PRODUCT, "rows": rows, "columns": columns}
        count = sum(
            1
            for _ in range(0, rows, product["tile_rows"])
            for _ in range(0, columns, product["tile_columns"])
        )
        dealt = [0] * pictures.MULTIPROCESSORS
        for tile in range(count):
            dealt[tile % len(dealt)] += 1
        last = sum(each == max(dealt) for each in dealt)
        assert pictures.tile_rounds(**product) == (count, max(dealt), last)


def test_the_picture_and_its_caption_say_the_rounds():
    """Must catch: another product in the picture than in the caption."""
    count, rounds, last = pictures.tile_rounds(**pictures.TILED_PRODUCT)
    shown = words(pictures.draw_tiles())
    assert f"{count} tiles on {pictures.MULTIPROCESSORS} SMs take {rounds} rounds" in shown
    assert pictures.MULTIPROCESSORS - last == 28
    larger = {**pictures.TILED_PRODUCT, "rows": 4097, "columns": 4097}
    assert pictures.tile_rounds(**larger)[1] == rounds + 1


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
