"""The share of one rank of a layout: its part of the parameters, among d x t x p ranks with ZeRO;
the layers of its stages, and the microbatches that wait in these stages.

On one rank all of it is the whole: t = p = 1 is the model of one GPU.
"""

# tensor_* are quantities of tensor parallelism and pipeline_* those of pipelines, each from the
# chapter of its own. What recomputation keeps of a layer that waits is rank_waiting_layer_bytes;
# what a layer at work needs stays as it is.

from coursekit.formulas.registry import BOOK
from coursekit.formulas.subset import ceil_div, equal, floor_div, maximum, minimum, shard_of, where

_OURS = "counted from gpt.py, shardlab.tensor_parallel, shardlab.pipelines and shardlab.zero"
_COUNTED = "tests/where_the_memory_goes/test_rank_layouts.py::test_parameters_of_a_rank"
_LEDGER = "tests/where_the_memory_goes/test_rank_layouts.py::test_peak_of_a_stage"
_TE = "Transformer Engine, module/base.py; Megatron-LM, tensor_parallel/layers.py"
_PEAKS = "tests/where_the_memory_goes/test_published_peaks.py::test_published_peaks"

BOOK.given_beside(__file__)


class Share(BOOK.section(source=_OURS, measured_by=_COUNTED)):
    # --- parameters -------------------------------------------------------------------------------
    def rank_tied_head(q):
        r"""1_\text{tied}^r | count | 1 if embedding and head share one table on the rank; 0 where a
        pipeline has a copy at each end"""
        return where(q.pipeline_parallel > 1, 0, q.tied_head)

    @BOOK.own(source="nanotron@01de8d9, models/base.py", measured_by=_PEAKS, choice=True, least=1)
    def first_stage_layers(q):
        r"""L_\text{fullest} | count | layers of the first stage, the most that one has: an even
        share, or where stages are cut by their products, with the head's, up to the layer that
        exceeds the share"""
        return where(
            q.cut_by_products * q.pipeline_parallel > 1,
            minimum(
                q.layers,
                1
                + floor_div(
                    q.matrix_parameters,
                    q.pipeline_stages * floor_div(q.stack_matrix_parameters, q.layers),
                ),
            ),
            q.stage_layers,
        )

    @BOOK.own(source="definition", measured_by=_PEAKS)
    def filled_layers(q):
        r"""L_\text{filled} | count | layers of the pipeline, if all stages had as many as
        the first"""
        return q.pipeline_stages * q.first_stage_layers

    @BOOK.own(source="definition", measured_by=_PEAKS)
    def last_stage_less(q):
        r"""L_\text{last}^- | count | layers that the last stage has less than the first, where
        stages are filled from the first on; the last has one at least"""
        return where(
            q.first_stage_layers > q.stage_layers,
            minimum(q.first_stage_layers - 1, q.filled_layers - q.layers),
            0,
        )

    @BOOK.own(measured_by=_LEDGER)
    def middle_stage_layers(q):
        r"""L_\text{middle} | count | layers of a stage that is not at an end of the model"""
        return where(
            q.shorter_ends > 0,
            ceil_div(q.layers + 2 * q.shorter_ends, q.pipeline_stages),
            q.first_stage_layers,
        )

    @BOOK.own(measured_by=_LEDGER)
    def rank_stage_layers(q):
        r"""L_\text{stage}^r | count | layers of the rank's fullest stage: of several, of one that
        is not at an end of the model"""
        return q.middle_stage_layers - where(
            q.pipeline_chunks > 1,
            0,
            q.shorter_ends * q.pipeline_ends + q.pipeline_is_last * q.last_stage_less,
        )

    def rank_equal_layers(q):
        r"""L_\text{equal}^r | count | layers of the rank's stages, if all are as its fullest"""
        return q.pipeline_chunks * q.rank_stage_layers

    def rank_layers(q):
        """L_r | count | layers of the rank's stages, less what the ends of the model on the rank
        are shorter"""
        return q.rank_equal_layers - where(
            q.pipeline_chunks > 1, q.shorter_ends * q.pipeline_ends, 0
        )

    def layer_mlps(q):
        r"""n_\text{mlp}^r | count | MLPs in a layer on the rank: one, or its experts"""
        return where(q.experts > 0, ceil_div(q.experts, q.expert_parallel), 1)

    def rank_cut_attention_parameters(q):
        r"""\Psi_\text{attn}^r | parameters | parameters of attention that tensor parallelism cuts:
        those of heads"""
        return floor_div(
            where(
                q.key_value_latent > 0,
                q.latent_head_parameters,
                2 * q.hidden * (q.query_size + q.key_value_size),
            )
            + q.query_key_value_biases * (q.query_size + q.key_value_size)
            + q.key_biases * q.key_value_size,
            q.tensor_parallel,
        )

    def rank_mlp_parameters(q):
        r"""\Psi_\text{mlp}^r | parameters | parameters of an MLP, or of an expert, that tensor
        parallelism cuts"""
        return ((2 + q.gated_mlp) * q.hidden + q.biases * (1 + q.gated_mlp)) * q.tensor_feed_forward

    def rank_cut_layer_parameters(q):
        r"""\Psi_\text{cut}^r | parameters | parameters of a layer that tensor parallelism cuts, so
        that each rank has different ones: weights, and biases of linear layers cut by columns; each
        rank has a part of every expert, or of those that expert parallelism leaves it"""
        return (
            q.rank_cut_attention_parameters
            + q.layer_mlps * q.rank_mlp_parameters
            + floor_div(
                ((2 + q.gated_mlp) * q.hidden + q.biases * (1 + q.gated_mlp))
                * q.shared_feed_forward,
                q.tensor_parallel,
            )
        )

    def rank_whole_attention_parameters(q):
        r"""\Psi_\text{all}^r | parameters | parameters of attention and norms that every
        tensor-parallel rank has: biases of linear layers cut by rows, and what makes the latents of
        latent attention"""
        return (
            q.norms_per_layer * q.norm_parameters
            + q.biases * q.hidden
            + q.query_key_norm_parameters
            + where(
                q.key_value_latent > 0, q.latent_parameters + q.query_latent + q.key_value_latent, 0
            )
        )

    def rank_whole_layer_parameters(q):
        r"""\Psi_\text{whole}^r | parameters | parameters of a layer that every tensor-parallel rank
        has: norms, biases of linear layers cut by rows, the router"""
        return (
            q.rank_whole_attention_parameters
            + q.biases * (q.layer_mlps + minimum(q.shared_feed_forward, 1)) * q.hidden
            + q.experts * q.hidden
        )

    def rank_layer_parameters(q):
        r"""\Psi_\ell^r | parameters | parameters of one layer on the rank"""
        return q.rank_cut_layer_parameters + q.rank_whole_layer_parameters

    @BOOK.own(measured_by=_PEAKS)
    def rank_dense_layer_parameters(q):
        r"""\Psi_\text{dense}^r | parameters | parameters of one layer on the rank that has no
        experts in a model of experts"""
        return (
            q.rank_cut_attention_parameters
            + q.rank_whole_attention_parameters
            + floor_div(q.dense_mlp_parameters - q.biases * q.hidden, q.tensor_parallel)
            + q.biases * q.hidden
        )

    @BOOK.own(measured_by=_PEAKS)
    def rank_dense_layers(q):
        r"""L_\text{dense}^r | count | layers without experts on the rank, which the first stage
        has"""
        return q.pipeline_is_first * minimum(q.dense_layers, q.rank_layers)

    @BOOK.own(measured_by=_PEAKS)
    def rank_other_layers(q):
        r"""L_\text{exp}^r | count | layers on the rank that are like most of the model's"""
        return q.rank_layers - q.rank_dense_layers

    def rank_table_parameters(q):
        r"""\Psi_\text{table}^r | parameters | parameters of the rank's part of a token table, or of
        a head"""
        return q.tensor_vocabulary * q.hidden

    def rank_embedding_parameters(q):
        r"""\Psi_\text{embed}^r | parameters | parameters of the embedding on the rank: none after
        the first stage"""
        return q.pipeline_is_first * (
            q.rank_table_parameters + q.learned_positions * q.max_sequence * q.hidden
        )

    def rank_head_parameters(q):
        r"""\Psi_\text{head}^r | parameters | parameters that the head adds on the rank: none before
        the last stage, or where the head shares the embedding's table"""
        return q.pipeline_is_last * (1 - q.rank_tied_head) * q.rank_table_parameters

    def head_unit_parameters(q):
        r"""\Psi_\text{end}^r | parameters | parameters of the head's unit: its own weight, and the
        last norm"""
        return q.rank_head_parameters + q.pipeline_is_last * q.norm_parameters

    def rank_parameters(q):
        r"""\Psi_r^\text{whole} | parameters | parameters that the rank computes with, before ZeRO
        shards them"""
        return (
            q.rank_other_layers * q.rank_layer_parameters
            + q.rank_dense_layers * q.rank_dense_layer_parameters
            + q.rank_embedding_parameters
            + q.head_unit_parameters
        )

    @BOOK.own(measured_by=_PEAKS)
    def rank_expert_parameters(q):
        r"""\Psi_\text{exp}^r | parameters | parameters of the rank's experts, which fewer ranks
        have than other parameters where experts are divided among data-parallel ranks"""
        return where(
            q.expert_parallel > 1,
            q.rank_other_layers * q.layer_mlps * (q.rank_mlp_parameters + q.biases * q.hidden),
            0,
        )

    @BOOK.own(measured_by=_PEAKS)
    def rank_common_parameters(q):
        r"""\Psi_\text{common}^r | parameters | parameters that are trained and that all
        data-parallel ranks of a copy have"""
        return q.rank_trained_parameters - q.rank_expert_parameters

    def shard_ranks(q):
        r"""d_\text{shard} | count | data-parallel ranks that share the states"""
        return maximum(1, floor_div(q.data_parallel, q.shard_groups))

    def rank_shard_parameters(q):
        r"""\Psi_r^\text{shard} | parameters | elements of the rank's shard of its parameters"""
        return shard_of(q.rank_common_parameters, q.shard_ranks, q.rank) + ceil_div(
            q.expert_parallel * q.rank_expert_parameters, q.shard_ranks
        )

    @BOOK.own(source=_TE, measured_by=_PEAKS)
    def dummy_attention_parameters(q):
        r"""\Psi_\text{dummy}^\text{attn} | parameters | elements of the shapes of a rank's weights
        of attention"""
        return where(
            q.key_value_latent > 0,
            q.latent_parameters + floor_div(q.latent_head_parameters, q.tensor_parallel),
            floor_div(2 * q.hidden * (q.query_size + q.key_value_size), q.tensor_parallel),
        )

    @BOOK.own(source=_TE, measured_by=_PEAKS)
    def dummy_feed_forward(q):
        r"""f_\text{dummy}^r | count | columns of the shapes of a rank's MLPs: those of an expert
        that every token goes through count only where their size is another"""
        return q.tensor_feed_forward + where(
            equal(q.shared_feed_forward, q.feed_forward),
            0,
            ceil_div(q.shared_feed_forward, q.tensor_parallel),
        )

    @BOOK.own(source=_TE, measured_by=_PEAKS)
    def dummy_dense_parameters(q):
        r"""\Psi_\text{dummy}^\text{dense} | parameters | elements of the shapes of the MLP in
        layers without experts, where the rank has such a layer"""
        return where(
            q.rank_dense_layers > 0,
            floor_div((2 + q.gated_mlp) * q.hidden * q.dense_feed_forward, q.tensor_parallel),
            0,
        )

    @BOOK.own(source=_TE, measured_by=_PEAKS)
    def rank_dummy_gradient_bytes(q):
        r"""M_\text{dummy}^r | bytes | bytes of the gradients without values that stand in for those
        of weights: one for each shape of a layer's weights, which all layers share, and one of the
        head's"""
        return (
            where(q.adapter_rank > 0, 0, q.dummy_weight_gradients)
            * q.parameter_element_bytes
            * (
                q.dummy_attention_parameters
                + (2 + q.gated_mlp) * q.hidden * q.dummy_feed_forward
                + q.dummy_dense_parameters
                + q.pipeline_is_last * q.rank_table_parameters
            )
        )

    @BOOK.own(source=_TE, measured_by=_PEAKS)
    def rank_workspace_bytes(q):
        r"""M_\text{work}^r | bytes | bytes that products keep from step to step: their scratch
        memory, and the gradients without values"""
        return q.workspace_bytes + q.rank_dummy_gradient_bytes


