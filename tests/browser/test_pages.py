"""Pages as a reader meets them: looked for, printed, on a phone, on the first screen; and whether
the looks at every page, in every_page.py, see what they are for."""

import re
from pathlib import Path
from urllib.parse import quote

import pytest
from cards import AS_WIDE
from keyboard import VALUES, walk
from night import at_night
from pypdfium2 import PdfDocument
from told import from_told
from visit import (
    DESKTOP,
    JS,
    PHONE,
    TOUCH,
    Watch,
    in_colours,
    in_every_way,
    new_context,
    open_all,
    open_page,
    printed_text,
    until,
    without_scripts,
)

import bookkit
from coursekit.show import embed

STATIC = Path(bookkit.__file__).parent / "static"


FOLD = """() => {
  const seen = [...document.querySelectorAll(
    ".bd-article :is(h1, h2, p, li, button, input, select, summary)")].filter(one =>
    one.checkVisibility({ visibilityProperty: true }) && !one.closest(".explorer-picture, figure")
    && one.getBoundingClientRect().top < innerHeight);
  const prose = seen.filter(one => one.matches("h1, h2, p, li")).map(one => one.innerText);
  return [prose.join(" ").match(/\\w*[a-z]\\w*/gi).length,
    seen.filter(one => !one.matches("h1, h2, p, li")).length];
}"""


def test_the_front_page_is_a_door(opened, homes):
    """Must catch: an explorer of four menus and six groups at the top; two explorers above the
    fold; buttons for authors beside Reset; a paragraph or a banner before the explorer, so that one
    has to scroll to meet it."""
    page = opened(f"{homes['file']}/index.html")
    for window in (DESKTOP, PHONE):
        page.set_viewport_size(window)
        until(page, AS_WIDE)
        box = page.locator(".explorer svg").first.bounding_box()
        assert box["y"] + box["height"] <= window["height"], window
    page.set_viewport_size({"width": 1280, "height": 900})
    until(page, AS_WIDE)
    words, controls = page.evaluate(FOLD)
    assert 40 < words <= 80 and 4 <= controls <= 8, (words, controls)


KEYS = """() => {
  const boxes = [...document.querySelectorAll(".bd-article :is(pre:not([hidden]), .math-scroll)")];
  const keys = (seen, rest) => boxes.some(one => one.checkVisibility() === seen && rest(one));
  return [keys(false, one => one.tabIndex === 0),
    keys(true, one => one.scrollWidth > one.clientWidth && one.tabIndex !== 0)];
}"""


def test_what_is_folded_gets_its_keys_when_it_opens(opened, homes):
    """Must catch: boxes in folds measured with the page, each with a layout of its own, half a
    second of a slow phone; wide code in an answer or a fold that no key reaches once it is open."""
    page = opened(f"{homes['file']}/chapters/collectives.html", viewport=PHONE)
    page.wait_for_selector(".copy-button", state="attached")
    page.wait_for_function(f"!({KEYS})()[1]")
    assert page.evaluate(KEYS) == [False, False]
    for skip in page.get_by_role("button", name="Look without one").all():
        skip.click()
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    page.wait_for_function(f"!({KEYS})()[1]")


