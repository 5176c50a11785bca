"""The assignment on data loading, as a learner may solve it: element by element."""

import math

import numpy as np
import torch


def write_tokens(path, tokens, vocabulary):
    tokens = np.asarray(tokens)
    if tokens.min() < 0 or tokens.max() >= vocabulary:
        raise ValueError(f"tokens {tokens.min()} ... {tokens.max()}: 0 ... {vocabulary - 1} are")
    packed = tokens.astype(np.uint16 if vocabulary <= 65_536 else np.uint32)
    packed.tofile(path)
    return packed.nbytes


def scrambled(value, key):
    for _ in range(3):
        value = ((value ^ key) * 0x9E3779B97F4A7C15 + 12_345) % 2**64
        value ^= value >> 29
    return value


def element(place, count, key):
    half = (count.bit_length() + 1) // 2
    while True:
        left, right = place >> half, place % 2**half
        for turn in range(4):
            left, right = right, left ^ scrambled(right, 4 * key + turn) % 2**half
        place = left << half | right
        if place < count:
            return place


def shuffled(places, count, key):
    return np.array([element(int(place), count, key) for place in places])


class TokenLoader:
    def __init__(self, file, sequence, global_batch, seed=0, epochs=None):
        self.file, self.sequence, self.global_batch, self.seed = file, sequence, global_batch, seed
        self.windows = (len(file) - 1) // sequence
        if self.windows < 1:
            raise ValueError(f"{file.path} is too short for a window of {sequence}")
        self.end = math.inf if epochs is None else epochs * self.windows // global_batch

    def starts(self, step, rank=0, world_size=1):
        if not 0 <= step < self.end:
            raise ValueError(f"step {step} of {self.end}")
        first, end = (self.global_batch * part // world_size for part in (rank, rank + 1))
        places = [divmod(step * self.global_batch + at, self.windows) for at in range(first, end)]
        found = [element(place, self.windows, 100 * self.seed + epoch) for epoch, place in places]
        return self.sequence * np.array(found)

    def batch(self, step, rank=0, world_size=1):
        starts = self.starts(step, rank, world_size)
        rows = torch.from_numpy(self.file.windows(starts, self.sequence + 1))
        return rows[:, :-1], rows[:, 1:]


def best_fit_crop(lengths, sequence):
    left, rows = dict(enumerate(lengths)), []
    while left:
        row, room = [], sequence
        while room and left:
            fit = [number for number in left if left[number] <= room]
            chosen = max(fit, key=left.get) if fit else min(left, key=left.get)
            row.append((chosen, min(room, left.pop(chosen))))
            room -= row[-1][1]
        rows.append(row)
    return rows
