"""Cards for whoever teaches, the instructor's edition of the labs, and the timed plans."""

import re
from pathlib import Path

import nbformat
import pytest
import yaml

from bookkit.facilitator import card, instructors_edition, measured_numbers, sections
from coursekit.exercises.slips import slips_of

ROOT = Path(__file__).resolve().parents[2]
LABS = sorted((ROOT / "labs").glob("*.ipynb"))
PLANS = {"45 minutes": 45, "90 minutes": 90, "Half a day": 210, "One day": 465, "Two days": 915}


@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_a_card_knows_its_lab(path):
    """Must catch: a lab without a card, a prediction without its number, an exercise without the
    sentences of its wrong answers, a section that is lost."""
    lab = nbformat.read(path, as_version=4)
    text, numbers = card(lab), measured_numbers(lab)
    assert (ROOT / "workshop" / "cards" / f"{path.stem}.md").is_file()
    assert f"workshop/cards/{path.stem}" in (ROOT / "_toc.yml").read_text("utf-8")
    parts = sections(lab)
    assert len(parts) >= 8 and sum(part.minutes for part in parts if part.core) < 45
    locked = [name for part in parts for name in part.predictions]
    assert locked and set(locked) <= set(numbers)
    exercises = [each for part in parts for each in part.exercises]
    assert len(exercises) >= 4 and "Where learners get stuck" in text and "**Solution**" in text
    assert any(slips_of(name).slips for name in locked) and "Who says of" in text
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
    edition = instructors_edition(lab)
    notes = [cell for cell in edition.cells if "For the instructor" in cell.source]
    assert [cell for cell in edition.cells if cell not in notes] == lab.cells
    assert len(notes) == len(sections(lab))
    for before, note in zip(edition.cells, edition.cells[1:]):
        if note in notes:
            assert re.search(r"^## ", before.source, re.MULTILINE)


def test_the_plans_take_the_minutes_of_their_titles():
    """Must catch: a row that is added to a plan and taken from nothing."""
    text = (ROOT / "workshop" / "plans.md").read_text("utf-8")
    for part in re.split(r"(?m)^## ", text)[1:]:
        title = part.partition("\n")[0].partition(":")[0]
        if title in PLANS:
            rows = re.findall(r"^\| (\d+) \|", part, re.MULTILINE)
            assert sum(map(int, rows)) == PLANS[title], title


def test_every_page_of_the_workshop_is_in_the_contents():
    """Must catch: a page of the room that no reader of the book finds."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8"))
    listed = set(re.findall(r"workshop/[\w/-]+", str(toc)))
    there = {str(p.relative_to(ROOT).with_suffix("")) for p in (ROOT / "workshop").rglob("*.md")}
    assert listed == there
