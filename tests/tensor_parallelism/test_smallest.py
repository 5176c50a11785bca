"""The smallest program of the chapter, as a reader runs it."""

import os
import subprocess
import sys

import pytest

from coursekit.topics.tensor_parallelism import smallest

TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d")


@pytest.mark.slow
def test_it_runs_under_torchrun():
    """The program compares itself with the plain MLP, in float64.

    Must catch: a sum left out forward or backward, a bias added before the sum."""
    command = [sys.executable, *TORCHRUN, "--rdzv-endpoint=localhost:0", smallest.__file__]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for rank in (0, 1):
        assert f"rank {rank} of 2: output and gradient are the plain MLP's" in done.stdout
