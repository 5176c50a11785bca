"""Recordings are validated when they are written and when they are read."""

import json
import os
from dataclasses import replace

import pytest
from pages import ROOT
from told import cells, from_told, given

from coursekit.recordings.recordings import (
    Hardware,
    InvalidRecording,
    Recording,
    Row,
    measured_or_recorded,
    nearby,
    read_all,
    read_recording,
    recorded,
)

GOOD = dict(
    hardware=Hardware("NVIDIA H200", "gpu", 1, 150_754_820_096),
    versions=dict(python="3.12.3", torch="2.13.0", shardlab="0.1.0", cuda="13.0"),
    date="2026-11-21",
    command="make gpu",
    rows=(
        Row(
            "step.peak",
            536_550_616,
            "bytes",
            dict(layers=4, optimizer="loop"),
            "peak_bytes",
            536_550_616,
        ),
        Row("step.peak", 600_000_000, "bytes", dict(layers=4, optimizer="foreach")),
        Row("matmul.rate", 7.9e14, "FLOP/s", dict(dtype="bf16", size=8192)),
    ),
)


def test_what_is_written_is_read(tmp_path):
    """Must catch: a field lost on the way, ints that come back as floats, the newest not first."""
    recording = Recording(**GOOD)
    path = recording.write(tmp_path)
    assert path.name == "nvidia-h200-2026-11-21.json"
    assert read_recording(path) == recording and isinstance(read_recording(path).rows[0].value, int)
    older = Recording(**{**GOOD, "date": "2026-10-01"})
    older.write(tmp_path)
    assert read_all(tmp_path) == [recording, older]
    assert read_all(tmp_path / "absent") == []
    assert recording.label == "recorded on NVIDIA H200, 2026-11-21"


def test_a_second_race_of_a_day_goes_on_in_the_recording():
    """Must catch: rows of the morning that are lost in the evening; a row that stands twice, or
    keeps its old value; rows of another machine under this one's name."""
    morning, peak = Recording(**GOOD), dict(layers=4, optimizer="loop")
    again = Row("step.peak", 1, "bytes", peak)
    evening = replace(morning, command="make bench", rows=(again,))
    both = evening.after(morning)
    assert both.find("step.peak", optimizer="loop") == [again] and len(both.rows) == 3
    assert both.command == "make gpu && make bench" == evening.after(both).command
    elsewhere = replace(morning, versions={**GOOD["versions"], "torch": "2.6.0"})
    with pytest.raises(InvalidRecording, match="versions.*2.6.0.*goes on here"):
        evening.after(elsewhere)


def test_a_suspect_row_is_kept_and_not_found(tmp_path):
    """Must catch: a number that was measured wrongly and that a page, a lab or a table prints; its
    mark lost when a later run of the day goes on; a recording that loses the row."""
    rows = (replace(GOOD["rows"][0], suspect="holds bytes of the way before"), *GOOD["rows"][1:])
    recording = read_recording(Recording(**{**GOOD, "rows": rows}).write(tmp_path))
    assert recording.rows[0].suspect and recording.sound == recording.rows[1:]
    assert recording.find("step.peak", optimizer="loop") == []
    assert recorded([recording], "step.peak", optimizer="loop") == "not yet recorded on a GPU"
    assert measured_or_recorded(None, [recording], "")[0] == list(rows[1:])
    later = replace(recording, rows=(replace(rows[1], value=1),)).after(recording)
    assert rows[0] in later.rows


def test_the_rows_that_were_measured_wrongly_are_marked():
    """Must catch: the mark of a row of the recorded H100 taken away before it is measured again:
    its allocator gave out 100 MB more than the ledger saw."""
    measured = ROOT / "measured"
    recording = read_recording(measured / "nvidia-h100-80gb-hbm3-2026-11-26.json")
    for group in ("zero", "tensor_parallel"):
        rows = [row for row in recording.rows if row.name == f"{group}.allocated_peak"]
        for row in rows:
            same = dict(ranks=row.case["ranks"], implementation=row.case["implementation"])
            where = dict(where="cuda") if group == "zero" else {}
            (ledger,) = recording.find(f"{group}.peak", **same, **where)
            assert bool(row.suspect) == (row.value - ledger.value > 100e6), row
    assert sum(bool(row.suspect) and "allocated" in row.name for row in recording.rows) == 23
    assert recording.find("zero.pinned", counter="active_bytes") == []


