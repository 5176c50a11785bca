"""One rank of a layout: what it holds at every place of a training step, with any degrees of data,
tensor and pipeline parallelism, ZeRO, accumulation and kernels; the peak is the largest.
"""

# Alone, with stage 0 and eager PyTorch, it is the peak of one GPU. Places are those of a step
# (step.py), with three differences. States are the rank's: whole, or its shard. What backward has
# finished waits whole (stages 0 and 1) or as a shard (2 and 3). And what is whole only for a moment
# is there: in stage 3 the unit at work, in stages 1 to 3 the gradients of a unit or bucket, twice,
# while they are copied into the tensor that is reduced.
#
# What the rank has of the model and of the batch is in layout.py, what it has for a part of the
# step in rank_at_work.py. Where tensor parallelism cuts layers, a microbatch has places of its own;
# where a pipeline cuts the model, a place of the embedding or of the head is there on the first or
# on the last rank, and other microbatches wait beside the one at work.

from coursekit.formulas.places import Places, live
from coursekit.formulas.subset import ceil_div, equal, floor_div, where

_OURS = "shardlab.zero, shardlab.tensor_parallel, shardlab.pipelines; counted from gpt.py"
_LEDGER = "tests/where_the_memory_goes/test_rank.py::test_peak_of_a_rank"
_CUT = "tests/where_the_memory_goes/test_rank_layouts.py::test_peak_of_a_tensor_parallel_rank"
_AGAIN = "tests/where_the_memory_goes/test_rank_layouts.py::test_peak_of_a_layout_that_recomputes"
_LIB = dict(
    source="Korthikanti et al. 2022, Table 2; Megatron-LM, theoretical_memory_usage.py",
    measured_by="tests/where_the_memory_goes/test_rank.py::test_published_layer",
)

# --- the places -----------------------------------------------------------------------------------

RANK = Places(
    "rank_peak",
    r"_\text{rank}",
    "a rank of any layout needs: the most that is live at once",
    _OURS,
    _LEDGER,
    usual=dict(
        parameters="rank_parameter_bytes",
        optimizer="rank_standing_optimizer_bytes",
        gradients="rank_earlier_gradient_bytes",
        workspaces="rank_workspace_bytes",
    ),
    letter="R",
    there="at the rank's peak",
)


@RANK.place("rank_attention", phase="forward", symbol=r"_1^r", when="plain_kernels")
def rank_attention(
    rank_others_bytes,
    activations_at_scores_bytes,
    keeps_scores,
    gathered_layer_bytes,
    accumulation_steps,
    bias_copy_bytes,
    copies_weights,
    residual_bytes,
    compute_element_bytes,
    sequence,
    temporaries_at_scores_bytes,
    rank_message_bytes,
):
    """in the last layer's unfused attention"""
    return live(
        activations=keeps_scores * (rank_others_bytes + activations_at_scores_bytes),
        gathered=keeps_scores * gathered_layer_bytes,
        temporaries=keeps_scores
        * (
            where(accumulation_steps > 1, 4, 0)
            + bias_copy_bytes
            + copies_weights * residual_bytes
            + compute_element_bytes * sequence * sequence
            + temporaries_at_scores_bytes
            + rank_message_bytes
        ),
    )


@RANK.place("rank_loss", phase="backward", symbol=r"_2^r", when="plain_kernels")
def rank_loss(rank_saved_bytes, rank_exit_bytes, pipeline_is_last, logit_bytes, rank_message_bytes):
    """in the backward of the log-softmax, when stage 3 has gathered nothing yet"""
    return live(
        activations=rank_saved_bytes + rank_exit_bytes,
        temporaries=pipeline_is_last * (2 * logit_bytes + 8) + rank_message_bytes,
    )


@RANK.place("rank_head", phase="backward", symbol=r"_3^r", when="plain_kernels")
def rank_head(
    rank_earlier_gradient_bytes,
    pipeline_is_last,
    gradients_at_head_work_bytes,
    rank_saved_bytes,
    activations_at_head_work_bytes,
    gathered_head_bytes,
    temporaries_at_head_work_bytes,
    rank_message_bytes,
):
    """while the head goes backward"""
    return live(
        gradients=rank_earlier_gradient_bytes + pipeline_is_last * gradients_at_head_work_bytes,
        activations=rank_saved_bytes + pipeline_is_last * activations_at_head_work_bytes,
        gathered=gathered_head_bytes,
        temporaries=pipeline_is_last * (8 + temporaries_at_head_work_bytes) + rank_message_bytes,
    )


