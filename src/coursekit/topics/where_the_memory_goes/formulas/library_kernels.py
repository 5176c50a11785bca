"""The bytes that kernels keep: the same layer under the fused kernels of a library. This book's GPT
runs eager PyTorch, which the formulas of activations and of a step describe; the formulas here are
for Megatron-LM with Transformer Engine and for FSDP2 with fused kernels, in 16 bits.
"""

# Counted as in Megatron-LM's theoretical_memory_usage.py and in Korthikanti et al. 2022, Table 2,
# with the differences that the kernels make: one kernel for SwiGLU keeps three inner tensors where
# eager PyTorch keeps four, attention keeps its output a second time in some kernels, and the loss
# takes 12, 6 or 2 bytes a logit. Tensor and sequence parallelism divide these terms.

from coursekit.formulas.registry import BOOK
from coursekit.formulas.subset import ceil_div, equal, minimum, where

BOOK.given_beside(__file__)

_SOURCE = "Korthikanti et al. 2022, Table 2; Megatron-LM, theoretical_memory_usage.py"
_CHECKED = "tests/where_the_memory_goes/test_rank.py::test_published_layer"
_PEAKS = "tests/where_the_memory_goes/test_published_peaks.py::test_published_peaks"


class Kernels(BOOK.section(source=_SOURCE, measured_by=_CHECKED)):
    def eager_kernels(q):
        r"""1_\text{eager} | count | 1 where eager PyTorch runs this book's GPT"""
        return 1 - q.library_kernels

    def own_input_bytes(q):
        r"""A_\text{own} | bytes | bytes of one vector of the hidden size for each token that the
        rank has between the layers: all tokens, or the rank's part with sequence parallelism"""
        return q.compute_element_bytes * q.tensor_own_tokens * q.hidden

    def library_inner_bytes(q):
        r"""A_\text{inner}^\text{lib} | bytes | bytes of one vector of the rank's part of the MLP's
        inner size for each token, or for each token of a tile"""
        return q.compute_element_bytes * q.tile_tokens * q.tensor_feed_forward

    def library_norm_bytes(q):
        r"""A_\text{norms}^\text{lib} | bytes | bytes that a layer's norms keep: inputs, and
        statistics for each token, two in LayerNorm and one in RMSNorm"""
        return (
            q.norms_per_layer * (q.own_input_bytes + 4 * (1 + q.norm_biases) * q.tensor_own_tokens)
            + q.query_key_norms * 8 * q.microbatch_tokens
        )

    def library_core_bytes(q):
        r"""A_\text{core}^\text{lib} | bytes | bytes that the core of attention keeps for the rank's
        heads beside its inputs and its output, and makes again where the core is recomputed: scores
        or their log-sum-exp, more copies of the output, what ranks that share sequences keep. A
        library's fused kernel drops scores itself, so dropout stores none"""
        return q.context_kept_bytes + ceil_div(
            q.more_attention_outputs * q.query_bytes
            + where(
                equal(q.fused_attention, 1),
                4 * q.heads * q.microbatch_tokens,
                q.score_bytes + q.score_dropout_bytes,
            ),
            q.tensor_parallel,
        )

    @BOOK.own(measured_by=_PEAKS)
    def library_latent_bytes(q):
        r"""A_\text{latent}^\text{lib} | bytes | bytes that latent attention keeps before it has
        heads: each latent before and after its norm, and the keys' columns with positions"""
        return where(
            q.key_value_latent > 0,
            q.compute_element_bytes
            * q.tensor_own_tokens
            * (2 * (q.query_latent + q.key_value_latent) + q.rotary_columns),
            0,
        )

    def library_attention_bytes(q):
        r"""A_\text{attn}^\text{lib} | bytes | bytes that attention keeps for the rank's heads: its
        input; queries, keys and values, before and after their norms; its output; what the core
        keeps beside these; the mask"""
        return (
            q.tensor_input_bytes
            + q.library_latent_bytes
            + ceil_div(
                where(
                    q.key_value_latent > 0,
                    2 * q.compute_element_bytes * q.microbatch_tokens * q.attended_columns,
                    q.query_key_value_bytes
                    + minimum(q.query_key_norms, 1) * (q.query_bytes + q.key_bytes)
                    + q.query_bytes,
                ),
                q.tensor_parallel,
            )
            + q.library_core_bytes
            + q.tensor_mask_bytes
        )

    def library_mlp_bytes(q):
        r"""A_\text{mlp}^\text{lib} | bytes | bytes that the MLP keeps: input, inner tensors, mask;
        with experts, only of the rows that the fullest rank's experts get"""
        return (
            ceil_div(
                where(q.experts > 0, q.expert_load_percent * q.experts_per_token, 100)
                * (
                    q.tensor_input_bytes
                    + where(equal(q.gated_mlp, 1), q.kept_gated_tensors, 2) * q.library_inner_bytes
                ),
                100,
            )
            + where(q.experts > 0, q.tensor_input_bytes, 0)
            + ceil_div(
                where(equal(q.gated_mlp, 1), q.kept_gated_tensors, 2)
                * q.compute_element_bytes
                * q.microbatch_tokens
                * q.shared_feed_forward,
                q.tensor_parallel,
            )
            + q.tensor_mask_bytes
        )

    @BOOK.own(measured_by=_PEAKS)
    def library_dense_bytes(q):
        r"""A_\text{dense}^\text{lib} | bytes | bytes that the MLP of a layer without experts keeps
        in a model of experts"""
        return (
            q.tensor_input_bytes
            + ceil_div(
                where(equal(q.gated_mlp, 1), q.kept_gated_tensors, 2)
                * q.compute_element_bytes
                * q.microbatch_tokens
                * q.dense_feed_forward,
                q.tensor_parallel,
            )
            + q.tensor_mask_bytes
        )

    def library_layer_bytes(q):
        r"""A_\ell^\text{lib} | bytes | bytes that one layer keeps for backward under a library's
        kernels"""
        return (
            q.library_norm_bytes
            + q.library_attention_bytes
            + q.library_mlp_bytes
            + q.adapter_kept_bytes
        )
