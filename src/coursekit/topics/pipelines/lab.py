"""Beside the cells of the lab on pipelines: what the reader wrote goes on, and measurements are
compared and tabulated."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from coursekit.exercises.going_on import gives_numbers
from coursekit.show.tables import Table, in_words
from coursekit.topics.pipelines.exercises import one_f_one_b_of_a_rank
from coursekit.topics.pipelines.sleeping import Spans, seconds_of
from shardlab.measure.clock import cores
from shardlab.pipelines.hardened.pipeline import Pipeline
from shardlab.pipelines.schedules import Action, Kind, Schedule
from shardlab.pipelines.simulation import Costs, in_flight, simulate


def lists_of(own: Callable, ranks: int, microbatches: int) -> Schedule:
    """The schedule that the reader's function makes. Raises NotYet unless its check passes."""
    own = gives_numbers(one_f_one_b_of_a_rank, own)
    return [[Action(*action) for action in own(rank, ranks, microbatches)] for rank in range(ranks)]


def messages_of(pipeline: Pipeline, action: Action) -> tuple[Callable, Callable]:
    """(take, give) of an action. At the ends of the model: a microbatch as it is, nothing to give,
    a loss that needs no gradient."""
    forward, rank, last = action.kind is Kind.FORWARD, pipeline.rank, pipeline.plan.last
    sent = vars(pipeline).setdefault("sent", {})  # activations, until their gradients come

    def take() -> Tensor | None:
        if forward and rank == 0:
            return pipeline.batch[action.microbatch].double()
        if not forward and rank == last:
            return None
        taken = pipeline.wire.take(action)
        if not forward:
            sent.pop(action.microbatch).work.wait()
        return taken

    def give(tensor: Tensor):
        if 0 <= rank + (1 if forward else -1) <= last:
            message = pipeline.wire.give(action, tensor)
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


def table_beside_plain(found: Mapping[str, Sequence[tuple[int, int, float]]]) -> Table:
    """Schedule -> of each rank its losses equal to the undivided model's, its gradients, and the
    worst difference of one. Stops if a loss differs by a bit, or a gradient by more than the order
    of sums explains."""
    rows = []
    for name, on_ranks in found.items():
        equal, gradients, differences = zip(*on_ranks)
        assert sum(equal) == 8 and max(differences) < 1e-12, (name, on_ranks)
        rows.append([name, f"{sum(equal)} of 8", *in_words([sum(gradients), max(differences)])])
    return Table(["", "losses equal to the last bit", "gradients", "worst difference"], rows)


def table_awake(found: Mapping[int, tuple[Costs, Spans]]) -> Table:
    """Ranks -> (costs of each stage alone, a step): the simulated step; all work, divided by the
    processors; the step as it was."""
    gpus, rows = torch.cuda.device_count(), []
    for count, (costs, spans) in found.items():
        lists = [[span.action for span in own] for own in spans]
        work = sum(costs.of(action) for own in lists for action in own) / min(
            gpus or cores(), count
        )
        seconds = simulate(lists, costs).seconds, work, seconds_of(spans)
        rows.append([f"{count} ranks", *(round(1000 * one) for one in seconds)])
    processors = f"{'GPUs' if gpus else 'cores'} ({gpus or cores()} here)"
    return Table(["a step, ms", "simulated", f"work / {processors}", "measured"], rows)
