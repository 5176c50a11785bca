"""C functions from source, for lab 13: a compiler if there is one, a library, an address."""

import ctypes
import shutil
import subprocess
from pathlib import Path
from tempfile import mkdtemp

import torch

MEAN_SQUARES = """
extern "C" void mean_squares(const float* x, float* out, long rows, long columns) {
    for (long r = 0; r < rows; r++) {
        float sum = 0;
        for (long c = 0; c < columns; c++) sum += x[r * columns + c] * x[r * columns + c];
        out[r] = sum / columns;
    }
}"""


def cpp_compiler() -> str | None:
    """The path of a C++ compiler, or None."""
    return shutil.which("g++") or shutil.which("clang++")


def c_function(source: str, name: str):
    """A function of C source as Python calls it, compiled for this machine."""
    folder = Path(mkdtemp())
    (folder / "own.cpp").write_text(source, encoding="utf-8")
    built = [cpp_compiler(), "-O3", "-shared", "-fPIC", "-o", folder / "own.so", folder / "own.cpp"]
    subprocess.run(built, check=True)
    return getattr(ctypes.CDLL(str(folder / "own.so")), name)


def address(tensor: torch.Tensor) -> ctypes.c_void_p:
    """Where a tensor begins in memory, as C takes it."""
    return ctypes.c_void_p(tensor.data_ptr())
