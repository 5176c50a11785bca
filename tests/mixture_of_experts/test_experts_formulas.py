"""Formulas of chapter 15 beside routings that are counted, and beside published numbers."""

import pytest
from solved import value

from coursekit.formulas import PRESETS
from coursekit.planner.layout import asked_layout
from coursekit.planner.speeds import SPEEDS, parts_of, step_values

NAMES = ("hot_expert_rows", "cold_expert_rows", "rank_expert_rows", "fullest_rank_rows")
NAMES += ("expert_imbalance", "rank_imbalance", "dropped_share")


def routed(experts, experts_per_token, ranks, tokens, collapsed, capacity):
    """(rows that each expert computes, rows dropped, most rows sent to one) of tokens one by one:
    the first ones have collapsed, the others take experts in turn."""
    chosen, turn = [0] * experts, 0
    for token in range(tokens * ranks):
        for place in range(experts_per_token):
            fell = token < collapsed * tokens * ranks
            chosen[place if fell else turn % experts] += 1
            turn += not fell
    even = tokens * ranks * experts_per_token / experts
    kept = [min(rows, capacity * even) if capacity else rows for rows in chosen]
    return kept, sum(chosen) - sum(kept), max(chosen)


@pytest.mark.parametrize("capacity", [0, 0.5, 1, 1.25, 2])
@pytest.mark.parametrize("collapsed", [0, 0.25, 0.5, 1])
@pytest.mark.parametrize("sizes", [(8, 2, 4), (8, 4, 4), (16, 2, 2), (4, 1, 1), (4, 4, 2)])
def test_rows_of_a_routing(sizes, collapsed, capacity):
    """Must catch: tokens of one rank instead of all; an imbalance of rows after a drop; hot experts
    on one rank though it has too few; a drop of cold experts left out."""
    experts, k, ranks = sizes
    kept, dropped, most = routed(experts, k, ranks, 64, collapsed, capacity)
    given = dict(experts=experts, experts_per_token=k, expert_parallel=ranks)
    given |= dict(microbatch=2, sequence=32, collapsed_share=collapsed, capacity_factor=capacity)
    local = experts // ranks
    loads = [sum(kept[rank * local : (rank + 1) * local]) for rank in range(ranks)]
    for rank, rows in enumerate(loads):
        assert value("rank_expert_rows", **given, expert_rank=rank) == pytest.approx(rows)
    assert value("fullest_rank_rows", **given) == pytest.approx(max(loads))
    assert value("dropped_share", **given) == pytest.approx(dropped / (64 * ranks * k))
    assert value("expert_imbalance", **given) == pytest.approx(most * experts / (64 * ranks * k))
    assert value("rank_imbalance", **given) == pytest.approx(max(loads) / (64 * k))


def test_bytes_of_a_layer():
    """DeepSeek-V3: 172 KB a token and layer with dispatch in fp8, 4,608 operations a byte
    (DeepSeek-AI 2024, section 3.2). Must catch: one way only; a share that stays, sent; the shared
    expert's operations left out; tensor parallelism's bytes of one rank."""
    deepseek = dict(model="DeepSeek-V3 671B", dispatch_element_bytes=1, combine_element_bytes=2)
    assert value("expert_token_bytes", **deepseek) == 172_032
    assert value("expert_intensity", **deepseek) == 4608
    layer = dict(hidden=64, microbatch=2, sequence=12, experts_per_token=2, expert_parallel=4)
    both = dict(dispatch_element_bytes=2, combine_element_bytes=2)
    tokens, k, h, e = 24, 2, 64, 4
    assert (
        value("expert_layer_sent_bytes", **layer, **both) == 4 * tokens * k * h * 2 * (e - 1) // e
    )
    evenly = dict(experts=8, capacity_factor=0, collapsed_share=0)
    received = value("fullest_rank_bytes", **layer, **both, **evenly)
    assert received == value("expert_layer_sent_bytes", **layer, **both)
    cut = dict(tensor_parallel=4, compute_element_bytes=2, hidden=64, microbatch=2, sequence=12)
    sent = sum(
        value(f"tensor_layer_{way}_sent_bytes", **cut, regather=0)
        for way in ("forward", "backward")
    )
    assert value("tensor_token_bytes", **cut) == 4 * sent // 24


