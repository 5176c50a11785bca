"""Training that fails for real, in seconds on a CPU: a small GPT on the book's text, in fp16
without a loss scale, and in bf16 without master weights.

A step of a large batch is k microbatches, and each loss is divided by k. One of them runs here: its
loss is divided by k and its gradients are multiplied by k, in fp32, after they are unscaled. What
16 bits lose on the way is what a step of k microbatches loses; its other k - 1 gradients are left
out.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

from coursekit.topics.mixed_precision.trainings import build_model, training_data
from shardlab.gpt import next_token_loss
from shardlab.mixed_precision import LossScaler, MasterWeights
from shardlab.mixed_precision.stochastic_rounding import StochasticRounding

ACCUMULATED = 2048  # microbatches of 8 x 32 tokens: 0.5 million tokens a step, as GPT-2 had
SCALE = 2.0**24  # no step overflows with it, and no gradient becomes zero


def losses_of(
    dtype: torch.dtype,
    loss_scale: float = 1.0,
    microbatches: int = ACCUMULATED,
    steps: int = 150,
    seed: int = 0,
    lr: float = 0.1,
) -> list[float]:
    """The loss of each step of SGD with momentum, of a model in `dtype` with fp32 master weights,
    its loss divided by the number of microbatches and multiplied by a static scale."""
    vocabulary, data = training_data(seed)
    model = build_model(vocabulary, dtype, seed)
    optimizer = MasterWeights(model.parameters(), torch.optim.SGD, lr=lr, momentum=0.9)
    scaler = LossScaler(loss_scale, growth_factor=1.0, backoff_factor=1.0)
    losses = []
    for _, (tokens, targets) in zip(range(steps), data):
        optimizer.zero_grad()
        loss = next_token_loss(model(tokens).float(), targets)
        scaler.scale(loss / microbatches).backward()
        scaler.unscale_(optimizer)
        for _, master in optimizer.pairs:
            if master.grad is not None:
                master.grad *= microbatches  # as if all of them were this one
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


def mean_of_last(losses: list[float], count: int = 20) -> float:
    return sum(losses[-count:]) / count


# --- updates that are lost ------------------------------------------------------------------------


def representable_and_lost(dtype: torch.dtype) -> tuple[float, float, float]:
    """(w, u, w + u) in 16 bits: u is a number of its own, far from the smallest, and changes
    nothing."""
    w = torch.ones((), dtype=dtype)
    u = w * torch.finfo(dtype).eps / 2
    return w.item(), u.item(), (w + u).item()


class WithoutMaster(NamedTuple):
    """losses of all steps; share of the norms' weights that are still what they began with."""

    losses: list[float]
    norm_weights_unmoved: float


def bf16_training(
    optimizer_of: Callable[..., torch.optim.Optimizer],
    dtype: torch.dtype = torch.bfloat16,
    steps: int = 300,
    lr: float = 1e-3,
    seed: int = 0,
) -> WithoutMaster:
    """AdamW on a model whose parameters are bf16; `optimizer_of(parameters, lr)` makes it."""
    vocabulary, data = training_data(seed)
    model = build_model(vocabulary, dtype, seed)
    optimizer, losses = optimizer_of(model.parameters(), lr), []
    for _, (tokens, targets) in zip(range(steps), data):
        optimizer.zero_grad()
        loss = next_token_loss(model(tokens).float(), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    norms = [
        p for name, p in model.named_parameters() if "norm" in name and name.endswith("weight")
    ]
    unmoved = torch.cat([(weight.detach() == 1).float() for weight in norms])
    return WithoutMaster(losses, unmoved.mean().item())


def plain_adamw(parameters, lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=lr)


def adamw_with_master(parameters, lr: float) -> torch.optim.Optimizer:
    return MasterWeights(parameters, torch.optim.AdamW, lr=lr)


def adamw_rounded_stochastically(parameters, lr: float) -> torch.optim.Optimizer:
    draw = torch.Generator().manual_seed(0)
    return StochasticRounding(parameters, torch.optim.AdamW, lr=lr, generator=draw)
