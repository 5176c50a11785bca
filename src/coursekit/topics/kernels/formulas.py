"""Kernels: bytes that a chain of operations moves, unfused and fused, that each kernel of the
chapter reads and writes, and that attention and a loss need not store.

Counted are elements that a kernel asks for, so these bytes are what memory moves where no cache
helps. A GPU's cache serves some of them, such as a weight that every program reads.
"""

from coursekit.formulas.registry import BOOK
from coursekit.formulas.subset import ceil_div, equal, floor_div, maximum, minimum, where

BOOK.given_beside(__file__)

_TESTS = "tests/kernels/test_kernel_formulas.py"
_CHAINS = f"{_TESTS}::test_bytes_of_chains"
_ROWS = f"{_TESTS}::test_bytes_of_row_kernels"
_TILES = f"{_TESTS}::test_bytes_of_attention"
_PLAIN = f"{_TESTS}::test_bytes_of_plain_attention"
_CHIP = f"{_TESTS}::test_what_a_tile_holds"
_LOSSES = f"{_TESTS}::test_bytes_of_losses"
_BOUND = f"{_TESTS}::test_the_slower_of_two"
_STEPS = f"{_TESTS}::test_steps_of_optimizers"


class Chains(
    BOOK.section(source="an operator reads operands and writes results", measured_by=_CHAINS)
):
    def kernel_elements(q):
        r"""e_\text{ker} | count | elements of the tensor that a kernel works on"""
        return q.operation_rows * q.operation_columns

    def chain_bytes(q):
        r"""S_\text{chain} | bytes | bytes that a chain of elementwise operations moves, each of
        which reads what the one before has written"""
        return (
            q.operation_element_bytes
            * q.kernel_elements
            * (2 * q.operation_depth + q.chain_operands)
        )

    def fused_chain_bytes(q):
        r"""S_\text{fuse} | bytes | bytes that one kernel for the chain moves, if it reads its
        input once and no other tensor is among its operands"""
        return 2 * q.operation_element_bytes * q.kernel_elements

    def fused_share(q):
        r"""\varphi_\text{fuse} | fraction | bytes that are left when a chain is fused"""
        return q.fused_chain_bytes / q.chain_bytes


class RowKernels(BOOK.section(source="shardlab.kernels", measured_by=_ROWS)):
    def wide_element_bytes(q):
        r"""\beta_\text{wide} | bytes | bytes of an element in which a kernel adds up: fp32 at
        least"""
        return maximum(4, q.operation_element_bytes)

    def vector_add_bytes(q):
        r"""S_\text{add} | bytes | bytes of vector add: two vectors are read, one is written"""
        return 3 * q.operation_element_bytes * q.kernel_elements

    def softmax_bytes(q):
        r"""S_\text{soft} | bytes | bytes of softmax: each row is read once and written once"""
        return 2 * q.operation_element_bytes * q.kernel_elements

    def softmax_backward_bytes(q):
        r"""S_\text{soft}^\text{back} | bytes | bytes of its backward, which reads the
        result and the gradient
        of the result"""
        return 3 * q.operation_element_bytes * q.kernel_elements

    def rms_norm_bytes(q):
        r"""S_\text{rms} | bytes | bytes of RMSNorm: the weight is read for each row, and one number
        a row is kept"""
        return (
            3 * q.operation_element_bytes * q.kernel_elements
            + q.wide_element_bytes * q.operation_rows
        )

    def rms_norm_backward_bytes(q):
        r"""S_\text{rms}^\text{back} | bytes | bytes of its backward: each program reads
        the weight once, and
        writes its part of the weight's gradient"""
        return q.operation_element_bytes * q.operation_columns * (
            3 * q.operation_rows + q.row_programs
        ) + q.wide_element_bytes * (q.operation_rows + q.operation_columns * q.row_programs)

    def cross_entropy_bytes(q):
        r"""S_\text{ce} | bytes | bytes of cross-entropy: logits once, a row's target and the logit
        of the target, its loss and log(sum(exp)). No target is padding"""
        return q.operation_element_bytes * (
            q.kernel_elements + q.operation_rows
        ) + q.operation_rows * (8 + 2 * q.wide_element_bytes)

    def cross_entropy_backward_bytes(q):
        r"""S_\text{ce}^\text{back} | bytes | bytes of its backward: logits are read, their
        gradient is
        written, and each block reads three numbers of its row"""
        return 2 * q.operation_element_bytes * q.kernel_elements + q.operation_rows * ceil_div(
            q.operation_columns, q.kernel_block
        ) * (8 + 2 * q.wide_element_bytes)


