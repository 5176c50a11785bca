"""Pipelines that note when each action began and ended. Ranks that share cores show no bubble,
because an idle rank lends its core to the others; a rank that sleeps needs none, and one with a
virtual GPU has a clock of its own. So a laptop can lay a timeline over the simulated one.

    pipeline = TimedPipeline(sleepers(lists, costs), plan, loss, weight_seconds=costs.weight)
    pipeline.timed_steps(batch, targets, 3)     # of each step: what this rank did, and when
    median_step(world.run(...))                 # of what all ranks found: one step
"""

import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ranklab.measure.clock import MedianSeconds, say_if_busy
from shardlab.pipelines.hardened.pipeline import Pipeline
from shardlab.pipelines.partition import PipelinePlan, plan_pipeline
from shardlab.pipelines.schedules import Action, Kind, Schedule
from shardlab.pipelines.simulation import Costs, Span, simulate

Spans = Sequence[Sequence[Span]]  # of each rank
LONGER = 0.1  # than its stages sleep: a step of a busy machine


class SleepTwice(torch.autograd.Function):
    """Hands on what it is given, after a while, and the gradient too."""

    @staticmethod
    def forward(ctx, x, weight, forward_seconds, backward_seconds):
        ctx.seconds = backward_seconds
        time.sleep(forward_seconds)
        return x.clone()

    @staticmethod
    def backward(ctx, dy):
        time.sleep(ctx.seconds)
        return dy, None, None, None


class Sleeper(nn.Module):
    """A stage that computes nothing for so long; with a parameter, as stages have some."""

    def __init__(self, forward_seconds: float, backward_seconds: float):
        super().__init__()
        self.seconds = forward_seconds, backward_seconds
        self.weight = nn.Parameter(torch.zeros(1, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        return SleepTwice.apply(x, self.weight, *self.seconds)


class TimedPipeline(Pipeline):
    """Notes when each action began and ended; without what it waited for before. `weight_seconds`
    is how long W sleeps. `clock` tells the seconds; by itself it is the machine's, which all its
    processes share."""

    def __init__(
        self, *arguments, weight_seconds: float = 0.0, clock: Callable[[], float] = time.monotonic
    ):
        super().__init__(*arguments)
        self.weight_seconds, self.clock = weight_seconds, clock
        self.spans: list[Span] = []

    def timed_steps(self, batch: Tensor, targets: Tensor, steps: int) -> list[list[Span]]:
        """The spans of each of so many steps, after one that does not count."""
        found = []
        for _ in range(1 + steps):
            self.spans = []
            dist.barrier()
            self.step(batch, targets)
            found.append(self.spans)
        return found[1:]

    def perform(self, action: Action):
        if action.kind is not Kind.WEIGHT:
            self.wait_for(action)
        begin = self.now()
        super().perform(action)
        self.spans.append(Span(action, begin, self.now()))

    def now(self) -> float:
        """The time at which this rank has computed all that it was told to; its messages may still
        be on their way."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return self.clock()

    def weight_gradients_of(self, action: Action):
        time.sleep(self.weight_seconds)
        super().weight_gradients_of(action)


def sleepers(schedule: Schedule, costs: Costs) -> list[nn.Module]:
    """A layer for each stage, which all take the same time."""
    actions = [action for own in schedule for action in own]
    split = any(action.kind is Kind.WEIGHT for action in actions)
    stages = 1 + max(action.stage for action in actions)
    backward = costs.input + (0 if split else costs.weight)
    return [Sleeper(costs.forward, backward) for _ in range(stages)]


def sleeping_plan(schedule: Schedule, costs: Costs, message_bytes: int = 4) -> PipelinePlan:
    """A plan for messages of fp32, of so many bytes."""
    microbatches = 1 + max(action.microbatch for own in schedule for action in own)
    batch = torch.ones(microbatches, message_bytes // 4, dtype=torch.float32)
    return plan_pipeline(sleepers(schedule, costs), schedule, batch)


def measured_spans(plan: PipelinePlan, costs: Costs) -> list[Span]:
    """On a rank: the actions of a step."""
    layers = sleepers(plan.schedule, costs)
    shape = (plan.microbatches, *plan.outputs[0].shape[1:])
    pipeline = TimedPipeline(layers, plan, lambda y, _: y.mean(), weight_seconds=costs.weight)
    batch, targets = (torch.ones(shape, dtype=torch.float32) for _ in range(2))
    return pipeline.timed_steps(batch, targets, 1)[0]


def median_step(on_ranks: Sequence[Sequence[list[Span]]], costs: Costs) -> Spans:
    """The step of median duration, of those that each rank timed. Says that the machine is busy
    where steps differ, or where ranks that sleep wake up too late."""
    steps = sorted(zip(*on_ranks), key=seconds_of)
    median = steps[len(steps) // 2]
    lists = [[span.action for span in own] for own in median]
    say_if_longer(seconds_of(median), simulate(lists, costs).seconds)
    say_if_busy(MedianSeconds(map(seconds_of, steps)))
    return median


def say_if_longer(seconds: float, slept: float) -> None:
    """Print one line if a step took much longer than its stages slept."""
    if seconds > slept * (1 + LONGER):
        late = seconds / slept - 1
        print(f"this machine is busy ({late:.0%} longer than its stages slept): repeat")


def stage_costs(spans: Spans) -> Costs:
    """The fewest seconds of each stage's F, and of its B or of I and W."""
    fewest: dict[Kind, dict[int, float]] = {kind: {} for kind in Kind}
    for action, begin, end in (span for own in spans for span in own):
        known = fewest[action.kind]
        known[action.stage] = min(end - begin, known.get(action.stage, end - begin))
    forward, backward, inputs, weights = (
        [seconds for _, seconds in sorted(fewest[kind].items())]
        for kind in (Kind.FORWARD, Kind.BACKWARD, Kind.INPUT, Kind.WEIGHT)
    )
    return Costs(forward, backward or inputs, weights or 0)


def seconds_of(spans: Spans) -> float:
    """Seconds from the first begin to the last end of all ranks."""
    every = [span for own in spans for span in own]
    return max(span.end for span in every) - min(span.begin for span in every)


def measured_message_seconds(message_bytes: int, turns: int = 7) -> float:
    """On ranks 0 and 1: the median time of such a message from one to the other, with its answer of
    one element, after a pause in which the link is empty."""
    message = torch.ones(message_bytes // 4, dtype=torch.float32)
    answer, found = torch.ones(1, dtype=torch.float32), []
    for _ in range(turns):
        dist.barrier()
        time.sleep(0.1)
        begin = time.monotonic()
        if dist.get_rank() == 0:
            dist.send(message, 1)
            dist.recv(answer, 1)
        elif dist.get_rank() == 1:
            dist.recv(message, 0)
            dist.send(answer, 0)
        found.append(time.monotonic() - begin)
    return sorted(found)[turns // 2]
