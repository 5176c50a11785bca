"""examples/pipeline.py, which the chapter prints, under torchrun."""

import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from shardlab.ranks import server

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "pipeline.py"
SECONDS = 150  # a limit for a hang


def under_torchrun(ranks):
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
    done = subprocess.run(
        [*torchrun, str(ranks), str(EXAMPLE)], capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def live(example, rank, ranks, port, printed):
    """What torchrun makes of a rank, in a process that has imported torch."""
    os.dup2(os.open(printed, os.O_WRONLY | os.O_APPEND), 1)
    here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "LOCAL_RANK": rank}
    here |= {"RANK": rank, "WORLD_SIZE": ranks, "OMP_NUM_THREADS": 1}
    os.environ.update({name: str(value) for name, value in here.items()})
    runpy.run_path(str(example), run_name="__main__")


def forked(ranks, folder):
    """The same lines from processes of the fork server, which start in no time."""
    printed = folder / f"{ranks} ranks"
    printed.touch()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server.start_fork_server()
    context = multiprocessing.get_context(server.start_method())
    processes = [
        context.Process(target=live, args=(EXAMPLE, rank, ranks, port, printed), daemon=True)
        for rank in range(ranks)
    ]
    with server.without_main():
        for process in processes:
            process.start()
    for process in processes:
        process.join(SECONDS)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert codes == [0] * ranks
    return printed.read_text().splitlines()


@pytest.mark.ranks
def test_as_many_ranks_as_you_like(tmp_path):
    """On 1, 2 and 4 ranks the same losses, digit for digit, and they fall.

    Must catch: a gradient that does not cross a cut; a loss that is not divided by the number of
    microbatches; a stage that is left out."""
    alone = forked(1, tmp_path)
    assert under_torchrun(2) == forked(4, tmp_path) == alone
    first, *_, last = (float(line.rpartition(" ")[2]) for line in alone)
    assert len(alone) == 5 and last < first / 2
