"""The bytes of a rank for a part of its step: units that are whole for a moment, gradients that are
finished, tensors that come and go in a layer at work. rank.py adds them up, place by place.
"""

# Units of stage 3 are the embedding, each layer, and the head with the last norm; a tied table is
# the root's, and stays whole.

from coursekit.formulas.registry import BOOK
from coursekit.formulas.subset import ceil_div, choose, equal, floor_div, maximum, minimum, where

_OURS = "shardlab.zero, shardlab.tensor_parallel, shardlab.pipelines; counted from gpt.py"
_LEDGER = "tests/where_the_memory_goes/test_rank.py::test_peak_of_a_rank"
_CUT = "tests/where_the_memory_goes/test_rank_layouts.py::test_peak_of_a_tensor_parallel_rank"
_AGAIN = "tests/where_the_memory_goes/test_rank_layouts.py::test_peak_of_a_layout_that_recomputes"
formula = BOOK.section(source=_OURS, measured_by=_LEDGER)


# --- kernels --------------------------------------------------------------------------------------


@formula(r"1_\text{plain}", "count")
def plain_kernels(eager_kernels, tensor_parallel):
    """1 where eager PyTorch runs whole layers"""
    return where(tensor_parallel > 1, 0, eager_kernels)


@formula(r"1_\text{cut}", "count", measured_by=_CUT)
def cut_kernels(eager_kernels, tensor_parallel):
    """1 where eager PyTorch runs parts of layers, which tensor parallelism has cut"""
    return where(tensor_parallel > 1, eager_kernels, 0)


@formula(r"1_\text{join}", "count", measured_by=_AGAIN)
def joined_layers(eager_kernels, rank_checkpoint_layers):
    """1 where eager PyTorch recomputes several layers of a stage together"""
    return where(rank_checkpoint_layers > 1, eager_kernels, 0)


# --- what lasts -----------------------------------------------------------------------------------


@formula(
    r"M_\text{old}^{\text{opt},r}", "bytes", source="Rajbhandari et al. 2020 (ZeRO), section 5"
)
def rank_standing_optimizer_bytes(first_step, rank_optimizer_bytes):
    """bytes that the rank's optimizer holds during forward and backward: none in the first step"""
    return (1 - first_step) * rank_optimizer_bytes


@formula(r"M_\text{old}^{\text{grad},r}", "bytes")
def rank_earlier_gradient_bytes(
    accumulation_steps, rank_fullest_first, rank_backward_gradient_bytes
):
    """bytes of the gradients that earlier microbatches left on the rank"""
    return where(accumulation_steps > 1, (1 - rank_fullest_first) * rank_backward_gradient_bytes, 0)


# --- what is whole for a moment -------------------------------------------------------------------


@formula(r"\Psi_\text{root}^r", "parameters")
def rank_root_parameters(zero_stage, rank_tied_head, rank_table_parameters):
    """parameters that stay whole in stage 3 while units come and go: a table that embedding and
    head share"""
    return where(zero_stage < 3, 0, rank_tied_head * rank_table_parameters)


@formula(r"\Psi_\text{own}^r", "parameters")
def embedding_unit_parameters(
    rank_embedding_parameters, rank_tied_head, zero_stage, rank_table_parameters
):
    """parameters of the embedding's unit: in stage 3 without the table, if the table belongs to the
    root"""
    return rank_embedding_parameters - where(
        zero_stage < 3, 0, rank_tied_head * rank_table_parameters
    )


@formula(r"M_\text{root}^r", "bytes")
def rank_root_bytes(rank_root_parameters, parameter_element_bytes):
    """bytes of the parameters that stay whole"""
    return parameter_element_bytes * rank_root_parameters


@formula(r"M_\ell^r", "bytes")
def gathered_layer_bytes(
    zero_stage, rank_layer_parameters, parameter_element_bytes, rank_root_bytes
):
    """bytes of parameters that stage 3 has whole while a layer is at work: the layer's, and the
    root's"""
    return where(
        zero_stage < 3, 0, parameter_element_bytes * rank_layer_parameters + rank_root_bytes
    )


@formula(r"M_\text{head}^r", "bytes")
def gathered_head_bytes(zero_stage, head_unit_parameters, parameter_element_bytes, rank_root_bytes):
    """bytes of parameters that stage 3 has whole while the head is at work"""
    return where(
        zero_stage < 3, 0, parameter_element_bytes * head_unit_parameters + rank_root_bytes
    )


