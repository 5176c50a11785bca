"""A rehearsal on GPUs that are not there, beside the same script on real ranks."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from forked_script import forked, rehearsing
from night import at_night
from refusals import begins
from told import from_told, told

from coursekit.__main__ import main
from coursekit.lab.virtual import CLOCK
from coursekit.machine.rehearsing import lines_of_errors
from coursekit.planner.speeds import PUBLISHED_SECONDS
from coursekit.topics.which_layout.referee import published_rows
from ranklab.measure.waits import Wait
from ranklab.rehearse import Rehearsal
from ranklab.rehearse.gpu import MadeStorage

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"
PATIENCE = 300

pytestmark = pytest.mark.ranks  # processes of their own


@pytest.fixture(scope="module")
def rehearse(stand_in):
    with rehearsing() as rehearse:
        yield rehearse


@pytest.fixture
def rehearsed(rehearse, tmp_path_factory):
    """rehearsed(script, ...): the answer as JSON, or the sentence of a script that cannot be
    rehearsed."""

    def answer(script, *options, gpus=4, fails=0, arguments=()):
        words = ["--gpus", f"{gpus}", "--json", *options, str(script), *arguments]
        run = rehearse(words, tmp_path_factory.mktemp("printed"))
        assert run.returncode == fails, run.stderr
        if fails == 2:
            return run.stderr.strip().splitlines()[-1]
        return json.loads(run.stdout[run.stdout.index("{\n") :])

    return answer


def for_real(script, ranks, folder):
    """The peaks of real ranks over gloo, in bytes."""
    said, _, codes = forked(HERE / "for_real.py", script, ranks=ranks, folder=folder)
    assert codes == [0] * ranks
    return [int(peak) for peak in re.findall("^peak (.*)", said, re.MULTILINE)]


# script -> bytes of the host, which a ledger of the CPU counts too: a dataset and its batch, the
# ranks of a mesh
OF_THE_HOST = {
    "ddp_scaled": lambda ranks: 0,
    "accumulated": lambda ranks: 512 * 32 * 8 + 8 * 32 * 8,
    "sharded": lambda ranks: 4 * ranks,
    "tensor_parallel": lambda ranks: 4 * ranks,
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("ranks", [2, *at_night(4)])
@pytest.mark.parametrize("name", OF_THE_HOST)
def test_the_bytes_are_those_of_real_ranks(rehearsed, name, ranks, tmp_path):
    """Must catch: tensors of the host that count as the GPU's; a line of the script that keeps the
    tensors of its callers; parameters that moved and left their first memory."""
    script = SCRIPTS / f"{name}.py"
    peaks, found = for_real(script, ranks, tmp_path), rehearsed(script, gpus=ranks)
    # gloo's threads may hold what was sent a moment longer, on any of the real ranks
    assert min(peaks) == found["peak_bytes"] + OF_THE_HOST[name](ranks)
    assert sum(found["bytes"].values()) == found["peak_bytes"]


@pytest.mark.nightly
def test_the_bytes_of_a_pipeline_are_those_of_real_ranks(rehearsed, tmp_path):
    """A ledger of the CPU counts a number and the meta device's shape, and gloo holds what rank 0
    sent, which PyTorch 2.15 lets go. Must catch: a message that is kept after all have waited for
    it; an output that is counted on the rank that receives it, too, or is kept where 2.15 lets it
    go."""
    from torch.distributed.pipelining import PipelineStage

    script, host = SCRIPTS / "staged.py", 4 + 4 * 8 * 64
    sent = 4 * 8 * 64 * (not hasattr(PipelineStage, "release_fwd_send_outputs"))
    found = rehearsed(script, "--rank", "0,1", gpus=2)["ranks"]
    first, last = (one["peak_bytes"] + host for one in found)
    assert sorted(for_real(script, 2, tmp_path)) == sorted([first + sent, last])


@pytest.mark.nightly
def test_each_rank_of_a_pipeline(rehearsed):
    """Must catch: a rank of a pipeline that is taken for rank 0; gradients that nobody receives."""
    first, last = (rehearsed(SCRIPTS / "staged.py", "--rank", rank) for rank in ("0", "3"))
    assert first["bytes"]["parameters"] == last["bytes"]["parameters"] == 3 * 4 * (64 * 64 + 64)
    lines = [one["lines"]["activations"] for one in (first, last)]
    assert lines == ["staged.py:19: schedule.step(x)", "staged.py:21: schedule.step(target=x)"]
    of_two = rehearsed(SCRIPTS / "staged.py", gpus=2)  # with fewer microbatches in flight
    assert first["bytes"]["activations"] > of_two["bytes"]["activations"]


def test_several_ranks_are_a_table(rehearse, rehearsed, tmp_path):
    """Must catch: the first rank's bytes for all; a rank that is left out; an option of a
    rehearsal that goes to the script in silence."""
    words = ["--gpus", "4", "--rank", "last, first,0", str(SCRIPTS / "staged.py")]
    run = rehearse([*words, "--seconds=3", "--lr", "1"], tmp_path)
    assert run.returncode == 0, run.stderr
    heading, names, last, first = run.stdout.strip().splitlines()[-4:]
    assert heading.startswith("staged.py, 2 ranks of 4 x H100 SXM 80GB: ")
    assert names.split() == ["rank", "peak", "in", "all", "seconds"]
    assert (last.split()[0], first.split()[0]) == ("3", "0") and last.split()[1] != first.split()[1]
    assert " fits, " in last and " free" in last
    said = [line for line in run.stderr.splitlines() if " stands after " in line]
    assert said == [f"--seconds=3 stands after {SCRIPTS / 'staged.py'}, which gets it."]
    (tmp_path / "script.py").write_text("raise SystemExit(3)")
    said = rehearsed(tmp_path / "script.py", "--rank", "middle,last", fails=2)
    assert said == "rank 2: script.py left with exit code 3"


def test_a_script_in_mixed_precision_is_taken_apart(rehearsed):
    """Must catch: a scaler that skips the step because a value without contents is 1; autocast by
    the CPU's lists; a read of the loss that costs nothing; a bucket that is an activation."""
    found = rehearsed(SCRIPTS / "ddp_scaled.py", gpus=64)
    parameters = 4 * (128 * 512 + 512 + 512 * 128 + 128)
    assert found["bytes"]["parameters"] == parameters
    assert found["bytes"]["optimizer"] == 2 * parameters + 4 * 4  # and its counters of steps
    assert found["bytes"]["buffers and messages"] == parameters + 8  # a bucket, and the scale
    assert found["lines"]["parameters"].startswith("ddp_scaled.py:17: model = nn.Sequential(")
    assert found["fits"] and found["seconds"] > 0
    assert found["nccl_bytes"] == 835_505_357 + 721_420_288  # of one group
    free = found["card_bytes"] - 855_441_408 - found["nccl_bytes"] - found["peak_bytes"]
    assert found["free_bytes"] == free
    assert found["peak_bytes"] < found["reserved_bytes"] < found["peak_bytes"] + (64 << 20)
    waits = [place for place, _, _ in found["host_waits"]]
    assert waits == ["ddp_scaled.py:31"]  # a fused optimizer asks the scaler on the GPU


