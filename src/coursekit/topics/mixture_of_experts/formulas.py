"""Experts: rows that reach each rank, rows that a capacity drops, bytes on their way, and seconds
of the fullest rank.

The routing is a model with one dial. A share of all tokens has collapsed onto the same experts, as
many as a token takes; all others are spread evenly. These experts are neighbours on the first
ranks. Parameters, total and active, and the operations of both are formulas of the first chapter;
`rank` and the planner have an expert's states.
"""

from coursekit.formulas.registry import BOOK
from coursekit.formulas.subset import ceil_div, maximum, minimum, where

BOOK.given_beside(__file__)

_TESTS = "tests/mixture_of_experts/test_experts_formulas.py"
_ROUTED = f"{_TESTS}::test_rows_of_a_routing"
_SENT = f"{_TESTS}::test_bytes_of_a_layer"
_TIMED = f"{_TESTS}::test_seconds_of_the_fullest_rank"


class RowsOfARouting(BOOK.section(source="definition of the dial", measured_by=_ROUTED)):
    def even_expert_rows(q):
        r"""Y_\text{even} | rows | rows of an expert for a microbatch of all ranks, if all experts
        get equally many"""
        return q.expert_parallel * q.microbatch_tokens * q.experts_per_token / q.experts

    def hot_expert_rows(q):
        r"""Y_\text{hot} | rows | rows sent to an expert onto which tokens have collapsed"""
        return (
            q.collapsed_share * q.expert_parallel * q.microbatch_tokens
            + (1 - q.collapsed_share) * q.even_expert_rows
        )

    def cold_expert_rows(q):
        r"""Y_\text{cold} | rows | rows sent to each other expert"""
        return (1 - q.collapsed_share) * q.even_expert_rows

    def expert_capacity_rows(q):
        r"""Y_\text{cap} | rows | rows that an expert takes at most, before rounding up; as many as
        come where there is no limit"""
        return where(
            q.capacity_factor > 0, q.capacity_factor * q.even_expert_rows, q.hot_expert_rows
        )

    def rank_hot_experts(q):
        r"""n_\text{hot}^r | count | experts of a rank onto which tokens have collapsed"""
        return minimum(q.layer_mlps, maximum(0, q.experts_per_token - q.expert_rank * q.layer_mlps))

    def fullest_hot_experts(q):
        r"""n_\text{hot} | count | experts of rank 0 onto which tokens have collapsed"""
        return minimum(q.layer_mlps, q.experts_per_token)

    def rank_expert_rows(q):
        r"""Y_\text{exp}^r | rows | rows that a rank's experts compute"""
        return q.rank_hot_experts * minimum(q.hot_expert_rows, q.expert_capacity_rows) + (
            q.layer_mlps - q.rank_hot_experts
        ) * minimum(q.cold_expert_rows, q.expert_capacity_rows)

    def fullest_rank_rows(q):
        r"""Y_\text{full} | rows | rows of the fullest rank, which is rank 0"""
        return q.fullest_hot_experts * minimum(q.hot_expert_rows, q.expert_capacity_rows) + (
            q.layer_mlps - q.fullest_hot_experts
        ) * minimum(q.cold_expert_rows, q.expert_capacity_rows)

    def even_rank_rows(q):
        r"""Y_\text{mean} | rows | rows of a rank, if all ranks get equally many and none is
        dropped"""
        return 1.0 * q.microbatch_tokens * q.experts_per_token

    def expert_imbalance(q):
        r"""\varphi_\text{exp} | fraction, from 0 | rows sent to the fullest expert, as a multiple
        of the mean: 1 is balance, and experts / experts_per_token total collapse"""
        return q.hot_expert_rows / q.even_expert_rows

    def rank_imbalance(q):
        r"""\varphi_\text{rank} | fraction, from 0 | rows that the fullest rank computes, as a
        multiple of the mean of dropless ranks"""
        return q.fullest_rank_rows / q.even_rank_rows

    def dropped_share(q):
        r"""\pi_\text{cap} | fraction | share of all rows that a capacity drops"""
        return (
            q.experts_per_token * maximum(0, q.hot_expert_rows - q.expert_capacity_rows)
            + (q.experts - q.experts_per_token)
            * maximum(0, q.cold_expert_rows - q.expert_capacity_rows)
        ) / (q.expert_parallel * q.even_rank_rows)


