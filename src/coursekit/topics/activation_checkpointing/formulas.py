"""Activation checkpointing: what is kept, the peak, the operations that are done twice, and how
long it takes. Bytes are exact for shardlab.recompute and this book's GPT without autocast, whose
copies of weights a checkpoint does not hold.

Four policies, from keeping all to keeping next to nothing:

    0   nothing is recomputed
    1   the core of attention, in every layer (Megatron-LM's "selective")
    2   all but the products of linear layers and fused attention (PyTorch's selective)
    3   whole layers, n in a checkpoint
"""

from coursekit.formulas.registry import BOOK
from coursekit.formulas.subset import (
    arg_max,
    ceil_div,
    equal,
    floor_div,
    maximum,
    minimum,
    square_root,
    where,
)

# --- what the reader gives

BOOK.given(
    r"""
recompute_policy | i_\text{pol} | count, from 0 to 3, usually 0 | what is computed again in
    backward: 0 nothing, 1 the core of attention, 2 all but the products of linear
    layers and fused attention, 3 whole layers
recompute_every | n_\text{ck} | count, usually 1 | layers in one checkpoint, where whole layers are
    recomputed
partition_activations | 1_\text{part} | count, from 0 to 1, usually 0 | 1 if each rank of a
    tensor-parallel group keeps a part of a checkpoint's input, 0 if every rank keeps all of it
"""
)

_CHEN = "Chen et al. 2016"
_KORTHIKANTI = "Korthikanti et al. 2022, section 5"
_OURS = "shardlab.recompute; counted from gpt.py"
_FILE = "tests/activation_checkpointing/test_recompute_formulas.py"
_KEPT = f"{_FILE}::test_kept_bytes_of_every_policy"
_PEAK = f"{_FILE}::test_peak_of_every_policy"
_WORK = f"{_FILE}::test_operations_that_are_done_twice"
_BEST = f"{_FILE}::test_the_least_peak_by_formula_and_by_counting"
_RANK = f"{_FILE}::test_kept_bytes_of_a_rank"
_TIME = f"{_FILE}::test_offload_is_what_is_simulated"


# --- what is kept ---------------------------------------------------------------------------------
formula = BOOK.section(source=_OURS, measured_by=_KEPT)


@formula(r"n_\text{groups}", "count", source=_CHEN)
def recompute_groups(layers, recompute_every):
    """checkpoints of a model that recomputes whole layers; the last checkpoint may have fewer
    layers"""
    return ceil_div(layers, recompute_every)


@formula(r"A_\text{core}^\text{in}", "bytes", source=_KORTHIKANTI)
def core_input_bytes(query_key_value_bytes, query_copy_bytes, rotation_bytes):
    """bytes kept between the linear layers of attention when attention's core is recomputed:
    queries, keys and values, and the cosines and sines of rotary positions"""
    return query_key_value_bytes + query_copy_bytes + rotation_bytes


@formula(r"A_\ell^\text{core}", "bytes", source=_KORTHIKANTI)
def core_recomputed_layer_bytes(layer_activation_bytes, attention_core_bytes, core_input_bytes):
    """bytes that a layer keeps when the core of its attention is recomputed, so without scores: in
    16 bits with dropout, 34 of the 34 + 5as/h bytes for each element of its input"""
    return layer_activation_bytes - attention_core_bytes + core_input_bytes


@formula(r"A_\ell^\text{prod}", "bytes")
def products_kept_layer_bytes(
    residual_bytes,
    query_key_value_bytes,
    linear_input_bytes,
    gated_mlp,
    inner_bytes,
    keeps_scores,
    query_bytes,
    heads,
    microbatch_tokens,
):
    """bytes that a layer keeps when all but the products of linear layers and fused attention is
    recomputed: its input, the outputs of the linear layers, and the output and the log-sum-exp of
    fused attention"""
    return (
        residual_bytes
        + query_key_value_bytes
        + 2 * linear_input_bytes
        + (1 + gated_mlp) * inner_bytes
        + (1 - keeps_scores) * (query_bytes + 4 * heads * microbatch_tokens)
    )