class StatesOfARank(
    BOOK.section(source="Rajbhandari et al. 2020 (ZeRO), section 5", measured_by=_COUNTED)
):
    def rank_parameter_bytes(q):
        r"""M_\text{param}^r | bytes | bytes of the parameters that the rank keeps on its GPU: from
        stage 3 on, those of its shard, unless they lie on the host"""
        return where(
            q.adapter_rank > 0,
            q.rank_frozen_bytes,
            q.parameter_element_bytes
            * where(q.zero_stage < 3, q.rank_parameters, (1 - q.offload) * q.rank_shard_parameters),
        )

    def rank_gradient_bytes(q):
        r"""M_\text{grad}^r | bytes | bytes of the gradients that the rank has when they are
        reduced: from stage 2 on, those of its shard"""
        return q.gradient_element_bytes * where(
            q.zero_stage < 2,
            q.rank_trained_parameters,
            where(q.zero_stage < 3, 1, 1 - q.offload) * q.rank_shard_parameters,
        )

    def rank_reducing_stage(q):
        r"""z_\text{back} | count | ZeRO stage that decides how backward treats gradients: a
        pipeline reduces once, at the end of a step, and keeps whole gradients until then"""
        return where(q.pipeline_parallel > 1, minimum(q.zero_stage, 1), q.zero_stage)

    def rank_backward_gradient_bytes(q):
        r"""M_\text{back}^r | bytes | bytes of the gradients that the rank has when backward is
        done"""
        return q.gradient_element_bytes * where(
            q.rank_reducing_stage < 2,
            q.rank_trained_parameters,
            where(q.zero_stage < 3, 1, 1 - q.offload) * q.rank_shard_parameters,
        )

    def rank_moment_bytes(q):
        r"""M_\text{sharded}^{\text{opt},r} | bytes | bytes of the optimizer states that the rank
        keeps: the master copy, if the recipe has one, and the moments with their scales"""
        return (
            q.master_element_bytes + q.optimizer_moments * q.moment_element_bytes
        ) * q.rank_moment_parameters + q.moment_scale_bytes

    @BOOK.own(measured_by="tests/where_the_memory_goes/test_adapters.py::test_bytes_of_the_host")
    def rank_host_bytes(q):
        r"""M_\text{host}^r | bytes | bytes of the rank that lie in the host's memory: optimizer
        states, from stage 3 on its shard of parameters and gradients, and checkpoints of layers"""
        return q.offload * (
            q.rank_moment_bytes
            + where(q.zero_stage < 3, 0, q.parameter_element_bytes + q.gradient_element_bytes)
            * q.rank_shard_parameters
        ) + q.rank_held_layers * (q.checkpoints_on_host * q.own_input_bytes)

    def rank_parameter_tensors(q):
        r"""n_\text{tensors}^r | tensors | parameter tensors on the rank: those of its layers, and
        of the ends of the model that it has"""
        return (
            q.rank_layers * q.layer_parameter_tensors
            + q.pipeline_is_first * (1 + q.learned_positions)
            + q.pipeline_is_last * (1 + q.norm_biases + (1 - q.rank_tied_head))
        )

    def rank_head_copy_parameters(q):
        r"""\Psi_\text{copy}^r | parameters | parameters of a tied head that a pipeline's last rank
        has beside the first rank's table"""
        return where(q.pipeline_parallel > 1, q.tied_head * q.rank_head_parameters, 0)

    def rank_same_parameters(q):
        r"""\Psi_\text{same}^r | parameters | parameters that are the same on all tensor-parallel
        ranks: norms, positions, and biases of linear layers cut by rows"""
        return where(
            q.tensor_parallel > 1,
            q.rank_layers * q.rank_whole_layer_parameters
            + q.pipeline_is_first * q.learned_positions * q.max_sequence * q.hidden
            + q.pipeline_is_last * q.norm_parameters,
            0,
        )

    def rank_apart_parameters(q):
        r"""\Psi_\text{apart}^r | parameters | parameters that do not travel with the others of the
        rank"""
        return q.rank_same_parameters + q.rank_head_copy_parameters

    def rank_buckets(q):
        r"""n_\text{buckets}^r | count | buckets of stages 1 and 2 on the rank: parameters that the
        ranks have cut, those that are the same on all of them, and the copy of a tied head travel
        apart. About so many, where a tensor does not fill a bucket"""
        return (
            ceil_div(
                q.parameter_element_bytes * (q.rank_parameters - q.rank_apart_parameters),
                q.bucket_bytes,
            )
            + ceil_div(q.parameter_element_bytes * q.rank_same_parameters, q.bucket_bytes)
            + ceil_div(q.parameter_element_bytes * q.rank_head_copy_parameters, q.bucket_bytes)
        )

    def rank_optimizer_bytes(q):
        r"""M_\text{opt}^r | bytes | bytes of the rank's optimizer states, unless they lie on the
        host, and step counters: one for each bucket of stages 1 and 2, else for each parameter
        tensor"""
        return (1 - q.offload) * q.rank_moment_bytes + q.step_counter_element_bytes * where(
            equal(minimum(q.zero_stage, 3 - q.zero_stage), 0),
            q.trained_tensors,
            q.rank_buckets,
        )


