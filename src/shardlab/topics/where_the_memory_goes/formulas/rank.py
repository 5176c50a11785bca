"""One rank of a layout: what it holds at every place of a training step, with ZeRO, accumulation
and kernels; the peak is the largest. With stage 0 and eager PyTorch it is the peak of one GPU.
"""

# Places of a step (step.py), with three differences. States are the rank's: whole, or its shard.
# What backward has finished waits whole (stages 0 and 1) or as a shard (2 and 3). And what is whole
# only for a moment is there: in stage 3 the unit at work, in stages 1 to 3 the gradients of a unit
# or bucket, twice, while they are copied into the tensor that is reduced.
#
# Units of stage 3 are the embedding, each layer, and the head with the last norm; a tied table is
# the root's, and stays whole. t, p, c, recompute and experts divide or replace terms of single
# places: they enter as new quantities of these places, each with its chapter.

from shardlab.formulas.places import Places, live
from shardlab.formulas.registry import BOOK
from shardlab.formulas.subset import ceil_div, equal, floor_div, maximum, minimum, where

_OURS = "shardlab.zero; counted from gpt.py"
_LEDGER = "tests/where_the_memory_goes/test_rank.py::test_peak_of_a_rank"
_LIB = dict(
    source="Korthikanti et al. 2022, Table 2; Megatron-LM, theoretical_memory_usage.py",
    measured_by="tests/where_the_memory_goes/test_rank.py::test_published_layer",
)
formula = BOOK.section(source=_OURS, measured_by=_LEDGER)


# --- what lasts -----------------------------------------------------------------------------------


@formula(r"M_\text{opt}^r", "bytes")
def rank_optimizer_bytes(
    zero_optimizer_bytes, zero_stage, step_counter_bytes, step_counter_element_bytes, layers
):
    """bytes of the rank's optimizer states and step counters: one for each parameter tensor, or one
    for each unit"""
    return zero_optimizer_bytes + where(
        zero_stage < 1, step_counter_bytes, step_counter_element_bytes * (layers + 2)
    )


@formula(r"M_\text{old}^{\text{opt},r}", "bytes")
def rank_standing_optimizer_bytes(first_step, rank_optimizer_bytes):
    """bytes that the rank's optimizer holds during forward and backward: none in the first step"""
    return (1 - first_step) * rank_optimizer_bytes


@formula(r"M_\text{old}^{\text{grad},r}", "bytes")
def rank_earlier_gradient_bytes(accumulation_steps, zero_gradient_bytes):
    """bytes of the gradients that earlier microbatches left on the rank"""
    return where(accumulation_steps > 1, zero_gradient_bytes, 0)


# --- what is whole for a moment -------------------------------------------------------------------


@formula(r"\Psi_\text{table}", "parameters")
def table_parameters(vocabulary, hidden):
    """parameters of the token table"""
    return vocabulary * hidden


@formula(r"\Psi_\text{root}^r", "parameters")
def rank_root_parameters(zero_stage, tied_head, table_parameters):
    """parameters that stay whole in stage 3 while units come and go: a table that embedding and
    head share"""
    return where(zero_stage < 3, 0, tied_head * table_parameters)


@formula(r"\Psi_\text{head}^r", "parameters")
def head_unit_parameters(head_parameters, norm_parameters):
    """parameters of the head's unit: its own weight, and the last norm"""
    return head_parameters + norm_parameters


@formula(r"\Psi_\text{embed}^r", "parameters")
def embedding_unit_parameters(embedding_parameters, tied_head, zero_stage, table_parameters):
    """parameters of the embedding's unit: in stage 3 without a table that is the root's"""
    return embedding_parameters - where(zero_stage < 3, 0, tied_head * table_parameters)


@formula(r"M_\text{root}^r", "bytes")
def rank_root_bytes(rank_root_parameters, parameter_element_bytes):
    """bytes of the parameters that stay whole"""
    return parameter_element_bytes * rank_root_parameters


