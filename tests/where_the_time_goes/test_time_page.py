"""Numbers that are typed on the page of chapter 11 follow from a recording or from a formula."""

import re
from pathlib import Path

import pytest

from coursekit.formulas import evaluate
from coursekit.recordings.recordings import nearby

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "chapters" / "where-the-time-goes.md").read_text(encoding="utf-8")


def recorded(name: str, rung: str) -> float:
    rows = (row for each in nearby(ROOT) for row in each.find(name, rung=rung))
    return next(rows).value


@pytest.mark.parametrize(
    "words, rung",
    [("fp32", "fp32"), ("autocast to bf16",) * 2, ("six rungs later, blocks compiled",) * 2],
)
def test_busy_is_not_fast(words, rung):
    """Must catch: a number that a newer recording no longer has; busy and MFU exchanged."""
    busy, mfu = (recorded(f"one_gpu.{name}", rung.split(", ")[-1]) for name in ("gpu_busy", "mfu"))
    assert f"| {words} | {busy:.1%} | {mfu:.1%} |" in PAGE


def test_the_profilers_cost_is_within_ten_percent():
    """Must catch: a prediction on the page that the formula does not make; one that is further
    from its measurement than the page says."""
    box = re.search(r"probes the cost of an event: (.*?)```", PAGE, re.DOTALL)[1]
    bare = float(re.search(r"from ([\d.]+)", box)[1])
    runs = ((0.35, 3308, *re.search(r"predicted \*\*([\d.]+).*?measured ([\d.]+)", box).groups()),)
    runs += ((0.44, 5398, *re.search(r"predicted ([\d.]+), measured ([\d.]+)", box).groups()),)
    for each, events, predicted, measured in runs:
        assert f"{each} µs" in box and f"{events:,}" in box
        found = evaluate(
            ["profiled_seconds"],
            unwatched_seconds=bare / 1e3,
            profiled_events=events,
            event_seconds=each / 1e6,
        )["profiled_seconds"]
        assert f"{1e3 * found:.1f}" == predicted
        assert abs(float(predicted) / float(measured) - 1) <= 0.1
