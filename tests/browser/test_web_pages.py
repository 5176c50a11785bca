"""Pages over http: what they ask for, what they fail at, and what moves when scripts draw. Pages on
which no script draws are alike here: they ask for the same, by the addresses that test_pages.py has
followed as files."""

import re

import pytest
from conftest import KINDS
from visit import HOLD_CARDS, Watch, lines, moved_by_scripts, new_context, open_all, open_page

at_night = pytest.mark.nightly
DRAWN_BY_SCRIPTS = re.compile('class="(explorer|predict|plotly-figure)')
CARD = re.compile('class="(explorer |planner|trace-card)')
FEW = re.compile('class="(planner|trace-card|explorer bits|explorer gradients)')


@pytest.fixture(scope="module")
def texts(book_html, paths):
    """Path -> HTML of every page."""
    return {path: (book_html / path).read_text(encoding="utf-8") for path in paths}


def watched(browser, homes, paths):
    """Path -> Watch of pages, with everything unfolded and every stepper asked for another picture,
    as `visit` does with files."""
    watches = {}
    with new_context(browser, reduced_motion="no-preference") as context:
        for path in sorted(paths):
            page = context.new_page()
            watches[path] = Watch.of(page)
            open_page(page, f"{homes['http']}/{path}")
            open_all(page)
            page.close()
    return watches


@pytest.mark.parametrize("of", ["a page of each kind", pytest.param("all", marks=at_night)])
def test_web_pages_load_without_failures_and_ask_for_nothing_outside(browser, homes, texts, of):
    """Must catch: an address that is right on a disk and leads elsewhere on the web, such as
    //cdn.example.org/x.js; a missing file (404), a script that throws only over http; a script that
    is fetched on demand and refused by the page's policy."""
    drawn = {path for path, text in texts.items() if DRAWN_BY_SCRIPTS.search(text)}
    watches = watched(browser, homes, {*KINDS, *(drawn if of == "all" else ())})
    assert not lines(
        {
            path: watch.outside(homes["http"]) + watch.failed + watch.errors
            for path, watch in watches.items()
        }
    )


def held_page(opened, width):
    """A page of a window of that width on which the scripts of cards wait."""
    page = opened(viewport={"width": width, "height": 844})
    page.add_init_script(HOLD_CARDS)
    return page


@pytest.mark.parametrize(
    ("width", "of"),
    [
        *((390, FEW), (1280, FEW)),
        *(pytest.param(width, CARD, marks=at_night) for width in (390, 1280)),
    ],
    ids=["phone", "desk", "phone-all", "desk-all"],
)
def test_nothing_moves_when_scripts_draw(opened, homes, texts, width, of):
    """Must catch: a picture without the room that show/pictures.py keeps, on any page; a card that
    is a table until its script comes. That no font swaps is said by
    test_pages_ask_for_the_faces_they_show, in tests/engines."""
    page = held_page(opened, width)
    pages = [path for path, text in texts.items() if of.search(text)]
    assert len(pages) >= 3
    found = {path: moved_by_scripts(page, f"{homes['http']}/{path}")[:4] for path in pages}
    assert not lines(found)


LATE_CARD = """<script>addEventListener("load", () => requestAnimationFrame(() => {
  const card = document.createElement("p");
  card.style.height = "140px";
  document.querySelector("article").prepend(card);
}))</script></article>"""
SPOILS = {
    "a card that comes late": ("</article>", LATE_CARD),
    "no room for a picture": (r'(class="explorer-drawing") style="[^"]*"', r"\1"),
    "a card that is a table first": (r"<script>if \(window.BOOK.*?</script>", ""),
    "no room for the nearest layouts": (
        r'(aria-label="Nearest that fits">).*?</div>',
        r"\1<i data-old hidden></i></div>",  # which is waited for until the layouts replace it
    ),
    "no room for buttons in a table": (r'(<td data-head="t">)<span>(.*?)</span>', r"\1\2"),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("width", [390, pytest.param(1280, marks=at_night)])
@pytest.mark.parametrize("spoil", SPOILS)
def test_what_moves_when_scripts_draw_is_seen(opened, homes, texts, width, spoil):
    """Must catch: a measure that sees nothing, or only what is on the first screen."""
    path = "index.html" if "picture" in spoil or "card" in spoil else "chapters/any-layout.html"
    text = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", texts[path])
    text, count = re.subn(*SPOILS[spoil], text)
    assert count
    page = held_page(opened, width)
    page.route(f"**/{path}", lambda route: route.fulfill(body=text, content_type="text/html"))
    assert moved_by_scripts(page, f"{homes['http']}/{path}")
