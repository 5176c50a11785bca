"""Small models in 16 bits for the lab and its recording: the model, its data, and a loop in one
autocast context.
"""

from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from shardlab.gpt import GPT, GPTConfig
from shardlab.text import vocabulary_of_text, windows_of_text

WINDOWS, WINDOW_TOKENS = 8, 32


def training_data(seed: int) -> tuple[int, Iterator[tuple[Tensor, Tensor]]]:
    """(vocabulary, batches without end)"""
    return vocabulary_of_text(), windows_of_text(WINDOWS, WINDOW_TOKENS, seed)


def build_model(vocabulary: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> GPT:
    """Two blocks of 32 columns."""
    torch.manual_seed(seed)
    sizes = dict(layers=2, hidden=32, heads=2, vocabulary=vocabulary, max_sequence=WINDOW_TOKENS)
    return GPT(GPTConfig(**sizes)).to(dtype)


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
