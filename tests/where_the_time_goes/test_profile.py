"""The budget of a step: of any script, and of a trace of a GPU."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from told import from_told
from torch.profiler import ProfilerActivity, profile, schedule

from coursekit.__main__ import main
from ranklab.measure.chrome_trace import from_chrome
from ranklab.measure.profile import NoStep, ProfilerInUse, StepBudget, profiled_steps
from ranklab.measure.slim_trace import SlimTrace, covered

SCRIPT = """
import sys, torch
from torch.utils.data import DataLoader
assert sys.argv[1:] == ["--lr", "1"]
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in DataLoader(torch.ones(400, 8), batch_size=4):
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.0f}")
"""


def test_a_script_is_taken_apart(tmp_path, capfd, monkeypatch):
    """Must catch: a script that runs to its end; its arguments lost; a wait without its line; parts
    that do not add up to the step; a trace that is not the profiler's."""
    monkeypatch.setenv("KINETO_LOG_LEVEL", "99")
    script, trace = tmp_path / "train.py", tmp_path / "trace.json"
    script.write_text(SCRIPT)
    assert main(["profile", "--trace", str(trace), str(script), "--lr", "1"]) == 0
    said = capfd.readouterr().out.splitlines()
    assert 8 < sum(line.startswith("loss") for line in said) < 20  # of 100
    rows = {line[:34].strip(): float(line[34:44]) for line in said if " ms" in line}
    parts = [name for name in rows if name not in list(rows)[-3:]]
    assert {"operators", "Python between operators"} <= set(parts)
    assert sum(rows[name] for name in parts) == pytest.approx(
        rows["a step under the profiler"], abs=0.03
    )
    # of the forward 2 * 4 * 8 * 8, of backward the weight's gradient alone: x needs none
    assert any(line.startswith("1.02e+03 operations") for line in said)
    assert any("1 x .item()  train.py:11: print(f" in line for line in said)
    assert {"aten::addmm"} <= {e.get("name") for e in json.loads(trace.read_text())["traceEvents"]}


