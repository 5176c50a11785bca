"""GPUs that are pretended, for machines without one: PyTorch's CPU build with a CUDA device and
with NCCL's rules between ranks.

    python tests/pretended_gpu/run.py 4 python my_script.py      # my_script.py sees 4 GPUs

device.cpp     the CUDA device: memory of the host, operators that run the CPU's kernels, a count of
               everything that makes the host wait
build.py       compiles device.cpp, once for each PyTorch
cuda.py        torch.cuda for that device: streams, events, memory, random numbers
nccl.py        the backend "nccl" over gloo, with NCCL's rules: whatever would hang or fail on NCCL
               is an error here

`environment(n)` gives a process n GPUs, and each process that this one starts, fork servers
included: sitecustomize.py, on the process's PYTHONPATH, calls `pretend_when_torch_comes`. On a
machine with real GPUs the same cases run on these; tests of the pretence itself are skipped.
"""

import ctypes
import importlib.abc
import importlib.util
import os
import sys
from pathlib import Path

GPUS, LIBRARY = "PRETENDED_GPUS", "PRETENDED_GPU_LIBRARY"  # device.cpp reads the first one too
ON_PATH = Path(__file__).resolve().parents[1]


def environment(gpus: int) -> dict[str, str]:
    """This process's environment with so many GPUs. Where there are real ones nothing is pretended,
    and ranks share them if they are fewer. Raises build.CannotBuild."""
    path = [str(ON_PATH), *filter(None, [os.environ.get("PYTHONPATH")])]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    if are_real():
        return found
    from .build import library

    return {**found, GPUS: str(gpus), LIBRARY: str(library())}


def are_real() -> bool:
    """Whether this machine has GPUs that are not pretended."""
    import torch

    return not os.environ.get(GPUS) and torch.cuda.is_available()


def pretend_when_torch_comes():
    """The GPUs of the environment are there as soon as this process imports torch. A process that
    does without torch, such as multiprocessing's resource tracker, is as fast as ever."""
    if int(os.environ.get(GPUS, 0)):
        sys.meta_path.insert(0, TorchWithGpus())


class TorchWithGpus(importlib.abc.MetaPathFinder):
    """Finds torch where it is, and adds the GPUs when it is imported."""

    def find_spec(self, name, path, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        found = importlib.util.find_spec("torch")
        if found is not None:
            import_torch = found.loader.exec_module
            found.loader.exec_module = lambda module: self.exec_module(module, import_torch)
        return found

    def exec_module(self, module, import_torch):
        # PyTorch asks once for the device's hooks and remembers the answer: the device comes first
        library = ctypes.CDLL(os.environ[LIBRARY], mode=ctypes.RTLD_GLOBAL)
        import_torch(module)
        from . import cuda, nccl

        cuda.install(library)
        nccl.install()