@formula(r"A_\ell^\text{kept}", "bytes")
def kept_layer_bytes(
    recompute_policy,
    layer_activation_bytes,
    core_recomputed_layer_bytes,
    products_kept_layer_bytes,
    residual_bytes,
):
    """bytes that a layer keeps from forward to backward, by policy; where whole layers are
    recomputed, only the input of each checkpoint"""
    return where(
        recompute_policy < 1,
        layer_activation_bytes,
        where(
            recompute_policy < 2,
            core_recomputed_layer_bytes,
            where(recompute_policy < 3, products_kept_layer_bytes, residual_bytes),
        ),
    )


@formula(r"A_L^\text{kept}", "bytes")
def kept_layers_bytes(recompute_policy, recompute_groups, layers, kept_layer_bytes):
    """bytes that all layers keep"""
    return where(recompute_policy < 3, layers, recompute_groups) * kept_layer_bytes


@formula(r"A^\text{kept}", "bytes")
def kept_activation_bytes(
    batch_bytes, mask_bytes, kept_layers_bytes, head_activation_bytes, logit_bytes
):
    """bytes that forward and loss keep: batch, mask after the embedding, layers, head, log-softmax,
    and the sum of the targets' weights in the loss (4)"""
    return batch_bytes + mask_bytes + kept_layers_bytes + head_activation_bytes + logit_bytes + 4


# --- one layer at work ----------------------------------------------------------------------------
formula = BOOK.section(source=_OURS, measured_by=_PEAK)


@BOOK.rule(
    "recompute_policy = {recompute_policy} under autocast: what autocast's cache of weights holds"
    " beside a checkpoint is not counted; give a recipe without autocast.",
    marks="recompute_policy",
)
def recompute_is_counted_without_autocast(
    recompute_policy, copies_weights, recompute_layer_work_bytes
):
    return minimum(recompute_policy, copies_weights) + 0 * recompute_layer_work_bytes < 1


@formula(r"W_\text{mlp}", "bytes")
def mlp_work_bytes(
    live_at_mlp_down_bytes, live_at_mlp_gate_bytes, live_at_mlp_up_bytes, live_at_mlp_norm_bytes
):
    """bytes of a layer at the fullest place of its MLP's backward, when everything that attention
    keeps is still there"""
    return maximum(
        live_at_mlp_down_bytes, live_at_mlp_gate_bytes, live_at_mlp_up_bytes, live_at_mlp_norm_bytes
    )


@formula(r"W_\text{core}^\text{again}", "bytes")
def core_second_run_bytes(
    keeps_scores,
    temporaries_at_scores_bytes,
    learned_positions,
    query_key_value_bytes,
    activations_at_scores_bytes,
    compute_element_bytes,
    sequence,
    has_dropout,
    query_bytes,
    new_gradient_element_bytes,
    attention_side_parameters,
):
    """bytes of a layer while the core of unfused attention is computed a second time: the scores,
    the gradient of the core's output, and the gradients of the MLP and of the output product. With
    dropout the scores take most before the last product, whose output is not computed again"""
    return keeps_scores * (
        temporaries_at_scores_bytes
        - (1 - learned_positions) * query_key_value_bytes
        + activations_at_scores_bytes
        + compute_element_bytes * sequence * sequence
        + (1 - has_dropout) * query_bytes
        + new_gradient_element_bytes * attention_side_parameters
    )


