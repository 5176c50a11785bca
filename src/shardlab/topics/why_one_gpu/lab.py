"""What lab 1 weighs, looks up and writes besides its own training step."""

import math

import torch

from shardlab.formulas import GPUS


def adam_tensors(optimizer: torch.optim.Optimizer) -> tuple[list, list]:
    """(Adam's moments, its step counters): the tensors that the optimizer keeps. Both lists are
    empty before the first update."""
    items = [item for state in optimizer.state.values() for item in state.items()]
    moments = [tensor for name, tensor in items if name != "step"]
    return moments, [tensor for name, tensor in items if name == "step"]


def loss_of_blind_guesses(vocabulary: int) -> float:
    """Mean loss of a model for which all characters are equally likely."""
    return math.log(vocabulary)


def loss_by_frequency(tokens: torch.Tensor) -> float:
    """Mean loss of a model that knows how frequent each character of the text is, and nothing
    else. tokens: [N]."""
    share = torch.bincount(tokens) / len(tokens)
    share = share[share > 0]
    return -(share * share.log()).sum().item()


@torch.no_grad()
def write_text(model, tokenizer, start: str, characters: int, temperature: float = 0.8) -> str:
    """The start, continued by so many characters, each drawn from what the model expects next."""
    window = model.config.max_sequence
    device = next(model.parameters()).device
    written = tokenizer.encode(start)[None].to(device)  # [1, S]
    for _ in range(characters):
        scores = model(written[:, -window:])[0, -1]  # of the next character: [V]
        drawn = torch.multinomial((scores / temperature).softmax(-1), 1)
        written = torch.cat([written, drawn[None]], dim=1)
    return tokenizer.decode(written[0])


def largest_gpu_bytes() -> int:
    """Memory of the largest GPU that the book knows."""
    return max(gpu.quantities["gpu_memory_bytes"] for gpu in GPUS.values())
