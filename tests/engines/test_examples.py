"""The scripts of "Your first eight ranks", on ranks of the fork server, which spare the imports; at
night by torchrun, as the page says, on one machine and on two. And the
script of a pipeline."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from functools import partial

import pytest
from forked_script import forked
from night import at_night
from pages import ROOT

pytestmark = pytest.mark.ranks
BY_TORCHRUN = pytest.param(True, marks=pytest.mark.nightly)
WAYS = pytest.mark.parametrize("by_torchrun", [False, BY_TORCHRUN])
SECONDS = 200  # a limit for a hang: torchrun starts in seconds


def torchrun(script, *arguments, ranks=2, more=(), wait=True):
    """The output of a command of the page."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), *more]
    process = subprocess.Popen(
        [*command, str(ROOT / "examples" / script), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        start_new_session=True,
    )
    return output_of(process) if wait else process


def output_of(process):
    try:
        printed, _ = process.communicate(timeout=SECONDS)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, printed
    return printed


def losses(printed):
    found = re.findall(r"step (\d+) loss ([\d.]+)", printed)
    return {int(step): float(loss) for step, loss in found}


def in_forks(folder, script, *arguments, ranks=1, nodes=1):
    """The output of the script without torchrun."""
    script = ROOT / "examples" / script
    printed, errors, codes = forked(script, *arguments, ranks=ranks, folder=folder, nodes=nodes)
    assert codes == [0] * ranks, errors
    return printed


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one process")
    return losses(in_forks(folder, "train_ddp.py", "--steps", 4))


@WAYS
def test_hello(by_torchrun, tmp_path):
    """Must catch: a rank that says nothing; an all-reduce that one rank leaves out."""
    start = torchrun if by_torchrun else partial(in_forks, tmp_path)
    printed = start("hello.py", ranks=3)
    assert sorted(re.findall(r"rank (\d) of 3", printed)) == ["0", "1", "2"]
    assert "all-reduce: [3.0, 3.0, 3.0, 3.0]" in printed


@pytest.mark.parametrize("script", ["train_ddp.py", "train_fsdp2.py"])
def test_a_run_that_goes_on(script, one_process, tmp_path):
    """Must catch: averages over microbatches or ranks that are sums; no_sync in the last
    microbatch; a sampler that begins anew; optimizer states that are not loaded."""
    saved = ("--save", tmp_path / "save")
    first = losses(in_forks(tmp_path, script, "--steps", 2, *saved, ranks=2))
    second = losses(in_forks(tmp_path, script, "--steps", 4, *saved))
    assert list(first) == [1, 2] and list(second) == [3, 4]
    assert first | second == pytest.approx(one_process, abs=2e-5)


@WAYS
def test_two_nodes(by_torchrun, one_process, tmp_path):
    """Must catch: a global rank taken for the number of a GPU or of a window."""
    script = ("train_ddp.py", "--steps", 2)
    if by_torchrun:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            meeting = f"127.0.0.1:{free.getsockname()[1]}"
        more = ("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", meeting)
        nodes = [torchrun(*script, ranks=1, more=more, wait=False) for _ in range(2)]
        printed = "".join([output_of(node) for node in nodes])
    else:
        printed = in_forks(tmp_path, *script, ranks=2, nodes=2)
    assert losses(printed) == pytest.approx({1: one_process[1], 2: one_process[2]}, abs=2e-5)


def test_bad_input(tmp_path):
    """Must catch: a batch that ranks cannot share, cut without a word."""
    script = ROOT / "examples" / "train_ddp.py"
    _, errors, codes = forked(script, "--batch", 6, ranks=2, folder=tmp_path)
    assert codes == [1, 1]
    assert "--batch 6 is not a multiple of 2 ranks x 2." in errors


# --- examples/pipeline.py, which a chapter prints -------------------------------------------------

EXAMPLE = ROOT / "examples" / "pipeline.py"


def lines(ranks, folder):
    printed, errors, codes = forked(EXAMPLE, ranks=ranks, folder=folder)
    assert codes == [0] * ranks, errors
    return printed.splitlines()


@pytest.mark.parametrize("ranks", [2, *at_night(4)])
def test_as_many_ranks_as_you_like(tmp_path, ranks):
    """Must catch: a gradient that does not cross a cut; a loss that is not divided by the number of
    microbatches; a stage that is left out."""
    alone = lines(1, tmp_path)
    assert lines(ranks, tmp_path) == alone
    first, *_, last = (float(line.rpartition(" ")[2]) for line in alone)
    assert len(alone) == 5 and last < first / 2
