"""Sending less: bytes of ten ways to bring gradients together, what each keeps, when it pays.

Bytes are those that a rank sends around rings in a step, with all parameters in one bucket: 2(n -
1)/n of what an all-reduce adds up, (n - 1)/n of what an all-gather or an all-to-all leaves there.
Ranks that take H steps alone send a part of it in each. The first way is data parallelism, whose
bytes are formulas of its chapter.
"""

from coursekit.formulas.registry import BOOK
from coursekit.formulas.subset import ceil_div, choose, maximum, minimum, where

BOOK.given_beside(__file__)

_TESTS = "tests/sending_less/test_less_formulas.py"
_SENT = f"{_TESTS}::test_bytes_by_the_log"
_KEPT = f"{_TESTS}::test_bytes_that_stay"
_PUBLISHED = f"{_TESTS}::test_published"
_NODES = f"{_TESTS}::test_bytes_between_nodes"
_STEP = f"{_TESTS}::test_a_step_by_its_parts"
_ZERO = f"{_TESTS}::test_what_zero_loses"
_PASSES = f"{_TESTS}::test_passes_over_memory"
_EVEN = f"{_TESTS}::test_the_link_on_which_both_are_equal"


class WhatIsSent(BOOK.section(source="definition of the hook", measured_by=_SENT)):
    @BOOK.own(source="Micikevicius et al. 2018")
    def half_sent_bytes(q):
        r"""Q_{16} | bytes | bytes of a step whose gradients travel in 16 bits"""
        return ceil_div(4 * (q.data_parallel - 1) * q.parameters, q.data_parallel)

    @BOOK.own(source="Aji and Heafield 2017")
    def largest_sent_bytes(q):
        r"""Q_\text{top} | bytes | bytes of a step that sends the largest gradients: 4 for each
        value and 4 for its place. They grow with the ranks, because ranks choose different ones"""
        return 8 * (q.data_parallel - 1) * ceil_div(q.parameters, q.kept_one_in)

    @BOOK.own(source="Seide et al. 2014")
    def sign_sent_bytes(q):
        r"""Q_\text{sign} | bytes | bytes of a step that sends signs: each rank averages a part,
        whose signs it sends again, with a scale of 4 bytes for each message"""
        return (
            2 * (q.data_parallel - 1) * (4 + ceil_div(ceil_div(q.parameters, q.data_parallel), 8))
        )

    @BOOK.own(source="Xie et al. 2024 (LoCo)")
    def four_bit_sent_bytes(q):
        r"""Q_4 | bytes | bytes of a step that sends 4 bits of each gradient, and a scale of 4 bytes
        for each 256 of them, in the two messages of signs"""
        return 264 * (q.data_parallel - 1) * ceil_div(ceil_div(q.parameters, q.data_parallel), 256)

    @BOOK.own(source="counted from gpt.py")
    def product_columns(q):
        r"""h_\text{made} | count | columns of queries, keys and values together"""
        return q.query_size + 2 * q.key_value_size

    @BOOK.own(source="counted from gpt.py")
    def weight_elements(q):
        r"""E_\text{mat} | count | elements of all weights and tables, which are matrices"""
        return q.hidden * (
            q.layers * (q.product_columns + q.query_size + (2 + q.gated_mlp) * q.feed_forward)
            + (2 - q.tied_head) * q.vocabulary
            + q.learned_positions * q.max_sequence
        )

    @BOOK.own(source="Vogels et al. 2019 (PowerSGD)")
    def factor_elements(q):
        r"""E_\text{low} | count | elements that PowerSGD sends: r(m + n) for a matrix of mn, where
        that is less, and vectors as they are"""
        return (
            q.layers
            * (
                minimum(q.hidden * q.product_columns, q.power_rank * (q.hidden + q.product_columns))
                + minimum(q.hidden * q.query_size, q.power_rank * (q.hidden + q.query_size))
                + (2 + q.gated_mlp)
                * minimum(q.hidden * q.feed_forward, q.power_rank * (q.hidden + q.feed_forward))
            )
            + (2 - q.tied_head)
            * minimum(q.hidden * q.vocabulary, q.power_rank * (q.hidden + q.vocabulary))
            + q.learned_positions
            * minimum(q.hidden * q.max_sequence, q.power_rank * (q.hidden + q.max_sequence))
            + maximum(0, q.parameters - q.weight_elements)
        )

    @BOOK.own(source="Vogels et al. 2019 (PowerSGD)")
    def power_sent_bytes(q):
        r"""Q_\text{low} | bytes | bytes of a step of PowerSGD: all-reduces of both factors of each
        matrix, and of vectors as they are"""
        return ceil_div(8 * (q.data_parallel - 1) * q.factor_elements, q.data_parallel)

    def whole_sent_bytes(q):
        r"""Q_\text{whole} | bytes | bytes of one all-reduce of all parameters in fp32, without the
        flags of data parallelism"""
        return ceil_div(8 * (q.data_parallel - 1) * q.parameters, q.data_parallel)

    @BOOK.own(source="Tang et al. 2021 (1-bit Adam)")
    def one_bit_sent_bytes(q):
        r"""Q_1 | bytes, any number | bytes of a step of 1-bit Adam, the mean of a run"""
        return q.warm_up_share * q.whole_sent_bytes + (1 - q.warm_up_share) * q.sign_sent_bytes

    @BOOK.own(source="Douillard et al. 2023 (DiLoCo)")
    def outer_sent_bytes(q):
        r"""Q_\text{out} | bytes | bytes of one all-reduce of the way that ranks have come"""
        return ceil_div(
            2 * (q.data_parallel - 1) * q.outer_element_bytes * q.parameters, q.data_parallel
        )

    @BOOK.own(source="Douillard et al. 2023 (DiLoCo)")
    def seldom_sent_bytes(q):
        r"""Q_H | bytes, any number | bytes of a step of local SGD or DiLoCo, the mean of H steps"""
        return q.outer_sent_bytes / q.sync_every

    @BOOK.own(source="Douillard et al. 2025 (Streaming DiLoCo)")
    def burst_bytes(q):
        r"""Q_\text{burst} | bytes, any number | bytes of one of DiLoCo's messages, of a part of the
        model"""
        return q.outer_sent_bytes / q.outer_parts

    @BOOK.own(source="Peng et al. 2024 (DeMo)")
    def demo_share_bytes(q):
        r"""S_\text{freq} | bytes | bytes of one rank's frequencies and their places, where tensors
        are whole chunks"""
        return (4 + q.demo_place_bytes) * q.demo_keep * ceil_div(q.parameters, q.demo_chunk)

    @BOOK.own(source="Peng et al. 2024 (DeMo)")
    def demo_sent_bytes(q):
        r"""Q_\text{freq} | bytes | bytes of a step of DeMo; all-gathers grow with the ranks"""
        return (q.data_parallel - 1) * q.demo_share_bytes

    @BOOK.own(source="definition")
    def less_sent_bytes(q):
        r"""Q_\text{less} | bytes, any number | bytes that a rank sends in a step, the mean of a
        run"""
        return choose(
            q.gradient_compressor,
            q.data_parallel_sent_bytes,
            q.half_sent_bytes,
            q.largest_sent_bytes,
            q.sign_sent_bytes,
            q.power_sent_bytes,
            q.one_bit_sent_bytes,
            q.four_bit_sent_bytes,
            q.seldom_sent_bytes,
            q.seldom_sent_bytes,
            q.demo_sent_bytes,
        )

    @BOOK.own(source="definition", measured_by=_PUBLISHED)
    def times_less(q):
        r"""\varphi_\text{less} | fraction, from 0 | bytes of fp32, as a multiple of those that are
        sent"""
        return q.data_parallel_sent_bytes / q.less_sent_bytes

    @BOOK.own(source="Peng et al. 2024 (DeMo)", measured_by=_PUBLISHED)
    def demo_times_less(q):
        r"""\varphi_\text{freq} | fraction, from 0 | bytes of a rank's gradients, as a multiple of
        those of its frequencies: both once, whatever the collective sends"""
        return q.gradient_bytes / q.demo_share_bytes

    @BOOK.own(source="Lu et al. 2023 (0/1 Adam)", measured_by=_PUBLISHED)
    def sixteenth_times_less(q):
        r"""\varphi_1 | fraction, from 0 | bytes of a run in 16 bits, as a multiple of one that
        sends 16 bits in some steps, signs in others, and nothing in the rest"""
        return 1 / (q.warm_up_share + q.sign_share / 16)


