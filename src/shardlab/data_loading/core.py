"""The core of data loading: a file of tokens, and a loader that is a function of seed, step and
rank.

    write_tokens("train.bin", numbers, vocabulary=50_257)    # once: two bytes a token
    loader = TokenLoader(TokenFile("train.bin", 50_257), sequence=1024, global_batch=64)
    for inputs, targets in prefetched(loader.batches(step, rank, world_size), device):
        ...                                                  # [B, S] each, int64, on the device

The loader keeps no state. The step says which windows come, so a run resumes by its number, on any
number of ranks. A keyed permutation stands for the shuffled list: it computes one element of the
order from its place and a key, and holds nothing in memory. Black and Rogaway 2002.

Letters: N tokens in the file, W windows of S tokens, B windows of a rank's batch.
"""

import queue
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

FEISTEL_ROUNDS, UINT = 4, np.uint64  # of the permutation, and what it computes with


class BadTokens(ValueError):
    """Tokens, or a file of them, that cannot be read back as they were meant."""


class NoSuchBatch(ValueError):
    """A batch that the file does not have."""


def token_type(vocabulary: int) -> np.dtype:
    """The smallest unsigned type: int16 would turn token 40,000 into -25,536."""
    return np.dtype(np.uint16 if vocabulary <= 1 << 16 else np.uint32)


def write_tokens(path: str | Path, tokens: Iterable[int], vocabulary: int) -> int:
    """Write tokens [N] as a flat file of 2 or 4 bytes each. Returns the bytes."""
    tokens = np.asarray(tokens)
    if len(outside := tokens[(tokens < 0) | (tokens >= vocabulary)]):
        raise BadTokens(f"token {outside[0]} is not one of 0 ... {vocabulary - 1}.")
    packed = tokens.astype(token_type(vocabulary))
    packed.tofile(path)
    return packed.nbytes


class TokenFile:
    """Tokens [N] of a flat file, mapped into memory: a page is read when a token on it is."""

    def __init__(self, path: str | Path, vocabulary: int):
        self.path, self.vocabulary, self.type = Path(path), vocabulary, token_type(vocabulary)
        self.bytes = self.path.stat().st_size
        if not self.bytes or self.bytes % self.type.itemsize:
            raise BadTokens(
                f"{path} has {self.bytes:,} bytes, which are no whole number of tokens of"
                f" {self.type.itemsize} bytes each."
            )
        self.tokens = np.memmap(path, self.type, mode="r")

    def __len__(self) -> int:
        return len(self.tokens)

    def windows(self, starts: np.ndarray, length: int) -> np.ndarray:
        """Windows [B, length] that begin at starts [B], as int64."""
        if self.path.stat().st_size != self.bytes:  # reading beyond the end would kill the process
            raise BadTokens(f"{self.path} had {self.bytes:,} bytes, and its size has changed.")
        found = self.tokens[starts[:, None] + np.arange(length)].astype(np.int64)
        if found.max() >= self.vocabulary:
            row, column = np.argwhere(found >= self.vocabulary)[0]
            raise BadTokens(
                f"token {starts[row] + column:,} of {self.path} is {found[row, column]}, which is"
                f" not one of 0 ... {self.vocabulary - 1}."
            )
        return found


def mixed(x: np.ndarray, key: int) -> np.ndarray:
    """Other bits for each (x, key), all 64 of them: the end of MurmurHash3."""
    x = x ^ UINT(key)
    for shift, odd in ((33, 0xFF51AFD7ED558CCD), (33, 0xC4CEB9FE1A85EC53)):
        x = (x ^ (x >> UINT(shift))) * UINT(odd)
    return x ^ (x >> UINT(33))