class AttentionInTiles(
    BOOK.section(source="Dao 2023; shardlab.kernels.attention", measured_by=_TILES)
):
    def row_tiles(q):
        r"""n_\text{rt} | count | tiles of queries of one head"""
        return ceil_div(q.sequence, q.tile_rows)

    def column_tiles(q):
        r"""n_\text{ct} | count | tiles of keys of one head"""
        return ceil_div(q.sequence, q.tile_columns)

    def long_side(q):
        r"""n_\text{long} | count | the longer side of a tile"""
        return maximum(q.tile_rows, q.tile_columns)

    def sides_before(q):
        r"""n_\text{side} | count | long sides along the sequence before the last one"""
        return floor_div(q.sequence - 1, q.long_side)

    def side_pairs(q):
        r"""n_\text{pair} | count | the sum of 1, 2, 3 and so on to the number of these sides"""
        return floor_div(q.sides_before * (q.sides_before + 1), 2)

    def rows_in_side(q):
        r"""n_\text{rside} | count | tiles of queries along a long side"""
        return floor_div(q.long_side, q.tile_rows)

    def columns_in_side(q):
        r"""n_\text{cside} | count | tiles of keys along a long side"""
        return floor_div(q.long_side, q.tile_columns)

    def row_tiles_before(q):
        r"""n_\text{rb} | count | tiles of queries before the last side"""
        return q.rows_in_side * q.sides_before

    def last_row_tiles(q):
        r"""n_\text{rl} | count | tiles of queries in the last side, which read all keys"""
        return q.row_tiles - q.row_tiles_before

    def tokens_before(q):
        r"""n_\text{tb} | count | tokens before the last side"""
        return q.long_side * q.sides_before

    def last_tokens(q):
        r"""n_\text{tl} | count | tokens in the last side, which all tiles of keys read"""
        return q.sequence - q.tokens_before

    def keys_read(q):
        r"""n_\text{kr} | count | keys that all tiles of queries of a head read together, and as
        many values; a causal tile reads up to its own last row"""
        return where(
            equal(q.causal, 1),
            q.rows_in_side * q.long_side * q.side_pairs + q.last_row_tiles * q.sequence,
            q.row_tiles * q.sequence,
        )

    def queries_read(q):
        r"""n_\text{qr} | count | queries that all tiles of keys of a head read together in
        backward; a causal tile begins with the rows that see its first column"""
        return where(
            equal(q.causal, 1),
            q.columns_in_side * q.long_side * q.side_pairs + q.column_tiles * q.last_tokens,
            q.column_tiles * q.sequence,
        )

    def attention_read_bytes(q):
        r"""S_\text{fl}^\text{read} | bytes | bytes that attention in tiles reads: queries once,
        keys and values as often as there are tiles of queries that see them"""
        return (
            q.operation_element_bytes
            * q.microbatch
            * q.heads
            * q.head_columns
            * (q.sequence + 2 * q.keys_read)
        )

    def attention_written_bytes(q):
        r"""S_\text{fl}^\text{out} | bytes | bytes that it writes: the result, and log(sum(exp)) of
        each row"""
        return (
            q.microbatch
            * q.heads
            * q.sequence
            * (q.operation_element_bytes * q.head_columns + q.wide_element_bytes)
        )

    def attention_moved_bytes(q):
        r"""S_\text{fl} | bytes | bytes that attention in tiles moves forward"""
        return q.attention_read_bytes + q.attention_written_bytes

    def attention_backward_moved_bytes(q):
        r"""S_\text{fl}^\text{back} | bytes | bytes that it moves backward: keys, values and
        their gradients
        once; for each tile of keys queries, the gradient of the result and two numbers a row are
        read, and the gradient of the queries is read and written"""
        return q.microbatch * (
            4 * q.operation_element_bytes * q.key_value_heads * q.sequence * q.head_columns
            + q.heads
            * q.queries_read
            * (
                2 * q.operation_element_bytes * q.head_columns
                + 2 * q.wide_element_bytes
                + 2 * q.wide_element_bytes * q.head_columns
            )
        )

    @BOOK.own(source="softmax(q k / sqrt(D)) v in four operators", measured_by=_PLAIN)
    def scores_moved_bytes(q):
        r"""S_\text{plain} | bytes | bytes of attention that stores its scores: product, scale and
        softmax write them, and all but the product read them"""
        return (
            q.operation_element_bytes
            * q.microbatch
            * q.heads
            * q.sequence
            * (6 * q.sequence + 4 * q.head_columns)
        )

    @BOOK.own(source="definition", measured_by=_PLAIN)
    def stored_scores_bytes(q):
        r"""M_\text{score} | bytes | bytes of the scores of all heads, stored once"""
        return q.operation_element_bytes * q.microbatch * q.heads * q.sequence**2

    @BOOK.own(measured_by=_CHIP)
    def tile_bytes(q):
        r"""M_\text{tile} | bytes | bytes of what a program holds on the chip at once: queries,
        keys, values, and their scores in fp32 at least"""
        return (
            q.operation_element_bytes * q.head_columns * (q.tile_rows + 2 * q.tile_columns)
            + q.wide_element_bytes * q.tile_rows * q.tile_columns
        )

    @BOOK.own(measured_by=_CHIP)
    def attention_tile_flops(q):
        r"""C_\text{fl} | FLOP | operations of both products in all tiles, where tiles divide the
        sequence; masked places of a tile are computed, too"""
        return 4 * q.microbatch * q.heads * q.head_columns * q.tile_rows * q.keys_read

    @BOOK.own(source="Williams, Waterman and Patterson 2009", measured_by=_BOUND)
    def attention_kernel_seconds(q):
        r"""\tau_\text{fl} | seconds | shortest time of attention in tiles: its bytes or its
        operations, whichever take longer"""
        return maximum(
            q.attention_moved_bytes / q.memory_bytes_per_second,
            q.attention_tile_flops / q.flops_per_second,
        )


