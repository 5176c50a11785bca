"""A room of learners: what a learner hands in, what an instructor collects, and shares of one
machine."""

import json
import os
import random
import re

import pytest
from forked_script import forked
from pages import ROOT
from told import from_told, valued

from workshop import room
from workshop.room import seats


def notebook(*cells):
    return json.dumps({"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def text(source):
    return {"cell_type": "markdown", "source": source}


def code(source, said="", count=None):
    shown = [{"output_type": "display_data", "data": {"text/markdown": [said]}}] if said else []
    return {"cell_type": "code", "source": [source], "outputs": shown, "execution_count": count}


COMPARED = """\
|  | predicted | measured | predicted / measured |
| :-- | --: | --: | --: |
| sent, bytes | 6,000 | 6,004 | 1 |"""
LAB = notebook(
    *(text("# The lab"), text("## One"), code("check(ring, mine)", "**right:** all cases.", 3)),
    *(text("## Two"), code("check(tree, mine)", "**not yet:** no.", 4)),
    *(text("## Three"), code("predictions.compare(measured)", COMPARED)),
    code("check(graph, mine)"),
)


@pytest.fixture
def labs(tmp_path):
    folder = tmp_path / "labs"
    folder.mkdir()
    (folder / "04-ring.ipynb").write_text(LAB)
    (folder / "04-ring.predictions.json").write_text('{"sent, bytes": 6000}')
    return folder


@pytest.fixture
def shared(tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


def test_a_learner_hands_in_where_the_labs_stand_and_no_code(labs, shared):
    """Must catch: an exercise whose check did not pass that counts as right, the heading of a cell
    that has not run, or a learner's code in the file."""
    path = room.hand_in(shared, "Ada", labs)
    (found,), damaged = room.read_folder(shared)
    assert damaged == [] and "mine" not in path.read_text()
    assert found.name == "Ada" and found.ready is None
    (state,) = found.labs
    assert state.exercises == {"ring": "right", "tree": "not yet", "graph": "open"}
    assert state.section == "Two" and state.measured == {"sent, bytes": 6004}
    assert found.predictions == {"04-ring": {"sent, bytes": 6000}}


GOOD = dict(
    schema=room.HANDED_IN_SCHEMA,
    name="Ada",
    ready=True,
    missing=[],
    labs=[dict(lab="04-ring", section="One", exercises={"ring": "right"}, measured={"x": 1})],
    predictions={"04-ring": {"x": 1}},
    reports=[],
)
OTHER_LAB = dict(lab=4, section="", exercises={}, measured={})


@from_told("field, value", valued)
def test_a_field_of_another_type_damages_its_own_file_only(shared, field, value):
    """Must catch: one learner's file that ends the report of the class in a traceback."""
    (shared / "good.json").write_text(json.dumps(GOOD))
    (shared / "bad.json").write_text(json.dumps({**GOOD, field: value}))
    said = room.class_report(shared)
    assert said.startswith("1 learners: 1 ready") and said.count("damaged") == 2
    assert said.splitlines()[-1].startswith("bad.json is damaged (")


def test_what_is_no_regular_file_is_named_and_not_waited_for(labs, shared, tmp_path):
    """Must catch: a pipe that nobody writes to, or a device without an end, which stop the room; a
    broken link in a learner's labs, for which nothing is handed in."""
    for folder, name in ((shared, "{}.json"), (labs, "0{}-x.ipynb"), (labs, "{}.report.json")):
        os.mkfifo(folder / name.format(1))
        for number, target in enumerate(("/dev/zero", "nowhere", tmp_path), 2):
            (folder / name.format(number)).symlink_to(target)
    os.mkfifo(labs / room.TOKEN)
    (labs / "loop.report.json").symlink_to("loop.report.json")
    room.hand_in(shared, "Ada", labs)
    said = room.class_report(shared)
    assert said.startswith("1 learners: 0 ready, 0 not ready, 1 not examined; 4 damaged files.")
    assert "1.json is damaged (not a regular file)" in said


def test_no_sign_that_a_terminal_obeys_reaches_the_instructor(shared):
    """Must catch: a name, section, lab, exercise, answer of the doctor, prediction or file that
    clears the screen, sets the clipboard or turns the line round; a damaged Persian name."""
    bad = "\x1b[2J\x1b]52;c;QQ==\x07\u202eX\x9b\n"
    state = dict(lab=f"04{bad}", section=bad, exercises={bad: "open"}, measured={bad: 2})
    given = dict(labs=[state], predictions={f"04{bad}": {bad: 1}}, missing=[bad], ready=False)
    for number in range(3):
        given["name"] = ["\u0639\u0644\u06cc\u200c\u0631\u0636\u0627", bad, "x" * 10**6][number]
        (shared / f"{number}{bad[:-1]}.json").write_text(json.dumps({**GOOD, **given}))
    (shared / f"9{bad[:-1]}.json").write_text("{")
    said = room.class_report(shared)
    assert all(one.isprintable() or one in "\n\u200c" for one in said)
    assert said.startswith("3 learners") and max(map(len, said.splitlines())) < 1_000
    assert given["name"][: room.LONGEST_NAME] in said and "\u200c" in said


@from_told("name, content", valued)
def test_a_damaged_file_is_not_handed_in(labs, shared, name, content):
    """Must catch: a traceback for a learner's damaged file, or a file that damages what is handed
    in, so that the instructor sees nothing of this learner."""
    (labs / name).write_text(content)
    room.hand_in(shared, "Ada", labs)
    (found,), damaged = room.read_folder(shared)
    assert [state.lab for state in found.labs] == ["04-ring"] and not damaged
    assert list(found.predictions) == ["04-ring"] and found.reports == []


def test_handing_in_again_replaces_the_file_and_namesakes_have_two(labs, shared, tmp_path):
    """Must catch: a file for each call, or a second Ada who writes over the first."""
    assert room.hand_in(shared, "Ada", labs) == room.hand_in(shared, "Ada", labs)
    other = tmp_path / "others"
    other.mkdir()
    room.hand_in(shared, "Ada", other)
    assert len(room.read_folder(shared)[0]) == 2


@pytest.mark.parametrize("name", ["", "   ", "x" * 41, "\x1b[2JX", "\u202eX", "\0"])
def test_a_name_that_is_none_is_refused(labs, shared, name):
    """Must catch: a file without a name in the shared folder."""
    with pytest.raises(room.CannotCollect, match="1 to 40"):
        room.hand_in(shared, name, labs)
    assert not list(shared.iterdir())


def test_thirty_files_of_which_three_are_damaged(shared):
    """Must catch: one damaged file that hides the class, or a histogram that loses a number."""
    draw = random.Random(39)
    for number in range(30):
        exercises = {"ring": draw.choice(["right", "not yet", "open"])}
        state = GOOD["labs"][0] | dict(exercises=exercises, measured={"sent, bytes": 6004.0})
        guess = {"sent, bytes": draw.choice([6004, 6000, 12_012, 40, 1e9])}
        given = GOOD | dict(name=f"learner {number}", labs=[state], predictions={"04-ring": guess})
        given |= {} if number % 5 else dict(ready=False, missing=["4 ranks"])
        (shared / f"{number:02}.json").write_text(json.dumps(given))
    (shared / "03.json").write_text("{")
    (shared / "07.json").write_text('{"schema": 1}')
    (shared / "11.json").write_text("[" * 100_000)
    learners, damaged = room.read_folder(shared)
    assert len(learners) == 27 and len(damaged) == 3
    said = room.class_report(shared)
    assert all(name in said for name in ("03.json", "07.json", "11.json"))
    assert said.startswith("27 learners: 21 ready, 6 not ready, 0 not examined; 3 damaged files.")
    assert "not ready: 4 ranks" in said and "measured 6,004, " in said
    assert room.class_report(shared, "4") == said
    assert "Nobody has a lab 05" in room.class_report(shared, "5")


@pytest.mark.parametrize("many", [[], [float(number) for number in range(3, 300, 11)]])
def test_a_histogram_counts_each_number_once(many):
    """Must catch: a number that is in no bar or in two, a count of bytes without its last digits, a
    mark beside another number than the measured one, near numbers that do not count as near."""
    numbers = [6004, 6000, 12_012, 40, 1e9, 40, *many]
    head, *bars = room.histogram("sent", numbers, 6004).split("\n")
    assert head.endswith("measured 6,004, 2 within 10% of it")
    for bar in bars:
        said = [float(each.replace(",", "")) for each in re.findall(r"\d[\d,.]*", bar)]
        low, high, count = said if many else (said[0], said[0], said[1])
        ends = bar == bars[-1] or not many
        assert count == sum(low <= number < high or ends and number == high for number in numbers)
        assert bar.endswith("  <- measured") == (low <= 6004 <= high)
    assert many or any("12,012" in bar for bar in bars)


@pytest.mark.parametrize("learners, gpus", [(8, 8), (8, 4), (8, 1), (3, 8), (5, 2), (4, 0)])
def test_seats_share_a_machine_and_give_nothing_twice(learners, gpus):
    """Must catch: two seats on one port, a GPU of a seat of its own given twice, or fractions that
    are more than the GPU together."""
    found = seats.seats(learners, [str(gpu) for gpu in range(gpus)], cores=64, memory_gib=256)
    assert len({seat.port for seat in found}) == learners
    assert sum(seat.memory_gib for seat in found) <= 256
    assert sum(seat.cores for seat in found) <= 64
    for gpu in map(str, range(gpus)):
        sharing = [seat for seat in found if gpu in seat.gpus.split(",")]
        local = [-(-seats.RANKS_OF_A_SEAT // len(seat.gpus.split(","))) for seat in sharing]
        if len(sharing) > 1:
            assert sum(s.fraction * ranks for s, ranks in zip(sharing, local)) <= 1
        else:
            assert all(seat.fraction is None for seat in sharing)


def test_a_report_is_handed_in_once(labs, shared, monkeypatch):
    """Must catch: a report counted twice where the labs' folder is the one a learner is in; a list
    of predictions, for which the whole file would be damaged."""
    monkeypatch.chdir(labs)
    (labs / "zero.report.json").write_text("{}")
    (labs / "05-other.predictions.json").write_text("[1]")
    room.hand_in(shared, "Ada", labs)
    (found,), damaged = room.read_folder(shared)
    assert len(found.reports) == 1 and list(found.predictions) == ["04-ring"] and not damaged


def test_the_gradebook_has_the_best_report_of_each_assignment(labs, shared, tmp_path):
    """Must catch: a later and worse report that counts; a report without points, or with points of
    another type, that ends the class's report; a name or a topic that a spreadsheet would compute;
    a traceback for a name that is empty."""
    given = [("zero", 38), ("zero", 2), ("zero", "9"), (["x"], 1), ("=1", 1)]
    for number, (topic, right) in enumerate(given):
        report = dict(topic=topic, right=right, count=38)
        (labs / f"{number}.report.json").write_text(json.dumps(report))
    (labs / "9.report.json").write_text("{}")
    room.hand_in(shared, "=1+1", labs)
    heads, rows = room.gradebook(room.read_folder(shared)[0])
    assert heads[2:] == ["=1", "of", "zero", "of"] and rows[0][2:] == [1, 38, 38, 38]
    assert "zero" in room.class_report(shared)
    (shared / "nobody.json").write_text(json.dumps({**GOOD, "name": ""}))
    room.write_gradebook(shared, tmp_path / "book.csv")
    heads, *rows = (tmp_path / "book.csv").read_text().splitlines()
    assert heads.split(",")[2:4] == ["'=1", "of"] and any(row.startswith("'=1+1,") for row in rows)


def test_one_folder_is_one_learner(labs, shared, capsys):
    """Must catch: a learner who hands in under a second name counted twice; a damaged file that is
    left out without a word."""
    (labs / "04-ring.predictions.json").write_text('{"a": "many"}')
    for name in ("Ada", "Ada L."):
        room.hand_in(shared, name, labs)
    (found,), damaged = room.read_folder(shared)
    assert found.name == "Ada L." and not found.predictions and not damaged
    assert "04-ring.predictions.json is damaged, and left out" in capsys.readouterr().out


@pytest.mark.ranks
def test_the_script_of_two_nodes_runs(tmp_path):
    """Must catch: a call of the package that the script knows by an older name."""
    script = ROOT / "workshop" / "ranks_of_a_lab.py"
    printed, errors, _ = forked(script, ranks=2, folder=tmp_path)
    assert re.search(r"2 ranks keep [\d,]+ to [\d,]+ bytes", printed), errors