@from_told("source, sentence")
def test_a_script_that_cannot_be_taken_apart_gets_a_sentence(tmp_path, capsys, source, sentence):
    """Must catch: a traceback; exit code 0."""
    script = tmp_path / "train.py"
    if source is not None:
        script.write_text(source)
    assert main(["profile", str(script)]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1


@pytest.mark.parametrize("trace", [".", "none/step.json"])
def test_a_trace_that_cannot_be_written_is_refused_before_the_script_runs(
    tmp_path, monkeypatch, capsys, trace
):
    """Must catch: a traceback once the script has run, and its budget lost."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("1 / 0")
    assert main(["profile", "--trace", trace, "train.py"]) == 2
    said = capsys.readouterr().err
    assert said == f"--trace {trace}: name a file in a folder that is there.\n"


def test_options_behind_the_script_are_the_scripts(tmp_path, capsys):
    """Must catch: --trace handed to the script without a word; a script's own --steps refused."""
    script = tmp_path / "train.py"
    script.write_text("import sys; print(sys.argv[1:])")
    assert main(["profile", str(script), "--lr", "1", "--trace=x"]) == 2  # it takes no step
    said = capsys.readouterr()
    assert said.out == "['--lr', '1', '--trace=x']\n"
    line = f"--trace=x goes to {script}: options of profile are before the script.\n"
    assert said.err.startswith(line)
    with pytest.raises(SystemExit):
        main(["profile", "--help"])
    assert "profile [OPTION ...] SCRIPT [ARGUMENT ...]" in capsys.readouterr().out


def test_a_step_without_the_profiler_has_its_share_of_a_slow_batch():
    """Must catch: a median, which is that of the steps that did not wait."""
    budget = StepBudget()
    budget.plain = [(1, 1), (31, 1), (1, 1), (31, 1), (1, 1)]
    assert budget.seconds == 13 and budget.cpu_seconds_of_step == 1


def test_a_loop_that_ends_early_leaves_nothing_behind():
    """Must catch: a mode or the profiler that goes on after too few steps."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    for steps in (2, 3, 4, 5):
        with pytest.raises(NoStep), profiled_steps(steps=2, warm_up=0) as found:
            for _ in range(steps):
                optimizer.step()
        total = found.waits.total(), found.flops.total
        model(torch.ones(1, 2)).sum().item()
        assert (found.waits.total(), found.flops.total) == total


def steps(count, after=lambda: None):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    for _ in range(count):
        optimizer.step()
        after()


def test_a_second_profiler_is_refused():
    """Must catch: one within the other, in this thread or another one, or within PyTorch's own,
    which ends Python; a refusal that leaves the lock taken, or its modes entered."""
    few = dict(steps=1, warm_up=0)
    with ThreadPoolExecutor(1) as thread, profiled_steps(**few):
        for run in (lambda work: work(), lambda work: thread.submit(work).result()):
            with pytest.raises(ProfilerInUse, match="at work in this process: let it end"):
                run(profiled_steps(**few).__enter__)
        steps(4)
    for inside in (False, True):
        first, second = (profiled_steps(**few), profile(activities=[ProfilerActivity.CPU]))[
            :: 1 if inside else -1
        ]
        with pytest.raises(ProfilerInUse, match="torch.profiler is at work already"):
            with first, second:
                steps(4)
    with profiled_steps(**few) as found:
        steps(4)
    assert found.wanted == found.ended == 4


@pytest.mark.parametrize("wait, warm_up", [(0, 9), (2, 1), (3, 1), (3, 9), (4, 1), (4, 9), (7, 1)])
def test_a_profiler_with_a_schedule_is_refused(wait, warm_up):
    """Must catch: a warm-up that began before profiled_steps() records, or under it (a segmentation
    fault); its recording under it; names of PyTorch that stay replaced."""
    rhythm = schedule(wait=wait, warmup=warm_up, active=1, repeat=1)
    cpu = dict(activities=[ProfilerActivity.CPU])
    with pytest.raises(ProfilerInUse, match="torch.profiler (is at work already|began under)"):
        with profile(**cpu, schedule=rhythm) as other, profiled_steps(steps=3, warm_up=0) as found:
            steps(found.wanted, other.step)
    with profile(**cpu) as alone:
        steps(1)
    assert alone.key_averages()


def event(cat, name, ts, dur, tid=1, pid=0, **args):
    return dict(ph="X", cat=cat, name=name, ts=ts, dur=dur, tid=tid, pid=pid, args=args)


def test_a_gpu_is_taken_apart_by_its_kernels():
    """Must catch: inner operators kept; a kernel that is launched outside of the step; a message
    under a kernel counted as exposed; operators of the host counted as computing."""
    events = [
        event("cpu_op", "aten::linear", 0, 20),
        event("cpu_op", "aten::addmm", 2, 10),
        event("cuda_runtime", "cudaLaunchKernel", 5, 4, correlation=1),
        event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 30, 20),
        event("cuda_runtime", "cudaLaunchKernel", 35, 4, correlation=2),
        event("cuda_runtime", "cudaLaunchKernel", 45, 2, correlation=3),
        event("cuda_runtime", "cudaMemcpyAsync", 60, 2, correlation=4),
        event("cuda_runtime", "cudaStreamSynchronize", 62, 38),
        event("cuda_runtime", "cudaGetDevice", 70, 1, correlation=9),
        event("cuda_runtime", "cudaLaunchKernel", 120, 2, correlation=5),
        event("kernel", "void gemm<float>(int)", 10, 20, tid=7, correlation=1),
        event("kernel", "gemm_backward", 40, 20, tid=7, correlation=2),
        event("kernel", "ncclDevKernel_AllReduce", 50, 20, tid=9, correlation=3),
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 80, 10, tid=7, correlation=4),
        event("kernel", "later", 130, 10, tid=7, correlation=5),
    ]
    trace = from_chrome(events, 0, 100)
    assert trace == SlimTrace.from_json(trace.as_json())
    named = {trace.names[span.name]: span for span in trace.spans}
    assert "addmm" not in named and "later" not in named and "gemm" in named
    assert trace.kinds[named["gemm_backward"].kind] == "backward"
    assert trace.spans[named["gemm_backward"].launch].start == 350  # tenths of a microsecond
    budget = StepBudget(steps=1)
    budget.trace, budget.window = trace, 1000
    parts = {name: round(1e6 * seconds, 3) for name, seconds in budget.parts().items()}
    assert parts == {
        "kernels": 40,
        "messages that nothing hides": 10,
        "copies that nothing hides": 10,
        "the loader": 0,
        "the host waits": 20,  # 70 to 80 and 90 to 100
        "the GPU idles: Python, launches": 20,
    }
    assert budget.counts() == {"kernels": 2, "launches": 4, "waits of the host": 0}
    assert covered([(0, 3), (1, 2), (5, 6)]) == 4