@pytest.mark.parametrize("model", ["Mixtral 8x7B", "Qwen3 30B-A3B", "DeepSeek-V3 671B"])
def test_states_of_experts(model):
    """A rank's experts are those that `rank` and the planner count. Must catch: dense layers that
    have experts; shared experts counted in; all experts on each rank."""
    given = dict(model=model, recipe="bf16 + fp32 master", expert_parallel=8)
    layout = dict(data_parallel=8, tensor_parallel=1, pipeline_parallel=1, pipeline_rank=0)
    states = value("rank_expert_state_bytes", **given)
    assert states == 16 * value("rank_expert_parameters", **given, **layout, stages_per_rank=1)
    sizes = PRESETS["model"][model].quantities
    layers = sizes["layers"] - sizes.get("dense_layers", 0)
    a_layer = sizes["experts"] // 8 * 3 * sizes["hidden"] * sizes["feed_forward"]
    assert states == 16 * layers * a_layer


def test_seconds_of_the_fullest_rank():
    """Two ranks, two experts, one a token, half of the tokens collapsed: the fullest rank has 1.5
    times its share. Must catch: the mean rank's time; a share that stays, sent; one way alone; a
    latency on one rank."""
    given = dict(experts=2, experts_per_token=1, expert_parallel=2, microbatch=1, sequence=1000)
    given |= dict(hidden=10, feed_forward=20, gated_mlp=1, dispatch_element_bytes=2)
    given |= dict(combine_element_bytes=2, collapsed_share=0.5, latency_seconds=1e-3)
    rates = dict(link_bytes_per_second=1e6, flops_per_second=1e9, utilisation=0.5)
    exchange = 4e-3 + 4 * 1500 / 2 * 10 * 2 / 1e6
    compute = 3 * 2 * 3 * 10 * 20 * 1500 / 0.5e9
    assert value("expert_exchange_seconds", **given, **rates) == pytest.approx(exchange)
    assert value("expert_compute_seconds", **given, **rates) == pytest.approx(compute)
    assert value("experts_seconds", **given, **rates) == pytest.approx(exchange + compute)
    even = value("experts_seconds", **given | dict(collapsed_share=0), **rates)
    assert value("balanced_experts_seconds", **given, **rates) == pytest.approx(even)
    alone = given | dict(expert_parallel=1)
    assert value("expert_exchange_seconds", **alone, **rates) == 0


def test_a_load_that_is_not_even_costs_bytes_and_seconds():
    """Half as many rows more on the fullest rank, in fits and in a step. Must catch: a load that
    bytes, messages or products leave out; one of layers without experts; parts that no longer add
    up to the step."""
    asked = dict(gpu="H100 SXM 80GB", gpus=16, sequence=4096, zero_stage=1, expert_parallel=16)
    asked |= dict(kernels="Megatron-LM, fused loss")
    for model, layers in (("Qwen3 30B-A3B", 48), ("DeepSeek-V3 671B", 58)):
        even, full = (
            asked_layout(model, None, **asked, expert_load_percent=load) for load in (100, 150)
        )
        speed = SPEEDS["Megatron-Bridge's experts"]
        before, after = (step_values(layout, speed) for layout in (even, full))
        sizes = PRESETS["model"][model].quantities
        k, h, f, tokens = sizes["experts_per_token"], sizes["hidden"], sizes["feed_forward"], 4096
        assert after["layer_expert_seconds"] == pytest.approx(1.5 * before["layer_expert_seconds"])
        rows = 0.5 * k * tokens * layers / sizes["layers"]
        late = 6 * 3 * h * f * rows / (after["utilisation"] * after["flops_per_second"])
        assert before["layer_late_seconds"] == 0
        assert after["layer_late_seconds"] == pytest.approx(late)
        assert sum(parts_of(after).values()) == pytest.approx(after["layout_seconds"])
        assert parts_of(after)["launching"] == pytest.approx(0, abs=1e-9)  # no part is forgotten
        kept = [layout.solved()["library_mlp_bytes"] for layout in (even, full)]
        a_row = 2 * h + 3 * 2 * f  # its input, and three tensors of the gated MLP
        assert kept[1] - kept[0] == 0.5 * k * tokens * a_row
        assert full.needed_bytes(full.solved()) > even.needed_bytes(even.solved())
