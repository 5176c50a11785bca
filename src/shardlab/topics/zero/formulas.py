"""ZeRO: what each rank keeps, sends and waits for, by stage. Bytes are exact for each rank of one
flat tensor that is cut into shards, also where the ranks do not divide it: rank 0 has the fullest
shard. A model that is cut as several flat tensors, which are buckets or units, has the sum over
them: give each one's size as `parameters`.
"""

from shardlab.formulas.registry import BOOK
from shardlab.formulas.subset import floor_div, maximum, where

# --- what the reader gives

BOOK.quantity(
    "zero_stage",
    "z",
    "count",
    "what ZeRO shards: 0 nothing, 1 optimizer states, 2 gradients too, 3 parameters too",
    least=0,
    most=3,
)
BOOK.quantity(
    "zero_flat_tensors",
    r"n_\text{flat}",
    "count",
    "flat tensors that are cut into shards: buckets, or units in stage 3",
)
BOOK.quantity(
    "zero_unit_parameters",
    r"\Psi_\text{unit}",
    "parameters",
    "parameters of the largest unit, which stage 3 has whole at a time",
)
BOOK.quantity(
    "zero_root_parameters",
    r"\Psi_\text{root}",
    "parameters",
    "parameters of stage 3's root, which stay whole while its units come and go",
    least=0,
)

_STATES = "Rajbhandari et al. 2020 (ZeRO), section 5"
_TRAFFIC = "Rajbhandari et al. 2020 (ZeRO), section 7"
_OURS = "shardlab.zero"
_KEPT = "tests/zero/test_zero.py::test_bytes_of_each_rank"
_SENT = "tests/zero/test_zero.py::test_bytes_on_the_wire"
_PEAK = "tests/zero/test_zero.py::test_what_is_whole_at_a_time"
_SECONDS = "tests/zero/test_zero_formulas.py::test_seconds"
_HIDES = "tests/zero/test_zero_formulas.py::test_tokens_that_hide_the_traffic"
_SIDE = "tests/zero/test_zero_formulas.py::test_stages_side_by_side"
_CARD = "tests/zero/test_zero_formulas.py::test_against_a_card"


@BOOK.rule(
    "rank = {rank} is no rank of a data-parallel group of {data_parallel}: ranks count from 0.",
    marks="rank",
)
def rank_is_in_the_data_parallel_group(rank, data_parallel):
    return rank < data_parallel


# --- what is kept ---------------------------------------------------------------------------------


@BOOK.formula(symbol=r"r_\text{after}", unit="count", source=_OURS, measured_by=_KEPT)
def zero_ranks_behind(data_parallel, rank):
    """ranks of the data-parallel group with a higher number"""
    return data_parallel - (rank + 1)


@BOOK.formula(symbol=r"\Psi_r", unit="parameters", source=_STATES, measured_by=_KEPT)
def zero_shard_parameters(parameters, data_parallel, zero_ranks_behind):
    """elements of the rank's shard: where the ranks do not divide them, the first shards have one
    more"""
    return floor_div(parameters + zero_ranks_behind, data_parallel)


@BOOK.formula(symbol=r"\Psi_\text{p}", unit="parameters", source=_STATES, measured_by=_KEPT)
def zero_kept_parameters(zero_stage, parameters, zero_shard_parameters):
    """parameters that the rank keeps from step to step: from stage 3 on those of its shard"""
    return where(zero_stage < 3, parameters, zero_shard_parameters)


@BOOK.formula(symbol=r"\Psi_\text{g}", unit="parameters", source=_STATES, measured_by=_KEPT)
def zero_kept_gradients(zero_stage, parameters, zero_shard_parameters):
    """parameters whose gradients the rank has when backward is done: from stage 2 on those of its
    shard"""
    return where(zero_stage < 2, parameters, zero_shard_parameters)


@BOOK.formula(symbol=r"\Psi_\text{o}", unit="parameters", source=_STATES, measured_by=_KEPT)
def zero_kept_optimizer_states(zero_stage, parameters, zero_shard_parameters):
    """parameters whose optimizer states the rank keeps: from stage 1 on those of its shard"""
    return where(zero_stage < 1, parameters, zero_shard_parameters)


@BOOK.formula(symbol=r"M_\text{p}", unit="bytes", source=_STATES, measured_by=_KEPT)
def zero_parameter_bytes(zero_kept_parameters, parameter_element_bytes):
    """bytes of the parameters that the rank keeps"""
    return parameter_element_bytes * zero_kept_parameters