def test_the_pages_of_labs_ask_before_they_tell(book_html):
    """Must catch: what was measured in sight below its question; a question that hides nothing."""
    for path in sorted((book_html / "labs").glob("*.html")):
        marked = re.findall(r'class="(?:[^"]* )?(asks|answer)[ "]', path.read_text("utf-8"))
        assert marked == ["asks", "answer"] * (len(marked) // 2) and len(marked) >= 4, path.name


# ---------------------------------------------------------------- what a page asks for


def weight(page):
    """Bytes of a page's HTML and of the scripts and style sheets it loads at once, without those of
    the theme."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r'<(?:script|link)\b[^>]*\b(?:src|href)="([^"?]+\.(?:js|css))\b', text)
    ours = {path.name for path in (*STATIC.iterdir(), *embed.STATIC.iterdir())} | {"palette.css"}
    return len(text.encode()) + sum(
        (page.parent / name).stat().st_size for name in found if name.rpartition("/")[2] in ours
    )


# A page keeps the classes that the theme and the highlighter write into it: to take them out by
# regular expressions saved an eighth, less than what gzip saves of the same.
MOST_BYTES = 400_000


def test_no_page_weighs_more_than_400_kilobytes(book_html, paths):
    """Must catch: every explorer's data written into the page, an output of a megabyte in a lab."""
    weights = {path: weight(book_html / path) for path in paths}
    assert weights["index.html"] > 50_000, "its explorer's scripts are counted"
    assert {path: bytes_ for path, bytes_ in weights.items() if bytes_ > MOST_BYTES} == {}


def test_every_font_is_our_own_and_has_its_licence(book_html):
    """Must catch: the theme's icon fonts; a font added without its licence."""
    fonts = {
        path
        for path in book_html.rglob("*")
        if path.suffix in {".woff", ".woff2", ".ttf", ".otf", ".eot"}
    }
    assert fonts and {path.parent for path in fonts} == {book_html / "_static" / "fonts"}
    licences = [
        path.name.removesuffix("-LICENSE.txt")
        for path in (book_html / "_static" / "fonts").glob("*-LICENSE.txt")
    ]
    assert [path.name for path in fonts if not path.name.startswith(tuple(licences))] == []


# ---------------------------------------------------------------- figures, print


def test_a_collision_is_seen(opened):
    """Must catch: boxes that are never compared."""
    page = opened(viewport=PHONE)
    page.set_content(
        '<div class="picture" style="width: 200px"><svg width="200"><text x="5" y="20">'
        'one text</text><text x="30" y="22">another</text><text x="180" y="60">beyond the'
        ' edge</text><text x="5" y="90" font-size="8">tiny</text></svg></div>'
    )
    found = page.evaluate(JS.COLLISIONS)
    assert ["tiny: 8.0 px high" in found[0], "runs into" in found[1]] == [True, True]
    assert len(found) == 3 and "beyond the edge" in found[2]


# Paragraphs, lines of code and rows of what is folded on the screen, or waits for a prediction.
UNSEEN = """() => [...document.querySelectorAll(
    "article :is(details:not([open], .explorer *, .explorer-why), .answer) :is(p, td, pre)")]
  .filter(part => !part.querySelector("math, p, svg, .unseen"))
  .filter(part => !part.closest(".explorer, .predict-room, summary"))
  .map(part => part.textContent)"""


def bare(text):
    """The letters of a text: on paper, lines end elsewhere."""
    return re.sub(r"[\s\u00ad]+", "", text)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("scripts", [True, False])
@pytest.mark.parametrize("path", ["chapters/collectives.html", "labs/04-collectives.html"])
def test_what_is_folded_is_printed(opened, homes, path, scripts):
    """Must catch: no rule for `::details-content` in book.css, or none for an answer on paper; code
    that fades in."""
    page = opened(
        f"{homes['file']}/{path}", java_script_enabled=scripts, reduced_motion="no-preference"
    )
    unseen = page.evaluate(UNSEEN)
    paper = bare(printed_text(PdfDocument(page.pdf(format="A4"))))
    # where a page ends within a paragraph, its rest may be drawn later
    assert len(unseen) > 3 and [text for text in unseen if bare(text)[:60] not in paper] == []


def test_what_is_folded_is_unfolded_for_paper_and_folded_again(opened, homes):
    """Must catch: what is folded stays folded; stays open after printing; is folded although the
    reader has opened it."""
    folded = "document.querySelectorAll('article details.sd-dropdown:not([open])').length"
    page = opened(f"{homes['file']}/chapters/collectives.html")
    page.locator("article details.sd-dropdown > summary").first.click()
    closed = page.evaluate(folded)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    on_paper = page.evaluate(folded)
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert closed > 3 and (on_paper, page.evaluate(folded)) == (0, closed)


def test_numbers_say_where_they_are_from_and_code_is_not_translated(opened, homes):
    """Must catch: an input that the page's list lacks; a call whose inputs are not put in; a name
    in code that a browser turns into another language."""
    page = opened(f"{homes['file']}/chapters/pipelines.html")
    titles = page.evaluate("[...document.querySelectorAll('[data-call]')].map(e => e.title)")
    foreign = page.locator("article code:not([translate=no])").count()
    wrong = [one for one in titles if not re.match(r"computed: \w+\(\w+=.*\) = [\d.]", one)]
    found = 'computed: head_parameters(model="Llama 3 8B") = 525,336,576 parameters'
    assert len(titles) > 20 and not wrong and found in titles and not foreign


# ---------------------------------------------------------------- what the reader can set and ask


@pytest.mark.one_in(2)
@pytest.mark.parametrize("scheme", ["file", "http"])
def test_colour_mode(opened, homes, scheme):
    """Must catch: a page that does not follow the system, a button that does not turn it, a choice
    the next page forgets."""
    page = opened(f"{homes[scheme]}/index.html")

    def background():
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light = background()
    in_colours(page, "dark")
    dark = background()
    assert dark != light
    in_colours(page, "light")
    page.locator(".theme-button:visible").click()
    assert background() == dark
    page.locator("article a[href*='chapters/']:visible").first.click()
    page.wait_for_url("**/chapters/**")
    # another process may draw the next page: the choice reaches it in a moment
    for _ in range(100):
        if background() == dark:
            break
        page.wait_for_timeout(50)
        page.reload()
    assert background() == dark
    page.locator(".theme-button:visible").click()
    assert background() == light


@pytest.fixture(scope="module")
def search_page(browser):
    """A page on which several tests search."""
    with new_context(browser) as context:
        yield context.new_page()


def found_pages(page, homes, query, scheme="file"):
    """The results of the search page for a query: a text for each page it found, with the matches
    in brackets."""
    page.goto(f"{homes[scheme]}/search.html?q={quote(query)}")
    page.locator("#search-results .search-summary").wait_for()
    return page.evaluate("""() => [...document.querySelectorAll("#search-results li")].map(item => {
      for (const mark of item.querySelectorAll("mark")) mark.textContent = `[${mark.textContent}]`;
      return item.innerText; })""")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("scheme", ["file", "http"])
def test_search(opened, homes, scheme):
    """Must catch: search-text.js not loaded, a search box that leads nowhere, a result whose
    address is wrong, a result without its line of text."""
    page = opened(f"{homes[scheme]}/chapters/notation.html")
    page.locator(".book-search input:visible").fill("optimizer")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search.html?q=optimizer*")
    found = page.locator("#search-results li a[href*='chapters/why-one-gpu'][href*='#']").first
    found.wait_for()
    line = found.locator("xpath=..").inner_text()
    assert "optimizer" in line.lower() and len(line) > 40
    found.click()
    page.wait_for_url("**/chapters/why-one-gpu.html#*")
    here = page.evaluate("document.querySelector(location.hash).innerText")
    assert "optimizer" in here.lower()
    assert found_pages(page, homes, "zyzzyva", scheme) == []
    assert "Nothing found" in page.locator("#search-results").inner_text()
    # the click broke it off
    failed = [request for request in page.watch.failed if "ERR_ABORTED" not in request]
    assert [*failed, *page.watch.errors, *page.watch.outside(homes[scheme])] == []


@pytest.mark.one_in(4)
@from_told("typed, said")
def test_search_knows_other_names(search_page, homes, typed, said):
    """Must catch: a name taken out of the table in search.js, words compared letter by letter."""
    found = "\n".join(found_pages(search_page, homes, typed))
    assert f"[{said}" in found


@pytest.mark.parametrize("typed", ["constructor", "toString", "valueOf", "__proto__", '"'])
def test_search_takes_every_word(search_page, homes, typed):
    """Must catch: a dictionary of names that has those of JavaScript's objects, too; an empty page
    where nothing is left to look for."""
    watch = Watch.of(search_page)
    found_pages(search_page, homes, typed)
    assert (
        not watch.errors and "function" not in search_page.locator(".search-summary").inner_text()
    )


@pytest.mark.one_in(2)
@pytest.mark.parametrize("asked", ["#%E0%A4%A", "?present=%E0%A4%A", "?present", "?present=%"])
def test_an_address_with_a_broken_escape(opened, homes, asked):
    """Must catch: a fragment or a name that decodeURIComponent refuses, which stops a script."""
    page = opened(f"{homes['file']}/chapters/zero.html{asked}")
    page.locator(".presented" if "present" in asked else ".predict-room").first.wait_for()
    assert not page.watch.errors


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("typed", "first", "then"),
    [
        ("pipelines", "[Pipelines]", "Mixed precision"),
        ("mixed precision", "[Mixed precision]", "Why one GPU"),
        ("bubble", "Glossary\n\n[bubble]:", "Pipelines"),  # its own entry
        ("rank", "Glossary\n\n[rank]:", "A [rank] of any layout"),  # in many titles
        ("what is a rank", "Glossary\n\n[rank]:", "A [rank] of any layout"),
        ("ring latency", "Collectives", "Formula sheet: communication"),
    ],
)
def test_search_puts_titles_first(search_page, homes, typed, first, then):
    """Must catch: pages in the order of the contents, or sorted by how often a word stands there;
    any one of the words is enough."""
    found = found_pages(search_page, homes, typed)
    others = [text for text in found if not text.startswith("Glossary")]
    marked = [k for k, text in enumerate(others) if "[" in text.split("\n")[0]]
    if typed == "mixed precision":
        assert found[1].startswith("Glossary\n\n[mixed precision]:")
    assert marked == list(range(len(marked))), "titles with the word come before the others"
    assert first in found[0] and any(then in text.split("\n")[0] for text in found[1:])
    assert typed.count(" ") != 1 or len(found) < 35, "all words are asked for"


