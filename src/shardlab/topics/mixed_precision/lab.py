"""What the lab on mixed precision does around the reader's code: one function for each cell that
trains, counts or starts ranks. The trainings themselves are in trainings.py."""

import math
from collections.abc import Callable
from types import MappingProxyType

import plotly.graph_objects as go
import torch

from shardlab.exercises.going_on import must_be_right
from shardlab.gpt import next_token_loss
from shardlab.measure.recordings import nearby
from shardlab.mixed_precision import MasterWeights
from shardlab.ranks import ranks
from shardlab.show.tables import Table
from shardlab.topics.mixed_precision.exercises import (
    scaler_step_of_a_loop,
    update_through_masters,
)
from shardlab.topics.mixed_precision.figures import runs_figure, sizes_figure
from shardlab.topics.mixed_precision.formats import CARD_FORMATS
from shardlab.topics.mixed_precision.gradients import sizes_now as sizes_now
from shardlab.topics.mixed_precision.histogram import Sizes, shares
from shardlab.topics.mixed_precision.trainings import (
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
from shardlab.topics.mixed_precision.trainings import outputs_of_a_loop as outputs_of_a_loop

HALF_FORMAT = CARD_FORMATS["fp16"]
BF16_STEPS, SCALED_STEPS, GROWTH_INTERVAL = 150, 50, 20
COUNTED_IN_16_BITS = MappingProxyType(
    dict.fromkeys(
        (
            "weight after 300 steps",
            "ten thousand times 0.001",
            "norm weights at 1.0, bf16 alone",
            "norm weights at 1.0, your update",
            "percent lost, k = 1",
            "percent lost, k = 2,048",
            "loss, fp16 unscaled",
            "loss, fp16 scaled",
            "steps skipped at the beginning",
            "scale of rank 0, alone",
            "scale of rank 1, alone",
        ),
        "counted: nearly the same anywhere",
    )
)


def what_it_needs() -> dict:
    """What the table of capabilities says of this lab beside its ranks and what needs a GPU."""
    return dict(
        recordings=nearby(),
        types="fp16 and bf16 are right on any machine, and slow on most CPUs",
        on_cpu=True,
    )


# --- updates that are lost ------------------------------------------------------------------------


class UpdatedBy:
    """What the reader wrote, with what it is given, as bf16_training takes an optimizer."""

    def __init__(self, update: Callable, parameters, lr: float):
        self.update, self.parameters = update, list(parameters)
        self.masters = [parameter.detach().float() for parameter in self.parameters]
        self.optimizer = torch.optim.AdamW(self.masters, lr=lr)

    def zero_grad(self):
        for parameter in self.parameters:
            parameter.grad = None

    def step(self):
        self.update(self.parameters, self.masters, self.optimizer)


def train_in_bf16(update: Callable, steps: int = BF16_STEPS) -> dict[str, WithoutMaster]:
    """The same training by plain AdamW, by the reader's update, and rounded at random."""
    must_be_right(update_through_masters, update)
    ways = {
        "bf16 alone": plain_adamw,
        "your update": lambda parameters, lr: UpdatedBy(update, parameters, lr),
        "rounded at random": adamw_rounded_stochastically,
    }
    return {name: bf16_training(way, steps=steps) for name, way in ways.items()}


def table_of_trainings(runs: dict[str, WithoutMaster]) -> Table:
    rows = [
        [name, f"{run.norm_weights_unmoved:.0%}", f"{mean_of_last(run.losses):.2f}"]
        for name, run in runs.items()
    ]
    return Table(["", "still 1.0", "loss at the end"], rows)


# --- gradients that become zero -------------------------------------------------------------------


def percent_lost(sizes: Sizes, k: int) -> int:
    """Of gradients that are divided by k, the percentage that fp16 rounds to zero."""
    return round(100 * shares(sizes, HALF_FORMAT, -int(math.log2(k))).lost)


def figure_of_sizes(sizes: Sizes, k: int) -> go.Figure:
    title = f"Gradients divided by {k:,}, in fp16"
    return sizes_figure(title, sizes, HALF_FORMAT, -int(math.log2(k)))


def train_in_fp16() -> dict[str, list[float]]:
    """The losses of three runs on the same tokens."""
    return {
        "fp32": losses_of(torch.float32),
        "fp16 unscaled": losses_of(torch.float16),
        "fp16 scaled": losses_of(torch.float16, SCALE),
    }


def figure_of_trainings(losses: dict[str, list[float]]) -> go.Figure:
    return runs_figure(f"Loss of each step, k = {ACCUMULATED:,}", losses)


# --- a scale that finds itself --------------------------------------------------------------------


def train_with_scaler(
    scaler_step: Callable, init_scale: float, steps: int = SCALED_STEPS
) -> ScalesOfARun:
    """An fp16 model with fp32 masters, whose scale is the reader's business."""
    must_be_right(scaler_step_of_a_loop, scaler_step)
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


def first_update(run: ScalesOfARun) -> int:
    """The steps that were skipped before it."""
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


def scales_of_two_ranks() -> dict[str, list[list[float]]]:
    """Of each rank the scale after each step: where it looks at its own gradients, and agreed."""
    with ranks(2, device="cpu", announce=False) as two:
        return {
            "alone": two.run(scales_of_a_rank, False),
            "agreed": two.run(scales_of_a_rank, True),
        }


def table_of_two_ranks(scales: dict[str, list[list[float]]]) -> Table:
    rows = [
        [f"{name}, rank {rank}", *map(int, of_rank)]
        for name, of_ranks in scales.items()
        for rank, of_rank in enumerate(of_ranks)
    ]
    return Table(["scale after step", *map(str, range(1, len(rows[0])))], rows)
