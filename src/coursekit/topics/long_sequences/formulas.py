"""Long sequences: the bytes that each mix of context parallelism sends, the work of each rank by
the order of its tokens, when a ring hides, and attention that leaves pairs of tokens out.

`sequence` is what one of the c ranks that share a sequence has. Pairs are a query and a key that
it sees; a causal sequence of S tokens has S(S + 1)/2.
"""

from coursekit.formulas.registry import BOOK
from coursekit.formulas.subset import (
    ceil_div,
    choose,
    floor_div,
    maximum,
    minimum,
    where,
)

BOOK.given_beside(__file__)

_OURS = "shardlab.context_parallel"
_TESTS = "tests/long_sequences/test_long_sequence_formulas.py"
_BYTES = f"{_TESTS}::test_bytes_of_mixes"
_WORK = f"{_TESTS}::test_work_of_a_rank"
_TURNS = f"{_TESTS}::test_seconds_of_a_ring"
_FEWER = f"{_TESTS}::test_pairs_of_masks"
_TILES = f"{_TESTS}::test_bytes_of_tiles"
_PEAKS = f"{_TESTS}::test_published_peaks_of_long_sequences"


class BytesOfAMix(BOOK.section(source=_OURS, measured_by=_BYTES)):
    def whole_sequence(q):
        r"""s_\text{whole} | count | tokens of a sequence, on all ranks that share it"""
        return q.context_parallel * q.sequence

    def key_value_elements(q):
        r"""n_\text{kv} | count | elements of a rank's keys and values of a layer, for a
        microbatch"""
        return ceil_div(
            q.microbatch_tokens
            * where(q.key_value_latent > 0, q.attended_columns, 2 * q.key_value_size),
            q.tensor_parallel,
        )

    def key_value_kept_bytes(q):
        r"""S_\text{kv} | bytes | bytes of a rank's keys and values of a layer"""
        return q.compute_element_bytes * q.key_value_elements

    def key_value_gradient_bytes(q):
        r"""S_\text{dkv} | bytes | bytes of their gradients on the way home, added up in fp32 at
        least"""
        return maximum(4, q.compute_element_bytes) * q.key_value_elements

    def ring_forward_bytes(q):
        r"""S_\text{ring}^\text{fwd} | bytes | bytes that a rank sends in the ring of a layer's
        forward: keys and values in c - 1 turns"""
        return (q.context_parallel - 1) * q.key_value_kept_bytes

    def ring_backward_bytes(q):
        r"""S_\text{ring}^\text{bwd} | bytes | bytes that it sends in backward: keys and values
        again, and their gradients, which are home after c turns: the last in the keys' dtype"""
        return where(
            q.context_parallel > 1,
            q.ring_forward_bytes
            + (q.context_parallel - 1) * q.key_value_gradient_bytes
            + q.key_value_kept_bytes,
            0,
        )

    def gathered_forward_bytes(q):
        r"""S_\text{gat}^\text{fwd} | bytes | bytes that a rank sends while all gather keys and
        values: its own to each of the others"""
        return (q.context_parallel - 1) * q.key_value_kept_bytes

    def gathered_backward_bytes(q):
        r"""S_\text{gat}^\text{bwd} | bytes | bytes that it sends in backward: a reduce-scatter of
        the gradients"""
        return (q.context_parallel - 1) * q.key_value_kept_bytes

    def exchanged_bytes(q):
        r"""S_\text{heads} | bytes | bytes that a rank sends in the four all-to-alls of a forward:
        queries, keys, values and outputs, but for its own part of each; in backward as many"""
        return q.compute_element_bytes * floor_div(
            (q.context_parallel - 1)
            * (
                q.key_value_elements
                + ceil_div(q.microbatch_tokens * q.attended_columns, q.tensor_parallel)
            ),
            q.context_parallel,
        )

    def context_forward_bytes(q):
        r"""S_c^\text{fwd} | bytes | bytes that a rank sends in a layer's forward, by its mix"""
        return choose(
            q.context_mix, q.ring_forward_bytes, q.gathered_forward_bytes, q.exchanged_bytes
        )

    def context_backward_bytes(q):
        r"""S_c^\text{bwd} | bytes | bytes that it sends in a layer's backward"""
        return choose(
            q.context_mix, q.ring_backward_bytes, q.gathered_backward_bytes, q.exchanged_bytes
        )

    def context_sent_bytes(q):
        r"""S_c | bytes | bytes that a rank sends in a layer, forward and backward"""
        return q.context_forward_bytes + q.context_backward_bytes

    def context_messages(q):
        r"""n_c | count | messages that a rank waits for in a layer: turns of the ring in both
        directions, a gather and a reduce-scatter, or eight all-to-alls"""
        return where(
            q.context_parallel > 1, choose(q.context_mix, 3 * (q.context_parallel - 1) + 1, 2, 8), 0
        )

    def exchanges_heads(q):
        r"""1_\text{heads} | count | 1 where ranks that share a sequence exchange heads, 0 if not"""
        return where(q.context_parallel > 1, where(q.context_mix > 2, 1, 0), 0)

    @BOOK.own(source="Transformer Engine", measured_by=_PEAKS)
    def more_attention_outputs(q):
        r"""n_\text{more} | count | copies of attention's output that a library's kernels keep
        beside one, and none of them where the exchange of heads makes a new one"""
        return where(q.exchanges_heads > 0, 0, q.kept_attention_outputs - 1)

    @BOOK.own(source="torch.autograd keeps what attention reads", measured_by=_PEAKS)
    def context_kept_bytes(q):
        r"""A_c | bytes | bytes that a mix keeps for backward beside those of attention on the
        rank's tokens: keys and values of all other ranks where they are gathered; where heads are
        exchanged, the output before its way back"""
        return where(
            q.context_parallel > 1,
            choose(
                q.context_mix,
                0,
                q.gathered_forward_bytes,
                q.compute_element_bytes
                * ceil_div(q.microbatch_tokens * q.query_size, q.tensor_parallel),
            ),
            0,
        )


