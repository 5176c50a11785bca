"""The slow store, the clock and the counter of lab 12."""

import numpy as np
import pytest

from coursekit.topics.feeding_the_gpu import lab
from coursekit.topics.feeding_the_gpu.slow_store import SlowStore, loop_ms
from shardlab.data_loading.core import TokenFile, write_tokens


@pytest.fixture
def store(tmp_path):
    write_tokens(tmp_path / "t", np.arange(4001) % 777, 777)
    return SlowStore(TokenFile(tmp_path / "t", 777), 20, 0.0)


def test_the_loop_takes_at_least_its_sleeps(store):
    """Must catch: a store that gives another window; a loop that forgets the step, or the late
    sample's wait where nothing is ahead; a late sample that never comes."""
    assert len(store) == 200 and store[3].tolist() == [*range(60, 81)]
    assert store.__getitems__([3, 9])[1].tolist() == [*range(180, 201)]
    slow = SlowStore(store.file, 20, 0.001, late={8 * 4: 0.1})
    ms, longest = loop_ms(slow, 0, 0.004, steps=4)
    assert ms >= 4 + 8 + 100 / 4 and longest >= 100
    assert loop_ms(slow, 1, 0.05, steps=4)[0] >= 50


def test_bytes_from_the_disk_are_counted(tmp_path):
    """Nothing is read where nothing is asked for. Must catch: bytes of another counter; a failure
    where the system counts none; a file of another size."""
    path = lab.large_file(tmp_path / "large", 3_000_000)
    assert path.stat().st_size == 3_000_000
    assert lab.megabytes_from_the_disk(path, lambda: None) in (None, 0)
    read = lab.megabytes_from_the_disk(path, path.read_bytes)
    assert read in (None, 0) or 3 <= read < 30  # 0: the file is in memory alone


def test_copies_follow_their_document():
    """Must catch: rows whose documents are not copies; one document number twice in a row."""
    rows, documents = lab.rows_of_copies(2, length=5, documents=3)
    assert rows == [[(0, 5), (1, 5), (2, 5)], [(3, 5), (4, 5), (5, 5)]]
    assert [(documents[at] == documents[at - 1]).all().item() for at in (1, 2, 4, 5)] == [True] * 4


def test_the_figure_has_both(store):
    """Must catch: measured and predicted exchanged, or rounded away."""
    figure = lab.figure_of_workers({0: 612.2, 2: 206.4}, {0: 600.0, 2: 200.0})
    bars = {bar.name: list(bar.y) for bar in figure.data}
    assert bars == {"measured": [612, 206], "by the formula": [600, 200]}


def test_parts_are_the_whole(store):
    """Must catch: a token in both parts, or in none."""
    parts = [part.tokens.tolist() for part in lab.two_parts(store.file)]
    assert sum(parts, []) == store.file.tokens.tolist() and len(parts[1]) == 401
