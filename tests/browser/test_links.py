"""Every link in the built book leads somewhere: the files are read, no browser and no network is
needed."""

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pages import ROOT
from told import cells, from_told

from bookkit.glossary import definitions

ADDRESSES = {
    ("a", "href"),
    ("area", "href"),
    ("link", "href"),
    ("form", "action"),
    ("image", "href"),
    ("use", "href"),
    ("script", "src"),
    ("img", "src"),
    ("iframe", "src"),
    ("source", "src"),
    ("video", "src"),
    ("audio", "src"),
    ("video", "poster"),
    ("object", "data"),
    ("embed", "src"),
    ("script", "data-plotly"),
}
HOST = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)+[a-z]{2,}")

# Pages that no other page has to lead to.
REACHED_OTHERWISE = {
    "genindex.html": (
        "Sphinx writes it for the address alone; it lists what a book of prose does not have"
    )
}


@dataclass
class Page(HTMLParser):
    """A page's links, and the places in it that can be linked to."""

    addresses: list[tuple[str, str]] = field(default_factory=list)  # (tag, address)
    names: list[str] = field(default_factory=list)

    def __post_init__(self):
        super().__init__()

    @classmethod
    def read(cls, path: Path) -> "Page":
        page = cls()
        page.feed(path.read_text(encoding="utf-8"))
        return page

    def handle_starttag(self, tag, attributes):
        attributes = {name: value or "" for name, value in attributes}
        if "id" in attributes:
            self.names.append(attributes["id"])
        if tag == "a" and "name" in attributes:
            self.names.append(attributes["name"])
        for name, value in attributes.items():
            if (tag, name) in ADDRESSES:
                self.addresses.append(
                    ("download" if tag == "a" and "download" in attributes else tag, value)
                )
            if name == "srcset":
                self.addresses += [(tag, part.split()[0]) for part in value.split(",")]


def problem_of(tag: str, address: str, path: Path, folder: Path, pages: dict[Path, Page]) -> str:
    """The fault of `address`, found in the page `path` of the book in `folder`; "" if there is
    none."""
    if address != address.strip() or re.search(r"\s", address):
        return "holds a space"
    parts = urlsplit(address)
    if parts.scheme == "data":
        return (
            "" if tag in {"download", "img", "link"} else "a browser does not open data: as a page"
        )
    if parts.scheme or parts.netloc:
        if parts.scheme != "https":
            return "is not https"
        return (
            ""
            if HOST.fullmatch(parts.hostname or "") and not parts.port
            else "names no host of the web"
        )
    if parts.path.startswith("/"):
        return "begins at the root of the server, where the book need not be"
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.is_relative_to(folder):
        return "leads out of the book"
    if not target.is_file():
        return "leads to no file"
    fragment = unquote(parts.fragment)
    if fragment and target in pages and fragment not in pages[target].names:
        return "leads to no place on that page"
    return ""


@cache
def read_pages(folder: Path) -> dict[Path, Page]:
    return {path: Page.read(path) for path in sorted(folder.resolve().rglob("*.html"))}


def link_problems(folder: Path) -> list[str]:
    """Every address in the book that leads nowhere, and every id given twice."""
    folder, pages = folder.resolve(), read_pages(folder)
    problems = []
    for path, page in pages.items():
        for tag, address in page.addresses:
            if problem := problem_of(tag, address, path, folder, pages):
                problems.append(f"{path.relative_to(folder)}: <{tag}> {address[:120]!r} {problem}")
        problems += [
            f"{path.relative_to(folder)}: id {name!r} stands {count} times on the page"
            for name, count in Counter(page.names).items()
            if count > 1
        ]
    return problems


def unreached(folder: Path) -> list[str]:
    """Pages one does not come to by following links from index.html."""
    folder, pages = folder.resolve(), read_pages(folder)
    reached, to_do = set(), [folder / "index.html"]
    while to_do:
        path = to_do.pop()
        if path in reached or path not in pages:
            continue
        reached.add(path)
        to_do += [
            (path.parent / unquote(urlsplit(address).path)).resolve()
            for tag, address in pages[path].addresses
            if tag in {"a", "form"}
            and not urlsplit(address).netloc
            and not address.startswith("data:")
        ]
    return sorted(path.relative_to(folder).as_posix() for path in set(pages) - reached)


def test_every_link_leads_somewhere(book_html):
    """Must catch: each row of test_each_problem_is_seen, tried there one by one."""
    assert link_problems(book_html) == []


def test_every_page_is_linked(book_html):
    """Must catch: a page taken out of the contents and still built."""
    assert set(unreached(book_html)) <= set(REACHED_OTHERWISE)


TERM = re.compile(r"<a class=\"([^\"]*)\" href=\"([^\"]*#term-[^\"]*)\"(?: title=\"([^\"]*)\")?>")


def test_each_term_has_one_address(book_html):
    """Must catch: a word that two pages define, an address that is a number and not the word, a
    link to a word that leads elsewhere or shows no definition, a word that a search misses."""
    defined = {}
    for path in sorted(ROOT.glob("[cilw]*/**/*.md")):
        for word in definitions(path.read_text("utf-8")):
            defined.setdefault(word.lower(), []).append((word, path.stem))
    assert [places for places in defined.values() if len(places) > 1] == []
    address = {places[0][0].replace(" ", "-"): places[0][1] for places in defined.values()}
    pages = read_pages(book_html)
    found = [name for page in pages.values() for name in page.names if name.startswith("term-")]
    assert sorted(found) == sorted(f"term-{word}" for word in address)
    links = 0
    for path in pages:
        for classes, href, title in TERM.findall(path.read_text("utf-8")):
            page, _, anchor = href.partition("#")
            links += 1
            if "headerlink" not in classes:
                place = (path.parent / page).resolve() if page else path
                assert place.stem == address[anchor.removeprefix("term-")], (path, href)
                assert len(title) > 20, (path, href)
    assert links > 2 * len(address)
    searched = (book_html / "_static" / "search-text.js").read_text("utf-8")
    assert [word for word in address if f'"term-{word}"' not in searched] == []


def test_llms_txt_lists_every_page(book_html):
    """Must catch: a page that llms.txt leaves out, or lists without a sentence."""
    html = {path.relative_to(book_html.resolve()).as_posix() for path in read_pages(book_html)}
    html = {name for name in html - {"search.html", "genindex.html"} if not name.startswith("_")}
    listed = (book_html / "llms.txt").read_text("utf-8")
    assert set(re.findall(r"\]\((.*?)\): .", listed)) == html - {"index.html"}


GOOD = (
    '<a href="#here">x</a><p id="here"><a href="b/other.html#there">x</a><a'
    ' href="https://example.org/a?b=c#d">x</a></p>'
)


def small_book(folder: Path, more: str = "") -> Path:
    (folder / "book" / "b").mkdir(parents=True)
    (folder / "outside.html").write_text("<p>outside</p>")
    (folder / "book" / "b" / "other.html").write_text(
        '<h1 id="there">there</h1><a href="../index.html">x</a>'
    )
    (folder / "book" / "index.html").write_text(GOOD + more)
    return folder / "book"


@from_told("spoil, said", cells)
def test_each_problem_is_seen(tmp_path, spoil, said):
    """Must catch: one of the checks in `problem_of` taken out."""
    (problem,) = link_problems(small_book(tmp_path, spoil))
    assert said in problem


def test_a_page_without_a_link_to_it_is_seen(tmp_path):
    """Must catch: `unreached` following what is no link."""
    book = small_book(tmp_path)
    (book / "alone.html").write_text('<a href="index.html">x</a>')
    assert unreached(book) == ["alone.html"]
