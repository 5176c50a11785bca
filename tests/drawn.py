"""Models with every parameter drawn at random, biases and norms too."""

from collections.abc import Callable

import torch
from torch import nn

from shardlab.gpt import GPT, GPTConfig


def drawn(make: Callable[[], nn.Module], seed: int = 0, std: float = 0.5) -> nn.Module:
    torch.manual_seed(seed)
    model = make()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=std)
    return model


def drawn_gpt(config: GPTConfig, seed: int = 100) -> GPT:
    """In float64."""
    return drawn(lambda: GPT(config).double(), seed, std=0.3)
