"""The tests of every page, as a reader meets it: from a disk, narrow, printed, without JavaScript.

A module that takes these names looks at the pages of its own SHARE, so that two workers look at
half of them each: test_pages_first.py and test_pages_second.py. "Must catch" below names what was
put on a copied page, or taken off it, to see the test fail; what stands in conftest.SPOILS is put
there in every run, and test_pages.py looks whether it is found.
"""

import pytest
from visit import lines, new_context, without_scripts


def test_files_ask_for_nothing_outside_the_book(visits, homes):
    """Must catch: <img src="https://...">, a font from elsewhere, a script that fetches."""
    assert not lines({path: visit.watch.outside(homes["file"]) for path, visit in visits.items()})


def test_files_load_without_failures_and_errors(visits):
    """Must catch: <img src="missing.png">, a script that throws, console.error in a script."""
    assert not lines(
        {path: visit.watch.failed + visit.watch.errors for path, visit in visits.items()}
    )


def test_explorers_and_figures_keep_to_the_policy(visits, book_html):
    """With everything unfolded and every stepper asked for another picture; over http, it is asked
    in test_web_pages.py.

    Must catch: `eval` in a script; a script that is fetched on demand and refused; a style that
    plotly writes and the policy refuses."""
    problems = {}
    for path, visit in visits.items():
        text = (book_html / path).read_text(encoding="utf-8")
        if 'class="explorer' in text or "plotly-figure" in text:
            problems[path] = visit.watch.errors + visit.watch.failed
    assert len(problems) >= 5 and not lines(problems)


def test_every_page_names_its_icon(visits):
    """Must catch: a page without <link rel="icon">, for which browsers ask the server for
    /favicon.ico: a 404."""
    assert [path for path, visit in visits.items() if not visit.icons] == []


def test_nothing_is_wider_than_a_phone(visits):
    """Must catch: <p style="width: 900px">, also where `overflow-x: clip` hides it."""
    assert not lines({path: visit.phone for path, visit in visits.items()})


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_axe_finds_nothing(visits, mode):
    """WCAG 2.2, levels A and AA, with the size of what one taps, at 390 px, and at 1280 px on one
    page of each kind. (What a card shows a desk alone is looked at in the tests of cards.)

    Must catch: text too pale for its page (in that mode only), a button without a name, a list
    with children that are not items, two buttons of 8 px side by side, a head without text."""
    assert not lines({path: getattr(visit, mode) for path, visit in visits.items()})


def test_texts_of_figures_keep_apart(visits):
    """On a phone.

    Must catch: a label of the peak in the line of the title, or longer than the figure is wide;
    digits of 7 px in the grid of a schedule."""
    assert not lines({path: visit.collisions for path, visit in visits.items()})


def test_the_keyboard_alone_reaches_and_moves_everything(visits):
    """The controls of explorers are reached here, and moved in test_explorer.py. The book's
    contents are gone through on the first page.

    Must catch: tabindex="-1" on a button, `outline: none`, a slider that swallows arrow keys, a
    trap for Tab."""
    assert not lines({path: visit.keyboard for path, visit in visits.items()})


def test_paper(visits):
    """Must catch: the dark page printed dark, menus on paper, code that paper cuts off, code or a
    box that leaves half a page empty, as it does not break."""
    assert not lines({path: visit.paper for path, visit in visits.items()})


def test_explorers_on_paper(visits):
    """Must catch: no table on paper; a slider on paper."""
    assert not lines({path: visit.explorers_on_paper for path, visit in visits.items()})


def test_without_javascript(browser, visits, homes):
    """Must catch: text or a formula that only a script shows, an explorer without its table, a
    button that does nothing."""
    with new_context(browser, java_script_enabled=False) as context:
        page = context.new_page()
        problems = {
            path: without_scripts(page, f"{homes['file']}/{path}", visit.blocks)
            for path, visit in visits.items()
        }
    assert not lines(problems)
