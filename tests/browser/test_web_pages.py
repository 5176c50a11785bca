"""Pages over http: what they ask for, what they fail at, and what moves while they load. Pages on
which no script draws are alike here: they ask for the same, by the addresses that test_pages.py has
followed as files."""

import re
from dataclasses import dataclass
from shutil import copytree

import pytest
from conftest import KINDS
from visit import Watch, come_past, lines, new_context, open_all, shift_of_load

WIDTHS = (390, 768, 1280)
DRAWN_BY_SCRIPTS = re.compile('class="(explorer|predict|plotly-figure)')


@dataclass(frozen=True)
class WebVisit:
    """A page over http: what it asked for, and how far things move while it loads, by the width of
    the window."""

    watch: Watch
    shifts: dict[int, float]


@pytest.fixture(scope="module")
def web_visits(browser, book_html, homes, paths):
    """Path -> WebVisit of the pages on which scripts draw, and of one of each kind, with everything
    unfolded and every stepper asked for another picture, as `visit` does with files. Between a
    phone and a desk no page is laid out in a way of its own, so one of each kind is looked at."""
    texts = {path: (book_html / path).read_text(encoding="utf-8") for path in paths}
    with_cards = [path for path in paths if DRAWN_BY_SCRIPTS.search(texts[path])]
    paths = sorted({*KINDS, *with_cards})
    shifts, watches = {path: {} for path in paths}, {}
    with new_context(browser, reduced_motion="no-preference") as context:
        page = context.new_page()
        for width, some in ((WIDTHS[0], paths), (WIDTHS[1], KINDS)):
            for path in some:
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
    """Text that is being read stays where it is: the layout shifts of a load, as browsers count
    them, are at most 0.05.

    Must catch: `font-display: swap`, with which a line breaks elsewhere once its font is there
    (0.17 on chapter 3 at 390 px, 0.12 on the formula sheet at 768 and on the bibliography at 1280);
    a card that a script makes 140 px higher once the page was drawn. On most pages such a shift is
    below 0.05: that no font swaps is said by test_pages_ask_for_the_faces_they_show, in
    tests/engines."""
    moved = {
        path: visit.shifts[width] for path, visit in web_visits.items() if width in visit.shifts
    }
    assert len(moved) >= len(KINDS)
    assert {path: round(shift, 3) for path, shift in moved.items() if shift > 0.05} == {}


LATE_CARD = """<script>addEventListener("load", () => requestAnimationFrame(() => {
  const card = document.createElement("p");
  card.style.height = "140px";
  document.querySelector("article").prepend(card);
}))</script>"""


def late_fonts(folder):
    """Fonts that are shown when they come, and half as wide again as those before them."""
    sheet = folder / "_static" / "book.css"
    text, count = re.subn(
        "font-display:optional",
        "font-display:swap;size-adjust:150%",
        sheet.read_text(encoding="utf-8"),
    )
    assert count == 5
    sheet.write_text(text, encoding="utf-8")


def late_card(folder):
    """A card that a script puts above the text once the page was drawn."""
    page = folder / "index.html"
    text = page.read_text(encoding="utf-8")
    text = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)  # it stops scripts
    page.write_text(text.replace("</article>", f"{LATE_CARD}</article>"), encoding="utf-8")


@pytest.fixture(scope="module", params=[late_fonts, late_card])
def late_page(request, book_html, tmp_path_factory, serve):
    """Address of a front page of the book on which something comes late and moves the rest."""
    folder = tmp_path_factory.mktemp("late") / "html"
    copytree(book_html, folder)
    request.param(folder)
    with serve(folder) as address:
        yield f"{address}/index.html"


@pytest.mark.parametrize("width", WIDTHS)
def test_what_moves_while_a_page_loads_is_seen(browser, late_page, width):
    """Must catch: a measure of layout shifts that sees none: fonts let through before the page was
    drawn, shifts read before they have happened."""
    with new_context(browser, reduced_motion="no-preference") as context:
        assert shift_of_load(context.new_page(), late_page, width) > 0.05
