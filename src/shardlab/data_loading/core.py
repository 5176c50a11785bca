"""The core of data loading: a file of tokens, and a loader that is a function of seed, step and
rank.

    write_tokens("train.bin", numbers, vocabulary=50_257)    # once: two bytes a token
    loader = TokenLoader(TokenFile("train.bin", 50_257), sequence=1024, global_batch=64)
    for inputs, targets in prefetched(loader.batches(step, rank, world_size), device):
        ...                                                  # [B, S] each, int64, on the device

A run resumes by its step, on any number of ranks. A keyed permutation computes one element of a
shuffled order from its place, so no list is in memory. Black and Rogaway 2002.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

FEISTEL_ROUNDS, UINT = 4, np.uint64  # of the permutation, and what it computes with


class BadTokens(ValueError):
    """Tokens, or a file of them, that cannot be read back as they were meant."""


class NoSuchBatch(ValueError):
    """A batch that the file does not have."""


def token_type(vocabulary: int) -> np.dtype:
    """The smallest unsigned type: int16 would turn token 40,000 into -25,536."""
    return np.dtype(np.uint16 if vocabulary <= 1 << 16 else np.uint32)


def write_tokens(path: str | Path, tokens, vocabulary: int) -> int:
    """Write whole numbers [N] as a flat file of 2 or 4 bytes each. Returns the bytes."""
    tokens = np.asarray(tokens)
    if tokens.dtype.kind not in "iu" or not tokens.size:
        raise BadTokens(f"{tokens.size} tokens of {tokens.dtype}: whole numbers are wanted.")
    most = min(vocabulary, 1 << 32)
    if len(bad := tokens[(tokens < 0) | (tokens >= most)]):
        raise BadTokens(f"token {bad[0]} is not one of 0 ... {most - 1}.")
    tokens.astype(token_type(vocabulary)).tofile(path)
    return Path(path).stat().st_size


class TokenFile:
    """Tokens [N] of a flat file, mapped into memory: a page is read when a token on it is."""

    def __init__(self, path: str | Path, vocabulary: int):
        self.path, self.vocabulary, each = Path(path), vocabulary, token_type(vocabulary).itemsize
        self.bytes = self.path.stat().st_size
        if not self.bytes or self.bytes % each:
            raise BadTokens(f"{path} has {self.bytes:,} bytes, and each token has {each}.")
        self.tokens = np.memmap(path, token_type(vocabulary), mode="r")

    def __len__(self) -> int:
        return len(self.tokens)

    def __reduce__(self):  # a process that gets the file opens it
        return TokenFile, (self.path, self.vocabulary)

    def windows(self, starts: np.ndarray, length: int) -> np.ndarray:
        """Windows [B, length] that begin at starts [B], as int64."""
        if self.path.stat().st_size != self.bytes:  # reading beyond the end would kill the process
            raise BadTokens(f"{self.path} had {self.bytes:,} bytes, and its size has changed.")
        found = self.tokens[starts[:, None] + np.arange(length)].astype(np.int64)
        if len(bad := found[found >= self.vocabulary]):
            raise BadTokens(
                f"{self.path} has token {bad[0]}, which is not one of 0 ... {self.vocabulary - 1}."
            )
        return found


def mixed(x, key) -> np.ndarray:
    """Other bits for each (x, key), all 64 of them: the end of MurmurHash3."""
    x = np.array(x, UINT, ndmin=1) ^ np.array(key, UINT)
    for odd in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        x = (x ^ (x >> UINT(33))) * UINT(odd)
    return x ^ (x >> UINT(33))


def shuffled(places: np.ndarray, count: int, key) -> np.ndarray:
    """The elements at places [B] of a shuffled 0 ... count - 1. Each key, one or [B], is another
    order.

    A Feistel network permutes 0 ... 4^b - 1: the left half of the bits is changed by a function of
    the right half, and the halves trade places. A result of count or more goes through again."""
    key = np.broadcast_to(key, places.shape)
    half = UINT(-(-(count - 1).bit_length() // 2))
    low = (UINT(1) << half) - UINT(1)
    found, again = places.astype(UINT), np.full(len(places), True)
    while again.any():
        left, right = found[again] >> half, found[again] & low
        for turn in range(FEISTEL_ROUNDS):
            left, right = right, left ^ (mixed(right, mixed(turn, key[again])) & low)
        found[again] = left << half | right
        again = found >= count
    return found.astype(np.int64)


class TokenLoader:
    """Windows of S tokens, each once an epoch, in another order each epoch, cut among ranks.

    global_batch  windows of all ranks in one step: as many on any number of ranks. Where the ranks
                  do not divide it, parts differ by one window
    epochs        after which the data end; None: never
    """

    def __init__(
        self, file: TokenFile, sequence: int, global_batch: int, seed=0, epochs: int | None = None
    ):
        self.file, self.sequence, self.global_batch, self.seed = file, sequence, global_batch, seed
        self.windows = (len(file) - 1) // max(
            sequence, 1
        )  # a window's last target is the next one's first
        if min(self.windows, sequence, global_batch) < 1:
            raise NoSuchBatch(
                f"{file.path} has {len(file):,} tokens: no {global_batch} windows of {sequence} and"
                " a target."
            )
        self.steps = math.inf if epochs is None else epochs * self.windows // global_batch

    def starts(self, step: int, rank: int = 0, world_size: int = 1) -> np.ndarray:
        """Where the windows [B] of a rank's batch begin."""
        if step % 1 or not (0 <= step < self.steps and 0 <= rank < world_size <= self.global_batch):
            raise NoSuchBatch(
                f"step {step} of rank {rank} of {world_size}: there are {self.steps} steps of"
                f" {self.global_batch} windows, and each rank needs one."
            )
        ends = [self.global_batch * part // world_size for part in (rank, rank + 1)]
        epoch, place = np.divmod(step * self.global_batch + np.arange(*ends), self.windows)
        return self.sequence * shuffled(place, self.windows, mixed(epoch, mixed(self.seed, 0)))

    def batch(self, step: int, rank: int = 0, world_size: int = 1) -> list[torch.Tensor]:
        """Inputs and targets, [B, S] int64 each, targets one token further on."""
        found = self.file.windows(self.starts(step, rank, world_size), self.sequence + 1)
        return [torch.from_numpy(part.copy()) for part in (found[:, :-1], found[:, 1:])]

    def batches(self, step: int, rank: int = 0, world_size: int = 1) -> Iterator:
        """All batches from this step on."""
        while step < self.steps:
            yield self.batch(step, rank, world_size)
            step += 1


def prefetched(batches: Iterable, device: torch.device | str, depth: int = 2) -> Iterator:
    """Yield the batches. A thread makes up to `depth` of them ahead, and starts their copies: from
    pinned memory, on a stream of their own, so that neither the host nor the GPU's compute waits.

    An error in the thread is raised where its batch is asked for. When the reader leaves, the
    thread ends with the batch that it is making, and nobody waits for it."""
    batches, on_gpu = iter(batches), torch.device(device).type == "cuda"
    stream = torch.cuda.Stream(device) if on_gpu else None  # None: no other stream
    target, thread = stream.device if on_gpu else device, ThreadPoolExecutor(1)

    def made():
        """The next batch on the device, and the end of its copy."""
        if (batch := next(batches, None)) is None:
            return None
        if on_gpu:
            batch = [part.contiguous().pin_memory() for part in batch]
        with torch.cuda.stream(stream):  # "cuda" alone would be GPU 0 in this thread
            parts = [part.to(target, non_blocking=on_gpu) for part in batch]
            return parts, stream.record_event() if on_gpu else None

    ahead = deque(thread.submit(made) for _ in range(max(depth, 1)))
    try:
        while (found := ahead.popleft().result()) is not None:
            ahead.append(thread.submit(made))
            parts, copied = found
            if on_gpu:
                computes = torch.cuda.current_stream(target)
                computes.wait_event(copied)
                for part in parts:  # its memory is not given away before this stream is done
                    part.record_stream(computes)
            yield tuple(parts)
    finally:
        thread.shutdown(wait=False, cancel_futures=True)
