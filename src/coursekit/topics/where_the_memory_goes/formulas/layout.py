"""The share of one rank of a layout: its part of the parameters, among d x t x p ranks with ZeRO;
the layers of its stages, and the microbatches that wait in these stages.

On one rank all of it is the whole: t = p = 1 is the model of one GPU.
"""

# tensor_* are quantities of tensor parallelism and pipeline_* those of pipelines, each from the
# chapter of its own. What recomputation keeps of a layer that waits is rank_waiting_layer_bytes;
# what a layer at work needs stays as it is.

from coursekit.formulas.registry import BOOK
from coursekit.formulas.subset import ceil_div, equal, floor_div, minimum, shard_of, where

_OURS = "counted from gpt.py, shardlab.tensor_parallel, shardlab.pipelines and shardlab.zero"
_COUNTED = "tests/where_the_memory_goes/test_rank_layouts.py::test_parameters_of_a_rank"
_LEDGER = "tests/where_the_memory_goes/test_rank_layouts.py::test_peak_of_a_stage"
formula = BOOK.section(source=_OURS, measured_by=_COUNTED)

BOOK.given(
    r"""
shorter_ends | L_\text{less} | count, from 0, usually 0 | layers that the first and the last stage
    have less than each other stage, beside the embedding and the head
"""
)


@BOOK.rule(
    "microbatches = {microbatches} beside accumulation_steps = {accumulation_steps}: a pipeline"
    " accumulates its microbatches, so give one of them, or the same number for both.",
    marks="microbatches",
)
def a_pipeline_accumulates_its_microbatches(
    microbatches, accumulation_steps, pipeline_parallel, rank_in_flight
):
    return equal(where(pipeline_parallel > 1, microbatches, accumulation_steps), accumulation_steps)


@BOOK.rule(
    "zero_stage = {zero_stage} with pipeline_parallel = {pipeline_parallel}: this book's pipelines"
    " compose with stages 0 to 2; ask for other kernels, or for another stage.",
    marks="zero_stage",
    library_kernels=0,
)
def our_pipelines_keep_parameters_whole(
    zero_stage, pipeline_parallel, library_kernels, rank_shard_parameters
):
    return where(library_kernels > 0, 0, where(pipeline_parallel > 1, zero_stage, 0)) < 3


@BOOK.rule(
    "compute_element_bytes = {compute_element_bytes} beside parameter_element_bytes ="
    " {parameter_element_bytes} with tensor_parallel = {tensor_parallel}: what autocast copies is"
    " counted for whole layers of eager PyTorch; take a recipe of one type, or other kernels.",
    marks="compute_element_bytes",
    library_kernels=0,
)
def parts_of_layers_are_of_one_type(
    compute_element_bytes,
    parameter_element_bytes,
    tensor_parallel,
    library_kernels,
    copies_weights,
    rank_layer_bytes,
):
    return equal(where(library_kernels > 0, 0, where(tensor_parallel > 1, copies_weights, 0)), 0)


@BOOK.rule(
    "shorter_ends = {shorter_ends} with {pipeline_stages} stages of layers = {layers}: the stages"
    " between the ends would not be equal; give 0, or a number of stages that divides layers + 2 x"
    " shorter_ends.",
    marks="shorter_ends",
    shorter_ends=0,
)
def stages_between_are_equal(shorter_ends, pipeline_stages, layers, rank_stage_layers):
    return equal(
        where(
            shorter_ends > 0,
            pipeline_stages * floor_div(layers + 2 * shorter_ends, pipeline_stages),
            layers,
        ),
        where(shorter_ends > 0, layers + 2 * shorter_ends, layers),
    )


@BOOK.rule(
    "shorter_ends = {shorter_ends} of {middle_stage_layers} layers in a stage: the first and the"
    " last stage need at least one layer.",
    marks="shorter_ends",
    shorter_ends=0,
)
def shorter_ends_have_a_layer(shorter_ends, middle_stage_layers, rank_parameters):
    return shorter_ends < middle_stage_layers


