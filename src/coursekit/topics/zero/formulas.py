"""ZeRO: what each rank keeps, sends and waits for, by stage. Bytes are exact for each rank of one
flat tensor that is cut into shards, also where the ranks do not divide it: rank 0 has the fullest
shard. A model that is cut as several flat tensors, which are buckets or units, has the sum over
them: give each one's size as parameters.

Seconds are those of events (timeline.py), phase by phase: units of one size, one ring, whose
bandwidth is `link_bytes_per_second`. The update is left out.
"""

from coursekit.formulas.registry import BOOK
from coursekit.formulas.subset import maximum, next_rank, ring_pass, shard_of, where

BOOK.given_beside(__file__)

_STATES = "Rajbhandari et al. 2020 (ZeRO), section 5"
_TRAFFIC = "Rajbhandari et al. 2020 (ZeRO), section 7"
_OURS = "shardlab.zero"
_KEPT = "tests/zero/test_zero.py::test_bytes_of_each_rank"
_SENT = "tests/zero/test_zero.py::test_bytes_on_the_wire"
_PEAK = "tests/zero/test_zero.py::test_what_is_whole_at_a_time"
_SECONDS = "tests/zero/test_zero_formulas.py::test_seconds"
_EVENTS = "tests/zero/test_zero_time.py::test_closed_forms_are_the_simulation"
_OFFLOAD = "tests/zero/test_zero_time.py::test_offload"
_COUNTS = "tests/zero/test_zero_time.py::test_how_often_a_step_communicates"
_HIDES = "tests/zero/test_zero_time.py::test_tokens_that_hide_a_phase"


class WhatIsKept(BOOK.section(source=_STATES, measured_by=_KEPT)):
    def zero_shard_parameters(q):
        r"""\Psi_r | parameters | elements of the rank's shard; where the number of ranks does not
        divide the parameters, the first shards have one element more"""
        return shard_of(q.parameters, q.data_parallel, q.rank)

    def zero_kept_parameters(q):
        r"""\Psi_\text{p} | parameters | parameters that the rank keeps from step to step: from
        stage 3 on, those of its shard"""
        return where(q.zero_stage < 3, q.parameters, q.zero_shard_parameters)

    def zero_kept_gradients(q):
        r"""\Psi_\text{g} | parameters | parameters whose gradients the rank has when backward is
        done: from stage 2 on, those of its shard"""
        return where(q.zero_stage < 2, q.parameters, q.zero_shard_parameters)

    def zero_kept_optimizer_states(q):
        r"""\Psi_\text{o} | parameters | parameters whose optimizer states the rank keeps: from
        stage 1 on, those of its shard"""
        return where(q.zero_stage < 1, q.parameters, q.zero_shard_parameters)

    def zero_parameter_bytes(q):
        r"""M_\text{p} | bytes | bytes of the parameters that the rank keeps"""
        return q.parameter_element_bytes * q.zero_kept_parameters

    def zero_gradient_bytes(q):
        r"""M_\text{g} | bytes | bytes of the gradients that the rank has when backward is done"""
        return q.gradient_element_bytes * q.zero_kept_gradients

    def zero_optimizer_bytes(q):
        r"""M_\text{o} | bytes | bytes of the optimizer states that the rank keeps: the master copy,
        if the recipe has one, and the moments"""
        return (
            q.master_element_bytes + q.optimizer_moments * q.moment_element_bytes
        ) * q.zero_kept_optimizer_states

    @BOOK.own(source="torch.optim.AdamW: a float32 step for each tensor it updates")
    def zero_step_counter_bytes(q):
        r"""M_\text{cut} | bytes | bytes of the step counters from stage 1 on: one for each flat
        tensor in stages 1 and 2, where the shard of a large bucket is cut in parts with a counter
        each, and one for each parameter tensor in stage 3"""
        return q.step_counter_element_bytes * where(
            q.zero_stage < 3, q.zero_flat_tensors, q.parameter_tensors
        )

    def zero_states_bytes(q):
        """M_z | bytes | bytes of all model states on the rank; what stage 3 gathers comes on top,
        as activations do"""
        return q.zero_parameter_bytes + q.zero_gradient_bytes + q.zero_optimizer_bytes


