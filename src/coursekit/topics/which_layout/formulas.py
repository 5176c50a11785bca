"""Seconds of a training step of any layout: what each microbatch takes on the slowest rank of a
pipeline, what fills and drains it, what data-parallel messages are not hidden, and the update.

Compute, recomputation and the messages of tensor parallelism are those of their own chapters. Here
`utilisation` is the share of the datasheet's rate that matrix products alone achieve, bandwidths
are what memory and links achieve, and `link_bytes_per_second` is of all network cards of a node.
"""

from coursekit.formulas.registry import BOOK
from coursekit.formulas.subset import ceil_div, floor_div, maximum, minimum, ring_pass, where

BOOK.given_beside(__file__)

_PUBLISHED = "tests/which_layout/test_published_seconds.py::test_published_seconds"
_COUNTED = "tests/which_layout/test_layout_seconds.py::test_a_step_by_hand"
_SIMULATED = "tests/which_layout/test_layout_seconds.py::test_bubble_is_what_is_simulated"
_MEGATRON = "Narayanan et al. 2021, section 3"


class AMicrobatch(BOOK.section(source="definition", measured_by=_COUNTED)):
    @BOOK.own(source="counted: written, read, gradient written")
    def layer_moved_bytes(q):
        r"""S_\ell^\text{move} | bytes | bytes that a layer's elementwise operations move: each byte
        that backward needs is written in forward and read in backward, which writes as many of its
        gradient; and weights of four bits that are dequantised"""
        return 6 * q.rank_layer_bytes + q.dequantised_moved_bytes

    def layer_moving_seconds(q):
        r"""\tau_\ell^\text{move} | seconds | time in which a layer's elementwise operations wait
        for memory; what is recomputed, all of it or all but products, is written and read once
        more"""
        return (
            where(q.recompute_policy < 2, 1, 4 / 3)
            * q.layer_moved_bytes
            / q.memory_bytes_per_second
        )

    @BOOK.own(source="Korthikanti et al. 2022, section 4")
    def layer_waiting_seconds(q):
        r"""\tau_\ell^\text{ar} | seconds | time for which a layer waits for its tensor-parallel
        messages: all but the share that products hide; a layer that is recomputed sends those
        of its forward again"""
        return (
            (1 - q.hidden_message_share)
            * q.tensor_layer_message_seconds
            * (1 + where(q.recompute_policy < 3, 0, 2 / (4 + q.regather)))
        )

    def expert_nodes(q):
        r"""n_e | count | nodes over which the experts of a layer are divided"""
        return ceil_div(q.expert_parallel * q.tensor_parallel, q.ranks_per_node)

    @BOOK.own(source="DeepEP, README.md: a copy for each node, forwarded inside it")
    def expert_network_seconds(q):
        r"""\tau_\text{net}^e | seconds | time in which a rank's network card sends a microbatch's
        tokens to experts in other nodes: one copy of a token for each of them at most"""
        return where(
            q.expert_nodes > 1,
            q.latency_seconds
            + minimum(
                q.experts_per_token * (q.expert_nodes - 1) / q.expert_nodes, q.expert_nodes - 1
            )
            * q.compute_element_bytes
            * q.tensor_own_tokens
            * q.hidden
            * q.ranks_per_node
            / q.link_bytes_per_second,
            0,
        )

    @BOOK.own(source="Lepikhin et al. 2020 (GShard), section 3")
    def layer_expert_seconds(q):
        r"""\tau_\ell^e | seconds | time of a layer's messages to and from experts on other ranks:
        an all-to-all there and one back, in forward and in backward, with a copy of a token for
        each of its experts inside a node, or the network's part where that takes longer; the mean
        of the layers where some have no experts; as long as the fullest rank's; a layer that is
        recomputed sends those of its forward again"""
        return (
            where(q.recompute_policy < 3, 4, 6)
            * (q.layers - q.dense_layers)
            / q.layers
            * (q.expert_load_percent / 100)
            * maximum(
                q.expert_network_seconds,
                ring_pass(
                    q.expert_parallel,
                    0,
                    q.experts_per_token
                    * q.compute_element_bytes
                    * q.tensor_own_tokens
                    * q.hidden
                    / q.node_bytes_per_second,
                )
                + where(q.expert_parallel > 1, q.node_latency_seconds, 0),
            )
        )

    @BOOK.own(source="2 operations for each weight and row, thrice")
    def layer_late_seconds(q):
        r"""\tau_\ell^\text{late} | seconds | time for which a layer waits for products of the rows
        that the fullest rank's experts have beyond an even share; the mean of the layers where some
        have no experts"""
        return (
            where(q.recompute_policy < 3, 6, 8)
            * (q.layers - q.dense_layers)
            / q.layers
            * (2 + q.gated_mlp)
            * q.hidden
            * q.feed_forward
            * q.experts_per_token
            * q.microbatch_tokens
            * (q.expert_load_percent - 100)
            / (100 * q.tensor_parallel * q.utilisation * q.flops_per_second)
        )

    @BOOK.own(source="Megatron-LM, moe/token_dispatcher.py")
    def layer_expert_tensor_seconds(q):
        r"""\tau_\ell^{et} | seconds | time in which tensor-parallel ranks, each of which has a part
        of every expert, gather the tokens of an expert and add up its outputs, and the gradients of
        both; the mean of the layers where some have no experts"""
        return (
            where(q.recompute_policy < 3, 4, 6)
            * where(q.experts > 0, q.layers - q.dense_layers, 0)
            / q.layers
            * ring_pass(
                q.tensor_parallel,
                q.tensor_latency_seconds,
                q.experts_per_token * q.tensor_message_bytes / q.tensor_link_bytes_per_second,
            )
        )

    @BOOK.own(source="fitted to nanotron's runs", measured_by=_PUBLISHED)
    def layer_host_seconds(q):
        r"""\tau_\ell^\text{host} | seconds | time in which the CPU drives a layer: launches, and in
        pipelines over several nodes a wait for each further tensor-parallel rank"""
        return q.layer_launch_seconds + where(
            q.pipeline_parallel > 1,
            where(q.layout_gpus > q.ranks_per_node, q.tensor_parallel - 1, 0)
            * q.tensor_rank_wait_seconds,
            0,
        )

    def layer_seconds(q):
        r"""\tau_\ell | seconds | time of a layer for one microbatch, forward and backward:
        products, elementwise operations and messages one after the other, or the CPU, where it
        launches them more slowly"""
        return maximum(
            q.layer_host_seconds,
            q.layer_forward_seconds
            + q.layer_backward_seconds
            + q.layer_moving_seconds
            + q.layer_waiting_seconds
            + q.layer_expert_seconds
            + q.layer_expert_tensor_seconds
            + q.layer_late_seconds
            + q.layer_context_seconds,
        )

    @BOOK.own(source="2 operations for each weight and token, thrice")
    def head_seconds(q):
        r"""\tau_V | seconds | time of the head and the loss for one microbatch: the product,
        without a gradient of a frozen head's weight, and three passes over the logits"""
        return (
            where(q.adapter_rank > 0, 4, 6)
            * q.microbatch_tokens
            * q.hidden
            * q.vocabulary
            / (q.tensor_parallel * q.utilisation * q.flops_per_second)
            + 3
            * q.loss_logit_bytes
            * q.microbatch_tokens
            * q.tensor_vocabulary
            / q.memory_bytes_per_second
        )

    def model_seconds(q):
        r"""\tau_\text{through} | seconds | time of one microbatch in all layers and the head, one
        after the other"""
        return q.layers * q.layer_seconds + q.head_seconds


