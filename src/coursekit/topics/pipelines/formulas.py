"""Pipelines: how long ranks are idle, what each rank holds, what it sends, by schedule.

Times are of one rank's layers and one microbatch, alike on all ranks. They are exact for the
schedules of shardlab.pipelines.schedules, which a test simulates, under what each formula says.
What they do not know is a slow stage: simulate that.

Layers are those of this book's GPT, divided evenly; the embedding is on the first rank and the head
on the last, where a tied weight is a second time."""

from coursekit.formulas.registry import BOOK
from coursekit.formulas.subset import ceil_div, choose, equal, floor_div, maximum, minimum, where

# --- what the reader gives

BOOK.given(
    r"""
pipeline_schedule | i_\text{sched} | count, from 1 to 6, usually 2 | the schedule: 1 GPipe, 2 1F1B,
    3 eager 1F1B, 4 interleaved 1F1B, 5 zero-bubble H1, 6 zero-bubble H2
stages_per_rank | v | count, usually 1 | stages of each rank in the interleaved schedule; the other
    schedules have one stage on a rank
pipeline_rank | r_p | count, from 0, usually 0 | one rank of the pipeline, counted from 0
microbatch_forward_seconds | \tau_\text{F} | seconds, from 0 | time of one microbatch's forward
    through a rank's layers
input_gradient_seconds | \tau_\text{I} | seconds, from 0 | time to compute the gradients of the
    layers' inputs, for one microbatch on one rank
weight_gradient_seconds | \tau_\text{W} | seconds, from 0 | time to compute the gradients of the
    layers' weights, for one microbatch on one rank
last_rank_share | \varphi_\text{last} | fraction, from 1, usually 1 | time of the last rank, which
    has the head, divided by the time of another rank
"""
)

_SIMULATED = "tests/pipelines/test_pipeline_formulas.py::test_idle_time_is_what_is_simulated"
_TRANSFER = "tests/pipelines/test_pipeline_formulas.py::test_transfer_time_is_what_is_simulated"
_PACE = "tests/pipelines/test_pipeline_formulas.py::test_the_slowest_rank_sets_the_pace"
_FLIGHT = "tests/pipelines/test_pipeline.py::test_in_flight_executed_simulated_and_by_formula"
_STAGE = "tests/pipelines/test_pipeline.py::test_what_each_rank_has"
_SENT = "tests/pipelines/test_pipeline.py::test_messages_and_bytes"
_NARAYANAN = "Narayanan et al. 2021, section 2.2"
_QI = "Qi et al. 2024"
_OURS = "shardlab.pipelines.schedules"


@BOOK.rule(
    "pipeline_rank = {pipeline_rank} is not a rank of a pipeline of {pipeline_parallel}: ranks"
    " count from 0.",
    marks="pipeline_rank",
)
def rank_is_in_the_pipeline(pipeline_rank, pipeline_parallel):
    return pipeline_rank < pipeline_parallel


@BOOK.rule(
    "microbatches = {microbatches} is not a multiple of pipeline_parallel = {pipeline_parallel}:"
    " interleaving takes them in groups of one for each rank.",
    marks="microbatches",
)
def interleaving_takes_groups(pipeline_schedule, microbatches, pipeline_parallel):
    return equal(
        where(
            equal(pipeline_schedule, 4),
            pipeline_parallel * floor_div(microbatches, pipeline_parallel),
            microbatches,
        ),
        microbatches,
    )


@BOOK.rule(
    "pipeline_parallel = {pipeline_parallel} makes {pipeline_stages} stages of layers = {layers}:"
    " each stage needs at least one layer.",
    marks="pipeline_parallel",
)
def each_stage_has_a_layer(pipeline_parallel, pipeline_stages, layers, stage_layers):
    return pipeline_stages <= layers


# --- in flight ------------------------------------------------------------------------------------
formula = BOOK.section(source=_OURS, measured_by=_FLIGHT)


@formula("m", "count", source="definition", least=1, choice=True)
def microbatches(accumulation_steps):
    """microbatches of a step, which pass through the pipeline: as many as are accumulated"""
    return accumulation_steps