@formula(r"W_\text{core}", "bytes")
def core_recomputed_work_bytes(
    mlp_work_bytes,
    attention_core_bytes,
    core_input_bytes,
    live_at_attention_core_bytes,
    keeps_scores,
    query_bytes,
    core_second_run_bytes,
    live_at_first_product_bytes,
    live_at_attention_norm_bytes,
):
    """bytes of a layer at work when the core of attention is recomputed: the core is not there
    while the MLP goes backward, and its queries are there twice while the core goes backward"""
    return maximum(
        mlp_work_bytes - attention_core_bytes + core_input_bytes,
        live_at_attention_core_bytes + keeps_scores * query_bytes,
        core_second_run_bytes,
        live_at_first_product_bytes,
        live_at_attention_norm_bytes,
    )


@formula(r"W_\ell^\text{again}", "bytes")
def recompute_layer_work_bytes(recompute_policy, layer_work_bytes, core_recomputed_work_bytes):
    """bytes of a layer at work, by policy: with all of the layer's activations where they were
    recomputed"""
    return where(equal(recompute_policy, 1), core_recomputed_work_bytes, layer_work_bytes)


@formula(r"W_\text{scores}^\text{again}", "bytes")
def recompute_scores_bytes(
    recompute_policy,
    keeps_scores,
    activations_at_scores_bytes,
    temporaries_at_scores_bytes,
    compute_element_bytes,
    sequence,
    gated_mlp,
    inner_bytes,
    linear_input_bytes,
):
    """bytes of a layer in the second run of unfused attention: raw and masked scores, the mask, and
    the kept outputs of later products"""
    return where(
        recompute_policy > 1,
        keeps_scores
        * (
            activations_at_scores_bytes
            + temporaries_at_scores_bytes
            + compute_element_bytes * sequence * sequence
            + where(recompute_policy < 3, (1 + gated_mlp) * inner_bytes + 2 * linear_input_bytes, 0)
        ),
        0,
    )


# --- the others -----------------------------------------------------------------------------------


@formula(r"L_\text{last}", "count")
def last_group_layers(layers, recompute_every, recompute_groups):
    """layers of the last checkpoint"""
    return layers - recompute_every * (recompute_groups - 1)


@formula(r"L_\text{first}", "count")
def first_group_layers(layers, recompute_every):
    """layers of the first checkpoint"""
    return minimum(layers, recompute_every)


@formula(r"M_\text{group}", "bytes")
def grouped_others_bytes(
    recompute_groups,
    residual_bytes,
    last_group_layers,
    layer_activation_bytes,
    first_group_layers,
    layers,
    new_gradient_element_bytes,
    layer_parameters,
    recompute_every,
):
    """bytes beside a layer at work when checkpoints hold whole layers: the inputs of earlier
    checkpoints, the recomputed activations of the layer's own checkpoint, and the gradients of
    finished layers. The maximum is in the last checkpoint, in the one before, or in the first"""
    return maximum(
        (recompute_groups - 1) * residual_bytes + (last_group_layers - 1) * layer_activation_bytes,
        where(
            recompute_groups > 1,
            (recompute_groups - 2) * residual_bytes
            + (recompute_every - 1) * layer_activation_bytes
            + last_group_layers * new_gradient_element_bytes * layer_parameters,
            0,
        ),
        (first_group_layers - 1) * layer_activation_bytes
        + (layers - first_group_layers) * new_gradient_element_bytes * layer_parameters,
        (layers - 1) * new_gradient_element_bytes * layer_parameters,
    )


@formula(r"M_\text{rest}", "bytes")
def recompute_others_bytes(
    recompute_policy,
    layers,
    kept_layer_bytes,
    new_gradient_element_bytes,
    layer_parameters,
    grouped_others_bytes,
):
    """bytes of all layers but the one at work, at the maximum: their kept activations when the last
    layer is at work, or their gradients when the first layer is"""
    return where(
        recompute_policy < 3,
        (layers - 1) * maximum(kept_layer_bytes, new_gradient_element_bytes * layer_parameters),
        grouped_others_bytes,
    )


# --- the peak -------------------------------------------------------------------------------------


