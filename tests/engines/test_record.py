"""`make gpu`, tried on the CPU: what is written can be read, and its byte rows are the formulas'
bytes."""

import signal
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from notebook_kernel import gone

from coursekit.recordings import attempts, record
from coursekit.recordings.races import Run, Way
from coursekit.recordings.recordings import Hardware, InvalidRecording, Row, read_all
from coursekit.topics.collectives.runs import replay
from coursekit.topics.zero import runs as zero_runs
from ranklab.ranks.links import LinksUnavailable, two_hosts

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.nightly  # by day: test_make_gpu on a pretended GPU, with the same lists of rows
def test_a_recording_of_the_cpu(tmp_path, monkeypatch):
    """Must catch: a row that breaks the schema, a group that is not run, a row that a topic no
    longer gives or that its tests do not know, bytes that differ from the formulas on a machine
    where they must not; --quick not said in the command."""
    topic_of = {group.name: group.measure.__module__.split(".")[2] for group in record.ALL}
    found_of, attempt = {topic: set() for topic in topic_of.values()}, record.attempt

    def noticed(part, rows):
        for row in attempt(part, rows):
            found_of[topic_of[part]].add(row.name)
            yield row

    monkeypatch.setattr(record, "attempt", noticed)
    assert record.main(["--cpu", "--quick", str(tmp_path)]) == 0
    (recording,) = read_all(tmp_path)
    slow = recording.find("collectives.slow_link", hosts=2, megabits_per_second=1000)
    assert len(slow) == (8 if can_rehearse() else 0)
    if slow:
        found, where = replay([recording], 4096)
        asked = dict(implementation="tree", nbytes=4096)
        (tree,) = recording.find("collectives.slow_link", **asked)
        assert (where, found["tree"]) == (recording.label, tree.value)
    with pytest.raises(LookupError, match="no recording has an all-reduce of 5 bytes over a slow"):
        replay([recording], 5)
    known = {path.parent.name: rows_in(path) for path in TESTS.glob("*/recorded.txt")}
    assert found_of == known, "a topic's rows are not those in its tests' recorded.txt"
    assert {row.name for row in recording.rows} == {record.TOOK}.union(*found_of.values())
    assert [row.case["group"] for row in recording.find(record.TOOK, whole=True)] == [*topic_of]
    assert recording.command == "python -m coursekit.recordings.record --cpu --quick"
    ways = {row.case["implementation"] for row in recording.find("zero.step")}
    assert ways == set(zero_runs.FEW)
    right = recording.find("collectives.right_sums", ranks=2, backend="gloo", device="cpu")
    assert right[0].value == 3
    assert len(recording.find("collectives.all_reduce", implementation="shardlab")) == 2
    for name in ("ranks.right_sums", "ranks.right_messages"):
        assert recording.find(name, ranks=2, backend="gloo")[0].value == 2
    assert recording.find("ranks.device_files_of_the_fork_server")[0].value == 0
    assert [row for row in recording.rows if row.formula and row.value != row.predicted] == []
    assert recording.hardware.kind == "cpu" and recording.versions["torch"] == torch.__version__


def rows_in(path):
    """The names of a topic's rows on a CPU, which tests/TOPIC/recorded.txt lists, one a line. Those
    after `over a slow link:` are there where the system lets links be slow."""
    always, _, slow = path.read_text("utf-8").partition("over a slow link:")
    return {*always.split(), *(slow.split() if can_rehearse() else ())}


@cache
def can_rehearse():
    try:
        with two_hosts(1000):
            return True
    except LinksUnavailable:
        return False


def test_bytes_of_zero_where_there_is_a_gpu():
    """Must catch: the host's copy of a shard forgotten, offloaded shards counted on the GPU, whole
    parameters on the host."""

    def found(stage, offload):
        way = Way(zero_runs.shard, dict(stage=stage, offload=offload))
        return zero_runs.states_of_way(way, [1001], 2)

    for stage in (1, 2):
        assert found(stage, False) == dict(cuda=4 * 1001 + 8 * 501, cpu=0)
        assert found(stage, True) == dict(cuda=4 * 1001, cpu=12 * 501)
    assert found(3, False) == dict(cuda=12 * 501, cpu=0)
    assert found(3, True) == dict(cuda=0, cpu=12 * 501)


