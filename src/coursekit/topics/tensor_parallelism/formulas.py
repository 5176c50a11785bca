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

# --- what the reader gives

BOOK.given(
    r"""
tensor_rank | r_t | count, from 0, usually 0 | one rank of a tensor-parallel group, counted from 0
sequence_parallel | 1_\text{sp} | count, from 0 to 1, usually 0 | 1 if the activations that tensor
    parallelism leaves whole are cut by tokens, 0 if not
regather | 1_\text{again} | count, from 0 to 1, usually 0 | 1 if a rank with sequence parallelism
    keeps only its own tokens for backward and gathers the others again, 0 if the rank keeps all
    tokens
"""
)

_OURS = "shardlab.tensor_parallel"
_SHOEYBI = "Shoeybi et al. 2019 (Megatron-LM), section 3"
_KORTHIKANTI = "Korthikanti et al. 2022, section 4"
_FILE = "tests/tensor_parallelism/test_tensor_formulas.py"
_KEPT = f"{_FILE}::test_bytes_of_each_rank"
_SAVED = f"{_FILE}::test_saved_activations"
_PEAK = f"{_FILE}::test_peak_of_a_rank"
_SENT = f"{_FILE}::test_what_is_sent"
_SECONDS = f"{_FILE}::test_share_of_a_layer"


@BOOK.rule(
    "tensor_rank = {tensor_rank} is not a rank of a tensor-parallel group of {tensor_parallel}:"
    " ranks count from 0.",
    marks="tensor_rank",
)
def rank_is_in_the_tensor_parallel_group(tensor_rank, tensor_parallel):
    return tensor_rank < tensor_parallel


@BOOK.rule(
    "key_value_heads = {key_value_heads} is not divisible by tensor_parallel = {tensor_parallel}:"
    " every rank has equally many heads, and no head is cut.",
    marks="tensor_parallel",
)
def ranks_divide_key_value_heads(key_value_heads, tensor_parallel, tensor_rank):
    return equal(tensor_parallel * floor_div(key_value_heads, tensor_parallel), key_value_heads)


@BOOK.rule(
    "sequence = {sequence} is not divisible by tensor_parallel = {tensor_parallel}: with sequence"
    " parallelism every rank has equally many tokens.",
    marks="sequence",
)
def ranks_divide_the_sequence(sequence, tensor_parallel, sequence_parallel):
    return equal(
        sequence_parallel * (sequence - tensor_parallel * floor_div(sequence, tensor_parallel)), 0
    )


@BOOK.rule(
    "regather = {regather} without sequence parallelism: nothing was gathered. Give 0.",
    marks="regather",
)
def regather_is_of_sequence_parallelism(regather, sequence_parallel):
    return regather <= sequence_parallel


# --- what a rank has of the model -----------------------------------------------------------------
formula = BOOK.section(source=_SHOEYBI, measured_by=_KEPT)


@formula(r"V_r", "count")
def tensor_vocabulary(vocabulary, tensor_parallel, tensor_rank):
    """tokens of the vocabulary whose vectors and logits the rank has"""
    return shard_of(vocabulary, tensor_parallel, tensor_rank)


@formula(r"f_r", "count")
def tensor_feed_forward(feed_forward, tensor_parallel, tensor_rank):
    """columns of the MLP's inner size on the rank"""
    return shard_of(feed_forward, tensor_parallel, tensor_rank)


@formula(r"\Psi_\ell^\text{cut}", "parameters")
def tensor_cut_layer_parameters(
    hidden, query_key_value_size, tensor_parallel, tensor_feed_forward, gated_mlp, biases
):
    """parameters of a layer that tensor parallelism cuts, so that each rank has different ones: the
    weights, and the biases of linear layers cut by columns"""
    return (
        floor_div(hidden * (query_key_value_size + hidden), tensor_parallel)
        + floor_div(biases * query_key_value_size, tensor_parallel)
        + ((2 + gated_mlp) * hidden + biases * (1 + gated_mlp)) * tensor_feed_forward
    )


@formula(r"\Psi_\ell^\text{whole}", "parameters")
def tensor_whole_layer_parameters(hidden, biases, norm_parameters):
    """parameters of a layer that every rank has: the norms, and the biases of linear layers cut by
    rows"""
    return 2 * norm_parameters + 2 * biases * hidden