class APipeline(BOOK.section(source="Narayanan et al. 2021, section 2.2", measured_by=_SIMULATED)):
    def middle_rank_layers(q):
        r"""L_\text{own} | count | layers of a rank of the pipeline that is not at an end of the
        model"""
        return q.pipeline_chunks * q.middle_stage_layers

    def last_rank_layers(q):
        r"""L_\text{tail} | count | layers of the last rank, which also has the head"""
        return q.middle_rank_layers - (q.shorter_ends + q.last_stage_less)

    def slowest_rank_seconds(q):
        r"""\tau_\text{slow} | seconds | time of one microbatch on the slowest rank of the pipeline,
        whose pace all ranks keep: the last, with the head, or one with a layer more"""
        return where(
            q.pipeline_parallel > 1,
            maximum(
                q.middle_rank_layers * q.layer_seconds,
                q.last_rank_layers * q.layer_seconds + q.head_seconds,
            ),
            q.model_seconds,
        )

    def bubble_seconds(q):
        r"""\tau_\text{bubble} | seconds | time in which the slowest rank is idle while the pipeline
        fills and drains: what one microbatch takes on all other ranks, divided by the stages of a
        rank"""
        return maximum(0, q.model_seconds - q.slowest_rank_seconds) / q.pipeline_chunks

    @BOOK.own(source="a rank drives one card")
    def stage_bytes_per_second(q):
        r"""B_\text{stage} | bytes/s | bandwidth from stage to stage: inside a node, or one network
        card where the ranks of a stage fill a node"""
        return where(
            q.data_parallel * q.tensor_parallel < q.ranks_per_node,
            q.node_bytes_per_second,
            q.link_bytes_per_second / q.ranks_per_node,
        )

    def pipeline_passing_time_seconds(q):
        r"""\tau_\text{hop} | seconds | time of the messages between stages that every rank waits
        for; each rank of a tensor-parallel group sends its part"""
        return (
            q.pipeline_transfers
            * (
                q.latency_seconds
                + q.residual_bytes / (q.tensor_parallel * q.stage_bytes_per_second)
            )
            + where(q.pipeline_parallel > 1, q.accumulation_steps, 0) * q.microbatch_stall_seconds
        )


