"""Formulas of ZeRO that no run of a few ranks can show: seconds against a clock on the plans, known
figures, what is refused."""

import math

import pytest
from solved import Given

from shardlab import collective_plans as plans

LATENCY, BANDWIDTH = 3e-6, 25e9


def clock(plan, chunk_bytes):
    """Seconds of a plan whose moves of one step travel at the same time, in chunks of one size."""
    return len(plan) * (LATENCY + chunk_bytes / BANDWIDTH)


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("n, k, flats", [(1, 1, 1), (2, 3, 2), (4, 1, 5), (8, 4, 3)])
def test_seconds(stage, n, k, flats):
    """Mutations: parameters' bytes for gradients'; stage 0 gathers parameters; one latency for all
    flat tensors."""
    size = 840 * n
    given = dict(
        zero_stage=stage,
        accumulation_steps=k,
        data_parallel=n,
        parameters=flats * size,
        zero_flat_tensors=flats,
        parameter_element_bytes=2,
        gradient_element_bytes=4,
        latency_seconds=LATENCY,
        link_bytes_per_second=BANDWIDTH,
    )
    reductions, gatherings = {0: (1, 1), 1: (1, 1), 2: (k, 1), 3: (k, 2 * k)}[stage]
    took = flats * (
        reductions * clock(plans.ring_reduce_scatter(n), 4 * size / n)
        + gatherings * clock(plans.ring_all_gather(n), (4 if stage == 0 else 2) * size / n)
    )
    found = Given(**given).zero_communication_seconds
    assert math.isclose(found, took, rel_tol=1e-12, abs_tol=1e-18)
