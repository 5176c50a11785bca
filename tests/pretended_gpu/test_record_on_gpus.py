"""`make gpu` on pretended GPUs: nothing fails, no row is lost, and bytes are the formulas'."""

import subprocess
import sys
from pathlib import Path

import pytest
from asking import environment_or_skip
from night import at_night

from coursekit.recordings.record import ALL
from coursekit.recordings.recordings import read_all

pytestmark = pytest.mark.ranks

TESTS = Path(__file__).resolve().parents[1]
LIMIT_SECONDS = 600  # ten minutes, as the README says of `make gpu`
# what depends on the number of GPUs asks races.layouts
OF_RANKS = [run.name for run in ALL if "layouts" in run.measure.__code__.co_names]
# the formulas know the attention of real GPUs and of CPUs, not what this device takes instead
OF_ATTENTION = ("step.peak", "recompute.kept")
ON_A_CPU_ONLY = {"mixed_precision.refused"}
ON_A_CPU_ONLY |= {f"sending_less.{name}" for name in ("rate", "loss", "sent", "large")}
LAYOUTS = {1: {(1, "nccl"), (2, "gloo")}} | {n: {(n, "nccl")} for n in (2, 4, 8)}


@pytest.mark.parametrize(
    "gpus, groups",
    [
        (2, ("rank_starts", "feeding")),  # by day races run on CPUs, techniques on these GPUs
        *at_night((1, ()), (2, ()), *((n, (group,)) for n in (4, 8) for group in OF_RANKS)),
    ],
)
def test_make_gpu(gpus, groups, tmp_path):
    """Must catch: a tensor left on the CPU, a message into a leaf that requires grad, too few heads
    or blocks for the ranks, an optimizer that refuses DTensors among others; rows that are there on
    a CPU only; a layout left out; groups for which the ten minutes are too short."""
    command = [sys.executable, "-m", "coursekit.recordings.record", str(tmp_path), "--quick"]
    command += ["--only", *groups] if groups else ["--apart"]
    subprocess.run(command, env=environment_or_skip(gpus), timeout=LIMIT_SECONDS, check=True)
    (recording,) = read_all(tmp_path)
    assert [row.case for row in recording.find("record.failed")] == []
    off = [row for row in recording.rows if row.formula and row.value != row.predicted]
    assert [row for row in off if row.name not in OF_ATTENTION] == []
    steps = {}
    for row in recording.rows:
        if row.name.endswith(".step") and "backend" in row.case:
            steps.setdefault(row.name, set()).add((row.case["ranks"], row.case["backend"]))
    assert len(steps) == len(set(OF_RANKS) & set(groups or OF_RANKS))
    assert all(found == LAYOUTS[gpus] for found in steps.values()), steps
    if not groups:
        found = {row.name for row in recording.rows}
        for path in TESTS.glob("*/recorded.txt"):
            on_a_cpu, _, _ = path.read_text("utf-8").partition("over a slow link:")
            assert set(on_a_cpu.split()) - ON_A_CPU_ONLY <= found
