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

BOOK.given_beside(__file__)

_CHEN = "Chen et al. 2016"
_KORTHIKANTI = "Korthikanti et al. 2022, section 5"
_OURS = "shardlab.recompute; counted from gpt.py"
_FILE = "tests/activation_checkpointing/test_recompute_formulas.py"
_KEPT = _PEAK = f"{_FILE}::test_kept_bytes_and_peak_of_every_policy"
_WORK = f"{_FILE}::test_operations_that_are_done_twice"
_BEST = f"{_FILE}::test_the_least_peak_by_formula_and_by_counting"
_RANK = f"{_FILE}::test_kept_bytes_of_a_rank"
_TIME = f"{_FILE}::test_offload_is_what_is_simulated"


class WhatIsKept(BOOK.section(source=_OURS, measured_by=_KEPT)):
    @BOOK.own(source=_CHEN)
    def recompute_groups(q):
        r"""n_\text{groups} | count | checkpoints of a model that recomputes whole layers; the last
        checkpoint may have fewer layers"""
        return ceil_div(q.layers, q.recompute_every)

    @BOOK.own(source=_KORTHIKANTI)
    def core_input_bytes(q):
        r"""A_\text{core}^\text{in} | bytes | bytes kept between the linear layers of attention when
        attention's core is recomputed: queries, keys and values, and the cosines and sines of
        rotary positions"""
        return q.query_key_value_bytes + q.query_copy_bytes + q.rotation_bytes

    @BOOK.own(source=_KORTHIKANTI)
    def core_recomputed_layer_bytes(q):
        r"""A_\ell^\text{core} | bytes | bytes that a layer keeps when the core of its attention is
        recomputed, so without scores: in 16 bits with dropout, 34 of the 34 + 5as/h bytes for each
        element of its input"""
        return q.layer_activation_bytes - q.attention_core_bytes + q.core_input_bytes

    def products_kept_layer_bytes(q):
        r"""A_\ell^\text{prod} | bytes | bytes that a layer keeps when all but the products of
        linear layers and fused attention is recomputed: its input, the outputs of the linear
        layers, and the output and the log-sum-exp of fused attention"""
        return (
            q.residual_bytes
            + q.query_key_value_bytes
            + 2 * q.linear_input_bytes
            + (1 + q.gated_mlp) * q.inner_bytes
            + (1 - q.keeps_scores) * (q.query_bytes + 4 * q.heads * q.microbatch_tokens)
        )

    def kept_layer_bytes(q):
        r"""A_\ell^\text{kept} | bytes | bytes that a layer keeps from forward to backward, by
        policy; where whole layers are recomputed, only the input of each checkpoint"""
        return where(
            q.recompute_policy < 1,
            q.layer_activation_bytes,
            where(
                q.recompute_policy < 2,
                q.core_recomputed_layer_bytes,
                where(q.recompute_policy < 3, q.products_kept_layer_bytes, q.residual_bytes),
            ),
        )

    def kept_layers_bytes(q):
        r"""A_L^\text{kept} | bytes | bytes that all layers keep"""
        return where(q.recompute_policy < 3, q.layers, q.recompute_groups) * q.kept_layer_bytes

    def kept_activation_bytes(q):
        r"""A^\text{kept} | bytes | bytes that forward and loss keep: batch, mask after the
        embedding, layers, head, log-softmax, and the sum of the targets' weights in the loss (4)"""
        return (
            q.batch_bytes
            + q.mask_bytes
            + q.kept_layers_bytes
            + q.head_activation_bytes
            + q.logit_bytes
            + 4
        )


