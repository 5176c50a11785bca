"""Ways side by side: what times say, what a way weighs, and the races as `make bench` runs them."""

import os
import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from told import from_told, valued

from bench.__main__ import main
from coursekit.recordings import busy_gpu, races
from coursekit.recordings.races import (
    AGAIN,
    BUSY,
    TINY,
    WARM_UP_TURNS,
    Way,
    fastest,
    identical,
    in_turns,
    step_result,
    step_rows,
    train_in_turns,
    weighed,
)
from coursekit.recordings.recordings import read_all
from coursekit.topics.data_parallelism import runs as data_parallel_runs
from coursekit.topics.pipelines import runs as pipeline_runs
from coursekit.topics.tensor_parallelism import runs as tensor_runs
from coursekit.topics.zero import runs as zero_runs
from ranklab.measure.timing import median_ratio
from shardlab.pipelines.schedules import SCHEDULES, schedule

TIMES = {
    "ours": [2.0, 4.0, 9.0],
    "slow": [4.0, 4.0, 4.0],
    "quick": [1.0, 3.0, 3.0],
    "ours" + AGAIN: [2.0, 2.0, 9.0],
}
WAYS = {"ours": Way(None, peers=("slow", "quick", "absent")), "slow": Way(None)}


def test_what_times_say():
    """Must catch: the ratio of medians, which is 4/3 here; means; the ratio upside down; the slower
    peer; an interval of other works than the one that ran twice; an excess called noise that the
    same code twice does not show."""
    assert median_ratio(TIMES, "ours", "quick") == 2.0
    assert fastest(TIMES, ("slow", "quick")) == "quick"
    low, high = identical({"a": [1.0, 2.0], "b": [1.0, 1.0], "b" + AGAIN: [3.0, 3.0]})
    assert low == high == 3.0
    shown = step_result("zero", "2 ranks", TIMES, "ours", "quick", 1.5, "stage 1")
    assert (shown.row, shown.value, shown.verdict) == ("zero_race.step", 2.0, "MISSED")
    assert (shown.case["what"], shown.case["peer"]) == ("stage 1", "quick")
    assert shown.note.endswith("1.00")
    noisy = dict(TIMES, **{"ours" + AGAIN: [9.0, 4.0, 40.0]})
    noise = step_result("zero", "2 ranks", noisy, "ours", "quick", 1.5).note
    assert noise.endswith("which holds the excess")
    reported = step_result("zero", "2 ranks", TIMES, "slow", "quick")
    assert (reported.row, reported.case, reported.verdict) == ("", {}, "")


def test_rows_of_steps():
    """Must catch: a ratio to a peer that did not run, or to the slower one; a ratio for PyTorch's
    own; seconds of computing passed off as a share, or over the mean; the share of a way that is
    not known."""
    times = {**TIMES, "ours" + BUSY: [1.0]}
    rows = list(step_rows("zero", WAYS, times, dict(ranks=2)))
    assert [(row.name, row.value, row.case["implementation"]) for row in rows] == [
        ("zero.step", 4.0, "ours"),
        ("zero.gpu_busy", 0.25, "ours"),
        ("zero.step_ratio", 2.0, "ours"),
        ("zero.step", 4.0, "slow"),
    ]
    assert rows[2].case["peer"] == "quick"


@from_told("gpus, gib, found", valued)
def test_layouts_of_a_machine(gpus, gib, found, monkeypatch):
    """Must catch: a single GPU on which nothing goes by NCCL; sixteen ranks on eight GPUs; a task
    that only measures a large GPU's launches, that a small GPU has no memory for, or that goes
    through the host for minutes; a task that was asked for and not taken."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(races, "memory_bytes", lambda device: gib * 2**30)
    device = torch.device("cuda" if gpus else "cpu")
    chosen = list(races.layouts(device, None))
    keys = ("ranks", "backend", "ranks_share_a_gpu", "task")
    assert [tuple(case[key] for key in keys) for case, _ in chosen] == found
    assert [task.name for _, task in chosen] == [case["task"] for case, _ in chosen]
    assert all(task is TINY for _, task in races.layouts(device, TINY))
    assert {case["device"] for case, _ in chosen} == {device.type}


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_tasks_of_a_number_of_ranks(count):
    """Must catch: as many heads or blocks for every number of ranks; a single stage that has not
    both the embedding and the head; a head that shares the embedding's weight."""
    for task in (TINY, races.GPU_TASK, races.LARGE_TASK):
        heads = races.cut_heads(task, count).sizes["heads"]
        hidden = task.sizes["hidden"]
        assert heads % count == 0 and (hidden % heads == 0 or hidden % count)
        for name in SCHEDULES:
            layers = pipeline_runs.deep_enough(task, count).sizes["layers"]
            lists = schedule(name, count, pipeline_runs.RACE_MICROBATCHES)
            stages = 1 + max(action.stage for own in lists for action in own)
            assert sum(pipeline_runs.even_counts(layers, stages)) == layers + 2
        assert pipeline_runs.deep_enough(task, count).sizes["tied_head"] == 0
    assert pipeline_runs.even_counts(2, 1) == [4] and pipeline_runs.even_counts(4, 2) == [3, 3]