class LossesInParts(BOOK.section(source="shardlab.kernels.losses", measured_by=_LOSSES)):
    def eager_loss_kept_bytes(q):
        r"""M_\text{ce} | bytes | bytes of the log-softmax of all logits, which eager PyTorch keeps
        from forward to backward"""
        return q.wide_element_bytes * q.microbatch_tokens * q.vocabulary

    def chunked_loss_kept_bytes(q):
        r"""M_\text{ck} | bytes | bytes that a loss in chunks keeps instead: both gradients, which
        forward has made"""
        return q.operation_element_bytes * q.hidden * (q.microbatch_tokens + q.vocabulary)

    def chunked_logits_bytes(q):
        r"""M_\text{ck}^\text{logit} | bytes | bytes of the largest tensor of logits of a loss in
        chunks"""
        return (
            q.wide_element_bytes * minimum(q.loss_chunk_tokens, q.microbatch_tokens) * q.vocabulary
        )

    def cut_loss_kept_bytes(q):
        r"""M_\text{part} | bytes | bytes that a cut loss keeps beside its inputs: one number a
        token"""
        return q.wide_element_bytes * q.microbatch_tokens

    def cut_logits_bytes(q):
        r"""M_\text{part}^\text{logit} | bytes | bytes of the largest tensor of logits of a cut
        loss"""
        return (
            q.wide_element_bytes
            * minimum(q.loss_chunk_tokens, q.microbatch_tokens)
            * minimum(q.loss_chunk_words, q.vocabulary)
        )

    def eager_loss_bytes(q):
        r"""M_\text{ce}^\text{peak} | bytes | bytes of logits in all their copies while the loss
        goes backward: 12 each in eager PyTorch"""
        return q.loss_logit_bytes * q.microbatch_tokens * q.vocabulary


class StepsOfAnOptimizer(BOOK.section(source="torch.optim.AdamW", measured_by=_STEPS)):
    def optimizer_calls(q):
        r"""n_\text{call} | count | operators of a step of AdamW that move bytes: nine for each
        tensor in a loop, nine in all with foreach, two in all if it is fused"""
        return where(
            q.optimizer_mode > 0, where(q.optimizer_mode > 1, 2, 9), 9 * q.optimizer_tensors
        )

    def optimizer_moved_bytes(q):
        r"""S_\text{opt} | bytes | bytes that the step moves in fp32: 20 numbers a parameter, or 7
        if it is fused, and step counters"""
        return where(
            q.optimizer_mode > 1,
            28 * q.parameters + 12 * q.optimizer_tensors,
            80 * q.parameters + 8 * q.optimizer_tensors + 4 * q.optimizer_mode,
        )


class SecondsOfAChain(
    BOOK.section(
        source="launches one after the other, or bytes at the memory's rate",
        measured_by="tests/kernels/test_kernels_page.py::test_seconds_of_a_chain",
    )
):
    def chain_tensors(q):
        r"""n_\text{trip} | tensors | tensors that a chain moves, as large as its input"""
        return 2 * q.operation_depth + q.chain_operands

    def chain_seconds(q):
        r"""\tau_\text{chain} | seconds | shortest time of a chain: its launches or its bytes,
        whichever take longer"""
        return maximum(
            q.operation_depth * q.launch_seconds, q.chain_bytes / q.memory_bytes_per_second
        )

    def fused_chain_seconds(q):
        r"""\tau_\text{fuse} | seconds | shortest time of one kernel for the chain"""
        return maximum(q.launch_seconds, q.fused_chain_bytes / q.memory_bytes_per_second)

    def fused_times_faster(q):
        r"""\varphi_\text{fast} | fraction, from 0 | times that the chain takes as long as one
        kernel"""
        return q.chain_seconds / q.fused_chain_seconds

    def stored_scores_seconds(q):
        r"""\tau_\text{plain} | seconds | shortest time of attention that stores its scores: its
        bytes at the memory's rate"""
        return q.scores_moved_bytes / q.memory_bytes_per_second

    def tile_fits(q):
        r"""1_\text{tile} | count | 1 if a tile fits the chip's memory, 0 if not"""
        return where(q.tile_bytes <= q.shared_memory_bytes, 1, 0)
