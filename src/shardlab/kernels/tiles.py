"""A small tile language: it runs the source of a Triton kernel on the CPU, one program at a time.

    def add(x, y, out, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)

    moved = run(add, (cdiv(1000, 64),), x, y, out, 1000, BLOCK=64)  # moved.read, moved.written

A kernel finds `tl` among the names of its module, under Triton too. `run` gives the kernel a `tl`
of its own, which knows the program and counts bytes; memory (watched.py) finds missing masks and
races. launch.py lets Triton compile the same source.
"""

import itertools
from types import FunctionType, SimpleNamespace

import numpy as np
import torch

from .watched import BadArgument, Memory, OutOfBounds, Race, rounded_to_bf16


def cdiv(a: int, b: int) -> int:
    """Tiles of b elements that cover a elements."""
    return -(-a // b)


class Pointer:
    """Places in a tensor's memory: one, or a tile of them."""

    def __init__(self, memory: Memory, at=0):
        self.memory, self.at = memory, at

    @property
    def dtype(self):
        return SimpleNamespace(element_ty=self.memory.element_type)

    def __add__(self, offset):
        if (kind := np.asarray(offset).dtype).kind not in "iu":
            raise BadArgument(f"moves {self.memory.name} by {kind}: offsets are whole numbers.")
        return Pointer(self.memory, self.at + offset)


class tl:
    """The language. The class serves a kernel's signature, an instance the kernel."""

    constexpr = type("constexpr", (), {})
    float16, bfloat16, float32, float64 = np.float16, "bfloat16", np.float32, np.float64
    int16, int32, int64 = np.int16, np.int32, np.int64

    def __init__(self, grid: tuple[int, ...]):
        self.grid, self.read, self.written = (*grid, 1, 1)[:3], 0, 0  # bytes
        self.number, self.program = 0, (0, 0, 0)  # of the program that runs

    def program_id(self, axis: int):
        return self.program[axis]

    def num_programs(self, axis: int):
        return self.grid[axis]

    def load(self, pointer, mask=None, other=None):
        """Elements, and `other` where the mask is false. Without `other` NaN is there, because
        Triton promises nothing."""
        return pointer.memory.load(*pointer.memory.touch(self, "reads", pointer.at, mask), other)

    def store(self, pointer, value, mask=None):
        pointer.memory.store(*pointer.memory.touch(self, "writes", pointer.at, mask), value)

    def atomic_add(self, pointer, value, mask=None):
        """Adds to elements that other programs add to as well, in any order."""
        tile = pointer.memory.touch(self, "adds to", pointer.at, mask)
        pointer.memory.store(*tile, value, added=True)

    @staticmethod
    def arange(start: int, end: int):
        if (size := end - start) < 1 or size & (size - 1):
            raise BadArgument(f"asks for tl.arange({start}, {end}): blocks have powers of two.")
        return np.arange(start, end, dtype=np.int32)

    @staticmethod
    def cast(x, dtype):
        if dtype == "bfloat16":
            return rounded_to_bf16(x)
        return np.asarray(x).astype(dtype, copy=False)[()]

    @staticmethod
    def dot(a, b, acc=None, input_precision=None):
        """Sums in fp32 at least; `input_precision` asks a GPU for more bits than it would use."""
        product = np.matmul(a, b, dtype=np.promote_types(a.dtype, np.float32))
        return product if acc is None else product + acc

    @staticmethod
    def where(condition, yes, no):
        literals = isinstance(yes, float) and isinstance(no, float)
        return np.where(condition, np.float32(yes) if literals else yes, no)

    cdiv, zeros, full = map(staticmethod, (cdiv, np.zeros, np.full))
    exp, log, sqrt, sum, max = map(staticmethod, (np.exp, np.log, np.sqrt, np.sum, np.max))
    maximum, minimum, trans = map(staticmethod, (np.maximum, np.minimum, np.transpose))


def with_language(kernel: FunctionType, language) -> FunctionType:
    """The kernel with another `tl`."""
    names = {**kernel.__globals__, "tl": language}
    other = FunctionType(kernel.__code__, names, kernel.__name__, kernel.__defaults__)
    other.__annotations__, other.__module__ = kernel.__annotations__, kernel.__module__
    return other


def run(kernel: FunctionType, grid: tuple[int, ...], *arguments, **constants) -> tl:
    """Run each program of a grid, on CPU tensors. Returns what has counted: .read and .written
    are bytes. A constant that is a type of PyTorch becomes the language's."""
    names = kernel.__code__.co_varnames[: kernel.__code__.co_argcount]
    given = dict(zip(names, arguments)) | constants
    numbers, storages = {value for value in given.values() if isinstance(value, int)}, {}
    for name, value in given.items():
        if isinstance(value, torch.Tensor):
            given[name] = Pointer(Memory(name, value, numbers, storages))
        elif isinstance(value, torch.dtype):
            given[name] = getattr(tl, str(value).removeprefix("torch."))
    language = run_programs(kernel, grid, given)
    if any(storage.is_read and storage.before is not None for storage in storages.values()):
        for storage in storages.values():
            storage.begin_again()  # and now note who reads
        language = run_programs(kernel, grid, given)
    return language


def run_programs(kernel: FunctionType, grid: tuple[int, ...], given: dict) -> tl:
    language = tl(grid)
    sizes = (value.memory.size for value in given.values() if isinstance(value, Pointer))
    language.row = np.arange(max(sizes, default=0), dtype=np.int32)  # places without a gap
    kernel = with_language(kernel, language)
    with np.errstate(all="ignore"):
        programs = itertools.product(*map(range, language.grid))
        for language.number, language.program in enumerate(programs):
            try:
                kernel(**given)
            except (OutOfBounds, Race, BadArgument) as error:
                error.args = (f"program {language.program} {error}",)
                raise
    return language