@formula(r"M_\text{stay}", "bytes")
def recompute_floor_bytes(parameter_bytes, standing_optimizer_bytes, earlier_gradient_bytes):
    """bytes that no policy changes: parameters, optimizer states, and the gradients of earlier
    microbatches"""
    return parameter_bytes + standing_optimizer_bytes + earlier_gradient_bytes


@formula(r"R_\text{fwd}", "bytes")
def recompute_forward_bytes(
    recompute_policy,
    keeps_scores,
    forward_peak_bytes,
    layers,
    attention_core_bytes,
    core_input_bytes,
):
    """bytes in the last layer's unfused attention on the way forward, beside the kept bytes of the
    other layers; 0 where whole layers, or all but products, are recomputed, since the second run
    needs more"""
    return where(
        recompute_policy < 2,
        keeps_scores
        * (
            forward_peak_bytes
            - where(recompute_policy < 1, 0, (layers - 1) * attention_core_bytes)
            + where(recompute_policy < 1, 0, (layers - 1) * core_input_bytes)
        ),
        0,
    )


@formula(r"R_\text{loss}", "bytes")
def recompute_loss_bytes(recompute_floor_bytes, kept_activation_bytes, logit_bytes):
    """bytes in the backward of the log-softmax: everything kept, and two gradients of the logits'
    size"""
    return recompute_floor_bytes + kept_activation_bytes + 2 * logit_bytes + 4


@formula(r"R_\text{head}", "bytes")
def recompute_head_bytes(
    recompute_floor_bytes, batch_bytes, mask_bytes, kept_layers_bytes, head_work_bytes
):
    """bytes while the head goes backward, with the kept bytes of all layers"""
    return (
        recompute_floor_bytes + batch_bytes + mask_bytes + kept_layers_bytes + head_work_bytes + 8
    )


@formula(r"R_\text{layers}", "bytes")
def recompute_layers_bytes(
    recompute_floor_bytes,
    batch_bytes,
    mask_bytes,
    head_gradient_bytes,
    new_gradient_element_bytes,
    norm_parameters,
    residual_bytes,
    recompute_others_bytes,
    recompute_layer_work_bytes,
    recompute_scores_bytes,
):
    """bytes while a layer is computed again or goes backward"""
    return (
        recompute_floor_bytes
        + batch_bytes
        + mask_bytes
        + head_gradient_bytes
        + new_gradient_element_bytes * norm_parameters
        + 8
        + residual_bytes
        + recompute_others_bytes
        + maximum(recompute_layer_work_bytes, recompute_scores_bytes)
    )


@formula(r"R_\text{again}", "bytes")
def recompute_peak_bytes(
    recompute_forward_bytes,
    recompute_loss_bytes,
    recompute_head_bytes,
    recompute_layers_bytes,
    embedding_peak_bytes,
    optimizer_peak_bytes,
):
    """bytes that a step with this policy needs: the most that is live at once"""
    return maximum(
        recompute_forward_bytes,
        recompute_loss_bytes,
        recompute_head_bytes,
        recompute_layers_bytes,
        embedding_peak_bytes,
        optimizer_peak_bytes,
    )


@formula(r"i_\text{again}", "count")
def recompute_peak_place(
    recompute_forward_bytes,
    recompute_loss_bytes,
    recompute_head_bytes,
    recompute_layers_bytes,
    embedding_peak_bytes,
    optimizer_peak_bytes,
):
    """place of that peak: 1 unfused attention on the way forward, 2 the loss, 3 the head, 4 the
    layers, 5 the embedding, 6 the optimizer"""
    return arg_max(
        recompute_forward_bytes,
        recompute_loss_bytes,
        recompute_head_bytes,
        recompute_layers_bytes,
        embedding_peak_bytes,
        optimizer_peak_bytes,
    )


# --- how many layers in a checkpoint --------------------------------------------------------------
formula = BOOK.section(source=_CHEN, measured_by=_BEST)