SHORT = """
import torch
model = torch.nn.Linear(8, 8, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(x):
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return x
"""
REFUSED = told("test_rehearse::test_a_script_that_cannot_be_rehearsed", globals())


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case, text, sentence", REFUSED, ids=[case for case, *_ in REFUSED])
def test_a_script_that_cannot_be_rehearsed_gets_one_sentence(
    rehearsed, case, text, sentence, tmp_path
):
    """Must catch: a script without a step that hangs or prints zeros; a traceback; a line of
    PyTorch instead of the script's; a tensor of the host that runs on the GPU; the working folder
    of a script that is ended from outside."""
    where = tmp_path / "where"
    first = f"import os; open({str(where)!r}, 'w').write(os.getcwd()); "
    (tmp_path / "script.py").write_text(first + SHORT.lstrip() + text)
    seconds = "15" if "forever" in case else "200"
    said = rehearsed(tmp_path / "script.py", "--seconds", seconds, fails=2)
    assert said.startswith(sentence) or f"script.py {sentence}" in said, said
    assert not where.exists() or not Path(where.read_text()).exists()


@from_told("options, sentence")
def test_a_question_that_cannot_be(options, sentence, capsys):
    """Must catch: a traceback; a rank that does not exist; names of cards alone for a name that is
    nearly one."""
    assert main(["rehearse", "--gpus", "4", *options, str(SCRIPTS / "sharded.py")]) == 2
    assert begins(capsys.readouterr().err, sentence)