@formula(r"M_\ell^r", "bytes")
def gathered_layer_bytes(zero_stage, layer_parameters, parameter_element_bytes, rank_root_bytes):
    """bytes of parameters that stage 3 has whole while a layer is at work: the layer's, and the
    root's"""
    return where(zero_stage < 3, 0, parameter_element_bytes * layer_parameters + rank_root_bytes)


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
    table_parameters, hidden, feed_forward, query_key_value_size, learned_positions, max_sequence
):
    """parameters of the largest tensor, which is a bucket of its own where it is larger than one"""
    return maximum(
        table_parameters,
        hidden * feed_forward,
        hidden * query_key_value_size,
        learned_positions * max_sequence * hidden,
    )


@formula(r"\Psi_\text{bucket}", "parameters")
def rank_bucket_parameters(bucket_bytes, parameter_element_bytes, parameters):
    """parameters of a bucket of stages 1 and 2 that no tensor overfills"""
    return minimum(parameters, floor_div(bucket_bytes, parameter_element_bytes))


@formula(r"\Psi_\text{close}", "parameters")
def last_reduced_parameters(
    zero_stage,
    parameters,
    rank_bucket_parameters,
    largest_tensor_parameters,
    embedding_unit_parameters,
    table_parameters,
):
    """parameters of the bucket, or in stage 3 of the unit, that is reduced last and may be the
    largest"""
    return where(
        zero_stage < 3,
        minimum(parameters, maximum(rank_bucket_parameters, largest_tensor_parameters)),
        maximum(embedding_unit_parameters, table_parameters),
    )


@formula(r"\Psi_\text{uneven}", "parameters")
def uneven_shard_parameters(zero_stage, last_reduced_parameters, data_parallel):
    """parameters of one shard more: of what is reduced while its gradients are still there, as in
    stage 3, or where the ranks do not divide it"""
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
def open_bucket_parameters(zero_stage, rank_bucket_parameters):
    """parameters at most whose gradients stage 2 has whole because their bucket is not complete"""
    return where(equal(zero_stage, 2), rank_bucket_parameters, 0)


# --- gradients that are finished ------------------------------------------------------------------


@formula(r"G_\text{head}^r", "bytes")
def finished_head_bytes(
    tied_head, head_gradient_bytes, new_gradient_element_bytes, norm_parameters
):
    """bytes of the gradients of head and last norm, whole, when they are done"""
    return (1 - tied_head) * head_gradient_bytes + new_gradient_element_bytes * norm_parameters


@formula(r"G_\text{most}^r", "bytes")
def finished_layers_bytes(
    finished_head_bytes, layers, new_gradient_element_bytes, layer_parameters
):
    """bytes of the gradients of the head and of all layers but the first, whole, when they are
    done"""
    return finished_head_bytes + (layers - 1) * new_gradient_element_bytes * layer_parameters


@formula(r"G_\text{rest}^r", "bytes")
def finished_rest_bytes(new_gradient_element_bytes, parameters, table_parameters):
    """bytes of all gradients but the token table's, whole, when they are done"""
    return new_gradient_element_bytes * (parameters - table_parameters)


@formula(r"G_\text{open}^r", "bytes")
def open_bucket_bytes(gradient_element_bytes, open_bucket_parameters):
    """bytes at most of the gradients that stage 2 has whole because their bucket is not complete"""
    return gradient_element_bytes * open_bucket_parameters


@formula(r"G_\ell^r", "bytes")
def unit_gradient_bytes(zero_stage, accumulation_steps, gradient_element_bytes, layer_parameters):
    """bytes of a layer's new gradients beside the accumulated ones, which stages 2 and 3 have whole
    until they are reduced"""
    return where(
        zero_stage < 2,
        0,
        where(accumulation_steps > 1, gradient_element_bytes * layer_parameters, 0),
    )


