"""Recordings on pages: the numbers when there are some, no box when there are none."""

import re
from dataclasses import replace
from html import unescape

import pytest
from small_books import builder

from coursekit.recordings.recordings import NOT_RECORDED, Hardware, Recording, Row

PAGE = """# Page

The peak is {recorded}`step.peak optimizer=foreach`.
It is {recorded}`rounded chunked.peak rung=loss in chunks`, not more.

```{recorded} step.peak matmul.rate account.row
The rest is small.
```

```{recorded} loop.peak optimizer=loop ranks=2
```

```{recorded} one.step
```

```{recorded} some.step
```

```{recordings}
```
"""
ASKED = "account.row, chunked.peak, loop.peak, matmul.rate, one.step, some.step, step.peak"
VERSIONS = dict(python="3.12.3", torch="2.13.0", shardlab="0.1.0")
STEP = dict(task="GPT-2", shared=False, batch=1024, seconds=0.000673434000020734)
ROWS = (
    Row("step.peak", 600, "bytes", dict(optimizer="foreach"), "peak_bytes", 500),
    Row("step.peak", 500, "bytes", dict(optimizer="loop"), "peak_bytes", 500),
    Row("matmul.rate", 7.9e14, "FLOP/s", dict(dtype="bf16")),
    Row("account.row", 1, "ratio", dict(implementation="core", peer="PyTorch")),
    Row("chunked.peak", 16667915776, "bytes", dict(rung="loss in chunks")),
    Row("loop.peak", 701, "bytes", dict(optimizer="loop")),
    Row("loop.peak", 702, "bytes", dict(optimizer="loop", ranks=2)),
    Row("loop.peak", 703, "bytes", dict(optimizer="several", ranks=2)),
    *(Row("one.step", k, "bytes", dict(STEP, way=str(k))) for k in (3, 4)),
    *(Row("some.step", k, "bytes", dict(STEP, way=str(k))) for k in (3, 4)),
    Row("some.step", 5, "bytes", dict(STEP, way="5", task="another", shared=True)),
    Row("other.rows", 1, "count"),
)


@pytest.fixture
def build(tmp_path):
    """build(text, recordings...) -> (the page as plain text with one space for any white space,
    warnings)."""
    build_it = builder(tmp_path, "boxes", "recorded", nitpicky=False)

    def build_page(text, *recordings):
        for recording in recordings:
            recording.write(tmp_path / "source" / "measured")
        pages, warnings = build_it(index=text)
        return " ".join(unescape(re.sub(r"<[^>]*>", " ", pages["index"])).split()), warnings

    return build_page


GPU = Recording(Hardware("NVIDIA H200", "gpu", 1, 2**37), VERSIONS, "2026-11-21", "make gpu", ROWS)
CPU = replace(
    GPU, hardware=Hardware("AMD EPYC, 2 cores", "cpu", 1, 2**34), command="python -m bench zero"
)


def test_a_page_shows_what_was_recorded(build):
    """Must catch: the difference left out or tuned away, rows of other names, a recording without
    its hardware, date, version; a ratio that does not say over what; a rounded number with all
    digits, or with its device; a box that asks for one way of running an optimizer and shows all,
    or none because a number is no word; a task that each row repeats; one that only some have
    passed off as everybody's; columns for formulas without a formula; "False" for what is not so;
    seconds with all the digits of a float."""
    text, warnings = build(PAGE, GPU)
    assert not warnings
    for words in (
        "The peak is 600 bytes on NVIDIA H200, 2026-11-21 . It is 16.7 GB , not more.",
        "Recorded on NVIDIA H200, 2026-11-21, torch 2.13.0, by make gpu :",
        "The rest is small.",
        "step, peak (foreach) 500 B 600 B +100 bytes",
        "step, peak (loop) 500 B 500 B equal",
        "matmul, rate (bf16) 790 TFLOP/s",
        "account (core, over PyTorch) 1",
        "loop, peak (loop, ranks 2) 702 B",
        "by make gpu ; in all rows GPT-2, batch 1,024, seconds 0.000673: What Recorded"
        " one, step (3) 3 B",
        "in all rows batch 1,024, seconds",
        "some, step (another, shared, 5) 5 B",
        f"1 × NVIDIA H200 2026-11-21 python 3.12.3, torch 2.13.0, shardlab 0.1.0 make gpu"
        f" {len(ROWS)}",
    ):
        assert words in text
    assert not [words for words in ("other, rows", "701", "703", "False") if words in text]
    assert NOT_RECORDED.lower() not in text.lower() and "once a GPU" not in text


