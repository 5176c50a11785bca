"""Functions of the lab on mixed precision around the reader's code: one for each cell that trains,
counts or starts ranks. The trainings themselves are in trainings.py."""

import math
from collections.abc import Callable
from typing import NamedTuple

import plotly.graph_objects as go
import torch

from coursekit.exercises.going_on import gives_numbers, must_be_right
from coursekit.show.tables import Table
from coursekit.topics.mixed_precision.exercises import scaler_step_of_a_loop, update_through_masters
from coursekit.topics.mixed_precision.figures import runs_figure, sizes_figure
from coursekit.topics.mixed_precision.formats import CARD_FORMATS
from coursekit.topics.mixed_precision.gradients import sizes_now as sizes_now
from coursekit.topics.mixed_precision.histogram import Sizes, shares
from coursekit.topics.mixed_precision.trainings import (
    ACCUMULATED,
    SCALE,
    ScalesOfARun,
    WithoutMaster,
    adamw_rounded_stochastically,
    bf16_training,
    build_model,
    dynamic_run,
    losses_of,
    mean_of_last,
    plain_adamw,
    scales_of_a_rank,
    training_data,
)
from coursekit.topics.mixed_precision.trainings import outputs_of_a_loop as outputs_of_a_loop
from shardlab.gpt import next_token_loss
from shardlab.mixed_precision import MasterWeights
from shardlab.ranks import ranks

HALF_FORMAT = CARD_FORMATS["fp16"]
SMALL_STEP, SMALL_STEPS = 0.001, 1000
BF16_STEPS, SCALED_STEPS, GROWTH_INTERVAL = 150, 50, 20


# --- updates that are lost ------------------------------------------------------------------------


def figure_of_small_steps():
    """A weight from which 0.001 is taken, and a sum to which it is added: in bf16, every step
    rounded, and in real numbers."""
    step = torch.tensor(SMALL_STEP, dtype=torch.bfloat16)
    weight, total = torch.tensor(1.0, dtype=torch.bfloat16), torch.zeros_like(step)
    weights, sums = [], []
    for _ in range(SMALL_STEPS):
        weight, total = weight - step, total + step
        weights.append(weight.item())
        sums.append(total.item())
    numbers = range(1, SMALL_STEPS + 1)
    lines = {
        "weight, real numbers": [1 - SMALL_STEP * number for number in numbers],
        "weight, bf16": weights,
        "sum, real numbers": [SMALL_STEP * number for number in numbers],
        "sum, bf16": sums,
    }
    return runs_figure("A thousand steps of 0.001", lines, "value")


class UpdatedBy:
    """The reader's update with what it is given, as bf16_training takes an optimizer."""

    def __init__(self, update: Callable, parameters, lr: float):
        self.update, self.parameters = update, list(parameters)
        self.masters = [parameter.detach().float() for parameter in self.parameters]
        self.optimizer = torch.optim.AdamW(self.masters, lr=lr)

    def zero_grad(self):
        for parameter in self.parameters:
            parameter.grad = None

    def step(self):
        self.update(self.parameters, self.masters, self.optimizer)


class TrainedInBf16(NamedTuple):
    """Way to update -> its training."""

    ways: dict[str, WithoutMaster]

    def by_prediction(self) -> dict[str, float]:
        """Values by the names of the predictions."""
        return {
            f"norm weights at 1.0, {name}": round(self.ways[name].norm_weights_unmoved, 2)
            for name in ("bf16 alone", "your update")
        }

    def table(self) -> Table:
        rows = [
            [name, f"{run.norm_weights_unmoved:.0%}", f"{mean_of_last(run.losses):.2f}"]
            for name, run in self.ways.items()
        ]
        return Table(["", "still 1.0", "loss at the end"], rows)


def train_in_bf16(update: Callable, steps: int = BF16_STEPS) -> TrainedInBf16:
    """One training by plain AdamW, by the reader's update, and rounded at random."""
    must_be_right(update_through_masters, update)
    ways = {
        "bf16 alone": plain_adamw,
        "your update": lambda parameters, lr: UpdatedBy(update, parameters, lr),
        "rounded at random": adamw_rounded_stochastically,
    }
    return TrainedInBf16({name: bf16_training(way, steps=steps) for name, way in ways.items()})


# --- gradients that become zero -------------------------------------------------------------------


