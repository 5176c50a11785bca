"""Memory that the programs of a kernel share: each element knows which program has written it and
which has read it. Programs run in any order, or at once. A program may therefore touch no element
that another one writes, unless both add to it atomically.
"""

import numpy as np
import torch
from torch import Tensor

NOBODY, SEVERAL, ADDED = -1, -2, -3  # instead of a program's number
WHOLE = (np.int16, np.int32, np.int64)


class OutOfBounds(IndexError):
    """A program touches a place that is no element of the tensor."""


class Race(RuntimeError):
    """Two programs touch an element, and one of them writes it."""


class BadArgument(ValueError):
    """A kernel is given, or makes, what Triton cannot run or would silently get wrong."""


class Memory:
    """A tensor's memory, from its first element to its last.

    numbers   whole numbers among the kernel's arguments: strides are wanted there
    history   of each storage, who has written and read: views of one share it
    """

    def __init__(self, name: str, tensor: Tensor, numbers: set, history: dict):
        self.name, self.element_bytes, strides = name, tensor.element_size(), tensor.stride()
        if tensor.device.type != "cpu" or tensor.is_complex() or self.element_bytes < 2:
            raise BadArgument(
                f"{name} is {tensor.dtype} on {tensor.device}: tiles run on the CPU, with numbers"
                " of 16 bits or more."
            )
        wanted = {step for n, step in zip(tensor.shape, strides) if n > 1} - {1}
        if not tensor.is_contiguous() and not wanted <= numbers:
            raise BadArgument(
                f"{name} is not contiguous: its strides are {tuple(strides)}, and they are not"
                " among the kernel's arguments. Pass them, or the tensor's contiguous()."
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
        """(where the mask is true, in a tile's shape; the places there, in a row)"""
        at = np.asarray(at)
        inside = np.broadcast_to(True if mask is None else mask, at.shape)
        places = at[inside]
        if places.size and not 0 <= places.min() <= places.max() < self.size:
            beyond = places[(places < 0) | (places >= self.size)][0]
            raise OutOfBounds(
                f"{does} element {beyond:,} of {self.name}, which has {self.size:,}: a mask is"
                " missing, or lets too much through."
            )
        me, writer, reader = language.number, self.writer[places], self.reader[places]
        self.refuse(language, does, "writes", places, writer, ADDED if does == "adds to" else me)
        if does == "reads":
            self.reader[places] = np.where((reader == NOBODY) | (reader == me), me, SEVERAL)
            return inside, places
        self.refuse(language, does, "reads", places, reader, me)
        if does == "writes" and len(np.unique(places)) < len(places):
            raise Race(f"writes an element of {self.name} twice at once: strides are wrong.")
        self.writer[places] = me if does == "writes" else ADDED
        return inside, places

    def refuse(self, language, does: str, done: str, places, by, allowed: int) -> None:
        """A Race where another program has been."""
        other = (by != NOBODY) & (by != language.number) & (by != allowed)
        if other.any():
            name = {SEVERAL: "several programs", ADDED: "an atomic sum"}.get(who := by[other][0])
            if name is None:
                name = f"program {tuple(map(int, np.unravel_index(who, language.grid)))}"
            raise Race(
                f"{does} element {places[other][0]:,} of {self.name}, which {name} {done}:"
                " programs run in any order, or at once."
            )

    def load(self, inside, places, other) -> np.ndarray:
        """A tile of elements, with `other` where the mask is false."""
        found = self.flat[places]
        if self.is_bf16:
            found = (found.astype(np.uint32) << 16).view(np.float32)
        nothing = np.nan if found.dtype.kind == "f" else np.iinfo(found.dtype).min
        tile = np.full(inside.shape, nothing if other is None else other, found.dtype)
        tile[inside] = found
        return tile[()]

    def store(self, inside, places, value, added=False) -> None:
        """Write a tile's elements, rounded to the tensor's type."""
        value = np.broadcast_to(value, inside.shape)[inside]
        if places.size and value.dtype.kind == "f" and self.element_type in WHOLE:
            raise BadArgument(
                f"writes {value.dtype} to element {places[0]:,} of {self.name}, which is"
                f" {self.flat.dtype}."
            )
        if added:
            np.add.at(self.flat, places, value)
        elif self.is_bf16:
            self.flat[places] = rounded_to_bf16(value).view(np.uint32) >> 16
        else:
            self.flat[places] = value


def rounded_to_bf16(x) -> np.ndarray:
    """fp32 numbers, each the nearest of bf16, ties to even."""
    x = np.asarray(x, np.float32)
    bits = x.view(np.uint32)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return np.where(np.isnan(x), x, nearest.view(np.float32))
