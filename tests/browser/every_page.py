"""The tests of every page, as a reader meets it: from a disk, narrow, printed, without JavaScript.
A module that takes these names looks at the pages of its own SHARE. "Must catch" names what was put
on a copied page, or taken off it; conftest.SPOILS has what is put there in every run."""

import re

import pytest
from conftest import CONTENTS
from pages import ROOT
from visit import in_every_way, lines, new_context, without_scripts

from bookkit.words import chapters

at_night = pytest.mark.nightly


# Kind of fault -> the sentences about it, of a Visit. Must catch:
FAULTS = {
    # <img src="https://...">, a font from elsewhere, a script that fetches
    "asks for what is outside": lambda visit, home: visit.watch.outside(home),
    # <img src="missing.png">, a script that throws, console.error in a script; `eval`, a script
    # that is fetched on demand, or a style that plotly writes, which the policy refuses
    "fails": lambda visit, _: visit.watch.failed + visit.watch.errors,
    # a page without <link rel="icon">: browsers then ask the server for /favicon.ico, a 404
    "has no icon": lambda visit, _: ["names none"] * (not visit.icons),
    # <p style="width: 900px">, also where `overflow-x: clip` hides it
    "is wider than a phone": lambda visit, _: visit.phone,
    # WCAG 2.2, levels A and AA, on a phone: text too pale for its page, a button without a name, a
    # list with children that are not items, two buttons of 8 px side by side, a head without text
    "axe finds": lambda visit, _: visit.axe,
    # tabindex="-1" on a button, `outline: none`, a slider that swallows arrow keys, a trap for Tab.
    # (Controls of explorers are moved in test_explorer.py.)
    "the keyboard does not reach or move": lambda visit, _: visit.keyboard,
    # a start at DOMContentLoaded, or scripts loaded with `defer`
    "a card is dead while the page is read": lambda visit, _: visit.late,
    # a label of the peak in the line of the title, or longer than the figure is wide; digits of
    # 7 px in the grid of a schedule
    "texts of figures collide": lambda visit, _: visit.collisions,
    # the dark page printed dark, menus on paper, code that paper cuts off, code or a box that
    # leaves half a page empty, as it does not break; a card without its table, or with a slider
    "paper": lambda visit, _: visit.paper,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_no_page_has_a_fault(visits, homes, fault):
    """Must catch: what stands above each kind of fault."""
    found = {path: FAULTS[fault](visit, homes["file"]) for path, visit in visits.items()}
    assert found and not lines(found)


@at_night
@pytest.mark.timeout(3600)  # minutes alone, a quarter of an hour beside others
def test_axe_and_the_keyboard_find_nothing_in_any_way(browser, homes, paths, request):
    """Must catch: text too pale in one of the colours, or a target too small on a desk alone; a
    head without text in a table of a page whose elements others have, too."""
    looks, found = {}, {}
    with new_context(browser) as context:
        for path in paths[request.module.SHARE]:
            address, inert = f"{homes['file']}/{path}", CONTENTS if found else ""
            for way, problems in in_every_way(context, address, looks, inert).items():
                found[f"{path}, {way}"] = problems
    assert not lines(found)


def test_a_chapter_opens_with_its_picture(visits):
    """Must catch: a first screen of text alone; objectives that push the picture down, on a desk or
    on a phone; exercises, or the listing of a whole file, that lie open."""
    found = {f"chapters/{chapter.stem}.html" for chapter in chapters(ROOT)} & {*visits}
    screens = {path: visits[path].screens for path in found}
    assert (
        screens
        and {
            path: (phone, desk)
            for path, (phone, desk) in screens.items()
            if desk["tall"] > 14 or desk["seen"] < 0.6 or not (phone["after"] and desk["beside"])
        }
        == {}
    )


NUMBER = re.compile(r"\b\d[\d,.]*\d (?:[kMGT]?i?B|ms|s|bytes)\b|\b\d+\.\d%")
DEFINES = re.compile(r"[^.]*\bis called\b[^.]*\.")


def test_no_number_of_an_answer_is_beside_its_box(visits):
    """Must catch: an answer that is marked in part, so that a table or a formula beside it gives it
    away; a definition inside of an answer, which whoever scrolls on would miss."""
    given_away, boxes = [], 0
    for path, visit in visits.items():
        asked = {*NUMBER.findall(" ".join(question for _, question, _ in visit.answers))}
        for answer, _, beside in visit.answers:
            boxes += 1
            numbers = {*NUMBER.findall(answer)} - asked
            given_away += [f"{path}: {number}" for number in numbers if number in beside]
            given_away += [f"{path}: {said}" for said in DEFINES.findall(answer)]
    assert not given_away and boxes > 3


def test_without_javascript(opened, visits, homes):
    """Must catch: text or a formula that only a script shows, an explorer without its table, a
    button that does nothing."""
    page = opened(java_script_enabled=False)
    problems = {
        path: without_scripts(page, f"{homes['file']}/{path}", visit.blocks)
        for path, visit in visits.items()
        if visit.blocks
    }
    assert problems and not lines(problems)
