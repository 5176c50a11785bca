"""The race of master weights beside torch.amp on CPUs with units for 16 bits and without."""

import pytest
import torch

from coursekit.recordings.races import TINY
from coursekit.topics.mixed_precision import policy_runs


@pytest.mark.parametrize("units", [True, False])
def test_every_cpu_races(monkeypatch, units):
    """bf16 and fp16 both have a step and a peak, for the hardened classes and the core. A CPU that
    emulates races the smallest task, and the rows say what it lacks.

    Must catch: types without units left out, so that nothing is recorded; the large tasks, a step
    of which takes seconds there; rows that hide the emulation."""
    larger = TINY._replace(name="larger", sizes={**TINY.sizes, "hidden": 32})
    monkeypatch.setattr(policy_runs, "has_units", lambda dtype, device: units)
    monkeypatch.setattr(policy_runs, "EMULATED_TASK", TINY)
    found = policy_runs.race_precision(tasks=(larger,), turns=2)
    assert [result.row for result in found] == ["precision_race.step", "precision_race.peak"] * 4
    name, tail = ("larger", "") if units else ("tiny", " on a CPU without units for it")
    both = [f"{name}, {kind}{tail}" for kind in ("bf16", "fp16")]
    whats = [f"{way}{what}" for what in both for way in ("", "core, ") for _ in ("step", "peak")]
    assert [result.case["what"] for result in found] == whats
    assert [result.most for result in found] == [1, 1, None, None] * 2


def test_slow_steps_get_fewer_turns():
    """Must catch: a race of hours; fewer turns where there is time for all."""
    assert policy_runs.turns_in_time(0.01, works=3, turns=31) == 31
    assert policy_runs.turns_in_time(1.0, works=3, turns=31) == 20
    assert policy_runs.turns_in_time(100.0, works=3, turns=31) == policy_runs.LEAST_TURNS


def test_both_ways_compute_in_the_same_type():
    """Must catch: torch.amp raced in the other 16-bit type, or without its scaler."""
    device = torch.device("cpu")
    for name in ("BF16", "FP16"):
        losses = [
            policy_runs.build_training(policy_runs.POLICIES[name], TINY, device, theirs).step()
            for theirs in (False, True)
        ]
        near = 40 * torch.finfo(policy_runs.POLICIES[name].computes_in).eps / 2
        assert losses[0].item() == pytest.approx(losses[1].item(), rel=near)
