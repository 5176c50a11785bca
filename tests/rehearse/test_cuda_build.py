"""A rehearsal in a build with CUDA, which asks for a driver where a build without CUDA does not."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from forked_script import rehearsing

SCRIPT = Path(__file__).parent / "scripts" / "accumulated.py"


def driver(*asked):
    raise RuntimeError("CUDA driver version is insufficient for CUDA runtime version")


def with_cuda():
    """Make this process such a build, on a machine without a driver: what asks for one raises."""
    torch.backends.cuda.is_built = lambda: True
    dist.Reducer.prepare_for_forward = driver
    torch._subclasses.fake_tensor.init_gpu_context = driver


@pytest.mark.ranks
def test_a_build_with_cuda_and_no_driver(tmp_path):
    """Must catch: a first tensor on a real GPU; timers of DDP's reducer, which a build with CUDA
    has: PyTorch 2.11 of PyPI ended with a segmentation fault."""
    with rehearsing(with_cuda) as rehearse:
        run = rehearse(["--gpus", "4", str(SCRIPT)], tmp_path)
    assert run.returncode == 0 and "the peak" in run.stdout, run.stderr