def test_turns():
    """Must catch: all turns of one work before those of the next, a warm-up that is counted or left
    out; a first work that does not run again."""
    seen = []
    times = in_turns({name: lambda name=name: seen.append(name) for name in "ab"}, turns=4)
    assert "".join(seen) == "aba" * (WARM_UP_TURNS + 4)
    assert {name: len(of_it) for name, of_it in times.items()} == {"a": 4, "b": 4, "a" + AGAIN: 4}


def plain(net, optimizer_cls, **settings):
    return net, optimizer_cls(net.parameters(), **settings)


def sending(net, optimizer_cls, keeps=0, **settings):
    """After the update every rank sends each parameter to all, and it keeps so many numbers."""
    model, optimizer = plain(net, optimizer_cls, **settings)
    optimizer.kept = torch.zeros(keeps)

    def send(*_):
        for parameter in net.parameters():
            dist.all_reduce(parameter.detach())

    optimizer.register_step_post_hook(send)
    return model, optimizer


def test_what_a_way_weighs(two):
    """Must catch: messages of the whole warm-up, a model wrapped before the ledger looks, a way's
    options left out."""
    nbytes = sum(parameter.nbytes for parameter in TINY.model().parameters())
    found = two.run(weighed, Way(sending), TINY)[0]
    assert found.messages["all_reduce"].nbytes == found.sent_bytes(2) == nbytes
    assert 4 * found.sent_bytes(4) == 6 * nbytes
    more = two.run(weighed, Way(sending, dict(keeps=1000)), TINY)[0]
    assert more.peak_bytes - found.peak_bytes == 4000
    assert two.run(weighed, Way(plain), TINY)[0].sent_bytes(2) == 0


def breaking(net, optimizer_cls, **settings):
    raise RuntimeError("this way breaks")


def dying(net, optimizer_cls, **settings):
    os._exit(3)


class Left:
    """Bytes on a GPU, in a cycle with themselves."""

    def __init__(self):
        self.me = self


def test_a_way_is_weighed_on_an_empty_gpu(monkeypatch):
    """Must catch: a peak that holds the model of the way before, as 23 recorded ones did; a rank
    that weighs although something is left; a way that is built first."""
    there = weakref.WeakSet()
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: len(there) << 30)
    monkeypatch.setattr(torch.accelerator, "empty_host_cache", lambda: None, raising=False)
    monkeypatch.setattr(races, "clear_cublas_workspaces", lambda: None)
    there.add(Left())
    races.empty_gpu("cuda")
    assert not there
    there.add(kept := Left())
    for weigh in (weighed, tensor_runs.weighed_step, zero_runs.bytes_at_rest):
        with pytest.raises(RuntimeError, match="1,073,741,824 bytes of an earlier way are still"):
            weigh(WAYS["slow"], TINY, device="cuda")
    assert kept.me is kept


@pytest.mark.ranks
def test_no_row_behind_a_way_that_fails_is_lost(monkeypatch):
    """Must catch: one way that fails or dies and takes the rows of later ways with it, or the times
    of all; a failure that does not name the way; ranks that two ways share."""
    bad = dict(breaks=Way(breaking, peers=("PyTorch",)), dies=Way(dying))
    ways = bad | {name: data_parallel_runs.WAYS[name] for name in ("shardlab", "PyTorch")}
    monkeypatch.setattr(data_parallel_runs, "WAYS", ways)
    rows = list(data_parallel_runs.data_parallel(torch.device("cpu"), TINY, turns=2))
    broke, died = (row.case for row in rows if row.name == "record.failed")
    assert broke["part"] == "data_parallel, 2 ranks, breaks" and "dies" in died["part"]
    assert broke["error"].endswith("this way breaks")
    for name in ("data_parallel.peak", "data_parallel.step"):
        whole = {row.case["implementation"] for row in rows if row.name == name}
        assert whole == set(ways) - set(bad)