class BytesOfALayer(BOOK.section(source="Lepikhin et al. 2020 (GShard)", measured_by=_SENT)):
    def expert_token_bytes(q):
        r"""S_\text{tok}^e | bytes | bytes of one token to all its experts and back, in forward of
        a layer"""
        return q.experts_per_token * q.hidden * (q.dispatch_element_bytes + q.combine_element_bytes)

    def expert_layer_sent_bytes(q):
        r"""Q_\ell^e | bytes | bytes that a rank sends for a layer's experts, forward and backward:
        two all-to-alls each, of rows without drops; an even share of them stays on the rank"""
        return ceil_div(
            2 * q.microbatch_tokens * (q.expert_parallel - 1) * q.expert_token_bytes,
            q.expert_parallel,
        )

    @BOOK.own(source="Shoeybi et al. 2019")
    def tensor_token_bytes(q):
        r"""S_\text{tok}^t | bytes | bytes that tensor-parallel ranks send for one token in a layer,
        forward and backward, all ranks together: four all-reduces around rings"""
        return 8 * (q.tensor_parallel - 1) * q.compute_element_bytes * q.hidden

    def fullest_rank_bytes(q):
        r"""S_\text{full} | bytes, any number | bytes of rows that the fullest rank receives for a
        layer's experts and sends back, forward and backward"""
        return (
            2
            * (q.dispatch_element_bytes + q.combine_element_bytes)
            * q.hidden
            * q.fullest_rank_rows
            * (q.expert_parallel - 1)
            / q.expert_parallel
        )

    @BOOK.own(source="2 operations for each weight and token")
    def expert_token_flops(q):
        r"""C_\text{exp} | FLOP | operations of one token's experts in forward of a layer, those of
        every token among them"""
        return (
            2.0
            * (2 + q.gated_mlp)
            * q.hidden
            * (q.experts_per_token * q.feed_forward + q.shared_feed_forward)
        )

    @BOOK.own(source="definition")
    def expert_intensity(q):
        r"""I_e | FLOP/byte | operations of a token's experts for each byte that it sends there and
        back"""
        return q.expert_token_flops / q.expert_token_bytes

    @BOOK.own(source="definition", measured_by=f"{_TESTS}::test_states_of_experts")
    def rank_expert_state_bytes(q):
        r"""M_\text{exp}^r | bytes | bytes of the states of a rank's experts, without those of every
        token, where a copy of the model is on the ranks that divide its experts"""
        return q.bytes_per_parameter * (q.layers - q.dense_layers) * q.layer_mlps * q.mlp_parameters


class SecondsOfALayer(
    BOOK.section(source="all ranks wait for the fullest one", measured_by=_TIMED)
):
    def expert_exchange_seconds(q):
        r"""\tau_\text{swap}^e | seconds | time of a layer's four all-to-alls, forward and backward,
        as the fullest rank's link carries them"""
        return (
            where(q.expert_parallel > 1, 4 * q.latency_seconds, 0)
            + q.fullest_rank_bytes / q.link_bytes_per_second
        )

    def expert_compute_seconds(q):
        r"""\tau_\text{expert} | seconds | time of the fullest rank's experts, forward and
        backward"""
        return (
            6
            * (2 + q.gated_mlp)
            * q.hidden
            * q.feed_forward
            * q.fullest_rank_rows
            / (q.utilisation * q.flops_per_second)
        )

    def experts_seconds(q):
        r"""\tau_\text{moe} | seconds | time of a layer's experts and their messages, one after the
        other, without the experts of every token"""
        return q.expert_exchange_seconds + q.expert_compute_seconds

    def balanced_experts_seconds(q):
        r"""\tau_\text{moe}^\text{even} | seconds | that time if all ranks get equally many rows and
        none is dropped"""
        return where(q.expert_parallel > 1, 4 * q.latency_seconds, 0) + (
            q.expert_layer_sent_bytes / q.link_bytes_per_second
            + 6
            * (2 + q.gated_mlp)
            * q.hidden
            * q.feed_forward
            * q.even_rank_rows
            / (q.utilisation * q.flops_per_second)
        )
