"""Answers of a check that exercises of several topics make of tensors and of solutions."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from .numbers import is_number, plain_number


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


def list_of_ranks(given: Callable[[], Any], *forms: tuple[Callable[[Any], bool], str]) -> Any:
    """A task's findings, a list with one of each rank; or the sentence of the first of `forms`,
    (condition, sentence), whose condition is true of one of them."""
    found = given()
    if found is None or found is ...:
        return found
    if not isinstance(found, (list, tuple)):
        said = "run(function) gives a list of what each rank returned, and check wants the list."
        return f"one number is one rank's: {said}" if is_number(plain_number(found)) else said
    return next((said for holds, said in forms if any(map(holds, found))), list(found))


def times_of_parts(found: list[float], parts: Iterable[Tensor]) -> list[float] | None:
    """How often each part is in an answer: times that add up to it. None where it is no such sum,
    or too short to tell."""
    answer = torch.tensor(found, dtype=torch.float64)
    columns = torch.stack([part.detach().double().flatten() for part in parts], 1)
    if answer.numel() != len(columns) or len(columns) < columns.shape[1]:
        return None
    times = torch.linalg.lstsq(columns, answer[:, None]).solution[:, 0]
    if not torch.allclose(columns @ times, answer, atol=1e-7):
        return None
    return [round(count, 4) + 0.0 for count in times.tolist()]


def share_of_each(
    found: list[float], parts: Mapping[str, Tensor], wanted: float = 1.0
) -> str | None:
    """How often each named part is in an answer that is to have each `wanted` times: "rank 0's term
    is in it 2 times, and 1 is wanted". None where it is no sum of so much of each."""
    counts = times_of_parts(found, parts.values())
    if counts is None or all(abs(count - wanted) < 1e-4 for count in counts):
        return None
    much = "once" if wanted == 1 else f"{wanted:.4g} times"
    if len(set(counts)) == 1 < len(counts):
        return f"each is in it {_so_often(counts[0])}, and {much} is wanted"
    said = [
        f"{name} is in it {_so_often(count)}"
        for name, count in zip(parts, counts)
        if abs(count - wanted) > 1e-4
    ]
    return f"{', '.join(said)}, and {much} is wanted"


def _so_often(count: float) -> str:
    return {0: "not at all", 1: "once"}.get(count, f"{count:g} times")