@BOOK.formula(symbol=r"M_\text{g}", unit="bytes", source=_STATES, measured_by=_KEPT)
def zero_gradient_bytes(zero_kept_gradients, gradient_element_bytes):
    """bytes of the gradients that the rank has when backward is done"""
    return gradient_element_bytes * zero_kept_gradients


@BOOK.formula(symbol=r"M_\text{o}", unit="bytes", source=_STATES, measured_by=_KEPT)
def zero_optimizer_bytes(
    zero_kept_optimizer_states, master_element_bytes, optimizer_moments, moment_element_bytes
):
    """bytes of the optimizer states that the rank keeps: the master copy, if the recipe has one,
    and the moments"""
    return (
        master_element_bytes + optimizer_moments * moment_element_bytes
    ) * zero_kept_optimizer_states


@BOOK.formula(
    symbol=r"M_\text{cut}",
    unit="bytes",
    source="torch.optim.AdamW: a float32 step for each tensor it updates",
    measured_by=_KEPT,
)
def zero_step_counter_bytes(zero_flat_tensors, step_counter_element_bytes):
    """bytes of the step counters from stage 1 on: one for each flat tensor, not for each parameter
    tensor; stages 1 and 2 cut the shard of a large bucket in parts, of which each has one"""
    return step_counter_element_bytes * zero_flat_tensors


@BOOK.formula(symbol=r"M_z", unit="bytes", source=_STATES, measured_by=_KEPT)
def zero_states_bytes(zero_parameter_bytes, zero_gradient_bytes, zero_optimizer_bytes):
    """bytes of all model states on the rank; what stage 3 gathers comes on top, as activations
    do"""
    return zero_parameter_bytes + zero_gradient_bytes + zero_optimizer_bytes


# --- what stage 3 has whole for a moment ----------------------------------------------------------


@BOOK.formula(symbol=r"M_\text{whole}", unit="bytes", source=_OURS, measured_by=_PEAK)
def zero_gathered_bytes(zero_unit_parameters, zero_root_parameters, parameter_element_bytes):
    """bytes of the parameters that are whole at a time in stage 3: one unit's, and the root's"""
    return parameter_element_bytes * (zero_unit_parameters + zero_root_parameters)


@BOOK.formula(symbol=r"M_\text{back}", unit="bytes", source=_OURS, measured_by=_PEAK)
def zero_unit_backward_bytes(zero_unit_parameters, parameter_element_bytes, gradient_element_bytes):
    """bytes that a unit has at its fullest in backward: its parameters, and their gradients, which
    are whole until they are reduced"""
    return (parameter_element_bytes + gradient_element_bytes) * zero_unit_parameters


@BOOK.formula(symbol=r"M_\text{root}", unit="bytes", source=_OURS, measured_by=_PEAK)
def zero_root_backward_bytes(zero_root_parameters, parameter_element_bytes, gradient_element_bytes):
    """bytes that the root has while its units come and go in backward: its parameters, and
    gradients that may all be there"""
    return (parameter_element_bytes + gradient_element_bytes) * zero_root_parameters


@BOOK.formula(symbol=r"M_\text{trans}", unit="bytes", source=_OURS, measured_by=_PEAK)
def zero_transient_bytes(zero_unit_backward_bytes, zero_root_backward_bytes):
    """bytes that stage 3 has beside the shards at its fullest, before what is on its way: the peak
    that 16 bytes over d forget"""
    return zero_unit_backward_bytes + zero_root_backward_bytes


# --- what is sent ---------------------------------------------------------------------------------


@BOOK.formula(symbol=r"n_\text{rs}", unit="count", source=_TRAFFIC, measured_by=_SENT)
def zero_reductions(zero_stage, accumulation_steps):
    """times that all gradients are reduce-scattered in a step; in stage 0 that is the first half of
    its all-reduce"""
    return where(zero_stage < 2, 1, accumulation_steps)


@BOOK.formula(symbol=r"n_\text{ag}", unit="count", source=_TRAFFIC, measured_by=_SENT)
def zero_gatherings(zero_stage, accumulation_steps):
    """times that everything is gathered in a step; in stage 0 that is the second half of its
    all-reduce"""
    return where(zero_stage < 3, 1, 2 * accumulation_steps)


@BOOK.formula(symbol=r"Q_z", unit="parameters", source=_TRAFFIC, measured_by=_SENT)
def zero_traffic_parameters(parameters, zero_reductions, zero_gatherings):
    """elements that a rank of many sends in a step: two for each parameter, k + 1 in stage 2, 3k in
    stage 3"""
    return (zero_reductions + zero_gatherings) * parameters


