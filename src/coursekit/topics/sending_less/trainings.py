"""One training by ten ways to bring gradients together: what a rank of four does for the chart
of chapter 16, for its small version in the lab, and for the picture of large batches.

    with ranks(4) as world:
        run = world.run(train_by, WAYS_TO_SEND["signs"], 1e-2, seed=0)[0]
    run.losses      # {20: 2.92, 40: ...}: validation loss by step
    run.sent_bytes  # by rank 0, around rings, in all steps
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from coursekit.lab import ring_bytes
from ranklab.measure.communication import CommunicationLog
from shardlab.compression import (
    Compressed,
    DeMo,
    DiLoCo,
    OneBitAdam,
    four_bits,
    power_sgd,
    signs,
    sixteen_bits,
    top_k,
)
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.text import CharTokenizer, batches, load_text

TRIED_RATES = (1e-3, 3e-3, 1e-2)  # learning rates, the same for all ways
TRAINED_STEPS, LOOK_EVERY, RANK_WINDOWS, TEXT_WINDOW = 200, 20, 4, 48
ONE_IN, LOW_RANK, WHOLE_STEPS, OFTEN, SELDOM, WAVES_CHUNK, KEEP = 100, 4, 30, 10, 50, 64, 2
CHART_SIZES = dict(layers=2, hidden=64, heads=4, feed_forward=256, max_sequence=TEXT_WINDOW)
VALIDATION = 0.1  # of the text, its end


class WayToSend(NamedTuple):
    """How ranks send less: its number among the formulas, what these need to know, and
    build(net, lr), which returns the model to call and the optimizer."""

    number: int
    build: Callable
    given: dict = {}


def hooked(hook: Callable | None) -> Callable:
    def build(net: nn.Module, lr: float):
        return Compressed(net, hook), torch.optim.AdamW(net.parameters(), lr=lr)

    return build


def seldom(net: nn.Module, lr: float, **settings):
    return net, DiLoCo(torch.optim.AdamW(net.parameters(), lr=lr), **settings)


def by_optimizer(net: nn.Module, lr: float, kind: Callable):
    return net, kind(net.parameters(), lr=lr)


WAYS_TO_SEND = {
    "fp32": WayToSend(1, hooked(None)),
    "16 bits": WayToSend(2, hooked(sixteen_bits)),
    "top 1 %": WayToSend(3, hooked(partial(top_k, one_in=ONE_IN)), dict(kept_one_in=ONE_IN)),
    "signs": WayToSend(4, hooked(signs)),
    "PowerSGD": WayToSend(5, hooked(partial(power_sgd, rank=LOW_RANK)), dict(power_rank=LOW_RANK)),
    "1-bit Adam": WayToSend(
        6, partial(by_optimizer, kind=partial(OneBitAdam, warm_up=WHOLE_STEPS))
    ),
    "4 bits": WayToSend(7, hooked(four_bits)),
    "local SGD": WayToSend(
        8, partial(seldom, every=OFTEN, outer_lr=1.0, outer_momentum=0.0), dict(sync_every=OFTEN)
    ),
    "DiLoCo": WayToSend(9, partial(seldom, every=SELDOM), dict(sync_every=SELDOM)),
    "DeMo": WayToSend(
        10,
        partial(by_optimizer, kind=partial(DeMo, chunk=WAVES_CHUNK, keep=KEEP)),
        dict(demo_chunk=WAVES_CHUNK, demo_keep=KEEP),
    ),
}


class TrainingRun(NamedTuple):
    losses: dict[int, float]  # validation loss by step
    sent_bytes: int  # of this rank, in all steps


def two_texts() -> tuple[int, Tensor, Tensor]:
    """(vocabulary, tokens to train with, tokens to validate with)"""
    text = load_text()
    tokenizer = CharTokenizer(text)
    tokens = tokenizer.encode(text)
    cut = int(len(tokens) * (1 - VALIDATION))
    return tokenizer.vocabulary, tokens[:cut], tokens[cut:]


def small_model(vocabulary: int, seed: int) -> GPT:
    torch.manual_seed(seed)
    return GPT(GPTConfig(vocabulary=vocabulary, **CHART_SIZES))


@torch.no_grad()
def validation_loss(net: nn.Module, tokens: Tensor) -> float:
    """The mean over all windows, which do not overlap."""
    count = len(tokens) // (TEXT_WINDOW + 1)
    windows = tokens[: count * (TEXT_WINDOW + 1)].view(count, -1)
    return next_token_loss(net(windows[:, :-1]), windows[:, 1:]).item()


def train_by(way: WayToSend, lr: float, seed: int = 0, steps: int = TRAINED_STEPS) -> TrainingRun:
    """On each rank: its own windows, a learning rate that falls to zero in the last quarter, and
    the loss of rank 0's model, which is the mean where ranks have just met."""
    vocabulary, train, validate = two_texts()
    net = small_model(vocabulary, seed)
    model, optimizer = way.build(net, lr)
    draw = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    losses = {0: validation_loss(net, validate)}
    found = batches(train, RANK_WINDOWS, TEXT_WINDOW, draw)
    with CommunicationLog() as log:
        for step, (inputs, targets) in zip(range(1, steps + 1), found):
            for group in optimizer.param_groups:
                group["lr"] = lr * min(1, 4 * (1 - (step - 1) / steps))
            next_token_loss(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % LOOK_EVERY == 0 and dist.get_rank() == 0:
                losses[step] = validation_loss(net, validate)
    return TrainingRun(losses, ring_bytes(log))