@RANK.place("rank_head_reduced", phase="backward", symbol=r"_4^r", when="eager_kernels")
def rank_head_reduced(
    rank_saved_bytes,
    rank_root_bytes,
    zero_stage,
    rank_passing_bytes,
    waiting_table_bytes,
    gradient_element_bytes,
    head_unit_parameters,
    data_parallel,
):
    """in stage 3, while the head's gradients are copied into the tensor that is reduced"""
    return live(
        activations=rank_saved_bytes,
        gathered=rank_root_bytes,
        temporaries=where(
            zero_stage < 3,
            0,
            8
            + rank_passing_bytes
            + waiting_table_bytes
            + gradient_element_bytes
            * (2 * head_unit_parameters + ceil_div(head_unit_parameters, data_parallel)),
        ),
    )


@RANK.place("rank_last_layer", phase="backward", symbol=r"_5^r", when="plain_kernels")
def rank_last_layer(
    rank_earlier_gradient_bytes,
    rank_gradients_of_head_bytes,
    rank_work_gradient_bytes,
    unit_gradient_bytes,
    rank_others_bytes,
    rank_work_activation_bytes,
    gathered_layer_bytes,
    waiting_table_bytes,
    residual_bytes,
    rank_work_temporary_bytes,
    rank_layer_message_bytes,
    rank_received_at_core_bytes,
):
    """while the last layer goes backward, before all other layers"""
    return live(
        gradients=rank_earlier_gradient_bytes
        + rank_gradients_of_head_bytes
        + rank_work_gradient_bytes
        + unit_gradient_bytes,
        activations=rank_others_bytes + rank_work_activation_bytes,
        gathered=gathered_layer_bytes,
        temporaries=8
        + waiting_table_bytes
        + residual_bytes
        + rank_work_temporary_bytes
        + rank_layer_message_bytes
        + rank_received_at_core_bytes,
    )


@RANK.place("rank_first_layer", phase="backward", symbol=r"_6^r", when="plain_kernels")
def rank_first_layer(
    rank_earlier_gradient_bytes,
    rank_gradients_of_layers_bytes,
    rank_work_gradient_bytes,
    unit_gradient_bytes,
    rank_behind_bytes,
    rank_work_activation_bytes,
    gathered_layer_bytes,
    waiting_table_bytes,
    residual_bytes,
    rank_work_temporary_bytes,
    rank_layer_message_bytes,
    rank_received_gradient_bytes,
):
    """while the first layer goes backward, after all other layers"""
    return live(
        gradients=rank_earlier_gradient_bytes
        + rank_gradients_of_layers_bytes
        + rank_work_gradient_bytes
        + unit_gradient_bytes,
        activations=rank_behind_bytes + rank_work_activation_bytes,
        gathered=gathered_layer_bytes,
        temporaries=8
        + waiting_table_bytes
        + residual_bytes
        + rank_work_temporary_bytes
        + rank_layer_message_bytes
        + rank_received_gradient_bytes,
    )


@RANK.place("rank_layer_reduced", phase="backward", symbol=r"_7^r", when="eager_kernels")
def rank_layer_reduced(
    rank_earlier_gradient_bytes,
    finished_head_bytes,
    rank_others_bytes,
    rank_root_bytes,
    zero_stage,
    rank_passing_bytes,
    waiting_table_bytes,
    gradient_element_bytes,
    rank_layer_parameters,
    data_parallel,
):
    """in stage 3, while the last layer's gradients are copied into the tensor that is reduced"""
    return live(
        gradients=rank_earlier_gradient_bytes + ceil_div(finished_head_bytes, data_parallel),
        activations=rank_others_bytes,
        gathered=rank_root_bytes,
        temporaries=where(
            zero_stage < 3,
            0,
            8
            + rank_passing_bytes
            + waiting_table_bytes
            + gradient_element_bytes
            * (2 * rank_layer_parameters + ceil_div(rank_layer_parameters, data_parallel)),
        ),
    )