@BOOK.formula(symbol=r"\beta_\text{ag}", unit="bytes", source=_TRAFFIC, measured_by=_SENT)
def zero_gathered_element_bytes(zero_stage, parameter_element_bytes, gradient_element_bytes):
    """bytes of an element that is gathered: a parameter's, but in stage 0 a gradient's"""
    return where(zero_stage < 1, gradient_element_bytes, parameter_element_bytes)


@BOOK.formula(symbol=r"r_\text{next}", unit="count", source=_OURS, measured_by=_SENT)
def zero_ranks_behind_right(data_parallel, zero_ranks_behind):
    """ranks with a higher number than the neighbour to which the rank sends around the ring"""
    return where(zero_ranks_behind > 0, zero_ranks_behind - 1, data_parallel - 1)


@BOOK.formula(symbol=r"\Psi_\text{next}", unit="parameters", source=_OURS, measured_by=_SENT)
def zero_right_shard_parameters(parameters, data_parallel, zero_ranks_behind_right):
    """elements of that neighbour's shard, the one that the rank does not send in a gathering"""
    return floor_div(parameters + zero_ranks_behind_right, data_parallel)


@BOOK.formula(symbol=r"Q_r", unit="bytes", source=_TRAFFIC, measured_by=_SENT)
def zero_sent_bytes(
    parameters,
    zero_reductions,
    gradient_element_bytes,
    zero_shard_parameters,
    zero_gatherings,
    zero_gathered_element_bytes,
    zero_right_shard_parameters,
):
    """bytes that the rank sends in a step, around rings"""
    return zero_reductions * gradient_element_bytes * (
        parameters - zero_shard_parameters
    ) + zero_gatherings * zero_gathered_element_bytes * (parameters - zero_right_shard_parameters)


# --- how long a step takes ------------------------------------------------------------------------


@BOOK.formula(
    symbol=r"\tau_\text{wire}",
    unit="seconds",
    source="Patarasu and Yuan 2009, for each collective",
    measured_by=_SECONDS,
)
def zero_communication_seconds(
    parameters,
    zero_reductions,
    gradient_element_bytes,
    zero_gatherings,
    zero_gathered_element_bytes,
    data_parallel,
    zero_flat_tensors,
    latency_seconds,
    link_bytes_per_second,
):
    """time of all collectives of a step, one after the other around rings"""
    return (zero_reductions + zero_gatherings) * zero_flat_tensors * (
        data_parallel - 1
    ) * latency_seconds + (
        data_parallel - 1
    ) / data_parallel * parameters / link_bytes_per_second * (
        zero_reductions * gradient_element_bytes + zero_gatherings * zero_gathered_element_bytes
    )


@BOOK.formula(symbol=r"\tau_\text{sum}", unit="seconds", source="definition", measured_by=_SECONDS)
def zero_step_seconds(
    accumulation_steps, forward_seconds, backward_seconds, zero_communication_seconds
):
    """time of a step that computes and communicates in turns: the longest that it can be"""
    return accumulation_steps * (forward_seconds + backward_seconds) + zero_communication_seconds


@BOOK.formula(symbol=r"\tau_\text{over}", unit="seconds", source="definition", measured_by=_SECONDS)
def zero_overlapped_step_seconds(
    accumulation_steps, forward_seconds, backward_seconds, zero_communication_seconds
):
    """time of a step that does both at once all the time: the shortest that it can be"""
    return maximum(
        accumulation_steps * (forward_seconds + backward_seconds), zero_communication_seconds
    )


@BOOK.formula(
    symbol=r"T_\text{hide}",
    unit="tokens/GPU",
    source="6 operations for each parameter and token (Kaplan et al. 2020)",
    measured_by=_HIDES,
)
def zero_hiding_tokens(
    zero_reductions,
    gradient_element_bytes,
    zero_gatherings,
    zero_gathered_element_bytes,
    data_parallel,
    accumulation_steps,
    flops_per_second,
    utilisation,
    link_bytes_per_second,
):
    """fewest tokens in a microbatch of a GPU under whose computing the traffic could pass, latency
    left out; the size of the model cancels"""
    return (
        (zero_reductions * gradient_element_bytes + zero_gatherings * zero_gathered_element_bytes)
        * (data_parallel - 1)
        * utilisation
        * flops_per_second
        / (6 * accumulation_steps * data_parallel * link_bytes_per_second)
    )


# --- the stages side by side ----------------------------------------------------------------------


