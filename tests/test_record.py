"""`make gpu`, tried on the CPU: what is written can be read, and its byte rows are the formulas' bytes."""

import pytest

torch = pytest.importorskip("torch")

from shardlab.measure import data_parallel_rows, machine_rows, record, roofline, rows  # noqa: E402
from shardlab.measure.recordings import read_all  # noqa: E402
from shardlab.ranks.links import LinksUnavailable, two_hosts  # noqa: E402


def test_a_recording_of_the_cpu(tmp_path, monkeypatch):
    """Must catch: a row that breaks the schema, a group that is not run, bytes that differ from the formulas on a machine where they
    must not."""
    monkeypatch.setattr(rows, "SIZES", dict(layers=2, hidden=32, heads=4, vocabulary=101, max_sequence=32))
    monkeypatch.setattr(rows, "SEQUENCE", 16)
    monkeypatch.setattr(roofline, "MEMORY_BYTES", dict(cpu=2**20))
    monkeypatch.setattr(roofline, "SIZES", dict(cpu=(8, 16)))
    monkeypatch.setattr(machine_rows, "ALL_REDUCE_BYTES", (64, 4096))
    monkeypatch.setattr(machine_rows, "SLOW_MEGABITS_PER_SECOND", 1000)
    monkeypatch.setattr(machine_rows, "SLOW_BYTES", (64, 4096))
    monkeypatch.setattr(data_parallel_rows, "SIZES", dict(layers=1, hidden=16, heads=2, vocabulary=11, max_sequence=8))
    monkeypatch.setattr(data_parallel_rows, "TURNS", 2)
    assert record.main(["--cpu", str(tmp_path)]) == 0
    (recording,) = read_all(tmp_path)
    slow = recording.find("collectives.slow_link", hosts=2, megabits_per_second=1000)
    assert len(slow) == (8 if can_rehearse() else 0)
    if slow:
        found, where = machine_rows.replay([recording], 4096)
        assert where == recording.label and found["tree"] == next(
            row.value for row in slow if (row.case["implementation"], row.case["nbytes"]) == ("tree", 4096))
    with pytest.raises(LookupError, match="no recording has an all-reduce of 5 bytes over a slow link"):
        machine_rows.replay([recording], 5)
    assert {row.name for row in recording.rows} - {row.name for row in slow} == {"states.parameters", "states.optimizer", "states.step_counters", "step.peak",
                                                    "matmul.rate", "ranks.start", "ranks.right_sums", "ranks.right_messages",
                                                    "ranks.device_files_of_the_fork_server", "roofline.matmul",
                                                    "roofline.memory", "roofline.launch", "collectives.right_sums",
                                                    "collectives.all_reduce", "data_parallel.right_gradients",
                                                    "data_parallel.reduced", "data_parallel.messages", "data_parallel.peak",
                                                    "data_parallel.step", "data_parallel.step_ratio"}
    assert recording.find("collectives.right_sums", ranks=2, backend="gloo", device="cpu")[0].value == 3
    assert len(recording.find("collectives.all_reduce", implementation="shardlab")) == 2
    for name in ("ranks.right_sums", "ranks.right_messages"):
        assert recording.find(name, ranks=2, backend="gloo")[0].value == 2
    assert recording.find("ranks.device_files_of_the_fork_server")[0].value == 0
    assert [row for row in recording.rows if row.formula and row.value != row.predicted] == []
    assert recording.hardware.kind == "cpu" and recording.versions["torch"] == torch.__version__


def can_rehearse():
    try:
        with two_hosts(1000):
            return True
    except LinksUnavailable:
        return False


def test_a_part_alone(tmp_path, monkeypatch):
    """Must catch: groups that were not asked for measured too; a command in the recording that would measure something else."""
    monkeypatch.setattr(machine_rows, "ALL_REDUCE_BYTES", (64,))
    assert record.main([str(tmp_path), "--cpu", "--only", "all_reduces"]) == 0
    (recording,) = read_all(tmp_path)
    assert {row.name.partition(".")[0] for row in recording.rows} == {"collectives"}
    assert recording.command == "python -m shardlab.measure.record --cpu --only all_reduces"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: make gpu would measure it")
def test_without_a_gpu_nothing_is_written(tmp_path, capsys):
    """Must catch: a recording of a CPU passed off as one of a GPU."""
    assert record.main([str(tmp_path)]) == 1
    assert "nothing was recorded: no CUDA GPU was found" in capsys.readouterr().err and not list(tmp_path.iterdir())
