"""Every page over http: what it asks for, what it fails at, and what moves while it loads."""

from dataclasses import dataclass

import pytest
from visit import Watch, come_past, lines, new_context, open_all, shift_of_load

WIDTHS = (390, 768, 1280)


@dataclass(frozen=True)
class WebVisit:
    """A page over http: what it asked for, and how far things move while it loads, by the width of
    the window."""

    watch: Watch
    shifts: dict[int, float]


@pytest.fixture(scope="module")
def web_visits(browser, homes, paths):
    """Path -> WebVisit of every page, with everything unfolded and every stepper asked for another
    picture, as `visit` does with files."""
    shifts, watches = {path: {} for path in paths}, {}
    with new_context(browser, reduced_motion="no-preference") as context:
        for width in WIDTHS[:-1]:
            page = context.new_page()
            for path in paths:
                shifts[path][width] = shift_of_load(page, f"{homes['http']}/{path}", width)
            page.close()
        for path in paths:
            page = context.new_page()
            watches[path] = Watch.of(page)
            shifts[path][WIDTHS[-1]] = shift_of_load(page, f"{homes['http']}/{path}", WIDTHS[-1])
            come_past(page)
            open_all(page)
            page.close()
    return {path: WebVisit(watches[path], shifts[path]) for path in paths}


def test_the_web_pages_ask_for_nothing_outside_the_book(web_visits, homes):
    """Must catch: an address that is right on a disk and leads elsewhere on the web, such as
    //cdn.example.org/x.js."""
    assert not lines(
        {path: visit.watch.outside(homes["http"]) for path, visit in web_visits.items()}
    )


def test_the_web_pages_load_without_failures_and_errors(web_visits):
    """With everything unfolded and every stepper asked for another picture.

    Must catch: a missing file (404), a script that throws only over http; a script that is fetched
    on demand and refused by the page's policy."""
    assert not lines(
        {path: visit.watch.failed + visit.watch.errors for path, visit in web_visits.items()}
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_moves_while_a_page_loads(web_visits, width):
    """What is being read stays where it is: the layout shifts of a load, as browsers count them,
    are at most 0.05 on every page.

    Must catch: `font-display: swap`, with which a line breaks elsewhere once its font is there
    (0.18 on chapter 3 at 390 px, 0.27 on ZeRO's at 768, 0.12 on the formula sheet at 1280); a card
    that a script makes 140 px higher once the page was drawn (0.07 on the front page at 390)."""
    moved = {path: visit.shifts[width] for path, visit in web_visits.items()}
    assert {path: round(shift, 3) for path, shift in moved.items() if shift > 0.05} == {}
