"""Figures of the lab, and its words on late ranks, which no run of it compares."""

import pytest
from solved import Given

from coursekit.formulas import quantities
from coursekit.show.format import format_as
from coursekit.topics.pipelines import pictures
from coursekit.topics.pipelines.figures import pipeline_figure
from coursekit.topics.pipelines.sleeping import median_step, seconds_of, stage_costs
from shardlab.pipelines.schedules import (
    SCHEDULES,
    Kind,
    interleaved,
    one_f_one_b,
    schedule,
    zero_bubble_h1,
)
from shardlab.pipelines.simulation import Costs, Span, in_flight, simulate


def test_measured_spans_fill_the_simulated_outlines():
    """Must catch: measured and simulated spans of two scales; a clock that does not begin at zero;
    a microbatch's number at another bar."""
    lists, costs = zero_bubble_h1(2, 3), Costs(0.02, 0.02, 0.02)
    figure = pipeline_figure("H1", lists, costs, step_of(lists, costs, begin=7))
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


def step_of(lists, costs, begin=0.0, slower=1.0):
    """A step as the simulation has it, so many times as slow: the spans of each rank."""
    return [
        [Span(action, begin + slower * start, begin + slower * end) for action, start, end in own]
        for own in simulate(lists, costs).spans
    ]


def at(bar):
    return bar.base, bar.text, bar.y


def test_ranks_that_wake_up_late_are_said(capsys):
    """Must catch: a step of 1,016 ms for 660 shown without a word, because all steps are late
    alike; a line about a step that is a few percent late; another step than the median's."""
    lists, costs = one_f_one_b(4, 8), Costs(0.02, 0.02, 0.02)

    def seconds(*slower):
        steps = [step_of(lists, costs, slower=times) for times in slower]
        return round(seconds_of(median_step(list(zip(*steps)), costs)), 3)

    assert seconds(1.07, 1.05, 1.06) == round(0.66 * 1.06, 3) and not capsys.readouterr().out
    assert seconds(1.5, 1.54, 1.58) == round(0.66 * 1.54, 3)
    assert capsys.readouterr().out.startswith("this machine is busy (54% longer than")


@pytest.mark.parametrize(
    "lists, costs",
    [
        (one_f_one_b(4, 8), Costs([1, 2, 3, 4], [3, 5, 7, 9], 0)),
        (interleaved(2, 4), Costs([1, 2, 3, 4], [3, 5, 7, 9], 0)),
        (zero_bubble_h1(2, 4), Costs([1, 2], [3, 5], [4, 6])),
    ],
)
def test_the_costs_of_stages_are_those_of_the_fewest_seconds(lists, costs):
    """Must catch: the times of a rank's stages, or of two stages on one rank, mixed up; an action
    that was disturbed; the two halves of a backward counted as a whole one."""
    spans = step_of(lists, costs)
    action, begin, end = spans[0][0]
    spans[0][0] = Span(action, begin, end + 0.5)
    assert stage_costs(spans) == costs


RANKS, MICROBATCHES = (
    pictures.HELD_MODEL["pipeline_parallel"],
    pictures.HELD_MODEL["microbatches"],
)


@pytest.mark.parametrize("name", pictures.HELD_SCHEDULES)
def test_peaks_are_the_formulas(name):
    """Must catch: the layers of the whole model on each rank; another schedule's list; a last rank
    without the head and the loss."""
    held, _ = pictures.microbatches_over_time(name)
    peaks = [max(count for _, count in points) for points in held]
    assert peaks == in_flight(schedule(name, ranks=RANKS, microbatches=MICROBATCHES))
    for rank, peak in enumerate(peaks):
        given = quantities(
            **pictures.HELD_MODEL,
            pipeline_rank=rank,
            pipeline_schedule=list(SCHEDULES).index(name) + 1,
        )
        nbytes = Given(**given).held_bytes
        assert nbytes == peak * pictures.microbatch_bytes(rank)
        assert format_as(nbytes, "bytes") in pictures.draw_held()


def test_all_is_released():
    """Must catch: a step that ends with activations; a microbatch released before its backward
    ends."""
    for name in pictures.HELD_SCHEDULES:
        held, seconds = pictures.microbatches_over_time(name)
        assert all(points[-1][1] == 0 and points[-1][0] <= seconds for points in held)
        assert held[0][-1] == (seconds, 0)  # the first rank ends last
        assert all(min(count for _, count in points) == 0 for points in held)
