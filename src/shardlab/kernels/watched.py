"""Memory that the programs of a kernel share. Each element knows which program has written it and
which has read it. Programs run in any order, or at once: a program may touch no element that
another one writes, unless both add to it atomically.
"""

import numpy as np
import torch
from torch import Tensor

NOBODY, MANY, ATOMIC = -1, -2, -3  # instead of a program's number


class OutOfBounds(IndexError):
    """A program touches a place that is no element of the tensor."""


class Race(RuntimeError):
    """Two programs touch an element, and one of them writes it."""


class BadArgument(ValueError):
    """An argument that a kernel cannot take."""


class Memory:
    """A tensor's memory, from its first element to its last.

    numbers   whole numbers among the kernel's arguments: strides are wanted there
    history   who has written and read each storage: views of one share it
    """

    def __init__(self, name: str, tensor: Tensor, numbers: set, history: dict):
        self.name, self.element_bytes, strides = name, tensor.element_size(), tensor.stride()
        if tensor.device.type != "cpu" or tensor.is_complex() or self.element_bytes < 2:
            raise BadArgument(
                f"{name} is {tensor.dtype} on {tensor.device}: tiles are made of numbers of 16 bits"
                " or more, on the CPU."
            )
        wanted = {step for n, step in zip(tensor.shape, strides) if n > 1} - {1}
        if not tensor.is_contiguous() and not wanted <= numbers:
            raise BadArgument(
                f"{name} is not contiguous: its strides are {tuple(strides)}, and the kernel's"
                " arguments lack them. Pass them, or the tensor's contiguous()."
            )
        ends = [(n - 1) * step for n, step in zip(tensor.shape, strides)]
        self.size = 1 + sum(ends) if tensor.numel() else 0
        flat = tensor.detach().as_strided((self.size,), (1,))
        self.is_bf16 = flat.dtype is torch.bfloat16  # which NumPy lacks
        self.flat = (flat.view(torch.uint16) if self.is_bf16 else flat).numpy()
        self.element_type = "bfloat16" if self.is_bf16 else self.flat.dtype.type
        storage, first = tensor.untyped_storage(), tensor.storage_offset()
        key = storage.data_ptr(), self.element_bytes
        if key not in history:
            size = storage.nbytes() // self.element_bytes
            history[key] = np.full((2, size), NOBODY, np.int32)
        self.writer, self.reader = history[key][:, first : first + self.size]

    def touch(self, language, does: str, at, mask) -> tuple[np.ndarray, np.ndarray]:
        """(where the mask is true, in the shape of a tile; the places there, in a row)"""
        at = np.asarray(at)
        inside = np.broadcast_to(True if mask is None else mask, at.shape)
        places = at[inside]
        if places.size and not (0 <= places.min() and places.max() < self.size):
            beyond = places[(places < 0) | (places >= self.size)][0]
            raise OutOfBounds(
                f"program {language.program} {does} element {beyond:,} of {self.name}, which has"
                f" {self.size:,}: a mask is missing, or is wrong."
            )
        me, allowed = language.number, ATOMIC if does == "adds to" else NOBODY
        writer, reader = self.writer[places], self.reader[places]
        self.no_race(language, does, "writes", places, writer, allowed)
        if does == "reads":
            self.reader[places] = np.where((reader == NOBODY) | (reader == me), me, MANY)
            return inside, places
        self.no_race(language, does, "reads", places, reader, NOBODY)
        self.writer[places] = np.where(writer == NOBODY, allowed, writer) if allowed else me
        return inside, places

    def no_race(self, language, does: str, done: str, places, who, allowed: int) -> None:
        """Refuse places that another program has touched."""
        other = (who != NOBODY) & (who != language.number) & (who != allowed)
        if other.any():
            names = {MANY: "several others", ATOMIC: "another"}
            found = int(who[other][0])
            program = tuple(int(part) for part in np.unravel_index(max(found, 0), language.grid))
            raise Race(
                f"program {language.program} {does} element {places[other][0]:,} of {self.name},"
                f" which {names.get(found, f'program {program}')} {done}: programs run in any"
                " order, or at once."
            )

    def load(self, inside, places, other) -> np.ndarray:
        """A tile of the elements, with `other` where the mask is false."""
        found = self.flat[places]
        if self.is_bf16:
            found = (found.astype(np.uint32) << 16).view(np.float32)
        if len(places) == inside.size:
            return found.reshape(inside.shape)[()]
        nothing = np.nan if found.dtype.kind == "f" else np.iinfo(found.dtype).min
        tile = np.full(inside.shape, nothing if other is None else other, found.dtype)
        tile[inside] = found
        return tile[()]

    def store(self, inside, places, value) -> None:
        """Write a tile's elements, rounded to the tensor's type."""
        value = np.broadcast_to(value, inside.shape)[inside]
        if self.is_bf16:
            value = (bf16_rounded(value).view(np.uint32) >> 16).astype(np.uint16)
        self.flat[places] = value


def bf16_rounded(x) -> np.ndarray:
    """fp32 numbers that are the nearest of bf16, ties to even. NaN stays."""
    x = np.asarray(x, np.float32)
    bits = x.view(np.uint32)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return np.where(np.isnan(x), x, bits.view(np.float32))
