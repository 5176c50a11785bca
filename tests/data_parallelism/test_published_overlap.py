"""Gains from overlap that others published, beside the model of a step; and the cost of a hidden
message."""

import re
from pathlib import Path

import pytest

from coursekit.formulas import evaluate
from coursekit.topics.data_parallelism import published

ROOT = Path(__file__).resolve().parents[2]
CHAPTER = " ".join((ROOT / "chapters" / "data-parallelism.md").read_text("utf-8").split())


def test_published_overlap():
    """Must catch: a speed-up printed as the share that was hidden; a model that hides forward's
    time too, or nothing."""
    most = published.most_hidden_share()
    step = published.FORWARD_SECONDS + 2 * published.BACKWARD_SECONDS
    assert most == pytest.approx(published.BACKWARD_SECONDS / step, rel=0.01)
    assert f"at most {100 * most:.0f}%" in CHAPTER and "quoted" in published.SOURCE
    for row in published.OVERLAPS:
        share = 100 * row.hidden_share
        assert row.hidden_share <= most
        line = rf"\| {re.escape(row.name)} \| {100 * row.speed_up:.1f}% \| {share:.1f}% \|"
        assert re.search(line, CHAPTER), row.name
    assert published.hidden_share(0.5) < most > published.hidden_share(8)


@pytest.mark.parametrize("contention", (0.0, 0.16, 0.29))
def test_a_hidden_second_costs(contention):
    """Must catch: the share of speed taken for the share of time; exposed seconds counted, in which
    nothing is computed."""
    work, message, step = 0.9, 0.4, 1e-4
    time = done = 0.0
    while done < work:
        done += step * (1 - contention if time < message else 1)
        time += step
    names = ["contention_seconds"]
    given = dict(contention=contention, hidden_seconds=message)
    lost = evaluate(names, **given)["contention_seconds"]
    assert time - work == pytest.approx(lost, abs=3 * step)