def parts():
    return TINY.tokens(), next(TINY.model().parameters()).detach()


def test_all_ways_train_the_same(two):
    """Must catch: ranks that train on the same part of the batch, models that begin differently; a
    first way that does not run again."""
    (mine, weight), (others, same) = two.run(parts)
    assert not mine.equal(others) and weight.equal(same)
    times = two.run(train_in_turns, {"a": Way(plain), "b": Way(plain)}, TINY, 2)[0]
    assert list(times) == ["a", "b", "a" + AGAIN]


@pytest.mark.nightly  # by day: the pretended technique's race is
@pytest.mark.ranks
def test_races_are_recorded(tmp_path):
    """Must catch: a stage, its readable arm or a core that does not race; this book's code as a
    peer; a step without its peak; a quick recording that calls itself a real one."""
    command = ["data-parallel", "zero", "--quick"]
    assert main([*command, "--record", str(tmp_path)], folder=tmp_path / "build") == 0
    (recording,) = read_all(tmp_path)
    assert recording.command == f"python -m bench {' '.join(command)} --record measured"
    assert recording.hardware.kind == "cpu"
    for group in ("data_parallel", "zero"):
        for step in recording.find(f"{group}_race.step"):
            assert len(recording.find(f"{group}_race.peak", what=step.case["what"])) == 1
            assert step.case["identical_low"] <= step.case["identical_high"]
            assert step.case["peer"].startswith("PyTorch")
    stages = [f"stage {stage}{arm}" for stage in (1, 2, 3) for arm in ("", ", readable", ", core")]
    steps = recording.find("zero_race.step")
    assert {row.case["what"] for row in steps} == {f"{stage}, 2 ranks, tiny" for stage in stages}
    assert {row.value for row in recording.find("zero_race.sent")} == {1.0}
    for what in ("2 ranks, tiny", "core, 2 ranks, tiny"):
        assert recording.find("data_parallel_race.step", what=what)


def test_what_cannot_be_tried(capsys):
    """Must catch: --record of a part that has no rows, pages of a part that looks at none, and a
    name that there is not, measured for minutes and refused then."""
    for command, said in (
        ("ranks --record x", "--record is for"),
        ("weight --pages index", "--pages is for blocking"),
        ("none", "unknown:"),
    ):
        with pytest.raises(SystemExit):
            main(command.split())
        assert said in capsys.readouterr().err


def test_a_gpu_computes_while_a_kernel_runs(monkeypatch):
    """Must catch: kernels of two streams counted twice; gaps, copies, NCCL's kernels or what runs
    on the CPU counted; the profiler's microseconds taken for seconds; a GPU that nobody sees taken
    for an idle one."""

    def event(name, start, end, device=busy_gpu.DeviceType.CUDA):
        return SimpleNamespace(
            name=name, device_type=device, time_range=SimpleNamespace(start=start, end=end)
        )

    events = [
        event("gemm", 100.0, 200.0),
        event("add", 190.0, 250.0),
        event("mul", 110.0, 120.0),
        event("ncclDevKernel_AllReduce", 240.0, 900.0),
        event("Memcpy HtoD", 300.0, 400.0),
        event("copy", 500.0, 550.0),
        event("aten::add", 0.0, 1000.0, busy_gpu.DeviceType.CPU),
    ]

    @contextmanager
    def profile(activities):
        assert activities == [busy_gpu.ProfilerActivity.CUDA]
        yield SimpleNamespace(events=lambda: events)

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(busy_gpu, "profile", profile)
    monkeypatch.setattr(busy_gpu, "supported_activities", lambda: [busy_gpu.ProfilerActivity.CUDA])
    assert busy_gpu.gpu_busy_seconds(list) == pytest.approx(200e-6)
    del events[:-1]
    assert busy_gpu.gpu_busy_seconds(list) is None
    monkeypatch.setattr(busy_gpu, "supported_activities", lambda: [busy_gpu.ProfilerActivity.CPU])
    assert busy_gpu.gpu_busy_seconds(list) is None