@RANK.place("rank_first_layer_reduced", phase="backward", symbol=r"_{23}^r", when="eager_kernels")
def rank_first_layer_reduced(
    rank_earlier_gradient_bytes,
    finished_layers_bytes,
    rank_behind_bytes,
    rank_root_bytes,
    zero_stage,
    rank_passing_bytes,
    waiting_table_bytes,
    gradient_element_bytes,
    rank_layer_parameters,
    data_parallel,
):
    """in stage 3, while the first layer's gradients are copied into the tensor that is reduced"""
    return live(
        gradients=rank_earlier_gradient_bytes + ceil_div(finished_layers_bytes, data_parallel),
        activations=rank_behind_bytes,
        gathered=rank_root_bytes,
        temporaries=where(
            zero_stage < 3,
            0,
            8
            + rank_passing_bytes
            + waiting_table_bytes
            + gradient_element_bytes
            * (2 * rank_layer_parameters + ceil_div(rank_layer_parameters, data_parallel)),
        ),
    )


@RANK.place("rank_embedding", phase="backward", symbol=r"_8^r", when="eager_kernels")
def rank_embedding(
    rank_earlier_gradient_bytes,
    rank_gradients_of_rest_bytes,
    rank_behind_bytes,
    tensor_mask_bytes,
    pipeline_is_first,
    gathered_embedding_bytes,
    rank_table_work_bytes,
    rank_message_bytes,
):
    """when the token table gets its gradient"""
    return live(
        gradients=rank_earlier_gradient_bytes + rank_gradients_of_rest_bytes,
        activations=rank_behind_bytes - pipeline_is_first * tensor_mask_bytes,
        gathered=gathered_embedding_bytes,
        temporaries=rank_table_work_bytes + rank_message_bytes,
    )


@RANK.place("rank_reduced", phase="backward", symbol=r"_9^r", when="eager_kernels")
def rank_reduced(
    rank_reducing_stage,
    reduced_last_is_fullest,
    gradient_element_bytes,
    rank_parameters,
    zero_stage,
    first_reduced_parameters,
    last_reduced_parameters,
    uneven_shard_parameters,
    rank_earlier_gradient_bytes,
    new_gradient_element_bytes,
    data_parallel,
    rank_batch_bytes,
    rank_root_bytes,
):
    """while the last bucket's gradients, or the embedding's, are copied into the tensor that is
    reduced: the peak where the table is large"""
    return live(
        gradients=where(
            rank_reducing_stage < 2,
            gradient_element_bytes
            * where(
                equal(reduced_last_is_fullest, 1),
                last_reduced_parameters
                + ceil_div(rank_parameters - last_reduced_parameters, data_parallel),
                rank_parameters,
            ),
            rank_earlier_gradient_bytes
            + new_gradient_element_bytes
            * ceil_div(rank_parameters - last_reduced_parameters, data_parallel),
        ),
        activations=rank_batch_bytes,
        gathered=rank_root_bytes,
        temporaries=where(
            zero_stage < 1,
            0,
            gradient_element_bytes
            * where(
                rank_reducing_stage < 2,
                where(
                    equal(reduced_last_is_fullest, 1),
                    last_reduced_parameters,
                    first_reduced_parameters,
                ),
                2 * last_reduced_parameters,
            )
            + gradient_element_bytes * uneven_shard_parameters
            + 8,
        ),
    )


@RANK.place("rank_tied_sum", phase="backward", symbol=r"_{10}^r", when="eager_kernels")
def rank_tied_sum(
    rank_backward_gradient_bytes,
    rank_batch_bytes,
    pipeline_parallel,
    pipeline_ends,
    tied_head,
    gradient_element_bytes,
    rank_table_parameters,
):
    """at the end of a pipeline's step, when its ends add up the gradients of a tied table: the
    other end's gradient, and two sums"""
    return live(
        gradients=rank_backward_gradient_bytes,
        activations=rank_batch_bytes,
        temporaries=where(
            pipeline_parallel > 1,
            where(
                pipeline_ends > 0, 3 * tied_head * gradient_element_bytes * rank_table_parameters, 0
            ),
            0,
        ),
    )


# --- of a layer that tensor parallelism has cut ---------------------------------------------------