@formula(r"v_i", "count", source=_NARAYANAN)
def pipeline_chunks(pipeline_schedule, stages_per_rank):
    """stages on each rank: one, unless the schedule is interleaved"""
    return where(equal(pipeline_schedule, 4), stages_per_rank, 1)


@formula(r"p_i", "count", source=_NARAYANAN)
def pipeline_stages(pipeline_parallel, pipeline_chunks):
    """stages of the whole model"""
    return pipeline_parallel * pipeline_chunks


@formula(r"p_\text{last}", "count")
def pipeline_last_rank(pipeline_parallel):
    """the last rank of the pipeline, which is also the number of links between ranks"""
    return pipeline_parallel - 1


@formula(r"p_\text{after}", "count")
def pipeline_ranks_after(pipeline_last_rank, pipeline_rank):
    """ranks after the rank in the pipeline"""
    return pipeline_last_rank - pipeline_rank


@formula(r"m_\text{fly}", "count")
def pipeline_in_flight(
    pipeline_schedule,
    microbatches,
    pipeline_ranks_after,
    pipeline_last_rank,
    pipeline_parallel,
    pipeline_chunks,
):
    """microbatches whose activations the rank holds at the peak, added up over its stages: all m in
    GPipe, p - r in 1F1B, p on every rank in zero-bubble H1"""
    return minimum(
        microbatches * pipeline_chunks,
        choose(
            pipeline_schedule,
            microbatches,
            pipeline_ranks_after + 1,
            2 * pipeline_ranks_after + 1,
            2 * pipeline_ranks_after + (pipeline_chunks - 1) * pipeline_parallel + 1,
            pipeline_parallel,
            2 * pipeline_last_rank + 1,
        ),
    )


# --- idle -----------------------------------------------------------------------------------------
formula = BOOK.section(source=_QI, measured_by=_SIMULATED)


@formula(r"\tau_\text{mb}", "seconds")
def pipeline_microbatch_seconds(
    microbatch_forward_seconds, input_gradient_seconds, weight_gradient_seconds
):
    """time of a microbatch on one rank: forward and both halves of backward"""
    return microbatch_forward_seconds + input_gradient_seconds + weight_gradient_seconds


@formula(r"\tau_\text{ideal}", "seconds")
def pipeline_ideal_seconds(microbatches, pipeline_microbatch_seconds):
    """time of a step on a rank that is never idle"""
    return microbatches * pipeline_microbatch_seconds


@formula(r"\tau_\text{FI}", "seconds")
def pipeline_passing_seconds(microbatch_forward_seconds, input_gradient_seconds):
    """time of the work that neighbours wait for: forward, and the gradients of inputs"""
    return microbatch_forward_seconds + input_gradient_seconds


@formula(r"\tau_\text{idle}", "seconds")
def pipeline_idle_seconds(
    pipeline_schedule,
    pipeline_last_rank,
    pipeline_microbatch_seconds,
    pipeline_chunks,
    pipeline_passing_seconds,
    weight_gradient_seconds,
    microbatch_forward_seconds,
):
    """time that each rank is idle in a step whose messages take no time. For zero bubble the
    formula holds if the gradients of weights take no longer than a forward and no longer than the
    gradients of inputs, and if there are at least p microbatches (H1) or 2p - 1 (H2). If all three
    take equally long, H2's idle time is before the rank's first action and after its last"""
    return pipeline_last_rank * choose(
        pipeline_schedule,
        pipeline_microbatch_seconds,
        pipeline_microbatch_seconds,
        pipeline_microbatch_seconds,
        pipeline_microbatch_seconds / pipeline_chunks,
        pipeline_passing_seconds - weight_gradient_seconds,
        microbatch_forward_seconds,
    )


@formula(r"\tau_\text{own}", "seconds")
def pipeline_own_idle_seconds(
    pipeline_schedule,
    pipeline_ranks_after,
    pipeline_microbatch_seconds,
    pipeline_chunks,
    pipeline_passing_seconds,
    weight_gradient_seconds,
):
    """time that the rank is idle between its first action and its last: the loss where steps follow
    each other without a stop. The last rank loses nothing"""
    return pipeline_ranks_after * choose(
        pipeline_schedule,
        pipeline_microbatch_seconds,
        pipeline_microbatch_seconds,
        pipeline_microbatch_seconds,
        pipeline_microbatch_seconds / pipeline_chunks,
        pipeline_passing_seconds - weight_gradient_seconds,
        pipeline_passing_seconds - 2 * weight_gradient_seconds,
    )