class WhatStays(BOOK.section(source="definition of the hook", measured_by=_KEPT)):
    def error_bytes(q):
        r"""M_\text{err} | bytes | bytes of what a rank has not sent yet, in fp32"""
        return 4 * q.parameters

    def part_error_bytes(q):
        r"""M_\text{err}^\text{part} | bytes | bytes of what a rank has not sent yet of the part
        that it averages"""
        return 4 * ceil_div(q.parameters, q.data_parallel)

    def attention_factor_columns(q):
        r"""m_\text{att} | count | elements of PowerSGD's second factors in a layer's attention,
        at rank 1; a matrix with larger factors than itself goes whole and has none"""
        return where(
            q.power_rank * (q.hidden + q.product_columns) < q.hidden * q.product_columns,
            q.hidden,
            0,
        ) + where(
            q.power_rank * (q.hidden + q.query_size) < q.hidden * q.query_size, q.query_size, 0
        )

    def mlp_factor_columns(q):
        r"""m_\text{mlp} | count | the same in the MLP of a layer"""
        return where(
            q.power_rank * (q.hidden + q.feed_forward) < q.hidden * q.feed_forward,
            (1 + q.gated_mlp) * q.hidden + q.feed_forward,
            0,
        )

    def end_factor_columns(q):
        r"""m_\text{end} | count | the same of embeddings, positions and the head"""
        return where(
            q.power_rank * (q.hidden + q.vocabulary) < q.hidden * q.vocabulary,
            (2 - q.tied_head) * q.hidden,
            0,
        ) + where(
            q.power_rank * (q.hidden + q.max_sequence) < q.hidden * q.max_sequence,
            q.learned_positions * q.hidden,
            0,
        )

    def power_factor_bytes(q):
        r"""M_\text{low} | bytes | bytes of PowerSGD's second factors, from which the next step
        begins"""
        return (
            4
            * q.power_rank
            * (
                q.layers * (q.attention_factor_columns + q.mlp_factor_columns)
                + q.end_factor_columns
            )
        )

    @BOOK.own(source="definition")
    def less_kept_bytes(q):
        r"""M_\text{less} | bytes | bytes that stay from step to step only because less is sent.
        DeMo's momentum is its memory of errors, so it keeps nothing more"""
        return choose(
            q.gradient_compressor,
            0,
            0,
            q.error_bytes,
            q.error_bytes + q.part_error_bytes,
            q.error_bytes + q.power_factor_bytes,
            q.error_bytes + q.part_error_bytes,
            q.error_bytes + q.part_error_bytes,
            q.error_bytes,
            2 * q.error_bytes,
            0,
        )

    @BOOK.own(source="definition")
    def less_moment_bytes(q):
        r"""M_\text{mom}^\text{less} | bytes | bytes of the optimizer's moments: Adam's two, or
        DeMo's one"""
        return where(q.gradient_compressor < 10, 2, 1) * q.error_bytes

    @BOOK.own(source="which states the method needs whole", measured_by=_ZERO)
    def zero_stage_left(q):
        r"""z_\text{less} | count | largest stage of ZeRO beside it: errors and gradients of a hook
        are whole on each rank, and so are momentum and copies of an optimizer that sends"""
        return choose(q.gradient_compressor, 3, 3, 1, 1, 1, 0, 1, 0, 0, 0)

    @BOOK.own(source="Rajbhandari et al. 2020 (ZeRO), section 3.1", measured_by=_ZERO)
    def less_parameter_bytes(q):
        r"""M_\text{param}^\text{less} | bytes | bytes of a rank's parameters in fp32, with the
        largest stage of ZeRO that is left"""
        return where(q.zero_stage_left < 3, q.error_bytes, ceil_div(q.error_bytes, q.data_parallel))

    @BOOK.own(source="Rajbhandari et al. 2020 (ZeRO), section 3.1", measured_by=_ZERO)
    def less_gradient_bytes(q):
        r"""M_\text{grad}^\text{less} | bytes | bytes of a rank's gradients with that stage"""
        return where(q.zero_stage_left < 2, q.error_bytes, ceil_div(q.error_bytes, q.data_parallel))

    @BOOK.own(source="Rajbhandari et al. 2020 (ZeRO), section 3.1", measured_by=_ZERO)
    def less_optimizer_bytes(q):
        r"""M_\text{opt}^\text{less} | bytes | bytes of a rank's moments with that stage"""
        return where(
            q.zero_stage_left < 1,
            q.less_moment_bytes,
            ceil_div(q.less_moment_bytes, q.data_parallel),
        )

    @BOOK.own(source="Rajbhandari et al. 2020 (ZeRO), section 3.1", measured_by=_ZERO)
    def less_rank_bytes(q):
        r"""M_r^\text{less} | bytes | bytes of all of a rank's states in fp32"""
        return (
            q.less_parameter_bytes
            + q.less_gradient_bytes
            + q.less_optimizer_bytes
            + q.less_kept_bytes
        )