class WorkOfARank(
    BOOK.section(
        source="Brandon et al. 2023 (striped); zhuzilin/ring-flash-attention, issue 2",
        measured_by=_WORK,
    )
):
    def contiguous_pairs(q):
        r"""n_\text{cont} | count | pairs of a rank with a contiguous part of a sequence"""
        return q.context_rank * q.sequence**2 + floor_div(q.sequence * (q.sequence + 1), 2)

    def zigzag_pairs(q):
        r"""n_\text{zig} | count | pairs of a rank with a part from the beginning and one from the
        end: of all ranks the same"""
        return q.context_parallel * 2 * floor_div(q.sequence, 2) ** 2 + floor_div(q.sequence, 2)

    def striped_pairs(q):
        r"""n_\text{strip} | count | pairs of a rank with every c-th token"""
        return q.context_parallel * floor_div(q.sequence * (q.sequence - 1), 2) + q.sequence * (
            q.context_rank + 1
        )

    def rank_pairs(q):
        r"""n_r | count | pairs of a rank, by the order of its tokens"""
        return choose(q.context_order, q.contiguous_pairs, q.zigzag_pairs, q.striped_pairs)

    def causal_pairs(q):
        r"""n_\text{pairs} | count | pairs of a whole causal sequence"""
        return floor_div(q.whole_sequence * (q.whole_sequence + 1), 2)

    def rank_units(q):
        r"""\varphi_r | fraction, from 0 | work of a rank in squares of half its tokens, where a
        masked half counts as half: 2(2r + 1) if contiguous, 2c in zigzag"""
        return 4 * q.rank_pairs / q.sequence**2

    @BOOK.own(source="ranks wait for the slowest in each turn")
    def order_efficiency(q):
        r"""\eta_\text{order} | fraction | share of a ring's time in which a rank computes on
        average: in a contiguous order c/(2c - 1), because whoever has a later part meets whole
        blocks in each turn; else all of it"""
        return where(
            q.context_order > 1,
            1,
            q.context_parallel / (q.context_parallel + (q.context_parallel - 1)),
        )


