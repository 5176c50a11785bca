"""The model on which assignments of data parallelism and ZeRO are tried: small, and a trap for a
technique that expects every parameter to be trained, used and its own.

    model = Trap(seed)                               # ranks begin differently: seed = rank
    trap_loss(model, rank).backward()                  # of this rank's part of the batch
    plain = plain_model(0, range(4))                 # with the mean gradients of 4 ranks
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn


class Trap(nn.Module):
    """[N, 5] -> [N, 5] in float64: odd sizes, one frozen layer, one tied weight, one layer that
    some ranks use, one that none does, and a buffer."""

    def __init__(self, seed: int):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.first, self.frozen = nn.Linear(5, 7), nn.Linear(7, 7)
        self.hidden, self.some = nn.Linear(7, 7), nn.Linear(7, 7)
        self.never = nn.Linear(3, 3)
        self.register_buffer("shift", torch.empty(5))
        self.double()
        for tensor in (*self.parameters(), self.shift):
            tensor.data.normal_(generator=generator)
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor, some: bool = False, watch: Callable | None = None) -> Tensor:
        """`watch` is called in backward, when all layers but the first have their gradients."""
        x = torch.tanh(self.first(x))
        if watch is not None:
            x.register_hook(watch)
        x = torch.tanh(self.hidden(torch.tanh(self.frozen(x))))
        if some:
            x = x + self.some(x)
        return x @ self.first.weight + self.shift  # tied


def inputs_of(rank: int, number: int = 0) -> Tensor:
    """[4, 5]: a rank's part of a batch."""
    generator = torch.Generator().manual_seed(1000 * number + rank)
    return torch.randn(4, 5, dtype=torch.float64, generator=generator)


def trap_loss(model: nn.Module, rank: int, number: int = 0, some_rank: int = -1, **named) -> Tensor:
    """`some_rank` uses the layer that the others do not."""
    return (model(inputs_of(rank, number), rank == some_rank, **named) ** 2).mean()


def plain_model(
    seed: int, ranks: Iterable[int], number: int = 0, some_rank: int = -1, factor: float = 1.0
) -> Trap:
    """A bare module whose gradients are `factor` times the mean over these ranks' batches."""
    model = Trap(seed)
    losses = [trap_loss(model, rank, number, some_rank) for rank in ranks]
    (factor * sum(losses) / len(losses)).backward()
    return model


def trained(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


class Stumble(RuntimeError):
    """Raised by a trial inside forward or backward."""


def stumble(_):
    raise Stumble