class DataParallelism(
    BOOK.section(source="Rajbhandari et al. 2020 (ZeRO), section 7", measured_by=_COUNTED)
):
    @BOOK.own(source="tensor-parallel ranks are neighbours")
    def data_ranks_per_node(q):
        r"""n_\text{local} | count | data-parallel ranks of one group that a node has, beside its
        tensor-parallel ranks"""
        return maximum(1, floor_div(q.ranks_per_node, q.tensor_parallel))

    @BOOK.own(source="a ring is as fast as its slowest link")
    def data_bytes_per_second(q):
        """B_d | bytes/s | bandwidth of the rings of data-parallel ranks that share states: inside a
        node, or of the network cards of its ranks in a node, if these are slower"""
        return where(
            q.shard_ranks * q.tensor_parallel > q.ranks_per_node,
            minimum(
                q.node_bytes_per_second,
                q.link_bytes_per_second * q.data_ranks_per_node / q.ranks_per_node,
            ),
            q.node_bytes_per_second,
        )

    @BOOK.own(source="expert-parallel ranks are neighbours")
    def expert_data_bytes_per_second(q):
        """B_{d/e} | bytes/s | bandwidth of the rings of the data-parallel ranks that have the same
        experts"""
        return where(
            q.shard_ranks * q.tensor_parallel > q.ranks_per_node,
            minimum(
                q.node_bytes_per_second,
                q.link_bytes_per_second
                * maximum(1, floor_div(q.data_ranks_per_node, q.expert_parallel))
                / q.ranks_per_node,
            ),
            q.node_bytes_per_second,
        )

    @BOOK.own(source="Patarasuk and Yuan 2009")
    def rank_byte_seconds(q):
        r"""\tau_\text{dring} | seconds | time of one byte for each of the rank's parameters around
        the data-parallel ranks; experts go around the ranks that have the same"""
        return ring_pass(
            q.shard_ranks, 0, q.rank_common_parameters / q.data_bytes_per_second
        ) + ring_pass(
            floor_div(q.shard_ranks, q.expert_parallel),
            0,
            q.rank_expert_parameters / q.expert_data_bytes_per_second,
        )

    @BOOK.own(source="Rajbhandari et al. 2021 (ZeRO-Infinity), section 5")
    def shard_fetch_seconds(q):
        r"""\tau_\text{fetch} | seconds | time of one byte for each parameter of the rank's shard
        between the host and the GPU, where stage 3 has its shards on the host"""
        return where(
            q.zero_stage < 3, 0, q.offload * q.rank_shard_parameters / q.offload_bytes_per_second
        )

    @BOOK.own(source="Patarasuk and Yuan 2009")
    def rank_gather_seconds(q):
        r"""\tau_\text{dgat} | seconds | time to gather all parameters of the rank among the
        data-parallel ranks, each of which may have to fetch its shard from the host"""
        return (
            ring_pass(q.shard_ranks, q.latency_seconds, 0)
            + q.parameter_element_bytes * q.rank_byte_seconds
            + q.parameter_element_bytes * q.shard_fetch_seconds
        )

    @BOOK.own(source="ranks that share states are neighbours")
    def group_bytes_per_second(q):
        r"""B_\text{rep} | bytes/s | bandwidth between the ranks of different groups that have the
        same shard"""
        return where(
            q.data_parallel * q.tensor_parallel > q.ranks_per_node,
            minimum(
                q.node_bytes_per_second,
                q.link_bytes_per_second
                * maximum(1, floor_div(q.data_ranks_per_node, q.shard_ranks))
                / q.ranks_per_node,
            ),
            q.node_bytes_per_second,
        )

    @BOOK.own(source="Zhang et al. 2022 (MiCS), section 3.3")
    def group_reduce_seconds(q):
        r"""\tau_\text{rep} | seconds | time to add up the gradients of a shard over the groups that
        have it: an all-reduce"""
        return 2 * ring_pass(
            q.shard_groups,
            q.latency_seconds,
            q.gradient_element_bytes * q.rank_shard_parameters / q.group_bytes_per_second,
        )

    @BOOK.own(source="Patarasuk and Yuan 2009")
    def rank_reduce_seconds(q):
        r"""\tau_\text{dred} | seconds | time to reduce all gradients of the rank among the
        data-parallel ranks; stage 0 also gathers the sums, shards may go to the host, and groups
        add up their shards"""
        return (
            where(q.zero_stage < 1, 2, 1)
            * (
                ring_pass(q.shard_ranks, q.latency_seconds, 0)
                + q.gradient_element_bytes * q.rank_byte_seconds
            )
            + q.gradient_element_bytes * q.shard_fetch_seconds
            + q.group_reduce_seconds
        )

    def overlapping_microbatches(q):
        r"""m_\text{hide} | count | microbatches in whose time data-parallel messages can travel:
        the first and the last; with several stages on a rank, which start and end one after
        another, one for each rank"""
        return where(q.pipeline_chunks > 1, q.pipeline_parallel, 1)

    @BOOK.own(source="a backward is two forwards")
    def hiding_forward_seconds(q):
        r"""\tau_\text{hide}^\text{fwd} | seconds | time of a microbatch's forward on the slowest
        rank, in which parameters can travel"""
        return q.overlapping_microbatches * q.slowest_rank_seconds / 3

    @BOOK.own(source="a backward is two forwards")
    def hiding_backward_seconds(q):
        r"""\tau_\text{hide}^\text{bwd} | seconds | time of a microbatch's backward on the slowest
        rank, in which gradients can travel"""
        return q.overlapping_microbatches * 2 * q.slowest_rank_seconds / 3

    def gather_exposed_seconds(q):
        r"""\tau_\text{gat}^\text{exp} | seconds | time for which a forward waits for parameters:
        the first layer's, and what is longer than the forward"""
        return where(
            q.prefetch_units < 1,
            q.rank_gather_seconds,
            maximum(
                q.rank_gather_seconds / q.middle_rank_layers,
                q.rank_gather_seconds - q.hiding_forward_seconds,
            ),
        )

    def backward_travel_seconds(q):
        r"""\tau_\text{travel} | seconds | time of a backward's messages: gradients, and in stage 3
        the parameters, gathered again"""
        return q.rank_reduce_seconds + where(
            q.zero_backward_gatherings < 1, 0, q.rank_gather_seconds
        )

    def reduce_exposed_seconds(q):
        r"""\tau_\text{red}^\text{exp} | seconds | time for which a backward waits for its messages:
        the last layer's, and what is longer than the backward"""
        return where(
            q.reduce_early < 1 + q.shards_late * minimum(q.zero_stage, 1),
            q.backward_travel_seconds,
            maximum(
                q.backward_travel_seconds / q.middle_rank_layers,
                q.backward_travel_seconds - q.hiding_backward_seconds,
            ),
        )

    def data_exposed_seconds(q):
        r"""\tau_\text{dexp} | seconds | time of a step in which ranks wait for data-parallel
        messages"""
        return (
            q.zero_forward_gatherings * q.gather_exposed_seconds
            + q.zero_reductions * q.reduce_exposed_seconds
        )