def test_a_part_that_fails_is_named_and_the_rest_goes_on(tmp_path, capsys):
    """Must catch: one error that costs all rows, or those of its part that were there before it; a
    failure that nobody sees; a row twice, which a recording refuses; results that are not on disk
    until everything is done."""
    seen = []

    def breaks(device):
        yield Row("good.before", 1, "count")
        seen.append({row.name for row in read_all(tmp_path)[0].rows})
        raise RuntimeError("CUDA error: unspecified launch failure\nand more")

    def doubles(device):
        yield from [Row("good.twice", 1, "count")] * 2
        yield Row("good.nan", float("nan"), "count")

    def works(device):
        yield Row("good.after", 2, "count")

    groups = [Run(order, part) for order, part in enumerate((breaks, doubles, works))]
    assert record.main(["--cpu", str(tmp_path)], groups) == 0
    (recording,) = read_all(tmp_path)
    assert seen == [{"good.before"}]
    rows = "good.before record.failed took good.twice record.failed record.failed took good.after"
    named = [row.name.replace(record.TOOK, "took") for row in recording.rows]
    assert named == [*rows.split(), "took"]
    assert [row.case["whole"] for row in recording.find(record.TOOK)] == [False, False, True]
    broken, twice, nan = (row.case for row in recording.find("record.failed"))
    said = "RuntimeError: CUDA error: unspecified launch failure"
    assert broken == dict(part="breaks", error=said)
    assert twice["part"] == "doubles, row 4" and "stands once" in twice["error"]
    assert "a finite number" in nan["error"]
    assert "failed: breaks: RuntimeError: CUDA error" in capsys.readouterr().out
    with pytest.raises(InvalidRecording):
        list(attempts.attempt("a part", ())) or Row("not a name", 1, "count")


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_groups_in_processes_of_their_own(tmp_path, monkeypatch, capfd):
    """Must catch: a group that hangs or dies taking the others with it, rows lost that it had
    written before; processes left; a group begun when the time is up; a child's command
    instead of the whole one's; groups that were not asked for measured, too; arguments of --quick
    that do not arrive."""

    def bad_end(command, seconds):
        with pytest.raises(RuntimeError) as ended:
            list(record.watched(command, seconds, look_seconds=0.1))
        return str(ended.value)

    hanging = ["sh", "-c", "sleep 600 & echo $!; wait"]
    for seconds in (5, 60):  # a busy machine may not have begun after 5
        assert bad_end(hanging, seconds) == f"ended after {seconds} s"
        if child := capfd.readouterr().out:
            break
    assert gone([int(child)])  # what a group started
    ends = [record.sys.executable, "-c", "raise SystemExit(7)"]
    assert bad_end(ends, 20) == "its process ended with 7"
    assert bad_end(["no such program"], 0) == "not begun: the time was up"

    chosen, watched = [], record.watched

    def dies_at_first(command, seconds):
        if command[command.index("--only") + 1] == "machine":
            raise RuntimeError("ended after 9 s")
        return watched(command, seconds)

    monkeypatch.setattr(record, "watched", dies_at_first)
    monkeypatch.setattr(record, "ALL_GROUPS_SECONDS", 3000)
    monkeypatch.setattr(record, "GROUP_SECONDS", 3000)
    asked = ["--cpu", "--quick", "--only", "rates", "machine"]
    with monkeypatch.context() as patched:  # asked for others, the test would end at a limit
        patched.setattr(record, "record", lambda about, groups, *_: chosen.extend(groups))
        record.main([str(tmp_path), *asked])
    assert [name for name, _ in chosen] == ["machine", "rates"]
    assert record.main([str(tmp_path), *asked, "--apart"]) == 0
    (done,) = read_all(tmp_path)
    rows = "record.failed record.seconds matmul.rate matmul.rate record.seconds"
    assert [row.name for row in done.rows] == rows.split()
    assert [row.case["size"] for row in done.find("matmul.rate")] == [64, 64]
    assert done.command.endswith("record --cpu --quick --only rates machine")
    assert done.rows[0].case == dict(part="machine", error="RuntimeError: ended after 9 s")