@formula(r"A_n", "bytes")
def grouped_activation_bytes(
    recompute_groups, residual_bytes, recompute_every, layer_activation_bytes
):
    """most bytes of activations for a given number of layers in each checkpoint: the inputs of all
    checkpoints, and the activations of one checkpoint, whose input counts once"""
    return (recompute_groups - 1) * residual_bytes + recompute_every * layer_activation_bytes


@formula(r"\ell^*", "layers")
def best_recompute_every(layers, residual_bytes, layer_activation_bytes):
    """layers in a checkpoint for which the activations take the fewest bytes, before rounding: the
    square root of L only for layers that keep no more than their input"""
    return square_root(layers * residual_bytes / layer_activation_bytes)


@formula(r"\ell_\text{two}", "layers")
def layers_worth_grouping(layer_activation_bytes, residual_bytes):
    """number of layers up to which one checkpoint for each layer is best; in a deeper model, two
    layers in each checkpoint need less"""
    return 2 * layer_activation_bytes / residual_bytes


# --- operations -----------------------------------------------------------------------------------
formula = BOOK.section(source="Narayanan et al. 2021, appendix", measured_by=_WORK)


@formula(r"C_\text{core}", "FLOP")
def attention_core_flops(microbatch_tokens, sequence, query_size):
    """operations of the two products of attention's core, with all scores"""
    return 4 * microbatch_tokens * sequence * query_size


@formula(r"C_\ell", "FLOP")
def layer_forward_flops(
    microbatch_tokens,
    hidden,
    query_key_value_size,
    query_size,
    gated_mlp,
    feed_forward,
    attention_core_flops,
):
    """operations of all matrix products in a layer's forward, for one microbatch"""
    return (
        2
        * microbatch_tokens
        * hidden
        * (query_key_value_size + query_size + (2 + gated_mlp) * feed_forward)
        + attention_core_flops
    )


@formula(r"C_L", "FLOP")
def layers_forward_flops(layers, layer_forward_flops):
    """operations of the forward of all layers"""
    return layers * layer_forward_flops


@formula(r"C_\text{fwd}", "FLOP")
def forward_flops(layers_forward_flops, microbatch_tokens, hidden, vocabulary):
    """operations of all matrix products in the forward"""
    return layers_forward_flops + 2 * microbatch_tokens * hidden * vocabulary


@formula(r"C_\text{step}", "FLOP")
def step_flops(forward_flops):
    """operations of forward and backward; backward has two products for each product of forward"""
    return 3 * forward_flops


@formula(r"C_\text{down}", "FLOP", source=_OURS)
def skipped_flops(has_dropout, microbatch_tokens, feed_forward, hidden):
    """operations that the second run of a checkpoint leaves out: backward needs the input of the
    MLP's last product but not its output, unless dropout comes after that product"""
    return (1 - has_dropout) * 2 * microbatch_tokens * feed_forward * hidden


@formula(r"C_\text{again}", "FLOP", source=_OURS)
def recomputed_flops(
    recompute_policy,
    layers,
    keeps_scores,
    attention_core_flops,
    layers_forward_flops,
    recompute_groups,
    skipped_flops,
):
    """operations that are done twice, by policy. The second run of unfused attention's core ends
    before its last product, whose output backward does not need"""
    return where(
        recompute_policy < 1,
        0,
        where(
            recompute_policy < 2,
            layers * where(equal(keeps_scores, 1), attention_core_flops / 2, attention_core_flops),
            where(
                recompute_policy < 3,
                layers * keeps_scores * attention_core_flops,
                layers_forward_flops - recompute_groups * skipped_flops,
            ),
        ),
    )


@formula(r"\varphi_\text{again}", "fraction")
def recomputed_share(recomputed_flops, step_flops):
    """operations done twice, as a share of the operations of a step: a third, if all of forward is
    done twice"""
    return recomputed_flops / step_flops


