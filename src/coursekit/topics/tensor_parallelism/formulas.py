"""Tensor and sequence parallelism: what one rank keeps, sends and waits for. Bytes are exact for
each rank, also where the ranks do not divide the vocabulary or the inner size of the MLP: rank 0
has the fullest part.

What is counted is shardlab/tensor_parallel, without autocast.
"""

from coursekit.formulas.places import Places, live
from coursekit.formulas.registry import BOOK
from coursekit.formulas.subset import (
    ceil_div,
    equal,
    floor_div,
    maximum,
    minimum,
    ring_pass,
    shard_of,
    where,
)

BOOK.given_beside(__file__)

_OURS = "shardlab.tensor_parallel"
_SHOEYBI = "Shoeybi et al. 2019 (Megatron-LM), section 3"
_KORTHIKANTI = "Korthikanti et al. 2022, section 4"
_FILE = "tests/tensor_parallelism/test_tensor_formulas.py"
_KEPT = f"{_FILE}::test_bytes_of_each_rank"
_SAVED = f"{_FILE}::test_saved_activations"
_PEAK = f"{_FILE}::test_peak_of_a_rank"
_SENT = f"{_FILE}::test_what_is_sent"
_SECONDS = f"{_FILE}::test_share_of_a_layer"


class WhatARankHasOfTheModel(BOOK.section(source=_SHOEYBI, measured_by=_KEPT)):
    def tensor_vocabulary(q):
        """V_r | count | tokens of the vocabulary whose vectors and logits the rank has"""
        return shard_of(q.vocabulary, q.tensor_parallel, q.tensor_rank)

    def tensor_feed_forward(q):
        """f_r | count | columns of the MLP's inner size on the rank"""
        return shard_of(q.feed_forward, q.tensor_parallel, q.tensor_rank)

    def tensor_cut_layer_parameters(q):
        r"""\Psi_\ell^\text{cut} | parameters | parameters of a layer that tensor parallelism cuts,
        so that each rank has different ones: the weights, and the biases of linear layers cut by
        columns"""
        return (
            floor_div(q.hidden * (q.query_key_value_size + q.hidden), q.tensor_parallel)
            + floor_div(q.biases * q.query_key_value_size, q.tensor_parallel)
            + ((2 + q.gated_mlp) * q.hidden + q.biases * (1 + q.gated_mlp)) * q.tensor_feed_forward
        )

    def tensor_whole_layer_parameters(q):
        r"""\Psi_\ell^\text{whole} | parameters | parameters of a layer that every rank has: the
        norms, and the biases of linear layers cut by rows"""
        return 2 * q.norm_parameters + 2 * q.biases * q.hidden

    def tensor_whole_parameters(q):
        r"""\Psi^\text{whole} | parameters | parameters that every rank has: in the layers, the
        table of positions, the last norm"""
        return (
            q.layers * q.tensor_whole_layer_parameters
            + q.learned_positions * q.max_sequence * q.hidden
            + q.norm_parameters
        )

    def tensor_parameters(q):
        r"""\Psi_t | parameters | parameters of the rank: its parts of the cut parameters, and all
        whole parameters"""
        return (
            q.layers * q.tensor_cut_layer_parameters
            + (2 - q.tied_head) * q.tensor_vocabulary * q.hidden
            + q.tensor_whole_parameters
        )

    def tensor_states_bytes(q):
        """M_t | bytes | bytes of parameters, gradients and optimizer states on the rank, without
        step counters"""
        return q.bytes_per_parameter * q.tensor_parameters