@BOOK.rule(
    "shorter_ends = {shorter_ends} with {pipeline_chunks} stages on a rank: the ledger counts the"
    " stages of a rank as equal; give 0 with interleaved stages.",
    marks="shorter_ends",
    shorter_ends=0,
)
def stages_of_a_rank_are_equal(shorter_ends, pipeline_chunks, rank_stage_layers):
    return where(pipeline_chunks > 1, shorter_ends, 0) < 1


# --- parameters -----------------------------------------------------------------------------------


@formula(r"1_\text{tied}^r", "count")
def rank_tied_head(tied_head, pipeline_parallel):
    """1 if embedding and head share one table on the rank; 0 where a pipeline has a copy at each
    end"""
    return where(pipeline_parallel > 1, 0, tied_head)


@formula(r"L_\text{middle}", "count", measured_by=_LEDGER)
def middle_stage_layers(shorter_ends, layers, pipeline_stages, stage_layers):
    """layers of a stage that is not at an end of the model"""
    return where(
        shorter_ends > 0, ceil_div(layers + 2 * shorter_ends, pipeline_stages), stage_layers
    )


@formula(r"L_\text{stage}^r", "count", measured_by=_LEDGER)
def rank_stage_layers(middle_stage_layers, shorter_ends, pipeline_ends):
    """layers of each of the rank's stages, less what the ends of the model on the rank are
    shorter"""
    return middle_stage_layers - shorter_ends * pipeline_ends


@formula(r"L_r", "count")
def rank_layers(pipeline_chunks, rank_stage_layers):
    """layers of the fullest rank's stages"""
    return pipeline_chunks * rank_stage_layers


@formula(r"n_\text{mlp}^r", "count")
def layer_mlps(experts):
    """MLPs in a layer: one, or the experts"""
    return where(experts > 0, experts, 1)


@formula(r"\Psi_\text{cut}^r", "parameters")
def rank_cut_layer_parameters(
    hidden,
    query_size,
    key_value_size,
    query_key_value_biases,
    key_biases,
    tensor_parallel,
    layer_mlps,
    gated_mlp,
    biases,
    tensor_feed_forward,
):
    """parameters of a layer that tensor parallelism cuts, so that each rank has different ones:
    weights, and biases of linear layers cut by columns; each rank has a part of every expert"""
    return (
        floor_div(
            2 * hidden * (query_size + key_value_size)
            + query_key_value_biases * (query_size + key_value_size)
            + key_biases * key_value_size,
            tensor_parallel,
        )
        + layer_mlps * ((2 + gated_mlp) * hidden + biases * (1 + gated_mlp)) * tensor_feed_forward
    )


@formula(r"\Psi_\text{whole}^r", "parameters")
def rank_whole_layer_parameters(
    norms_per_layer,
    norm_parameters,
    biases,
    layer_mlps,
    hidden,
    query_key_norms,
    head_columns,
    experts,
):
    """parameters of a layer that every tensor-parallel rank has: norms, biases of linear layers cut
    by rows, the router"""
    return (
        norms_per_layer * norm_parameters
        + biases * (1 + layer_mlps) * hidden
        + 2 * query_key_norms * head_columns
        + experts * hidden
    )


@formula(r"\Psi_\ell^r", "parameters")
def rank_layer_parameters(rank_cut_layer_parameters, rank_whole_layer_parameters):
    """parameters of one layer on the rank"""
    return rank_cut_layer_parameters + rank_whole_layer_parameters


@formula(r"\Psi_\text{table}^r", "parameters")
def rank_table_parameters(tensor_vocabulary, hidden):
    """parameters of the rank's part of a token table, or of a head"""
    return tensor_vocabulary * hidden


@formula(r"\Psi_\text{embed}^r", "parameters")
def rank_embedding_parameters(
    pipeline_is_first, rank_table_parameters, learned_positions, max_sequence, hidden
):
    """parameters of the embedding on the rank: none after the first stage"""
    return pipeline_is_first * (rank_table_parameters + learned_positions * max_sequence * hidden)


@formula(r"\Psi_\text{head}^r", "parameters")
def rank_head_parameters(pipeline_is_last, rank_tied_head, rank_table_parameters):
    """parameters that the head adds on the rank: none before the last stage, or where the head
    shares the embedding's table"""
    return pipeline_is_last * (1 - rank_tied_head) * rank_table_parameters