class SecondsOfARing(BOOK.section(source="Liu et al. 2023 (Ring Attention)", measured_by=_TURNS)):
    @BOOK.own(source="context-parallel ranks are neighbours")
    def context_bytes_per_second(q):
        """B_c | bytes/s | bandwidth between ranks that share a sequence: inside a node, or of the
        rank's network card where they are on several nodes"""
        return where(
            q.context_parallel * q.tensor_parallel > q.ranks_per_node,
            q.link_bytes_per_second / q.ranks_per_node,
            q.node_bytes_per_second,
        )

    @BOOK.own(source="context-parallel ranks are neighbours")
    def context_latency_seconds(q):
        r"""\alpha_c | seconds | latency between these ranks"""
        return where(
            q.context_parallel * q.tensor_parallel > q.ranks_per_node,
            q.latency_seconds,
            q.node_latency_seconds,
        )

    def balanced_turn_seconds(q):
        r"""\tau_\text{turn} | seconds | time in which a rank computes in a turn of a balanced
        ring's forward: the c-th part of its attention, in the first turn of any order as well"""
        return q.attention_core_flops / (
            q.context_parallel * q.tensor_parallel * q.utilisation * q.flops_per_second
        )

    def ring_turn_seconds(q):
        r"""\tau_\text{turn}^\text{max} | seconds | time in which the slowest rank computes in any
        later turn: in a contiguous order twice that, because nothing of its block is masked"""
        return where(q.context_order > 1, 1, 2) * q.balanced_turn_seconds

    def ring_message_seconds(q):
        r"""\tau_\text{kv} | seconds | time of a rank's keys and values to the next rank"""
        return q.context_latency_seconds + q.key_value_kept_bytes / q.context_bytes_per_second

    def ring_gradient_seconds(q):
        r"""\tau_\text{dkv} | seconds | time of the gradients of keys and values to the next rank"""
        return q.context_latency_seconds + q.key_value_gradient_bytes / q.context_bytes_per_second

    def ring_forward_seconds(q):
        r"""\tau_\text{ring}^\text{fwd} | seconds | time of a layer's attention forward in the ring:
        in each turn but the last, keys and values travel while the rank computes"""
        return where(
            q.context_parallel > 1,
            maximum(q.balanced_turn_seconds, q.ring_message_seconds)
            + (q.context_parallel - 2) * maximum(q.ring_turn_seconds, q.ring_message_seconds)
            + q.ring_turn_seconds,
            q.balanced_turn_seconds,
        )

    @BOOK.own(source="five products backward, two forward; gradients follow a turn later")
    def ring_backward_seconds(q):
        r"""\tau_\text{ring}^\text{bwd} | seconds | time of its backward, in which the gradients of
        the turn before travel, too; the last ones, in the keys' dtype, no work hides"""
        return where(
            q.context_parallel > 1,
            maximum(2.5 * q.balanced_turn_seconds, q.ring_message_seconds)
            + (q.context_parallel - 2)
            * maximum(2.5 * q.ring_turn_seconds, q.ring_message_seconds + q.ring_gradient_seconds)
            + maximum(2.5 * q.ring_turn_seconds, q.ring_gradient_seconds)
            + q.ring_message_seconds,
            2.5 * q.balanced_turn_seconds,
        )

    def ring_forward_exposed_seconds(q):
        r"""\tau_\text{ring}^\text{wait} | seconds | time of the forward in which the slowest rank
        waits for messages"""
        return q.ring_forward_seconds - (
            q.balanced_turn_seconds + (q.context_parallel - 1) * q.ring_turn_seconds
        )

    def ring_backward_exposed_seconds(q):
        r"""\tau_\text{ring}^\text{wback} | seconds | time of the backward in which it waits for
        messages"""
        return q.ring_backward_seconds - 2.5 * (
            q.balanced_turn_seconds + (q.context_parallel - 1) * q.ring_turn_seconds
        )

    @BOOK.own(
        source="Jacobs et al. 2023 (Ulysses), section 3; Grattafiori et al. 2024, section 3.3.2",
        measured_by="tests/which_layout/test_layout_seconds.py::test_a_step_by_hand",
    )
    def layer_context_seconds(q):
        r"""\tau_\ell^c | seconds | time for which a layer waits for messages between ranks that
        share a sequence, by their mix; what is recomputed sends those of its forward again"""
        return choose(
            q.context_mix,
            where(q.recompute_policy < 1, 1, 2) * q.ring_forward_exposed_seconds
            + q.ring_backward_exposed_seconds,
            where(q.recompute_policy < 1, 2, 3)
            * (
                (q.context_parallel - 1) * q.context_latency_seconds
                + q.gathered_forward_bytes / q.context_bytes_per_second
            ),
            where(q.recompute_policy < 1, 2, 3)
            * (
                (q.context_parallel - 1) * q.context_latency_seconds
                + q.exchanged_bytes / q.context_bytes_per_second
            ),
        )

    def hiding_tokens(q):
        r"""T_c^\text{hide} | tokens/GPU | tokens of a rank from which on the forward of a balanced
        ring hides its messages, whatever the batch; with half of the scores masked, in 16 bits,
        2(F/B)(h_kv/h)"""
        return (
            q.compute_element_bytes
            * where(q.key_value_latent > 0, q.attended_columns, 2 * q.key_value_size)
            * q.utilisation
            * q.flops_per_second
            / (2 * q.score_share * q.attended_columns * q.context_bytes_per_second)
        )

    def ring_hides(q):
        r"""1_\text{hide} | count | 1 if the ring's forward hides its messages, 0 if not"""
        return where(q.sequence >= q.hiding_tokens, 1, 0)