@RANK.place(
    "rank_cut_attention", phase="forward", symbol=r"_{11}^r", when="cut_kernels", measured_by=_CUT
)
def rank_cut_attention(
    keeps_scores,
    rank_others_bytes,
    tensor_norm_bytes,
    tensor_input_bytes,
    scored_bytes,
    score_bytes,
    weighted_bytes,
    tensor_parallel,
    gathered_layer_bytes,
    compute_element_bytes,
    sequence,
    temporaries_at_scores_bytes,
    rank_message_bytes,
):
    """in the last layer's unfused attention, for the rank's heads: about the rank's part of the
    bytes for all heads"""
    return live(
        activations=keeps_scores
        * (
            rank_others_bytes
            + tensor_norm_bytes
            + tensor_input_bytes
            + ceil_div(scored_bytes + score_bytes + weighted_bytes, tensor_parallel)
        ),
        gathered=keeps_scores * gathered_layer_bytes,
        temporaries=keeps_scores
        * (
            compute_element_bytes * sequence * sequence
            + ceil_div(temporaries_at_scores_bytes, tensor_parallel)
            + rank_message_bytes
        ),
    )


@RANK.place(
    "rank_scatter", phase="forward", symbol=r"_{12}^r", when="cut_kernels", measured_by=_CUT
)
def rank_scatter(
    rank_saved_bytes,
    gathered_layer_bytes,
    sequence_parallel,
    microbatch,
    regather,
    tensor_message_bytes,
    tensor_parallel,
    rank_message_bytes,
):
    """in the last layer's reduce-scatter: its output twice (once for a single sequence), the rank's
    own tokens of the sum, and the MLP's input, which a variable still holds"""
    return live(
        activations=rank_saved_bytes,
        gathered=gathered_layer_bytes,
        temporaries=sequence_parallel
        * (
            (where(microbatch > 1, 2, 1) + regather) * tensor_message_bytes
            + floor_div(tensor_message_bytes, tensor_parallel)
        )
        + rank_message_bytes,
    )


@RANK.place(
    "rank_cut_loss", phase="forward", symbol=r"_{13}^r", when="cut_kernels", measured_by=_CUT
)
def rank_cut_loss(
    rank_saved_bytes,
    rank_exit_bytes,
    pipeline_is_last,
    microbatch_tokens,
    tensor_vocabulary,
    compute_element_bytes,
    rank_message_bytes,
):
    """in the loss over parts of the vocabulary: everything is saved, and the logits are still there
    beside the exponentials; 16-bit logits also as fp32"""
    return live(
        activations=rank_saved_bytes + rank_exit_bytes,
        temporaries=pipeline_is_last
        * microbatch_tokens
        * (
            tensor_vocabulary * (compute_element_bytes + where(compute_element_bytes < 4, 4, 0))
            + 20
        )
        + rank_message_bytes,
    )


@RANK.place(
    "rank_cut_head", phase="backward", symbol=r"_{14}^r", when="cut_kernels", measured_by=_CUT
)
def rank_cut_head(
    rank_saved_bytes,
    pipeline_is_last,
    tensor_norm_bytes,
    tensor_input_bytes,
    compute_element_bytes,
    tensor_logit_bytes,
    gathered_head_bytes,
    tensor_vocabulary,
    hidden,
    microbatch_tokens,
    regather,
    tensor_message_bytes,
    rank_message_bytes,
):
    """in the product of a part of the head: the gradients of its weight and of its input, which is
    gathered again with sequence parallelism"""
    return live(
        activations=rank_saved_bytes
        + pipeline_is_last
        * (
            tensor_norm_bytes
            + tensor_input_bytes
            + where(compute_element_bytes < 4, 0, tensor_logit_bytes)
        ),
        gathered=gathered_head_bytes,
        temporaries=pipeline_is_last
        * (
            compute_element_bytes
            * tensor_vocabulary
            * (hidden + where(compute_element_bytes < 4, microbatch_tokens, 0))
            + (1 + regather) * tensor_message_bytes
            + 8
        )
        + rank_message_bytes,
    )