@formula(r"\Psi_\text{end}^r", "parameters")
def head_unit_parameters(rank_head_parameters, pipeline_is_last, norm_parameters):
    """parameters of the head's unit: its own weight, and the last norm"""
    return rank_head_parameters + pipeline_is_last * norm_parameters


@formula(r"\Psi_r^\text{whole}", "parameters")
def rank_parameters(
    rank_layers, rank_layer_parameters, rank_embedding_parameters, head_unit_parameters
):
    """parameters that the rank computes with, before ZeRO shards them"""
    return rank_layers * rank_layer_parameters + rank_embedding_parameters + head_unit_parameters


@formula(r"\Psi_r^\text{shard}", "parameters")
def rank_shard_parameters(rank_parameters, data_parallel, rank):
    """elements of the rank's shard of its parameters"""
    return shard_of(rank_parameters, data_parallel, rank)


_TE = "Transformer Engine, module/base.py; Megatron-LM, tensor_parallel/layers.py"
_PEAKS = "tests/where_the_memory_goes/test_published_peaks.py::test_published_peaks"


@formula(r"M_\text{dummy}^r", "bytes", source=_TE, measured_by=_PEAKS)
def rank_dummy_gradient_bytes(
    dummy_weight_gradients,
    parameter_element_bytes,
    hidden,
    query_size,
    key_value_size,
    tensor_parallel,
    gated_mlp,
    tensor_feed_forward,
    pipeline_is_last,
    rank_table_parameters,
):
    """bytes of the gradients without values that stand in for those of weights: one for each shape
    of a layer's four weights, which all layers share, and one of the head's"""
    return (
        dummy_weight_gradients
        * parameter_element_bytes
        * (
            floor_div(2 * hidden * (query_size + key_value_size), tensor_parallel)
            + (2 + gated_mlp) * hidden * tensor_feed_forward
            + pipeline_is_last * rank_table_parameters
        )
    )


@formula(r"M_\text{work}^r", "bytes", source=_TE, measured_by=_PEAKS)
def rank_workspace_bytes(workspace_bytes, rank_dummy_gradient_bytes):
    """bytes that products keep from step to step: their scratch memory, and the gradients without
    values"""
    return workspace_bytes + rank_dummy_gradient_bytes


# --- states ---------------------------------------------------------------------------------------
formula = BOOK.section(source="Rajbhandari et al. 2020 (ZeRO), section 5", measured_by=_COUNTED)


@formula(r"M_\text{param}^r", "bytes")
def rank_parameter_bytes(
    zero_stage, rank_parameters, rank_shard_parameters, parameter_element_bytes
):
    """bytes of the parameters that the rank keeps: from stage 3 on, those of its shard"""
    return parameter_element_bytes * where(zero_stage < 3, rank_parameters, rank_shard_parameters)


@formula(r"M_\text{grad}^r", "bytes")
def rank_gradient_bytes(zero_stage, rank_parameters, rank_shard_parameters, gradient_element_bytes):
    """bytes of the gradients that the rank has when they are reduced: from stage 2 on, those of
    its shard"""
    return gradient_element_bytes * where(zero_stage < 2, rank_parameters, rank_shard_parameters)


@formula(r"z_\text{back}", "count")
def rank_reducing_stage(pipeline_parallel, zero_stage):
    """ZeRO stage that decides how backward treats gradients: a pipeline reduces once, at the end of
    a step, and keeps whole gradients until then"""
    return where(pipeline_parallel > 1, minimum(zero_stage, 1), zero_stage)


@formula(r"M_\text{back}^r", "bytes")
def rank_backward_gradient_bytes(
    rank_reducing_stage, rank_parameters, rank_shard_parameters, gradient_element_bytes
):
    """bytes of the gradients that the rank has when backward is done"""
    return gradient_element_bytes * where(
        rank_reducing_stage < 2, rank_parameters, rank_shard_parameters
    )


@formula(r"M_\text{sharded}^{\text{opt},r}", "bytes")
def rank_moment_bytes(
    zero_stage,
    rank_parameters,
    rank_shard_parameters,
    master_element_bytes,
    optimizer_moments,
    moment_element_bytes,
):
    """bytes of the optimizer states that the rank keeps: the master copy, if the recipe has one,
    and the moments"""
    return (master_element_bytes + optimizer_moments * moment_element_bytes) * where(
        zero_stage < 1, rank_parameters, rank_shard_parameters
    )


