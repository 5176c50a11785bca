"""Training that fails for real, in seconds on a CPU: a small GPT on the book's text, in fp16
without a loss scale, in bf16 without master weights, and in one autocast context for all steps.

A step of a large batch is k microbatches, and each loss is divided by k. The lab runs one of them:
it divides the loss by k and multiplies the gradients by k, in fp32, after they are unscaled. What
16 bits lose on the way is what a step of k microbatches loses; its other k - 1 gradients are left
out.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.mixed_precision import LossScaler, MasterWeights
from shardlab.mixed_precision.stochastic_rounding import StochasticRounding
from shardlab.text import vocabulary_of_text, windows_of_text

WINDOWS, WINDOW_TOKENS = 8, 32
ACCUMULATED = 2048  # of WINDOWS x WINDOW_TOKENS tokens: 0.5 million tokens a step, as GPT-2 had
SCALE = 2.0**24  # no step overflows with it, and none of the lab's gradients becomes zero


def training_data(seed: int) -> tuple[int, Iterator[tuple[Tensor, Tensor]]]:
    """(vocabulary, batches without end)"""
    return vocabulary_of_text(), windows_of_text(WINDOWS, WINDOW_TOKENS, seed)


def build_model(vocabulary: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> GPT:
    """Two blocks of 32 columns."""
    torch.manual_seed(seed)
    sizes = dict(layers=2, hidden=32, heads=2, vocabulary=vocabulary, max_sequence=WINDOW_TOKENS)
    return GPT(GPTConfig(**sizes)).to(dtype)


# --- gradients that become zero -------------------------------------------------------------------


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


# --- one context for all steps --------------------------------------------------------------------


def outputs_of_a_loop(context_around_loop: bool) -> tuple[list[float], list[float]]:
    """(the weight at the beginning of each step, the model's output there), of a linear layer of
    one weight that falls by 1 in each step. One autocast context around the loop, or one for each
    forward."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    amp = torch.autocast("cpu", torch.bfloat16)
    weights, outputs = [], []
    with amp if context_around_loop else nullcontext():
        for _ in range(4):
            optimizer.zero_grad()
            weights.append(layer.weight.item())
            with nullcontext() if context_around_loop else amp:
                output = layer(torch.ones(1, 1))
            outputs.append(output.item())
            output.sum().backward()
            optimizer.step()
    return weights, outputs
