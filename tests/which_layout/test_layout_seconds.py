"""Seconds of a step of a layout: counted by hand, and against the simulated pipeline."""

from fractions import Fraction

import pytest
from solved import Given

from coursekit.formulas import BOOK
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
    """Must catch: products that tensor parallelism does not divide; messages that a recomputed
    layer does not send again; all network cards for one group of data-parallel ranks; the update of
    whole states in stage 1; the first layer's messages hidden, too."""
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


@pytest.mark.parametrize("policy, times", [(0, 4), (3, 6)])
@pytest.mark.parametrize("e, bandwidth", [(4, 8e9), (8, 1e9)])
def test_a_layer_of_experts_by_hand(e, bandwidth, policy, times):
    """Must catch: products of all experts; a copy of a token for all its experts together inside a
    node, or for each between nodes; own experts' tokens sent; messages between nodes over NVLink or
    all cards; layers without experts that send; gradients of experts reduced among ranks that have
    others."""
    latent = dict(key_value_latent=24, query_latent=40, rotary_columns=8, value_columns=12)
    latent |= dict(experts=8, experts_per_token=2, shared_feed_forward=96, gated_mlp=1)
    asked = dict(SMALL, **MACHINE) | latent | dict(dense_layers=1, dense_feed_forward=200)
    asked |= dict(data_parallel=8, expert_parallel=e, zero_stage=1, pipeline_rank=0)
    asked |= dict(tensor_parallel=1, pipeline_parallel=1, recompute_policy=policy)
    found = BOOK.solve(["layout_seconds", "layout_utilisation"], asked, allow_unused=True)
    tokens = 64
    attention = 64 * (40 + 24 + 8) + 4 * (40 * (16 + 8) + 24 * (16 + 12) + 12 * 64)
    experts = 3 * 64 * (2 * 256 + 96) + 64 * 8
    weights = attention + (7 * experts + 3 * 64 * 200) / 8
    scores = 2 * tokens * 32 * 4 * (16 + 8 + 12)
    forward = (2 * tokens * weights + scores) / 0.5e12
    assert found["layer_forward_seconds"] == pytest.approx(forward)
    inside = 2 * tokens * 64 * 2 * (e - 1) / e / 8e9
    once = 1 * tokens * 64 * 2 / bandwidth  # to the other of two nodes, by the rank's own card
    message = max(inside, once if e > 4 else 0)
    assert found["layer_expert_seconds"] == pytest.approx(times * message * 7 / 8)
    rest = 3 * forward + found["layer_moving_seconds"] + times * message * 7 / 8
    again = found["recompute_seconds"] / 8
    assert found["layer_seconds"] == pytest.approx(rest + again)
    own = 7 * (8 // e) * 3 * 64 * 256
    assert found["rank_expert_parameters"] == own
    common = found["rank_parameters"] - own
    same, cards = 8 // e, 1e9  # one of a node's four cards for the ranks that have the same experts
    gather = 2 * (7 / 8 * common / 4e9 + (same - 1) / same * own / cards)
    assert found["rank_gather_seconds"] == pytest.approx(gather)
    assert found["rank_reduce_seconds"] == pytest.approx(2 * gather)


@pytest.mark.parametrize("policy, times", [(0, 2), (1, 3)])
@pytest.mark.parametrize("c, bandwidth", [(2, 8e9), (4, 1e9)])
@pytest.mark.parametrize("mix", [1, 2, 3])
def test_a_shared_sequence_by_hand(mix, c, bandwidth, policy, times):
    """Must catch: attention among a rank's own tokens alone; queries exchanged without keys, values
    and outputs; messages of other ranks' heads, or none where attention is recomputed; a step
    measured by shorter sequences; a ring that waits for all of its messages, or for none; a gather
    of own keys."""
    asked = dict(SMALL, **MACHINE, data_parallel=4, tensor_parallel=2, pipeline_parallel=1)
    asked |= dict(context_parallel=c, pipeline_rank=0, zero_stage=1, score_share=0.5)
    asked |= dict(recompute_policy=policy, key_value_heads=2, context_mix=mix)
    if mix == 3:  # whole heads
        asked |= dict(heads=16, key_value_heads=8)
    found = BOOK.solve(["layout_seconds", "layout_utilisation"], asked, allow_unused=True)
    tokens, whole = 64, 32 * c
    weights = 2 * 64 * (64 + 32) + 2 * 64 * 256
    forward = (2 * tokens * weights + 0.5 * 4 * tokens * whole * 64) / 1e12
    assert found["layer_forward_seconds"] == pytest.approx(forward)
    message = 2 * tokens * (2 * 64 + 2 * 32) / 2 * (c - 1) / c / bandwidth
    waited = times * (message if mix == 3 else 2 * tokens * 2 * 32 / 2 * (c - 1) / bandwidth)
    if mix == 1:
        turn = 0.5 * 4 * tokens * 32 * 64 / 1e12
        keys, gradients = (size * tokens * 2 * 32 / 2 / bandwidth for size in (2, 4))
        waited = (times - 1) * (c - 1) * max(0, keys - turn) - c * 2.5 * turn
        waited += max(2.5 * turn, keys) + (c - 2) * max(2.5 * turn, keys + gradients)
        waited += max(2.5 * turn, gradients) + keys
    sent = (
        3 * forward
        + found["recompute_seconds"] / 8
        + found["layer_moving_seconds"]
        + found["layer_waiting_seconds"]
    )
    assert found["layer_context_seconds"] == pytest.approx(waited)
    assert found["layer_seconds"] == pytest.approx(sent + waited)
    every = 6 * (8 * weights + 64 * 1000) + 12 * 8 * whole * 64
    rate = every * found["layout_tokens_per_second"] / 1e12
    assert found["layout_utilisation"] == pytest.approx(rate)


@pytest.mark.parametrize(
    "p, v, layers, ends, head",
    [(4, 1, 12, 0, 0), (4, 1, 12, 0, 2), (4, 2, 16, 0, 0), (4, 1, 10, 1, 1), (1, 1, 6, 0, 2)],
)
def test_bubble_is_what_is_simulated(p, v, layers, ends, head):
    """Must catch: a bubble of as many microbatches as there are stages; a head that delays only the
    last rank; interleaving that leaves the bubble as it is."""
    found = Given(
        layer_seconds=3,
        head_seconds=3 * head,
        layers=layers,
        pipeline_parallel=p,
        pipeline_schedule=4 if v > 1 else 2,
        stages_per_rank=v,
        shorter_ends=ends,
        first_stage_layers=-(-layers // (p * v)),
    )
    stages = [(layers + 2 * ends) // (p * v)] * p * v
    stages[0] -= ends
    stages[-1] -= ends if p > 1 else 0
    stages[-1] += head
    costs = [Fraction(stage) for stage in stages]
    more = {"stages_per_rank": v} if v > 1 else {}
    plan = schedule("interleaved 1F1B" if v > 1 else "1F1B", p, 8, **more)
    wanted = simulate(plan, Costs(costs, costs, costs)).seconds
    assert 8 * found.slowest_rank_seconds + found.bubble_seconds == wanted


def test_groups_and_the_host_by_hand():
    """Must catch: gathers between nodes; gradients of whole groups between nodes; shards that come
    from the host for nothing."""
    names = ["rank_parameters", "rank_gather_seconds", "rank_reduce_seconds", "rank_update_seconds"]
    asked = dict(SMALL, **MACHINE, data_parallel=8, tensor_parallel=1, pipeline_parallel=1)

    def of(**more):
        return BOOK.solve(names, {**asked, "zero_stage": 3, **more}, allow_unused=True)

    whole = of(shard_groups=2)["rank_parameters"]
    shard = -(-whole // 4)
    assert of(shard_groups=2)["rank_gather_seconds"] == pytest.approx(2 * 3 / 4 * whole / 8e9)
    between = 2 * (1 / 2) * 4 * shard / (4e9 / 4)
    reduced = 4 * 3 / 4 * whole / 8e9 + between
    assert of(shard_groups=2)["rank_reduce_seconds"] == pytest.approx(reduced)
    alone, host = of(), of(offload=1, offload_bytes_per_second=1e9)
    eighth = -(-whole // 8)
    fetched = host["rank_gather_seconds"] - alone["rank_gather_seconds"]
    assert fetched == pytest.approx(2 * eighth / 1e9)
    assert host["rank_update_seconds"] == pytest.approx(100 * alone["rank_update_seconds"])