@formula(r"\Psi^\text{whole}", "parameters")
def tensor_whole_parameters(
    layers, tensor_whole_layer_parameters, learned_positions, max_sequence, hidden, norm_parameters
):
    """parameters that every rank has: in the layers, the table of positions, the last norm"""
    return (
        layers * tensor_whole_layer_parameters
        + learned_positions * max_sequence * hidden
        + norm_parameters
    )


@formula(r"\Psi_t", "parameters")
def tensor_parameters(
    layers,
    tensor_cut_layer_parameters,
    tied_head,
    tensor_vocabulary,
    hidden,
    tensor_whole_parameters,
):
    """parameters of the rank: its parts of the cut parameters, and all whole parameters"""
    return (
        layers * tensor_cut_layer_parameters
        + (2 - tied_head) * tensor_vocabulary * hidden
        + tensor_whole_parameters
    )


@formula(r"M_t", "bytes")
def tensor_states_bytes(tensor_parameters, bytes_per_parameter):
    """bytes of parameters, gradients and optimizer states on the rank, without step counters"""
    return bytes_per_parameter * tensor_parameters


# --- what forward keeps ---------------------------------------------------------------------------
formula = BOOK.section(source=_KORTHIKANTI, measured_by=_SAVED)


@formula(r"T_\text{own}", "tokens")
def tensor_own_tokens(microbatch_tokens, sequence_parallel, tensor_parallel):
    """tokens of a microbatch that the rank has between the layers: all tokens, or the rank's
    part"""
    return where(
        equal(sequence_parallel, 1),
        floor_div(microbatch_tokens, tensor_parallel),
        microbatch_tokens,
    )


@formula(r"T_\text{in}", "tokens", source=_OURS)
def tensor_kept_tokens(regather, tensor_own_tokens, microbatch_tokens):
    """tokens of the input of a linear layer cut by columns that the rank keeps for backward: all
    tokens, or its own if the others are gathered again"""
    return where(equal(regather, 1), tensor_own_tokens, microbatch_tokens)


@formula(r"A_\text{norm}^t", "bytes")
def tensor_norm_bytes(
    tensor_own_tokens, residual_element_bytes, hidden, biases, layer_norm_statistic_element_bytes
):
    """bytes that a norm keeps for the rank's own tokens: its input and the statistics"""
    return tensor_own_tokens * (
        residual_element_bytes * hidden
        + where(equal(biases, 1), 2 * layer_norm_statistic_element_bytes, 4)
    )


@formula(r"A_\text{in}^t", "bytes")
def tensor_input_bytes(tensor_kept_tokens, compute_element_bytes, hidden):
    """bytes of the input of attention, of the MLP or of the head's product"""
    return compute_element_bytes * tensor_kept_tokens * hidden


@formula(r"A_\text{mask}^t", "bytes")
def tensor_mask_bytes(has_dropout, tensor_own_tokens, hidden):
    """bytes of a dropout mask between the layers"""
    return has_dropout * tensor_own_tokens * hidden


@formula(r"A_\text{core}^t", "bytes")
def tensor_core_bytes(
    tensor_parallel,
    keeps_scores,
    query_key_value_bytes,
    learned_positions,
    microbatch,
    key_value_heads,
    sequence,
    linear_input_bytes,
    score_bytes,
    score_dropout_bytes,
    heads,
    microbatch_tokens,
    rotation_bytes,
):
    """bytes kept between the two linear layers of attention for the rank's heads; the angles of
    rotary positions are the same for all heads"""
    return (
        floor_div(
            query_key_value_bytes
            + where(
                equal(keeps_scores, 1),
                score_bytes
                + score_dropout_bytes
                + learned_positions
                * where(
                    equal(
                        minimum(microbatch, floor_div(key_value_heads, tensor_parallel), sequence),
                        1,
                    ),
                    linear_input_bytes,
                    0,
                ),
                4 * heads * microbatch_tokens
                + learned_positions
                * where(
                    key_value_heads > tensor_parallel,
                    where(key_value_heads < heads, linear_input_bytes, 0),
                    0,
                ),
            ),
            tensor_parallel,
        )
        + rotation_bytes
    )


@formula(r"A_\text{attn}^t", "bytes")
def tensor_attention_bytes(
    tensor_norm_bytes,
    tensor_input_bytes,
    tensor_core_bytes,
    linear_input_bytes,
    tensor_parallel,
    tensor_mask_bytes,
):
    """bytes that attention keeps: norm, input, core, the last product's input, mask"""
    return (
        tensor_norm_bytes
        + tensor_input_bytes
        + tensor_core_bytes
        + floor_div(linear_input_bytes, tensor_parallel)
        + tensor_mask_bytes
    )


