"""Answers of a check that exercises of several topics make of tensors and of solutions."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def nine_digits(tensor: Tensor) -> list[float]:
    """Its elements, in which sums in another order agree."""
    return [round(value, 9) for value in tensor.detach().flatten().tolist()]


def drawn(seed: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    """A tensor of each shape, the same for equal seeds."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def unless_blank(answers: Iterable) -> Any:
    """The answers; None or `...` alone where one of them is that, so that a check says it."""
    return next((answer for answer in answers if answer is None or answer is ...), answers)