_AGAIN = "tests/where_the_memory_goes/test_rank_layouts.py::test_peak_of_a_layout_that_recomputes"


class WhatALayerKeeps(BOOK.section(source=_OURS, measured_by=_LEDGER)):
    def rank_layer_bytes(q):
        r"""A_\ell^r | bytes | bytes that one layer keeps for backward on the rank, by kernels and
        tensor-parallel degree"""
        return where(
            q.library_kernels > 0,
            q.library_layer_bytes,
            where(q.tensor_parallel > 1, q.tensor_layer_bytes, q.layer_activation_bytes),
        )

    @BOOK.own(source="torchtitan@820504e, parallelize_llama.py", measured_by=_PEAKS)
    def chosen_operator_bytes(q):
        r"""A_\ell^\text{ops} | bytes | bytes that one layer keeps where operators are chosen, as
        torchtitan does: its input, every second product, which are queries, values, the MLP's gate
        and its output, and attention's output with what its core keeps"""
        return (
            2 * q.own_input_bytes
            + ceil_div(2 * q.query_bytes + q.key_bytes, q.tensor_parallel)
            + q.library_inner_bytes
            + q.library_core_bytes
        )

    @BOOK.own(measured_by=_AGAIN)
    def rank_recomputed_layer_bytes(q):
        r"""A_\ell^{\text{again},r} | bytes | bytes that one layer keeps on the rank when it is
        recomputed, by policy; under a library's kernels, all but the core of attention, the chosen
        operators, or the layer's input"""
        return where(
            q.library_kernels > 0,
            where(
                q.recompute_policy < 2,
                q.library_layer_bytes - q.library_core_bytes,
                where(q.recompute_policy < 3, q.chosen_operator_bytes, q.layer_checkpoint_bytes),
            ),
            where(q.tensor_parallel > 1, q.tensor_kept_layer_bytes, q.kept_layer_bytes),
        )

    def rank_waiting_layer_bytes(q):
        r"""A_\ell^\text{wait} | bytes | bytes that one layer keeps from its forward to its
        backward: everything that backward needs, or the tensors from which the layer is
        recomputed"""
        return where(q.recompute_policy < 1, q.rank_layer_bytes, q.rank_recomputed_layer_bytes)

    @BOOK.own(measured_by=_AGAIN)
    def rank_checkpoint_layers(q):
        r"""n_\text{ck}^r | count | layers of a stage that are recomputed together: one, or
        those of a checkpoint where whole layers are recomputed"""
        return where(q.recompute_policy < 3, 1, minimum(q.rank_stage_layers, q.recompute_every))

    @BOOK.own(measured_by=_AGAIN)
    def rank_stage_checkpoints(q):
        r"""n_\text{stage}^r | count | checkpoints of a stage: as many as its layers, if each layer
        has one"""
        return ceil_div(q.rank_stage_layers, q.rank_checkpoint_layers)

    @BOOK.own(measured_by=_AGAIN)
    def rank_last_checkpoint_layers(q):
        r"""n_\text{last}^r | count | layers of a stage's last checkpoint, which goes backward first
        and may have fewer layers"""
        return q.rank_stage_layers - q.rank_checkpoint_layers * (q.rank_stage_checkpoints - 1)

    @BOOK.own(measured_by=_PEAKS)
    def rank_waiting_dense_bytes(q):
        r"""A_\text{dense}^\text{wait} | bytes | bytes that the layers without experts of a stage
        keep from forward to backward, in a model of experts"""
        return q.rank_dense_layers * where(
            q.recompute_policy < 3,
            q.rank_waiting_layer_bytes - q.library_mlp_bytes + q.library_dense_bytes,
            q.rank_waiting_layer_bytes,
        )

    @BOOK.own(measured_by=_PEAKS)
    def rank_like_checkpoints(q):
        r"""n_\text{like}^r | count | checkpoints of a stage, less those of layers without experts
        in a model of experts"""
        return maximum(q.rank_stage_checkpoints - q.rank_dense_layers, 0)

    def rank_stage_bytes(q):
        r"""A_\text{stage}^r | bytes | bytes that a microbatch keeps in one stage while it waits for
        its backward"""
        return q.rank_like_checkpoints * q.rank_waiting_layer_bytes + q.rank_waiting_dense_bytes

    def rank_entrance_bytes(q):
        r"""A_\text{top}^r | bytes | bytes that a microbatch keeps in the embedding: the mask after
        it, and with tensor parallelism the row of each token (8) and whether the rank has that row
        (1)"""
        return q.pipeline_is_first * (
            q.tensor_mask_bytes + where(q.tensor_parallel > 1, 9 * q.microbatch_tokens, 0)
        )

    def rank_exit_bytes(q):
        r"""A_\text{exit}^r | bytes | bytes that a microbatch keeps in the last norm, the head and
        the loss, on the rank that has them"""
        return q.pipeline_is_last * where(
            q.tensor_parallel > 1,
            q.tensor_norm_bytes
            + q.tensor_input_bytes
            + q.tensor_logit_bytes
            + 9 * q.microbatch_tokens,
            q.head_activation_bytes + q.logit_bytes,
        )

    def rank_batch_bytes(q):
        r"""A_\text{step}^r | bytes | bytes of tokens and targets: a rank of a pipeline gets those
        of all its microbatches at once"""
        return q.batch_bytes * where(q.pipeline_parallel > 1, q.microbatches, 1)

    # --- microbatches that wait -------------------------------------------------------------------
    def rank_in_flight(q):
        r"""m_\text{most}^r | count | most microbatches that the rank has at once, added up over its
        stages"""
        return where(q.pipeline_parallel > 1, q.pipeline_in_flight, 1)

    def rank_waits_for_all(q):
        r"""1_\text{once} | count | 1 if all microbatches wait at the same time, as in GPipe, so
        that no gradients are there when the first goes backward; a library has buffers of gradients
        from the start"""
        return where(
            q.microbatches * q.pipeline_chunks > q.rank_in_flight,
            0,
            where(q.rank_in_flight > 1, q.eager_kernels, 0),
        )

    @BOOK.own(measured_by=_AGAIN)
    def rank_new_checkpoint_gradient_bytes(q):
        r"""G_\text{once} | bytes | bytes of the first microbatch's own gradients when a stage's
        second-to-last checkpoint goes backward; 0 if there is none"""
        return where(
            q.rank_reducing_stage < 2,
            where(
                q.rank_checkpoint_layers > 1,
                where(
                    q.rank_stage_checkpoints > 1,
                    q.gradient_element_bytes
                    * q.rank_layer_parameters
                    * q.rank_last_checkpoint_layers,
                    0,
                ),
                0,
            ),
            0,
        )

    @BOOK.own(measured_by=_AGAIN)
    def rank_new_layers_gradient_bytes(q):
        r"""G_\text{new}^r | bytes | bytes of the first microbatch's own gradients when its backward
        is back at the rank's first layer"""
        return q.gradient_element_bytes * (
            q.head_unit_parameters + (q.rank_layers - 1) * q.rank_layer_parameters
        )

    def rank_fullest_later(q):
        r"""1_\text{later} | count | 1 if a rank where all microbatches wait is fuller when the
        second microbatch goes backward than when the first does: all gradients, and the one that
        was sent, take more bytes than the first microbatch's activations, output and own new
        gradients together; with which it begins in its last layer, or ends in its first"""
        return where(
            q.rank_backward_gradient_bytes + q.rank_hands_back * q.rank_passing_bytes
            > q.rank_entrance_bytes
            + q.rank_exit_bytes
            + q.rank_hands_on * q.rank_passing_bytes
            + maximum(
                q.rank_stage_bytes + q.rank_new_checkpoint_gradient_bytes,
                q.rank_new_layers_gradient_bytes
                + q.rank_waiting_layer_bytes
                + q.rank_received_gradient_bytes,
            ),
            q.rank_waits_for_all,
            0,
        )

    def rank_fullest_first(q):
        r"""1_\text{first}^r | count | 1 if a rank where all microbatches wait is fullest when the
        first microbatch goes backward"""
        return q.rank_waits_for_all - q.rank_fullest_later

    def rank_held_microbatches(q):
        """m_r | count | microbatches of a stage that the rank has when it is fullest"""
        return q.rank_in_flight - q.rank_fullest_later

    def rank_equal_held_layers(q):
        r"""L_\text{full}^r | count | layers of one microbatch that would wait on the rank if its
        stages were equal"""
        return q.rank_held_microbatches * q.rank_like_checkpoints

    def rank_held_layers(q):
        r"""L_\text{held}^r | count | layers of one microbatch, or checkpoints of layers, that wait
        on the rank when it is fullest; without those of layers without experts in a model of
        experts, and without what an end of the model is shorter in one of several stages, of which
        the last has one microbatch at a time"""
        return q.rank_equal_held_layers - where(
            q.pipeline_chunks > 1,
            q.shorter_ends
            * (q.pipeline_is_first * q.rank_entered_microbatches + q.pipeline_is_last),
            0,
        )

    def rank_waiting_exit_bytes(q):
        r"""A_\text{exits}^r | bytes | bytes of last norm, head and loss of the microbatches that
        wait beside the one at work; 0 in the interleaved schedule, where each microbatch goes
        backward at once. PyTorch's cross-entropy also keeps the number of targets, in 4 bytes"""
        return where(equal(q.pipeline_schedule, 4), 0, q.rank_held_microbatches - 1) * (
            q.rank_exit_bytes + q.pipeline_is_last * where(q.tensor_parallel > 1, 0, 4)
        )

    def rank_full_turns(q):
        r"""n_\text{turn}^r | count | how often as many microbatches as there are ranks wait in each
        of the rank's stages"""
        return floor_div(q.rank_held_microbatches, q.pipeline_parallel * q.pipeline_chunks)

    def rank_entered_microbatches(q):
        r"""m_\text{top}^r | count | microbatches that wait in the first of the rank's stages:
        interleaved, as many as there are ranks go through one stage, then through the next"""
        return where(
            q.pipeline_chunks > 1,
            q.pipeline_parallel * q.rank_full_turns
            + minimum(
                q.rank_held_microbatches
                - q.pipeline_parallel * q.pipeline_chunks * q.rank_full_turns,
                q.pipeline_parallel,
            ),
            q.rank_held_microbatches,
        )

    def rank_end_bytes(q):
        r"""A_\text{ends}^r | bytes | bytes that wait on the rank beside those of layers: the batch,
        and the bytes of embedding and head in each microbatch"""
        return (
            q.rank_batch_bytes
            + q.rank_waiting_exit_bytes
            + q.rank_entered_microbatches * q.rank_entrance_bytes
        )

    def rank_saved_bytes(q):
        r"""A_\text{saved}^r | bytes | bytes that wait on the rank when a backward begins: the
        batch, and the bytes of embedding and layers in each microbatch"""
        return (
            q.rank_end_bytes
            + q.rank_held_layers * q.rank_waiting_layer_bytes
            + q.rank_held_microbatches * q.rank_waiting_dense_bytes
        )

    def rank_others_bytes(q):
        r"""A_\text{others}^r | bytes | bytes that wait beside the last layer of the microbatch at
        work"""
        return (
            q.rank_end_bytes
            + (q.rank_held_layers - 1) * q.rank_waiting_layer_bytes
            + q.rank_held_microbatches * q.rank_waiting_dense_bytes
        )

    @BOOK.own(measured_by=_AGAIN)
    def rank_again_bytes(q):
        r"""A_\text{again}^r | bytes | bytes of the other layers of a stage's last checkpoint, which
        were recomputed with its last layer"""
        return (q.rank_last_checkpoint_layers - 1) * q.rank_layer_bytes

    def rank_behind_bytes(q):
        r"""A_\text{behind}^r | bytes | bytes that wait when the microbatch at work is back at its
        first layer: the bytes of the other microbatches"""
        return q.rank_end_bytes + (q.rank_held_microbatches - 1) * q.rank_stage_bytes

    @BOOK.own(measured_by=_AGAIN)
    def rank_before_bytes(q):
        r"""A_\text{ck}^r | bytes | bytes that wait beside a stage's second-to-last checkpoint; 0 if
        there is none"""
        return where(
            q.rank_stage_checkpoints > 1,
            q.rank_end_bytes
            + maximum(
                (q.rank_held_layers - 2) * q.rank_waiting_layer_bytes
                + q.rank_held_microbatches * q.rank_waiting_dense_bytes,
                0,
            ),
            0,
        )

    def rank_passing_bytes(q):
        r"""A_\text{pass}^r | bytes | bytes that one stage passes to the next: the residual stream
        of the rank's tokens"""
        return q.residual_element_bytes * q.tensor_own_tokens * q.hidden

    def rank_microbatches(q):
        r"""m_\text{all}^r | count | microbatches that pass through a rank's stages in a step"""
        return q.microbatches * q.pipeline_chunks

    def rank_hands_on(q):
        r"""1_\text{on}^r | count | 1 if a stage of the rank sends its output, as every stage but
        the last does"""
        return where(q.pipeline_chunks > 1, 1, 1 - q.pipeline_is_last)

    def rank_hands_back(q):
        r"""1_\text{back}^r | count | 1 if a stage of the rank sends gradients, as every stage but
        the first does"""
        return where(q.pipeline_chunks > 1, 1, 1 - q.pipeline_is_first)

    def rank_sent_gradients(q):
        r"""m_\text{done}^r | count | sent gradients that stay until the neighbour has received
        them: the neighbour is as many messages behind as there are ranks"""
        return minimum(
            q.rank_microbatches - q.rank_held_microbatches,
            q.pipeline_parallel + (1 - q.rank_hands_on),
        )

    def rank_kept_outputs(q):
        r"""m_\text{out}^r | count | outputs that the rank keeps until their backward; the output of
        the last stage is the loss"""
        return q.rank_held_microbatches - where(q.pipeline_chunks > 1, q.pipeline_is_last, 0)

    def rank_message_bytes(q):
        r"""U_\text{pass}^r | bytes | bytes that a pipeline adds: outputs, which stay until their
        backward; the gradient that is on its way for the next output; gradients that were sent"""
        return where(
            q.pipeline_parallel > 1,
            q.rank_passing_bytes
            * (
                q.rank_hands_on * (q.rank_kept_outputs + where(q.rank_held_microbatches > 1, 1, 0))
                + q.rank_hands_back * q.rank_sent_gradients
            ),
            0,
        )

    def rank_forward_message_bytes(q):
        r"""U_\text{fwd}^r | bytes | bytes that a pipeline adds in a forward: the last rank, which
        waits for nothing in backward, then receives no output ahead"""
        return where(
            q.pipeline_parallel > 1,
            q.rank_message_bytes
            - (1 - q.rank_hands_on)
            * q.rank_passing_bytes
            * where(q.rank_sent_gradients > q.pipeline_parallel, 1, 0),
            0,
        )

    def rank_scalar_bytes(q):
        r"""U_\text{loss}^r | bytes | bytes of a loss and of its gradient. The last rank of a
        pipeline also has the loss of each microbatch until then, once more where it waits; it is
        fullest when the last microbatch but one goes backward, as long as there is another to
        receive. Other ranks of a pipeline have none"""
        return where(
            q.pipeline_parallel > 1,
            q.pipeline_is_last
            * 4
            * (
                q.microbatches
                - where(q.rank_sent_gradients > q.pipeline_parallel, 1, 0)
                + where(q.pipeline_chunks > 1, 1, q.rank_held_microbatches)
                + 1
            ),
            8,
        )

    @BOOK.own(measured_by=_AGAIN)
    def rank_layer_message_bytes(q):
        r"""U_\text{within}^r | bytes | bytes that a pipeline adds while a layer goes backward: with
        several stages on a rank, the last rank is fullest in a stage that sends its output"""
        return q.rank_message_bytes + where(
            q.pipeline_chunks > 1, q.pipeline_is_last * q.rank_passing_bytes, 0
        )

    @BOOK.own(measured_by=_AGAIN)
    def rank_received_gradient_bytes(q):
        r"""U_\text{held}^r | bytes | bytes of the gradient that a stage received, which stays until
        the stage's first layer is done, beside the gradient that the layers pass on"""
        return where(
            q.pipeline_parallel > 1,
            where(q.rank_stage_checkpoints > 1, q.rank_hands_on * q.rank_passing_bytes, 0),
            0,
        )

    @BOOK.own(measured_by=_AGAIN)
    def rank_received_at_core_bytes(q):
        r"""U_\text{held}^{\text{core},r} | bytes | bytes of the received gradient in a stage's last
        layer, while the core of its unfused attention is recomputed"""
        return where(
            q.pipeline_parallel > 1,
            where(
                equal(q.recompute_policy, 1),
                q.keeps_scores * q.rank_hands_on * q.rank_passing_bytes,
                0,
            ),
            0,
        )
