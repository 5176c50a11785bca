"""Seconds of ZeRO by phase: closed forms against the simulator, how often a step communicates, how
many tokens hide a phase, and the figures that the chapter prints."""

import random

import pytest
from solved import Given, value
from told import from_told, valued

from coursekit.formulas import evaluate, events, quantities
from coursekit.topics.zero.timeline import BACKWARD, FORWARD, MICROBATCH

FIVE = quantities(
    recipe="bf16 + fp32 master",
    gpu="H100 SXM 80GB",
    link="network, 400 Gbit/s",
    latency_seconds=0,
    parameters=5 * 10**9,
    data_parallel=16,
    zero_flat_tensors=32,
    utilisation=0.4,
)
AS_SHOWN = dict(prefetch_units=0, reduce_early=0)
HIDDEN = dict(prefetch_units=1, reduce_early=1)


def random_step(draw):
    given = dict(
        zero_stage=draw.randrange(4),
        accumulation_steps=draw.choice([1, 2, 7]),
        data_parallel=draw.choice([1, 2, 16, 999]),
        parameters=draw.choice([10**6, 7 * 10**9]),
        zero_flat_tensors=draw.choice([1, 2, 3, draw.randint(1, 60)]),
        parameter_element_bytes=draw.choice([2, 4]),
        gradient_element_bytes=draw.choice([2, 4]),
        microbatch_tokens=draw.choice([1, 2048, draw.randint(1, 10**5)]),
        utilisation=draw.uniform(0.1, 1),
        flops_per_second=10 ** draw.uniform(11, 16),
        latency_seconds=draw.choice([0, 1e-5]),
        link_bytes_per_second=10 ** draw.uniform(8, 12),
        prefetch_units=draw.randrange(2),
        reduce_early=draw.randrange(2),
    )
    if draw.randrange(2):
        given["contention"] = draw.choice([0.16, 0.29])
    if given["zero_stage"] == 3:
        for switch in ("reshard_after_forward", "reshard_after_backward", "gradient_sync"):
            if draw.randrange(2):
                given[switch] = draw.randrange(2)
    return given


@pytest.mark.slow
def test_closed_forms_are_the_simulation():
    """Must catch: a reduction hidden under forward; stage 3 without its first gathering or its last
    reduction; a gathering beside a reduction on one link; one unit taken for two; stage 0 that
    gathers parameters; k forgotten."""
    draw = random.Random(6)
    phases = dict(zero_gathered_forward_seconds=FORWARD, zero_reducing_backward_seconds=BACKWARD)
    names = [*phases, *events.quantities_of(MICROBATCH), "zero_quiet_backward_seconds"]
    names += ["zero_step_seconds", "zero_exposed_seconds", "zero_compute_seconds"]
    names += ["zero_forward_gatherings", "zero_reductions", "unit_backward_gather_seconds"]
    for _ in range(400):
        given = random_step(draw)
        found = evaluate(names, allow_unused=True, **given)
        near = dict(rel=1e-9, abs=1e-12 + 1e-9 * found["zero_step_seconds"])
        forward = events.end_seconds(events.play(events.operations((FORWARD,), found)))
        backward = events.end_seconds(events.play(events.operations((BACKWARD,), found)))
        if given["zero_stage"]:
            assert forward == pytest.approx(found["zero_gathered_forward_seconds"], **near)
        assert backward == pytest.approx(found["zero_reducing_backward_seconds"], **near)
        quiet = {**found, "unit_reduce_seconds": 0.0, "reduce_early": 1}
        quiet["unit_busy_backward_seconds"] = (
            found["unit_backward_seconds"]
            + given.get("contention", 0) * (found["unit_backward_gather_seconds"])
        )
        quiet = events.end_seconds(events.play(events.operations((BACKWARD,), quiet)))
        assert quiet == pytest.approx(found["zero_quiet_backward_seconds"], **near)
        k = given["accumulation_steps"]
        gathering, reducing = found["zero_forward_gatherings"], found["zero_reductions"]
        plain = given["zero_flat_tensors"] * found["unit_forward_seconds"]
        step = gathering * forward + (k - gathering) * plain
        step += reducing * backward + (k - reducing) * quiet
        assert found["zero_step_seconds"] == pytest.approx(step, **near)
        exposed = events.exposed_phase_seconds(events.play(events.operations(MICROBATCH, found)))
        if k == 1 and not given.get("contention") and given.get("gradient_sync", 1):
            assert found["zero_exposed_seconds"] == pytest.approx(sum(exposed.values()), **near)