class BetweenNodes(BOOK.section(source="Wang et al. 2023 (ZeRO++)", measured_by=_NODES)):
    def node_blocks(q):
        r"""n_\text{from} | count | blocks of 256 elements that reach a node from outside when one
        unit is gathered: the shards of all ranks elsewhere"""
        return (q.data_parallel - q.ranks_per_node) * ceil_div(
            ceil_div(q.parameters, q.data_parallel), 256
        )

    def plain_node_bytes(q):
        r"""Q_\text{node} | bytes | bytes that reach a node from outside in a step of ZeRO's stage
        3, for one unit: parameters twice, gradients once"""
        return (
            (2 * q.parameter_element_bytes + q.gradient_element_bytes)
            * (q.data_parallel - q.ranks_per_node)
            * ceil_div(q.parameters, q.data_parallel)
        )

    def quantised_weight_bytes(q):
        r"""Q_\text{node}^8 | bytes | bytes of parameters in 8 bits that reach a node, gathered
        once: a block has 256 codes and a scale of 4 bytes"""
        return 260 * q.node_blocks

    def quantised_gradient_bytes(q):
        r"""Q_\text{node}^4 | bytes | bytes of gradients in 4 bits that reach a node, once each node
        has added its own: 128 of codes and a scale for each block"""
        return 132 * q.node_blocks

    def plus_node_bytes(q):
        r"""Q_\text{node}^+ | bytes | bytes that reach a node from outside in a step of ZeRO++:
        backward gathers inside the node"""
        return q.quantised_weight_bytes + q.quantised_gradient_bytes

    @BOOK.own(measured_by=_PUBLISHED)
    def plus_times_less(q):
        r"""\varphi_\text{node} | fraction, from 0 | bytes between nodes of stage 3, as a multiple
        of those of ZeRO++"""
        return q.plain_node_bytes / q.plus_node_bytes

    def secondary_bytes(q):
        r"""M_\text{node} | bytes | bytes of a rank's part of the parameters that its node keeps
        for backward, of one unit"""
        return q.parameter_element_bytes * ceil_div(
            q.data_parallel * ceil_div(q.parameters, q.data_parallel), q.ranks_per_node
        )


