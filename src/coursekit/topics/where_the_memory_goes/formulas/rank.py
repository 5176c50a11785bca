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
#
# A place says what is there whatever the technique. What a technique has at many places is one term
# in the technique's section below: a new technique adds its terms, and no place changes.

from functools import partial

from coursekit.formulas.places import Places, live
from coursekit.formulas.registry import BOOK
from coursekit.formulas.subset import ceil_div, equal, floor_div, maximum, minimum, where

_OURS = "shardlab.zero, shardlab.tensor_parallel, shardlab.pipelines; counted from gpt.py"
_LEDGER = "tests/where_the_memory_goes/test_rank_layouts.py::test_peak_of_a_rank"
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

# Which layers run: whole ones of eager PyTorch, parts of them, several recomputed together, or
# a library's.
eager_place = partial(RANK.place, phase="backward", when="eager_kernels")
plain_place = partial(RANK.place, phase="backward", when="plain_kernels")
cut_place = partial(RANK.place, phase="backward", when="cut_kernels", measured_by=_CUT)
joined_place = partial(RANK.place, phase="backward", when="joined_layers", measured_by=_AGAIN)
library_place = partial(RANK.place, phase="backward", when="library_kernels", **_LIB)


@plain_place("rank_attention", phase="forward", symbol=r"_1^r")
def rank_attention(q):
    """in the last layer's unfused attention"""
    return live(
        activations=q.keeps_scores * (q.rank_others_bytes + q.activations_at_scores_bytes),
        temporaries=q.keeps_scores
        * (
            where(q.accumulation_steps > 1, 4, 0)
            + q.bias_copy_bytes
            + q.copies_weights * q.residual_bytes
            + q.compute_element_bytes * q.sequence * q.sequence
            + q.temporaries_at_scores_bytes
        ),
    )


@plain_place("rank_loss", symbol=r"_2^r")
def rank_loss(q):
    """in the backward of the log-softmax, before anything is gathered"""
    return live(
        activations=q.rank_saved_bytes + q.rank_exit_bytes,
        temporaries=q.pipeline_is_last * 2 * q.logit_bytes + q.rank_scalar_bytes,
    )


@plain_place("rank_head", symbol=r"_3^r")
def rank_head(q):
    """while the head goes backward"""
    return live(
        gradients=q.rank_earlier_gradient_bytes
        + q.pipeline_is_last * q.gradients_at_head_work_bytes,
        activations=q.rank_saved_bytes + q.pipeline_is_last * q.activations_at_head_work_bytes,
        temporaries=q.pipeline_is_last * q.temporaries_at_head_work_bytes + q.rank_scalar_bytes,
    )


@eager_place("rank_head_reduced", symbol=r"_4^r")
def rank_head_reduced(q):
    """in stages 2 and 3, while the head's gradients are copied into the tensor that is reduced; in
    stage 2 if they fill a bucket"""
    return live(activations=q.rank_saved_bytes, unit=q.head_unit_parameters)


@plain_place("rank_last_layer", symbol=r"_5^r")
def rank_last_layer(q):
    """while the last layer goes backward, before all other layers"""
    return live(activations=q.rank_others_bytes, finished=q.finished_head_bytes)


@plain_place("rank_first_layer", symbol=r"_6^r")
def rank_first_layer(q):
    """while the first layer goes backward, after all other layers"""
    return live(activations=q.rank_behind_bytes, finished=q.finished_layers_bytes)


@eager_place("rank_layer_reduced", symbol=r"_7^r")
def rank_layer_reduced(q):
    """in stage 3, while the last layer's gradients are copied into the tensor that is reduced"""
    return live(
        gradients=q.rank_earlier_gradient_bytes + ceil_div(q.finished_head_bytes, q.shard_ranks),
        activations=q.rank_others_bytes,
        unit=q.rank_layer_parameters,
    )


@eager_place("rank_first_layer_reduced", symbol=r"_{23}^r")
def rank_first_layer_reduced(q):
    """in stage 3, while the first layer's gradients are copied into the tensor that is reduced"""
    return live(
        gradients=q.rank_earlier_gradient_bytes + ceil_div(q.finished_layers_bytes, q.shard_ranks),
        activations=q.rank_behind_bytes,
        unit=q.rank_layer_parameters,
    )


@eager_place("rank_embedding", symbol=r"_8^r")
def rank_embedding(q):
    """when the token table gets its gradient"""
    return live(
        finished=q.finished_rest_bytes,
        activations=q.rank_behind_bytes - q.pipeline_is_first * q.tensor_mask_bytes,
        temporaries=q.rank_table_work_bytes,
    )