def test_a_script_leaves_its_folder_as_it_was(rehearsed, tmp_path, monkeypatch):
    """Must catch: a checkpoint of a rehearsal beside those of real runs, or instead of one; a log
    that grows, a file that is deleted; data that a script finds by a path from where it is started,
    and a rehearsal does not."""
    (tmp_path / "data.txt").write_text("8")
    (tmp_path / "script.py").write_text(
        SHORT.lstrip()
        + "width = int(open('data.txt').read())\nopen('log.txt', 'w').write('new')\n"
        + "import os; os.remove('kept/old.pt'); os.remove('data.txt')\n"
        + "open('kept/log.txt', 'a').write('new'); assert open('kept/log.txt').read() == 'oldnew'\n"
        + "torch.save(model.state_dict(), 'kept/last.pt')\n"
        + "while True: train(torch.ones(4, width).to('cuda'))\n"
    )
    (tmp_path / "kept").mkdir()
    for name in ("old.pt", "last.pt", "log.txt"):
        (tmp_path / "kept" / name).write_text("old")
    monkeypatch.chdir(tmp_path)
    found = rehearsed("script.py", "--synthetic", gpus=1)
    assert found["host_waits"] == [["script.py:14", *found["host_waits"][0][1:]]]  # pageable memory
    assert {path.name for path in tmp_path.iterdir()} == {"data.txt", "script.py", "kept"}
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        "last.pt",
        "log.txt",
        "old.pt",
    ]
    assert {path.read_text() for path in (tmp_path / "kept").iterdir()} == {"old"}


STARTED = """
import sys
def main(index, width):
    torch.distributed.init_process_group("nccl", rank=index, world_size=2)
    whole = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, width).to(index))
    sgd = torch.optim.Adam(whole.parameters())
    noise = torch.Generator(device="cuda").manual_seed(1)
    with torch.profiler.profile() as seen:
        while True:
            torch.cuda.nvtx.range_push("step")
            loss = whole(torch.randn(4, 8, device="cuda", generator=noise)).sum()
            loss.backward()
            sgd.step()
            print(f"{loss:.3f}", loss.detach().cpu().numpy() + 1)
            seen.step()
if __name__ == "__main__":
    torch.multiprocessing.spawn(main, args=(int(sys.argv[1]),), nprocs=2)
"""


def test_a_script_that_starts_its_own_ranks(rehearsed, tmp_path, monkeypatch):
    """Must catch: processes that nobody rehearses; a generator or a profiler of the GPU that stops
    a script; a module that `-m` cannot start; a loss in an f-string that stops it."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("WIDTH = 6")
    (tmp_path / "package" / "train.py").write_text(
        SHORT.lstrip() + "from . import WIDTH\n" + STARTED.lstrip()
    )
    monkeypatch.chdir(tmp_path)
    found = rehearsed("package.train", "-m", gpus=2, arguments=("6",))
    assert found["bytes"]["gradients"] == 4 * (8 * 6 + 6)
    assert [place for place, _, _ in found["host_waits"]] == ["train.py:22"]


FSDP1 = """
torch.distributed.init_process_group("nccl")
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
model = FSDP(model, use_orig_params=True)
optimizer = torch.optim.Adam(model.parameters())
while True: train(torch.ones(4, 8, device="cuda"))
"""
OF_RANKS = """
torch.distributed.init_process_group("nccl")
from torch.distributed.optim import ZeroRedundancyOptimizer
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam)
while True: train(torch.ones(4, 8, device="cuda"))
"""


@pytest.mark.parametrize(
    "text, less", [(FSDP1, set()), (OF_RANKS, {"fully_shard"})], ids=["FSDP1", "of optimizers"]
)
def test_what_is_sharded_is_not_proposed(rehearse, text, less, tmp_path, tmp_path_factory):
    """Must catch: a change that the script has made already."""
    (tmp_path / "script.py").write_text(SHORT.lstrip() + text.lstrip())
    words = ["--gpus", "4", str(tmp_path / "script.py")]
    said = rehearse(words, tmp_path_factory.mktemp("printed")).stdout
    assert {how for how in ("fully_shard", "shard the optimizer") if f"less: {how}" in said} == less


LOADED = """
from torch.utils.data import DataLoader, TensorDataset
compiled, data = torch.compile(model), TensorDataset(torch.randn(64, 1 << 15))
for (x,) in DataLoader(data, batch_size=16, num_workers=2, pin_memory=True):
    train(x.to("cuda", non_blocking=True)[:, :8])
