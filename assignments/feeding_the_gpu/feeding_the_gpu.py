"""Assignment: a loader that is a function, and a packer. README.md beside this file says what to
build.

Try it with `python -m shardlab grade feeding_the_gpu`.
"""

import numpy as np
from torch import Tensor


def write_tokens(path, tokens, vocabulary: int) -> int:
    """Write tokens as a flat file of the smallest unsigned type. Returns the bytes."""
    raise NotImplementedError("write_tokens is a TODO")


def shuffled(places: np.ndarray, count: int, key: int) -> np.ndarray:
    """The elements at these places of a shuffled 0 ... count - 1."""
    raise NotImplementedError("shuffled is a TODO")


class TokenLoader:
    """Windows of a token file, each once an epoch, cut among ranks. It keeps no state."""

    def __init__(self, file, sequence: int, global_batch: int, seed=0, epochs: int | None = None):
        # TODO: epochs=None never ends
        raise NotImplementedError("TokenLoader is a TODO")

    def starts(self, step: int, rank: int = 0, world_size: int = 1) -> np.ndarray:
        """Where the windows of a rank's batch begin."""
        raise NotImplementedError("starts is a TODO")

    def batch(self, step: int, rank: int = 0, world_size: int = 1) -> tuple[Tensor, Tensor]:
        """Inputs and targets, int64, targets one token further on."""
        raise NotImplementedError("batch is a TODO")


def best_fit_crop(lengths: list[int], sequence: int) -> list[list[tuple[int, int]]]:
    """Rows of (document, tokens of it)."""
    raise NotImplementedError("best_fit_crop is a TODO")
