"""Beside the cells of the lab on pipelines: what the reader wrote goes on, and measurements are
compared and tabulated."""

from collections.abc import Callable, Mapping

from torch import Tensor

from coursekit.exercises.going_on import gives_numbers
from coursekit.show.tables import Table
from coursekit.topics.pipelines.exercises import one_f_one_b_of_a_rank
from coursekit.topics.pipelines.sleeping import Spans
from shardlab.pipelines.hardened.pipeline import Pipeline
from shardlab.pipelines.schedules import Action, Kind, Schedule
from shardlab.pipelines.simulation import Timeline, in_flight, simulate


def lists_of(own: Callable, ranks: int, microbatches: int) -> Schedule:
    """The schedule that the reader's function makes. Raises NotYet unless its check passes."""
    own = gives_numbers(one_f_one_b_of_a_rank, own)
    return [[Action(*action) for action in own(rank, ranks, microbatches)] for rank in range(ranks)]


def messages_of(pipeline: Pipeline, action: Action) -> tuple[Callable, Callable]:
    """(take, give) of an action. At the ends of the model: a microbatch as it is, nothing to give,
    a loss that needs no gradient."""
    forward, rank, last = action.kind is Kind.FORWARD, pipeline.rank, pipeline.last
    sent = vars(pipeline).setdefault("sent", {})  # activations, until their gradients come

    def take() -> Tensor | None:
        if forward and rank == 0:
            return pipeline.batch[action.microbatch].double()
        if not forward and rank == last:
            return None
        taken = pipeline.take(action)
        if not forward:
            sent.pop(action.microbatch).work.wait()
        return taken

    def give(tensor: Tensor):
        if 0 <= rank + (1 if forward else -1) <= last:
            message = pipeline.give(action, tensor)
            sent.update({action.microbatch: message} if forward else {})

    return take, give


def table_of_schedules(schedules: Mapping[str, Schedule]) -> Table:
    """A table by the simulation: the step, idle time, and what each rank holds."""
    rows = []
    for name, lists in schedules.items():
        step = simulate(lists)
        idle = f"{100 * max(step.idle_of_step) / step.seconds:.0f} %"
        rows.append([name, f"{step.seconds:g}", idle, " ".join(map(str, in_flight(lists)))])
    return Table(["", "step", "idle", "microbatches held, by rank"], rows)


def idle_percent(spans: Spans) -> int:
    """The share of a step in which a rank does nothing: the mean over ranks."""
    step = Timeline(spans)
    return round(100 * sum(step.idle_of_step) / len(spans) / step.seconds)