class HowLongAStepTakes(BOOK.section(source="definition", measured_by=_STEP)):
    def less_rounds(q):
        r"""\varphi_\text{round} | fraction, from 0 | passes around the ring in a step: an
        all-reduce is two, and so are an all-to-all and an all-gather, or two all-gathers"""
        return choose(
            q.gradient_compressor, 2, 2, 2, 2, 4, 2, 2, 2 / q.sync_every, 2 / q.sync_every, 2
        )

    def less_latency_seconds(q):
        r"""\alpha_\text{less} | seconds | time of a step's messages without bytes"""
        return q.less_rounds * (q.data_parallel - 1) * q.latency_seconds

    def whole_latency_seconds(q):
        r"""\alpha_\text{whole} | seconds | that time for data parallelism's all-reduce"""
        return 2 * (q.data_parallel - 1) * q.latency_seconds

    def less_message_seconds(q):
        r"""\tau_\text{less} | seconds | time of a step's messages, one after the other"""
        return q.less_latency_seconds + q.less_sent_bytes / q.link_bytes_per_second

    def whole_message_seconds(q):
        r"""\tau_\text{whole} | seconds | time of data parallelism's all-reduce in fp32"""
        return q.whole_latency_seconds + q.data_parallel_sent_bytes / q.link_bytes_per_second

    @BOOK.own(source="counted in shardlab.compression", measured_by=_PASSES)
    def compressor_moved_bytes(q):
        r"""S_\text{less} | bytes, any number | bytes that the core's operators read and write for
        each parameter and step to send less, each operator by itself"""
        return choose(
            q.gradient_compressor,
            0,
            20,
            65,
            235,
            75,
            243 * (1 - q.warm_up_share),
            271,
            48 / q.sync_every,
            80 / q.sync_every,
            124,
        )

    @BOOK.own(source="a pass over memory for each operator")
    def compressor_seconds(q):
        r"""\tau_\text{code} | seconds | time in which a GPU compresses and decodes, by the
        bandwidth of its memory"""
        return q.compressor_moved_bytes * q.parameters / q.memory_bytes_per_second

    @BOOK.own(source="2 operations per parameter per token")
    def less_forward_seconds(q):
        r"""\tau_\text{fwd}^\text{less} | seconds | time of a microbatch's forward, without the
        scores of attention"""
        return 2 * q.parameters * q.microbatch_tokens / (q.utilisation * q.flops_per_second)

    def less_compute_seconds(q):
        r"""\tau_\text{comp}^\text{less} | seconds | time of a step's forwards and backwards"""
        return 3 * q.accumulation_steps * q.less_forward_seconds

    def whole_hidden_seconds(q):
        r"""\tau_\text{under} | seconds | time in which data parallelism's messages can be under
        way beside backward: that of the last microbatch"""
        return q.reduce_early * 2 * q.less_forward_seconds

    def less_hidden_seconds(q):
        r"""\tau_\text{under}^\text{less} | seconds | that time for the chosen way: an optimizer
        that sends waits for backward's end"""
        return choose(q.gradient_compressor, 1, 1, 1, 1, 1, 0, 1, 0, 0, 0) * q.whole_hidden_seconds

    def less_waiting_seconds(q):
        r"""\tau_\text{wait}^\text{less} | seconds | time in which a step waits for messages"""
        return maximum(0, q.less_message_seconds - q.less_hidden_seconds)

    def less_step_seconds(q):
        r"""\tau_\text{step}^\text{less} | seconds | time of a step: computing, compressing, and
        messages that backward does not hide"""
        return q.less_compute_seconds + q.compressor_seconds + q.less_waiting_seconds

    def whole_step_seconds(q):
        r"""\tau_\text{step}^\text{whole} | seconds | time of a step of data parallelism in fp32"""
        return q.less_compute_seconds + maximum(0, q.whole_message_seconds - q.whole_hidden_seconds)

    def free_seconds(q):
        r"""\tau_\text{spare} | seconds | time of fp32's messages from which on the code may pay:
        what backward hides, and the code"""
        return q.compressor_seconds + q.whole_hidden_seconds

    def free_less_seconds(q):
        r"""\tau_\text{spare}^\text{less} | seconds | that time, and the latency of what is sent"""
        return q.free_seconds + q.less_latency_seconds

    @BOOK.own(source="both step times are equal", measured_by=_EVEN)
    def break_even_bytes_per_second(q):
        r"""B_\text{even} | bytes/s | bandwidth below which sending less pays, its own time counted;
        0 where it never pays, 10^15 where it pays on any link. Either fp32's bytes outlast what is
        free, or the bytes that are saved outlast what the code adds"""
        return where(
            q.data_parallel_sent_bytes > q.less_sent_bytes,
            minimum(
                1e15,
                1
                / maximum(
                    1e-18,
                    (q.free_seconds - q.whole_latency_seconds)
                    / maximum(1, q.data_parallel_sent_bytes),
                    (q.free_less_seconds - (q.less_hidden_seconds + q.whole_latency_seconds))
                    / maximum(1, q.data_parallel_sent_bytes - q.less_sent_bytes),
                ),
            ),
            0,
        )
