"""What kernels keep: the same layer under the fused kernels of a library. This book's GPT runs
eager PyTorch, whose formulas are those of activations and of a step; the formulas here are for
Megatron-LM with Transformer Engine and for FSDP2 with fused kernels, in 16 bits.
"""

# Counted as in Megatron-LM's theoretical_memory_usage.py and in Korthikanti et al. 2022, Table 2,
# with the differences that the kernels make: one kernel for SwiGLU keeps three inner tensors where
# eager PyTorch keeps four, attention keeps its output a second time in some kernels, and the loss
# takes 12, 6 or 2 bytes a logit. Tensor, sequence and context parallelism, pipelines and recompute
# divide or replace these terms; each enters with its chapter.

from shardlab.formulas.registry import BOOK
from shardlab.formulas.subset import equal, where

BOOK.given(
    r"""
library_kernels | 1_\text{lib} | count, from 0 to 1, usually 0 | 0 where eager PyTorch runs this
    book's GPT, which is counted to the byte; 1 where a library's fused kernels run
loss_logit_bytes | \beta_V | bytes, usually 12 | bytes a logit takes while the loss goes backward:
    12 in eager PyTorch, 6 with a loss in place, 2 with one that is fused into the head
kept_gated_tensors | n_\text{gated} | count, usually 4 | inner tensors that a gated MLP keeps: 4 in
    eager PyTorch, 3 with one kernel for the gate
kept_attention_outputs | n_\text{copy}^\text{attn} | count, usually 1 | times that attention's
    output is kept: once, or by kernel and output product each
workspace_bytes | M_\text{work} | bytes, from 0, usually 0 | scratch memory of the matrix products:
    on a GPU, cuBLAS keeps one piece for each thread that multiplies, forward and backward
"""
)

_SOURCE = "Korthikanti et al. 2022, Table 2; Megatron-LM, theoretical_memory_usage.py"
_CHECKED = "tests/where_the_memory_goes/test_rank.py::test_published_layer"
formula = BOOK.section(source=_SOURCE, measured_by=_CHECKED)


@formula(r"1_\text{eager}", "count")
def eager_kernels(library_kernels):
    """1 where eager PyTorch runs this book's GPT"""
    return 1 - library_kernels


@formula(r"A_\text{norms}^\text{lib}", "bytes")
def library_norm_bytes(
    norms_per_layer, linear_input_bytes, microbatch_tokens, norm_biases, query_key_norms
):
    """bytes that a layer's norms keep: inputs, and the statistics of a token, two in LayerNorm and
    one in RMSNorm"""
    return (
        norms_per_layer * (linear_input_bytes + 4 * (1 + norm_biases) * microbatch_tokens)
        + query_key_norms * 8 * microbatch_tokens
    )


@formula(r"A_\text{attn}^\text{lib}", "bytes")
def library_attention_bytes(
    linear_input_bytes,
    query_key_value_bytes,
    query_key_norms,
    key_bytes,
    kept_attention_outputs,
    query_bytes,
    keeps_scores,
    score_bytes,
    score_dropout_bytes,
    heads,
    microbatch_tokens,
    mask_bytes,
):
    """bytes that attention keeps: its input, queries, keys, values, before and after their norms,
    its output, scores or their log-sum-exp, the mask"""
    return (
        linear_input_bytes
        + query_key_value_bytes
        + query_key_norms * (query_bytes + key_bytes)
        + kept_attention_outputs * query_bytes
        + where(
            equal(keeps_scores, 1),
            score_bytes + score_dropout_bytes,
            4 * heads * microbatch_tokens,
        )
        + mask_bytes
    )


@formula(r"A_\text{mlp}^\text{lib}", "bytes")
def library_mlp_bytes(
    experts,
    experts_per_token,
    linear_input_bytes,
    gated_mlp,
    kept_gated_tensors,
    inner_bytes,
    mask_bytes,
):
    """bytes that the MLP keeps: input, inner tensors, mask; of experts, those of the ones that a
    token goes through, if all get as many tokens"""
    return (
        where(experts > 0, experts_per_token, 1)
        * (linear_input_bytes + where(equal(gated_mlp, 1), kept_gated_tensors, 2) * inner_bytes)
        + where(experts > 0, linear_input_bytes, 0)
        + mask_bytes
    )


@formula(r"A_\ell^\text{lib}", "bytes")
def library_layer_bytes(library_norm_bytes, library_attention_bytes, library_mlp_bytes):
    """bytes that one layer keeps for backward under a library's kernels"""
    return library_norm_bytes + library_attention_bytes + library_mlp_bytes


@formula(r"A^\text{lib}", "bytes")
def library_saved_bytes(batch_bytes, mask_bytes, layers, library_layer_bytes):
    """bytes that forward keeps under a library's kernels: batch, mask after the embedding,
    layers"""
    return batch_bytes + mask_bytes + layers * library_layer_bytes