@formula(r"\tau_\text{pace}", "seconds", measured_by=_PACE)
def pipeline_least_seconds(pipeline_ideal_seconds, last_rank_share):
    """shortest possible time of a step: the work of the last rank, whatever the schedule"""
    return last_rank_share * pipeline_ideal_seconds


@formula(r"\varphi_\text{total}", "fraction", source="Narayanan et al. 2021")
def bubble_share_of_total(pipeline_idle_seconds, pipeline_ideal_seconds):
    """share of the step that each rank is idle: (p-1)/(m+p-1) in 1F1B"""
    return pipeline_idle_seconds / (pipeline_ideal_seconds + pipeline_idle_seconds)


@formula(r"\varphi_\text{ideal}", "fraction", source=_NARAYANAN)
def bubble_share_of_ideal(pipeline_idle_seconds, pipeline_ideal_seconds):
    """idle time divided by the time of a step without idle time: (p-1)/m in 1F1B"""
    return pipeline_idle_seconds / pipeline_ideal_seconds


# --- messages that take time ----------------------------------------------------------------------
formula = BOOK.section(source=_OURS, measured_by=_TRANSFER)


@BOOK.rule(
    "pipeline_schedule = {pipeline_schedule}: how often the zero-bubble schedules wait for messages"
    " has no short formula; simulate them.",
    marks="pipeline_schedule",
)
def zero_bubble_is_simulated(pipeline_schedule, pipeline_transfers):
    return pipeline_schedule + 0 * pipeline_transfers < 5


@formula(r"p_\text{hop}", "count")
def pipeline_hops(pipeline_parallel, pipeline_stages):
    """messages that take a microbatch through all stages"""
    return where(pipeline_parallel > 1, pipeline_stages - 1, 0)


@formula(r"m_+", "count")
def pipeline_later_microbatches(microbatches):
    """microbatches after the second"""
    return maximum(microbatches - 2, 0)


@formula(r"m_\tau", "count")
def pipeline_waiting_pairs(pipeline_later_microbatches, pipeline_parallel):
    """pairs of a forward and a backward in which 1F1B waits for two messages: one pair for each
    microbatch after the second, except for every p-th of them"""
    return pipeline_later_microbatches - floor_div(pipeline_later_microbatches, pipeline_parallel)


@formula(r"n_\tau", "count")
def pipeline_transfers(pipeline_schedule, pipeline_hops, pipeline_waiting_pairs):
    """number of messages in a step that every rank waits for. GPipe and eager 1F1B wait once for
    the messages down the line and back. 1F1B has no microbatch to spare, so it waits in almost
    every pair"""
    return 2 * (pipeline_hops + where(equal(pipeline_schedule, 2), pipeline_waiting_pairs, 0))


@formula(r"\tau_\text{p2p}", "seconds", source="definition")
def transfer_seconds(latency_seconds, residual_bytes, link_bytes_per_second):
    """time of one message from stage to stage"""
    return latency_seconds + residual_bytes / link_bytes_per_second


@formula(r"\tau_\text{wait}", "seconds")
def pipeline_waiting_seconds(pipeline_transfers, transfer_seconds):
    """time that messages add to a step, if a message takes no longer than a stage's forward and no
    longer than its backward"""
    return pipeline_transfers * transfer_seconds


@formula(r"\tau_\text{pipe}", "seconds")
def pipeline_step_seconds(pipeline_ideal_seconds, pipeline_idle_seconds, pipeline_waiting_seconds):
    """time of a step without the optimizer's update"""
    return pipeline_ideal_seconds + pipeline_idle_seconds + pipeline_waiting_seconds


# --- what a rank has ------------------------------------------------------------------------------
formula = BOOK.section(source="counted from gpt.py", measured_by=_STAGE)


@formula(r"1_\text{top}", "count")
def pipeline_is_first(pipeline_rank):
    """1 on the first rank, which has the embedding"""
    return where(pipeline_rank > 0, 0, 1)