@eager_place("rank_reduced", symbol=r"_9^r")
def rank_reduced(q):
    """while the last bucket's gradients, or the embedding's, are copied into the tensor that is
    reduced: the peak where the table is large"""
    return live(
        gradients=where(
            q.rank_reducing_stage < 2,
            q.gradient_element_bytes
            * where(
                equal(q.reduced_last_is_fullest, 1),
                q.last_reduced_parameters
                + ceil_div(q.rank_parameters - q.last_reduced_parameters, q.shard_ranks),
                q.rank_parameters,
            ),
            q.rank_earlier_gradient_bytes
            + q.new_gradient_element_bytes * ceil_div(q.rank_reduced_parameters, q.shard_ranks)
            + q.gradient_element_bytes * q.rank_open_parameters,
        ),
        activations=q.rank_batch_bytes,
        temporaries=where(
            q.zero_stage < 1,
            0,
            q.gradient_element_bytes
            * where(
                q.rank_reducing_stage < 2,
                where(
                    equal(q.reduced_last_is_fullest, 1),
                    q.last_reduced_parameters,
                    q.first_reduced_parameters,
                ),
                2 * q.last_reduced_parameters,
            )
            + q.gradient_element_bytes * q.uneven_shard_parameters
            + 8,
        ),
    )


@eager_place("rank_tied_sum", symbol=r"_{10}^r")
def rank_tied_sum(q):
    """at the end of a pipeline's step, when its ends add up the gradients of a tied table: the
    other end's gradient, and two sums"""
    return live(
        gradients=q.rank_backward_gradient_bytes,
        activations=q.rank_batch_bytes,
        temporaries=where(
            q.pipeline_parallel > 1,
            where(
                q.pipeline_ends > 0,
                3 * q.tied_head * q.gradient_element_bytes * q.rank_table_parameters
                + q.pipeline_is_last * 4 * q.microbatches,
                0,
            ),
            0,
        ),
    )


# --- of a layer that tensor parallelism has cut ---------------------------------------------------


@cut_place("rank_cut_attention", phase="forward", symbol=r"_{11}^r")
def rank_cut_attention(q):
    """in the last layer's unfused attention, for the rank's heads: about the rank's part of the
    bytes for all heads"""
    return live(
        activations=q.keeps_scores
        * (
            q.rank_others_bytes
            + q.tensor_norm_bytes
            + q.tensor_input_bytes
            + ceil_div(q.scored_bytes + q.score_bytes + q.weighted_bytes, q.tensor_parallel)
        ),
        temporaries=q.keeps_scores
        * (
            q.compute_element_bytes * q.sequence * q.sequence
            + ceil_div(q.temporaries_at_scores_bytes, q.tensor_parallel)
        ),
    )


@cut_place("rank_scatter", phase="forward", symbol=r"_{12}^r")
def rank_scatter(q):
    """in the last layer's reduce-scatter: its output twice (once for a single sequence), the rank's
    own tokens of the sum, and the MLP's input, which a variable still holds"""
    return live(
        activations=q.rank_saved_bytes,
        temporaries=q.sequence_parallel
        * (
            (where(q.microbatch > 1, 2, 1) + q.regather) * q.tensor_message_bytes
            + floor_div(q.tensor_message_bytes, q.tensor_parallel)
        ),
    )


@cut_place("rank_cut_loss", phase="forward", symbol=r"_{13}^r")
def rank_cut_loss(q):
    """in the loss over parts of the vocabulary: the logits are still there beside the exponentials,
    which are not yet saved; 16-bit logits also as fp32"""
    return live(
        activations=q.rank_saved_bytes
        + q.pipeline_is_last * (q.tensor_norm_bytes + q.tensor_input_bytes),
        temporaries=q.pipeline_is_last
        * (
            q.tensor_logit_bytes
            + q.microbatch_tokens
            * (
                q.tensor_vocabulary
                * (q.compute_element_bytes + where(q.compute_element_bytes < 4, 4, 0))
                + 29
            )
            + where(
                q.pipeline_parallel > 1,
                4 * (q.microbatches - 1 + (q.rank_held_microbatches - 1)),
                where(q.accumulation_steps > 1, 4, 0),
            )
        ),
    )


