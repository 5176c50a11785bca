"""Pipelines whose stages sleep: ranks that share cores show no bubble, because an idle rank lends
its core to the others; a rank that sleeps needs none. So a laptop can measure a timeline and lay it
over the simulated one.

    spans = world.run(measured_spans, plan, Costs(forward=0.02, input=0.02, weight=0.02))
    spans[0]                         # of rank 0: what it did, from when to when
"""

import time

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardlab.pipelines.hardened.pipeline import Pipeline
from shardlab.pipelines.partition import PipelinePlan, plan_pipeline
from shardlab.pipelines.schedules import Action, Kind, Schedule
from shardlab.pipelines.simulation import Costs, Span


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
    is how long W sleeps."""

    def __init__(self, *arguments, weight_seconds: float = 0.0):
        super().__init__(*arguments)
        self.weight_seconds = weight_seconds
        self.spans: list[Span] = []

    def perform(self, action: Action):
        if action.kind is not Kind.WEIGHT:
            self.wire.wait_for(action)
        begin = time.monotonic()
        super().perform(action)
        self.spans.append(Span(action, begin, time.monotonic()))

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
    """On a rank: the actions of its second step, in seconds of the machine's clock, which all its
    processes share."""
    layers = sleepers(plan.schedule, costs)
    shape = (plan.microbatches, *plan.outputs[0].shape[1:])
    pipeline = TimedPipeline(layers, plan, lambda y, _: y.mean(), weight_seconds=costs.weight)
    for _ in range(2):
        pipeline.spans.clear()
        dist.barrier()
        pipeline.step(*(torch.ones(shape, dtype=torch.float32) for _ in range(2)))
    return pipeline.spans


def seconds_of(spans: list[list[Span]]) -> float:
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