class WhatStage3HasWholeForAMoment(BOOK.section(source=_OURS, measured_by=_PEAK)):
    def zero_gathered_bytes(q):
        r"""M_\text{whole} | bytes | bytes of whole parameters that a rank holds at a time in stage
        3, if no unit is gathered ahead: one unit's and the root's"""
        return q.parameter_element_bytes * (q.zero_unit_parameters + q.zero_root_parameters)

    def zero_unit_backward_bytes(q):
        r"""M_\text{back} | bytes | bytes of a unit at its peak in backward: its parameters and
        their gradients, which are whole until they are reduced"""
        return (q.parameter_element_bytes + q.gradient_element_bytes) * q.zero_unit_parameters

    def zero_root_backward_bytes(q):
        r"""M_\text{root} | bytes | bytes of the root while units come and go in backward: its
        parameters and, at most, all of their gradients"""
        return (q.parameter_element_bytes + q.gradient_element_bytes) * q.zero_root_parameters

    def zero_transient_bytes(q):
        r"""M_\text{trans} | bytes | bytes that stage 3 holds besides the shards at its peak, if no
        unit is gathered ahead, and without messages in transit: the part of the peak that 16 bytes
        for each parameter, divided by d, leave out"""
        return q.zero_unit_backward_bytes + q.zero_root_backward_bytes


class WhatIsSent(BOOK.section(source=_TRAFFIC, measured_by=_SENT)):
    @BOOK.own(source="FSDP2, fully_shard", measured_by=_COUNTS, choice=True)
    def reshard_after_forward(q):
        r"""1_\text{fwd} | count | 1 if a unit's parameters are freed after its forward and gathered
        again in backward; by default 1 in stage 3"""
        return where(q.zero_stage < 3, 0, 1)

    @BOOK.own(source="FSDP2, set_reshard_after_backward", measured_by=_COUNTS, choice=True)
    def reshard_after_backward(q):
        r"""1_\text{bwd} | count | 1 if parameters are freed after each backward, 0 if only after
        the last microbatch's; by default 1 in stage 3"""
        return where(q.zero_stage < 3, 0, 1)

    @BOOK.own(source="FSDP2, set_requires_gradient_sync", measured_by=_COUNTS, choice=True)
    def gradient_sync(q):
        r"""1_\text{sync} | count | 1 if gradients are reduced in each microbatch, 0 if only in the
        last; by default 1 from stage 2 on without a pipeline, which reduces once"""
        return where(q.zero_stage < 2, 0, where(q.pipeline_parallel > 1, 0, 1))

    def zero_reductions(q):
        r"""n_\text{rs} | count | number of times that all gradients are reduce-scattered in a step;
        in stage 0 as the first half of an all-reduce"""
        return where(q.gradient_sync < 1, 1, q.accumulation_steps)

    @BOOK.own(measured_by=_COUNTS)
    def zero_forward_gatherings(q):
        r"""n_\text{fwd} | count | forwards of a step that gather the parameters: all forwards, or
        only the first, which gathers the parameters that the last update has changed"""
        return where(
            q.zero_stage < 1, 0, where(q.reshard_after_backward < 1, 1, q.accumulation_steps)
        )

    @BOOK.own(measured_by=_COUNTS)
    def zero_backward_gatherings(q):
        r"""n_\text{bwd} | count | backwards of a step that gather the parameters"""
        return where(q.reshard_after_forward < 1, 0, q.accumulation_steps)

    def zero_gatherings(q):
        r"""n_\text{ag} | count | number of times that everything is gathered in a step; in stage 0
        as the second half of an all-reduce"""
        return where(q.zero_stage < 1, 1, q.zero_forward_gatherings + q.zero_backward_gatherings)

    def zero_traffic_parameters(q):
        r"""\Psi_\text{sent} | parameters | elements that a rank among many sends in a step: for
        each parameter 2 in stages 0 and 1, k + 1 in stage 2, 3k in stage 3"""
        return (q.zero_reductions + q.zero_gatherings) * q.parameters

    def zero_gathered_element_bytes(q):
        r"""\beta_\text{ag} | bytes | bytes of an element that is gathered: a parameter's, but in
        stage 0 a gradient's"""
        return where(q.zero_stage < 1, q.gradient_element_bytes, q.parameter_element_bytes)

    @BOOK.own(source=_OURS)
    def zero_right_rank(q):
        r"""r_\text{next} | count | the rank's neighbour in the data-parallel group, to which it
        sends around the ring"""
        return next_rank(q.data_parallel, q.rank)

    @BOOK.own(source=_OURS)
    def zero_right_shard_parameters(q):
        r"""\Psi_\text{next} | parameters | elements of the right neighbour's shard, which the rank
        does not send in an all-gather"""
        return shard_of(q.parameters, q.data_parallel, q.zero_right_rank)

    def zero_sent_bytes(q):
        """Q_r | bytes | bytes that the rank sends in a step, around rings"""
        return q.zero_reductions * q.gradient_element_bytes * (
            q.parameters - q.zero_shard_parameters
        ) + q.zero_gatherings * q.zero_gathered_element_bytes * (
            q.parameters - q.zero_right_shard_parameters
        )

    def zero_traffic_element_bytes(q):
        r"""\beta_\text{wire} | bytes | bytes that a rank among many sends in a step for each
        parameter"""
        return (
            q.zero_reductions * q.gradient_element_bytes
            + q.zero_gatherings * q.zero_gathered_element_bytes
        )