@cut_place("rank_cut_head", symbol=r"_{14}^r")
def rank_cut_head(q):
    """in the product of a part of the head: the gradients of its weight and of its input, which is
    gathered again with sequence parallelism"""
    return live(
        activations=q.rank_saved_bytes
        + q.pipeline_is_last
        * (
            q.tensor_norm_bytes
            + q.tensor_input_bytes
            + where(q.compute_element_bytes < 4, 0, q.tensor_logit_bytes)
        ),
        temporaries=q.pipeline_is_last
        * (
            q.compute_element_bytes
            * q.tensor_vocabulary
            * (q.hidden + where(q.compute_element_bytes < 4, q.microbatch_tokens, 0))
            + (1 + q.regather) * q.tensor_message_bytes
        )
        + q.rank_scalar_bytes,
    )


@cut_place("rank_cut_norm", symbol=r"_{15}^r")
def rank_cut_norm(q):
    """in the last norm, with the gradient of a part of the head"""
    return live(
        gradients=q.rank_earlier_gradient_bytes + q.rank_new_element_bytes * q.rank_head_parameters,
        activations=q.rank_saved_bytes + q.pipeline_is_last * q.tensor_norm_bytes,
        temporaries=q.rank_scalar_bytes
        + q.pipeline_is_last
        * (
            q.waiting_table_bytes
            + where(
                equal(q.sequence_parallel, 1),
                floor_div(q.norm_backward_bytes, q.tensor_parallel),
                q.norm_backward_bytes,
            )
        ),
    )


@cut_place("rank_cut_last_layer", symbol=r"_{16}^r")
def rank_cut_last_layer(q):
    """in the MLP of the last cut layer, which goes backward first"""
    return live(activations=q.rank_others_bytes, finished=q.finished_head_bytes)


@cut_place("rank_cut_first_layer", symbol=r"_{17}^r")
def rank_cut_first_layer(q):
    """in the MLP of the first cut layer, which goes backward last"""
    return live(activations=q.rank_behind_bytes, finished=q.finished_layers_bytes)


# --- checkpoints of several layers ----------------------------------------------------------------


@joined_place("rank_checkpoint", symbol=r"_{18}^r")
def rank_checkpoint(q):
    """when a stage's second-to-last checkpoint has been recomputed and its last layer goes
    backward"""
    return live(activations=q.rank_before_bytes, finished=q.finished_checkpoint_bytes)


@joined_place("rank_first_checkpoint", symbol=r"_{19}^r")
def rank_first_checkpoint(q):
    """when the first checkpoint has been recomputed, after all others"""
    return live(activations=q.rank_behind_bytes, finished=q.finished_before_first_bytes)


# --- under a library's kernels --------------------------------------------------------------------


@library_place("rank_library_loss", symbol=r"_{20}^r")
def rank_library_loss(q):
    """in the loss, under a library's kernels: everything saved, the inputs of last norm and head,
    and the logits in all their copies; where a fused loss takes a part of the vocabulary, the
    head's whole input and its gradient"""
    return live(
        gradients=q.rank_backward_gradient_bytes,
        activations=q.rank_saved_bytes + q.pipeline_is_last * 2 * q.own_input_bytes,
        temporaries=q.pipeline_is_last
        * (
            q.loss_logit_bytes * q.tile_tokens * q.tensor_vocabulary
            + where(
                q.loss_logit_bytes < 3, where(q.tensor_parallel > 1, 2 * q.linear_input_bytes, 0), 0
            )
        ),
    )


# A layer that is recomputed counts with all of its activations, the core of attention too.
@library_place("rank_library_layer", symbol=r"_{21}^r")
def rank_library_layer(q):
    """in the last layer's MLP, under a library's kernels: the gradients of its inner tensors; with
    experts also those of the experts' inputs four times, as they are sorted, sent back and sorted
    again; in stage 3 also the unit that is gathered ahead, and the layer's gradients twice"""
    return live(
        gradients=q.rank_backward_gradient_bytes,
        activations=q.rank_others_bytes + q.rank_layer_bytes,
        temporaries=q.linear_input_bytes
        + ceil_div(
            where(q.experts > 0, q.expert_load_percent * q.experts_per_token, 100)
            * 2
            * q.library_inner_bytes
            + 4 * q.expert_load_percent * q.experts_per_token * q.linear_input_bytes,
            100,
        ),
    )


