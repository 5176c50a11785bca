"""Parts of `make gpu`, each on its own: one that fails leaves a row with its name, and the others
go on."""

import gc
from collections.abc import Iterable, Iterator

import torch

from .recordings import Row

FAILED = "record.failed"
LONGEST = 200  # characters of an error


def failure(part: str, error: str) -> Row:
    return Row(FAILED, 1, "count", dict(part=part, error=error[:LONGEST]))


def attempt(part: str, rows: Iterable[Row]) -> Iterator[Row]:
    """The rows, as they come; where they break off, one that says which part it was and the first
    line of what went wrong. Memory that is free goes back to the driver, so that the next part
    finds the GPU as this one did."""
    try:
        yield from rows
    except Exception as error:
        said = next(filter(None, str(error).splitlines()), "")
        print(f"gpu:    {part} failed: {type(error).__name__}: {said}", flush=True)
        yield failure(part, f"{type(error).__name__}: {said}")
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