class OneLayerAtWork(BOOK.section(source=_OURS, measured_by=_PEAK)):
    def mlp_work_bytes(q):
        r"""W_\text{mlp} | bytes | bytes of a layer at the fullest place of its MLP's backward, when
        everything that attention keeps is still there"""
        return maximum(
            q.live_at_mlp_down_bytes,
            q.live_at_mlp_gate_bytes,
            q.live_at_mlp_up_bytes,
            q.live_at_mlp_norm_bytes,
        )

    def core_second_run_bytes(q):
        r"""W_\text{core}^\text{again} | bytes | bytes of a layer while the core of unfused
        attention is computed a second time: the scores, the gradient of the core's output, and the
        gradients of the MLP and of the output product. With dropout the scores take most before the
        last product, whose output is not recomputed"""
        return q.keeps_scores * (
            q.temporaries_at_scores_bytes
            - (1 - q.learned_positions) * q.query_key_value_bytes
            + q.activations_at_scores_bytes
            + q.compute_element_bytes * q.sequence * q.sequence
            + (1 - q.has_dropout) * q.query_bytes
            + q.new_gradient_element_bytes * q.attention_side_parameters
        )

    def core_recomputed_work_bytes(q):
        r"""W_\text{core} | bytes | bytes of a layer at work when the core of attention is
        recomputed: the core is not there while the MLP goes backward, and its queries are there
        twice while the core goes backward"""
        return maximum(
            q.mlp_work_bytes - q.attention_core_bytes + q.core_input_bytes,
            q.live_at_attention_core_bytes + q.keeps_scores * q.query_bytes,
            q.core_second_run_bytes,
            q.live_at_first_product_bytes,
            q.live_at_attention_norm_bytes,
        )

    def recompute_layer_work_bytes(q):
        r"""W_\ell^\text{again} | bytes | bytes of a layer at work, by policy: with all of the
        layer's activations where they were recomputed"""
        return where(equal(q.recompute_policy, 1), q.core_recomputed_work_bytes, q.layer_work_bytes)

    def recompute_scores_bytes(q):
        r"""W_\text{scores}^\text{again} | bytes | bytes of a layer in the second run of unfused
        attention: raw and masked scores, the mask, and the kept outputs of later products"""
        return where(
            q.recompute_policy > 1,
            q.keeps_scores
            * (
                q.activations_at_scores_bytes
                + q.temporaries_at_scores_bytes
                + q.compute_element_bytes * q.sequence * q.sequence
                + where(
                    q.recompute_policy < 3,
                    (1 + q.gated_mlp) * q.inner_bytes + 2 * q.linear_input_bytes,
                    0,
                )
            ),
            0,
        )

    # --- the others -------------------------------------------------------------------------------
    def last_group_layers(q):
        r"""L_\text{last} | count | layers of the last checkpoint"""
        return q.layers - q.recompute_every * (q.recompute_groups - 1)

    def first_group_layers(q):
        r"""L_\text{first} | count | layers of the first checkpoint"""
        return minimum(q.layers, q.recompute_every)

    def grouped_others_bytes(q):
        r"""M_\text{group} | bytes | bytes beside a layer at work when checkpoints hold whole
        layers: the inputs of earlier checkpoints, the recomputed activations of the layer's own
        checkpoint, and the gradients of finished layers. The maximum is in the last checkpoint, in
        the one before, or in the first"""
        return maximum(
            (q.recompute_groups - 1) * q.residual_bytes
            + (q.last_group_layers - 1) * q.layer_activation_bytes,
            where(
                q.recompute_groups > 1,
                (q.recompute_groups - 2) * q.residual_bytes
                + (q.recompute_every - 1) * q.layer_activation_bytes
                + q.last_group_layers * q.new_gradient_element_bytes * q.layer_parameters,
                0,
            ),
            (q.first_group_layers - 1) * q.layer_activation_bytes
            + (q.layers - q.first_group_layers) * q.new_gradient_element_bytes * q.layer_parameters,
            (q.layers - 1) * q.new_gradient_element_bytes * q.layer_parameters,
        )

    def recompute_others_bytes(q):
        r"""M_\text{rest} | bytes | bytes of all layers but the one at work, at the maximum: their
        kept activations when the last layer is at work, or their gradients when the first layer
        is"""
        return where(
            q.recompute_policy < 3,
            (q.layers - 1)
            * maximum(q.kept_layer_bytes, q.new_gradient_element_bytes * q.layer_parameters),
            q.grouped_others_bytes,
        )

    # --- the peak ---------------------------------------------------------------------------------
    def recompute_floor_bytes(q):
        r"""M_\text{stay} | bytes | bytes that no policy changes: parameters, optimizer states, and
        the gradients of earlier microbatches"""
        return q.parameter_bytes + q.standing_optimizer_bytes + q.earlier_gradient_bytes

    def recompute_forward_bytes(q):
        r"""R_\text{fwd} | bytes | bytes in the last layer's unfused attention on the way forward,
        beside the kept bytes of the other layers; 0 where whole layers, or all but products, are
        recomputed, since the second run needs more"""
        return where(
            q.recompute_policy < 2,
            q.keeps_scores
            * (
                q.forward_peak_bytes
                - where(q.recompute_policy < 1, 0, (q.layers - 1) * q.attention_core_bytes)
                + where(q.recompute_policy < 1, 0, (q.layers - 1) * q.core_input_bytes)
            ),
            0,
        )

    def recompute_loss_bytes(q):
        r"""R_\text{loss} | bytes | bytes in the backward of the log-softmax: everything kept, and
        two gradients of the logits' size"""
        return q.recompute_floor_bytes + q.kept_activation_bytes + 2 * q.logit_bytes + 4

    def recompute_head_bytes(q):
        r"""R_\text{head} | bytes | bytes while the head goes backward, with the kept bytes of all
        layers"""
        return (
            q.recompute_floor_bytes
            + q.batch_bytes
            + q.mask_bytes
            + q.kept_layers_bytes
            + q.head_work_bytes
            + 8
        )

    def recompute_layers_bytes(q):
        r"""R_\text{layers} | bytes | bytes while a layer is recomputed or goes backward"""
        return (
            q.recompute_floor_bytes
            + q.batch_bytes
            + q.mask_bytes
            + q.head_gradient_bytes
            + q.new_gradient_element_bytes * q.norm_parameters
            + 8
            + q.residual_bytes
            + q.recompute_others_bytes
            + maximum(q.recompute_layer_work_bytes, q.recompute_scores_bytes)
        )

    def recompute_peak_bytes(q):
        r"""R_\text{again} | bytes | bytes that a step with this policy needs: the most that is live
        at once"""
        return maximum(
            q.recompute_forward_bytes,
            q.recompute_loss_bytes,
            q.recompute_head_bytes,
            q.recompute_layers_bytes,
            q.embedding_peak_bytes,
            q.optimizer_peak_bytes,
        )

    def recompute_peak_place(q):
        r"""i_\text{again} | count | place of that peak: 1 unfused attention on the way forward, 2
        the loss, 3 the head, 4 the layers, 5 the embedding, 6 the optimizer"""
        return arg_max(
            q.recompute_forward_bytes,
            q.recompute_loss_bytes,
            q.recompute_head_bytes,
            q.recompute_layers_bytes,
            q.embedding_peak_bytes,
            q.optimizer_peak_bytes,
        )


