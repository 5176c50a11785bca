"""Where the time goes: what waits cost the host's lead, what looking costs, what a loader must do,
and a step taken apart into a budget.

Kernels of one length, launched one after the other, have closed forms: a stream is a queue, and the
slower of host and GPU sets its pace. A wait empties the queue, so the host has to begin again.
"""

from coursekit.formulas.registry import BOOK
from coursekit.formulas.subset import ceil_div, floor_div, maximum, where

BOOK.given_beside(__file__)

_QUEUE = "a queue with one server; counted on the virtual device"
_VIRTUAL = "tests/where_the_time_goes/test_time_formulas.py::test_waits_on_the_virtual_device"
_LEAD = "tests/where_the_time_goes/test_time_formulas.py::test_a_read_throws_the_lead_away"
_PROFILED = "tests/where_the_time_goes/test_time_formulas.py::test_the_profilers_cost"
_LOADER = "tests/virtual/test_virtual_loading.py::test_a_step_waits_for_its_loader"
_BUDGET = "tests/where_the_time_goes/test_time_formulas.py::test_a_budget_adds_up"


class WaitsInARowOfEqualKernels(BOOK.section(source=_QUEUE, measured_by=_VIRTUAL)):
    def unsynced_seconds(q):
        r"""\tau_\text{free} | seconds | time of the kernels without any wait: the first launch,
        then the slower of launching and running for each kernel but the last, which still has to
        run"""
        return (
            q.launch_seconds
            + (q.queued_kernels - 1) * maximum(q.launch_seconds, q.kernel_seconds)
            + q.kernel_seconds
        )

    def wait_period_seconds(q):
        r"""\tau_w | seconds | time from one wait to the next: until its kernels have run, and until
        the host has launched them and, where the wait reads a value, the copy of that value"""
        return maximum(
            (q.kernels_per_wait + q.reads_value) * q.launch_seconds,
            q.launch_seconds
            + (q.kernels_per_wait - 1) * maximum(q.launch_seconds, q.kernel_seconds)
            + q.kernel_seconds,
        )

    def waits_of_a_step(q):
        """n_w | count | waits of a step: one after every so many kernels"""
        return floor_div(q.queued_kernels, q.kernels_per_wait)

    def kernels_after_waits(q):
        r"""n_\text{rest} | count | kernels after the last wait"""
        return q.queued_kernels - q.waits_of_a_step * q.kernels_per_wait

    def synced_seconds(q):
        r"""\tau_\text{sync} | seconds | time of the kernels when the host waits after every so
        many: each wait empties the queue, and the next kernel has to be launched before anything
        runs again"""
        return q.waits_of_a_step * q.wait_period_seconds + where(
            q.kernels_after_waits > 0,
            q.launch_seconds
            + (q.kernels_after_waits - 1) * maximum(q.launch_seconds, q.kernel_seconds)
            + q.kernel_seconds,
            0,
        )

    def synced_share(q):
        r"""\pi_\text{sync} | fraction | share of the step that its waits cost"""
        return 1 - q.unsynced_seconds / q.synced_seconds


# --- one read between long kernels and short ones -------------------------------------------------


class OneRead(BOOK.section(source=_QUEUE, measured_by=_LEAD)):
    def host_lead_seconds(q):
        r"""\tau_\text{lead} | seconds | how far the host is ahead of the GPU after the long
        kernels"""
        return q.launch_seconds + q.long_kernels * (q.long_kernel_seconds - q.launch_seconds)

    def unread_step_seconds(q):
        r"""\tau_\text{led} | seconds | time of long kernels and then short ones, without a read
        between: short kernels wait in the queue until the host's lead is used up"""
        return maximum(
            q.launch_seconds
            + q.long_kernels * q.long_kernel_seconds
            + q.short_kernels * q.short_kernel_seconds,
            (q.long_kernels + q.short_kernels) * q.launch_seconds + q.short_kernel_seconds,
        )

    def read_step_seconds(q):
        r"""\tau_\text{read} | seconds | the same with one read between: the lead is gone, and each
        short kernel waits for its launch"""
        return (
            q.launch_seconds
            + q.long_kernels * q.long_kernel_seconds
            + q.short_kernels * q.launch_seconds
            + q.short_kernel_seconds
        )

    def read_cost_share(q):
        r"""\varphi_\text{read} | fraction | time that the one read adds, over the step without
        it"""
        return (q.read_step_seconds - q.unread_step_seconds) / q.unread_step_seconds


# --- looking, and loading -------------------------------------------------------------------------
class LookingAndLoading(BOOK.section(source="definition", measured_by=_PROFILED)):
    def profiled_seconds(q):
        r"""\tau_\text{prof} | seconds | time of a step under the profiler, which writes every event
        down: a step of many small operations is slowed down most"""
        return q.unwatched_seconds + q.profiled_events * q.event_seconds

    @BOOK.own(source="Little 1961: batches in flight, rate and latency")
    def loaded_step_seconds(q):
        r"""\tau_\text{load} | seconds | time of a step with its loading: the sum where the loop
        loads by itself, and otherwise the longer of the step and of a batch divided among the
        workers"""
        return 1e-6 * where(
            q.loader_workers < 1,
            q.fed_step_microseconds + q.loader_batch * q.sample_microseconds,
            maximum(
                q.fed_step_microseconds,
                q.loader_batch * q.sample_microseconds / maximum(q.loader_workers, 1),
            ),
        )

    @BOOK.own(source="Little 1961: batches in flight, rate and latency", measured_by=_LOADER)
    def loader_wait_seconds(q):
        r"""\tau_\text{late} | seconds | time of a step in which the GPU waits for a loader"""
        return q.loaded_step_seconds - 1e-6 * q.fed_step_microseconds

    @BOOK.own(source="Little 1961: batches in flight, rate and latency")
    def workers_needed(q):
        r"""n_{w,\text{min}} | count | fewest workers with which no step waits for its batch"""
        return ceil_div(q.loader_batch * q.sample_microseconds, q.fed_step_microseconds)


class BudgetOfAStep(
    BOOK.section(
        source="Chowdhery et al. 2022 (PaLM), appendix B, taken apart", measured_by=_BUDGET
    )
):
    def peak_seconds(q):
        r"""\tau_\text{peak} | seconds | time of the model's operations at the datasheet's rate: the
        least that a step could take"""
        return q.model_flops / q.flops_per_second

    def product_seconds(q):
        r"""\tau_\text{prod} | seconds | time of the model's matrix products at the rate that they
        reach"""
        return q.peak_seconds / q.kernel_share

    def repeated_seconds(q):
        r"""\tau_\text{redo} | seconds | time of the matrix products that are done again"""
        return q.repeated_flops / (q.kernel_share * q.flops_per_second)

    def budget_seconds(q):
        r"""\tau_\text{bud} | seconds | time of a step: products, products again, bytes moved, and
        four kinds of waiting"""
        return (
            q.product_seconds
            + q.repeated_seconds
            + q.moving_seconds
            + q.launch_wait_seconds
            + q.data_wait_seconds
            + q.message_wait_seconds
            + q.rank_wait_seconds
        )

    def budget_utilisation(q):
        r"""\eta_\text{bud} | fraction | MFU of the budget: the least time over the time of the
        step"""
        return q.peak_seconds / q.budget_seconds

    @BOOK.own(source="Korthikanti et al. 2022, section 5")
    def hardware_flops_utilisation(q):
        r"""\eta_\text{HFU} | fraction | HFU of the budget: operations that are done again count,
        too"""
        return q.budget_utilisation * (1 + q.repeated_flops / q.model_flops)
