"""The lab's plumbing that no run of the lab compares: its figure, and what it says of moves."""

import sys

import cloudpickle
import pytest

from coursekit.topics.pipelines import lab
from shardlab.pipelines.schedules import Kind, gpipe, zero_bubble_h1
from shardlab.pipelines.simulation import Costs, Span, simulate

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_measured_spans_fill_the_simulated_outlines():
    """Must catch: measured and simulated spans of two scales; a clock that does not begin at zero;
    a microbatch's number at another bar."""
    lists, costs = zero_bubble_h1(2, 3), Costs(0.02, 0.02, 0.02)
    measured = [
        [Span(action, 7 + begin, 7 + end) for action, begin, end in own]
        for own in simulate(lists, costs).spans
    ]
    figure = lab.pipeline_figure("H1", lists, costs, measured)
    outlines, fills = (
        {bar.name: bar for bar in figure.data if bool(bar.showlegend) is filled}
        for filled in (False, True)
    )
    assert set(outlines) == set(fills) and len(fills) == 3
    for name, fill in fills.items():
        assert fill.base == outlines[name].base and fill.x == outlines[name].x
        assert fill.width[0] < outlines[name].width[0] and set(fill.x) == {20.0}
    of_rank_1 = [(base, text) for base, text, rank in zip(*at(fills["F"])) if rank == 1]
    of_simulated = [s for s in simulate(lists, costs).spans[1] if s.action.kind is Kind.FORWARD]
    want = [(round(1000 * s.begin, 6), str(s.action.microbatch)) for s in of_simulated]
    assert of_rank_1 == want


def at(bar):
    return bar.base, bar.text, bar.y


def test_a_figure_without_measurements_is_filled():
    """Must catch: outlines alone, on which no number can be read."""
    figure = lab.pipeline_figure("GPipe", gpipe(3, 2))
    assert [bar.name for bar in figure.data] == ["F", "B"]
    assert all(bar.showlegend and list(bar.text) for bar in figure.data)


@pytest.mark.ranks
def test_a_deadlock_names_both_ranks_within_the_patience():
    """Must catch: the traceback of two ranks where three lines would do; a world left open."""

    def both_send_first(rank, ranks):
        return [("send", 1 - rank), ("recv", 1 - rank)]

    said = lab.run_moves(both_send_first).splitlines()
    assert said[0].startswith("Ranks 0 and 1 wait for each other")
    assert [line[:6] for line in said[1:]] == ["rank 0", "rank 1"]
    assert max(map(len, said)) <= 66
    assert lab.run_moves(lambda rank, ranks: []) == "messages that arrived: 0"


@pytest.mark.ranks
def test_moves_that_never_end_are_stopped():
    """Must catch: ranks that compute forever in the cell of the bug hunt, which nothing ends: the
    patience is that of a rank that waits."""

    def forever(rank, ranks):
        while True:
            pass

    assert lab.run_moves(forever, seconds=3.0).startswith("After 3 s ranks 0 and 1 had not ended.")