class LayersInACheckpoint(BOOK.section(source=_CHEN, measured_by=_BEST)):
    def grouped_activation_bytes(q):
        """A_n | bytes | most bytes of activations for a given number of layers in each checkpoint:
        the inputs of all checkpoints, and the activations of one checkpoint, whose input counts
        once"""
        return (
            q.recompute_groups - 1
        ) * q.residual_bytes + q.recompute_every * q.layer_activation_bytes

    def best_recompute_every(q):
        r"""\ell^* | layers | layers in a checkpoint for which the activations take the fewest
        bytes, before rounding: the square root of L only for layers that keep no more than their
        input"""
        return square_root(q.layers * q.residual_bytes / q.layer_activation_bytes)

    def layers_worth_grouping(q):
        r"""\ell_\text{two} | layers | number of layers up to which one checkpoint for each layer is
        best; in a deeper model, two layers in each checkpoint need less"""
        return 2 * q.layer_activation_bytes / q.residual_bytes


class Operations(BOOK.section(source="Narayanan et al. 2021, appendix", measured_by=_WORK)):
    def attention_core_flops(q):
        r"""C_\text{core} | FLOP | operations of the two products of attention's core, scores with
        tokens on other ranks among them"""
        return (
            2
            * q.score_share
            * q.microbatch_tokens
            * q.context_parallel
            * q.sequence
            * q.attended_columns
        )

    def layer_forward_flops(q):
        r"""C_\ell | FLOP | operations of all matrix products in a layer's forward, for one
        microbatch; the mean of the layers where some have no experts"""
        return (
            2 * q.microbatch_tokens * q.stack_matrix_parameters / q.layers + q.attention_core_flops
        )

    def layers_forward_flops(q):
        """C_L | FLOP | operations of the forward of all layers"""
        return q.layers * q.layer_forward_flops

    def forward_flops(q):
        r"""C_\text{fwd} | FLOP | operations of all matrix products in the forward"""
        return q.layers_forward_flops + 2 * q.microbatch_tokens * q.hidden * q.vocabulary

    def step_flops(q):
        r"""C_\text{step} | FLOP | operations of forward and backward; backward has two products for
        each product of forward"""
        return 3 * q.forward_flops

    @BOOK.own(source=_OURS)
    def skipped_flops(q):
        r"""C_\text{down} | FLOP | operations that the second run of a checkpoint leaves out:
        backward needs the input of the MLP's last product but not its output, unless dropout comes
        after that product"""
        return (1 - q.has_dropout) * 2 * q.microbatch_tokens * q.feed_forward * q.hidden

    @BOOK.own(source=_OURS)
    def recomputed_flops(q):
        r"""C_\text{again} | FLOP | operations that are done twice, by policy. The second run of
        unfused attention's core ends before its last product, whose output backward does not
        need"""
        return where(
            q.recompute_policy < 1,
            0,
            where(
                q.recompute_policy < 2,
                q.layers
                * where(
                    equal(q.keeps_scores, 1), q.attention_core_flops / 2, q.attention_core_flops
                ),
                where(
                    q.recompute_policy < 3,
                    q.layers * q.keeps_scores * q.attention_core_flops,
                    q.layers_forward_flops - q.recompute_groups * q.skipped_flops,
                ),
            ),
        )

    def recomputed_share(q):
        r"""\varphi_\text{again} | fraction | operations done twice, as a share of the operations of
        a step: a third, if all of forward is done twice"""
        return q.recomputed_flops / q.step_flops