def shuffled(places: np.ndarray, count: int, key: int) -> np.ndarray:
    """The elements at these places of a shuffled 0 ... count - 1. Each key below 2^62 is another
    order.

    A Feistel network permutes 0 ... 4^b - 1: the left half of the bits is changed by a function of
    the right half, and the halves trade places. A result of count or more goes through again."""
    half = UINT(max(1, -(-int(count - 1).bit_length() // 2)))
    low = (UINT(1) << half) - UINT(1)
    found, beyond = places.astype(UINT), np.ones(len(places), bool)
    keys = mixed(np.arange(FEISTEL_ROUNDS * key, FEISTEL_ROUNDS * (key + 1), dtype=UINT), 0)
    while beyond.any():
        left, right = found[beyond] >> half, found[beyond] & low
        for round_key in keys:
            left, right = right, left ^ (mixed(right, round_key) & low)
        found[beyond] = left << half | right
        beyond = found >= UINT(count)
    return found.astype(np.int64)


class TokenLoader:
    """Windows of S tokens, each once an epoch, in another order each epoch, cut among ranks.

    global_batch  windows of all ranks in one step: as many on any number of ranks
    epochs        after which the data end; None: never
    """

    def __init__(
        self, file: TokenFile, sequence: int, global_batch: int, seed=0, epochs: int | None = None
    ):
        self.file, self.sequence, self.global_batch, self.seed = file, sequence, global_batch, seed
        self.windows = (len(file) - 1) // sequence  # a window's last target is the next one's first
        if self.windows < 1 or global_batch < 1:
            raise NoSuchBatch(
                f"{file.path} has {len(file):,} tokens: no {global_batch} windows of {sequence} and"
                " a target."
            )
        self.steps = None if epochs is None else epochs * self.windows // global_batch

    def starts(self, step: int, rank: int = 0, world_size: int = 1) -> np.ndarray:
        """Where the windows [B] of a rank's batch begin."""
        if step < 0 or (self.steps is not None and step >= self.steps):
            last = "" if self.steps is None else self.steps - 1
            raise NoSuchBatch(f"step {step} is not one of 0 ... {last}.")
        ends = [self.global_batch * part // world_size for part in (rank, rank + 1)]
        places = step * self.global_batch + np.arange(*ends)
        starts = np.empty(len(places), np.int64)
        for epoch in np.unique(places // self.windows):
            mine = places // self.windows == epoch
            key = int(mixed(np.array([epoch], UINT), self.seed)[0] >> UINT(2))
            starts[mine] = shuffled(places[mine] % self.windows, self.windows, key)
        return starts * self.sequence

    def batch(self, step: int, rank: int = 0, world_size: int = 1) -> tuple[Tensor, Tensor]:
        """Inputs and targets, [B, S] int64 each, targets one token further on."""
        found = self.file.windows(self.starts(step, rank, world_size), self.sequence + 1)
        rows = torch.from_numpy(found)
        return rows[:, :-1], rows[:, 1:]

    def batches(self, step: int, rank: int = 0, world_size: int = 1) -> Iterator:
        """All batches from this step on."""
        while self.steps is None or step < self.steps:
            yield self.batch(step, rank, world_size)
            step += 1


def prefetched(batches: Iterable, device: torch.device | str, depth: int = 2) -> Iterator:
    """Yield the batches, up to `depth` of them made ahead by a thread, which also starts their
    copies: from pinned memory, on a stream of their own, so that neither the host nor the GPU's
    compute waits for a copy."""
    ready, stopped = queue.Queue(depth), threading.Event()
    on_gpu = torch.device(device).type == "cuda"
    stream = torch.cuda.Stream(device) if on_gpu else None

    def copied(batch):
        if not on_gpu:
            return [part.to(device) for part in batch], None
        with torch.cuda.stream(stream):
            parts = [part.pin_memory().to(device, non_blocking=True) for part in batch]
            return parts, stream.record_event()

    def put(item):
        while not stopped.is_set():
            try:
                return ready.put(item, timeout=0.1)
            except queue.Full:
                pass

    def make():
        try:
            for batch in batches:
                put((*copied(batch), None))
                if stopped.is_set():
                    return
            put((None, None, StopIteration()))
        except BaseException as error:  # raised where the batch is asked for
            put((None, None, error))

    threading.Thread(target=make, daemon=True).start()
    try:
        while True:
            parts, copy, error = ready.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            if copy is not None:
                copy.wait(torch.cuda.current_stream(device))
                for part in parts:  # its memory is in use on this stream, too
                    part.record_stream(torch.cuda.current_stream(device))
            yield tuple(parts)
    finally:
        stopped.set()  # the reader left in the middle