@RANK.place(
    "rank_cut_norm", phase="backward", symbol=r"_{15}^r", when="cut_kernels", measured_by=_CUT
)
def rank_cut_norm(
    rank_earlier_gradient_bytes,
    rank_head_parameters,
    rank_new_element_bytes,
    rank_saved_bytes,
    pipeline_is_last,
    tensor_norm_bytes,
    gathered_head_bytes,
    waiting_table_bytes,
    sequence_parallel,
    norm_backward_bytes,
    tensor_parallel,
    rank_message_bytes,
):
    """in the last norm, with the gradient of a part of the head"""
    return live(
        gradients=rank_earlier_gradient_bytes + rank_new_element_bytes * rank_head_parameters,
        activations=rank_saved_bytes + pipeline_is_last * tensor_norm_bytes,
        gathered=gathered_head_bytes,
        temporaries=pipeline_is_last
        * (
            8
            + waiting_table_bytes
            + where(
                equal(sequence_parallel, 1),
                floor_div(norm_backward_bytes, tensor_parallel),
                norm_backward_bytes,
            )
        )
        + rank_message_bytes,
    )


@RANK.place(
    "rank_cut_last_layer", phase="backward", symbol=r"_{16}^r", when="cut_kernels", measured_by=_CUT
)
def rank_cut_last_layer(
    rank_earlier_gradient_bytes,
    rank_gradients_of_head_bytes,
    rank_others_bytes,
    rank_work_activation_bytes,
    gathered_layer_bytes,
    waiting_table_bytes,
    rank_passing_bytes,
    rank_work_temporary_bytes,
    rank_layer_message_bytes,
    rank_received_at_core_bytes,
):
    """in the MLP of the last cut layer, which goes backward first"""
    return live(
        gradients=rank_earlier_gradient_bytes + rank_gradients_of_head_bytes,
        activations=rank_others_bytes + rank_work_activation_bytes,
        gathered=gathered_layer_bytes,
        temporaries=8
        + waiting_table_bytes
        + rank_passing_bytes
        + rank_work_temporary_bytes
        + rank_layer_message_bytes
        + rank_received_at_core_bytes,
    )


@RANK.place(
    "rank_cut_first_layer",
    phase="backward",
    symbol=r"_{17}^r",
    when="cut_kernels",
    measured_by=_CUT,
)
def rank_cut_first_layer(
    rank_earlier_gradient_bytes,
    rank_gradients_of_layers_bytes,
    rank_behind_bytes,
    rank_work_activation_bytes,
    gathered_layer_bytes,
    waiting_table_bytes,
    rank_passing_bytes,
    rank_work_temporary_bytes,
    rank_layer_message_bytes,
    rank_received_gradient_bytes,
):
    """in the MLP of the first cut layer, which goes backward last"""
    return live(
        gradients=rank_earlier_gradient_bytes + rank_gradients_of_layers_bytes,
        activations=rank_behind_bytes + rank_work_activation_bytes,
        gathered=gathered_layer_bytes,
        temporaries=8
        + waiting_table_bytes
        + rank_passing_bytes
        + rank_work_temporary_bytes
        + rank_layer_message_bytes
        + rank_received_gradient_bytes,
    )


# --- checkpoints of several layers ----------------------------------------------------------------


@RANK.place(
    "rank_checkpoint", phase="backward", symbol=r"_{18}^r", when="joined_layers", measured_by=_AGAIN
)
def rank_checkpoint(
    rank_earlier_gradient_bytes,
    rank_gradients_of_checkpoint_bytes,
    rank_work_gradient_bytes,
    unit_gradient_bytes,
    rank_before_bytes,
    rank_work_activation_bytes,
    gathered_layer_bytes,
    waiting_table_bytes,
    rank_passing_bytes,
    rank_work_temporary_bytes,
    rank_layer_message_bytes,
    rank_received_gradient_bytes,
):
    """when a stage's second-to-last checkpoint has been computed again and its last layer goes
    backward"""
    return live(
        gradients=rank_earlier_gradient_bytes
        + rank_gradients_of_checkpoint_bytes
        + rank_work_gradient_bytes
        + unit_gradient_bytes,
        activations=rank_before_bytes + rank_work_activation_bytes,
        gathered=gathered_layer_bytes,
        temporaries=8
        + waiting_table_bytes
        + rank_passing_bytes
        + rank_work_temporary_bytes
        + rank_layer_message_bytes
        + rank_received_gradient_bytes,
    )


