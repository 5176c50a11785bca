"""examples/pipeline.py, which the chapter prints, under torchrun."""

import subprocess
import sys
from pathlib import Path

import pytest
from forked_script import forked

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "pipeline.py"
SECONDS = 150  # a limit for a hang


def under_torchrun(ranks):
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
    done = subprocess.run(
        [*torchrun, str(ranks), str(EXAMPLE)], capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def in_forks(ranks, folder):
    """The lines from processes of the fork server, which start in no time."""
    printed, errors, codes = forked(EXAMPLE, ranks=ranks, folder=folder)
    assert codes == [0] * ranks, errors
    return printed.splitlines()


@pytest.mark.ranks
def test_as_many_ranks_as_you_like(tmp_path):
    """On 1, 2 and 4 ranks the same losses, digit for digit, and they fall.

    Must catch: a gradient that does not cross a cut; a loss that is not divided by the number of
    microbatches; a stage that is left out."""
    alone = in_forks(1, tmp_path)
    assert under_torchrun(2) == in_forks(4, tmp_path) == alone
    first, *_, last = (float(line.rpartition(" ")[2]) for line in alone)
    assert len(alone) == 5 and last < first / 2