@formula(r"M_\text{embed}^r", "bytes")
def gathered_embedding_bytes(
    zero_stage, embedding_unit_parameters, parameter_element_bytes, rank_root_bytes
):
    """bytes of parameters that stage 3 has whole while the embedding is at work"""
    return where(
        zero_stage < 3, 0, parameter_element_bytes * embedding_unit_parameters + rank_root_bytes
    )


@formula(r"\Psi_\text{big}", "parameters")
def largest_tensor_parameters(
    rank_table_parameters,
    hidden,
    tensor_feed_forward,
    query_key_value_size,
    tensor_parallel,
    learned_positions,
    max_sequence,
):
    """parameters of the largest tensor, which gets a bucket of its own if it is larger than a
    bucket"""
    return maximum(
        rank_table_parameters,
        hidden * tensor_feed_forward,
        floor_div(hidden * query_key_value_size, tensor_parallel),
        learned_positions * max_sequence * hidden,
    )


@formula(r"\Psi_\text{bucket}", "parameters")
def rank_bucket_parameters(bucket_bytes, parameter_element_bytes, rank_parameters):
    """parameters of a bucket of stages 1 and 2 that no tensor overfills"""
    return minimum(rank_parameters, floor_div(bucket_bytes, parameter_element_bytes))


@formula(r"\Psi_\text{close}", "parameters")
def last_reduced_parameters(
    zero_stage,
    rank_parameters,
    rank_bucket_parameters,
    largest_tensor_parameters,
    embedding_unit_parameters,
    rank_table_parameters,
):
    """parameters of the bucket, or in stage 3 of the unit, that is reduced last and may be the
    largest"""
    return minimum(
        rank_parameters,
        where(
            zero_stage < 3,
            maximum(rank_bucket_parameters, largest_tensor_parameters),
            maximum(embedding_unit_parameters, rank_table_parameters),
        ),
    )


@formula(r"\Psi_\text{first}", "parameters")
def first_reduced_parameters(rank_bucket_parameters, rank_head_parameters):
    """parameters of the bucket that stage 1 reduces first: a head of its own may be larger than a
    bucket"""
    return maximum(rank_bucket_parameters, rank_head_parameters)


@formula(r"1_\text{close}", "count")
def reduced_last_is_fullest(
    last_reduced_parameters, rank_parameters, data_parallel, first_reduced_parameters
):
    """1 if stage 1 holds more while it reduces the last bucket, such as a large table, than while
    it reduces the first, when all gradients are whole"""
    return where(
        2 * last_reduced_parameters
        + ceil_div(rank_parameters - last_reduced_parameters, data_parallel)
        > rank_parameters + first_reduced_parameters,
        1,
        0,
    )


@formula(r"\Psi_\text{uneven}", "parameters")
def uneven_shard_parameters(zero_stage, last_reduced_parameters, data_parallel):
    """parameters of one shard more: the shard of a tensor that is reduced while its gradients are
    still there, as in stage 3, or that the ranks do not divide"""
    return where(
        zero_stage < 3,
        where(
            equal(
                data_parallel * floor_div(last_reduced_parameters, data_parallel),
                last_reduced_parameters,
            ),
            0,
            ceil_div(last_reduced_parameters, data_parallel),
        ),
        ceil_div(last_reduced_parameters, data_parallel),
    )


@formula(r"\Psi_\text{open}", "parameters")
def open_bucket_parameters(rank_reducing_stage, rank_bucket_parameters):
    """most parameters whose gradients stage 2 has whole because their bucket is not complete"""
    return where(equal(rank_reducing_stage, 2), rank_bucket_parameters, 0)


# --- gradients that are finished ------------------------------------------------------------------


@formula(r"\beta_\text{new}^r", "bytes")
def rank_new_element_bytes(rank_fullest_first, gradient_element_bytes, new_gradient_element_bytes):
    """bytes that an element of a finished gradient adds: none when the gradient is added to an
    earlier one"""
    return where(equal(rank_fullest_first, 1), gradient_element_bytes, new_gradient_element_bytes)


@formula(r"G_\text{tied}^r", "bytes")
def waiting_table_bytes(rank_tied_head, gradient_element_bytes, rank_table_parameters):
    """bytes of a tied head's gradient, which waits for the embedding's"""
    return rank_tied_head * gradient_element_bytes * rank_table_parameters


@formula(r"G_\text{head}^r", "bytes")
def finished_head_bytes(rank_new_element_bytes, head_unit_parameters):
    """bytes of the gradients of head and last norm, whole, when they are done"""
    return rank_new_element_bytes * head_unit_parameters


