"""Memory that the programs of a kernel share: each element knows which program has written it and
which has read it. Programs run in any order, or at once. A program may therefore touch no element
that another one writes, unless both add to it atomically.
"""

import numpy as np
import torch
from torch import Tensor

NOBODY, SEVERAL, ADDED = -1, -2, -3  # instead of a program's number


class OutOfBounds(IndexError):
    """A program touches a place that is no element of the tensor."""


class Race(RuntimeError):
    """Two programs touch an element, and one of them writes it."""


class BadArgument(ValueError):
    """A kernel is given, or makes, what Triton cannot run or would silently get wrong."""


class Storage:
    """Memory of a tensor and its views, with the programs that have touched each element. Readers
    matter only where somebody writes: `run` notes them in a second run, if any memory is read and
    written."""

    def __init__(self, tensor: Tensor):
        self.whole = tensor.detach().new_empty(0).set_(tensor.untyped_storage())
        self.before, self.is_read, self.reader = None, False, None
        self.writer = np.full(len(self.whole), NOBODY, np.int32)

    def begin_again(self) -> None:
        if self.before is not None:
            self.whole.copy_(self.before)
        self.writer[:] = NOBODY
        self.reader = self.writer.copy()


class Memory:
    """A tensor's memory, from its first element to its last.

    numbers    whole numbers among the kernel's arguments: strides are wanted there
    storages   by their address
    """

    def __init__(self, name: str, tensor: Tensor, numbers: set, storages: dict):
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
        self.is_whole = not tensor.is_floating_point()
        self.element_type = "bfloat16" if self.is_bf16 else self.flat.dtype.type
        key = tensor.untyped_storage().data_ptr(), self.element_bytes
        if key not in storages:
            storages[key] = Storage(tensor)
        self.storage, self.first = storages[key], tensor.storage_offset()

    def touch(self, language, does: str, at, mask) -> tuple:
        """(a tile's shape, where the mask is true or None for everywhere, the places in a row, the
        same as an index: a slice, which is faster, where they have no gap)"""
        at, inside = np.asarray(at), None
        places = at if at.ndim == 1 else at.reshape(-1)
        if mask is not None and (true := np.count_nonzero(mask)) < getattr(mask, "size", 1):
            inside = mask if np.shape(mask) == at.shape else np.broadcast_to(mask, at.shape)
            if at.ndim == 1 and np.count_nonzero(inside[:true]) == true:
                inside = slice(true)  # the first ones, which NumPy takes without a copy
            places = at[inside]
        n, index = len(places), places
        first, last = (places.item(0), places.item(-1)) if n else (-1, -1)
        row = language.row[first : last + 1]
        if 0 <= first == last - n + 1 <= self.size - n and (
            n == 1 or places.tobytes() == row.tobytes()
        ):
            index = slice(first, last + 1)
        elif n and (places.min() < 0 or places.max() >= self.size):
            beyond = places[(places < 0) | (places >= self.size)][0]
            raise OutOfBounds(
                f"{does} element {beyond:,} of {self.name}, which has {self.size:,}: a mask is"
                " missing, or lets too much through."
            )
        self.watch(language, does, places, index)
        nbytes = n * self.element_bytes
        language.read += nbytes if does != "writes" else 0
        language.written += nbytes if does != "reads" else 0
        return at.shape, inside, places, index

    def watch(self, language, does: str, places, index) -> None:
        """Note who touches what. A Race where another program has been."""
        storage, me = self.storage, language.number
        if does == "reads":
            storage.is_read = True
            if storage.before is storage.reader is None:
                return  # nobody has written
        elif storage.before is None:
            storage.before = storage.whole.clone()
        allowed = ADDED if does == "adds to" else me
        writer = storage.writer[self.first :]
        by = writer[index]
        self.refuse(language, does, "writes", places, by, allowed)
        if does != "reads":  # a sum over a program's own element stays that program's
            writer[index] = me if allowed == me else np.where(by == me, me, ADDED)
        if storage.reader is not None:
            reader = storage.reader[self.first :]
            by = reader[index]
            if does == "reads":
                reader[index] = np.where((by == NOBODY) | (by == me), me, SEVERAL)
            else:
                self.refuse(language, does, "reads", places, by, me)

    def refuse(self, language, does: str, done: str, places, by, allowed: int) -> None:
        """A Race where another program has been."""
        other = by != NOBODY
        if np.count_nonzero(other):
            other &= (by != language.number) & (by != allowed)
        if np.count_nonzero(other):
            name = {SEVERAL: "several programs", ADDED: "an atomic sum"}.get(who := by[other][0])
            if name is None:
                name = f"program {tuple(map(int, np.unravel_index(who, language.grid)))}"
            raise Race(
                f"{does} element {places[other][0]:,} of {self.name}, which {name} {done}:"
                " programs run in any order, or at once."
            )

    def load(self, shape, inside, places, index, other) -> np.ndarray:
        """A tile of elements, with `other` where the mask is false."""
        found = self.flat[index].copy()  # which stays, if the kernel stores there
        if self.is_bf16:
            found = (found.astype(np.uint32) << 16).view(np.float32)
        if inside is None:
            return found if found.shape == shape else found.reshape(shape)[()]
        nothing = np.nan if found.dtype.kind == "f" else np.iinfo(found.dtype).min
        tile = np.full(shape, nothing if other is None else other, found.dtype)
        tile[inside] = found
        return tile[()]

    def store(self, shape, inside, places, index, value, added=False) -> None:
        """Write a tile's elements, rounded to the tensor's type."""
        if (value := np.asarray(value)).shape != shape:
            value = np.broadcast_to(value, shape)
        value = value.reshape(-1) if inside is None else value[inside]
        if len(value) and value.dtype.kind == "f" and self.is_whole:
            raise BadArgument(
                f"writes {value.dtype} to element {places[0]:,} of {self.name}, which is"
                f" {self.flat.dtype}."
            )
        distinct = index is not places or len(np.unique(places)) == len(places)
        if added and self.is_bf16:
            raise BadArgument(f"adds to {self.name}, which is bfloat16: sums want fp32.")
        if not (distinct or added):
            raise Race(f"writes an element of {self.name} twice at once: strides are wrong.")
        if added and not distinct:
            np.add.at(self.flat, index, value)
        elif added:
            self.flat[index] += value
        elif self.is_bf16:
            self.flat[index] = rounded_to_bf16(value).view(np.uint32) >> 16
        else:
            self.flat[index] = value


def rounded_to_bf16(x) -> np.ndarray:
    """fp32 numbers, each the nearest of bf16, ties to even."""
    x = np.asarray(x, np.float32)
    bits = x.view(np.uint32)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return np.where(np.isnan(x), x, nearest.view(np.float32))
