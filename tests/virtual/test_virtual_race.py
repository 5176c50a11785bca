"""The recording of `python -m bench.virtual`, which pages show."""

from pathlib import Path

import pytest
import torch

from bench.virtual import SMALL, Race
from coursekit.recordings.recordings import read_all

(RECORDED,) = [
    found
    for found in read_all(Path(__file__).resolve().parents[2] / "measured")
    if found.hardware.kind == "virtual"
]


@pytest.mark.skipif(
    torch.__version__.split("+")[0] != RECORDED.versions["torch"].split("+")[0],
    reason="another PyTorch launches other kernels",
)
def test_a_row_of_the_race_is_the_same_each_time():
    """Must catch: a step or a peak that depends on the machine or its load; a recording that was
    made by other code."""
    race = Race("ZeRO 3", SMALL, 8)
    for row in race.rows(*race.run()):
        assert RECORDED.find(row.name, **row.case) == [row]


def test_no_technique_waits_longer_than_pytorchs():
    """Pipelines wait as long, up to a thousandth: their products take 0.3 % less time.

    Must catch: a recording of code that waits longer; a technique left out."""
    raced = set()
    for step in RECORDED.find("virtual.step", implementation="shardlab"):
        shares = []
        for who in ("shardlab", "PyTorch"):
            case = dict(step.case, implementation=who)
            (one,), (exposed,) = (
                RECORDED.find(f"virtual.{n}", **case) for n in ("step", "exposed")
            )
            shares.append(exposed.value / one.value)
        assert shares[0] <= 1.001 * shares[1], step.case
        raced.add(step.case["technique"])
    assert len(raced) >= 8