@formula(r"G_\text{most}^r", "bytes")
def finished_layers_bytes(
    finished_head_bytes, rank_layers, rank_new_element_bytes, rank_layer_parameters
):
    """bytes of the gradients of the head and of all layers but the first, whole, when they are
    done"""
    return finished_head_bytes + (rank_layers - 1) * rank_new_element_bytes * rank_layer_parameters


@formula(r"G_\text{rest}^r", "bytes")
def finished_rest_bytes(
    rank_new_element_bytes, rank_parameters, pipeline_is_first, rank_table_parameters
):
    """bytes of all gradients but the token table's, whole, when they are done"""
    return rank_new_element_bytes * (rank_parameters - pipeline_is_first * rank_table_parameters)


@formula(r"G_\text{open}^r", "bytes")
def open_bucket_bytes(gradient_element_bytes, open_bucket_parameters):
    """most bytes of the gradients that stage 2 has whole because their bucket is not complete"""
    return gradient_element_bytes * open_bucket_parameters


@formula(r"G_\text{head}^{r\prime}", "bytes")
def rank_gradients_of_head_bytes(
    rank_reducing_stage, finished_head_bytes, data_parallel, open_bucket_bytes
):
    """bytes of the finished gradients of head and last norm on the rank: whole, or the open bucket
    and the rank's shard of the others"""
    return where(
        rank_reducing_stage < 2,
        finished_head_bytes,
        ceil_div(maximum(finished_head_bytes - open_bucket_bytes, 0), data_parallel)
        + minimum(finished_head_bytes, open_bucket_bytes),
    )


@formula(r"G_\text{most}^{r\prime}", "bytes")
def rank_gradients_of_layers_bytes(
    rank_reducing_stage, finished_layers_bytes, data_parallel, open_bucket_bytes
):
    """bytes of the finished gradients of the head and of all layers but the first on the rank"""
    return where(
        rank_reducing_stage < 2,
        finished_layers_bytes,
        ceil_div(maximum(finished_layers_bytes - open_bucket_bytes, 0), data_parallel)
        + minimum(finished_layers_bytes, open_bucket_bytes),
    )


@formula(r"G_\text{rest}^{r\prime}", "bytes")
def rank_gradients_of_rest_bytes(
    rank_reducing_stage, finished_rest_bytes, data_parallel, open_bucket_bytes
):
    """bytes of all finished gradients but the token table's on the rank"""
    return where(
        rank_reducing_stage < 2,
        finished_rest_bytes,
        ceil_div(maximum(finished_rest_bytes - open_bucket_bytes, 0), data_parallel)
        + minimum(finished_rest_bytes, open_bucket_bytes),
    )


@formula(r"\Psi_\text{done}", "parameters")
def done_layer_parameters(
    layer_work_place,
    hidden,
    feed_forward,
    biases,
    mlp_done_parameters,
    mlp_parameters,
    attention_side_parameters,
    mlp_side_parameters,
    attention_parameters,
):
    """parameters of a layer whose gradients are done where the layer's backward needs most: one
    number for each place of that backward, in order"""
    return choose(
        layer_work_place,
        0,
        0,
        hidden * (feed_forward + biases),
        mlp_done_parameters,
        mlp_done_parameters,
        mlp_parameters,
        attention_side_parameters,
        attention_side_parameters,
        mlp_side_parameters + attention_parameters,
        attention_side_parameters,
    )


@formula(r"G_\ell^r", "bytes")
def unit_gradient_bytes(
    rank_reducing_stage, accumulation_steps, gradient_element_bytes, done_layer_parameters
):
    """bytes of a layer's new gradients beside the accumulated ones, which stages 2 and 3 have whole
    until they are reduced"""
    return where(
        rank_reducing_stage < 2,
        0,
        where(accumulation_steps > 1, gradient_element_bytes * done_layer_parameters, 0),
    )


# --- what comes and goes --------------------------------------------------------------------------


@formula(r"U_\text{embed}^r", "bytes", source="torch.autograd")
def rank_table_work_bytes(
    pipeline_is_first,
    gradient_element_bytes,
    rank_table_parameters,
    waiting_table_bytes,
    tensor_parallel,
    tensor_message_bytes,
    residual_bytes,
):
    """bytes at work when the token table gets its gradient: a tied table then has two gradients and
    their sum"""
    return pipeline_is_first * (
        8
        + gradient_element_bytes * rank_table_parameters
        + maximum(
            waiting_table_bytes + where(tensor_parallel > 1, tensor_message_bytes, residual_bytes),
            2 * waiting_table_bytes,
        )
    )