class InSeconds(BOOK.section(source="definition", measured_by=_TIME)):
    def recompute_seconds(q):
        r"""\tau_\text{again} | seconds | time that recomputation takes on each of the ranks that
        share the layers"""
        return q.recomputed_flops / (q.tensor_parallel * q.utilisation * q.flops_per_second)

    def recompute_step_seconds(q):
        r"""\tau_\text{step}^\text{again} | seconds | time of forward and backward with this policy,
        without messages"""
        return (
            q.step_flops / (q.tensor_parallel * q.utilisation * q.flops_per_second)
            + q.recompute_seconds
        )

    def layer_forward_seconds(q):
        r"""\tau_\ell^\text{fwd} | seconds | time of a layer's forward"""
        return q.layer_forward_flops / (q.tensor_parallel * q.utilisation * q.flops_per_second)

    def layer_backward_seconds(q):
        r"""\tau_\ell^\text{bwd} | seconds | time of a layer's backward: its gradients, plus its
        share of the recomputation"""
        return q.layer_gradient_seconds + q.recompute_seconds / q.layers

    def layer_copy_seconds(q):
        r"""\tau_\ell^\text{copy} | seconds | time to copy a layer's kept bytes to the host, or
        back"""
        return q.rank_layers_kept_bytes / (q.layers * q.pcie_bytes_per_second)

    def hiding_bytes_per_second(q):
        r"""B_\text{off} | bytes/s | least bandwidth at which the copies hide behind forward: a
        layer's bytes cross the link while one layer computes. Backward has twice the time"""
        return q.rank_layers_kept_bytes / (q.layers * q.layer_forward_seconds)

    def offloaded_forward_seconds(q):
        r"""\tau_\text{fwd}^\text{off} | seconds | time of the layers' forward until the last copy
        is on the host: a layer's copy begins when the layer and the copy before are done"""
        return (
            q.layer_forward_seconds
            + (q.layers - 1) * maximum(q.layer_forward_seconds, q.layer_copy_seconds)
            + q.layer_copy_seconds
        )

    def offloaded_backward_seconds(q):
        r"""\tau_\text{bwd}^\text{off} | seconds | time of the layers' backward: backward waits for
        the first copy back, and the others come while layers compute"""
        return (
            q.layer_copy_seconds
            + (q.layers - 1) * maximum(q.layer_backward_seconds, q.layer_copy_seconds)
            + q.layer_backward_seconds
        )

    def offloaded_seconds(q):
        r"""\tau_\text{step}^\text{off} | seconds | time of the layers' forward and backward with
        copies"""
        return q.offloaded_forward_seconds + q.offloaded_backward_seconds

    def copies_exposed_seconds(q):
        r"""\tau_\text{exp}^\text{off} | seconds | time that copies add to a step. Even on a fast
        link the step waits for the last copy to the host and the first copy back, unless the loss
        hides them"""
        return q.offloaded_seconds - q.layers * (q.layer_forward_seconds + q.layer_backward_seconds)