class HowLongAStepTakes(BOOK.section(source="definition", measured_by=_SECONDS)):
    @BOOK.own(source="Patarasuk and Yuan 2009, for each collective")
    def zero_communication_seconds(q):
        r"""\tau_\text{wire} | seconds | time of all collectives of a step, one after the other
        around rings"""
        return ring_pass(
            q.data_parallel,
            (q.zero_reductions + q.zero_gatherings) * q.zero_flat_tensors * q.latency_seconds,
            q.zero_traffic_element_bytes * q.parameters / q.link_bytes_per_second,
        )


class OneUnit(BOOK.section(source="definition", measured_by=_EVENTS)):
    @BOOK.own(source="Patarasuk and Yuan 2009")
    def unit_gather_seconds(q):
        r"""\tau_\text{gat} | seconds | time to gather the parameters of one unit"""
        return ring_pass(
            q.data_parallel,
            q.latency_seconds,
            q.parameter_element_bytes
            * q.parameters
            / (q.zero_flat_tensors * q.link_bytes_per_second),
        )

    def unit_backward_gather_seconds(q):
        r"""\tau_\text{gat}^\text{bwd} | seconds | time to gather the parameters of one unit in
        backward: nothing where they are still there"""
        return where(q.zero_backward_gatherings < 1, 0, q.unit_gather_seconds)

    @BOOK.own(source="Patarasuk and Yuan 2009")
    def unit_reduce_seconds(q):
        r"""\tau_\text{red} | seconds | time to reduce-scatter the gradients of one unit; in stage
        0, to all-reduce them"""
        return where(q.zero_stage < 1, 2, 1) * ring_pass(
            q.data_parallel,
            q.latency_seconds,
            q.gradient_element_bytes
            * q.parameters
            / (q.zero_flat_tensors * q.link_bytes_per_second),
        )

    @BOOK.own(source="2 operations per parameter per token")
    def unit_forward_seconds(q):
        r"""\tau_\text{unit}^\text{fwd} | seconds | time that a unit computes in forward"""
        return (
            2
            * q.parameters
            * q.microbatch_tokens
            / (q.zero_flat_tensors * q.utilisation * q.flops_per_second)
        )

    @BOOK.own(source="4 operations per parameter per token")
    def unit_backward_seconds(q):
        r"""\tau_\text{unit}^\text{bwd} | seconds | time that a unit computes in backward"""
        return 2 * q.unit_forward_seconds

    def unit_busy_forward_seconds(q):
        r"""\tau_\varphi^\text{fwd} | seconds | time of a unit's forward while the next unit is
        gathered"""
        return q.unit_forward_seconds + q.contention * q.unit_gather_seconds

    def unit_busy_backward_seconds(q):
        r"""\tau_\varphi^\text{bwd} | seconds | time of a unit's backward while the next unit is
        gathered and the one before it is reduced"""
        return q.unit_backward_seconds + q.contention * (
            q.unit_backward_gather_seconds + q.reduce_early * q.unit_reduce_seconds
        )

    # --- forward and backward ---------------------------------------------------------------------
    def zero_gathered_forward_seconds(q):
        r"""\tau_\text{gather} | seconds | time of a forward that gathers: the first unit waits, the
        others only where gathering takes longer than computing; asking further ahead changes
        nothing"""
        return where(
            q.prefetch_units < 1,
            q.zero_flat_tensors * (q.unit_gather_seconds + q.unit_forward_seconds),
            q.unit_gather_seconds
            + (q.zero_flat_tensors - 1)
            * maximum(q.unit_gather_seconds, q.unit_busy_forward_seconds)
            + q.unit_forward_seconds,
        )

    def zero_gathering_backward_seconds(q):
        r"""\tau_\text{both} | seconds | time of a backward that gathers each unit and reduces its
        gradients, on one link. Reductions that leave early gain nothing where each gathering waits
        behind them"""
        return where(
            q.prefetch_units < 1,
            q.zero_flat_tensors
            * (q.unit_gather_seconds + q.unit_backward_seconds + q.unit_reduce_seconds),
            where(
                q.reduce_early < 1,
                q.unit_gather_seconds
                + (q.zero_flat_tensors - 1)
                * (
                    maximum(q.unit_busy_backward_seconds, q.unit_gather_seconds)
                    + q.unit_reduce_seconds
                )
                + q.unit_backward_seconds
                + q.unit_reduce_seconds,
                where(
                    q.zero_flat_tensors < 2,
                    q.unit_gather_seconds + q.unit_backward_seconds + q.unit_reduce_seconds,
                    q.unit_gather_seconds
                    + maximum(q.unit_busy_backward_seconds, q.unit_gather_seconds)
                    + (q.zero_flat_tensors - 2)
                    * maximum(
                        q.unit_busy_backward_seconds, q.unit_gather_seconds + q.unit_reduce_seconds
                    )
                    + maximum(q.unit_backward_seconds, q.unit_reduce_seconds)
                    + q.unit_reduce_seconds,
                ),
            ),
        )

    def zero_reducing_backward_seconds(q):
        r"""\tau_\text{reduce} | seconds | time of a backward whose gradients are reduced"""
        return where(
            q.zero_backward_gatherings > 0,
            q.zero_gathering_backward_seconds,
            where(
                q.reduce_early < 1,
                q.zero_flat_tensors * (q.unit_backward_seconds + q.unit_reduce_seconds),
                q.unit_busy_backward_seconds
                + (q.zero_flat_tensors - 1)
                * maximum(q.unit_busy_backward_seconds, q.unit_reduce_seconds)
                + q.unit_reduce_seconds,
            ),
        )

    def zero_quiet_backward_seconds(q):
        r"""\tau_\text{quiet} | seconds | time of a backward that only adds up gradients"""
        return where(
            q.prefetch_units < 1,
            q.zero_flat_tensors * (q.unit_backward_gather_seconds + q.unit_backward_seconds),
            q.unit_backward_gather_seconds
            + (q.zero_flat_tensors - 1)
            * maximum(
                q.unit_backward_seconds + q.contention * q.unit_backward_gather_seconds,
                q.unit_backward_gather_seconds,
            )
            + q.unit_backward_seconds,
        )

    # --- a step -----------------------------------------------------------------------------------
    def zero_forward_seconds(q):
        r"""\tau_\text{zfwd} | seconds | time of all forwards of a step. In stages 1 and 2 the first
        forward gathers the updated parameters, or waits for them"""
        return q.zero_forward_gatherings * q.zero_gathered_forward_seconds + (
            q.accumulation_steps - q.zero_forward_gatherings
        ) * (q.zero_flat_tensors * q.unit_forward_seconds)

    def zero_backward_seconds(q):
        r"""\tau_\text{zbwd} | seconds | time of all backwards of a step"""
        return (
            q.zero_reductions * q.zero_reducing_backward_seconds
            + (q.accumulation_steps - q.zero_reductions) * q.zero_quiet_backward_seconds
        )

    def zero_compute_seconds(q):
        r"""\tau_\text{zcomp} | seconds | time that a rank computes in the forwards and backwards of
        a step"""
        return (
            q.accumulation_steps
            * q.zero_flat_tensors
            * (q.unit_forward_seconds + q.unit_backward_seconds)
        )

    def zero_step_seconds(q):
        r"""\tau_z | seconds | time of a step without its update"""
        return q.zero_forward_seconds + q.zero_backward_seconds

    def zero_exposed_seconds(q):
        r"""\tau_\text{zexp} | seconds | time of a step in which the rank waits for the link"""
        return q.zero_step_seconds - q.zero_compute_seconds


