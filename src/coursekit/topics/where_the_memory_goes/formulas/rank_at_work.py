"""The bytes of a rank for a part of its step: units that are whole for a moment, gradients that are
finished, tensors that come and go in a layer at work. rank.py adds them up, place by place.
"""

# Units of stage 3 are the embedding, each layer, and the head with the last norm; a tied table is
# the root's, and stays whole.

from coursekit.formulas.registry import BOOK
from coursekit.formulas.subset import ceil_div, choose, equal, floor_div, maximum, minimum, where

_OURS = "shardlab.zero, shardlab.tensor_parallel, shardlab.pipelines; counted from gpt.py"
_LEDGER = "tests/where_the_memory_goes/test_rank_layouts.py::test_peak_of_a_rank"
_CUT = "tests/where_the_memory_goes/test_rank_layouts.py::test_peak_of_a_tensor_parallel_rank"
_AGAIN = "tests/where_the_memory_goes/test_rank_layouts.py::test_peak_of_a_layout_that_recomputes"


class AtWork(BOOK.section(source=_OURS, measured_by=_LEDGER)):
    # --- kernels ----------------------------------------------------------------------------------
    def plain_kernels(q):
        r"""1_\text{plain} | count | 1 where eager PyTorch runs whole layers"""
        return where(q.tensor_parallel > 1, 0, q.eager_kernels)

    @BOOK.own(measured_by=_CUT)
    def cut_kernels(q):
        r"""1_\text{cut} | count | 1 where eager PyTorch runs parts of layers, which tensor
        parallelism has cut"""
        return where(q.tensor_parallel > 1, q.eager_kernels, 0)

    @BOOK.own(measured_by=_AGAIN)
    def joined_layers(q):
        r"""1_\text{join} | count | 1 where eager PyTorch recomputes several layers of a stage
        together"""
        return where(q.rank_checkpoint_layers > 1, q.eager_kernels, 0)

    # --- what lasts -------------------------------------------------------------------------------
    @BOOK.own(source="Rajbhandari et al. 2020 (ZeRO), section 5")
    def rank_standing_optimizer_bytes(q):
        r"""M_\text{old}^{\text{opt},r} | bytes | bytes that the rank's optimizer holds during
        forward and backward: none in the first step"""
        return (1 - q.first_step) * q.rank_optimizer_bytes

    def rank_earlier_gradient_bytes(q):
        r"""M_\text{old}^{\text{grad},r} | bytes | bytes of the gradients that earlier microbatches
        left on the rank"""
        return where(
            q.accumulation_steps > 1, (1 - q.rank_fullest_first) * q.rank_backward_gradient_bytes, 0
        )

    # --- what is whole for a moment ---------------------------------------------------------------
    def rank_root_parameters(q):
        r"""\Psi_\text{root}^r | parameters | parameters that stay whole in stage 3 while units come
        and go: a table that embedding and head share"""
        return where(q.zero_stage < 3, 0, q.rank_tied_head * q.rank_table_parameters)

    def embedding_unit_parameters(q):
        r"""\Psi_\text{own}^r | parameters | parameters of the embedding's unit: in stage 3 without
        the table, if the table belongs to the root"""
        return q.rank_embedding_parameters - where(
            q.zero_stage < 3, 0, q.rank_tied_head * q.rank_table_parameters
        )

    def rank_root_bytes(q):
        r"""M_\text{root}^r | bytes | bytes of the parameters that stay whole"""
        return q.parameter_element_bytes * q.rank_root_parameters

    def gathered_layer_bytes(q):
        r"""M_\ell^r | bytes | bytes of parameters that stage 3 has whole while a layer is at work:
        the layer's, and the root's"""
        return where(
            q.zero_stage < 3,
            0,
            q.parameter_element_bytes * q.rank_layer_parameters + q.rank_root_bytes,
        )

    def gathered_head_bytes(q):
        r"""M_\text{head}^r | bytes | bytes of parameters that stage 3 has whole while the head is
        at work"""
        return where(
            q.zero_stage < 3,
            0,
            q.parameter_element_bytes * q.head_unit_parameters + q.rank_root_bytes,
        )

    def gathered_embedding_bytes(q):
        r"""M_\text{embed}^r | bytes | bytes of parameters that stage 3 has whole while the
        embedding is at work"""
        return where(
            q.zero_stage < 3,
            0,
            q.parameter_element_bytes * q.embedding_unit_parameters + q.rank_root_bytes,
        )

    def largest_tensor_parameters(q):
        r"""\Psi_\text{big} | parameters | parameters of the largest tensor, which gets a bucket of
        its own if it is larger than a bucket"""
        return maximum(
            q.rank_table_parameters,
            q.hidden * q.tensor_feed_forward,
            floor_div(q.hidden * q.query_key_value_size, q.tensor_parallel),
            q.learned_positions * q.max_sequence * q.hidden,
        )

    def half_bucket_parameters(q):
        r"""\Psi_\text{half} | parameters | most parameters of a tensor that travels with others in
        stages 1 and 2: half a bucket"""
        return floor_div(q.bucket_bytes, 2 * q.parameter_element_bytes)

    def lone_table_parameters(q):
        r"""\Psi_\text{tok} | parameters | parameters of the rank's part of a token table, or of a
        head, if it travels alone"""
        return where(q.rank_table_parameters > q.half_bucket_parameters, q.rank_table_parameters, 0)

    def lone_layer_parameters(q):
        r"""\Psi_\text{wide} | parameters | parameters of a layer's matrices that travel alone"""
        return (
            where(
                q.hidden * q.query_key_value_size > q.tensor_parallel * q.half_bucket_parameters,
                floor_div(q.hidden * q.query_key_value_size, q.tensor_parallel),
                0,
            )
            + where(
                q.hidden * q.query_size > q.tensor_parallel * q.half_bucket_parameters,
                floor_div(q.hidden * q.query_size, q.tensor_parallel),
                0,
            )
            + (2 + q.gated_mlp)
            * where(
                q.hidden * q.tensor_feed_forward > q.half_bucket_parameters,
                q.hidden * q.tensor_feed_forward,
                0,
            )
        )

    def rank_bucket_parameters(q):
        r"""\Psi_\text{bucket} | parameters | parameters of a bucket of stages 1 and 2 that several
        tensors share"""
        return minimum(
            maximum(
                q.rank_parameters
                - (
                    q.rank_apart_parameters
                    + q.rank_layers * q.lone_layer_parameters
                    + (q.pipeline_is_first + q.pipeline_is_last * (1 - q.rank_tied_head))
                    * q.lone_table_parameters
                ),
                0,
            ),
            floor_div(q.bucket_bytes, q.parameter_element_bytes),
        )

    def last_reduced_parameters(q):
        r"""\Psi_\text{close} | parameters | parameters of the bucket, or in stage 3 of the unit,
        that is reduced last and may be the largest"""
        return minimum(
            q.rank_parameters,
            where(
                q.zero_stage < 3,
                maximum(q.rank_bucket_parameters, q.largest_tensor_parameters),
                maximum(q.embedding_unit_parameters, q.rank_table_parameters),
            ),
        )

    def rank_open_parameters(q):
        r"""\Psi_\text{wait} | parameters | parameters whose gradients stage 2 still has whole when
        the last bucket of cut parameters is reduced: those that travel with the positions, whose
        gradient comes later. They are those that all tensor-parallel ranks have, or the bucket
        behind a table that travels alone"""
        return where(
            equal(q.rank_reducing_stage, 2),
            q.pipeline_is_first
            * q.learned_positions
            * where(
                q.tensor_parallel > 1,
                q.rank_same_parameters,
                where(q.lone_table_parameters > 0, q.rank_bucket_parameters, 0),
            ),
            0,
        )

    def rank_reduced_parameters(q):
        r"""\Psi_\text{gone} | parameters | parameters whose gradients are reduced before the last
        bucket is"""
        return q.rank_parameters - (q.last_reduced_parameters + q.rank_open_parameters)

    def first_reduced_parameters(q):
        r"""\Psi_\text{first} | parameters | parameters of the bucket that stage 1 reduces first: a
        head of its own may be larger than a bucket"""
        return maximum(q.rank_bucket_parameters, q.rank_head_parameters)

    def lone_head_parameters(q):
        r"""\Psi_\text{alone} | parameters | parameters of a head that fills a bucket of stage 2: it
        is reduced while all layers wait"""
        return where(
            equal(q.rank_reducing_stage, 2),
            where(q.rank_head_parameters < q.rank_bucket_parameters, 0, q.rank_head_parameters),
            0,
        )

    def reduced_last_is_fullest(q):
        r"""1_\text{close} | count | 1 if stage 1 holds more while it reduces the last bucket, such
        as a large table, than while it reduces the first, when all gradients are whole"""
        return where(
            2 * q.last_reduced_parameters
            + ceil_div(q.rank_parameters - q.last_reduced_parameters, q.shard_ranks)
            > q.rank_parameters + q.first_reduced_parameters,
            1,
            0,
        )

    def uneven_shard_parameters(q):
        r"""\Psi_\text{uneven} | parameters | parameters of one shard more: the shard of a tensor
        that is reduced while its gradients are still there, as in stage 3, or that the ranks do not
        divide"""
        return where(
            q.zero_stage < 3,
            where(
                equal(
                    q.shard_ranks * floor_div(q.last_reduced_parameters, q.shard_ranks),
                    q.last_reduced_parameters,
                ),
                0,
                ceil_div(q.last_reduced_parameters, q.shard_ranks),
            ),
            ceil_div(q.last_reduced_parameters, q.shard_ranks),
        )

    def open_bucket_parameters(q):
        r"""\Psi_\text{open} | parameters | most parameters whose gradients stage 2 has whole
        because their bucket is not complete"""
        return where(equal(q.rank_reducing_stage, 2), q.rank_bucket_parameters, 0)

    # --- gradients that are finished --------------------------------------------------------------
    def rank_new_element_bytes(q):
        r"""\beta_\text{new}^r | bytes | bytes that an element of a finished gradient takes: none
        when the gradient is added to an earlier one, which in stage 2 is a shard"""
        return where(
            equal(q.rank_reducing_stage, 2),
            q.gradient_element_bytes,
            where(
                equal(q.rank_fullest_first, 1),
                q.gradient_element_bytes,
                q.new_gradient_element_bytes,
            ),
        )

    def waiting_table_bytes(q):
        r"""G_\text{tied}^r | bytes | bytes of a tied head's gradient, which waits for the
        embedding's"""
        return q.rank_tied_head * q.gradient_element_bytes * q.rank_table_parameters

    def finished_head_bytes(q):
        r"""G_\text{head}^r | bytes | bytes of the gradients of head and last norm, whole, when they
        are done"""
        return q.rank_new_element_bytes * q.head_unit_parameters

    def finished_layers_bytes(q):
        r"""G_\text{most}^r | bytes | bytes of the gradients of the head and of all layers but the
        first, whole, when they are done"""
        return (
            q.finished_head_bytes
            + (q.rank_layers - 1) * q.rank_new_element_bytes * q.rank_layer_parameters
        )

    def finished_rest_bytes(q):
        r"""G_\text{rest}^r | bytes | bytes of all gradients but the token table's, whole, when they
        are done"""
        return q.rank_new_element_bytes * (
            q.rank_parameters - q.pipeline_is_first * q.rank_table_parameters
        )

    def open_bucket_bytes(q):
        r"""G_\text{open}^r | bytes | most bytes of the gradients that stage 2 has whole because
        their bucket is not complete"""
        return q.gradient_element_bytes * q.open_bucket_parameters

    def done_layer_parameters(q):
        r"""\Psi_\text{done} | parameters | parameters of a layer whose gradients are done where the
        layer's backward needs most: one number for each place of that backward, in order"""
        return choose(
            q.layer_work_place,
            0,
            0,
            q.hidden * (q.feed_forward + q.biases),
            q.mlp_done_parameters,
            q.mlp_done_parameters,
            q.mlp_parameters,
            q.attention_side_parameters,
            q.attention_side_parameters,
            q.mlp_side_parameters + q.attention_parameters,
            q.attention_side_parameters,
        )

    def unit_gradient_bytes(q):
        r"""G_\ell^r | bytes | bytes of a layer's new gradients beside the accumulated ones, which
        stages 2 and 3 have whole until they are reduced"""
        return where(
            q.rank_reducing_stage < 2,
            0,
            where(q.accumulation_steps > 1, q.gradient_element_bytes * q.done_layer_parameters, 0),
        )

    # --- what comes and goes ----------------------------------------------------------------------
    @BOOK.own(source="torch.autograd")
    def rank_table_work_bytes(q):
        r"""U_\text{embed}^r | bytes | bytes at work when the token table gets its gradient: a tied
        table then has two gradients and their sum"""
        return q.pipeline_is_first * (
            8
            + q.gradient_element_bytes * q.rank_table_parameters
            + maximum(
                q.waiting_table_bytes
                + where(q.tensor_parallel > 1, q.tensor_message_bytes, q.residual_bytes),
                2 * q.waiting_table_bytes,
            )
        )

    @BOOK.own(measured_by=_CUT)
    def cut_layer_work_bytes(q):
        r"""U_\text{cut}^r | bytes | bytes at work in the backward of a layer that tensor
        parallelism has cut: in the MLP's second product or, with a gate, between the two products,
        when three gradients of the inner size are there"""
        return maximum(
            where(equal(q.sequence_parallel, 1), q.tensor_message_bytes, 0)
            + q.has_dropout * q.rank_passing_bytes
            + q.compute_element_bytes * q.tensor_feed_forward * (q.microbatch_tokens + q.hidden),
            q.gated_mlp
            * q.compute_element_bytes
            * q.tensor_feed_forward
            * (2 * q.microbatch_tokens + q.hidden),
        )

    @BOOK.own(measured_by=_AGAIN)
    def cut_core_second_run_bytes(q):
        r"""W_\text{core}^{\text{again},r} | bytes | bytes of a cut layer while the core of its
        unfused attention is computed a second time: about the rank's part of the bytes for all
        heads, beside the tensors that are whole. A single head's queries, keys and values are
        multiplied in place, without copies"""
        return q.keeps_scores * (
            q.tensor_norm_bytes
            + q.tensor_input_bytes
            + q.compute_element_bytes * q.sequence * q.sequence
            + ceil_div(
                q.scored_bytes
                + q.score_bytes
                + q.weighted_bytes
                + where(
                    q.heads > q.tensor_parallel,
                    q.temporaries_at_scores_bytes + (1 - q.has_dropout) * q.query_bytes,
                    q.temporaries_at_scores_bytes - 2 * q.query_bytes,
                )
                + q.new_gradient_element_bytes * q.attention_side_parameters,
                q.tensor_parallel,
            )
        )

    @BOOK.own(measured_by=_AGAIN)
    def cut_core_kept_bytes(q):
        r"""A_\text{kept}^{\text{core},r} | bytes | bytes that a cut layer has kept when it goes
        backward, if the core of its attention is recomputed: all but the mask, which is done
        first"""
        return q.tensor_core_recomputed_bytes - q.tensor_mask_bytes

    @BOOK.own(measured_by=_AGAIN)
    def rank_work_activation_bytes(q):
        r"""A_\text{work}^r | bytes | bytes that a layer at work has kept or recomputed; only
        the kept bytes, if just the core of its attention is recomputed"""
        return where(
            q.tensor_parallel > 1,
            where(
                equal(q.recompute_policy, 1),
                q.cut_core_kept_bytes,
                q.rank_layer_bytes - q.tensor_mask_bytes,
            ),
            where(
                equal(q.recompute_policy, 1),
                q.core_recomputed_layer_bytes,
                q.activations_at_layer_work_bytes,
            ),
        )

    @BOOK.own(measured_by=_AGAIN)
    def rank_work_kept_bytes(q):
        r"""A_\text{kept}^r | bytes | bytes that a layer at work has kept since its forward"""
        return where(
            q.recompute_policy < 3, q.rank_work_activation_bytes, q.rank_waiting_layer_bytes
        )

    @BOOK.own(measured_by=_AGAIN)
    def rank_work_again_bytes(q):
        r"""U_\text{again}^r | bytes | bytes that a layer at work has because it is recomputed"""
        return q.rank_work_activation_bytes - q.rank_work_kept_bytes

    @BOOK.own(measured_by=_AGAIN)
    def rank_work_gradient_bytes(q):
        r"""G_\text{work}^r | bytes | bytes of the gradients that a layer at work has finished at
        its fullest place: of a cut layer, the bias that all ranks have, which a unit of stage 3
        keeps for itself"""
        return where(
            q.tensor_parallel > 1,
            where(q.zero_stage < 3, q.rank_new_element_bytes * q.biases * q.hidden, 0),
            where(equal(q.recompute_policy, 1), 0, q.gradients_at_layer_work_bytes),
        )

    @BOOK.own(source="torch.autograd", measured_by=_AGAIN)
    def early_bias_bytes(q):
        r"""U_\text{bias} | bytes | bytes of the gradient of the MLP's last bias where the layer is
        recomputed: its product's input, of which nobody else has a copy, is gone before that
        gradient comes. A new gradient stays, as in a unit of stage 3"""
        return where(
            q.recompute_policy < 3 + floor_div(q.zero_stage, 3),
            0,
            where(
                q.rank_new_element_bytes > 0,
                0,
                where(
                    equal(q.layer_work_place, 2), q.biases * q.compute_element_bytes * q.hidden, 0
                ),
            ),
        )

    @BOOK.own(measured_by=_AGAIN)
    def rank_work_temporary_bytes(q):
        r"""U_\text{work}^r | bytes | bytes that come and go in a layer at its fullest place; if the
        core of attention is recomputed, the core and the gradients that are done by then"""
        return where(
            q.tensor_parallel > 1,
            where(
                equal(q.recompute_policy, 1),
                maximum(
                    q.cut_layer_work_bytes, q.cut_core_second_run_bytes - q.cut_core_kept_bytes
                ),
                q.cut_layer_work_bytes,
            ),
            where(
                equal(q.recompute_policy, 1),
                q.core_recomputed_work_bytes - q.core_recomputed_layer_bytes,
                q.temporaries_at_layer_work_bytes - q.early_bias_bytes,
            ),
        )

    @BOOK.own(measured_by=_AGAIN)
    def finished_checkpoint_bytes(q):
        r"""G_\text{ck}^r | bytes | bytes of the gradients of the head and of a stage's last
        checkpoint, whole, when they are done"""
        return (
            q.finished_head_bytes
            + q.rank_last_checkpoint_layers * q.rank_new_element_bytes * q.rank_layer_parameters
        )

    @BOOK.own(measured_by=_AGAIN)
    def finished_before_first_bytes(q):
        r"""G_\text{first}^r | bytes | bytes of the gradients of the head and of all layers but the
        first checkpoint's, whole, when they are done"""
        return (
            q.finished_head_bytes
            + (q.rank_layers - q.rank_checkpoint_layers)
            * q.rank_new_element_bytes
            * q.rank_layer_parameters
        )

    def largest_update_parameters(q):
        r"""\Psi_\text{upd}^r | parameters | parameters that the update of a shard takes at once in
        the loop: the rank's share of the last bucket, or in stage 3 of the largest unit"""
        return ceil_div(
            where(
                q.zero_stage < 3,
                q.last_reduced_parameters,
                maximum(q.rank_table_parameters, q.rank_layer_parameters),
            ),
            q.shard_ranks,
        )

    @BOOK.own(source="torch.optim.adamw")
    def rank_update_parameters(q):
        r"""\Psi_\text{pile}^r | parameters | parameters of the rank's shard that the update takes
        at once: all, or, of an optimizer with master copies, a pile"""
        return minimum(
            q.rank_shard_parameters,
            where(
                q.master_element_bytes > 0,
                maximum(
                    q.largest_update_parameters,
                    minimum(floor_div(q.rank_shard_parameters, 3), 33_554_432),
                ),
                q.rank_shard_parameters,
            ),
        )

    @BOOK.own(source="torch.optim.adamw")
    def rank_shard_temporary_bytes(q):
        r"""U_\text{cut}^{\text{opt},r} | bytes | bytes that the update of a shard, or of a part of
        a model, needs besides the states: three tensors of the largest unit in the loop, or all
        that foreach updates at once; for parts of a model, two tensors or all parts"""
        return q.moment_element_bytes * where(
            q.optimizer_moments > 1,
            where(
                equal(q.optimizer_mode, 0),
                where(
                    q.zero_stage < 1,
                    minimum(q.rank_parameters, 2 * q.largest_tensor_parameters),
                    minimum(q.rank_shard_parameters, 3 * q.largest_update_parameters),
                ),
                where(
                    equal(q.optimizer_mode, 1),
                    where(q.zero_stage < 1, q.rank_parameters, q.rank_update_parameters),
                    0,
                ),
            ),
            0,
        )

    @BOOK.own(source="torch.optim.adamw")
    def rank_optimizer_temporary_bytes(q):
        r"""U_\text{opt}^r | bytes | bytes that the update needs besides the states; with master
        copies also the fp32 gradients of a pile"""
        return where(
            maximum(q.tensor_parallel * q.pipeline_parallel, 1 + q.zero_stage) < 2,
            q.optimizer_temporary_bytes,
            q.rank_shard_temporary_bytes + q.gradient_copy_element_bytes * q.rank_update_parameters,
        )