class AStep(BOOK.section(source=_MEGATRON, measured_by=_PUBLISHED)):
    @BOOK.own(source="counted: each state is read and written")
    def rank_update_seconds(q):
        r"""\tau_\text{adam} | seconds | time of the update of the rank's parameters or of its
        shard, limited by memory, the host's with offload: master copy and moments both ways, the
        gradient in, the parameter out"""
        return (
            (
                2 * (q.master_element_bytes + q.optimizer_moments * q.moment_element_bytes)
                + q.gradient_element_bytes
                + q.parameter_element_bytes
            )
            * q.rank_moment_parameters
            / where(q.offload < 1, q.memory_bytes_per_second, q.offload_bytes_per_second)
        )

    def layout_seconds(q):
        r"""\tau_\text{layout} | seconds | time of a step of a layout"""
        return (
            q.accumulation_steps * q.slowest_rank_seconds
            + q.bubble_seconds
            + q.pipeline_passing_time_seconds
            + q.data_exposed_seconds
            + q.rank_update_seconds
        )

    def layout_tokens_per_second(q):
        r"""\nu_\text{GPU} | tokens/s | tokens that each GPU of the layout trains on in a second"""
        return (
            q.accumulation_steps
            * q.microbatch_tokens
            / (q.tensor_parallel * q.pipeline_parallel * q.layout_seconds)
        )

    def layout_gpus(q):
        r"""n_\text{layout} | GPUs | GPUs of the layout: one for each of its ranks"""
        return q.data_parallel * q.gpus_per_copy

    def layout_utilisation(q):
        r"""\eta_\text{MFU} | fraction | share of the datasheet's rate that the layout achieves,
        with all attention scores and without what is recomputed"""
        return (
            (
                q.matmul_flops_per_token
                - where(q.adapter_rank > 0, 2 * q.matrix_parameters, 0)
                + 6 * (q.context_parallel - 1) * q.layers * q.attended_columns * q.sequence
            )
            * q.layout_tokens_per_second
            / q.flops_per_second
        )
