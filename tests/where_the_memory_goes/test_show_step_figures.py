"""The figure of a step: every byte of the ledger's lines is drawn, the peak is kept and named,
predictions stand where they belong."""

from collections import namedtuple

import pytest

from coursekit.show.palette import MEMORY
from coursekit.topics.where_the_memory_goes.figures import MOST_POINTS, thin, timeline_figure
from coursekit.topics.where_the_memory_goes.formulas.step import STEP_TIMELINE

Counts = namedtuple("Counts", "parameters gradients optimizer activations gathered temporaries")
Line = namedtuple("Line", "bytes phase operation module")
MIB = 2**20


def line(phase, operation, activations=0, temporaries=0, gradients=0):
    return Line(
        Counts(10 * MIB, gradients * MIB, 20 * MIB, activations * MIB, 0, temporaries * MIB),
        phase,
        operation,
        "",
    )


STEP = [
    line("forward", ""),
    line("forward", "addmm", 5),
    line("forward", "log_softmax", 30),
    line("backward", "softmax_backward", 30, 25),
    line("backward", "mm", 4, 3, 6),
    line("optimizer", "sqrt", 0, 2, 10),
    line("optimizer", "addcdiv", 0, 0, 10),
]


def long_step(count):
    """A step of many lines whose peak is one of them, between two low ones."""
    return [
        line("forward" if k < count // 2 else "backward", f"op{k}", 90 if k == 4321 else k % 7)
        for k in range(count)
    ]


def stacked(figure):
    """Top of the stack at each drawn line."""
    areas = [trace for trace in figure.data if trace.stackgroup]
    return dict(zip(areas[0].x, map(sum, zip(*(trace.y for trace in areas)))))


def words(figure):
    return " | ".join(
        [figure.layout.title.text, *(note.text for note in figure.layout.annotations)]
    )


def test_every_line_is_drawn_category_upon_category():
    """Mutations: a category left out of the stack, or one with another's colour; areas that overlap
    instead of a stack; ramps instead of steps."""
    figure = timeline_figure(STEP)
    assert stacked(figure) == {
        k: pytest.approx(sum(found.bytes) / MIB) for k, found in enumerate(STEP)
    }
    areas = {trace.name: trace for trace in figure.data if trace.stackgroup}
    # nothing was gathered
    assert list(areas) == [
        "parameters",
        "optimizer states",
        "gradients",
        "activations",
        "temporaries",
    ]
    assert {trace.stackgroup for trace in areas.values()} == {"bytes"}
    assert {trace.line.shape for trace in areas.values()} == {"hv"}
    assert areas["optimizer states"].fillcolor == MEMORY["optimizer"].light
    assert areas["activations"].y[2] == 30
    assert figure.layout.yaxis.range[0] == 0 and figure.layout.yaxis.ticksuffix == " MiB"


def test_the_peak_is_named():
    """Mutations: the last line taken for the peak; the operation after it named."""
    assert "<b>peak 85 MiB</b>: softmax_backward, backward" in words(timeline_figure(STEP))
    assert "before the step" in words(timeline_figure(STEP[:1]))


def test_a_long_timeline_is_thinned_and_keeps_its_peak():
    """Mutations: every n-th line drawn; parts of the timeline left out at its end; places counted
    after thinning."""
    timeline = long_step(9000)
    figure, totals = timeline_figure(timeline), [sum(found.bytes) for found in timeline]
    top = stacked(figure)
    assert len(top) < 1.3 * MOST_POINTS and len(figure.to_json()) < 40_000
    assert top == {k: pytest.approx(totals[k] / MIB) for k in top}
    assert {0, 4321, 4500, 8999} <= set(top) and max(top.values()) == 120
    assert max(b - a for a, b in zip(list(top), list(top)[1:])) <= 2 * 9000 / MOST_POINTS
    assert thin([3, 1, 2]) == [0, 1, 2]


def test_predictions_are_rings_over_the_line_they_speak_of():
    """Mutations: rings in the order of the points, evenly spaced; the total of another point; a
    prediction moved onto its line."""
    points = {point.name: point for point in STEP_TIMELINE}
    predicted = [
        (points["saved"], dict(parameters=10 * MIB, optimizer=20 * MIB, activations=31 * MIB)),
        (
            points["loss"],
            dict(
                parameters=10 * MIB, optimizer=20 * MIB, activations=30 * MIB, temporaries=25 * MIB
            ),
        ),
        (
            points["optimizer"],
            dict(parameters=10 * MIB, optimizer=20 * MIB, gradients=10 * MIB, temporaries=2 * MIB),
        ),
    ]
    figure = timeline_figure(STEP, predicted)
    (rings,) = [trace for trace in figure.data if trace.name == "predicted"]
    assert list(rings.x) == [2, 3, 5]
    assert list(rings.y) == [61, 85, 42]
    assert rings.marker.symbol == "circle-open"
    assert rings.text[1] == "loss: 85 MiB" and "rings: predicted" in words(figure)
    assert "predicted" not in [trace.name for trace in timeline_figure(STEP).data]
