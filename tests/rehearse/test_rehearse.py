"""A rehearsal on GPUs that are not there, beside the same script on real ranks."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"
PATIENCE = 300


def rehearsed(script, *options, gpus=4, fails=0):
    """The answer as JSON, or the sentence of a script that cannot be rehearsed."""
    command = [sys.executable, "-m", "shardlab", "rehearse", "--gpus", f"{gpus}", "--json"]
    run = subprocess.run(
        [*command, *options, str(script)], capture_output=True, text=True, timeout=PATIENCE
    )
    assert run.returncode == fails, run.stderr
    if fails == 2:
        return run.stderr.strip().splitlines()[-1]
    return json.loads(run.stdout[run.stdout.index("{\n") :])


def for_real(script, ranks):
    """The peaks of real ranks over gloo, in bytes."""
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    started = [
        subprocess.Popen(
            [sys.executable, str(HERE / "for_real.py"), str(script)],
            env=os.environ
            | dict(RANK=f"{rank}", LOCAL_RANK=f"{rank}", WORLD_SIZE=f"{ranks}")
            | dict(MASTER_ADDR="localhost", MASTER_PORT=f"{port}", CUDA_VISIBLE_DEVICES=""),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(ranks)
    ]
    return [int(one.communicate(timeout=PATIENCE)[0].splitlines()[-1]) for one in started]


# script -> bytes of the host, which a ledger of the CPU counts too: a dataset and its batch, the
# ranks of a mesh
OF_THE_HOST = {
    "ddp_scaled": lambda ranks: 0,
    "accumulated": lambda ranks: 512 * 32 * 8 + 8 * 32 * 8,
    "sharded": lambda ranks: 4 * ranks,
    "tensor_parallel": lambda ranks: 4 * ranks,
}


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", OF_THE_HOST)
def test_the_bytes_are_those_of_real_ranks(name, ranks):
    """Must catch: tensors of the host that count as the GPU's; a line of the script that keeps the
    tensors of its callers; parameters that moved and left their first memory."""
    script = SCRIPTS / f"{name}.py"
    peaks, found = for_real(script, ranks), rehearsed(script, gpus=ranks)
    assert set(peaks) == {found["peak_bytes"] + OF_THE_HOST[name](ranks)}
    assert sum(found["bytes"].values()) == found["peak_bytes"]


@pytest.mark.ranks
def test_each_rank_of_a_pipeline():
    """Must catch: a rank of a pipeline that is taken for rank 0; gradients that nobody receives."""
    first, last = (rehearsed(SCRIPTS / "staged.py", "--rank", rank) for rank in ("0", "3"))
    assert first["bytes"]["parameters"] == last["bytes"]["parameters"] == 3 * 4 * (64 * 64 + 64)
    assert first["bytes"]["activations"] > last["bytes"]["activations"]  # of microbatches in flight


def test_a_script_in_mixed_precision_is_taken_apart():
    """Must catch: a scaler that skips the step because a value without contents is 1; autocast by
    the CPU's lists; a read of the loss that costs nothing; a bucket that is an activation."""
    found = rehearsed(SCRIPTS / "ddp_scaled.py", gpus=64)
    parameters = 4 * (128 * 512 + 512 + 512 * 128 + 128)
    assert found["bytes"]["parameters"] == parameters
    assert found["bytes"]["optimizer"] == 2 * parameters + 4 * 4  # and its counters of steps
    assert found["bytes"]["buffers and messages"] == parameters + 8  # a bucket, and the scale
    assert found["lines"]["parameters"].startswith("ddp_scaled.py:17: model = nn.Sequential(")
    assert found["fits"] and found["seconds"] > 0
    waits = [place for place, _, _ in found["host_waits"]]
    assert waits == ["ddp_scaled.py:31"]  # a fused optimizer asks the scaler on the GPU