class ARankAmongSeveral(BOOK.section(source=_KORTHIKANTI, measured_by=_RANK)):
    def checkpoint_input_bytes(q):
        r"""A_\text{in}^\text{ck} | bytes | bytes that a rank keeps of a checkpoint's input: all of
        it under tensor parallelism, or the rank's part if the input is partitioned or cut by
        tokens"""
        return q.residual_element_bytes * where(
            equal(q.partition_activations, 1),
            ceil_div(q.microbatch_tokens * q.hidden, q.tensor_parallel),
            q.tensor_own_tokens * q.hidden,
        )

    def tensor_core_input_bytes(q):
        r"""A_\text{core}^{\text{in},t} | bytes | bytes that a rank keeps between the linear layers
        of attention when attention's core is recomputed"""
        return (
            floor_div(
                q.query_key_value_bytes
                + q.learned_positions
                * where(
                    q.key_value_heads > q.tensor_parallel,
                    where(q.key_value_heads < q.heads, q.linear_input_bytes, 0),
                    0,
                ),
                q.tensor_parallel,
            )
            + q.rotation_bytes
        )

    def tensor_core_recomputed_bytes(q):
        r"""A_\ell^{\text{core},t} | bytes | bytes that a rank keeps of a layer when the core of
        attention is recomputed: 34sbh/t in 16 bits with sequence parallelism"""
        return q.tensor_layer_bytes - q.tensor_core_bytes + q.tensor_core_input_bytes

    @BOOK.own(source=_OURS)
    def tensor_products_kept_bytes(q):
        r"""A_\ell^{\text{prod},t} | bytes | bytes that a rank keeps of a layer when all but the
        products of linear layers and fused attention is recomputed. A product that an all-reduce
        changes in place is recomputed; a product that a reduce-scatter reads is kept whole"""
        return (
            q.checkpoint_input_bytes
            + floor_div(
                q.query_key_value_bytes
                + (1 - q.keeps_scores) * (q.linear_input_bytes + 4 * q.heads * q.microbatch_tokens),
                q.tensor_parallel,
            )
            + (1 + q.gated_mlp)
            * q.compute_element_bytes
            * q.microbatch_tokens
            * q.tensor_feed_forward
            + where(q.tensor_parallel > 1, 2 * q.sequence_parallel, 2) * q.linear_input_bytes
        )

    def tensor_kept_layer_bytes(q):
        r"""A_\ell^{\text{kept},t} | bytes | bytes that a rank keeps of a layer, by policy; where
        whole layers are recomputed, the rank's part of each checkpoint's input"""
        return where(
            q.recompute_policy < 1,
            q.tensor_layer_bytes,
            where(
                q.recompute_policy < 2,
                q.tensor_core_recomputed_bytes,
                where(
                    q.recompute_policy < 3, q.tensor_products_kept_bytes, q.checkpoint_input_bytes
                ),
            ),
        )

    def rank_layers_kept_bytes(q):
        r"""A_L^{\text{kept},t} | bytes | bytes that a rank of a tensor-parallel group keeps of all
        layers"""
        return (
            where(q.recompute_policy < 3, q.layers, q.recompute_groups) * q.tensor_kept_layer_bytes
        )

    @BOOK.own(measured_by=f"{_FILE}::test_kept_in_flight")
    def rank_checkpoint_bytes(q):
        r"""A_\text{ck}^t | bytes | bytes of all activations of a checkpoint, which has one layer or
        several"""
        return where(q.recompute_policy < 3, 1, q.first_group_layers) * q.tensor_layer_bytes

    @BOOK.own(measured_by=f"{_FILE}::test_kept_in_flight")
    def rank_layers_again_bytes(q):
        r"""A_L^{\text{again},t} | bytes | bytes of activations that the rank has for a moment: the
        recomputed activations of one checkpoint, beside the kept bytes"""
        return where(
            q.recompute_policy < 1,
            0,
            maximum(q.rank_checkpoint_bytes - q.tensor_kept_layer_bytes, 0),
        )

    @BOOK.own(measured_by=f"{_FILE}::test_kept_in_flight")
    def rank_layers_bytes(q):
        """A_L^t | bytes | most bytes that the layers' activations take on the rank"""
        return q.rank_layers_kept_bytes + q.rank_layers_again_bytes

    @BOOK.own(measured_by=f"{_FILE}::test_kept_in_flight")
    def rank_states_and_layers_bytes(q):
        """M_L^t | bytes | most bytes that the model states and the layers' activations take on the
        rank, without head and logits"""
        return (
            q.tensor_parameter_bytes
            + q.tensor_gradient_bytes
            + q.tensor_optimizer_bytes
            + q.rank_layers_bytes
        )

    def tensor_kept_activation_bytes(q):
        r"""A^{\text{kept},t} | bytes | bytes that forward and loss keep on a rank of a
        tensor-parallel group"""
        return (
            q.tensor_index_bytes
            + q.tensor_mask_bytes
            + q.rank_layers_kept_bytes
            + q.tensor_norm_bytes
            + q.tensor_input_bytes
            + q.tensor_logit_bytes
        )

    @BOOK.own(measured_by=f"{_FILE}::test_kept_in_flight")
    def held_kept_bytes(q):
        r"""A_\text{held}^\text{kept} | bytes | bytes that the layers of a pipeline's rank keep, for
        all microbatches in flight"""
        return (
            q.pipeline_in_flight
            * where(
                q.recompute_policy < 3, q.stage_layers, ceil_div(q.stage_layers, q.recompute_every)
            )
            * q.tensor_kept_layer_bytes
        )

    @BOOK.own(measured_by=f"{_FILE}::test_kept_in_flight")
    def recomputed_group_bytes(q):
        r"""A_\text{group}^t | bytes | bytes of all activations of the layers that are at work
        together on a rank: those of one checkpoint where whole layers are recomputed, one layer
        otherwise"""
        return q.tensor_layer_bytes * where(
            q.recompute_policy < 3, 1, minimum(q.stage_layers, q.recompute_every)
        )

    @BOOK.own(measured_by=f"{_FILE}::test_kept_in_flight")
    def held_working_bytes(q):
        r"""A_\text{held}^\text{work} | bytes | most bytes of activations on a rank of a pipeline:
        the kept bytes, and the other activations of the layers at work, which are recomputed"""
        return q.held_kept_bytes + where(
            q.recompute_policy < 1,
            0,
            maximum(q.recomputed_group_bytes - q.tensor_kept_layer_bytes, 0),
        )