"""


def test_a_loader_of_large_arrays(rehearsed, tmp_path):
    """Must catch: arrays so large that they have no contents, which cannot be pinned; a model that
    is compiled, of which nothing is said."""
    (tmp_path / "script.py").write_text(SHORT.lstrip() + LOADED.lstrip())
    found = rehearsed(tmp_path / "script.py", gpus=1)
    assert found["host_waits"] == [] and found["compiles"]


def test_the_updates_temporaries_are_not_the_batchs():
    """Must catch: half the microbatch told to free what the optimizer's step makes."""
    line = Wait("", "train.py", 1)
    made = [
        MadeStorage("", line, "update", 2, "temporaries"),
        MadeStorage("", line, "", 2, "activations"),
    ]
    assert Rehearsal(None, [(made[0], 8), (made[1], 4)], {}, 9, 9, False, False, True).of_batch == 4


# GPUs -> tokens a second on each, and GiB that the allocator held: torchtitan@31a17bf
# benchmarks/llama3_h100_202412_torchtitan.md, tables 1 and 3, eager and compiled. The script's
# wrapper, run_llama_train.sh of torchtitan@9dec370, lets segments grow
PUBLISHED = {8: ((5762, 82.4), (6667, 77.0)), 128: ((5605, 67.0), (6514, 62.0))}


@pytest.mark.nightly
@pytest.mark.parametrize("gpus", PUBLISHED)
def test_published_steps_of_fsdp2(stand_in, gpus):
    """Eager within 12 % and 5 %, compiled within 7 % and 5 %; nothing is fitted. Must catch: the
    memory of another H100; whole tensors of DTensor's shapes counted; segments that do not grow; a
    norm of one kernel, a gradient of silu of seven; a layer that is kept or recomputed whole."""
    run = subprocess.run(
        [sys.executable, HERE / "on_96_gb.py", f"{gpus}", SCRIPTS / "llama_fsdp2.py"],
        env=os.environ | dict(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"),
        stdout=subprocess.PIPE,
        text=True,
        timeout=2 * PATIENCE,
    )
    found = json.loads(run.stdout)
    for (speed, reserved), most in zip(PUBLISHED[gpus], (0.12, 0.07)):
        assert abs(found["seconds"] / (2 * 8192 / speed) - 1) <= most
        assert abs(found["reserved_bytes"] / (reserved * 2**30) - 1) <= 0.05
    assert found["peak_bytes"] < 0.9 * found["reserved_bytes"]


def test_the_printed_errors_are_the_recorded_ones():
    """Must catch: a clock that was fitted again, beside the error of the one before; steps of one
    node counted among those of several; fitted rows."""
    (file,) = (HERE.parents[1] / "measured").glob("virtual-*.json")
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    held = {name: [] for name in ("node", "nodes")}
    gpus = {row["name"]: int(row["gpus"]) for row in published_rows(PUBLISHED_SECONDS)}
    for row in rows:
        if row["name"] == "virtual.published" and not row["case"]["fitted"]:
            if "nanotron" in row["case"]["speed"]:
                continue  # as the printed line says
            many = gpus[row["case"]["run"]]
            assert 1 < many <= 8 or 16 <= many <= 1024
            held["node" if many <= 8 else "nodes"].append(row["value"])
    for name, ratios in held.items():
        assert CLOCK[f"{name}_lowest"] == math.floor(100 * min(ratios)) / 100
        assert CLOCK[f"{name}_highest"] == math.ceil(100 * max(ratios)) / 100
        assert CLOCK[f"{name}_steps"] == len(ratios)
    assert "48 published ones in one node" in lines_of_errors(1, 8)[1]
    assert "21 published ones on several nodes" in lines_of_errors(2, 16)[1]
    assert len(lines_of_errors(1, 1)) == 1
