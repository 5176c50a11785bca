"""Cards for whoever teaches, the instructor's edition of the labs, and the timed plans."""

import json
import re
from dataclasses import replace

import nbformat
import pytest
import yaml
from facilitator import (
    UNRECORDED,
    card,
    instructors_edition,
    measured_numbers,
    on_gpus,
    sections,
    to_three_digits,
)
from pages import ROOT

from coursekit.exercises.slips import slips_of, unit_in
from coursekit.recordings.recordings import read_all

RECORDINGS = read_all(ROOT / "measured")
LABS = sorted((ROOT / "labs").glob("*.ipynb"))
PLANS = {"45 minutes": 45, "90 minutes": 90, "Half a day": 210, "One day": 465, "Two days": 915}


@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_a_card_knows_its_lab(path):
    """Must catch: a lab without a card, a prediction without its number, an exercise without the
    sentences of its wrong answers, a section that is lost, 2,005 written as 2,000, which is another
    wrong number."""
    lab = nbformat.read(path, as_version=4)
    text, numbers = card(lab, RECORDINGS), measured_numbers(lab)
    assert (ROOT / "workshop" / "cards" / f"{path.stem}.md").is_file()
    assert f"workshop/cards/{path.stem}" in (ROOT / "_toc.yml").read_text("utf-8")
    parts = sections(lab)
    assert len(parts) >= 8 and sum(part.minutes for part in parts if part.core) < 45
    locked = [name for part in parts for name in part.predictions]
    assert locked and set(locked) <= set(numbers)
    exercises = [each for part in parts for each in part.exercises]
    assert len(exercises) >= 4 and "Where learners get stuck" in text and "**Solution**" in text
    assert any(slips_of(name).slips for name in locked) and "**Wrong numbers** for" in text
    assert not re.search(r"^(- [\d,.]+:).*\n(?:- .*\n)*?\1", text, re.MULTILINE)
    headings = [
        found[1]
        for cell in lab.cells
        if cell.cell_type == "markdown"
        and (found := re.search(r"^## (.+)$", cell.source, re.MULTILINE))
    ]
    assert [part.title for part in parts] == headings
    assert all(f"{{rubric}} {title} (" in text for title in headings)


def test_the_instructors_edition_is_the_stored_lab_with_notes():
    """Must catch: a solution or an output that is lost, a note below the wrong heading."""
    lab = nbformat.read(LABS[3], as_version=4)
    edition = instructors_edition(lab, RECORDINGS)
    notes = [cell for cell in edition.cells if "For the instructor" in cell.source]
    assert [cell for cell in edition.cells if cell not in notes] == lab.cells
    assert len(notes) == len(sections(lab))
    for before, note in zip(edition.cells, edition.cells[1:]):
        if note in notes:
            assert re.search(r"^## ", before.source, re.MULTILINE)


def test_each_number_says_where_it_is_from_on_gpus():
    """Must catch: seconds of this machine called the same on a GPU, a row that no recording has, a
    recording of a CPU taken for a GPU's, a number that was worked out with no name beside it."""
    locked = {
        name
        for path in LABS
        for part in sections(nbformat.read(path, as_version=4))
        for name in part.predictions
    }
    times = {"rate", "microseconds", "milliseconds", "ms", "seconds"}
    timed = {name for name in locked if unit_in(name) in times}
    said = {name: slips_of(name).on_gpus for name in locked}
    listed = {name for name in locked if said[name] != "the same"}
    assert timed <= listed
    rows = [words for words in said.values() if "recorded(" in words]
    assert rows and all(on_gpus(words, RECORDINGS)[2] for words in rows)
    ours = [replace(one, hardware=replace(one.hardware, kind="cpu")) for one in RECORDINGS]
    assert all(on_gpus(words, ours) == (UNRECORDED, "as on one", None) for words in rows)
    *words, recording = on_gpus(said["memory, GB/s"], RECORDINGS)
    (row,) = recording.find("roofline.memory")
    assert words == [f"{to_three_digits(row.value / 1e9)}, `roofline.memory`", "as on one"]
    assert on_gpus(said["link, GB/s"], RECORDINGS) == (UNRECORDED, "360, *virtual*", None)
    assert on_gpus(said["stage 1, bytes"], RECORDINGS) == ("the same", "the same", None)
    text = card(nbformat.read(LABS[1], as_version=4), RECORDINGS)
    assert f"Rows named in the table are {recording.label}." in text and "*Virtual*:" in text


def test_the_plans_take_the_minutes_of_their_titles():
    """Must catch: a row that is added to a plan and taken from nothing."""
    text = (ROOT / "workshop" / "plans.md").read_text("utf-8")
    for part in re.split(r"(?m)^## ", text)[1:]:
        title = part.partition("\n")[0].partition(":")[0]
        if title in PLANS:
            rows = re.findall(r"^\| (\d+) \|", part, re.MULTILINE)
            assert sum(map(int, rows)) == PLANS[title], title


def test_the_seconds_that_the_plans_print_were_walked():
    """Must catch: a section of a timed plan that is renamed or added and walked by nobody."""
    walked = json.loads((ROOT / "workshop" / "walked.json").read_text("utf-8"))
    text = (ROOT / "workshop" / "plans.md").read_text("utf-8")
    timed = re.search(r"(?ms)^\(plan-90\)=.*?^\(plan-", text)[0]
    sections_named = re.findall(r"\{section\}`(.+?)`", timed)
    assert {"doctor", "04-collectives", "06-zero", *sections_named} <= set(walked["seconds"])
    assert re.findall(r"\{walked\}`(\d\d-.+?: .+?)`", timed) == sections_named


def test_every_page_of_the_workshop_is_in_the_contents():
    """Must catch: a page of the room that no reader of the book finds."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8"))
    listed = set(re.findall(r"workshop/[\w/-]+", str(toc)))
    there = {str(p.relative_to(ROOT).with_suffix("")) for p in (ROOT / "workshop").rglob("*.md")}
    assert listed == there