def test_what_a_lab_says_was_recorded(tmp_path, monkeypatch):
    """Must catch: a CPU's number passed off as a GPU's; another case's; a rate printed as 7.9e+14
    FLOP/s; recordings not found from the labs' folder, or not in an installed shardlab; those of
    the package instead of the reader's own; other words."""
    assert recorded([], "step.peak") == "not yet recorded on a GPU"
    on_cpu = Recording(**{**GOOD, "hardware": Hardware("x86_64", "cpu", 1, 2**34)})
    recordings = [on_cpu, Recording(**GOOD)]
    assert (
        recorded(recordings, "step.peak", optimizer="loop")
        == "536,550,616 bytes on NVIDIA H200, 2026-11-21"
    )
    assert recorded(recordings, "matmul.rate") == "790 TFLOP/s on NVIDIA H200, 2026-11-21"
    assert recorded(recordings, "step.peak", optimizer="fused") == "not yet recorded on a GPU"
    assert recorded([on_cpu], "step.peak") == "not yet recorded on a GPU"
    (tmp_path / "labs").mkdir()
    monkeypatch.chdir(tmp_path / "labs")
    monkeypatch.setattr("coursekit.recordings.recordings.SHIPPED", tmp_path / "installed")
    assert nearby() == []
    on_cpu.write(tmp_path / "installed" / "measured")
    assert nearby() == [on_cpu]
    recordings[1].write(tmp_path / "measured")
    assert nearby() == [recordings[1]] == nearby(tmp_path)


@from_told("place, change, sentence", cells)
def test_a_broken_recording_is_refused_by_name(tmp_path, place, change, sentence):
    """Must catch: any one check of the schema taken out."""
    path = Recording(**GOOD).write(tmp_path)
    content = json.loads(path.read_text())
    part = {"file": content, "row": content["rows"][0]}.get(place) or content[place]
    ((name, value),) = given(change).items()
    part[name] = 2 * part[name] if value == "twice" else value
    if value == "absent":
        del part[name]
    path.write_text(json.dumps(content))
    with pytest.raises(InvalidRecording) as caught:
        read_recording(path)
    assert sentence in str(caught.value) and str(caught.value).startswith(path.name)


def test_a_lab_starts_beside_what_is_no_recording(tmp_path, capsys):
    """Must catch: a link without a target, a folder or a pipe in measured/ that stops every lab, or
    that a lab waits for."""
    Recording(**GOOD).write(tmp_path / "measured")
    (tmp_path / "measured" / "a.json").symlink_to("nowhere")
    (tmp_path / "measured" / "b.json").mkdir()
    os.mkfifo(tmp_path / "measured" / "c.json")
    assert nearby(tmp_path) == [Recording(**GOOD)]
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 3 and all(name in line for name, line in zip("abc", said))


def test_here_or_from_a_recording():
    """Must catch: a recording replayed although this machine measures; a CPU's recording replayed
    as a GPU's; nothing said of why there are no rows."""
    on_gpu, here = Recording(**GOOD), [Row("step.peak", 7, "bytes")]
    on_cpu = replace(on_gpu, hardware=replace(on_gpu.hardware, kind="cpu"))
    for measure, recordings, rows, said in (
        (lambda: here, [on_gpu], here, "measured on this machine, now"),
        (None, [on_cpu, on_gpu], list(on_gpu.rows), on_gpu.label),
        (None, [on_cpu], [], "no GPU; not yet recorded on a GPU"),
    ):
        assert measured_or_recorded(measure, recordings, "no GPU") == (rows, said)