@formula(r"U_\text{opt}^r", "bytes", source="torch.optim.adamw")
def rank_optimizer_temporary_bytes(
    zero_stage,
    optimizer_temporary_bytes,
    optimizer_moments,
    optimizer_mode,
    zero_shard_parameters,
    last_reduced_parameters,
    table_parameters,
    layer_parameters,
    data_parallel,
    moment_element_bytes,
):
    """bytes that the update needs beside the states: of a shard, three tensors of the largest unit
    in the loop, or all of it with foreach"""
    return where(
        zero_stage < 1,
        optimizer_temporary_bytes,
        moment_element_bytes
        * where(
            optimizer_moments > 1,
            where(
                equal(optimizer_mode, 0),
                minimum(
                    zero_shard_parameters,
                    3
                    * ceil_div(
                        where(
                            zero_stage < 3,
                            last_reduced_parameters,
                            maximum(table_parameters, layer_parameters),
                        ),
                        data_parallel,
                    ),
                ),
                where(equal(optimizer_mode, 1), zero_shard_parameters, 0),
            ),
            0,
        ),
    )


# --- the places -----------------------------------------------------------------------------------

RANK = Places(
    "rank_peak",
    r"_\text{rank}",
    "a rank of any layout needs: the most that is live at once",
    _OURS,
    _LEDGER,
    usual=dict(
        parameters="zero_parameter_bytes",
        optimizer="rank_standing_optimizer_bytes",
        gradients="rank_earlier_gradient_bytes",
        workspaces="workspace_bytes",
    ),
    letter="R",
    there="at the rank's peak",
)


@RANK.place("rank_attention", phase="forward", symbol=r"_1^r", when="eager_kernels")
def rank_attention(
    activations_at_attention_bytes,
    gathered_layer_bytes,
    keeps_scores,
    temporaries_at_attention_bytes,
):
    """in the last layer's unfused attention"""
    return live(
        activations=activations_at_attention_bytes,
        gathered=keeps_scores * gathered_layer_bytes,
        temporaries=temporaries_at_attention_bytes,
    )


@RANK.place("rank_loss", phase="backward", symbol=r"_2^r", when="eager_kernels")
def rank_loss(activations_at_loss_bytes, temporaries_at_loss_bytes):
    """in the backward of the log-softmax, when stage 3 has gathered nothing yet"""
    return live(
        activations=activations_at_loss_bytes,
        temporaries=temporaries_at_loss_bytes,
    )


@RANK.place("rank_head", phase="backward", symbol=r"_3^r", when="eager_kernels")
def rank_head(
    rank_earlier_gradient_bytes,
    gradients_at_head_work_bytes,
    activations_at_head_bytes,
    gathered_head_bytes,
    temporaries_at_head_bytes,
):
    """while the head goes backward"""
    return live(
        gradients=rank_earlier_gradient_bytes + gradients_at_head_work_bytes,
        activations=activations_at_head_bytes,
        gathered=gathered_head_bytes,
        temporaries=temporaries_at_head_bytes,
    )


@RANK.place("rank_head_reduced", phase="backward", symbol=r"_4^r", when="eager_kernels")
def rank_head_reduced(
    batch_bytes,
    mask_bytes,
    layers,
    layer_activation_bytes,
    rank_root_bytes,
    zero_stage,
    residual_bytes,
    tied_head,
    head_gradient_bytes,
    gradient_element_bytes,
    head_unit_parameters,
    data_parallel,
):
    """in stage 3, while the head's gradients are copied into the tensor that is reduced"""
    return live(
        activations=batch_bytes + mask_bytes + layers * layer_activation_bytes,
        gathered=rank_root_bytes,
        temporaries=where(
            zero_stage < 3,
            0,
            8
            + residual_bytes
            + tied_head * head_gradient_bytes
            + gradient_element_bytes
            * (2 * head_unit_parameters + ceil_div(head_unit_parameters, data_parallel)),
        ),
    )


