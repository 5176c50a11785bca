"""A rehearsal in a build with CUDA, which asks for a driver where a build without CUDA does not."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "scripts" / "accumulated.py"
# such a build, on a machine without a driver: what asks for one raises
WITH_CUDA = f"""
import multiprocessing
import torch
import torch.distributed as dist

def driver(*asked):
    raise RuntimeError("CUDA driver version is insufficient for CUDA runtime version")

torch.backends.cuda.is_built = lambda: True
dist.Reducer.prepare_for_forward = driver
torch._subclasses.fake_tensor.init_gpu_context = driver
from coursekit.__main__ import main
from coursekit.machine import rehearsing
rehearsing.get_context = lambda _: multiprocessing.get_context("fork")  # it takes this build along
raise SystemExit(main(["rehearse", "--gpus", "4", {str(SCRIPT)!r}]))
"""


@pytest.mark.ranks
def test_a_build_with_cuda_and_no_driver():
    """Must catch: a first tensor on a real GPU; timers of DDP's reducer, which a build with CUDA
    has: PyTorch 2.11 of PyPI ended with a segmentation fault."""
    run = subprocess.run([sys.executable, "-c", WITH_CUDA], capture_output=True, text=True)
    assert run.returncode == 0 and "the peak" in run.stdout, run.stderr
