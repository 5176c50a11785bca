"""Fixtures for tests of the built pages: every page is opened once, and the tests ask what was
found."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from cards import CARDS, build_cards
from pages import ROOT
from told import sample
from visit import new_context, opener_of_pages, page_paths, visit, visitor

from bookkit.words import chapters
from coursekit.show.explorers import EXPLORERS

pytest.register_assert_rewrite("every_page")

SPOILS = (
    """
<style>
  html[data-theme=light] .pale-in-light { color: #bbb }
  html[data-theme=dark] .pale-in-dark { color: #555 }
  .tiny { width: 8px; height: 8px; padding: 0; border: 0; font-size: 8px }
  @media print {
    html, body { background: black !important }
    .explorer-fallback { display: none !important }
  }
</style>
<img src="https://example.org/counter.png" alt=""><img src="missing.png" alt="">
<script>console.error("spoiled on the console")</script><script>nowhere.spoiled()</script>
<p class="pale-in-light">pale in light</p><p class="pale-in-dark">pale in dark</p>
<p style="width: 900px">too wide</p><div style="overflow: auto; white-space: nowrap">"""
    + 200 * "cut-off "
    + """</div>
<p id="late"></p>
<script>document.getElementById("late").textContent = "written by a script"</script>
<p><button class="tiny">a</button><button class="tiny">b</button></p>
<table><thead><tr><th></th><th>head</th></tr></thead><tr><td>1</td><td>2</td></tr></table>
<p>\\(x\\)</p><button class="nameless"></button><button tabindex="-1">skipped</button>
<button class="blind" style="outline: none !important">no focus to be seen</button>
"""
)


@dataclass(frozen=True)
class Place:
    """Where an explorer stands: a book's folder, the book's address over http, the page's path from
    there."""

    folder: Path
    server: str
    path: str

    def address(self, protocol="file"):
        return f"{self.folder.as_uri() if protocol == 'file' else self.server}/{self.path}"


@pytest.fixture(scope="session")
def explorer_places(book_html, book_server):
    """Explorer -> Place on the first page of the built book that has it."""
    texts = {path: (book_html / path).read_text(encoding="utf-8") for path in page_paths(book_html)}
    found = {
        name: next((path for path, text in texts.items() if f'id="explorer-{name}"' in text), None)
        for name in EXPLORERS
    }
    assert None not in found.values(), f"an explorer that no page shows: {found}"
    return {name: Place(book_html, book_server, path) for name, path in found.items()}


@pytest.fixture(scope="session")
def explorers_alone(tmp_path_factory, serve):
    """Explorer -> Place on a page that has that explorer only: a chapter takes a second to open."""
    folder = tmp_path_factory.mktemp("explorers")
    build_cards(folder, {name: f"{{explorer}} {name}" for name in EXPLORERS})
    with serve(folder / "html") as address:
        yield {name: Place(folder / "html", address, f"chapters/{name}.html") for name in EXPLORERS}


@pytest.fixture(scope="session")
def card_pages(tmp_path_factory):
    """Directive -> path of the page that has that card only, and predict -> a page of boxes: one
    small book for all tests."""
    folder = tmp_path_factory.mktemp("cards")
    return build_cards(folder, CARDS, predict=sample("predict.md"))


@pytest.fixture
def opened(browser):
    with opener_of_pages(browser) as opened:
        yield opened


@pytest.fixture
def card(open_card):
    """The card of the test's module, for a reader who wants no motion; nothing may fail."""
    card = open_card(reduced_motion="reduce")
    yield card
    assert not card.page.watch.errors and not card.page.watch.failed


@pytest.fixture(scope="session")
def paths(book_html):
    """Every page of the book, as paths from its folder."""
    return page_paths(book_html)


@pytest.fixture(scope="session")
def homes(book_html, book_server):
    """Where the book's folder is, without a slash at the end, for a reader of files and for a
    reader on the web."""
    return {"file": book_html.as_uri(), "http": book_server}


# The same on every page: the Tab key goes through it on the first one.
CONTENTS = ".bd-sidebar-primary, .bd-header"
# One page of each kind: what is the same on all pages of a kind is looked at there.
KINDS = (
    "index.html",
    "search.html",
    "chapters/bibliography.html",
    "chapters/formula-sheet.html",
    "chapters/pipelines.html",
    "labs/04-collectives.html",
)


# An element with its attributes. Of what a drawing, a formula and coloured code are made of, axe
# says nothing, and no key goes there; test_cards.py and test_explorer.py go through these cards.
ELEMENT = re.compile(r'<([a-z][\w-]*)((?:\s+[\w-]+(?:="[^"]*")?)*)\s*/?>')
WITHIN = {*"path g rect line polygon polyline circle text mo mi mn mrow span".split()}
OF_CARDS = ("bits", "explorer", "gradients", "stepper")


@pytest.fixture(scope="session")
def with_new_elements(book_html, paths):
    """The two pages that are like no other, and few more, each with six elements at least for
    100,000 bytes, by name and class, that none before it has: by day axe and the Tab key go
    through these, at night through all."""
    elements = {}
    for path in paths:
        text = (book_html / path).read_text(encoding="utf-8")
        elements[path] = {
            (name, kind)
            for name, attributes in ELEMENT.findall(text[text.find("<article") :])
            for kind in (re.search(r'class="([^"]*)"|$', attributes)[1] or "").split() or [""]
            if name not in WITHIN and not kind.startswith(OF_CARDS)
        }
    found = {"index.html", "search.html"}
    left = set().union(*elements.values()).difference(*(elements[page] for page in found))

    def worth(path):
        return len(elements[path] & left) / ((book_html / path).stat().st_size + 50_000)

    while worth(page := max(paths, key=worth)) > 6e-5:
        found.add(page)
        left -= elements[page]
    return found


@pytest.fixture(scope="module", params=["by day", pytest.param("all", marks=pytest.mark.nightly)])
def visits(request, browser, homes, paths, with_new_elements):
    """Path -> Visit of the pages of the module's share, opened as files, in its colours: by day
    chapters, and pages with new elements on paper too; at night all."""
    looks, found, mode, all_pages = {}, {}, request.module.COLOURS, request.param == "all"
    by_day = with_new_elements | {f"chapters/{chapter.stem}.html" for chapter in chapters(ROOT)}
    with new_context(browser) as context:
        page = visitor(context)
        for path in paths[request.module.SHARE]:
            if not all_pages and path not in by_day:
                continue
            inert = CONTENTS if with_new_elements & found.keys() else ""
            address, thorough = f"{homes['file']}/{path}", path in with_new_elements
            printed = thorough or all_pages
            found[path] = visit(page, address, mode, looks, inert, thorough, printed)
    return found


@pytest.fixture(scope="session")
def spoiled(explorers_alone):
    """A page with an explorer, spoiled in every way the tests have to see."""
    place = explorers_alone["does-it-fit"]
    text = (place.folder / place.path).read_text(encoding="utf-8")
    text = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)  # it stops spoils
    page = (place.folder / place.path).with_name("spoiled.html")
    page.write_text(text.replace("</article>", f"{SPOILS}</article>"), encoding="utf-8")
    return page.as_uri()


@pytest.fixture(scope="session")
def spoiled_visit(browser, spoiled):
    """The findings of `visit` there."""
    with new_context(browser) as context:
        return visit(visitor(context), spoiled, "dark")