@RANK.place("rank_last_layer", phase="backward", symbol=r"_5^r", when="eager_kernels")
def rank_last_layer(
    rank_earlier_gradient_bytes,
    finished_head_bytes,
    gradients_at_layer_work_bytes,
    unit_gradient_bytes,
    open_bucket_bytes,
    zero_stage,
    data_parallel,
    batch_bytes,
    mask_bytes,
    layers,
    layer_activation_bytes,
    activations_at_layer_work_bytes,
    gathered_layer_bytes,
    tied_head,
    head_gradient_bytes,
    residual_bytes,
    temporaries_at_layer_work_bytes,
):
    """while the last layer goes backward, the first to do so"""
    return live(
        gradients=rank_earlier_gradient_bytes
        + where(
            zero_stage < 2,
            finished_head_bytes,
            ceil_div(finished_head_bytes, data_parallel)
            + minimum(finished_head_bytes, open_bucket_bytes),
        )
        + gradients_at_layer_work_bytes
        + unit_gradient_bytes,
        activations=batch_bytes
        + mask_bytes
        + (layers - 1) * layer_activation_bytes
        + activations_at_layer_work_bytes,
        gathered=gathered_layer_bytes,
        temporaries=8
        + tied_head * head_gradient_bytes
        + residual_bytes
        + temporaries_at_layer_work_bytes,
    )


@RANK.place("rank_first_layer", phase="backward", symbol=r"_6^r", when="eager_kernels")
def rank_first_layer(
    rank_earlier_gradient_bytes,
    finished_layers_bytes,
    gradients_at_layer_work_bytes,
    unit_gradient_bytes,
    open_bucket_bytes,
    zero_stage,
    data_parallel,
    batch_bytes,
    mask_bytes,
    activations_at_layer_work_bytes,
    gathered_layer_bytes,
    tied_head,
    head_gradient_bytes,
    residual_bytes,
    temporaries_at_layer_work_bytes,
):
    """while the first layer goes backward, the last to do so"""
    return live(
        gradients=rank_earlier_gradient_bytes
        + where(
            zero_stage < 2,
            finished_layers_bytes,
            ceil_div(finished_layers_bytes, data_parallel)
            + minimum(finished_layers_bytes, open_bucket_bytes),
        )
        + gradients_at_layer_work_bytes
        + unit_gradient_bytes,
        activations=batch_bytes + mask_bytes + activations_at_layer_work_bytes,
        gathered=gathered_layer_bytes,
        temporaries=8
        + tied_head * head_gradient_bytes
        + residual_bytes
        + temporaries_at_layer_work_bytes,
    )


@RANK.place("rank_layer_reduced", phase="backward", symbol=r"_7^r", when="eager_kernels")
def rank_layer_reduced(
    rank_earlier_gradient_bytes,
    finished_head_bytes,
    batch_bytes,
    mask_bytes,
    layers,
    layer_activation_bytes,
    rank_root_bytes,
    zero_stage,
    residual_bytes,
    tied_head,
    head_gradient_bytes,
    gradient_element_bytes,
    layer_parameters,
    data_parallel,
):
    """in stage 3, while the last layer's gradients are copied into the tensor that is reduced"""
    return live(
        gradients=rank_earlier_gradient_bytes + ceil_div(finished_head_bytes, data_parallel),
        activations=batch_bytes + mask_bytes + (layers - 1) * layer_activation_bytes,
        gathered=rank_root_bytes,
        temporaries=where(
            zero_stage < 3,
            0,
            8
            + residual_bytes
            + tied_head * head_gradient_bytes
            + gradient_element_bytes
            * (2 * layer_parameters + ceil_div(layer_parameters, data_parallel)),
        ),
    )