@formula(r"1_\text{end}", "count")
def pipeline_is_last(pipeline_ranks_after):
    """1 on the last rank, which has the last norm and the head"""
    return where(pipeline_ranks_after > 0, 0, 1)


@formula(r"L_\text{stage}", "count")
def stage_layers(layers, pipeline_stages):
    """layers of the fullest stage; all stages are equal where the layers divide evenly"""
    return ceil_div(layers, pipeline_stages)


@formula(r"\Psi_\text{second}", "parameters")
def second_head_parameters(tied_head, pipeline_parallel, vocabulary, hidden):
    """parameters of a tied head on another rank than the embedding: the pipeline has them twice"""
    return tied_head * where(pipeline_parallel > 1, vocabulary * hidden, 0)


@formula(r"\Psi_\text{stage}", "parameters")
def stage_parameters(
    stage_layers,
    pipeline_chunks,
    layer_parameters,
    pipeline_is_first,
    embedding_parameters,
    pipeline_is_last,
    norm_parameters,
    head_parameters,
    second_head_parameters,
):
    """parameters of the rank: its layers, with the embedding on the first rank and the head on the
    last"""
    return (
        pipeline_chunks * stage_layers * layer_parameters
        + pipeline_is_first * embedding_parameters
        + pipeline_is_last * (norm_parameters + head_parameters + second_head_parameters)
    )


@formula(r"L_\text{held}", "count", measured_by=_FLIGHT)
def held_layers(pipeline_in_flight, stage_layers):
    """layers of one microbatch whose activations the rank holds at the peak. On the first rank of
    1F1B, p microbatches hold L/p layers each: L layers, whatever p is"""
    return pipeline_in_flight * stage_layers


@formula(r"A_\text{held}", "bytes")
def held_activation_bytes(held_layers, layer_activation_bytes):
    """bytes of the activations that a rank of a pipeline holds at the peak, as autograd keeps
    them"""
    return held_layers * layer_activation_bytes


@formula(r"A_\text{end}", "bytes")
def held_exit_bytes(pipeline_schedule, pipeline_in_flight, rank_exit_bytes):
    """bytes that the last rank of a pipeline holds at the peak for last norm, head and loss of its
    microbatches in flight; of one in the interleaved schedule, where each goes backward at once"""
    return where(equal(pipeline_schedule, 4), 1, pipeline_in_flight) * rank_exit_bytes


@formula(r"A_\text{all}", "bytes")
def held_bytes(held_activation_bytes, held_exit_bytes):
    """bytes of all activations that a rank of a pipeline holds at the peak: its layers, and the
    last rank's head and loss"""
    return held_activation_bytes + held_exit_bytes


# --- what a rank sends ----------------------------------------------------------------------------
formula = BOOK.section(source=_OURS, measured_by=_SENT)


@formula(r"n_\text{ends}", "count")
def pipeline_ends(pipeline_is_first, pipeline_is_last):
    """ends of the model that the rank has: 0, 1, or 2 where one rank has it all"""
    return pipeline_is_first + pipeline_is_last


@formula(r"n_\text{ways}", "count")
def pipeline_ways(pipeline_chunks):
    """messages of a microbatch on a rank that has no end of the model: an activation and a gradient
    from each stage of the rank"""
    return 2 * pipeline_chunks


@formula(r"n_\text{p2p}", "count")
def pipeline_messages(microbatches, pipeline_parallel, pipeline_ways, pipeline_ends):
    """messages that the rank sends in a step: the model's first stage sends no gradient and its
    last no activation"""
    return microbatches * where(pipeline_parallel > 1, pipeline_ways - pipeline_ends, 0)


@formula(r"Q_\text{tied}", "bytes")
def tied_gradient_bytes(pipeline_ends, second_head_parameters, gradient_element_bytes):
    """bytes of the tied weight's gradient, which the first rank and the last rank send each
    other"""
    return where(pipeline_ends > 0, second_head_parameters, 0) * gradient_element_bytes


@formula(r"Q_\text{pipe}", "bytes")
def pipeline_sent_bytes(pipeline_messages, residual_bytes, tied_gradient_bytes):
    """bytes that the rank sends in a step"""
    return pipeline_messages * residual_bytes + tied_gradient_bytes
