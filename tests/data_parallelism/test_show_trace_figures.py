"""A trace: each bar where it began, as long as it took, in the row and the colour of its kind."""

from types import SimpleNamespace

from coursekit.show.figures import trace_figure
from coursekit.show.palette import TIMELINE
from coursekit.topics.data_parallelism.figures import step_figure

ROWS = {
    "backward": [("backward", "backward", [(0.1, 0.2)])],
    "bucket 1": [("bucket 1", "communication", [(0.15, 0.04), (0.25, 0.3)])],
}


def test_bars_stand_where_things_ran():
    """Mutations: the end taken for the duration; seconds for milliseconds; the first row at the
    bottom; one colour for all."""
    figure = trace_figure("A step", ROWS)
    backward, bucket = figure.data
    assert (list(backward.base), list(backward.x), list(backward.y)) == ([100], [200], [0])
    assert (list(bucket.base), list(bucket.x), list(bucket.y)) == ([150, 250], [40, 300], [1, 1])
    assert [bar.marker.color for bar in figure.data] == [
        TIMELINE["backward"].light,
        TIMELINE["communication"].light,
    ]
    rows = figure.layout.yaxis
    assert list(rows.ticktext) == ["backward", "bucket 1"] and rows.range[0] > rows.range[1]
    assert bucket.text[1] == "bucket 1: 300 ms from 250 ms on"


def test_a_traced_step():
    """Mutations: backward drawn until all sums are there; messages that share a row, where one
    hides the other."""
    trace = SimpleNamespace(
        forward_seconds=0.1,
        last_gradient_seconds=0.3,
        whole_seconds=0.5,
        messages=[(0.2, 0.1), (0.3, 0.2)],
    )
    figure = step_figure("A step", trace)
    assert [(bar.name, bar.base[0], bar.x[0], bar.y[0]) for bar in figure.data] == [
        ("forward", 0, 100, 0),
        ("backward", 100, 200, 1),
        ("message 1", 200, 100, 2),
        ("message 2", 300, 200, 3),
    ]
