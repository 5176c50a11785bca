"""The small GPT of the labs, its batches, and how far a result is from the plain model's."""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ranklab.measure.communication import CommunicationLog
from ranklab.ranks import NotARank, rank_device
from shardlab.gpt import GPT, GPTConfig
from shardlab.text import vocabulary_of_text, windows_of_text

from ..recordings.races import Weighed

SMALL_SIZES = dict(layers=3, hidden=48, heads=8, max_sequence=32)


def small_gpt(
    dtype: torch.dtype = torch.float32, seed: int | None = 0, random_biases: bool = False, **sizes
) -> GPT:
    """The GPT that is the same on every rank, on the rank's device; a notebook's own is on the CPU.

    `sizes` are those of GPTConfig, and replace the ones here; the vocabulary is that of the book's
    text. Biases begin at zero, which hides a bias that is added twice: `random_biases` draws them.
    """
    if seed is not None:
        torch.manual_seed(seed)
    given = {"vocabulary": vocabulary_of_text(), **SMALL_SIZES, **sizes}
    model = GPT(GPTConfig(**given)).to(dtype)
    for parameter in model.parameters():
        if random_biases and parameter.ndim == 1:
            nn.init.normal_(parameter, mean=float(parameter.detach().mean()), std=0.02)
    return model.to(_device())


def batches(sequences: int = 4, tokens: int = 32, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (inputs, targets) of the book's text, both [4, 32], on the rank's device. Ranks with
    equal seeds see the same: seed=dist.get_rank() gives each its own."""
    device = _device()
    for inputs, targets in windows_of_text(sequences, tokens, seed):
        yield inputs.to(device), targets.to(device)


def far(found: Tensor, wanted: Tensor) -> float:
    """The difference of two tensors, relative to the second."""
    return ((found - wanted).norm() / wanted.norm()).item()


def ring_bytes(log: CommunicationLog) -> int:
    """Bytes that this rank sends of the logged messages, by rings among all ranks."""
    return Weighed(0, log.totals(), 0).sent_bytes(dist.get_world_size())


def _device() -> torch.device:
    try:
        return rank_device()
    except NotARank:
        return torch.device("cpu")
