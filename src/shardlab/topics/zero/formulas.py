"""ZeRO: what each rank keeps, sends and waits for, by stage. Bytes are exact for each rank of one
flat tensor that is cut into shards, also where the ranks do not divide it: rank 0 has the fullest
shard. A model that is cut as several flat tensors, which are buckets or units, has the sum over
them: give each one's size as `parameters`.
"""

from shardlab.formulas.registry import BOOK
from shardlab.formulas.subset import maximum, next_rank, ring_pass, shard_of, where

# --- what the reader gives

BOOK.given(
    r"""
zero_stage | z | count, from 0 to 3, usually 0 | what ZeRO shards: 0 nothing, 1 optimizer states, 2
    gradients too, 3 parameters too
zero_flat_tensors | n_\text{flat} | count | flat tensors that are cut into shards: buckets, or units
    in stage 3
zero_unit_parameters | \Psi_\text{unit} | parameters | parameters of the largest unit, which stage 3
    has whole at a time
zero_root_parameters | \Psi_\text{root} | parameters, from 0 | parameters of stage 3's root, which
    stay whole while its units come and go
"""
)

_STATES = "Rajbhandari et al. 2020 (ZeRO), section 5"
_TRAFFIC = "Rajbhandari et al. 2020 (ZeRO), section 7"
_OURS = "shardlab.zero"
_KEPT = "tests/zero/test_zero.py::test_bytes_of_each_rank"
_SENT = "tests/zero/test_zero.py::test_bytes_on_the_wire"
_PEAK = "tests/zero/test_zero.py::test_what_is_whole_at_a_time"
_SECONDS = "tests/zero/test_zero_formulas.py::test_seconds"
_HIDES = "tests/zero/test_zero_formulas.py::test_tokens_that_hide_the_traffic"


@BOOK.rule(
    "rank = {rank} is no rank of a data-parallel group of {data_parallel}: ranks count from 0.",
    marks="rank",
)
def rank_is_in_the_data_parallel_group(rank, data_parallel):
    return rank < data_parallel


# --- what is kept ---------------------------------------------------------------------------------
formula = BOOK.section(source=_STATES, measured_by=_KEPT)


@formula(r"\Psi_r", "parameters")
def zero_shard_parameters(parameters, data_parallel, rank):
    """elements of the rank's shard: where the ranks do not divide them, the first shards have one
    more"""
    return shard_of(parameters, data_parallel, rank)


@formula(r"\Psi_\text{p}", "parameters")
def zero_kept_parameters(zero_stage, parameters, zero_shard_parameters):
    """parameters that the rank keeps from step to step: from stage 3 on those of its shard"""
    return where(zero_stage < 3, parameters, zero_shard_parameters)


@formula(r"\Psi_\text{g}", "parameters")
def zero_kept_gradients(zero_stage, parameters, zero_shard_parameters):
    """parameters whose gradients the rank has when backward is done: from stage 2 on those of its
    shard"""
    return where(zero_stage < 2, parameters, zero_shard_parameters)


@formula(r"\Psi_\text{o}", "parameters")
def zero_kept_optimizer_states(zero_stage, parameters, zero_shard_parameters):
    """parameters whose optimizer states the rank keeps: from stage 1 on those of its shard"""
    return where(zero_stage < 1, parameters, zero_shard_parameters)


@formula(r"M_\text{p}", "bytes")
def zero_parameter_bytes(zero_kept_parameters, parameter_element_bytes):
    """bytes of the parameters that the rank keeps"""
    return parameter_element_bytes * zero_kept_parameters


@formula(r"M_\text{g}", "bytes")
def zero_gradient_bytes(zero_kept_gradients, gradient_element_bytes):
    """bytes of the gradients that the rank has when backward is done"""
    return gradient_element_bytes * zero_kept_gradients


@formula(r"M_\text{o}", "bytes")
def zero_optimizer_bytes(
    zero_kept_optimizer_states, master_element_bytes, optimizer_moments, moment_element_bytes
):
    """bytes of the optimizer states that the rank keeps: the master copy, if the recipe has one,
    and the moments"""
    return (
        master_element_bytes + optimizer_moments * moment_element_bytes
    ) * zero_kept_optimizer_states


@formula(
    r"M_\text{cut}", "bytes", source="torch.optim.AdamW: a float32 step for each tensor it updates"
)
def zero_step_counter_bytes(zero_flat_tensors, step_counter_element_bytes):
    """bytes of the step counters from stage 1 on: one for each flat tensor, not for each parameter
    tensor; stages 1 and 2 cut the shard of a large bucket in parts, of which each has one"""
    return step_counter_element_bytes * zero_flat_tensors


@formula(r"M_z", "bytes")
def zero_states_bytes(zero_parameter_bytes, zero_gradient_bytes, zero_optimizer_bytes):
    """bytes of all model states on the rank; what stage 3 gathers comes on top, as activations
    do"""
    return zero_parameter_bytes + zero_gradient_bytes + zero_optimizer_bytes


# --- what stage 3 has whole for a moment ----------------------------------------------------------
formula = BOOK.section(source=_OURS, measured_by=_PEAK)


@formula(r"M_\text{whole}", "bytes")
def zero_gathered_bytes(zero_unit_parameters, zero_root_parameters, parameter_element_bytes):
    """bytes of the parameters that are whole at a time in stage 3: one unit's, and the root's"""
    return parameter_element_bytes * (zero_unit_parameters + zero_root_parameters)