def percent_lost(sizes: Sizes, k: int) -> int:
    """The percentage of gradients, divided by k, that fp16 rounds to zero."""
    return round(100 * shares(sizes, HALF_FORMAT, -int(math.log2(k))).lost)


def lost_by_prediction(sizes: Sizes) -> dict[str, int]:
    """Percent lost without accumulation and with 2,048 microbatches, by the names of the
    predictions."""
    return {f"percent lost, k = {k:,}": percent_lost(sizes, k) for k in (1, 2048)}


def figure_of_sizes(sizes: Sizes, k: int) -> go.Figure:
    title = f"Gradients divided by {k:,}, in fp16"
    return sizes_figure(title, sizes, HALF_FORMAT, -int(math.log2(k)))


class TrainedInFp16(NamedTuple):
    """Run -> its losses."""

    losses: dict[str, list[float]]

    def by_prediction(self) -> dict[str, float]:
        """The loss at the end, by the names of the predictions."""
        return {
            f"loss, {name}": round(mean_of_last(self.losses[name]), 2)
            for name in ("fp16 unscaled", "fp16 scaled")
        }

    def figure(self) -> go.Figure:
        return runs_figure(f"Loss of each step, k = {ACCUMULATED:,}", self.losses)


def train_in_fp16() -> TrainedInFp16:
    """Three runs on the same tokens."""
    return TrainedInFp16(
        {
            "fp32": losses_of(torch.float32),
            "fp16 unscaled": losses_of(torch.float16),
            "fp16 scaled": losses_of(torch.float16, SCALE),
        }
    )


# --- a scale that finds itself --------------------------------------------------------------------


def train_with_scaler(
    scaler_step: Callable, init_scale: float, steps: int = SCALED_STEPS
) -> ScalesOfARun:
    """An fp16 model with fp32 masters, whose scale is the reader's business."""
    scaler_step = gives_numbers(scaler_step_of_a_loop, scaler_step)
    vocabulary, data = training_data(seed=0)
    model = build_model(vocabulary, torch.float16)
    optimizer = MasterWeights(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    scale, good_steps, losses, scales, updated = init_scale, 0, [], [], []
    for number, (tokens, targets) in zip(range(steps), data):

        def update(number=number):
            optimizer.step()
            updated.append(number)

        optimizer.zero_grad()
        loss = next_token_loss(model(tokens), targets)
        (loss * scale).backward()
        optimizer.take_gradients()
        gradients = [master.grad for _, master in optimizer.pairs if master.grad is not None]
        scales.append(scale)
        losses.append(loss.item())
        scale, good_steps = scaler_step(gradients, scale, good_steps, update, GROWTH_INTERVAL)
    return ScalesOfARun(losses, scales, sorted({*range(steps)} - {*updated}))


def skipped_at_first(run: ScalesOfARun) -> int:
    """The steps before the first update."""
    return next(step for step in range(len(run.scales) + 1) if step not in run.skipped)


def table_of_scales(run: ScalesOfARun) -> Table:
    """Every tenth step, beside those of LossScaler."""
    ours = dynamic_run(run.scales[0], GROWTH_INTERVAL, len(run.scales))
    rows = [
        [
            step,
            *(f"2^{math.log2(r.scales[step]):g}" for r in (run, ours)),
            f"{run.losses[step]:.2f}",
        ]
        for step in range(0, len(run.scales), 10)
    ]
    return Table(["step", "your scale", "LossScaler's", "loss"], rows)


# --- ranks ----------------------------------------------------------------------------------------


class ScalesOfRanks(NamedTuple):
    """The scale of each rank after each step: where it looks at its own gradients, and agreed."""

    alone: list[list[float]]
    agreed: list[list[float]]

    def by_prediction(self) -> dict[str, float]:
        """The last scale of a rank alone, by the names of the predictions."""
        return {f"scale of rank {rank}, alone": own[-1] for rank, own in enumerate(self.alone)}

    def table(self) -> Table:
        rows = [
            [f"{name}, rank {rank}", *map(int, of_rank)]
            for name, of_ranks in self._asdict().items()
            for rank, of_rank in enumerate(of_ranks)
        ]
        return Table(["scale after step", *map(str, range(1, len(rows[0])))], rows)


def scales_of_two_ranks() -> ScalesOfRanks:
    with ranks(2, device="cpu", announce=False) as two:
        return ScalesOfRanks(*(two.run(scales_of_a_rank, agreed) for agreed in (False, True)))