@formula(r"A_\text{mlp}^t", "bytes")
def tensor_mlp_bytes(
    tensor_norm_bytes,
    tensor_input_bytes,
    gated_mlp,
    compute_element_bytes,
    microbatch_tokens,
    tensor_feed_forward,
    tensor_mask_bytes,
):
    """bytes that the MLP keeps: norm, input, the rank's columns of the inner tensors, mask"""
    return (
        tensor_norm_bytes
        + tensor_input_bytes
        + (2 + 2 * gated_mlp) * compute_element_bytes * microbatch_tokens * tensor_feed_forward
        + tensor_mask_bytes
    )


@formula(r"A_\ell^t", "bytes", measured_by=f"{_FILE}::test_published_counts_of_a_layer")
def tensor_layer_bytes(tensor_attention_bytes, tensor_mlp_bytes):
    """bytes that one layer keeps on the rank; in 16 bits with dropout b s h (10 + 24/t + 5as/ht),
    with sequence parallelism and regather b s h (34 + 5as/h)/t, and the statistics of the norms"""
    return tensor_attention_bytes + tensor_mlp_bytes


@formula(r"A_V^t", "bytes")
def tensor_logit_bytes(microbatch_tokens, tensor_vocabulary):
    """bytes of the softmax over the rank's tokens of the vocabulary, which the loss keeps in
    fp32"""
    return 4 * microbatch_tokens * tensor_vocabulary


@formula(r"A_\text{ids}^t", "bytes", source=_OURS)
def tensor_index_bytes(microbatch_tokens):
    """bytes that say, for each input and each target, which row of the rank's part holds the token
    (8), and whether the rank has the token at all (1)"""
    return 18 * microbatch_tokens


@formula(r"A^t", "bytes")
def tensor_activation_bytes(
    tensor_index_bytes,
    tensor_mask_bytes,
    layers,
    tensor_layer_bytes,
    tensor_norm_bytes,
    tensor_input_bytes,
    tensor_logit_bytes,
):
    """bytes that forward and loss keep for backward on the rank: rows of tokens, mask after the
    embedding, layers, last norm, the head's input, softmax"""
    return (
        tensor_index_bytes
        + tensor_mask_bytes
        + layers * tensor_layer_bytes
        + tensor_norm_bytes
        + tensor_input_bytes
        + tensor_logit_bytes
    )


# --- the peak -------------------------------------------------------------------------------------
formula = BOOK.section(source=_OURS, measured_by=_PEAK)


@formula(r"M_\text{param}^t", "bytes")
def tensor_parameter_bytes(tensor_parameters, parameter_element_bytes):
    """bytes of the rank's parameters"""
    return parameter_element_bytes * tensor_parameters


@formula(r"M_\text{grad}^t", "bytes")
def tensor_gradient_bytes(tensor_parameters, gradient_element_bytes):
    """bytes of the rank's gradients"""
    return gradient_element_bytes * tensor_parameters


@formula(r"M_\text{opt}^t", "bytes")
def tensor_optimizer_bytes(
    tensor_parameters,
    master_element_bytes,
    optimizer_moments,
    moment_element_bytes,
    step_counter_bytes,
):
    """bytes of the rank's optimizer states, with one step counter for each tensor"""
    return (
        master_element_bytes + optimizer_moments * moment_element_bytes
    ) * tensor_parameters + step_counter_bytes


@formula(r"M_\text{old}^{\text{opt},t}", "bytes")
def tensor_standing_optimizer_bytes(first_step, tensor_optimizer_bytes):
    """bytes of optimizer states during forward and backward: none in the first step"""
    return (1 - first_step) * tensor_optimizer_bytes


@formula(r"M_\text{old}^{\text{grad},t}", "bytes")
def tensor_earlier_gradient_bytes(accumulation_steps, tensor_gradient_bytes):
    """bytes of the gradients that earlier microbatches left on the rank"""
    return where(accumulation_steps > 1, tensor_gradient_bytes, 0)


@formula(r"M_V^t", "bytes")
def tensor_table_bytes(tensor_vocabulary, hidden, gradient_element_bytes):
    """bytes of the gradient of the rank's part of the token table"""
    return gradient_element_bytes * tensor_vocabulary * hidden