def test_a_suspect_row_is_on_no_page(build):
    """Must catch: a number that was measured wrongly in a box, in a sentence or among the rows that
    a page counts; a list of what is missing that a recording of something else empties."""
    rows = [replace(row, suspect="wrong") if row.name == "step.peak" else row for row in ROWS]
    text, warnings = build(PAGE, replace(GPU, rows=tuple(rows)))
    assert not warnings and "600" not in text and "500" not in text
    assert f"The peak is {NOT_RECORDED}" in text and f"make gpu {len(ROWS) - 2}" in text
    assert "once a GPU has made them: step.peak." in text


def test_without_a_recording_a_page_has_no_box(build):
    """An empty promise in the middle of an argument costs more trust than silence. Must catch: a
    box without rows, a CPU's recording passed off as a GPU's, rows that are missing and that
    nothing lists; words of a value with spaces that count as names of rows."""
    for recordings in ((), (CPU,)):
        text, warnings = build(PAGE, *recordings)
        assert not warnings and "600" not in text
        assert "The rest is small." not in text and "make gpu" not in text
        assert text.lower().count(NOT_RECORDED.lower()) == 2  # the roles, each one number
        assert "Nothing in this edition has been recorded on a GPU." in text
        assert f"once a GPU has made them: {ASKED}." in text


RACE = """# Page

```{race} zero_race
Who races.
```
"""


def test_a_race_shows_times_beside_what_identical_work_differs_by(build):
    """Must catch: a ratio without its A/A interval, the peak of another case, a GPU's recording or
    none passed off as this race; a build that a recording of steps alone stops; of what a technique
    costs, a ratio printed as a percentage of itself, the two columns exchanged."""
    case = dict(what="stage 1, 2 ranks", peer="torch tuned")
    other = dict(what="stage 3, 2 ranks", peer="torch")
    over = Row("zero_race.overhead", 1.306, "ratio", dict(what="by hooks", by_operations=1.333))
    rows = (
        Row("zero_race.peak", 0.918, "ratio", other),
        Row("zero_race.step", 1.016, "ratio", dict(case, identical_low=0.82, identical_high=1.1)),
        Row("zero_race.peak", 0.8505, "ratio", case),
        Row("zero_race.step", 0.803, "ratio", dict(other, identical_low=0.95, identical_high=1.06)),
    )
    for more in ((), (over,)):
        text, warnings = build(RACE, replace(CPU, rows=(*rows, *more)), GPU)
        assert not warnings and "Who races." in text
        both = "1.02 0.82 to 1.10 0.85 stage 3, 2 ranks 0.80 0.95 to 1.06 0.92"
        assert f"stage 1, 2 ranks {both}" in text
        assert "AMD EPYC, 2 cores, 2026-11-21, torch 2.13.0, by python -m bench zero ." in text
        assert ("keeps everything" in text) == ("by hooks +31% +33%" in text) == bool(more)
    for page, more in (
        (RACE.replace("zero_race", "other_race"), ()),
        (RACE, (replace(CPU, rows=rows[1::2]),)),
    ):
        text, warnings = build(page, *more)
        assert not warnings and "Who races." not in text


def test_a_damaged_recording_and_a_role_that_says_too_little(build, tmp_path):
    """Must catch: a file that cannot be read passed over in silence; a word without = ignored, so
    that another row is shown."""
    (tmp_path / "source" / "measured").mkdir(parents=True)
    (tmp_path / "source" / "measured" / "gpu.json").write_text('{"schema": 2}')
    _, warnings = build("# Page\n\n{recorded}`step.peak foreach`, {recorded}`step.peak`\n")
    assert "measured/gpu.json: schema = 2: this version reads schema 1" in warnings
    assert "a row's name, then words such as optimizer=foreach" in warnings