# --- seconds --------------------------------------------------------------------------------------
formula = BOOK.section(source="definition", measured_by=_TIME)


@formula(r"\tau_\text{again}", "seconds")
def recompute_seconds(recomputed_flops, tensor_parallel, utilisation, flops_per_second):
    """time that recomputation takes on each of the ranks that share the layers"""
    return recomputed_flops / (tensor_parallel * utilisation * flops_per_second)


@formula(r"\tau_\text{step}^\text{again}", "seconds")
def recompute_step_seconds(
    step_flops, tensor_parallel, utilisation, flops_per_second, recompute_seconds
):
    """time of forward and backward with this policy, without messages"""
    return step_flops / (tensor_parallel * utilisation * flops_per_second) + recompute_seconds


@formula(r"\tau_\ell^\text{fwd}", "seconds")
def layer_forward_seconds(layer_forward_flops, tensor_parallel, utilisation, flops_per_second):
    """time of a layer's forward"""
    return layer_forward_flops / (tensor_parallel * utilisation * flops_per_second)


@formula(r"\tau_\ell^\text{bwd}", "seconds")
def layer_backward_seconds(layer_forward_seconds, recompute_seconds, layers):
    """time of a layer's backward: twice its forward, plus its share of the recomputation"""
    return 2 * layer_forward_seconds + recompute_seconds / layers


@formula(r"\tau_\ell^\text{copy}", "seconds")
def layer_copy_seconds(rank_layers_kept_bytes, layers, pcie_bytes_per_second):
    """time to copy a layer's kept bytes to the host, or back"""
    return rank_layers_kept_bytes / (layers * pcie_bytes_per_second)


@formula(r"B_\text{off}", "bytes/s")
def hiding_bytes_per_second(rank_layers_kept_bytes, layers, layer_forward_seconds):
    """least bandwidth at which the copies hide behind forward: a layer's bytes cross the link while
    one layer computes. Backward has twice the time"""
    return rank_layers_kept_bytes / (layers * layer_forward_seconds)


@formula(r"\tau_\text{fwd}^\text{off}", "seconds")
def offloaded_forward_seconds(layers, layer_forward_seconds, layer_copy_seconds):
    """time of the layers' forward until the last copy is on the host: a layer's copy begins when
    the layer and the copy before are done"""
    return (
        layer_forward_seconds
        + (layers - 1) * maximum(layer_forward_seconds, layer_copy_seconds)
        + layer_copy_seconds
    )


@formula(r"\tau_\text{bwd}^\text{off}", "seconds")
def offloaded_backward_seconds(layers, layer_backward_seconds, layer_copy_seconds):
    """time of the layers' backward: backward waits for the first copy back, and the others come
    while layers compute"""
    return (
        layer_copy_seconds
        + (layers - 1) * maximum(layer_backward_seconds, layer_copy_seconds)
        + layer_backward_seconds
    )


@formula(r"\tau_\text{step}^\text{off}", "seconds")
def offloaded_seconds(offloaded_forward_seconds, offloaded_backward_seconds):
    """time of the layers' forward and backward with copies"""
    return offloaded_forward_seconds + offloaded_backward_seconds


@formula(r"\tau_\text{exp}^\text{off}", "seconds")
def copies_exposed_seconds(
    offloaded_seconds, layers, layer_forward_seconds, layer_backward_seconds
):
    """time that copies add to a step. Even on a fast link the step waits for the last copy to the
    host and the first copy back, unless the loss hides them"""
    return offloaded_seconds - layers * (layer_forward_seconds + layer_backward_seconds)


# --- a rank among several -------------------------------------------------------------------------
formula = BOOK.section(source=_KORTHIKANTI, measured_by=_RANK)


@BOOK.rule(
    "partition_activations = {partition_activations} with sequence parallelism: each rank has its"
    " own tokens of the input already. Give 0.",
    marks="partition_activations",
)
def own_tokens_are_not_partitioned(partition_activations, sequence_parallel):
    return partition_activations + sequence_parallel < 2


