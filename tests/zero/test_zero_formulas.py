"""Formulas of ZeRO that no run of a few ranks can show: seconds against a clock on the plans, known
figures, what is refused."""

import math

import pytest
from solved import Given

from coursekit.formulas import (
    RECIPES,
    zero_states_bytes,
    zero_traffic_parameters,
)
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


def test_published_figures():
    """The page's 5B on 16 GPUs, and Figure 1 of the ZeRO paper. Mutation: stage 1 divides the
    gradients too, or stage 2 the parameters."""
    for parameters, degree, gigabytes in (
        (5, 16, (80, 23.75, 14.375, 5.0)),
        (7.5, 64, (120, 31.40625, 16.640625, 1.875)),
    ):
        given = dict(
            parameters=int(parameters * 1e9),
            data_parallel=degree,
            rank=0,
            **RECIPES["bf16 + fp32 master"].quantities,
        )
        assert (
            tuple(zero_states_bytes(zero_stage=stage, **given) / 1e9 for stage in range(4))
            == gigabytes
        )
    assert [
        zero_traffic_parameters(zero_stage=stage, parameters=1, accumulation_steps=1)
        for stage in range(4)
    ] == [2, 2, 2, 3]


@pytest.mark.parametrize(
    ("recipe", "fixed", "shared"),
    [("bf16 + fp32 gradients", 6, 12), ("fp16 + fp32 gradients", 4, 16), ("fp32 Adam", 8, 8)],
)
def test_the_table_of_megatron(recipe, fixed, shared):
    """6 + 12/d, 4 + 16/d, 8 + 8/d. Must catch: the fp32 copy of fp16 gradients counted with the
    gradients, so that it stays whole: 9.5 bytes on eight ranks, and Megatron says 6."""
    for d in (1, 8, 64):
        found = Given(recipe=recipe, parameters=64, zero_stage=1, data_parallel=d).zero_states_bytes
        assert found == 64 * fixed + 64 * shared // d