@RANK.place("rank_embedding", phase="backward", symbol=r"_8^r", when="eager_kernels")
def rank_embedding(
    rank_earlier_gradient_bytes,
    zero_stage,
    finished_rest_bytes,
    data_parallel,
    open_bucket_bytes,
    batch_bytes,
    gathered_embedding_bytes,
    temporaries_at_embedding_bytes,
):
    """when the token table gets its gradient"""
    return live(
        gradients=rank_earlier_gradient_bytes
        + where(
            zero_stage < 2,
            finished_rest_bytes,
            ceil_div(finished_rest_bytes, data_parallel)
            + minimum(finished_rest_bytes, open_bucket_bytes),
        ),
        activations=batch_bytes,
        gathered=gathered_embedding_bytes,
        temporaries=temporaries_at_embedding_bytes,
    )


@RANK.place("rank_reduced", phase="backward", symbol=r"_9^r", when="eager_kernels")
def rank_reduced(
    zero_stage,
    gradient_element_bytes,
    parameters,
    rank_bucket_parameters,
    last_reduced_parameters,
    uneven_shard_parameters,
    rank_earlier_gradient_bytes,
    new_gradient_element_bytes,
    data_parallel,
    batch_bytes,
    rank_root_bytes,
):
    """while the last bucket's gradients, or the embedding's, are copied into the tensor that is
    reduced: the largest where the table is large"""
    return live(
        gradients=where(
            zero_stage < 2,
            gradient_element_bytes * parameters,
            rank_earlier_gradient_bytes
            + new_gradient_element_bytes
            * ceil_div(parameters - last_reduced_parameters, data_parallel),
        ),
        activations=batch_bytes,
        gathered=rank_root_bytes,
        temporaries=where(
            zero_stage < 1,
            0,
            gradient_element_bytes
            * where(
                zero_stage < 2,
                rank_bucket_parameters,
                2 * last_reduced_parameters,
            )
            + gradient_element_bytes * uneven_shard_parameters
            + 8,
        ),
    )


@RANK.place(
    "rank_library_loss", phase="backward", symbol=r"_{10}^r", when="library_kernels", **_LIB
)
def rank_library_loss(
    zero_gradient_bytes,
    library_saved_bytes,
    linear_input_bytes,
    gathered_head_bytes,
    loss_logit_bytes,
    microbatch_tokens,
    vocabulary,
):
    """under a library's kernels, in the loss: everything saved, the inputs of last norm and head,
    and the logits in all their copies"""
    return live(
        gradients=zero_gradient_bytes,
        activations=library_saved_bytes + 2 * linear_input_bytes,
        gathered=gathered_head_bytes,
        temporaries=loss_logit_bytes * microbatch_tokens * vocabulary,
    )


@RANK.place(
    "rank_library_layer", phase="backward", symbol=r"_{11}^r", when="library_kernels", **_LIB
)
def rank_library_layer(
    zero_gradient_bytes,
    library_saved_bytes,
    gathered_layer_bytes,
    zero_stage,
    gradient_element_bytes,
    layer_parameters,
    linear_input_bytes,
    inner_bytes,
):
    """under a library's kernels, in the last layer's MLP: the gradients of its inner tensors; in
    stage 3 also the unit that is fetched ahead, and the layer's gradients twice"""
    return live(
        gradients=zero_gradient_bytes,
        activations=library_saved_bytes,
        gathered=2 * gathered_layer_bytes,
        temporaries=linear_input_bytes
        + 2 * inner_bytes
        + where(zero_stage < 3, 0, 2 * gradient_element_bytes * layer_parameters),
    )


@RANK.place("rank_optimizer", phase="optimizer", symbol=r"_{12}^r")
def rank_optimizer(
    rank_optimizer_bytes,
    zero_gradient_bytes,
    batch_bytes,
    eager_kernels,
    rank_optimizer_temporary_bytes,
):
    """in the optimizer's step; a library updates without temporaries"""
    return live(
        optimizer=rank_optimizer_bytes,
        gradients=zero_gradient_bytes,
        activations=batch_bytes,
        temporaries=eager_kernels * rank_optimizer_temporary_bytes + 4,
    )


RANK.largest(which="rank_peak_place")
RANK_TIMELINE = tuple(RANK.places)