@formula(r"M_\text{back}", "bytes")
def zero_unit_backward_bytes(zero_unit_parameters, parameter_element_bytes, gradient_element_bytes):
    """bytes that a unit has at its fullest in backward: its parameters, and their gradients, which
    are whole until they are reduced"""
    return (parameter_element_bytes + gradient_element_bytes) * zero_unit_parameters


@formula(r"M_\text{root}", "bytes")
def zero_root_backward_bytes(zero_root_parameters, parameter_element_bytes, gradient_element_bytes):
    """bytes that the root has while its units come and go in backward: its parameters, and
    gradients that may all be there"""
    return (parameter_element_bytes + gradient_element_bytes) * zero_root_parameters


@formula(r"M_\text{trans}", "bytes")
def zero_transient_bytes(zero_unit_backward_bytes, zero_root_backward_bytes):
    """bytes that stage 3 has beside the shards at its fullest, before what is on its way: the peak
    that 16 bytes over d forget"""
    return zero_unit_backward_bytes + zero_root_backward_bytes


# --- what is sent ---------------------------------------------------------------------------------
formula = BOOK.section(source=_TRAFFIC, measured_by=_SENT)


@formula(r"n_\text{rs}", "count")
def zero_reductions(zero_stage, accumulation_steps):
    """times that all gradients are reduce-scattered in a step; in stage 0 that is the first half of
    its all-reduce"""
    return where(zero_stage < 2, 1, accumulation_steps)


@formula(r"n_\text{ag}", "count")
def zero_gatherings(zero_stage, accumulation_steps):
    """times that everything is gathered in a step; in stage 0 that is the second half of its
    all-reduce"""
    return where(zero_stage < 3, 1, 2 * accumulation_steps)


@formula(r"\Psi_\text{sent}", "parameters")
def zero_traffic_parameters(parameters, zero_reductions, zero_gatherings):
    """elements that a rank of many sends in a step: two for each parameter, k + 1 in stage 2, 3k in
    stage 3"""
    return (zero_reductions + zero_gatherings) * parameters


@formula(r"\beta_\text{ag}", "bytes")
def zero_gathered_element_bytes(zero_stage, parameter_element_bytes, gradient_element_bytes):
    """bytes of an element that is gathered: a parameter's, but in stage 0 a gradient's"""
    return where(zero_stage < 1, gradient_element_bytes, parameter_element_bytes)


@formula(r"r_\text{next}", "count", source=_OURS)
def zero_right_rank(data_parallel, rank):
    """the rank's neighbour in the data-parallel group, to which it sends around the ring"""
    return next_rank(data_parallel, rank)


@formula(r"\Psi_\text{next}", "parameters", source=_OURS)
def zero_right_shard_parameters(parameters, data_parallel, zero_right_rank):
    """elements of that neighbour's shard, the one that the rank does not send in a gathering"""
    return shard_of(parameters, data_parallel, zero_right_rank)


@formula(r"Q_r", "bytes")
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


@formula(r"\beta_\text{wire}", "bytes")
def zero_traffic_element_bytes(
    zero_reductions, gradient_element_bytes, zero_gatherings, zero_gathered_element_bytes
):
    """bytes that a rank of many sends in a step for each parameter"""
    return zero_reductions * gradient_element_bytes + zero_gatherings * zero_gathered_element_bytes


# --- how long a step takes ------------------------------------------------------------------------
formula = BOOK.section(source="definition", measured_by=_SECONDS)


@formula(r"\tau_\text{wire}", "seconds", source="Patarasu and Yuan 2009, for each collective")
def zero_communication_seconds(
    data_parallel,
    zero_reductions,
    zero_gatherings,
    zero_flat_tensors,
    latency_seconds,
    zero_traffic_element_bytes,
    parameters,
    link_bytes_per_second,
):
    """time of all collectives of a step, one after the other around rings"""
    return ring_pass(
        data_parallel,
        (zero_reductions + zero_gatherings) * zero_flat_tensors * latency_seconds,
        zero_traffic_element_bytes * parameters / link_bytes_per_second,
    )


@formula(r"\tau_\text{sum}", "seconds")
def zero_step_seconds(
    accumulation_steps, forward_seconds, backward_seconds, zero_communication_seconds
):
    """time of a step that computes and communicates in turns: the longest that it can be"""
    return accumulation_steps * (forward_seconds + backward_seconds) + zero_communication_seconds


@formula(r"\tau_\text{over}", "seconds")
def zero_overlapped_step_seconds(
    accumulation_steps, forward_seconds, backward_seconds, zero_communication_seconds
):
    """time of a step that does both at once all the time: the shortest that it can be"""
    return maximum(
        accumulation_steps * (forward_seconds + backward_seconds), zero_communication_seconds
    )


@formula(
    r"T_\text{hide}",
    "tokens/GPU",
    source="6 operations for each parameter and token (Kaplan et al. 2020)",
    measured_by=_HIDES,
)
def zero_hiding_tokens(
    zero_traffic_element_bytes,
    data_parallel,
    accumulation_steps,
    flops_per_second,
    utilisation,
    link_bytes_per_second,
):
    """fewest tokens in a microbatch of a GPU under whose computing the traffic could pass, latency
    left out; the size of the model cancels"""
    return (
        zero_traffic_element_bytes
        * (data_parallel - 1)
        * utilisation
        * flops_per_second
        / (6 * accumulation_steps * data_parallel * link_bytes_per_second)
    )
