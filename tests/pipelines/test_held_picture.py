"""The picture of what ranks hold over a step: the schedules' lists, and the formula's bytes."""

import re

import pytest

from coursekit.formulas import evaluate, quantities
from coursekit.show.format import format_as
from coursekit.topics.pipelines import pictures
from shardlab.pipelines.schedules import SCHEDULES, schedule
from shardlab.pipelines.simulation import in_flight

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
        nbytes = evaluate(["held_bytes"], allow_unused=True, **given)["held_bytes"]
        assert nbytes == peak * pictures.microbatch_bytes(rank)
        assert format_as(nbytes, "bytes") in pictures.draw_held()


def test_an_outline_is_as_high_as_its_peak():
    """Must catch: GPipe and 1F1B on scales of their own; a rank's outline in another's row."""
    svg = pictures.draw_held()
    paths = re.findall(r'<path d="M[\d.]+ ([\d.]+)([^"]*)z" class="activations"', svg)
    peaks = [
        max(count for _, count in points) * pictures.microbatch_bytes(rank)
        for name in pictures.HELD_SCHEDULES
        for rank, points in enumerate(pictures.microbatches_over_time(name)[0])
    ]
    highs = [
        float(floor) - min(map(float, re.findall(r"V([\d.]+)", steps))) for floor, steps in paths
    ]
    assert highs == pytest.approx([highs[0] / peaks[0] * peak for peak in peaks], abs=0.1)


def test_all_is_released():
    """Must catch: a step that ends with activations; a microbatch released before its backward
    ends."""
    for name in pictures.HELD_SCHEDULES:
        held, seconds = pictures.microbatches_over_time(name)
        assert all(points[-1][1] == 0 and points[-1][0] <= seconds for points in held)
        assert held[0][-1] == (seconds, 0)  # the first rank ends last
        assert all(min(count for _, count in points) == 0 for points in held)
