"""The plotly figure of a step as two streams: the same spans as the simulator plays."""

import pytest

from shardlab.formulas.events import COMPUTE, operations, run, waiting
from shardlab.show.explorer_figures import explorer_figures
from shardlab.show.explorers import EXPLORERS

WITH_STREAMS = [
    (name, place)
    for name, spec in EXPLORERS.items()
    for place, picture in enumerate(spec.pictures)
    if picture.kind == "streams"
]


@pytest.mark.parametrize(("name", "place"), WITH_STREAMS)
def test_bars_are_the_events(name, place):
    """Each operation is one bar in its stream's row, in milliseconds; the hatched bars are the
    spans in which nothing computes, and the title says their sum.

    Must catch: a bar that starts at 0; hatches in the link's row; seconds for milliseconds."""
    spec = EXPLORERS[name]
    computed = spec.compute(spec.start())
    figure = explorer_figures(spec, computed)[place]
    ran = run(operations(spec.pictures[place].step, computed))
    found = [
        (row, base, base + length)
        for trace in figure.data
        if not trace.name.startswith("exposed")
        for row, base, length in zip(trace.y, trace.base, trace.x)
    ]
    wanted = [
        (int(one.stream != COMPUTE), 1e3 * one.start, 1e3 * one.end)
        for one in ran
        if one.end > one.start
    ]
    assert len(found) == len(wanted)
    for got, want in zip(sorted(found), sorted(wanted)):
        assert got == pytest.approx(want, rel=1e-3, abs=1e-3)
    (hatched,) = [trace for trace in figure.data if trace.name.startswith("exposed")]
    idle = list(waiting(ran))
    assert set(hatched.y) == {0} and hatched.marker.pattern.shape == "/"
    assert sum(hatched.x) == pytest.approx(
        1e3 * sum(end - start for _, start, end in idle), rel=1e-3
    )
    assert "exposed" in figure.layout.title.text
