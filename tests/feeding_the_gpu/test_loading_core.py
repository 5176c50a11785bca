"""The core of data loading: files, the order of windows, resuming, prefetching."""

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections import Counter
from contextlib import suppress
from itertools import combinations, islice

import numpy as np
import pytest
import torch
from told import told

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


def opened(content, vocabulary=777):
    def does(file):
        file.path.write_bytes(content)
        return TokenFile(file.path, vocabulary)

    return does


def written(tokens, vocabulary=50_000):
    return lambda file: write_tokens(file.path, tokens, vocabulary)


def resized(tokens):
    def does(file):
        file.path.write_bytes(bytes(2 * tokens))
        return TokenLoader(file, 10, 4).batch(0)

    return does


def read(step=0, rank=0, ranks=1, sequence=10, batch=4, vocabulary=777, epochs=None):
    def does(file):
        loader = TokenLoader(TokenFile(file.path, vocabulary), sequence, batch, epochs=epochs)
        return loader.batch(step, rank, ranks)

    return does


WRAPPED = np.array([5, 40_000]).astype(np.int16)
REFUSED = told("test_loading_core::test_what_cannot_be_read_is_refused", globals())


@pytest.mark.parametrize("what, does, words", REFUSED, ids=[what for what, *_ in REFUSED])
def test_what_cannot_be_read_is_refused(file, what, does, words):
    """Must catch: a token that wraps round; windows of the step after, for a rank beyond; a rank
    without a window, whose loss is a mean of nothing."""
    with pytest.raises((BadTokens, NoSuchBatch), match=words.replace("0 ... ", r"0 \.\.\. ")):
        does(file)


def read_what_is_gone(path, door):
    file = TokenFile(path, 777)
    os.truncate(path, 0)
    try:
        file.windows(np.array([300_000]), 5) if door == "windows" else file.tokens[300_000]
    except BadTokens:
        sys.exit(3)


@pytest.mark.ranks  # a process of their server
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork, and other signals")
@pytest.mark.parametrize("door", ["windows", "the mapped file"])
def test_a_file_that_shrinks_kills_nobody(file, door):
    """A page beyond the end kills its reader: SIGBUS. Must catch: the size not asked for before
    each batch, or when the file is opened alone."""
    from ranklab.ranks import server  # here, so that no other test counts as one of ranks

    file.path.write_bytes(bytes(1_000_000))
    server.start_fork_server()
    context = multiprocessing.get_context(server.start_method())
    reader = context.Process(target=read_what_is_gone, args=(file.path, door))
    with server.without_main():
        reader.start()
    reader.join()
    assert reader.exitcode == (3 if door == "windows" else -signal.SIGBUS)


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
    """Must catch: ranks that get one part; an epoch that begins in the middle of a batch with the
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
    """4, then 3, then 2 ranks. Must catch: a place that is counted from the last resumption; a
    batch cut by another rule."""
    whole = list(TokenLoader(file, 10, global_batch=12, seed=5, epochs=2).batches(0))
    for first, second in combinations(range(9), 2):  # 8.3 steps are an epoch
        run = [(4, 0, first), (3, first, second), (2, second, len(whole))]
        for ranks, begin, end in run:
            again = TokenLoader(TokenFile(file.path, 777), 10, global_batch=12, seed=5, epochs=2)
            own = [islice(again.batches(begin, rank, ranks), end - begin) for rank in range(ranks)]
            for step, parts in enumerate(zip(*own, strict=True), begin):
                for mine, wanted in zip(map(torch.cat, zip(*parts)), whole[step], strict=True):
                    assert torch.equal(mine, wanted)


class Steps(torch.utils.data.Dataset):
    """A data set whose index is the step."""

    def __init__(self, loader, rank, ranks):
        self.loader, self.where = loader, (rank, ranks)

    def __getitem__(self, step):
        return self.loader.batch(step, *self.where)


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize("workers", range(5))
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_each_token_comes_once_an_epoch(tmp_path, ranks, workers):
    """Must catch: a worker that begins at its own step, or draws another order; a target that is
    not one token further; a rank's part that depends on its workers."""
    write_tokens(tmp_path / "t", np.arange(481), 481)
    loader = TokenLoader(TokenFile(tmp_path / "t", 481), 10, global_batch=12, epochs=1)
    found = []
    for rank in range(ranks):
        torchs = torch.utils.data.DataLoader(
            Steps(loader, rank, ranks), None, sampler=range(loader.steps), num_workers=workers
        )
        for mine, wanted in zip(torchs, loader.batches(0, rank, ranks), strict=True):
            assert all(map(torch.equal, mine, wanted)) and torch.equal(mine[1], mine[0] + 1)
            found += mine[0].flatten().tolist()
    assert sorted(found) == list(range(480))


def test_a_file_travels_by_its_name(file):
    """Must catch: all tokens copied into each worker that is not forked."""
    loader = TokenLoader(file, 10, 12, seed=3)
    travelled = pickle.dumps(loader)
    assert len(travelled) < 1000
    assert all(map(torch.equal, pickle.loads(travelled).batch(4), loader.batch(4)))


@pytest.mark.parametrize("depth", (0, 2))
def test_prefetching_changes_no_batch(file, depth):
    """Must catch: nothing ahead taken for no batches; the last batches lost, the order changed, an
    error that nobody hears."""
    loader = TokenLoader(file, 10, global_batch=12, epochs=1)
    ahead = prefetched(loader.batches(1), "cpu", depth)
    for found, wanted in zip(ahead, loader.batches(1), strict=True):
        assert all(map(torch.equal, found, wanted))

    def broken():
        yield loader.batch(0)
        raise OSError("the store is gone")

    ahead = prefetched(broken(), "cpu")
    next(ahead)
    with pytest.raises(OSError, match="the store is gone"):
        next(ahead)


def prefetching_threads():
    return {each for each in threading.enumerate() if each.name.startswith("ThreadPoolExecutor")}


@pytest.mark.parametrize("leaves", ["break", "close", "error", "end"])
def test_no_thread_waits_when_the_reader_has_left(file, leaves):
    """Must catch: a thread that waits forever to hand over a batch; one that makes all others; a
    reader who waits for the batch in the making."""
    made, heard, go_on, before = [], [], threading.Event(), prefetching_threads()

    def batches():
        for step in range(3 if leaves == "end" else 1000):
            made.append(step)
            if step == 3:
                heard.append(go_on.wait(60))
            yield TokenLoader(file, 10, 4).batch(step)

    def reads():
        ahead = prefetched(batches(), "cpu")
        for number, _ in enumerate(ahead, 1):
            if number == 2 and leaves == "break":
                break
            if number == 2 and leaves == "close":
                ahead.close()
            if number == 2 and leaves == "error":
                raise ZeroDivisionError

    with suppress(ZeroDivisionError):
        reads()
    go_on.set()
    for thread in prefetching_threads() - before:
        thread.join(60)
        assert not thread.is_alive()
    assert made == list(range(len(made))) and len(made) <= 4 and all(heard)