@formula(r"U_\text{cut}^r", "bytes", measured_by=_CUT)
def cut_layer_work_bytes(
    sequence_parallel,
    tensor_message_bytes,
    has_dropout,
    rank_passing_bytes,
    compute_element_bytes,
    tensor_feed_forward,
    microbatch_tokens,
    hidden,
    gated_mlp,
):
    """bytes at work in the backward of a layer that tensor parallelism has cut: in the MLP's second
    product or, with a gate, between the two products, when three gradients of the inner size are
    there"""
    return maximum(
        where(equal(sequence_parallel, 1), tensor_message_bytes, 0)
        + has_dropout * rank_passing_bytes
        + compute_element_bytes * tensor_feed_forward * (microbatch_tokens + hidden),
        gated_mlp * compute_element_bytes * tensor_feed_forward * (2 * microbatch_tokens + hidden),
    )


@formula(r"W_\text{core}^{\text{again},r}", "bytes", measured_by=_AGAIN)
def cut_core_second_run_bytes(
    keeps_scores,
    tensor_norm_bytes,
    tensor_input_bytes,
    compute_element_bytes,
    sequence,
    scored_bytes,
    score_bytes,
    weighted_bytes,
    temporaries_at_scores_bytes,
    has_dropout,
    query_bytes,
    heads,
    new_gradient_element_bytes,
    attention_side_parameters,
    tensor_parallel,
):
    """bytes of a cut layer while the core of its unfused attention is computed a second time: about
    the rank's part of the bytes for all heads, beside the tensors that are whole. A single head's
    queries, keys and values are multiplied in place, without copies"""
    return keeps_scores * (
        tensor_norm_bytes
        + tensor_input_bytes
        + compute_element_bytes * sequence * sequence
        + ceil_div(
            scored_bytes
            + score_bytes
            + weighted_bytes
            + where(
                heads > tensor_parallel,
                temporaries_at_scores_bytes + (1 - has_dropout) * query_bytes,
                temporaries_at_scores_bytes - 2 * query_bytes,
            )
            + new_gradient_element_bytes * attention_side_parameters,
            tensor_parallel,
        )
    )


@formula(r"A_\text{kept}^{\text{core},r}", "bytes", measured_by=_AGAIN)
def cut_core_kept_bytes(tensor_core_recomputed_bytes, tensor_mask_bytes):
    """bytes that a cut layer has kept when it goes backward, if the core of its attention is
    computed again: all but the mask, which is done first"""
    return tensor_core_recomputed_bytes - tensor_mask_bytes


@formula(r"A_\text{work}^r", "bytes", measured_by=_AGAIN)
def rank_work_activation_bytes(
    tensor_parallel,
    recompute_policy,
    cut_core_kept_bytes,
    rank_layer_bytes,
    tensor_mask_bytes,
    core_recomputed_layer_bytes,
    activations_at_layer_work_bytes,
):
    """bytes that a layer at work has kept or computed again; only the kept bytes, if just the core
    of its attention is computed again"""
    return where(
        tensor_parallel > 1,
        where(
            equal(recompute_policy, 1), cut_core_kept_bytes, rank_layer_bytes - tensor_mask_bytes
        ),
        where(
            equal(recompute_policy, 1),
            core_recomputed_layer_bytes,
            activations_at_layer_work_bytes,
        ),
    )


@formula(r"G_\text{work}^r", "bytes", measured_by=_AGAIN)
def rank_work_gradient_bytes(tensor_parallel, recompute_policy, gradients_at_layer_work_bytes):
    """bytes of the gradients that a layer at work has finished at its fullest place"""
    return where(
        tensor_parallel > 1,
        0,
        where(equal(recompute_policy, 1), 0, gradients_at_layer_work_bytes),
    )


@formula(r"U_\text{work}^r", "bytes", measured_by=_AGAIN)
def rank_work_temporary_bytes(
    tensor_parallel,
    recompute_policy,
    cut_layer_work_bytes,
    cut_core_second_run_bytes,
    cut_core_kept_bytes,
    core_recomputed_work_bytes,
    core_recomputed_layer_bytes,
    temporaries_at_layer_work_bytes,
):
    """bytes that come and go in a layer at its fullest place; if the core of attention is computed
    again, the core and the gradients that are done by then"""
    return where(
        tensor_parallel > 1,
        where(
            equal(recompute_policy, 1),
            maximum(
                cut_layer_work_bytes,
                cut_core_second_run_bytes - cut_core_kept_bytes,
            ),
            cut_layer_work_bytes,
        ),
        where(
            equal(recompute_policy, 1),
            core_recomputed_work_bytes - core_recomputed_layer_bytes,
            temporaries_at_layer_work_bytes,
        ),
    )


