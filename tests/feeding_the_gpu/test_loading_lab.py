"""The slow store, the clock and the counter of lab 12."""

import numpy as np
import pytest

from coursekit.topics.feeding_the_gpu import lab
from shardlab.data_loading.core import TokenFile, write_tokens


@pytest.fixture
def store(tmp_path):
    write_tokens(tmp_path / "t", np.arange(4001) % 777, 777)
    return lab.SlowStore(TokenFile(tmp_path / "t", 777), 20, 0.0)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_loop_takes_at_least_its_sleeps(store, workers):
    """Must catch: a store that gives another window; a loop that forgets the step, or the late
    sample's wait where nothing is ahead."""
    assert len(store) == 200 and store[3].tolist() == [*range(60, 81)]
    slow = lab.SlowStore(store.file, 20, 0.001, late={8 * 6: 0.05})
    ms, longest = lab.loop_ms(slow, workers, 0.004, steps=4)
    assert ms >= (4 + 8 if workers == 0 else 4)
    assert longest >= (50 if workers == 0 else 0)


def test_bytes_from_the_disk_are_counted(store):
    """Nothing is read where nothing is asked for. Must catch: bytes of another counter; a failure
    where the system counts none."""
    found = lab.from_the_disk(store.file.path, lambda: None)
    assert found in (None, 0)
    read = lab.from_the_disk(store.file.path, lambda: store.file.path.read_bytes())
    assert read is None or read in (0, *range(8_000, 3_000_000))  # 0: the file is in memory alone


def test_the_table_has_a_row_for_each(store):
    """Must catch: measured and predicted exchanged."""
    table = lab.table_of_workers({0: 61.2, 2: 20.6}, {0: 60.0, 2: 20.0})
    assert "| 0 | 60 | 61 |" in str(table) or ["0", "60", "61"] in [
        [str(one) for one in row] for row in table.rows
    ]