@formula(r"A_\text{in}^\text{ck}", "bytes")
def checkpoint_input_bytes(
    partition_activations,
    residual_element_bytes,
    microbatch_tokens,
    hidden,
    tensor_parallel,
    tensor_own_tokens,
):
    """bytes that a rank keeps of a checkpoint's input: all of it under tensor parallelism, or the
    rank's part if the input is partitioned or cut by tokens"""
    return residual_element_bytes * where(
        equal(partition_activations, 1),
        ceil_div(microbatch_tokens * hidden, tensor_parallel),
        tensor_own_tokens * hidden,
    )


@formula(r"A_\text{core}^{\text{in},t}", "bytes")
def tensor_core_input_bytes(
    query_key_value_bytes,
    learned_positions,
    key_value_heads,
    tensor_parallel,
    heads,
    linear_input_bytes,
    rotation_bytes,
):
    """bytes that a rank keeps between the linear layers of attention when attention's core is
    recomputed"""
    return (
        floor_div(
            query_key_value_bytes
            + learned_positions
            * where(
                key_value_heads > tensor_parallel,
                where(key_value_heads < heads, linear_input_bytes, 0),
                0,
            ),
            tensor_parallel,
        )
        + rotation_bytes
    )


@formula(r"A_\ell^{\text{core},t}", "bytes")
def tensor_core_recomputed_bytes(tensor_layer_bytes, tensor_core_bytes, tensor_core_input_bytes):
    """bytes that a rank keeps of a layer when the core of attention is recomputed: 34sbh/t in 16
    bits with sequence parallelism"""
    return tensor_layer_bytes - tensor_core_bytes + tensor_core_input_bytes


@formula(r"A_\ell^{\text{prod},t}", "bytes", source=_OURS)
def tensor_products_kept_bytes(
    checkpoint_input_bytes,
    query_key_value_bytes,
    keeps_scores,
    linear_input_bytes,
    heads,
    microbatch_tokens,
    tensor_parallel,
    gated_mlp,
    compute_element_bytes,
    tensor_feed_forward,
    sequence_parallel,
):
    """bytes that a rank keeps of a layer when all but the products of linear layers and fused
    attention is recomputed. A product that an all-reduce changes in place is computed again; a
    product that a reduce-scatter reads is kept whole"""
    return (
        checkpoint_input_bytes
        + floor_div(
            query_key_value_bytes
            + (1 - keeps_scores) * (linear_input_bytes + 4 * heads * microbatch_tokens),
            tensor_parallel,
        )
        + (1 + gated_mlp) * compute_element_bytes * microbatch_tokens * tensor_feed_forward
        + where(tensor_parallel > 1, 2 * sequence_parallel, 2) * linear_input_bytes
    )


@formula(r"A_\ell^{\text{kept},t}", "bytes")
def tensor_kept_layer_bytes(
    recompute_policy,
    tensor_layer_bytes,
    tensor_core_recomputed_bytes,
    tensor_products_kept_bytes,
    checkpoint_input_bytes,
):
    """bytes that a rank keeps of a layer, by policy; where whole layers are recomputed, the rank's
    part of each checkpoint's input"""
    return where(
        recompute_policy < 1,
        tensor_layer_bytes,
        where(
            recompute_policy < 2,
            tensor_core_recomputed_bytes,
            where(recompute_policy < 3, tensor_products_kept_bytes, checkpoint_input_bytes),
        ),
    )


@formula(r"A_L^{\text{kept},t}", "bytes")
def rank_layers_kept_bytes(recompute_policy, layers, recompute_groups, tensor_kept_layer_bytes):
    """bytes that a rank of a tensor-parallel group keeps of all layers"""
    return where(recompute_policy < 3, layers, recompute_groups) * tensor_kept_layer_bytes


