"""Adapters beside frozen weights (LoRA), frozen weights in four bits (QLoRA), and optimizer moments
in eight bits with a scale for each block.
"""

# A frozen weight W [out, in] stays as it is; trained are A [r, in] and B [out, r], whose product is
# added to it. Backward still needs what the layers keep, as it passes through them, and makes no
# gradient of a frozen weight.

from coursekit.formulas.registry import BOOK
from coursekit.formulas.subset import ceil_div, equal, floor_div, maximum, where

BOOK.given_beside(__file__)


class Adapters(
    BOOK.section(
        source="Hu et al. 2022 (LoRA), section 4.1",
        measured_by="tests/where_the_memory_goes/test_adapters.py::test_a_model_with_adapters",
    )
):
    def adapter_ranks(q):
        r"""r_\text{layer} | count | columns of a layer's adapters between their two products"""
        return q.adapter_rank * (4 + q.adapted_mlp * (2 + q.gated_mlp))

    def adapter_parameters(q):
        r"""\Psi_\text{ad} | parameters | parameters of all adapters: for each adapted matrix, its
        rows and columns times the rank"""
        return (
            q.layers
            * q.adapter_rank
            * (
                4 * q.hidden
                + 2 * (q.query_size + q.key_value_size)
                + q.adapted_mlp * (2 + q.gated_mlp) * (q.hidden + q.feed_forward)
            )
        )

    def adapter_kept_bytes(q):
        r"""A_\text{ad} | bytes | bytes that a layer's adapters keep for backward beside the inputs,
        which they share with the frozen products"""
        return q.compute_element_bytes * q.microbatch_tokens * q.adapter_ranks

    def frozen_matrix_parameters(q):
        r"""\Psi_\text{mat}^\text{ice} | parameters | elements of the matrices of a dense layer"""
        return (
            2 * q.hidden * (q.query_size + q.key_value_size)
            + (2 + q.gated_mlp) * q.hidden * q.feed_forward
        )

    @BOOK.own(source="Dettmers et al. 2023 (QLoRA), section 3")
    def four_bit_bytes(q):
        r"""M_\text{NF4} | bytes | bytes of the matrices of all layers in four bits with doubly
        quantised scales, 4.127 bits an element; tables, 1 KiB a matrix, are not counted"""
        return q.layers * (
            ceil_div(q.frozen_matrix_parameters, 2)
            + ceil_div(q.frozen_matrix_parameters, 64)
            + 4 * ceil_div(q.frozen_matrix_parameters, 64 * 256)
        )

    def rank_frozen_bytes(q):
        r"""M_\text{ice} | bytes | bytes of frozen weights and of the adapters, whose elements have
        the type of their gradients; tables, norms and the head are not in four bits"""
        return where(
            q.adapter_rank > 0,
            where(
                equal(q.four_bit_weights, 1),
                q.four_bit_bytes
                + q.parameter_element_bytes
                * (q.rank_parameters - q.layers * q.frozen_matrix_parameters),
                q.parameter_element_bytes * q.rank_parameters,
            )
            + q.gradient_element_bytes * q.adapter_parameters,
            0,
        )

    @BOOK.own(source="Dettmers et al. 2023 (QLoRA), section 3: a weight is dequantised to multiply")
    def dequantised_bytes(q):
        r"""U_\text{NF4} | bytes | bytes of the largest matrix of a layer while a product takes it
        in 16 bits"""
        return where(
            q.adapter_rank > 0,
            q.four_bit_weights
            * q.compute_element_bytes
            * q.hidden
            * maximum(q.feed_forward, q.query_size),
            0,
        )

    def rank_trained_parameters(q):
        r"""\Psi_r^\text{train} | parameters | parameters of the rank that are trained, and have
        gradients and optimizer states: the adapters, or all"""
        return where(q.adapter_rank > 0, q.adapter_parameters, q.rank_parameters)

    def trained_tensors(q):
        r"""n_\text{train} | tensors | tensors of the rank that are trained: two for each adapter,
        or all"""
        return where(
            q.adapter_rank > 0,
            2 * q.layers * floor_div(q.adapter_ranks, maximum(q.adapter_rank, 1)),
            q.rank_parameter_tensors,
        )

    def rank_moment_parameters(q):
        r"""\Psi_r^\text{opt} | parameters | elements of a moment that the rank's optimizer keeps"""
        return where(q.zero_stage < 1, q.rank_trained_parameters, q.rank_shard_parameters)

    @BOOK.own(source="Dettmers et al. 2022; bitsandbytes, BLOCKSIZE_2STATE 256")
    def moment_scale_bytes(q):
        r"""M_\text{scale} | bytes | bytes of the scales of moments in 8 bits"""
        return (
            4
            * q.optimizer_moments
            * where(
                q.moment_block > 0,
                ceil_div(q.rank_moment_parameters, maximum(q.moment_block, 1)),
                0,
            )
        )


class TimeOfAdapters(
    BOOK.section(
        source="Hu et al. 2022 (LoRA), section 4.1: no product makes a frozen weight's gradient",
        measured_by="tests/where_the_memory_goes/test_adapters.py::test_seconds_of_adapters",
    )
):
    def layer_gradient_seconds(q):
        r"""\tau_\ell^\text{grad} | seconds | time of a layer's backward without recomputation: two
        products for each of its forward; beside frozen weights one, and the adapters' own three"""
        return where(
            q.adapter_rank > 0,
            (
                2
                * q.microbatch_tokens
                * (q.frozen_matrix_parameters + 3 * q.adapter_parameters / q.layers)
                + 2 * q.attention_core_flops
            )
            / (q.utilisation * q.flops_per_second),
            2 * q.layer_forward_seconds,
        )

    def dequantised_moved_bytes(q):
        r"""S_\text{NF4} | bytes | bytes that move while a layer's matrices are dequantised, once
        in forward and once in backward: half a byte read and 2 written for each element"""
        return where(q.adapter_rank > 0, 5 * q.four_bit_weights * q.frozen_matrix_parameters, 0)