@RANK.place("rank_optimizer", phase="optimizer", symbol=r"_{22}^r")
def rank_optimizer(q):
    """in the optimizer's step; a library updates without temporaries"""
    return live(
        optimizer=q.rank_optimizer_bytes,
        gradients=q.rank_gradient_bytes,
        activations=q.rank_batch_bytes,
        temporaries=q.eager_kernels * q.rank_optimizer_temporary_bytes + 4,
    )


# --- terms: a layer at work, wherever it is -------------------------------------------------------

AT_ATTENTION = ("rank_attention", "rank_cut_attention")
AT_HEAD = ("rank_head", "rank_cut_head", "rank_cut_norm")
AT_LAST_LAYER = ("rank_last_layer", "rank_cut_last_layer")
AT_CHECKPOINT = ("rank_checkpoint", "rank_first_checkpoint")
AT_FIRST_LAYER = ("rank_first_layer", "rank_cut_first_layer", *AT_CHECKPOINT)
AT_LAYER = (*AT_LAST_LAYER, *AT_FIRST_LAYER)


@RANK.term(*AT_LAYER)
def layer_at_work(q):
    """its tensors, the gradient that it passes on, and a tied head's, which waits"""
    return live(
        activations=q.rank_work_kept_bytes,
        temporaries=q.rank_scalar_bytes
        + q.waiting_table_bytes
        + q.rank_passing_bytes
        + q.rank_work_again_bytes
        + q.rank_work_temporary_bytes,
    )


# A recomputed tensor comes and goes in one backward: a temporary, as in the ledger.
@RANK.term(*AT_ATTENTION, *AT_LAST_LAYER, "rank_library_layer")
def layers_of_the_last_checkpoint(q):
    return live(temporaries=q.rank_again_bytes)


@RANK.term(*AT_CHECKPOINT)
def layers_of_a_checkpoint(q):
    return live(temporaries=(q.rank_checkpoint_layers - 1) * q.rank_layer_bytes)


@RANK.term(*AT_LAYER)
def gradients_of_the_layer_at_work(q):
    return live(gradients=q.rank_work_gradient_bytes)


@RANK.term("rank_last_layer", "rank_first_layer", *AT_CHECKPOINT)
def gradients_of_its_unit(q):
    """in stages 2 and 3, the whole ones beside those of earlier microbatches"""
    return live(gradients=q.unit_gradient_bytes)


@RANK.term("rank_cut_last_layer", "rank_cut_first_layer")
def bias_of_its_unit(q):
    return live(
        temporaries=where(q.zero_stage < 3, 0, q.gradient_element_bytes * q.biases * q.hidden)
    )


# --- terms: ZeRO ----------------------------------------------------------------------------------


@RANK.term("rank_head_reduced")
def lone_head_reduced(q):
    """in stage 2, the gradient of a head that fills a bucket, and a copy (NCCL: none)"""
    return live(
        gradients=q.gradient_element_bytes * q.lone_head_parameters,
        temporaries=where(
            q.lone_head_parameters > 0,
            q.rank_scalar_bytes
            + q.rank_passing_bytes
            + q.gradient_element_bytes * q.lone_head_parameters,
            0,
        ),
    )


@RANK.term("rank_embedding", *AT_LAYER)
def gradients_of_units_before(q):
    """`finished` are the bytes, whole; from stage 2 on the open bucket and a shard of the others"""
    return live(
        gradients=where(
            q.rank_reducing_stage < 2,
            q.finished,
            where(q.new_gradient_element_bytes > 0, 1, 0)
            * ceil_div(maximum(q.finished - q.open_bucket_bytes, 0), q.shard_ranks)
            + minimum(q.finished, q.open_bucket_bytes),
        )
    )


@RANK.term(*AT_ATTENTION)
def layer_gathered_for_scores(q):
    return live(gathered=q.keeps_scores * q.gathered_layer_bytes)


@RANK.term("rank_scatter", *AT_LAYER)
def layer_gathered(q):
    return live(gathered=q.gathered_layer_bytes)


@RANK.term("rank_library_loss", *AT_HEAD)
def head_gathered(q):
    return live(gathered=q.gathered_head_bytes)


@RANK.term("rank_embedding")
def embedding_gathered(q):
    return live(gathered=q.gathered_embedding_bytes)


@RANK.term("rank_head_reduced", "rank_layer_reduced", "rank_first_layer_reduced")
def unit_reduced(q):
    """gradients of the `unit`, twice, and its shard; nothing before stage 3"""
    return live(
        temporaries=where(
            q.zero_stage < 3,
            0,
            8
            + q.rank_passing_bytes
            + q.waiting_table_bytes
            + q.gradient_element_bytes * (2 * q.unit + ceil_div(q.unit, q.shard_ranks)),
        )
    )


