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

REGISTERED = """
#include <ATen/ATen.h>
#include <torch/library.h>
at::Tensor own(const at::Tensor& given) {
    auto x = given.contiguous();
    auto out = at::empty(x.sizes().slice(0, x.dim() - 1), x.options());
    mean_squares(x.data_ptr<float>(), out.data_ptr<float>(), out.numel(), x.size(-1));
    return out;
}
TORCH_LIBRARY(lab13_cpp, m) { m.def("mean_squares", own); }"""


def in_cpp(x: torch.Tensor) -> torch.Tensor | None:
    """MEAN_SQUARES by a binding that registers itself; None where there is no compiler or ninja."""
    from torch.utils.cpp_extension import is_ninja_available, load_inline  # a second of imports

    if not (cpp_compiler() and is_ninja_available()):
        return None
    if not hasattr(torch.ops.lab13_cpp, "mean_squares"):
        given = MEAN_SQUARES + REGISTERED
        made = dict(is_python_module=False, no_implicit_headers=True)
        # a stop or a kill leaves a lock, or a build that counts as done, in the usual folder
        load_inline("lab13_cpp", given, build_directory=mkdtemp(), **made)
    return torch.ops.lab13_cpp.mean_squares(x)


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


def checked(operator, x: torch.Tensor) -> dict[str, str]:
    """The answers of PyTorch's checks to an operator of a single tensor."""
    found = {}
    for check, given in ((torch.library.opcheck, (x,)), (torch.autograd.gradcheck, x)):
        try:
            check(operator, given)
            found[check.__name__] = "passes"
        except Exception:  # of many types, each with its own report
            found[check.__name__] = "finds it"
    return found


def address(tensor: torch.Tensor) -> ctypes.c_void_p:
    """Where a tensor begins in memory, as C takes it."""
    return ctypes.c_void_p(tensor.data_ptr())