@formula(r"G_\text{ck}^r", "bytes", measured_by=_AGAIN)
def finished_checkpoint_bytes(
    finished_head_bytes, rank_last_checkpoint_layers, rank_new_element_bytes, rank_layer_parameters
):
    """bytes of the gradients of the head and of a stage's last checkpoint, whole, when they are
    done"""
    return (
        finished_head_bytes
        + rank_last_checkpoint_layers * rank_new_element_bytes * rank_layer_parameters
    )


@formula(r"G_\text{ck}^{r\prime}", "bytes", measured_by=_AGAIN)
def rank_gradients_of_checkpoint_bytes(
    rank_reducing_stage, finished_checkpoint_bytes, data_parallel, open_bucket_bytes
):
    """bytes of the finished gradients of the head and of a stage's last checkpoint on the rank"""
    return where(
        rank_reducing_stage < 2,
        finished_checkpoint_bytes,
        ceil_div(maximum(finished_checkpoint_bytes - open_bucket_bytes, 0), data_parallel)
        + minimum(finished_checkpoint_bytes, open_bucket_bytes),
    )


@formula(r"G_\text{first}^r", "bytes", measured_by=_AGAIN)
def finished_before_first_bytes(
    finished_head_bytes,
    rank_layers,
    rank_checkpoint_layers,
    rank_new_element_bytes,
    rank_layer_parameters,
):
    """bytes of the gradients of the head and of all layers but the first checkpoint's, whole, when
    they are done"""
    return (
        finished_head_bytes
        + (rank_layers - rank_checkpoint_layers) * rank_new_element_bytes * rank_layer_parameters
    )


@formula(r"G_\text{first}^{r\prime}", "bytes", measured_by=_AGAIN)
def rank_gradients_before_first_bytes(
    rank_reducing_stage, finished_before_first_bytes, data_parallel, open_bucket_bytes
):
    """bytes of the finished gradients of the head and of all layers but the first checkpoint's on
    the rank"""
    return where(
        rank_reducing_stage < 2,
        finished_before_first_bytes,
        ceil_div(maximum(finished_before_first_bytes - open_bucket_bytes, 0), data_parallel)
        + minimum(finished_before_first_bytes, open_bucket_bytes),
    )


@formula(r"\Psi_\text{upd}^r", "parameters")
def largest_update_parameters(
    zero_stage,
    last_reduced_parameters,
    rank_table_parameters,
    rank_layer_parameters,
    data_parallel,
):
    """parameters that the update of a shard takes at once in the loop: the rank's share of the last
    bucket, or in stage 3 of the largest unit"""
    return ceil_div(
        where(
            zero_stage < 3,
            last_reduced_parameters,
            maximum(rank_table_parameters, rank_layer_parameters),
        ),
        data_parallel,
    )


@formula(r"U_\text{opt}^r", "bytes", source="torch.optim.adamw")
def rank_optimizer_temporary_bytes(
    zero_stage,
    tensor_parallel,
    pipeline_parallel,
    optimizer_temporary_bytes,
    optimizer_moments,
    optimizer_mode,
    largest_tensor_parameters,
    rank_parameters,
    rank_shard_parameters,
    largest_update_parameters,
    moment_element_bytes,
):
    """bytes that the update needs besides the states: for a shard, three tensors of the largest
    unit in the loop, or the whole shard with foreach; for parts of a model, two tensors or all
    parts"""
    return where(
        maximum(tensor_parallel * pipeline_parallel, 1 + zero_stage) < 2,
        optimizer_temporary_bytes,
        moment_element_bytes
        * where(
            optimizer_moments > 1,
            where(
                equal(optimizer_mode, 0),
                where(
                    zero_stage < 1,
                    minimum(rank_parameters, 2 * largest_tensor_parameters),
                    minimum(rank_shard_parameters, 3 * largest_update_parameters),
                ),
                where(
                    equal(optimizer_mode, 1),
                    where(zero_stage < 1, rank_parameters, rank_shard_parameters),
                    0,
                ),
            ),
            0,
        ),
    )
