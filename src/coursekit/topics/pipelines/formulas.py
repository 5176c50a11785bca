"""Pipelines: how long ranks are idle, what each rank holds, what it sends, by schedule.

Times are of one rank's layers and one microbatch, alike on all ranks. They are exact for the
schedules of shardlab.pipelines.schedules, which a test simulates, under what each formula says.
What they do not know is a slow stage: simulate that.

Layers are those of this book's GPT, divided evenly; the embedding is on the first rank and the head
on the last, where a tied weight is a second time."""

from coursekit.formulas.registry import BOOK
from coursekit.formulas.subset import ceil_div, choose, equal, floor_div, maximum, minimum, where

BOOK.given_beside(__file__)

_SIMULATED = "tests/pipelines/test_pipeline_formulas.py::test_idle_time_is_what_is_simulated"
_TRANSFER = "tests/pipelines/test_pipeline_formulas.py::test_transfer_time_is_what_is_simulated"
_PACE = "tests/pipelines/test_pipeline_formulas.py::test_the_slowest_rank_sets_the_pace"
_FLIGHT = "tests/pipelines/test_pipeline.py::test_in_flight_executed_simulated_and_by_formula"
_STAGE = "tests/pipelines/test_pipeline.py::test_what_each_rank_has"
_SENT = "tests/pipelines/test_pipeline.py::test_messages_and_bytes"
_NARAYANAN = "Narayanan et al. 2021, section 2.2"
_QI = "Qi et al. 2024"
_OURS = "shardlab.pipelines.schedules"


class MicrobatchesInFlight(BOOK.section(source=_OURS, measured_by=_FLIGHT)):
    @BOOK.own(source="definition", least=1, choice=True)
    def microbatches(q):
        """m | count | microbatches of a step, which pass through the pipeline: as many as are
        accumulated"""
        return q.accumulation_steps

    @BOOK.own(source=_NARAYANAN)
    def pipeline_chunks(q):
        """v_i | count | stages on each rank: one, unless the schedule is interleaved"""
        return where(equal(q.pipeline_schedule, 4), q.stages_per_rank, 1)

    @BOOK.own(source=_NARAYANAN)
    def pipeline_stages(q):
        """p_i | count | stages of the whole model"""
        return q.pipeline_parallel * q.pipeline_chunks

    def pipeline_last_rank(q):
        r"""p_\text{last} | count | the last rank of the pipeline, which is also the number of links
        between ranks"""
        return q.pipeline_parallel - 1

    def pipeline_ranks_after(q):
        r"""p_\text{after} | count | ranks after the rank in the pipeline"""
        return q.pipeline_last_rank - q.pipeline_rank

    def pipeline_in_flight(q):
        r"""m_\text{fly} | count | microbatches whose activations the rank holds at the peak, added
        up over its stages: all m in GPipe, p - r in 1F1B, p on every rank in zero-bubble H1"""
        return minimum(
            q.microbatches * q.pipeline_chunks,
            choose(
                q.pipeline_schedule,
                q.microbatches,
                q.pipeline_ranks_after + 1,
                2 * q.pipeline_ranks_after + 1,
                2 * q.pipeline_ranks_after + (q.pipeline_chunks - 1) * q.pipeline_parallel + 1,
                q.pipeline_parallel,
                2 * q.pipeline_last_rank + 1,
            ),
        )


class Idle(BOOK.section(source=_QI, measured_by=_SIMULATED)):
    def pipeline_microbatch_seconds(q):
        r"""\tau_\text{mb} | seconds | time of a microbatch on one rank: forward and both halves of
        backward"""
        return q.microbatch_forward_seconds + q.input_gradient_seconds + q.weight_gradient_seconds

    def pipeline_ideal_seconds(q):
        r"""\tau_\text{ideal} | seconds | time of a step on a rank that is never idle"""
        return q.microbatches * q.pipeline_microbatch_seconds

    def pipeline_passing_seconds(q):
        r"""\tau_\text{FI} | seconds | time of the work that neighbours wait for: forward, and the
        gradients of inputs"""
        return q.microbatch_forward_seconds + q.input_gradient_seconds

    def pipeline_idle_seconds(q):
        r"""\tau_\text{idle} | seconds | time that each rank is idle in a step whose messages take
        no time. For zero bubble the formula holds if the gradients of weights take no longer than a
        forward and no longer than the gradients of inputs, and if there are at least p microbatches
        (H1) or 2p - 1 (H2). If all three take equally long, H2's idle time is before the rank's
        first action and after its last"""
        return q.pipeline_last_rank * choose(
            q.pipeline_schedule,
            q.pipeline_microbatch_seconds,
            q.pipeline_microbatch_seconds,
            q.pipeline_microbatch_seconds,
            q.pipeline_microbatch_seconds / q.pipeline_chunks,
            q.pipeline_passing_seconds - q.weight_gradient_seconds,
            q.microbatch_forward_seconds,
        )

    @BOOK.own(measured_by=_PACE)
    def pipeline_least_seconds(q):
        r"""\tau_\text{pace} | seconds | shortest possible time of a step: the work of the last
        rank, whatever the schedule"""
        return q.last_rank_share * q.pipeline_ideal_seconds

    @BOOK.own(source="Narayanan et al. 2021")
    def bubble_share_of_total(q):
        r"""\varphi_\text{total} | fraction | share of the step that each rank is idle:
        (p-1)/(m+p-1) in 1F1B"""
        return q.pipeline_idle_seconds / (q.pipeline_ideal_seconds + q.pipeline_idle_seconds)

    @BOOK.own(source=_NARAYANAN)
    def bubble_share_of_ideal(q):
        r"""\varphi_\text{ideal} | fraction | idle time divided by the time of a step without idle
        time: (p-1)/m in 1F1B"""
        return q.pipeline_idle_seconds / q.pipeline_ideal_seconds


