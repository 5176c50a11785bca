"""Rehearsals in other builds of PyTorch: one with CUDA, which asks for a driver where a build
without CUDA does not, and one too old for a stand-in."""

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from forked_script import rehearsing

from ranklab.rehearse import stand_in

SCRIPT = Path(__file__).parent / "scripts" / "accumulated.py"


def driver(*asked):
    raise RuntimeError("CUDA driver version is insufficient for CUDA runtime version")


def with_cuda():
    """Make this process such a build, on a machine without a driver: what asks for one raises."""
    torch.backends.cuda.is_built = lambda: True
    dist.Reducer.prepare_for_forward = driver
    torch._subclasses.fake_tensor.init_gpu_context = driver


@pytest.mark.ranks
@pytest.mark.usefixtures("stand_in")
def test_a_build_with_cuda_and_no_driver(tmp_path):
    """Must catch: a first tensor on a real GPU; timers of DDP's reducer, which a build with CUDA
    has: PyTorch 2.11 of PyPI ended with a segmentation fault."""
    with rehearsing(with_cuda) as rehearse:
        run = rehearse(["--gpus", "4", str(SCRIPT)], tmp_path)
    assert run.returncode == 0 and "the peak" in run.stdout, run.stderr


def too_old():
    """Make this process PyTorch 2.8."""
    stand_in.TAKES_ONE = False


@pytest.mark.ranks
def test_a_build_that_takes_no_stand_in(tmp_path):
    """Must catch: a traceback; a script that begins on GPUs that nothing stands in for."""
    with rehearsing(too_old) as rehearse:
        run = rehearse(["--gpus", "4", str(SCRIPT)], tmp_path)
    named = f"PyTorch {torch.__version__} on {sys.platform}"
    said = f"{named} takes no stand-in for CUDA: use 2.11 or later on Linux or macOS."
    assert (run.returncode, run.stdout, run.stderr.splitlines()[1:]) == (2, "", [said])