class WhatForwardKeeps(BOOK.section(source=_KORTHIKANTI, measured_by=_SAVED)):
    def tensor_own_tokens(q):
        r"""T_\text{own} | tokens | tokens of a microbatch that the rank has between the layers: all
        tokens, or the rank's part"""
        return where(
            equal(q.sequence_parallel, 1),
            floor_div(q.microbatch_tokens, q.tensor_parallel),
            q.microbatch_tokens,
        )

    @BOOK.own(source=_OURS)
    def tensor_kept_tokens(q):
        r"""T_\text{in} | tokens | tokens of the input of a linear layer cut by columns that the
        rank keeps for backward: all tokens, or its own if the others are gathered again"""
        return where(equal(q.regather, 1), q.tensor_own_tokens, q.microbatch_tokens)

    def tensor_norm_bytes(q):
        r"""A_\text{norm}^t | bytes | bytes that a norm keeps for the rank's own tokens: its input
        and the statistics"""
        return q.tensor_own_tokens * (
            q.residual_element_bytes * q.hidden
            + where(equal(q.biases, 1), 2 * q.layer_norm_statistic_element_bytes, 4)
        )

    def tensor_input_bytes(q):
        r"""A_\text{in}^t | bytes | bytes of the input of attention, of the MLP or of the head's
        product"""
        return q.compute_element_bytes * q.tensor_kept_tokens * q.hidden

    def tensor_mask_bytes(q):
        r"""A_\text{mask}^t | bytes | bytes of a dropout mask between the layers"""
        return q.has_dropout * q.tensor_own_tokens * q.hidden

    def tensor_core_bytes(q):
        r"""A_\text{core}^t | bytes | bytes kept between the two linear layers of attention for the
        rank's heads; the angles of rotary positions are the same for all heads"""
        return (
            floor_div(
                q.query_key_value_bytes
                + where(
                    equal(q.keeps_scores, 1),
                    q.score_bytes
                    + q.score_dropout_bytes
                    + q.learned_positions
                    * where(
                        equal(
                            minimum(
                                q.microbatch,
                                floor_div(q.key_value_heads, q.tensor_parallel),
                                q.sequence,
                            ),
                            1,
                        ),
                        q.linear_input_bytes,
                        0,
                    ),
                    4 * q.heads * q.microbatch_tokens
                    + q.learned_positions
                    * where(
                        q.key_value_heads > q.tensor_parallel,
                        where(q.key_value_heads < q.heads, q.linear_input_bytes, 0),
                        0,
                    ),
                ),
                q.tensor_parallel,
            )
            + q.rotation_bytes
        )

    def tensor_attention_bytes(q):
        r"""A_\text{attn}^t | bytes | bytes that attention keeps: norm, input, core, the last
        product's input, mask"""
        return (
            q.tensor_norm_bytes
            + q.tensor_input_bytes
            + q.tensor_core_bytes
            + floor_div(q.linear_input_bytes, q.tensor_parallel)
            + q.tensor_mask_bytes
        )

    def tensor_mlp_bytes(q):
        r"""A_\text{mlp}^t | bytes | bytes that the MLP keeps: norm, input, the rank's columns of
        the inner tensors, mask"""
        return (
            q.tensor_norm_bytes
            + q.tensor_input_bytes
            + (2 + 2 * q.gated_mlp)
            * q.compute_element_bytes
            * q.microbatch_tokens
            * q.tensor_feed_forward
            + q.tensor_mask_bytes
        )

    @BOOK.own(measured_by=f"{_FILE}::test_saved_activations")
    def tensor_layer_bytes(q):
        r"""A_\ell^t | bytes | bytes that one layer keeps on the rank; in 16 bits with dropout b s h
        (10 + 24/t + 5as/ht), with sequence parallelism and regather b s h (34 + 5as/h)/t, and the
        statistics of the norms"""
        return q.tensor_attention_bytes + q.tensor_mlp_bytes

    def tensor_logit_bytes(q):
        """A_V^t | bytes | bytes of the softmax over the rank's tokens of the vocabulary, which the
        loss keeps in fp32"""
        return 4 * q.microbatch_tokens * q.tensor_vocabulary

    @BOOK.own(source=_OURS)
    def tensor_index_bytes(q):
        r"""A_\text{ids}^t | bytes | bytes that say, for each input and each target, which row of
        the rank's part holds the token (8), and whether the rank has the token at all (1)"""
        return 18 * q.microbatch_tokens

    def tensor_activation_bytes(q):
        """A^t | bytes | bytes that forward and loss keep for backward on the rank: rows of tokens,
        mask after the embedding, layers, last norm, the head's input, softmax"""
        return (
            q.tensor_index_bytes
            + q.tensor_mask_bytes
            + q.layers * q.tensor_layer_bytes
            + q.tensor_norm_bytes
            + q.tensor_input_bytes
            + q.tensor_logit_bytes
        )


