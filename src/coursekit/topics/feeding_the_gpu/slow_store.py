"""A store that sleeps, and the clock of a loop that takes its batches."""

import warnings
from time import perf_counter, sleep

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from shardlab.data_loading.core import TokenFile


class SlowStore(Dataset):
    """Windows of a token file, each of which takes a while, as from a disk far away: a sleep, which
    takes as long on any machine. A batch sleeps once, for all its windows."""

    def __init__(self, file: TokenFile, sequence: int, seconds: float, late: dict | None = None):
        self.file, self.sequence, self.seconds, self.late = file, sequence, seconds, late or {}

    def __len__(self) -> int:
        return (len(self.file) - 1) // self.sequence

    def __getitem__(self, window: int) -> torch.Tensor:
        return self.__getitems__([window])[0]

    def __getitems__(self, windows: list[int]) -> list[torch.Tensor]:
        sleep(sum(self.seconds + self.late.get(window, 0) for window in windows))
        starts = np.array(windows) * self.sequence
        return list(torch.from_numpy(self.file.windows(starts, self.sequence + 1)))


def loop_ms(store: SlowStore, workers: int, step_seconds: float, steps=4, batch=8, ahead=2):
    """(milliseconds of a step, the longest wait for a batch) of a loop whose steps sleep. The first
    two steps, in which workers start, do not count."""
    more = dict(prefetch_factor=ahead) if workers else {}
    places = range(batch * (2 + steps))
    with warnings.catch_warnings(action="ignore"):  # more workers than cores: they sleep
        batches = iter(DataLoader(store, batch, sampler=places, num_workers=workers, **more))
    moments, waits = [], []
    for _ in range(2 + steps):
        moments.append(perf_counter())
        next(batches)
        waits.append(perf_counter() - moments[-1])
        sleep(step_seconds)
    return 1e3 * (perf_counter() - moments[2]) / steps, 1e3 * max(waits[2:])
