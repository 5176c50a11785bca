"""Trainings with larger and larger batches and as many windows in all: where a rate that grows with
the batch, a warm-up, 1Cycle, LARS and LAMB stop helping. One process; a mean over ranks is the same
batch.

    found = range_test(by_sgd, batch=8)          # the rate at which the loss was lowest
    train_large(WAYS_OF_BATCHES["SGD, linear"], batch=32, rate=found, seed=0)     # validation loss
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from math import exp, isfinite, log
from typing import NamedTuple

import torch
from torch import Tensor

from coursekit.topics.sending_less.trainings import (
    TEXT_WINDOW,
    small_model,
    two_texts,
    validation_loss,
)
from shardlab.compression import LAMB, LARS
from shardlab.gpt import next_token_loss
from shardlab.text import batches

ALL_WINDOWS, SMALLEST = 6400, 8
RANGE_STEPS = 40
by_sgd = partial(torch.optim.SGD, momentum=0.9)


def constant(at: float) -> float:
    return 1.0


def warmed(at: float) -> float:
    """From 0 to 1 over a fifth of the steps."""
    return min(1.0, 5 * at)


def one_cycle(at: float) -> float:
    """Up over 30 % of the steps, and down to 0."""
    return at / 0.3 if at < 0.3 else (1 - at) / 0.7


class Large(NamedTuple):
    """An optimizer, how its rate at the smallest batch grows, and the rate over the steps."""

    kind: Callable
    grows: Callable[[float], float]  # of the batch over the smallest
    schedule: Callable[[float], float] = warmed
    part: int = 4  # of the rate at which the loss was lowest; layers grow with LARS and LAMB


WAYS_OF_BATCHES = {
    "SGD, one rate": Large(by_sgd, lambda times: 1.0, constant),
    "SGD, linear": Large(by_sgd, lambda times: times, constant),
    "SGD, linear, warm-up": Large(by_sgd, lambda times: times),
    "SGD, linear, 1Cycle": Large(by_sgd, lambda times: 2 * times, one_cycle),
    "LARS, linear": Large(LARS, lambda times: times, part=16),
    "AdamW, root": Large(torch.optim.AdamW, lambda times: times**0.5),
    "LAMB, root": Large(LAMB, lambda times: times**0.5, part=16),
}


def windows_of(batch: int, seed: int) -> tuple[int, Tensor, Iterator[tuple[Tensor, Tensor]]]:
    """(vocabulary, tokens to validate with, batches without end)"""
    vocabulary, train, validate = two_texts()
    draw = torch.Generator().manual_seed(seed)
    return vocabulary, validate, batches(train, batch, TEXT_WINDOW, draw)


def steps_of(net, optimizer, found: Iterator, rates: list[float]) -> Iterator[float]:
    """The loss before each step."""
    for rate, (inputs, targets) in zip(rates, found):
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = next_token_loss(net(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


def range_test(
    kind: Callable, batch: int, part: int = 4, least: float = 1e-4, most: float = 30.0
) -> float:
    """A rate grows from step to step by one factor, and the loss falls until it is too large."""
    vocabulary, _, found = windows_of(batch, 0)
    net = small_model(vocabulary, 0)
    rates = [
        exp(log(least) + log(most / least) * step / RANGE_STEPS) for step in range(RANGE_STEPS)
    ]
    losses = list(steps_of(net, kind(net.parameters(), lr=least), found, rates))
    usable = [(loss, rate) for loss, rate in zip(losses, rates) if isfinite(loss)]
    return min(usable)[1] / part


def train_large(way: Large, batch: int, rate: float, seed: int, windows: int = ALL_WINDOWS):
    """Validation loss after as many windows as any other batch has."""
    vocabulary, validate, found = windows_of(batch, seed)
    net, steps = small_model(vocabulary, seed), windows // batch
    top = rate * way.grows(batch / SMALLEST)
    rates = [top * way.schedule((step + 1) / (steps + 1)) for step in range(steps)]
    for _ in islice(steps_of(net, way.kind(net.parameters(), lr=rate), found, rates), steps):
        pass
    return validation_loss(net, validate)