class ThePeak(BOOK.section(source=_OURS, measured_by=_PEAK)):
    def tensor_parameter_bytes(q):
        r"""M_\text{param}^t | bytes | bytes of the rank's parameters"""
        return q.parameter_element_bytes * q.tensor_parameters

    def tensor_gradient_bytes(q):
        r"""M_\text{grad}^t | bytes | bytes of the rank's gradients"""
        return q.gradient_element_bytes * q.tensor_parameters

    def tensor_optimizer_bytes(q):
        r"""M_\text{opt}^t | bytes | bytes of the rank's optimizer states, with one step counter for
        each tensor"""
        return (
            q.master_element_bytes + q.optimizer_moments * q.moment_element_bytes
        ) * q.tensor_parameters + q.step_counter_bytes

    def tensor_standing_optimizer_bytes(q):
        r"""M_\text{old}^{\text{opt},t} | bytes | bytes of optimizer states during forward and
        backward: none in the first step"""
        return (1 - q.first_step) * q.tensor_optimizer_bytes

    def tensor_earlier_gradient_bytes(q):
        r"""M_\text{old}^{\text{grad},t} | bytes | bytes of the gradients that earlier microbatches
        left on the rank"""
        return where(q.accumulation_steps > 1, q.tensor_gradient_bytes, 0)

    def tensor_table_bytes(q):
        """M_V^t | bytes | bytes of the gradient of the rank's part of the token table"""
        return q.gradient_element_bytes * q.tensor_vocabulary * q.hidden

    def tensor_largest_elements(q):
        r"""n_\text{big}^t | count | elements of the rank's largest parameter"""
        return q.hidden * maximum(
            q.tensor_vocabulary,
            q.learned_positions * q.max_sequence,
            q.tensor_feed_forward,
            floor_div(q.query_key_value_size, q.tensor_parallel),
        )

    @BOOK.own(source="torch.optim.adamw")
    def tensor_update_bytes(q):
        r"""U_\text{opt}^t | bytes | bytes that the update needs besides the states: Adam's square
        root and quotient, for one tensor in the loop, for all tensors with foreach"""
        return q.moment_element_bytes * where(
            q.optimizer_moments > 1,
            where(
                equal(q.optimizer_mode, 0),
                2 * q.tensor_largest_elements,
                where(equal(q.optimizer_mode, 1), q.tensor_parameters, 0),
            ),
            0,
        )


TENSOR_STEP = Places(
    "tensor_peak",
    r"_\text{peak}^t",
    "a rank of a tensor-parallel group needs: the most that is live at once",
    _OURS,
    _PEAK,
    usual=dict(
        parameters="tensor_parameter_bytes",
        optimizer="tensor_standing_optimizer_bytes",
        gradients="tensor_earlier_gradient_bytes",
    ),
    letter="R",
    there="at the peak",
)


@TENSOR_STEP.place(
    "tensor_scatter", phase="forward", symbol=r"_\text{rs}^t", when="sequence_parallel"
)
def tensor_scatter(q):
    """in the last layer's reduce-scatter: its output twice (once for a single sequence), the rank's
    own tokens of the sum, and the MLP's input, which a variable still holds"""
    return live(
        activations=9 * q.microbatch_tokens + q.tensor_mask_bytes + q.layers * q.tensor_layer_bytes,
        temporaries=(where(q.microbatch > 1, 2, 1) + q.regather) * q.tensor_message_bytes
        + floor_div(q.tensor_message_bytes, q.tensor_parallel),
    )


@TENSOR_STEP.place("tensor_loss", phase="forward", symbol="_1^t")
def tensor_loss(q):
    """in the loss's forward: everything is saved, and the logits are still there beside the
    exponentials; 16-bit logits also as fp32"""
    return live(
        activations=q.tensor_activation_bytes,
        temporaries=q.microbatch_tokens
        * (
            q.tensor_vocabulary
            * (q.compute_element_bytes + where(q.compute_element_bytes < 4, 4, 0))
            + 20
        ),
    )


@TENSOR_STEP.place("tensor_head", phase="backward", symbol="_2^t")
def tensor_head(q):
    """in the head's product: the gradients of its weight and of its input, which is gathered again
    with sequence parallelism"""
    return live(
        gradients=q.tensor_earlier_gradient_bytes,
        activations=9 * q.microbatch_tokens
        + q.tensor_mask_bytes
        + q.layers * q.tensor_layer_bytes
        + q.tensor_norm_bytes
        + q.tensor_input_bytes
        + where(q.compute_element_bytes < 4, 0, q.tensor_logit_bytes),
        temporaries=q.compute_element_bytes
        * q.tensor_vocabulary
        * (q.hidden + where(q.compute_element_bytes < 4, q.microbatch_tokens, 0))
        + (1 + q.regather) * q.tensor_message_bytes
        + 8,
    )