# --- offload: the optimizer on the host -----------------------------------------------------------
class StatesOnTheHost(BOOK.section(source="Ren et al. 2021 (ZeRO-Offload)", measured_by=_OFFLOAD)):
    def offload_copy_bytes(q):
        r"""S_\text{PCIe} | bytes | bytes between a GPU and its host in a step: the gradients of the
        shard go down, its updated parameters come up"""
        return (q.gradient_element_bytes + q.parameter_element_bytes) * q.zero_shard_parameters

    def offload_copy_seconds(q):
        r"""\tau_\text{PCIe} | seconds | time of the copies of an offloaded step over PCIe, one
        direction after the other"""
        return q.offload_copy_bytes / q.pcie_bytes_per_second

    @BOOK.own(source="counted: each is read, states are written back")
    def cpu_adam_bytes(q):
        r"""S_\text{Adam} | bytes | bytes that an update on the host reads and writes in memory:
        master copy and moments both ways, the gradient, and the parameter that goes up; 28 for each
        parameter of a bf16 model"""
        return (
            2 * (q.master_element_bytes + q.optimizer_moments * q.moment_element_bytes)
            + q.gradient_element_bytes
            + q.parameter_element_bytes
        ) * q.zero_shard_parameters

    def cpu_adam_seconds(q):
        r"""\tau_\text{Adam} | seconds | time of an update on the host, limited by the host's
        memory, which all its ranks read at once"""
        return q.cpu_adam_bytes * q.ranks_on_a_host / q.host_memory_bytes_per_second


