"""Lab 12 beside its cells: a slow store, the clock of a loop, bytes from the disk, tables."""

import os
import warnings
from pathlib import Path
from time import perf_counter, sleep

import torch
from torch.utils.data import DataLoader, Dataset

from coursekit.show.tables import Table
from shardlab.data_loading.core import TokenFile

IO = Path("/proc/self/io")


class SlowStore(Dataset):
    """Windows of a token file, each of which takes a while, as from a disk far away: a sleep, which
    takes as long on any machine."""

    def __init__(self, file: TokenFile, sequence: int, seconds: float, late: dict | None = None):
        self.file, self.sequence, self.seconds, self.late = file, sequence, seconds, late or {}

    def __len__(self) -> int:
        return (len(self.file) - 1) // self.sequence

    def __getitem__(self, window: int) -> torch.Tensor:
        sleep(self.seconds + self.late.get(window, 0))
        start = torch.tensor([window * self.sequence]).numpy()
        return torch.from_numpy(self.file.windows(start, self.sequence + 1)[0])


def loop_ms(store: SlowStore, workers: int, step_seconds: float, steps=12, batch=8, ahead=2):
    """(milliseconds of a step, the longest wait for a batch) of a loop whose steps sleep, after the
    workers have started and filled their buffer."""
    more = dict(prefetch_factor=ahead) if workers else {}
    places = range(batch * (steps + 4))
    with warnings.catch_warnings(action="ignore"):  # more workers than cores: they sleep
        batches = iter(DataLoader(store, batch, sampler=places, num_workers=workers, **more))
    waits = []
    for _ in range(4):
        next(batches)
    sleep(4 * step_seconds if workers else 0)
    begin = perf_counter()
    for _ in range(steps):
        asked = perf_counter()
        next(batches)
        waits.append(perf_counter() - asked)
        sleep(step_seconds)
    return 1e3 * (perf_counter() - begin) / steps, 1e3 * max(waits)


def from_the_disk(path: Path, read) -> int | None:
    """Bytes that come from the disk while `read()` runs, on a file that the system has forgotten;
    None where the system does not count them."""
    if not IO.exists() or not hasattr(os, "posix_fadvise"):
        return None
    with path.open("rb+") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    counted = lambda: int(IO.read_text().partition("\nread_bytes: ")[2].split()[0])
    before = counted()
    read()
    return counted() - before


def table_of_workers(found: dict[int, float], by_formula: dict[int, float]) -> Table:
    rows = [[n, f"{by_formula[n]:.0f}", f"{found[n]:.0f}"] for n in found]
    return Table(["workers", "ms a step, by formula", "measured"], rows)