def test_the_same_command_goes_on(tmp_path, monkeypatch):
    """Must catch: a second `make gpu` that begins anew; one that drops the rows of half a group
    before it has others, or keeps its failure; groups of another command taken for its own."""

    def groups(*names):
        for name in names:
            asked.append(name)
            yield name, rows_of(name, fails=name == "zero" and asked.count(name) == 1)

    def rows_of(name, fails):
        if not fails:
            assert name != "zero" or steps_in(tmp_path)["zero.step"] == 2  # of the half
        yield Row(f"{name}.step", len(asked), "count")
        if fails:
            raise RuntimeError("ended after 9 s")

    def steps_in(folder):
        (recording,) = read_all(folder)
        return {row.name: row.value for row in recording.rows if row.name.endswith("step")}

    def keep(recording):
        recording.write(tmp_path)

    versions = dict(python="3", torch="2", shardlab="0")
    about = Hardware("a GPU", "gpu", 1, 2**30), versions, "2026-11-30", "make gpu"
    asked = []
    assert record.begun_before(tmp_path, about) is None
    first = record.record(about, groups("rates", "zero"), keep)
    assert len(first.find("record.failed")) == 1
    assert record.begun_before(tmp_path, (*about[:3], "make gpu --quick")) is None
    before = record.begun_before(tmp_path, about)
    assert [row.name for row in before.rows] == ["rates.step", record.TOOK, "zero.step"]
    done = record.record(about, groups("zero"), keep, before)
    assert asked == ["rates", "zero", "zero"] and not done.find("record.failed")
    assert steps_in(tmp_path) == {"rates.step": 1, "zero.step": 3} and done.command == "make gpu"


def test_what_matters_most_comes_first():
    """Must catch: rates that wait for all others, as virtual GPUs need them; ZeRO's steps behind
    those that compute on the host."""
    names = [group.name for group in record.ALL]
    assert names[:3] == ["machine", "rates", "rates_by_format"]
    assert names.index("zero") < names.index("recompute") < names.index("zero_offloaded")


def test_ended_from_outside(tmp_path, monkeypatch):
    """Must catch: a SIGTERM, as `timeout` sends it, that ends the parent on the spot and leaves a
    group's processes behind."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    half_way = lambda *_, **__: signal.raise_signal(signal.SIGTERM)
    monkeypatch.setattr(record, "watched", half_way)
    try:
        with pytest.raises(SystemExit, match="what was measured is written"):
            record.main(["--cpu", "--apart", str(tmp_path)])
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_gpu_is_not_asked_for_what_cpus_alone_measure(tmp_path, monkeypatch):
    """Must catch: two groups that leave no row on any GPU, told as failures of `make gpu`."""
    asked = []
    monkeypatch.setattr(record, "find_device", lambda: (torch.device("cuda"), ""))
    monkeypatch.setattr(record, "about_this", lambda device, command: ())
    monkeypatch.setattr(record, "record", lambda about, groups, *_: asked.append([*groups]))
    for more in ([], ["--cpu"]):
        record.main([str(tmp_path), *more])
    on_gpus, on_cpus = ({name for name, _ in groups} for groups in asked)
    assert on_cpus - on_gpus == {"loss_by_bytes", "large_batches"} and on_gpus < on_cpus


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: make gpu would measure it")
def test_without_a_gpu_nothing_is_written(tmp_path, capsys):
    """Must catch: a recording of a CPU passed off as one of a GPU."""
    for more in ([], ["--apart"]):
        assert record.main([str(tmp_path), *more]) == 1
        assert "nothing was recorded: no CUDA GPU was found" in capsys.readouterr().err
        assert not list(tmp_path.iterdir())