@formula(r"M_\text{opt}^r", "bytes")
def rank_optimizer_bytes(
    rank_moment_bytes,
    zero_stage,
    step_counter_bytes,
    rank_layers,
    layers,
    step_counter_element_bytes,
):
    """bytes of the rank's optimizer states and step counters: one counter for each unit, or for
    each parameter tensor, of which the rank has about its layers' share"""
    return rank_moment_bytes + where(
        zero_stage < 1,
        where(
            rank_layers < layers,
            ceil_div(step_counter_bytes * rank_layers, layers),
            step_counter_bytes,
        ),
        step_counter_element_bytes * (rank_layers + 2),
    )


# --- what a layer keeps ---------------------------------------------------------------------------
formula = BOOK.section(source=_OURS, measured_by=_LEDGER)


@formula(r"A_\ell^r", "bytes")
def rank_layer_bytes(
    library_kernels,
    library_layer_bytes,
    tensor_parallel,
    tensor_layer_bytes,
    layer_activation_bytes,
):
    """bytes that one layer keeps for backward on the rank, by kernels and tensor-parallel degree"""
    return where(
        library_kernels > 0,
        library_layer_bytes,
        where(tensor_parallel > 1, tensor_layer_bytes, layer_activation_bytes),
    )


@BOOK.rule(
    "recompute_policy = {recompute_policy} under autocast: the copies of weights that autocast"
    " keeps beside a checkpoint are not counted; give 0, or a recipe without autocast.",
    marks="recompute_policy",
)
def ranks_recompute_without_autocast(recompute_policy, copies_weights, rank_waiting_layer_bytes):
    return equal(minimum(recompute_policy, copies_weights) + 0 * rank_waiting_layer_bytes, 0)


@BOOK.rule(
    "recompute_policy = {recompute_policy} under a library's kernels: a choice by operators is not"
    " counted there; give 0, 1 for the core of attention, or 3 for whole layers.",
    marks="recompute_policy",
    library_kernels=0,
)
def libraries_recompute_cores_or_layers(
    recompute_policy, library_kernels, rank_waiting_layer_bytes
):
    return equal(where(equal(recompute_policy, 2), library_kernels, 0), 0)


_AGAIN = "tests/where_the_memory_goes/test_rank_layouts.py::test_peak_of_a_layout_that_recomputes"


@formula(r"A_\ell^{\text{again},r}", "bytes", measured_by=_AGAIN)
def rank_recomputed_layer_bytes(
    library_kernels,
    recompute_policy,
    library_layer_bytes,
    library_core_bytes,
    own_input_bytes,
    tensor_parallel,
    tensor_kept_layer_bytes,
    kept_layer_bytes,
):
    """bytes that one layer keeps on the rank when it is computed again, by policy; under a
    library's kernels, all but the core of attention, or the layer's input"""
    return where(
        library_kernels > 0,
        where(recompute_policy < 3, library_layer_bytes - library_core_bytes, own_input_bytes),
        where(tensor_parallel > 1, tensor_kept_layer_bytes, kept_layer_bytes),
    )


@formula(r"A_\ell^\text{wait}", "bytes")
def rank_waiting_layer_bytes(recompute_policy, rank_layer_bytes, rank_recomputed_layer_bytes):
    """bytes that one layer keeps from its forward to its backward: everything that backward needs,
    or the tensors from which the layer is computed again"""
    return where(recompute_policy < 1, rank_layer_bytes, rank_recomputed_layer_bytes)


@formula(r"n_\text{ck}^r", "count", measured_by=_AGAIN)
def rank_checkpoint_layers(recompute_policy, rank_stage_layers, recompute_every):
    """layers of a stage that are computed again together: one, or those of a checkpoint where whole
    layers are recomputed"""
    return where(recompute_policy < 3, 1, minimum(rank_stage_layers, recompute_every))


