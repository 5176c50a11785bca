"""The parts of `make gpu`, independent of each other: a part that fails leaves a row with its name,
and the others go on."""

import gc
from collections.abc import Generator, Iterable

import torch

from .recordings import Row

FAILED = "record.failed"
LONGEST = 200  # characters of an error


def failure(part: str, error: str) -> Row:
    return Row(FAILED, 1, "count", dict(part=part, error=error[:LONGEST]))


def attempt(part: str, rows: Iterable[Row]) -> Generator[Row, None, bool]:
    """The rows, one by one; after an error, a row with the part's name and the first line of the
    error. Free memory goes back to the driver, so that the next part starts with the same GPU
    memory. `yield from attempt(...)` is True if no error came."""
    whole = False
    try:
        yield from rows
        whole = True
    except Exception as error:
        said = next(filter(None, str(error).splitlines()), "")
        print(f"gpu:    {part} failed: {type(error).__name__}: {said}", flush=True)
        yield failure(part, f"{type(error).__name__}: {said}")
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return whole
