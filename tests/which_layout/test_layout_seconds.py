"""Seconds of a step of a layout: counted by hand, and against the simulated pipeline."""

from fractions import Fraction

import pytest

from coursekit.formulas import BOOK, evaluate
from shardlab.pipelines.schedules import schedule
from shardlab.pipelines.simulation import Costs, simulate

MACHINE = dict(
    flops_per_second=1e12,
    utilisation=0.5,
    memory_bytes_per_second=1e11,
    ranks_per_node=4,
    node_bytes_per_second=8e9,
    node_latency_seconds=0,
    link_bytes_per_second=4e9,
    latency_seconds=0,
)
SMALL = dict(
    layers=8,
    hidden=64,
    heads=4,
    key_value_heads=4,
    feed_forward=256,
    vocabulary=1000,
    max_sequence=32,
    learned_positions=0,
    biases=0,
    gated_mlp=0,
    tied_head=0,
    sequence=32,
    microbatch=2,
    accumulation_steps=8,
    recipe="bf16 + fp32 gradients",
    kernels="Megatron-LM with Transformer Engine",
)


@pytest.mark.parametrize("policy", [0, 3])
@pytest.mark.parametrize("overlap", [0, 1])
def test_a_step_by_hand(overlap, policy):
    """Two data-parallel, two tensor-parallel and four pipeline ranks on four nodes.

    Must catch: products that tensor parallelism does not divide; messages that a recomputed layer
    does not send again; all network cards for one group of data-parallel ranks; the update of whole
    states in stage 1; the first layer's messages hidden, too."""
    layout = dict(data_parallel=4, tensor_parallel=2, pipeline_parallel=4, pipeline_rank=3)
    asked = dict(SMALL, **MACHINE, **layout, zero_stage=1, sequence_parallel=1, regather=1)
    asked |= dict(recompute_policy=policy, reduce_early=overlap, prefetch_units=overlap)
    found = BOOK.solve(["layout_seconds"], asked, allow_unused=True)
    tokens, again = 64, policy == 3
    weights = tokens * 2 * (4 + 8) * 64**2
    forward = weights + 4 * tokens * 32 * 64
    kept_out = 2 * tokens * 256 * 64  # the second run stops before the last product
    rate = 2 * 0.5e12
    products = (3 * forward + again * (forward - kept_out)) / rate
    moved = 6 * found["rank_layer_bytes"] * (4 / 3 if again else 1) / 1e11
    message = tokens * 64 * 2 / 2 / 8e9
    layer = products + moved + (10 + 4 * again) * message
    assert found["layer_seconds"] == pytest.approx(layer)
    head = 6 * tokens * 64 * 1000 / rate + 3 * 6 * tokens * 500 / 1e11
    slowest = 2 * layer + head
    assert found["slowest_rank_seconds"] == pytest.approx(slowest)
    assert found["bubble_seconds"] == pytest.approx(6 * layer)
    parameters = found["rank_parameters"]
    gather = 3 / 4 * 2 * parameters / 2e9  # two of the four ranks of a node, and their cards
    reduce = 3 / 4 * 4 * parameters / 2e9
    if overlap:
        gather = max(gather / 2, gather - slowest / 3)
        reduce = max(reduce / 2, reduce - 2 * slowest / 3)
    assert found["data_exposed_seconds"] == pytest.approx(gather + reduce)
    update = (2 * 12 + 4 + 2) * -(-parameters // 4) / 1e11
    passing = found["pipeline_transfers"] * tokens * 64 * 2 / 2 / 1e9
    step = 8 * slowest + 6 * layer + passing + gather + reduce + update
    assert found["layout_seconds"] == pytest.approx(step)


@pytest.mark.parametrize(
    "p, v, layers, ends, head",
    [(4, 1, 12, 0, 0), (4, 1, 12, 0, 2), (4, 2, 16, 0, 0), (4, 1, 10, 1, 1), (1, 1, 6, 0, 2)],
)
def test_bubble_is_what_is_simulated(p, v, layers, ends, head):
    """Must catch: a bubble of as many microbatches as there are stages; a head that delays only the
    last rank; interleaving that leaves the bubble as it is."""
    found = evaluate(
        ["slowest_rank_seconds", "bubble_seconds"],
        layer_seconds=3,
        head_seconds=3 * head,
        layers=layers,
        pipeline_parallel=p,
        pipeline_schedule=4 if v > 1 else 2,
        stages_per_rank=v,
        shorter_ends=ends,
        allow_unused=True,
    )
    stages = [(layers + 2 * ends) // (p * v)] * p * v
    stages[0] -= ends
    stages[-1] -= ends if p > 1 else 0
    stages[-1] += head
    costs = [Fraction(stage) for stage in stages]
    more = {"stages_per_rank": v} if v > 1 else {}
    plan = schedule("interleaved 1F1B" if v > 1 else "1F1B", p, 8, **more)
    wanted = simulate(plan, Costs(costs, costs, costs)).seconds
    assert 8 * found["slowest_rank_seconds"] + found["bubble_seconds"] == wanted