@formula(r"n_\text{stage}^r", "count", measured_by=_AGAIN)
def rank_stage_checkpoints(rank_stage_layers, rank_checkpoint_layers):
    """checkpoints of a stage: as many as its layers, if each layer has one"""
    return ceil_div(rank_stage_layers, rank_checkpoint_layers)


@formula(r"n_\text{last}^r", "count", measured_by=_AGAIN)
def rank_last_checkpoint_layers(rank_stage_layers, rank_stage_checkpoints, rank_checkpoint_layers):
    """layers of a stage's last checkpoint, which goes backward first and may have fewer layers"""
    return rank_stage_layers - rank_checkpoint_layers * (rank_stage_checkpoints - 1)


@formula(r"A_\text{stage}^r", "bytes")
def rank_stage_bytes(rank_stage_checkpoints, rank_waiting_layer_bytes):
    """bytes that a microbatch keeps in one stage while it waits for its backward"""
    return rank_stage_checkpoints * rank_waiting_layer_bytes


@formula(r"A_\text{top}^r", "bytes")
def rank_entrance_bytes(pipeline_is_first, tensor_mask_bytes, tensor_parallel, microbatch_tokens):
    """bytes that a microbatch keeps in the embedding: the mask after it, and with tensor
    parallelism the row of each token (8) and whether the rank has that row (1)"""
    return pipeline_is_first * (
        tensor_mask_bytes + where(tensor_parallel > 1, 9 * microbatch_tokens, 0)
    )


@formula(r"A_\text{exit}^r", "bytes")
def rank_exit_bytes(
    pipeline_is_last,
    tensor_parallel,
    tensor_norm_bytes,
    tensor_input_bytes,
    tensor_logit_bytes,
    microbatch_tokens,
    head_activation_bytes,
    logit_bytes,
):
    """bytes that a microbatch keeps in the last norm, the head and the loss, on the rank that has
    them"""
    return pipeline_is_last * where(
        tensor_parallel > 1,
        tensor_norm_bytes + tensor_input_bytes + tensor_logit_bytes + 9 * microbatch_tokens,
        head_activation_bytes + logit_bytes,
    )


@formula(r"A_\text{step}^r", "bytes")
def rank_batch_bytes(batch_bytes, pipeline_parallel, microbatches):
    """bytes of tokens and targets: a rank of a pipeline gets those of all its microbatches at
    once"""
    return batch_bytes * where(pipeline_parallel > 1, microbatches, 1)


# --- microbatches that wait -----------------------------------------------------------------------


@formula(r"m_\text{most}^r", "count")
def rank_in_flight(pipeline_parallel, pipeline_in_flight):
    """most microbatches that the rank has at once, added up over its stages"""
    return where(pipeline_parallel > 1, pipeline_in_flight, 1)


@formula(r"1_\text{once}", "count")
def rank_waits_for_all(microbatches, rank_in_flight, pipeline_chunks):
    """1 if all microbatches wait at the same time, as in GPipe, so that no gradients are there when
    the first goes backward"""
    return where(
        microbatches * pipeline_chunks > rank_in_flight, 0, where(rank_in_flight > 1, 1, 0)
    )


@formula(r"G_\text{once}", "bytes", measured_by=_AGAIN)
def rank_new_checkpoint_gradient_bytes(
    rank_reducing_stage,
    rank_checkpoint_layers,
    rank_stage_checkpoints,
    gradient_element_bytes,
    rank_layer_parameters,
    rank_last_checkpoint_layers,
):
    """bytes of the first microbatch's own gradients when a stage's second-to-last checkpoint goes
    backward; 0 if there is none"""
    return where(
        rank_reducing_stage < 2,
        where(
            rank_checkpoint_layers > 1,
            where(
                rank_stage_checkpoints > 1,
                gradient_element_bytes * rank_layer_parameters * rank_last_checkpoint_layers,
                0,
            ),
            0,
        ),
        0,
    )


@formula(r"1_\text{later}", "count")
def rank_fullest_later(
    rank_waits_for_all,
    rank_backward_gradient_bytes,
    rank_stage_bytes,
    rank_entrance_bytes,
    rank_exit_bytes,
    rank_hands_on,
    rank_passing_bytes,
    rank_new_checkpoint_gradient_bytes,
):
    """1 if a rank where all microbatches wait is fuller when the second microbatch goes backward
    than when the first does: the gradients take more bytes than the first microbatch's activations
    (the ends of the model among them), output and own new gradients together"""
    return where(
        rank_backward_gradient_bytes
        > rank_stage_bytes
        + rank_entrance_bytes
        + rank_exit_bytes
        + rank_hands_on * rank_passing_bytes
        + rank_new_checkpoint_gradient_bytes,
        rank_waits_for_all,
        0,
    )


