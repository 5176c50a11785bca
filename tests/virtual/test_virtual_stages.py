"""The techniques in virtual time beside the closed forms of the chapters.

Units are equal products, launches are free and memory is fast, so that a unit computes for the time
of its products alone, as in the formulas.
"""

import pytest
import torch
from torch import nn

from coursekit.formulas import evaluate
from shardlab import zero
from shardlab.virtual import GPU, Links, VirtualGPUs

UNITS, HIDDEN, RANKS = 5, 1024, 8
UNIT_BYTES = 4 * HIDDEN**2
FORWARD = 2e-3  # seconds of a unit
ROWS = round(FORWARD * 1e12 / (2 * HIDDEN**2))
LINKS = {"a fast link": 0.4, "a slow link": 1.7}  # seconds of a unit's gather over its forward's


def step_of(stage, link, **options):
    rate = (RANKS - 1) / RANKS * UNIT_BYTES / (LINKS[link] * FORWARD)
    gpu = GPU({torch.float32: 1e12}, 1e18, Links(rate, node_latency_seconds=0), launch_seconds=0)
    with VirtualGPUs(RANKS, gpu) as own:
        model = nn.Sequential(*[nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(UNITS)])
        if stage < 3:
            options["bucket_bytes"] = UNIT_BYTES
        model, optimizer = zero.shard(model, torch.optim.SGD, stage=stage, lr=0.1, **options)
        x = torch.ones(ROWS, HIDDEN, requires_grad=True)

        def train():
            model(x).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        train()  # in which stage 3 learns the order of its units
        with own.step() as step:
            train()
    return step


def exposed_by_formula(stage, link, ahead):
    given = dict(
        accumulation_steps=1,
        zero_flat_tensors=UNITS,
        unit_gather_seconds=LINKS[link] * FORWARD,
        unit_reduce_seconds=LINKS[link] * FORWARD * (1 if stage else 2),
        unit_forward_seconds=FORWARD,
        unit_backward_seconds=2 * FORWARD,
        prefetch_units=ahead,
        reduce_early=ahead,
    )
    return evaluate(["zero_exposed_seconds"], zero_stage=stage, allow_unused=True, **given)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize(
    "stage, ahead", [(0, 1), (1, 0), (2, 0), (3, 0), (3, 1)], ids=lambda value: str(value)
)
def test_a_stage_exposes_what_its_closed_form_says(stage, ahead, link):
    """Data parallelism overlaps, stages 1 and 2 do not, stage 3 does by one argument.

    Must catch: a message that starts when its wait comes; gradients of stage 3 that are waited for
    before the next unit computes; parameters that are asked for when they are needed; a forward
    that asks for nothing."""
    step = step_of(stage, link, **(dict(prefetch=True) if stage == 3 and ahead else {}))
    (expected,) = exposed_by_formula(stage, link, ahead).values()
    assert step.computing_seconds == pytest.approx(3 * UNITS * FORWARD, rel=0.001)
    assert step.exposed_seconds == pytest.approx(expected, rel=0.001)
    assert step.seconds == pytest.approx(step.computing_seconds + expected, rel=0.001)
    assert step.host_waits == 0
