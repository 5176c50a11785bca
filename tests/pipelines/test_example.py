"""examples/pipeline.py, which the chapter prints, under torchrun."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "pipeline.py"


def losses(ranks):
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
    done = subprocess.run(
        [*torchrun, str(ranks), str(EXAMPLE)], capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.ranks
def test_as_many_ranks_as_you_like():
    """On 1, 2 and 4 ranks the same losses, digit for digit, and they fall.

    Must catch: a gradient that does not cross a cut; a loss that is not divided by the number of
    microbatches; a stage that is left out."""
    alone = losses(1)
    assert losses(2) == losses(4) == alone
    first, *_, last = (float(line.rpartition(" ")[2]) for line in alone)
    assert len(alone) == 5 and last < first / 2