class MessagesThatTakeTime(BOOK.section(source=_OURS, measured_by=_TRANSFER)):
    def pipeline_hops(q):
        r"""p_\text{hop} | count | messages that take a microbatch through all stages"""
        return where(q.pipeline_parallel > 1, q.pipeline_stages - 1, 0)

    def pipeline_later_microbatches(q):
        """m_+ | count | microbatches after the second"""
        return maximum(q.microbatches - 2, 0)

    def pipeline_waiting_pairs(q):
        r"""m_\tau | count | pairs of a forward and a backward in which 1F1B waits for two messages:
        one pair for each microbatch after the second, except for every p-th of them"""
        return q.pipeline_later_microbatches - floor_div(
            q.pipeline_later_microbatches, q.pipeline_parallel
        )

    def pipeline_transfers(q):
        r"""n_\tau | count | number of messages in a step that every rank waits for. GPipe and eager
        1F1B wait once for the messages down the line and back. 1F1B has no microbatch to spare, so
        it waits in almost every pair"""
        return 2 * (
            q.pipeline_hops + where(equal(q.pipeline_schedule, 2), q.pipeline_waiting_pairs, 0)
        )

    @BOOK.own(source="definition")
    def transfer_seconds(q):
        r"""\tau_\text{p2p} | seconds | time of one message from stage to stage"""
        return q.latency_seconds + q.residual_bytes / q.link_bytes_per_second

    def pipeline_waiting_seconds(q):
        r"""\tau_\text{wait} | seconds | time that messages add to a step, if a message takes no
        longer than a stage's forward and no longer than its backward"""
        return q.pipeline_transfers * q.transfer_seconds

    def pipeline_step_seconds(q):
        r"""\tau_\text{pipe} | seconds | time of a step without the optimizer's update"""
        return q.pipeline_ideal_seconds + q.pipeline_idle_seconds + q.pipeline_waiting_seconds


class WhatARankHas(BOOK.section(source="counted from gpt.py", measured_by=_STAGE)):
    def pipeline_is_first(q):
        r"""1_\text{top} | count | 1 on the first rank, which has the embedding"""
        return where(q.pipeline_rank > 0, 0, 1)

    def pipeline_is_last(q):
        r"""1_\text{end} | count | 1 on the last rank, which has the last norm and the head"""
        return where(q.pipeline_ranks_after > 0, 0, 1)

    def stage_layers(q):
        r"""L_\text{stage} | count | layers of the fullest stage; all stages are equal where the
        layers divide evenly"""
        return ceil_div(q.layers, q.pipeline_stages)

    def second_head_parameters(q):
        r"""\Psi_\text{second} | parameters | parameters of a tied head on another rank than the
        embedding: the pipeline has them twice"""
        return q.tied_head * where(q.pipeline_parallel > 1, q.vocabulary * q.hidden, 0)

    def stage_parameters(q):
        r"""\Psi_\text{stage} | parameters | parameters of the rank: its layers, with the embedding
        on the first rank and the head on the last"""
        return (
            q.pipeline_chunks * q.stage_layers * q.layer_parameters
            + q.pipeline_is_first * q.embedding_parameters
            + q.pipeline_is_last
            * (q.norm_parameters + q.head_parameters + q.second_head_parameters)
        )

    @BOOK.own(measured_by=_FLIGHT)
    def held_layers(q):
        r"""L_\text{held} | count | layers of one microbatch whose activations the rank holds at the
        peak. On the first rank of 1F1B, p microbatches hold L/p layers each: L layers, whatever p
        is"""
        return q.pipeline_in_flight * q.stage_layers

    def held_activation_bytes(q):
        r"""A_\text{held} | bytes | bytes of the activations that a rank of a pipeline holds at the
        peak, as autograd keeps them"""
        return q.held_layers * q.layer_activation_bytes

    def held_exit_bytes(q):
        r"""A_\text{end} | bytes | bytes that the last rank of a pipeline holds at the peak for last
        norm, head and loss of its microbatches in flight; of one in the interleaved schedule, where
        each goes backward at once"""
        return where(equal(q.pipeline_schedule, 4), 1, q.pipeline_in_flight) * q.rank_exit_bytes

    def held_bytes(q):
        r"""A_\text{all} | bytes | bytes of all activations that a rank of a pipeline holds at the
        peak: its layers, and the last rank's head and loss"""
        return q.held_activation_bytes + q.held_exit_bytes


class WhatARankSends(BOOK.section(source=_OURS, measured_by=_SENT)):
    def pipeline_ends(q):
        r"""n_\text{ends} | count | ends of the model that the rank has: 0, 1, or 2 where one rank
        has it all"""
        return q.pipeline_is_first + q.pipeline_is_last

    def pipeline_ways(q):
        r"""n_\text{ways} | count | messages of a microbatch on a rank that has no end of the model:
        an activation and a gradient from each stage of the rank"""
        return 2 * q.pipeline_chunks

    def pipeline_messages(q):
        r"""n_\text{p2p} | count | messages that the rank sends in a step: the model's first stage
        sends no gradient and its last no activation"""
        return q.microbatches * where(q.pipeline_parallel > 1, q.pipeline_ways - q.pipeline_ends, 0)

    def tied_gradient_bytes(q):
        r"""Q_\text{tied} | bytes | bytes of the tied weight's gradient, which the first rank and
        the last rank send each other"""
        return where(q.pipeline_ends > 0, q.second_head_parameters, 0) * q.gradient_element_bytes

    def pipeline_sent_bytes(q):
        r"""Q_\text{pipe} | bytes | bytes that the rank sends in a step"""
        return q.pipeline_messages * q.residual_bytes + q.tied_gradient_bytes