def test_the_text_that_is_searched_is_small(book_html):
    """Must catch: equations, drawings and tables of explorers in the text (2 MB); outputs of labs,
    solutions, facilitators' cards, code whose names the page has said (1.5 MB)."""
    assert (book_html / "_static" / "search-text.js").stat().st_size < 1_280_000
    assert not (book_html / "searchindex.js").exists(), "Sphinx's index"


def test_the_contents_open_on_a_phone(opened, homes):
    """Must catch: the contents out of reach at 390 px, a drawer that Escape does not close."""
    page = opened(f"{homes['file']}/index.html", **TOUCH)
    link = page.locator("nav a[href*='hardware']").first
    assert not link.is_visible()
    page.locator(".sidebar-open:visible").tap()
    link.wait_for(state="visible")
    page.keyboard.press("Escape")
    link.wait_for(state="hidden")
    page.locator(".sidebar-open:visible").tap()
    link.tap()
    page.wait_for_url("**/hardware.html")


LETTERS = """() => [...document.querySelectorAll(".plotly-figure text")]
  .filter(text => text.textContent.trim() && getComputedStyle(text).visibility !== "hidden")
  .map(text => [text.getScreenCTM(), parseFloat(getComputedStyle(text).fontSize)])
  .map(([scale, size]) => size * Math.hypot(scale.a, scale.b))"""