class AttentionOfFewerPairs(
    BOOK.section(source="counted in masks of the core's", measured_by=_FEWER)
):
    def tokens_beyond_window(q):
        r"""n_\text{far} | count | tokens that do not see all tokens before them through a window"""
        return maximum(q.whole_sequence - q.window_tokens, 0)

    def near_pairs(q):
        r"""n_\text{win} | count | pairs of a sliding window (Beltagy et al. 2020)"""
        return floor_div(
            minimum(q.window_tokens, q.whole_sequence)
            * (minimum(q.window_tokens, q.whole_sequence) + 1),
            2,
        ) + q.tokens_beyond_window * minimum(q.window_tokens, q.whole_sequence)

    def sink_pairs(q):
        r"""n_\text{sinks} | count | pairs with sinks that a window has left out (Xiao et al.
        2023)"""
        return floor_div(
            minimum(q.sink_tokens, q.tokens_beyond_window)
            * (minimum(q.sink_tokens, q.tokens_beyond_window) + 1),
            2,
        ) + q.sink_tokens * maximum(q.tokens_beyond_window - q.sink_tokens, 0)

    def window_pairs(q):
        r"""n_\text{ws} | count | pairs of a window and its sinks"""
        return q.near_pairs + q.sink_pairs

    def window_share(q):
        r"""\varphi_\text{win} | fraction | share of all causal pairs that a window and its sinks
        compute"""
        return q.window_pairs / q.causal_pairs

    def window_turns(q):
        r"""n_\text{turn}^\text{win} | count | turns after which a ring of contiguous parts may
        stop: no window reaches keys of ranks farther before; zigzag needs all c - 1"""
        return minimum(q.context_parallel - 1, ceil_div(q.window_tokens - 1, q.sequence))

    def window_sent_bytes(q):
        r"""S_\text{win} | bytes | bytes that a rank sends in the forward of a windowed layer in
        contiguous parts, without sinks"""
        return q.window_turns * q.key_value_kept_bytes

    def blocks_of_a_sequence(q):
        r"""n_\text{blocks} | count | blocks of a block-sparse sequence, which they divide"""
        return floor_div(q.whole_sequence, q.sparse_block)

    def first_sparse_blocks(q):
        r"""n_\text{first} | count | blocks that see all blocks before them"""
        return minimum(q.sparse_blocks, q.blocks_of_a_sequence)

    def sparse_pairs(q):
        r"""n_\text{bs} | count | pairs of block-sparse attention, masked in a block's own diagonal
        (Child et al. 2019)"""
        return q.sparse_block**2 * (
            floor_div(q.first_sparse_blocks * (q.first_sparse_blocks - 1), 2)
            + (q.blocks_of_a_sequence - q.first_sparse_blocks) * (q.first_sparse_blocks - 1)
        ) + q.blocks_of_a_sequence * floor_div(q.sparse_block * (q.sparse_block + 1), 2)

    def sparse_share(q):
        r"""\varphi_\text{bs} | fraction | share of all causal pairs that block-sparse attention
        computes"""
        return q.sparse_pairs / q.causal_pairs

    def sparse_stored_bytes(q):
        r"""M_\text{bs} | bytes | bytes of stored scores of block-sparse attention, all heads: whole
        blocks, of which no softmax in tiles needs any"""
        return (
            q.compute_element_bytes
            * q.microbatch
            * q.heads
            * q.sparse_block**2
            * (
                floor_div(q.first_sparse_blocks * (q.first_sparse_blocks + 1), 2)
                + (q.blocks_of_a_sequence - q.first_sparse_blocks) * q.first_sparse_blocks
            )
        )


class Tiles(BOOK.section(source="Bekman et al. 2025 (ALST), section 3.2", measured_by=_TILES)):
    def tile_tokens(q):
        r"""T_\text{tile} | tokens | tokens of the fullest tile"""
        return ceil_div(q.microbatch_tokens, q.sequence_tiles)

    def layer_checkpoint_bytes(q):
        r"""A_\text{ck} | bytes | bytes of a recomputed layer's input that wait on the GPU"""
        return (1 - q.checkpoints_on_host) * q.own_input_bytes

    def tiled_inner_bytes(q):
        r"""M_\text{tile}^\text{mlp} | bytes | bytes of one inner tensor of the MLP in one tile"""
        return q.compute_element_bytes * q.tile_tokens * q.feed_forward

    def tiled_logit_bytes(q):
        r"""M_\text{tile}^\text{logit} | bytes | bytes of one tile's logits, all their copies"""
        return q.loss_logit_bytes * q.tile_tokens * q.vocabulary