@formula(r"1_\text{first}^r", "count")
def rank_fullest_first(rank_waits_for_all, rank_fullest_later):
    """1 if a rank where all microbatches wait is fullest when the first microbatch goes backward"""
    return rank_waits_for_all - rank_fullest_later


@formula(r"m_r", "count")
def rank_held_microbatches(rank_in_flight, rank_fullest_later):
    """microbatches of a stage that the rank has when it is fullest"""
    return rank_in_flight - rank_fullest_later


@formula(r"L_\text{held}^r", "count")
def rank_held_layers(rank_held_microbatches, rank_stage_checkpoints):
    """layers of one microbatch, or checkpoints of layers, that wait on the rank when it is
    fullest"""
    return rank_held_microbatches * rank_stage_checkpoints


@formula(r"A_\text{exits}^r", "bytes")
def rank_waiting_exit_bytes(pipeline_schedule, rank_held_microbatches, rank_exit_bytes):
    """bytes of last norm, head and loss of the microbatches that wait beside the one at work; 0 in
    the interleaved schedule, where each microbatch goes backward at once"""
    return where(equal(pipeline_schedule, 4), 0, rank_held_microbatches - 1) * rank_exit_bytes


@formula(r"A_\text{saved}^r", "bytes")
def rank_saved_bytes(
    rank_batch_bytes,
    rank_held_microbatches,
    rank_entrance_bytes,
    rank_waiting_exit_bytes,
    rank_stage_bytes,
):
    """bytes that wait on the rank when a backward begins: the batch, and the bytes of embedding and
    layers in each microbatch"""
    return (
        rank_batch_bytes
        + rank_waiting_exit_bytes
        + rank_held_microbatches * (rank_entrance_bytes + rank_stage_bytes)
    )


@formula(r"A_\text{others}^r", "bytes")
def rank_others_bytes(
    rank_batch_bytes,
    rank_held_microbatches,
    rank_entrance_bytes,
    rank_waiting_exit_bytes,
    rank_held_layers,
    rank_waiting_layer_bytes,
    rank_last_checkpoint_layers,
    rank_layer_bytes,
):
    """bytes that wait beside the last layer of the microbatch at work; in a checkpoint of several
    layers, with the other layers that were computed again"""
    return (
        rank_batch_bytes
        + rank_waiting_exit_bytes
        + rank_held_microbatches * rank_entrance_bytes
        + (rank_held_layers - 1) * rank_waiting_layer_bytes
        + (rank_last_checkpoint_layers - 1) * rank_layer_bytes
    )


@formula(r"A_\text{behind}^r", "bytes")
def rank_behind_bytes(
    rank_batch_bytes,
    rank_held_microbatches,
    rank_entrance_bytes,
    rank_waiting_exit_bytes,
    rank_stage_bytes,
):
    """bytes that wait when the microbatch at work is back at its first layer: the bytes of the
    other microbatches"""
    return (
        rank_batch_bytes
        + rank_waiting_exit_bytes
        + rank_entrance_bytes
        + (rank_held_microbatches - 1) * (rank_entrance_bytes + rank_stage_bytes)
    )


@formula(r"A_\text{ck}^r", "bytes", measured_by=_AGAIN)
def rank_before_bytes(
    rank_batch_bytes,
    rank_held_microbatches,
    rank_entrance_bytes,
    rank_waiting_exit_bytes,
    rank_stage_checkpoints,
    rank_held_layers,
    rank_waiting_layer_bytes,
    rank_checkpoint_layers,
    rank_layer_bytes,
):
    """bytes that wait beside the last layer of a stage's second-to-last checkpoint, which has all
    of its layers; 0 if there is none"""
    return where(
        rank_stage_checkpoints > 1,
        rank_batch_bytes
        + rank_waiting_exit_bytes
        + rank_held_microbatches * rank_entrance_bytes
        + (rank_held_layers - 2) * rank_waiting_layer_bytes
        + (rank_checkpoint_layers - 1) * rank_layer_bytes,
        0,
    )