@TENSOR_STEP.place("tensor_norm", phase="backward", symbol="_3^t")
def tensor_norm(q):
    """in the last norm, with the gradient of the head's weight"""
    return live(
        gradients=q.tensor_earlier_gradient_bytes
        + where(q.accumulation_steps > 1, 0, (1 - q.tied_head) * q.tensor_table_bytes),
        activations=9 * q.microbatch_tokens
        + q.tensor_mask_bytes
        + q.layers * q.tensor_layer_bytes
        + q.tensor_norm_bytes,
        temporaries=8
        + q.tied_head * q.tensor_table_bytes
        + where(
            equal(q.sequence_parallel, 1),
            floor_div(q.norm_backward_bytes, q.tensor_parallel),
            q.norm_backward_bytes,
        ),
    )


@TENSOR_STEP.place("tensor_mlp", phase="backward", symbol="_4^t")
def tensor_mlp(q):
    """in the last layer's MLP, in its second product or, with a gate, between the two products,
    when three gradients of the inner size are there"""
    return live(
        gradients=q.tensor_earlier_gradient_bytes
        + where(
            q.accumulation_steps > 1,
            0,
            (1 - q.tied_head) * q.tensor_table_bytes + q.gradient_element_bytes * q.norm_parameters,
        ),
        activations=9 * q.microbatch_tokens + q.layers * q.tensor_layer_bytes,
        temporaries=8
        + q.tied_head * q.tensor_table_bytes
        + q.residual_element_bytes * q.tensor_own_tokens * q.hidden
        + maximum(
            where(equal(q.sequence_parallel, 1), q.tensor_message_bytes, 0)
            + q.has_dropout * q.residual_element_bytes * q.tensor_own_tokens * q.hidden
            + q.compute_element_bytes * q.tensor_feed_forward * (q.microbatch_tokens + q.hidden),
            q.gated_mlp
            * q.compute_element_bytes
            * q.tensor_feed_forward
            * (2 * q.microbatch_tokens + q.hidden),
        ),
    )


@TENSOR_STEP.place("tensor_embedding", phase="backward", symbol="_5^t")
def tensor_embedding(q):
    """when the token table gets its gradient: a tied table then has two gradients and their sum"""
    return live(
        gradients=where(
            q.accumulation_steps > 1,
            q.tensor_earlier_gradient_bytes,
            q.tensor_gradient_bytes - q.tensor_table_bytes,
        ),
        activations=9 * q.microbatch_tokens,
        temporaries=8
        + q.tensor_table_bytes
        + maximum(
            q.tied_head * q.tensor_table_bytes + q.tensor_message_bytes,
            2 * q.tied_head * q.tensor_table_bytes,
        ),
    )


@TENSOR_STEP.place("tensor_update", phase="optimizer", symbol="_6^t")
def tensor_update(q):
    """in the optimizer's step"""
    return live(
        optimizer=q.tensor_optimizer_bytes,
        gradients=q.tensor_gradient_bytes,
        temporaries=q.tensor_update_bytes,
    )


TENSOR_STEP.largest()