def test_letters_of_schedules_can_be_read_on_a_phone(opened, homes):
    """Must catch: no wider figure for small letters; no higher one for a title of two lines, which
    makes the bars lower and the letters in them smaller, however wide the figure is."""
    page = opened(**TOUCH)
    open_page(page, f"{homes['file']}/labs/08-pipelines.html")
    letters = page.evaluate(LETTERS)
    assert len(letters) > 100 and min(letters) > 9.8


# ---------------------------------------------------------------- what the tests above can see


OF_EXPLORERS = pytest.mark.xdist_group("explorers")  # one worker builds their small book


@OF_EXPLORERS
@from_told("look, words")
def test_a_spoiled_page_is_seen(spoiled_visit, look, words):
    """Must catch: one of the looks in visit.py taken out or no longer seeing what it is for."""
    assert words in "\n".join(look(spoiled_visit))


AXE_SEES = ("button-name", "target-size", "empty-table-header")


@OF_EXPLORERS
@pytest.mark.parametrize("way", ["dark", *at_night("every way")])
def test_what_axe_finds_is_seen(browser, spoiled, spoiled_visit, way):
    """Must catch: axe not run in one of the ways, its findings thrown away, or both colours looked
    at in the same."""
    ways = {"dark": spoiled_visit.axe}
    if way == "every way":
        with new_context(browser) as context:
            ways = in_every_way(context, spoiled, {})
        assert len(ways) == 5 and "skipped" in "".join(ways.pop("by keyboard"))
    for way, problems in ways.items():
        pale, other = ("dark", "light") if way.startswith("dark") else ("light", "dark")
        text = "\n".join(problems)
        assert [words for words in (*AXE_SEES, f"pale-in-{pale}") if words not in text] == [], way
        assert f"pale-in-{other}" not in text, way


@OF_EXPLORERS
def test_a_page_spoiled_for_readers_without_javascript_is_seen(opened, spoiled, spoiled_visit):
    """Must catch: `without_scripts` no longer seeing late text, TeX, dead buttons."""
    page = opened(java_script_enabled=False)
    problems = "\n".join(without_scripts(page, spoiled, spoiled_visit.blocks))
    for words in ("written by a script", "left as TeX", "does nothing without JavaScript"):
        assert words in problems


SPOIL_KEYS = """() => {
  document.querySelector(".explorer [type=range]").addEventListener("keydown",
    event => { if (event.key !== "Tab") event.preventDefault(); });
  document.querySelector(".explorer select").addEventListener("change",
    event => event.stopImmediatePropagation(), true);
  document.querySelector(".explorer-reset").addEventListener("click",
    event => event.stopImmediatePropagation(), true);
}"""


@OF_EXPLORERS
def test_a_spoiled_walk_is_seen(opened, spoiled):
    """Must catch: `walk` no longer noticing what it is for."""
    page = opened()
    page.add_init_script(f"addEventListener('load', {SPOIL_KEYS})")
    open_page(page, spoiled)
    before = page.evaluate(VALUES)
    open_all(page)
    problems = "\n".join(walk(page, before))
    for words in (
        'Tab does not reach <button tabindex="-1"',
        'see the focus on <button class="blind"',
        'no key moves <input type="range"',
        "nothing is drawn or said anew: <select",
        "Reset does not bring back",
    ):
        assert words in problems


# ---------------------------------------------------------------- the cheatsheet


def test_the_cheatsheet_is_one_sheet_of_a4(opened, book_html):
    """And its letters are no smaller than print is elsewhere.

    Must catch: a row too many; letters that were made small so that it fits."""
    page = opened((book_html / "chapters" / "cheatsheet.html").as_uri())
    sheets = len(PdfDocument(page.pdf(format="A4")))
    page.emulate_media(media="print")
    size = page.evaluate("parseFloat(getComputedStyle(document.querySelector('td')).fontSize)")
    assert sheets == 1 and size >= 9