@formula(r"A_\text{pass}^r", "bytes")
def rank_passing_bytes(residual_element_bytes, tensor_own_tokens, hidden):
    """bytes that one stage passes to the next: the residual stream of the rank's tokens"""
    return residual_element_bytes * tensor_own_tokens * hidden


@formula(r"m_\text{all}^r", "count")
def rank_microbatches(microbatches, pipeline_chunks):
    """microbatches that pass through a rank's stages in a step"""
    return microbatches * pipeline_chunks


@formula(r"1_\text{on}^r", "count")
def rank_hands_on(pipeline_chunks, pipeline_is_last):
    """1 if a stage of the rank sends its output, as every stage but the last does"""
    return where(pipeline_chunks > 1, 1, 1 - pipeline_is_last)


@formula(r"1_\text{back}^r", "count")
def rank_hands_back(pipeline_chunks, pipeline_is_first):
    """1 if a stage of the rank sends gradients, as every stage but the first does"""
    return where(pipeline_chunks > 1, 1, 1 - pipeline_is_first)


@formula(r"m_\text{done}^r", "count")
def rank_sent_gradients(rank_microbatches, rank_in_flight, pipeline_parallel, rank_hands_on):
    """sent gradients that stay until the neighbour has received them: the neighbour is as many
    messages behind as there are ranks"""
    return minimum(rank_microbatches - rank_in_flight, pipeline_parallel + (1 - rank_hands_on))


@formula(r"m_\text{out}^r", "count")
def rank_kept_outputs(rank_held_microbatches, pipeline_chunks, pipeline_is_last):
    """outputs that the rank keeps until their backward; the output of the last stage is the loss"""
    return rank_held_microbatches - where(pipeline_chunks > 1, pipeline_is_last, 0)


@formula(r"U_\text{pass}^r", "bytes")
def rank_message_bytes(
    pipeline_parallel,
    rank_passing_bytes,
    rank_hands_on,
    rank_kept_outputs,
    rank_held_microbatches,
    rank_hands_back,
    rank_sent_gradients,
):
    """bytes that a pipeline adds: outputs, which stay until their backward; the gradient that is on
    its way for the next output; gradients that were sent"""
    return where(
        pipeline_parallel > 1,
        rank_passing_bytes
        * (
            rank_hands_on * (rank_kept_outputs + where(rank_held_microbatches > 1, 1, 0))
            + rank_hands_back * rank_sent_gradients
        ),
        0,
    )


@formula(r"U_\text{within}^r", "bytes", measured_by=_AGAIN)
def rank_layer_message_bytes(
    rank_message_bytes, pipeline_chunks, pipeline_is_last, rank_passing_bytes
):
    """bytes that a pipeline adds while a layer goes backward: with several stages on a rank, the
    last rank is fullest in a stage that sends its output"""
    return rank_message_bytes + where(pipeline_chunks > 1, pipeline_is_last * rank_passing_bytes, 0)


@formula(r"U_\text{held}^r", "bytes", measured_by=_AGAIN)
def rank_received_gradient_bytes(
    pipeline_parallel, rank_stage_checkpoints, rank_hands_on, rank_passing_bytes
):
    """bytes of the gradient that a stage received, which stays until the stage's first layer is
    done, beside the gradient that the layers pass on"""
    return where(
        pipeline_parallel > 1,
        where(rank_stage_checkpoints > 1, rank_hands_on * rank_passing_bytes, 0),
        0,
    )


@formula(r"U_\text{held}^{\text{core},r}", "bytes", measured_by=_AGAIN)
def rank_received_at_core_bytes(
    pipeline_parallel, recompute_policy, keeps_scores, rank_hands_on, rank_passing_bytes
):
    """bytes of the received gradient in a stage's last layer, while the core of its unfused
    attention is computed again"""
    return where(
        pipeline_parallel > 1,
        where(equal(recompute_policy, 1), keeps_scores * rank_hands_on * rank_passing_bytes, 0),
        0,
    )
