"""The bytes that kernels keep: the same layer under the fused kernels of a library. This book's GPT
runs eager PyTorch, which the formulas of activations and of a step describe; the formulas here are
for Megatron-LM with Transformer Engine and for FSDP2 with fused kernels, in 16 bits.
"""

# Counted as in Megatron-LM's theoretical_memory_usage.py and in Korthikanti et al. 2022, Table 2,
# with the differences that the kernels make: one kernel for SwiGLU keeps three inner tensors where
# eager PyTorch keeps four, attention keeps its output a second time in some kernels, and the loss
# takes 12, 6 or 2 bytes a logit. Tensor and sequence parallelism divide these terms.

from coursekit.formulas.registry import BOOK
from coursekit.formulas.subset import ceil_div, equal, where

BOOK.given(
    r"""
library_kernels | 1_\text{lib} | count, from 0 to 1, usually 0 | 0 where eager PyTorch runs this
    book's GPT, counted to the byte; 1 where a library's fused kernels run
loss_logit_bytes | \beta_V | bytes, usually 12 | bytes that a logit takes while the loss goes
    backward: 12 in eager PyTorch, 6 with an in-place loss, 2 with a loss that is fused into the
    head
kept_gated_tensors | n_\text{gated} | count, usually 4 | inner tensors that a gated MLP keeps: 4 in
    eager PyTorch, 3 where one kernel computes the gate
kept_attention_outputs | n_\text{copy}^\text{attn} | count, usually 1 | copies of attention's output
    that are kept: 1, or 2 where the kernel and the output product keep one each
dummy_weight_gradients | 1_\text{dummy} | count, from 0 to 1, usually 0 | 1 where the product that
    makes a weight's gradient adds it to the gradient that is there, and autograd gets a tensor
    without values in its place, one for all weights of a shape; 0 if not
workspace_bytes | M_\text{work} | bytes, from 0, usually 0 | scratch memory of the matrix products:
    on a GPU, cuBLAS keeps one workspace for each thread that multiplies, forward and backward
"""
)

_SOURCE = "Korthikanti et al. 2022, Table 2; Megatron-LM, theoretical_memory_usage.py"
_CHECKED = "tests/where_the_memory_goes/test_rank.py::test_published_layer"
formula = BOOK.section(source=_SOURCE, measured_by=_CHECKED)


@formula(r"1_\text{eager}", "count")
def eager_kernels(library_kernels):
    """1 where eager PyTorch runs this book's GPT"""
    return 1 - library_kernels


@formula(r"A_\text{own}", "bytes")
def own_input_bytes(tensor_own_tokens, compute_element_bytes, hidden):
    """bytes of one vector of the hidden size for each token that the rank has between the layers:
    all tokens, or the rank's part with sequence parallelism"""
    return compute_element_bytes * tensor_own_tokens * hidden


@formula(r"A_\text{inner}^\text{lib}", "bytes")
def library_inner_bytes(microbatch_tokens, tensor_feed_forward, compute_element_bytes):
    """bytes of one vector of the rank's part of the MLP's inner size for each token"""
    return compute_element_bytes * microbatch_tokens * tensor_feed_forward


@formula(r"A_\text{norms}^\text{lib}", "bytes")
def library_norm_bytes(
    norms_per_layer,
    own_input_bytes,
    tensor_own_tokens,
    norm_biases,
    query_key_norms,
    microbatch_tokens,
):
    """bytes that a layer's norms keep: inputs, and statistics for each token, two in LayerNorm and
    one in RMSNorm"""
    return (
        norms_per_layer * (own_input_bytes + 4 * (1 + norm_biases) * tensor_own_tokens)
        + query_key_norms * 8 * microbatch_tokens
    )


@formula(r"A_\text{core}^\text{lib}", "bytes")
def library_core_bytes(
    kept_attention_outputs,
    query_bytes,
    fused_attention,
    heads,
    microbatch_tokens,
    score_bytes,
    score_dropout_bytes,
    tensor_parallel,
):
    """bytes that the core of attention keeps for the rank's heads beside its inputs and its output,
    and makes again where the core is recomputed: scores or their log-sum-exp, a second copy of the
    output. A library's fused kernel drops scores itself, so dropout stores none"""
    return ceil_div(
        (kept_attention_outputs - 1) * query_bytes
        + where(
            equal(fused_attention, 1),
            4 * heads * microbatch_tokens,
            score_bytes + score_dropout_bytes,
        ),
        tensor_parallel,
    )


@formula(r"A_\text{attn}^\text{lib}", "bytes")
def library_attention_bytes(
    tensor_input_bytes,
    query_key_value_bytes,
    query_key_norms,
    key_bytes,
    query_bytes,
    tensor_parallel,
    library_core_bytes,
    tensor_mask_bytes,
):
    """bytes that attention keeps for the rank's heads: its input; queries, keys and values, before
    and after their norms; its output; what the core keeps beside these; the mask"""
    return (
        tensor_input_bytes
        + ceil_div(
            query_key_value_bytes + query_key_norms * (query_bytes + key_bytes) + query_bytes,
            tensor_parallel,
        )
        + library_core_bytes
        + tensor_mask_bytes
    )


@formula(r"A_\text{mlp}^\text{lib}", "bytes")
def library_mlp_bytes(
    experts,
    experts_per_token,
    tensor_input_bytes,
    gated_mlp,
    kept_gated_tensors,
    library_inner_bytes,
    tensor_mask_bytes,
):
    """bytes that the MLP keeps: input, inner tensors, mask; with experts, only of the experts that
    a token goes through, if all experts get equally many tokens"""
    return (
        where(experts > 0, experts_per_token, 1)
        * (
            tensor_input_bytes
            + where(equal(gated_mlp, 1), kept_gated_tensors, 2) * library_inner_bytes
        )
        + where(experts > 0, tensor_input_bytes, 0)
        + tensor_mask_bytes
    )


@formula(r"A_\ell^\text{lib}", "bytes")
def library_layer_bytes(library_norm_bytes, library_attention_bytes, library_mlp_bytes):
    """bytes that one layer keeps for backward under a library's kernels"""
    return library_norm_bytes + library_attention_bytes + library_mlp_bytes