@formula(r"n_\text{big}^t", "count")
def tensor_largest_elements(
    tensor_vocabulary,
    learned_positions,
    max_sequence,
    tensor_feed_forward,
    query_key_value_size,
    tensor_parallel,
    hidden,
):
    """elements of the rank's largest parameter"""
    return hidden * maximum(
        tensor_vocabulary,
        learned_positions * max_sequence,
        tensor_feed_forward,
        floor_div(query_key_value_size, tensor_parallel),
    )


@formula(r"U_\text{opt}^t", "bytes", source="torch.optim.adamw")
def tensor_update_bytes(
    optimizer_moments,
    moment_element_bytes,
    optimizer_mode,
    tensor_largest_elements,
    tensor_parameters,
):
    """bytes that the update needs besides the states: Adam's square root and quotient, for one
    tensor in the loop, for all tensors with foreach"""
    return moment_element_bytes * where(
        optimizer_moments > 1,
        where(
            equal(optimizer_mode, 0),
            2 * tensor_largest_elements,
            where(equal(optimizer_mode, 1), tensor_parameters, 0),
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
def tensor_scatter(
    microbatch_tokens,
    tensor_mask_bytes,
    layers,
    tensor_layer_bytes,
    tensor_message_bytes,
    microbatch,
    regather,
    tensor_parallel,
):
    """in the last layer's reduce-scatter: its output twice (once for a single sequence), the rank's
    own tokens of the sum, and the MLP's input, which a variable still holds"""
    return live(
        activations=9 * microbatch_tokens + tensor_mask_bytes + layers * tensor_layer_bytes,
        temporaries=(where(microbatch > 1, 2, 1) + regather) * tensor_message_bytes
        + floor_div(tensor_message_bytes, tensor_parallel),
    )


@TENSOR_STEP.place("tensor_loss", phase="forward", symbol="_1^t")
def tensor_loss(
    tensor_activation_bytes, microbatch_tokens, tensor_vocabulary, compute_element_bytes
):
    """in the loss's forward: everything is saved, and the logits are still there beside the
    exponentials; 16-bit logits also as fp32"""
    return live(
        activations=tensor_activation_bytes,
        temporaries=microbatch_tokens
        * (
            tensor_vocabulary * (compute_element_bytes + where(compute_element_bytes < 4, 4, 0))
            + 20
        ),
    )


@TENSOR_STEP.place("tensor_head", phase="backward", symbol="_2^t")
def tensor_head(
    microbatch_tokens,
    tensor_mask_bytes,
    layers,
    tensor_layer_bytes,
    tensor_norm_bytes,
    tensor_input_bytes,
    compute_element_bytes,
    tensor_logit_bytes,
    tensor_vocabulary,
    hidden,
    regather,
    tensor_message_bytes,
    tensor_earlier_gradient_bytes,
):
    """in the head's product: the gradients of its weight and of its input, which is gathered again
    with sequence parallelism"""
    return live(
        gradients=tensor_earlier_gradient_bytes,
        activations=9 * microbatch_tokens
        + tensor_mask_bytes
        + layers * tensor_layer_bytes
        + tensor_norm_bytes
        + tensor_input_bytes
        + where(compute_element_bytes < 4, 0, tensor_logit_bytes),
        temporaries=compute_element_bytes
        * tensor_vocabulary
        * (hidden + where(compute_element_bytes < 4, microbatch_tokens, 0))
        + (1 + regather) * tensor_message_bytes
        + 8,
    )


@TENSOR_STEP.place("tensor_norm", phase="backward", symbol="_3^t")
def tensor_norm(
    tensor_earlier_gradient_bytes,
    accumulation_steps,
    tied_head,
    tensor_table_bytes,
    microbatch_tokens,
    tensor_mask_bytes,
    layers,
    tensor_layer_bytes,
    tensor_norm_bytes,
    norm_backward_bytes,
    sequence_parallel,
    tensor_parallel,
):
    """in the last norm, with the gradient of the head's weight"""
    return live(
        gradients=tensor_earlier_gradient_bytes
        + where(accumulation_steps > 1, 0, (1 - tied_head) * tensor_table_bytes),
        activations=9 * microbatch_tokens
        + tensor_mask_bytes
        + layers * tensor_layer_bytes
        + tensor_norm_bytes,
        temporaries=8
        + tied_head * tensor_table_bytes
        + where(
            equal(sequence_parallel, 1),
            floor_div(norm_backward_bytes, tensor_parallel),
            norm_backward_bytes,
        ),
    )


@TENSOR_STEP.place("tensor_mlp", phase="backward", symbol="_4^t")
def tensor_mlp(
    microbatch_tokens,
    layers,
    tensor_layer_bytes,
    tensor_earlier_gradient_bytes,
    tied_head,
    tensor_table_bytes,
    norm_parameters,
    gradient_element_bytes,
    accumulation_steps,
    residual_element_bytes,
    tensor_own_tokens,
    hidden,
    has_dropout,
    sequence_parallel,
    tensor_message_bytes,
    compute_element_bytes,
    tensor_feed_forward,
    gated_mlp,
):
    """in the last layer's MLP, in its second product or, with a gate, between the two products,
    when three gradients of the inner size are there"""
    return live(
        gradients=tensor_earlier_gradient_bytes
        + where(
            accumulation_steps > 1,
            0,
            (1 - tied_head) * tensor_table_bytes + gradient_element_bytes * norm_parameters,
        ),
        activations=9 * microbatch_tokens + layers * tensor_layer_bytes,
        temporaries=8
        + tied_head * tensor_table_bytes
        + residual_element_bytes * tensor_own_tokens * hidden
        + maximum(
            where(equal(sequence_parallel, 1), tensor_message_bytes, 0)
            + has_dropout * residual_element_bytes * tensor_own_tokens * hidden
            + compute_element_bytes * tensor_feed_forward * (microbatch_tokens + hidden),
            gated_mlp
            * compute_element_bytes
            * tensor_feed_forward
            * (2 * microbatch_tokens + hidden),
        ),
    )


@TENSOR_STEP.place("tensor_embedding", phase="backward", symbol="_5^t")
def tensor_embedding(
    tensor_earlier_gradient_bytes,
    tensor_gradient_bytes,
    tensor_table_bytes,
    accumulation_steps,
    microbatch_tokens,
    tied_head,
    tensor_message_bytes,
):
    """when the token table gets its gradient: a tied table then has two gradients and their sum"""
    return live(
        gradients=where(
            accumulation_steps > 1,
            tensor_earlier_gradient_bytes,
            tensor_gradient_bytes - tensor_table_bytes,
        ),
        activations=9 * microbatch_tokens,
        temporaries=8
        + tensor_table_bytes
        + maximum(
            tied_head * tensor_table_bytes + tensor_message_bytes,
            2 * tied_head * tensor_table_bytes,
        ),
    )


@TENSOR_STEP.place("tensor_update", phase="optimizer", symbol="_6^t")
def tensor_update(tensor_optimizer_bytes, tensor_gradient_bytes, tensor_update_bytes):
    """in the optimizer's step"""
    return live(
        optimizer=tensor_optimizer_bytes,
        gradients=tensor_gradient_bytes,
        temporaries=tensor_update_bytes,
    )


TENSOR_STEP.largest()


# --- what is sent ---------------------------------------------------------------------------------
formula = BOOK.section(source=_SHOEYBI, measured_by=_SENT)


@formula(r"S_t", "bytes")
def tensor_message_bytes(microbatch_tokens, hidden, compute_element_bytes):
    """bytes of every message but the loss's: a vector of the hidden size for each token"""
    return compute_element_bytes * microbatch_tokens * hidden


@formula(r"n_\text{ar}", "count")
def tensor_all_reduces(layers, sequence_parallel):
    """all-reduces of that size for a microbatch: two forward and two backward in each layer, one in
    the embedding, one for the gradient of the head's input; none with sequence parallelism"""
    return (1 - sequence_parallel) * (4 * layers + 2)


@formula(r"n_\text{ag}^t", "count", source=_KORTHIKANTI)
def tensor_gatherings(layers, sequence_parallel, regather):
    """all-gathers of that size: one instead of every all-reduce, and one more for each input that
    is gathered again"""
    return sequence_parallel * (4 * layers + 2) + regather * (2 * layers + 1)


@formula(r"n_\text{rs}^t", "count", source=_KORTHIKANTI)
def tensor_reduce_scatters(layers, sequence_parallel):
    """reduce-scatters of that size: one instead of every all-reduce"""
    return sequence_parallel * (4 * layers + 2)


@formula(r"S_\text{loss}", "bytes", source=_OURS)
def tensor_loss_message_bytes(microbatch_tokens):
    """bytes that the loss reduces: a maximum and two sums for each token, in fp32"""
    return 12 * microbatch_tokens


@formula(r"S_\text{whole}", "bytes", source=_KORTHIKANTI)
def tensor_summed_bytes(sequence_parallel, tensor_whole_parameters, gradient_element_bytes):
    """bytes of the gradients that sequence parallelism adds up once a step, because each rank has
    only the gradients of its own tokens"""
    return sequence_parallel * gradient_element_bytes * tensor_whole_parameters


@formula(r"Q_\ell^\text{fwd}", "bytes", source="Patarasuk and Yuan 2009")
def tensor_layer_forward_sent_bytes(tensor_parallel, tensor_message_bytes):
    """bytes that a rank sends in a layer's forward, around rings: two all-reduces, or two pairs of
    an all-gather and a reduce-scatter, which send as much"""
    return ceil_div(4 * (tensor_parallel - 1) * tensor_message_bytes, tensor_parallel)


@formula(r"Q_\ell^\text{bwd}", "bytes", source="Patarasuk and Yuan 2009")
def tensor_layer_backward_sent_bytes(tensor_parallel, tensor_message_bytes, regather):
    """bytes that a rank sends in a layer's backward: as many as in forward, and half as many more
    where inputs are gathered again"""
    return ceil_div(
        (4 + 2 * regather) * (tensor_parallel - 1) * tensor_message_bytes, tensor_parallel
    )


@formula(r"Q_t", "bytes", source="Patarasuk and Yuan 2009")
def tensor_sent_bytes(
    tensor_parallel,
    accumulation_steps,
    tensor_all_reduces,
    tensor_gatherings,
    tensor_reduce_scatters,
    tensor_message_bytes,
    tensor_loss_message_bytes,
    tensor_summed_bytes,
):
    """bytes that a rank sends in a step, around rings"""
    return ceil_div(
        (tensor_parallel - 1)
        * (
            accumulation_steps
            * (
                (2 * tensor_all_reduces + tensor_gatherings + tensor_reduce_scatters)
                * tensor_message_bytes
                + 2 * tensor_loss_message_bytes
            )
            + 2 * tensor_summed_bytes
        ),
        tensor_parallel,
    )


# --- how long a layer takes -----------------------------------------------------------------------
formula = BOOK.section(source="definition", measured_by=_SECONDS)


@formula(r"\tau_\ell^\text{comp}", "seconds", source="Narayanan et al. 2021, appendix")
def tensor_layer_compute_seconds(
    microbatch_tokens,
    hidden,
    key_value_size,
    gated_mlp,
    feed_forward,
    sequence,
    tensor_parallel,
    utilisation,
    flops_per_second,
):
    """time in which a rank computes its part of a layer, forward and backward: six operations for
    each weight and token, and the attention scores"""
    return (
        microbatch_tokens
        * (
            6 * (2 * hidden * (hidden + key_value_size) + (2 + gated_mlp) * hidden * feed_forward)
            + 12 * hidden * sequence
        )
        / (tensor_parallel * utilisation * flops_per_second)
    )


@formula(r"B_t", "bytes/s", source="a ring is as fast as its slowest link")
def tensor_link_bytes_per_second(
    tensor_parallel, ranks_per_node, node_bytes_per_second, link_bytes_per_second
):
    """bandwidth between tensor-parallel ranks: the bandwidth inside a node, as long as the group
    stays inside one node"""
    return where(tensor_parallel > ranks_per_node, link_bytes_per_second, node_bytes_per_second)


@formula(r"\alpha_t", "seconds", source="a ring is as fast as its slowest link")
def tensor_latency_seconds(tensor_parallel, ranks_per_node, node_latency_seconds, latency_seconds):
    """latency of a message between tensor-parallel ranks: the latency inside a node, as long as the
    group stays inside one node"""
    return where(tensor_parallel > ranks_per_node, latency_seconds, node_latency_seconds)


@formula(r"\tau_\ell^t", "seconds", source="Patarasuk and Yuan 2009, for each collective")
def tensor_layer_message_seconds(
    regather,
    tensor_parallel,
    tensor_latency_seconds,
    tensor_message_bytes,
    tensor_link_bytes_per_second,
):
    """time of a layer's messages, forward and backward: the layer waits for each of them"""
    return (8 + 2 * regather) * ring_pass(
        tensor_parallel, tensor_latency_seconds, tensor_message_bytes / tensor_link_bytes_per_second
    )


@formula(r"\eta_t", "fraction")
def tensor_message_share(tensor_layer_message_seconds, tensor_layer_compute_seconds):
    """share of a layer's time that its messages take: the reason to keep t inside a node"""
    return tensor_layer_message_seconds / (
        tensor_layer_message_seconds + tensor_layer_compute_seconds
    )