@RANK.term("rank_head_reduced", "rank_layer_reduced", "rank_first_layer_reduced", "rank_reduced")
def root_gathered(q):
    return live(gathered=q.rank_root_bytes)


@RANK.term("rank_library_layer")
def library_unit(q):
    """the unit that is gathered ahead, and the layer's gradients twice"""
    return live(
        gathered=2 * q.gathered_layer_bytes,
        temporaries=where(
            q.rank_reducing_stage < 3, 0, 2 * q.gradient_element_bytes * q.rank_layer_parameters
        ),
    )


@RANK.term("rank_library_layer")
def weight_in_16_bits(q):
    """a frozen matrix of four bits, for one product"""
    return live(temporaries=q.dequantised_bytes)


# --- terms: pipelines -----------------------------------------------------------------------------


@RANK.term(*AT_ATTENTION)
def messages_at_scores(q):
    return live(temporaries=q.keeps_scores * q.rank_message_bytes)


@RANK.term("rank_loss", *AT_HEAD, "rank_embedding")
def messages(q):
    return live(temporaries=q.rank_message_bytes)


@RANK.term("rank_cut_loss", "rank_scatter")
def messages_in_a_forward(q):
    return live(temporaries=q.rank_forward_message_bytes)


@RANK.term(*AT_LAYER)
def messages_in_a_layer(q):
    return live(temporaries=q.rank_layer_message_bytes)


@RANK.term(*AT_LAST_LAYER)
def received_in_the_last_layer(q):
    return live(temporaries=q.rank_received_at_core_bytes)


@RANK.term(*AT_FIRST_LAYER)
def received_in_the_first_layer(q):
    return live(temporaries=q.rank_received_gradient_bytes)


RANK.largest(which="rank_peak_place")
RANK_TIMELINE = tuple(RANK.places)


class WhatIsSetAside(
    BOOK.section(
        source="the most that published runs reserved beyond their peak: SimuMax v1.2, on B200s",
        measured_by="tests/where_the_memory_goes/test_published_peaks.py::test_what_is_set_aside",
    )
):
    def rank_reserve_bytes(q):
        r"""M_\text{res}^r | bytes | bytes to set aside for what the allocator holds beyond the peak
        of a library's tensors: a share of the peak, which is larger with experts and largest where
        ranks share sequences"""
        return (
            q.library_kernels
            * where(q.context_parallel > 1, 93, where(q.experts > 0, 70, 66))
            * ceil_div(q.rank_peak_bytes, 1000)
        )


class WhatTheTensorsDoNotHold(
    BOOK.section(
        source="the context as recorded on an H100 (account.row); ml-engineering@744d01e"
        " training/performance/README.md (1.45 GiB with NCCL), NVIDIA/nccl issues 964 (688 MiB for"
        " a group of A100s) and 1685 (3.28 GB for an all-to-all of H100s)",
        measured_by="tests/where_the_memory_goes/test_published_peaks.py"
        "::test_what_no_tensor_holds",
    )
):
    def rank_context_bytes(q):
        r"""M_\text{ctx} | bytes | bytes of the CUDA context, with the kernels that a step loads"""
        return 787_283_968

    def rank_groups(q):
        r"""n_\text{grp} | count | groups of ranks in which this one talks"""
        return (
            where(q.data_parallel > 1, 1, 0)
            + where(q.tensor_parallel > 1, 1, 0)
            + where(q.pipeline_parallel > 1, 1, 0)
            + where(q.context_parallel > 1, 1 - q.exchanges_heads, 0)
        )

    def rank_communicator_bytes(q):
        r"""M_\text{nccl}^r | bytes | bytes of NCCL's buffers: its own, and those of each group; an
        all-to-all, of experts or of a sequence's heads, connects all ranks with all"""
        return (
            835_505_357 * minimum(q.rank_groups, 1)
            + 721_420_288 * q.rank_groups
            + 3_280_000_000 * maximum(where(q.expert_parallel > 1, 1, 0), q.exchanges_heads)
        )

    def rank_needed_bytes(q):
        r"""M_\text{need}^r | bytes | bytes that a rank needs: its peak, what is set aside, and what
        no tensor holds"""
        return (
            q.rank_peak_bytes
            + q.rank_reserve_bytes
            + q.rank_context_bytes
            + q.rank_communicator_bytes
        )