@BOOK.formula(symbol=r"M_0", unit="bytes", source=_STATES, measured_by=_SIDE)
def zero_bytes_in_stage_0(parameters, bytes_per_parameter):
    """bytes of the model states on every rank when nothing is sharded: plain data parallelism"""
    return bytes_per_parameter * parameters


@BOOK.formula(symbol=r"M_1", unit="bytes", source=_STATES, measured_by=_SIDE)
def zero_bytes_in_stage_1(
    parameters,
    zero_shard_parameters,
    parameter_element_bytes,
    gradient_element_bytes,
    master_element_bytes,
    optimizer_moments,
    moment_element_bytes,
):
    """bytes of the model states on the rank in stage 1"""
    return (parameter_element_bytes + gradient_element_bytes) * parameters + (
        master_element_bytes + optimizer_moments * moment_element_bytes
    ) * zero_shard_parameters


@BOOK.formula(symbol=r"M_2", unit="bytes", source=_STATES, measured_by=_SIDE)
def zero_bytes_in_stage_2(
    parameters,
    zero_shard_parameters,
    parameter_element_bytes,
    gradient_element_bytes,
    master_element_bytes,
    optimizer_moments,
    moment_element_bytes,
):
    """bytes of the model states on the rank in stage 2"""
    return (
        parameter_element_bytes * parameters
        + (gradient_element_bytes + master_element_bytes + optimizer_moments * moment_element_bytes)
        * zero_shard_parameters
    )


@BOOK.formula(symbol=r"M_3", unit="bytes", source=_STATES, measured_by=_SIDE)
def zero_bytes_in_stage_3(zero_shard_parameters, bytes_per_parameter):
    """bytes of the model states on the rank in stage 3, before what it gathers"""
    return bytes_per_parameter * zero_shard_parameters


@BOOK.formula(symbol=r"Q_1", unit="bytes", source=_TRAFFIC, measured_by=_SIDE)
def zero_sent_in_stage_1(
    parameters,
    gradient_element_bytes,
    zero_shard_parameters,
    parameter_element_bytes,
    zero_right_shard_parameters,
):
    """bytes that the rank sends in a step of stage 1, whatever the number of microbatches"""
    return gradient_element_bytes * (
        parameters - zero_shard_parameters
    ) + parameter_element_bytes * (parameters - zero_right_shard_parameters)


@BOOK.formula(symbol=r"Q_2", unit="bytes", source=_TRAFFIC, measured_by=_SIDE)
def zero_sent_in_stage_2(
    parameters,
    accumulation_steps,
    gradient_element_bytes,
    zero_shard_parameters,
    parameter_element_bytes,
    zero_right_shard_parameters,
):
    """bytes that the rank sends in a step of stage 2: gradients with each microbatch, parameters
    once"""
    return accumulation_steps * gradient_element_bytes * (
        parameters - zero_shard_parameters
    ) + parameter_element_bytes * (parameters - zero_right_shard_parameters)


@BOOK.formula(symbol=r"Q_3", unit="bytes", source=_TRAFFIC, measured_by=_SIDE)
def zero_sent_in_stage_3(
    parameters,
    accumulation_steps,
    gradient_element_bytes,
    zero_shard_parameters,
    parameter_element_bytes,
    zero_right_shard_parameters,
):
    """bytes that the rank sends in a step of stage 3: gradients once and parameters twice with each
    microbatch"""
    return accumulation_steps * gradient_element_bytes * (
        parameters - zero_shard_parameters
    ) + 2 * accumulation_steps * parameter_element_bytes * (
        parameters - zero_right_shard_parameters
    )


# --- held against a card --------------------------------------------------------------------------


@BOOK.formula(symbol=r"M_\text{spare}", unit="bytes", source="definition", measured_by=_CARD)
def zero_spare_bytes(gpu_memory_bytes, zero_states_bytes):
    """bytes that the model states leave on the card for activations, temporaries and what is
    gathered"""
    return maximum(gpu_memory_bytes - zero_states_bytes, 0)


@BOOK.formula(symbol=r"M_\text{short}", unit="bytes", source="definition", measured_by=_CARD)
def zero_overflow_bytes(gpu_memory_bytes, zero_states_bytes):
    """bytes of the rank's model states that find no place on the card"""
    return maximum(zero_states_bytes - gpu_memory_bytes, 0)


@BOOK.formula(symbol=r"1_z", unit="count", source="definition", measured_by=_CARD)
def zero_states_fit(gpu_memory_bytes, zero_states_bytes):
    """1 if the rank's model states fit the card, 0 if not"""
    return where(zero_states_bytes <= gpu_memory_bytes, 1, 0)