@from_told("stage, forward, backward, sync, counts", valued)
def test_how_often_a_step_communicates(stage, forward, backward, sync, counts):
    """Must catch: 3k as the only number of stage 3."""
    switches = dict(
        reshard_after_forward=forward, reshard_after_backward=backward, gradient_sync=sync
    )
    given = {name: value for name, value in switches.items() if value is not None}
    found = Given(zero_stage=stage, accumulation_steps=8, parameters=1, **given)
    gatherings = found.zero_forward_gatherings, found.zero_backward_gatherings
    assert (*gatherings, found.zero_reductions, found.zero_traffic_parameters) == counts


@pytest.mark.parametrize("stage", range(4))
def test_tokens_that_hide_a_phase(stage):
    """7,418 tokens on the chapter's machine. Must catch: traffic pooled over forward and backward
    (4,945 and, for k = 8, 2,782); 6 operations instead of 2 and 4."""
    for parameters, k in ((10**9, 1), (7 * 10**9, 8)):
        given = {**FIVE, "zero_stage": stage, "accumulation_steps": k, "parameters": parameters}
        names = ["forward_hiding_tokens", "backward_hiding_tokens", "zero_hiding_tokens"]
        found = evaluate(names, allow_unused=True, **given)
        assert found["zero_hiding_tokens"] == pytest.approx(7417.5)
        bytes_of = dict(forward=2 * (stage > 0), backward=(4, 2, 2, 4)[stage])
        for phase, count in (("forward", 2), ("backward", 4)):
            travels = bytes_of[phase] * 15 / 16 / 50e9
            computes = count * found[f"{phase}_hiding_tokens"] / (0.4 * 989e12)
            assert computes == pytest.approx(travels)
    slow = Given(**{**given, **quantities(link="network, 100 Gbit/s")})
    assert slow.zero_hiding_tokens == pytest.approx(29_670)
    if stage == 3:
        fp32 = Given(**{**given, "gradient_element_bytes": 4})
        assert fp32.zero_hiding_tokens == pytest.approx(11_126.25)


def test_what_the_chapter_prints():
    """Must catch: stage 1 free as shown; stage 3 dear where each phase hides its own messages."""

    def exposed(tokens, stage, k=1, **how):
        given = {**FIVE, **how, "microbatch_tokens": tokens, "zero_stage": stage}
        name = "zero_exposed_seconds"
        return 1e3 * value(name, accumulation_steps=k, **given)

    rows = {
        (8192, 1): (12, 375, 12, 375, 12, 562, 18),
        (8192, 8): (12, 375, 12, 1688, 53, 4500, 141),
        (2048, 1): (275, 375, 225, 375, 225, 562, 409),
        (2048, 8): (275, 375, 225, 1688, 835, 4500, 3270),
    }
    for (tokens, k), row in rows.items():
        ways = [(0, HIDDEN)] + [(stage, how) for stage in (1, 2, 3) for how in (AS_SHOWN, HIDDEN)]
        found = [exposed(tokens, stage, k, **how) for stage, how in ways]
        assert found == pytest.approx(row, abs=0.51), (tokens, k)
    first_only = dict(prefetch_units=0, reduce_early=1)
    assert exposed(8192, 1, **first_only) == pytest.approx(193, abs=0.51)
    assert exposed(2048, 1, **first_only) == pytest.approx(275, abs=0.51)
    stage_1 = dict(reshard_after_forward=0, reshard_after_backward=0, gradient_sync=0)
    assert exposed(8192, 3, 8, **HIDDEN, **stage_1) == pytest.approx(12, abs=0.51)
    assert exposed(2048, 3, 8, **HIDDEN, **stage_1) == pytest.approx(225, abs=0.51)


def test_offload():
    """CPU-Adam reads and writes 28 bytes a parameter. Must catch: more ranks on one host, whose
    memory they share, that make CPU-Adam faster; states read and not written."""
    given = quantities(
        recipe="bf16 + fp32 master",
        parameters=5 * 10**9,
        rank=0,
        pcie_bytes_per_second=31e9,
        host_memory_bytes_per_second=200e9,
    )
    for ranks, each, copies, adam in ((1, 1, 645, 700), (16, 8, 40, 350), (8, 8, 81, 700)):
        found = Given(data_parallel=ranks, ranks_on_a_host=each, **given)
        assert 1e3 * found.offload_copy_seconds == pytest.approx(copies, abs=0.6)
        assert 1e3 * found.cpu_adam_seconds == pytest.approx(adam, abs=0.6)
        assert found.cpu_adam_bytes * ranks == 28 * 5 * 10**9
