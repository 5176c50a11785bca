"""The core of data loading: files, the order of windows, resuming, prefetching."""

from collections import Counter

import numpy as np
import pytest
import torch

from shardlab.data_loading.core import (
    BadTokens,
    NoSuchBatch,
    TokenFile,
    TokenLoader,
    prefetched,
    shuffled,
    write_tokens,
)


@pytest.fixture
def file(tmp_path):
    """1,001 tokens of a vocabulary of 777: 100 windows of ten, and a last target."""
    path = tmp_path / "tokens.bin"
    write_tokens(path, np.arange(1001) % 777, 777)
    return TokenFile(path, 777)


@pytest.mark.parametrize("vocabulary, each", [(777, 2), (65_536, 2), (65_537, 4)])
def test_a_file_gives_back_its_tokens(tmp_path, vocabulary, each):
    """Must catch: int16, which makes 40,000 negative; a type that is one token too small."""
    tokens = np.array([0, 5, min(40_000, vocabulary - 1), vocabulary - 1])
    assert write_tokens(tmp_path / "t", tokens, vocabulary) == 4 * each
    file = TokenFile(tmp_path / "t", vocabulary)
    assert file.windows(np.array([0]), 4).tolist() == [tokens.tolist()]


def shrunk(file):
    file.path.write_bytes(b"\0" * 10)
    TokenLoader(file, 10, 4).batch(0)


def beyond_the_vocabulary(file):
    TokenLoader(TokenFile(file.path, 700), 10, 100).batch(0)


REFUSED = {
    "an odd length": (lambda file: opened(file, b"\0" * 5), BadTokens, "5 bytes"),
    "an empty file": (lambda file: opened(file, b""), BadTokens, "0 bytes"),
    "a token beyond": (beyond_the_vocabulary, BadTokens, "not one of 0 ... 699"),
    "a token to write": (lambda file: write_tokens(file.path, [3, 5], 5), BadTokens, "token 5"),
    "a negative one": (lambda file: write_tokens(file.path, [-1], 5), BadTokens, "token -1"),
    "a file that shrinks": (shrunk, BadTokens, "its size has changed"),
    "too few tokens": (lambda file: TokenLoader(file, 2000, 4), NoSuchBatch, "1,001 tokens"),
    "no windows": (lambda file: TokenLoader(file, 10, 0), NoSuchBatch, "no 0 windows"),
    "a step beyond": (
        lambda file: TokenLoader(file, 10, 4, epochs=2).batch(50),
        NoSuchBatch,
        "step 50 is not one of 0 ... 49",
    ),
    "a step before": (lambda file: TokenLoader(file, 10, 4).batch(-1), NoSuchBatch, "step -1"),
}


def opened(file, content):
    file.path.write_bytes(content)
    TokenFile(file.path, 777)


@pytest.mark.parametrize("does, error, words", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_read_is_refused(file, does, error, words):
    """Must catch: a process that is killed by a page beyond the end; a token that wraps round."""
    with pytest.raises(error) as caught:
        does(file)
    assert words in str(caught.value)


@pytest.mark.parametrize("count", [1, 2, 3, 16, 17, 100, 4097])
def test_the_order_is_a_permutation(count):
    """Must catch: a result outside that is folded by modulo, which gives an element twice."""
    orders = [shuffled(np.arange(count), count, key).tolist() for key in (0, 1, 99)]
    assert all(sorted(order) == list(range(count)) for order in orders)
    assert count < 16 or len(set(map(tuple, orders))) == 3


def test_the_order_looks_random():
    """Must catch: too few rounds, which keep neighbours together; keys that shift one order."""
    order = shuffled(np.arange(5000), 5000, 7)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.06  # four standard errors
    first = [shuffled(np.arange(1), 1000, key)[0] for key in range(4000)]
    assert abs(np.mean(first) - 499.5) < 4 * 289 / 4000**0.5


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_each_window_comes_once_an_epoch(file, ranks):
    """With a batch that does not divide the epoch.

    Must catch: ranks that get one part; an epoch that begins in the middle of a batch with the
    order of the epoch before; the first windows of each epoch left out."""
    loader = TokenLoader(file, 10, global_batch=12, seed=3)
    steps = [
        np.concatenate([loader.starts(step, rank, ranks) for rank in range(ranks)])
        for step in range(25)
    ]
    flat = np.concatenate(steps)
    epochs = flat.reshape(3, 100)
    assert all(Counter(epoch.tolist()) == Counter(range(0, 1000, 10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_a_run_resumes_twice_in_an_epoch_on_other_ranks(file):
    """4, then 3, then 2 ranks: all batches are those of the run that was never stopped.

    Must catch: a place that is counted from the last resumption; a batch cut by another rule."""
    loader = TokenLoader(file, 10, global_batch=12, seed=5, epochs=3)
    whole = list(loader.batches(0))
    for first, last, ranks in ((0, 3, 4), (3, 7, 3), (7, loader.steps, 2)):
        again = TokenLoader(TokenFile(file.path, 777), 10, global_batch=12, seed=5, epochs=3)
        for step in range(first, last):
            parts = [again.batch(step, rank, ranks) for rank in range(ranks)]
            for mine, wanted in zip(map(torch.cat, zip(*parts)), whole[step]):
                assert torch.equal(mine, wanted)


def test_targets_are_one_token_further(file):
    """Must catch: windows whose last target is missing, or another window's."""
    inputs, targets = TokenLoader(file, 10, 100).batch(0)
    assert torch.equal(targets, (inputs + 1) % 777)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataloader_takes_the_loader(file, workers):
    """The steps are its sampler: any number of workers gives one stream.

    Must catch: a loader that does not travel to a worker, or draws there."""
    loader = TokenLoader(file, 10, global_batch=12, epochs=1)
    torchs = torch.utils.data.DataLoader(
        Steps(loader), batch_size=None, sampler=range(2, loader.steps), num_workers=workers
    )
    for found, wanted in zip(torchs, loader.batches(2), strict=True):
        assert all(map(torch.equal, found, wanted))


class Steps(torch.utils.data.Dataset):
    def __init__(self, loader):
        self.loader = loader

    def __getitem__(self, step):
        return self.loader.batch(step)


def test_prefetching_changes_no_batch(file):
    """Must catch: the last batches lost, the order changed, an error that nobody hears."""
    loader = TokenLoader(file, 10, global_batch=12, epochs=1)
    for found, wanted in zip(prefetched(loader.batches(1), "cpu"), loader.batches(1), strict=True):
        assert all(map(torch.equal, found, wanted))

    def broken():
        yield loader.batch(0)
        raise OSError("the store is gone")

    ahead = prefetched(broken(), "cpu")
    next(ahead)
    with pytest.raises(OSError, match="the store is gone"):
        next(ahead)


def test_a_reader_who_leaves_stops_the_thread(file):
    """Must catch: a thread that waits forever to hand over a batch that nobody wants."""
    made = []

    def endless():
        for step in range(1000):
            made.append(step)
            yield TokenLoader(file, 10, 4).batch(step)

    ahead = prefetched(endless(), "cpu")
    next(ahead)
    ahead.close()
    assert len(made) <= 5