@formula(r"A_\text{ck}^t", "bytes", measured_by=f"{_FILE}::test_kept_in_flight")
def rank_checkpoint_bytes(recompute_policy, first_group_layers, tensor_layer_bytes):
    """bytes of all activations of a checkpoint, which has one layer or several"""
    return where(recompute_policy < 3, 1, first_group_layers) * tensor_layer_bytes


@formula(r"A_L^{\text{again},t}", "bytes", measured_by=f"{_FILE}::test_kept_in_flight")
def rank_layers_again_bytes(recompute_policy, rank_checkpoint_bytes, tensor_kept_layer_bytes):
    """bytes of activations that the rank has for a moment: the recomputed activations of one
    checkpoint, beside the kept bytes"""
    return where(
        recompute_policy < 1, 0, maximum(rank_checkpoint_bytes - tensor_kept_layer_bytes, 0)
    )


@formula(r"A_L^t", "bytes", measured_by=f"{_FILE}::test_kept_in_flight")
def rank_layers_bytes(rank_layers_kept_bytes, rank_layers_again_bytes):
    """most bytes that the layers' activations take on the rank"""
    return rank_layers_kept_bytes + rank_layers_again_bytes


@formula(r"M_L^t", "bytes", measured_by=f"{_FILE}::test_kept_in_flight")
def rank_states_and_layers_bytes(
    tensor_parameter_bytes, tensor_gradient_bytes, tensor_optimizer_bytes, rank_layers_bytes
):
    """most bytes that the model states and the layers' activations take on the rank, without head
    and logits"""
    return (
        tensor_parameter_bytes + tensor_gradient_bytes + tensor_optimizer_bytes + rank_layers_bytes
    )


@formula(r"A^{\text{kept},t}", "bytes")
def tensor_kept_activation_bytes(
    tensor_index_bytes,
    tensor_mask_bytes,
    rank_layers_kept_bytes,
    tensor_norm_bytes,
    tensor_input_bytes,
    tensor_logit_bytes,
):
    """bytes that forward and loss keep on a rank of a tensor-parallel group"""
    return (
        tensor_index_bytes
        + tensor_mask_bytes
        + rank_layers_kept_bytes
        + tensor_norm_bytes
        + tensor_input_bytes
        + tensor_logit_bytes
    )


@formula(r"A_\text{held}^\text{kept}", "bytes", measured_by=f"{_FILE}::test_kept_in_flight")
def held_kept_bytes(
    pipeline_in_flight, recompute_policy, stage_layers, recompute_every, tensor_kept_layer_bytes
):
    """bytes that the layers of a pipeline's rank keep, for all microbatches in flight"""
    return (
        pipeline_in_flight
        * where(recompute_policy < 3, stage_layers, ceil_div(stage_layers, recompute_every))
        * tensor_kept_layer_bytes
    )


@formula(r"A_\text{group}^t", "bytes", measured_by=f"{_FILE}::test_kept_in_flight")
def recomputed_group_bytes(recompute_policy, stage_layers, recompute_every, tensor_layer_bytes):
    """bytes of all activations of the layers that are at work together on a rank: those of one
    checkpoint where whole layers are recomputed, one layer otherwise"""
    return tensor_layer_bytes * where(
        recompute_policy < 3, 1, minimum(stage_layers, recompute_every)
    )


@formula(r"A_\text{held}^\text{work}", "bytes", measured_by=f"{_FILE}::test_kept_in_flight")
def held_working_bytes(
    recompute_policy, held_kept_bytes, recomputed_group_bytes, tensor_kept_layer_bytes
):
    """most bytes of activations on a rank of a pipeline: the kept bytes, and the other activations
    of the layers at work, which are computed again"""
    return held_kept_bytes + where(
        recompute_policy < 1, 0, maximum(recomputed_group_bytes - tensor_kept_layer_bytes, 0)
    )
