"""The peak of one rank of a layout as the sum of its parts, and a layer under a library's kernels
against published counts."""

import pytest
from solved import Given

from coursekit.formulas import evaluate, rank_peak_bytes
from coursekit.topics.where_the_memory_goes.formulas.rank import RANK

GPT2 = dict(model="GPT-2 124M", recipe="fp32 Adam", microbatch=2, sequence=128)


@pytest.mark.parametrize("accumulation_steps", (1, 4))
def test_alone_it_is_the_peak_of_one_gpu(accumulation_steps):
    """Must catch: two formulas of one thing that drift apart."""
    for first_step in (0, 1):
        given = dict(GPT2, accumulation_steps=accumulation_steps, first_step=first_step)
        found = rank_peak_bytes(**given, zero_stage=0, data_parallel=1)
        assert found == Given(**given).peak_bytes


def test_the_parts_are_all_of_it():
    """Must catch: a category that a place has and the sum has not, workspaces above all."""
    given = dict(
        model="Llama 3 8B",
        recipe="bf16 + fp32 master",
        kernels="Megatron-LM with Transformer Engine",
        microbatch=1,
        sequence=8192,
        zero_stage=3,
        data_parallel=64,
    )
    parts = [
        "rank_parameter_bytes",
        "optimizer_at_rank_peak_bytes",
        "gradients_at_rank_peak_bytes",
        "activations_at_rank_peak_bytes",
        "gathered_at_rank_peak_bytes",
        "temporaries_at_rank_peak_bytes",
        "rank_workspace_bytes",
    ]
    found = evaluate([*parts, "rank_peak_bytes"], **given)
    total = found.pop("rank_peak_bytes")
    dummies = 2 * (2 * 4096 * (4096 + 1024) + 3 * 4096 * 14_336 + 128_256 * 4096)
    assert sum(found.values()) == total
    assert found["rank_workspace_bytes"] == (3 * 32 << 20) + dummies
    assert RANK.places[Given(**given).rank_peak_place - 1].name == ("rank_library_loss")


LAYER = B, S, H, A = 2, 1024, 4096, 32
GPT3 = dict(layers=1, hidden=H, heads=A, key_value_heads=A, feed_forward=4 * H, vocabulary=100)
GPT3 |= dict(max_sequence=S, learned_positions=1, biases=1, gated_mlp=0, tied_head=1)
GPT3 |= dict(microbatch=B, sequence=S, compute_element_bytes=2, residual_element_bytes=2)
GPT3 |= dict(parameter_element_bytes=2)


def test_published_layer():
    """Korthikanti et al. 2022, Table 2, and statistics of norms; SwiGLU fused. Must catch: a copy
    of attention's output, or a gate's tensor, that the kernels do not keep."""
    b, s, h, a, f = *LAYER, 11_008
    found = Given(**GPT3, dropout=0.1, fused_attention=0).library_layer_bytes
    assert found == s * b * h * 34 + 5 * a * s * s * b + 2 * 8 * s * b
    llama = {**GPT3, "biases": 0, "gated_mlp": 1, "feed_forward": f, "learned_positions": 0}
    found = Given(**llama, kept_gated_tensors=3).library_layer_bytes
    assert found == 2 * b * s * (2 * h + 2 * h + 3 * h + h + 3 * f) + 4 * b * s * (2 + a)


def test_a_layer_that_is_cut():
    """Korthikanti et al. 2022, Table 2, in a library's kernels. Must catch: an input or a mask that
    tensor parallelism cuts, or that sequence parallelism does not; scores of all heads; scores that
    wait though recomputed; attention's output forgotten with the core."""
    b, s, h, a, t = *LAYER, 8
    gpt = dict(GPT3, dropout=0.1, fused_attention=0, tensor_parallel=t)
    for way, each, cut in (
        (dict(sequence_parallel=0, regather=0), 10 + 24 / t, 1),
        (dict(sequence_parallel=1, regather=1), 34 / t, t),
    ):
        statistics = 2 * 8 * s * b / cut
        for policy, scores in ((0, 5 * a * s / (h * t)), (1, 0)):
            found = Given(**gpt, **way, library_kernels=1, recompute_policy=policy)
            want = s * b * h * (each + scores) + statistics
            assert found.rank_waiting_layer_bytes == want, (way, policy)
