"""Compiles device.cpp into the build folder: 10 to 20 seconds, once for each PyTorch and each text
of the file."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("device.cpp")
FOLDER = Path(__file__).resolve().parents[3] / "build" / "pretended_gpu"
COMPILERS = ("g++", "clang++", "c++")
WRITTEN_FOR = ("2.13",)  # what device.cpp, cuda.py and nccl.py reach into changes with each release


class CannotBuild(Exception):
    """Why there are no pretended GPUs: one sentence. `excused` where nothing can be done about it:
    with another PyTorch than these files were written for."""

    def __init__(self, sentence: str, excused: bool = False):
        super().__init__(sentence)
        self.excused = excused


def library() -> Path:
    """The compiled device for this Python's PyTorch. Several processes may ask at once: the first
    one compiles, the others wait. Raises CannotBuild."""
    import torch

    if sys.platform != "linux":
        raise CannotBuild("pretended GPUs need Linux.")
    if torch.version.cuda and not os.environ.get("PRETENDED_GPUS"):  # else pretended itself
        raise CannotBuild(
            "pretended GPUs need PyTorch's CPU build, and this one is for CUDA"
            f' {torch.version.cuda}: README.md, "On a laptop", says how to get the other.',
            excused=True,
        )
    if not torch.__version__.startswith(WRITTEN_FOR):
        raise CannotBuild(
            f"pretended GPUs are written for torch {', '.join(WRITTEN_FOR)}, and this is"
            f" {torch.__version__}.",
            excused=True,
        )
    torch_folder = Path(torch.__file__).parent
    said = (torch.__version__, str(torch_folder), SOURCE.read_text(encoding="utf-8"))
    made = FOLDER / f"{hashlib.sha256(repr(said).encode()).hexdigest()[:16]}.so"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with open(FOLDER / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            compile_device(torch_folder, torch.__version__, torch.compiled_with_cxx11_abi(), made)
    return made


def compile_device(torch_folder: Path, version: str, cxx11_abi: bool, made: Path):
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise CannotBuild(
            "pretended GPUs need a C++ compiler: on Debian and Ubuntu, apt-get install g++."
        )
    unfinished = made.with_suffix(f".{os.getpid()}")
    command = [
        compiler,
        *("-std=c++20", "-O0", "-fPIC", "-shared", f"-D_GLIBCXX_USE_CXX11_ABI={int(cxx11_abi)}"),
        f"-I{torch_folder / 'include'}",
        f"-I{torch_folder / 'include/torch/csrc/api/include'}",
        str(SOURCE),
        *(f"-L{torch_folder / 'lib'}", f"-Wl,-rpath,{torch_folder / 'lib'}"),
        *("-ltorch", "-ltorch_cpu", "-lc10", "-o", str(unfinished)),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line] or [done.stderr]
        raise CannotBuild(f"device.cpp does not compile with torch {version}: {errors[0]}")
    unfinished.replace(made)  # whole or absent, whatever interrupts the compiler