@RANK.place(
    "rank_first_checkpoint",
    phase="backward",
    symbol=r"_{19}^r",
    when="joined_layers",
    measured_by=_AGAIN,
)
def rank_first_checkpoint(
    rank_earlier_gradient_bytes,
    rank_gradients_before_first_bytes,
    rank_work_gradient_bytes,
    unit_gradient_bytes,
    rank_behind_bytes,
    rank_checkpoint_layers,
    rank_layer_bytes,
    rank_work_activation_bytes,
    gathered_layer_bytes,
    waiting_table_bytes,
    rank_passing_bytes,
    rank_work_temporary_bytes,
    rank_layer_message_bytes,
    rank_received_gradient_bytes,
):
    """when the first checkpoint has been computed again, after all others"""
    return live(
        gradients=rank_earlier_gradient_bytes
        + rank_gradients_before_first_bytes
        + rank_work_gradient_bytes
        + unit_gradient_bytes,
        activations=rank_behind_bytes
        + (rank_checkpoint_layers - 1) * rank_layer_bytes
        + rank_work_activation_bytes,
        gathered=gathered_layer_bytes,
        temporaries=8
        + waiting_table_bytes
        + rank_passing_bytes
        + rank_work_temporary_bytes
        + rank_layer_message_bytes
        + rank_received_gradient_bytes,
    )


# --- under a library's kernels --------------------------------------------------------------------


@RANK.place(
    "rank_library_loss", phase="backward", symbol=r"_{20}^r", when="library_kernels", **_LIB
)
def rank_library_loss(
    rank_backward_gradient_bytes,
    rank_saved_bytes,
    pipeline_is_last,
    own_input_bytes,
    gathered_head_bytes,
    loss_logit_bytes,
    microbatch_tokens,
    tensor_vocabulary,
    tensor_parallel,
    linear_input_bytes,
):
    """under a library's kernels, in the loss: everything saved, the inputs of last norm and head,
    and the logits in all their copies; where a fused loss takes a part of the vocabulary, the
    head's whole input and its gradient"""
    return live(
        gradients=rank_backward_gradient_bytes,
        activations=rank_saved_bytes + pipeline_is_last * 2 * own_input_bytes,
        gathered=gathered_head_bytes,
        temporaries=pipeline_is_last
        * (
            loss_logit_bytes * microbatch_tokens * tensor_vocabulary
            + where(loss_logit_bytes < 3, where(tensor_parallel > 1, 2 * linear_input_bytes, 0), 0)
        ),
    )


# A layer that is computed again counts with all of its activations, the core of attention too.
@RANK.place(
    "rank_library_layer", phase="backward", symbol=r"_{21}^r", when="library_kernels", **_LIB
)
def rank_library_layer(
    rank_backward_gradient_bytes,
    rank_others_bytes,
    rank_layer_bytes,
    gathered_layer_bytes,
    rank_reducing_stage,
    gradient_element_bytes,
    rank_layer_parameters,
    linear_input_bytes,
    library_inner_bytes,
):
    """under a library's kernels, in the last layer's MLP: the gradients of its inner tensors; in
    stage 3 also the unit that is gathered ahead, and the layer's gradients twice"""
    return live(
        gradients=rank_backward_gradient_bytes,
        activations=rank_others_bytes + rank_layer_bytes,
        gathered=2 * gathered_layer_bytes,
        temporaries=linear_input_bytes
        + 2 * library_inner_bytes
        + where(rank_reducing_stage < 3, 0, 2 * gradient_element_bytes * rank_layer_parameters),
    )


@RANK.place("rank_optimizer", phase="optimizer", symbol=r"_{22}^r")
def rank_optimizer(
    rank_optimizer_bytes,
    rank_gradient_bytes,
    rank_batch_bytes,
    eager_kernels,
    rank_optimizer_temporary_bytes,
):
    """in the optimizer's step; a library updates without temporaries"""
    return live(
        optimizer=rank_optimizer_bytes,
        gradients=rank_gradient_bytes,
        activations=rank_batch_bytes,
        temporaries=eager_kernels * rank_optimizer_temporary_bytes + 4,
    )


RANK.largest(which="rank_peak_place")
RANK_TIMELINE = tuple(RANK.places)