# --- from how many tokens on a phase hides its own messages ---------------------------------------
class HidingTokens(
    BOOK.section(
        source="2 and 4 operations per parameter per token (Kaplan et al. 2020)",
        measured_by=_HIDES,
    )
):
    def forward_hiding_tokens(q):
        r"""T_\text{fwd} | tokens/GPU | fewest tokens in a microbatch of a GPU whose forward hides
        the gathering of parameters, latency left out; the size of the model cancels"""
        return where(
            q.zero_stage < 1,
            0,
            q.parameter_element_bytes
            * (q.data_parallel - 1)
            * q.utilisation
            * q.flops_per_second
            / (2 * q.data_parallel * q.link_bytes_per_second),
        )

    def zero_backward_element_bytes(q):
        r"""\beta_\text{bwd} | bytes | bytes for each parameter that travel during one backward: its
        gradient, twice in stage 0, and in stage 3 the parameter"""
        return where(
            q.zero_stage < 1,
            2 * q.gradient_element_bytes,
            q.gradient_element_bytes
            + where(q.zero_backward_gatherings < 1, 0, q.parameter_element_bytes),
        )

    def backward_hiding_tokens(q):
        r"""T_\text{bwd} | tokens/GPU | fewest tokens in a microbatch of a GPU whose backward hides
        its messages, latency left out"""
        return (
            q.zero_backward_element_bytes
            * (q.data_parallel - 1)
            * q.utilisation
            * q.flops_per_second
            / (4 * q.data_parallel * q.link_bytes_per_second)
        )

    def zero_hiding_tokens(q):
        r"""T_\text{hide} | tokens/GPU | fewest tokens in a microbatch of a GPU that hide what each
        phase sends; messages of one phase cannot hide in another"""
        return maximum(q.forward_hiding_tokens, q.backward_hiding_tokens)