class WhatIsSent(BOOK.section(source=_SHOEYBI, measured_by=_SENT)):
    def tensor_message_bytes(q):
        """S_t | bytes | bytes of every message but the loss's: a vector of the hidden size for each
        token"""
        return q.compute_element_bytes * q.microbatch_tokens * q.hidden

    def tensor_all_reduces(q):
        r"""n_\text{ar} | count | all-reduces of that size for a microbatch: two forward and two
        backward in each layer, one in the embedding, one for the gradient of the head's input; none
        with sequence parallelism"""
        return (1 - q.sequence_parallel) * (4 * q.layers + 2)

    @BOOK.own(source=_KORTHIKANTI)
    def tensor_gatherings(q):
        r"""n_\text{ag}^t | count | all-gathers of that size: one instead of every all-reduce, and
        one more for each input that is gathered again"""
        return q.sequence_parallel * (4 * q.layers + 2) + q.regather * (2 * q.layers + 1)

    @BOOK.own(source=_KORTHIKANTI)
    def tensor_reduce_scatters(q):
        r"""n_\text{rs}^t | count | reduce-scatters of that size: one instead of every all-reduce"""
        return q.sequence_parallel * (4 * q.layers + 2)

    @BOOK.own(source=_OURS)
    def tensor_loss_message_bytes(q):
        r"""S_\text{loss} | bytes | bytes that the loss reduces: a maximum and two sums for each
        token, in fp32"""
        return 12 * q.microbatch_tokens

    @BOOK.own(source=_KORTHIKANTI)
    def tensor_summed_bytes(q):
        r"""S_\text{whole} | bytes | bytes of the gradients that sequence parallelism adds up once a
        step, because each rank has only the gradients of its own tokens"""
        return q.sequence_parallel * q.gradient_element_bytes * q.tensor_whole_parameters

    @BOOK.own(source="Patarasuk and Yuan 2009")
    def tensor_layer_forward_sent_bytes(q):
        r"""Q_\ell^\text{fwd} | bytes | bytes that a rank sends in a layer's forward, around rings:
        two all-reduces, or two pairs of an all-gather and a reduce-scatter, which send as much"""
        return ceil_div(4 * (q.tensor_parallel - 1) * q.tensor_message_bytes, q.tensor_parallel)

    @BOOK.own(source="Patarasuk and Yuan 2009")
    def tensor_layer_backward_sent_bytes(q):
        r"""Q_\ell^\text{bwd} | bytes | bytes that a rank sends in a layer's backward: as many as in
        forward, and half as many more where inputs are gathered again"""
        return ceil_div(
            (4 + 2 * q.regather) * (q.tensor_parallel - 1) * q.tensor_message_bytes,
            q.tensor_parallel,
        )

    @BOOK.own(source="Patarasuk and Yuan 2009")
    def tensor_sent_bytes(q):
        """Q_t | bytes | bytes that a rank sends in a step, around rings"""
        return ceil_div(
            (q.tensor_parallel - 1)
            * (
                q.accumulation_steps
                * (
                    (2 * q.tensor_all_reduces + q.tensor_gatherings + q.tensor_reduce_scatters)
                    * q.tensor_message_bytes
                    + 2 * q.tensor_loss_message_bytes
                )
                + 2 * q.tensor_summed_bytes
            ),
            q.tensor_parallel,
        )


class HowLongALayerTakes(BOOK.section(source="definition", measured_by=_SECONDS)):
    @BOOK.own(source="Narayanan et al. 2021, appendix")
    def tensor_layer_compute_seconds(q):
        r"""\tau_\ell^\text{comp} | seconds | time in which a rank computes its part of a layer,
        forward and backward: six operations for each weight and token, and the attention scores"""
        return (
            q.microbatch_tokens
            * (
                6
                * (
                    2 * q.hidden * (q.hidden + q.key_value_size)
                    + (2 + q.gated_mlp) * q.hidden * q.feed_forward
                )
                + 12 * q.hidden * q.sequence
            )
            / (q.tensor_parallel * q.utilisation * q.flops_per_second)
        )

    @BOOK.own(source="a ring is as fast as its slowest link")
    def tensor_link_bytes_per_second(q):
        """B_t | bytes/s | bandwidth between tensor-parallel ranks: the bandwidth inside a node, as
        long as the group stays inside one node"""
        return where(
            q.tensor_parallel > q.ranks_per_node, q.link_bytes_per_second, q.node_bytes_per_second
        )

    @BOOK.own(source="a ring is as fast as its slowest link")
    def tensor_latency_seconds(q):
        r"""\alpha_t | seconds | latency of a message between tensor-parallel ranks: the latency
        inside a node, as long as the group stays inside one node"""
        return where(
            q.tensor_parallel > q.ranks_per_node, q.latency_seconds, q.node_latency_seconds
        )

    @BOOK.own(source="Patarasuk and Yuan 2009, for each collective")
    def tensor_layer_message_seconds(q):
        r"""\tau_\ell^t | seconds | time of a layer's messages, forward and backward: the layer
        waits for each of them"""
        return (8 + 2 * q.regather) * ring_pass(
            q.tensor_parallel,
            q.tensor_latency_seconds,
            q.tensor_message_bytes / q.tensor_link_bytes_per_second,
        )

    def tensor_message_share(q):
        r"""\eta_t | fraction | share of a layer's time that its messages take: the reason to keep t
        inside a node"""
        return q.tensor_layer_message_seconds / (
            q.tensor_layer_message_seconds + q.tensor_layer_compute_seconds
        )
