"""Figures of links: what is drawn is what was given, and the axes begin where they must."""

import math

import pytest

from coursekit.topics.collectives.figures import message_figure, race_figure

SIZES, SECONDS = [4, 1_000, 1_000_000], [1e-4, 1.1e-4, 1.2e-3]


def test_messages_and_their_line():
    """Mutations: the line without its latency; the crossing at latency / bandwidth; a linear axis,
    which shows the largest only."""
    figure = message_figure("Messages", SIZES, SECONDS, 1e-4, 1e9)
    line, discs = figure.data
    assert list(discs.x) == SIZES and list(discs.y) == SECONDS
    assert line.y[0] == pytest.approx(1e-4, rel=1e-3)
    assert line.y[-1] == pytest.approx(1.1e-3, rel=1e-3)
    assert figure.layout.shapes[0].x0 == pytest.approx(1e5)
    assert "100 kB: latency = bytes" in figure.layout.annotations[0].text
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"
    assert math.log10(min(SECONDS)) > figure.layout.yaxis.range[0]
    assert "100 µs" in figure.layout.yaxis.ticktext and "1 ms" in figure.layout.yaxis.ticktext
    assert message_figure("Messages", SIZES, SECONDS, 1e-4, 1e9).to_json() == figure.to_json()
    # the crossing lies outside
    assert not message_figure("Messages", SIZES, SECONDS, 1.0, 1e9).layout.shapes
    with pytest.raises(ValueError, match="all must be above 0"):
        message_figure("Messages", [0, 4], [1.0, 1.0], 0.1, 1e9)


def test_a_race():
    """Mutations: bars that do not begin at zero; predicted and measured exchanged; the unit of one
    row for all."""
    figure = race_figure(
        "All-reduce", [("ring", 0.12, 0.13), ("tree", None, 0.32), ("hierarchical", 0.08, None)]
    )
    found = {bar.name: bar.x[0] for bar in figure.data}
    assert found == {
        "ring, predicted": 120,
        "ring, measured": 130,
        "tree, measured": 320,
        "hierarchical, predicted": 80,
    }
    assert figure.layout.xaxis.range[0] == 0 and figure.layout.xaxis.title.text == "milliseconds"
    assert figure.layout.yaxis.ticktext[0] == "ring<br>130 ms, predicted 120 ms"
    assert (
        race_figure("All-reduce", [("ring", None, 2e-5)]).layout.xaxis.title.text == "microseconds"
    )
    with pytest.raises(ValueError, match="a race has at least one row"):
        race_figure("All-reduce", [])
