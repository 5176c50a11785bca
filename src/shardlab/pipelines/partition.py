"""The plan of a pipeline, before any rank starts: which layers a stage has, what it sends.

    layers = [model.embedding, *model.blocks, model.head]
    plan = plan_pipeline(layers, one_f_one_b(4, 8), tokens)       # tokens: the batch of a step
    plan.cuts                        # of each stage, its first layer and the one behind its last
    plan.outputs                     # of each stage, the shape and dtype that it hands on

The layers run once on PyTorch's meta device, which computes shapes and nothing else. So everything
that can be wrong with a model, a batch or a schedule is said here, in one sentence, and no rank
waits for another that has raised.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from .schedules import Action, InvalidSchedule, Kind, Schedule
from .simulation import home_of, validate_schedule


class CannotPipeline(ValueError):
    """Why this model, batch or schedule cannot be a pipeline: one sentence."""


class StageOutput(NamedTuple):
    """The output that a stage hands to the next; the gradient that comes back has its shape."""

    shape: tuple[int, ...]  # [B/m, S, H]
    dtype: torch.dtype


class PipelinePlan(NamedTuple):
    schedule: Schedule
    microbatches: int
    home: dict[int, int]  # stage -> its rank
    cuts: list[tuple[int, int]]
    outputs: list[StageOutput]
    microbatch: tuple[int, ...]  # [B/m, ...], the shape that the first stage takes
    dtype: torch.dtype  # of what the first stage takes

    @property
    def last(self) -> int:
        """The stage that has the loss."""
        return len(self.cuts) - 1


def plan_pipeline(
    layers: Sequence[nn.Module],
    schedule: Schedule,
    batch: Tensor,
    layers_of_stages: Sequence[int] | None = None,
) -> PipelinePlan:
    """Cut the layers, which each take one tensor and return one, into as many stages as the
    schedule has. `layers_of_stages` are their numbers of layers; by itself they differ by one at
    most, the first stages having more. Raises CannotPipeline or InvalidSchedule."""
    if isinstance(schedule, str):
        raise CannotPipeline(
            f"schedule = {schedule!r} is a name:"
            f" shardlab.pipelines.schedules.schedule({schedule!r}, ranks, microbatches) makes the"
            " lists."
        )
    microbatches = 1 + max((a.microbatch for own in schedule for a in own), default=0)
    validate_schedule(schedule, microbatches)
    check_order_of_messages(schedule)
    home = home_of(schedule)
    cuts = cut(len(layers), len(home), layers_of_stages)
    if batch.shape[0] % microbatches:
        raise CannotPipeline(
            f"a batch of {batch.shape[0]} cannot be cut into microbatches = {microbatches} of one"
            " size: take a batch that is a multiple."
        )
    check_layers(layers, cuts, home)
    example = batch[: batch.shape[0] // microbatches]
    outputs = outputs_of(layers, cuts, example)
    shape, dtype = tuple(example.shape), example.dtype
    return PipelinePlan(schedule, microbatches, home, cuts, outputs, shape, dtype)


def cut(layers: int, stages: int, layers_of_stages: Sequence[int] | None) -> list[tuple[int, int]]:
    counts = [layers // stages + (stage < layers % stages) for stage in range(stages)]
    if layers_of_stages is not None:
        counts = list(layers_of_stages)
        if len(counts) != stages or sum(counts) != layers:
            raise CannotPipeline(
                f"layers_of_stages = {counts}: the schedule has {stages} stages, and the model"
                f" {layers} layers to divide among them."
            )
    if min(counts) < 1:
        raise CannotPipeline(
            f"{stages} stages, but the model has {layers} layers: each stage needs one at least."
        )
    ends = [sum(counts[: stage + 1]) for stage in range(stages)]
    return list(zip([0, *ends], ends))


def check_layers(layers: Sequence[nn.Module], cuts: list[tuple[int, int]], home: dict[int, int]):
    """Each layer is a whole module, and each rank has something to train."""
    for number, layer in enumerate(layers):
        if not isinstance(layer, nn.Module):
            raise CannotPipeline(
                f"layer {number} is a {type(layer).__name__}, and a pipeline takes modules: put"
                " them into checkpoints by checkpoint_modules(), which leaves them what they are."
            )
    if wrong := complaint_of_shards(layers):
        raise CannotPipeline(wrong)
    for rank in set(home.values()):
        own = [layers[n] for s, cut in enumerate(cuts) if home[s] == rank for n in range(*cut)]
        if not any(True for layer in own for _ in layer.parameters()):
            names = ", ".join(type(layer).__name__ for layer in own)
            raise CannotPipeline(
                f"the layers of rank {rank} ({names}) have no parameters, so it would have nothing"
                " to train: give it others by layers_of_stages."
            )


def complaint_of_shards(layers: Sequence[nn.Module]) -> str:
    for number, layer in enumerate(layers):
        if any(hasattr(module, "sharded_unit") for module in layer.modules()):
            return (
                f"layer {number} is sharded by ZeRO stage 3, which would gather it anew for each"
                " microbatch: make the pipeline of whole layers, and take ZeRO stage 1 or 2."
            )
    return ""


def outputs_of(
    layers: Sequence[nn.Module], cuts: list[tuple[int, int]], example: Tensor
) -> list[StageOutput]:
    """The output of each stage for the example, by shape and dtype."""
    x, found = example.to("meta"), []
    for stage, (first, end) in enumerate(cuts):
        for layer in layers[first:end]:
            tensors = {**dict(layer.named_parameters()), **dict(layer.named_buffers())}
            with torch.no_grad():
                x = functional_call(layer, {n: t.to("meta") for n, t in tensors.items()}, (x,))
        names = ", ".join(type(layer).__name__ for layer in layers[first:end])
        if not isinstance(x, Tensor):
            count = f"{len(x)} things" if isinstance(x, (tuple, list, dict)) else "no tensor"
            raise CannotPipeline(
                f"stage {stage} ({names}) returns {count}, a {type(x).__name__}: a stage hands one"
                " tensor to the next."
            )
        if not x.is_floating_point() and stage < len(cuts) - 1:
            raise CannotPipeline(
                f"stage {stage} ({names}) returns {x.dtype}, through which no gradient comes back."
            )
        found.append(StageOutput(tuple(x.shape), x.dtype))
    return found


# --- messages -------------------------------------------------------------------------------------


def goes_to(action: Action, last: int) -> tuple[int, Kind, int] | None:
    """(stage, FORWARD or BACKWARD, microbatch) that takes what the action makes; None if no stage
    does."""
    stage, kind, microbatch = action
    target = stage + 1 if kind is Kind.FORWARD else stage - 1
    if kind is Kind.WEIGHT or not 0 <= target <= last:
        return None
    return target, Kind.FORWARD if kind is Kind.FORWARD else Kind.BACKWARD, microbatch


def comes_from(action: Action, last: int) -> int | None:
    """The stage that makes what the action takes; None if no stage does."""
    stage = action.stage - 1 if action.kind is Kind.FORWARD else action.stage + 1
    return None if action.kind is Kind.WEIGHT or not 0 <= stage <= last else stage


def input_of(action: Action) -> tuple[int, Kind, int]:
    """The input of the action, under the name that goes_to gives it."""
    kind = Kind.FORWARD if action.kind is Kind.FORWARD else Kind.BACKWARD
    return action.stage, kind, action.microbatch


def check_order_of_messages(schedule: Schedule):
    """A backend gives messages to receives in the order in which both were made, so the rank that
    receives must want them in the order in which they are sent."""
    home = home_of(schedule)
    sent: dict[tuple, list] = {}
    wanted: dict[tuple, list] = {}
    for rank, actions in enumerate(schedule):
        for action in actions:
            if (target := goes_to(action, max(home))) is not None:
                sent.setdefault((rank, home[target[0]], target[1]), []).append(target)
            if (source := comes_from(action, max(home))) is not None:
                taken = input_of(action)
                wanted.setdefault((home[source], rank, taken[1]), []).append(taken)
    for (source, target, kind), messages in sent.items():
        if wanted.get((source, target, kind)) != messages:
            raise InvalidSchedule(
                f"rank {target} takes the {kind.name.lower()} messages of rank {source} in another"
                " order than they are sent, so it would compute with another microbatch's."
            )
