"""A tiny book, built with the real configuration, asks for nothing outside itself and carries
nothing unused."""

import json
import re
from pathlib import Path

import nbformat
import pytest
from night import at_night
from small_books import real_book
from told import from_told, sample

from bookkit import offline
from bookkit.build import BuildFailed, build_book
from bookkit.described import listed
from bookkit.policy import policy, with_policy

CHAPTER = sample("chapter.md")

FIGURE = {
    "data": [{"type": "bar", "x": ["a</script><b>"], "y": [1]}],
    "layout": {
        "title": {"text": "Bytes <b>held</b>"},
        "height": 320,
        "template": {"layout": {"colorway": ["#111111"]}},
    },
}


def lab():
    """A notebook with a stored plotly figure and a stored card."""
    shown = (
        {"application/vnd.plotly.v1+json": FIGURE, "text/html": "<p>not this</p>"},
        {offline.STORED: {"name": "mine"}, "text/plain": "Mine: a sentence."},
    )
    outputs = [nbformat.v4.new_output("display_data", data) for data in shown]
    quotations = "> **Predict.** How *many*?\n>\n> Write it down.\n\n> **Not a box.** Quoted.\n"
    cells = [
        nbformat.v4.new_markdown_cell("# A lab\n\nWith outputs."),
        nbformat.v4.new_markdown_cell(quotations),
        nbformat.v4.new_code_cell("figure", outputs=outputs, execution_count=1),
    ]
    metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3"},
        "language_info": {"name": "python", "pygments_lexer": "ipython3"},
    }
    return nbformat.writes(nbformat.v4.new_notebook(cells=cells, metadata=metadata))


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """Folder of the pages of a tiny book: index, chapters/chapter, labs/lab."""
    folder = tmp_path_factory.mktemp("offline")
    pages = {"chapters/chapter": CHAPTER, "labs/lab.ipynb": lab()}
    build_book(real_book(folder / "book", **pages), folder / "html")
    return folder / "html"


def pages(book):
    return {
        path.relative_to(book).as_posix(): path.read_text() for path in sorted(book.rglob("*.html"))
    }


@pytest.mark.slow
def test_our_own_files_lose_their_comments(book):
    """Mutation: copy book.js and book.css as they are."""
    for name in ("book.js", "book.css"):
        ours = (offline.OURS[1] / name).read_text(encoding="utf-8")
        carried = (book / "_static" / name).read_text(encoding="utf-8")
        assert "/*" in ours and "/*" not in carried and len(carried) < 0.85 * len(ours), name


@pytest.mark.slow
def test_pages_ask_for_the_faces_they_show(book):
    """Mutations: a face of book.css forgotten; italics asked for where there are none; `swap`, with
    which lines break twice."""
    asks = r"<script>(\[.*?\])\.forEach\(function\(f\)\{document\.fonts\.load"
    found = pages(book)
    asked = {name: {*json.loads(re.search(asks, page)[1])} for name, page in found.items()}
    always = {"1em 'Book Serif'", "600 1em 'Book Serif'", "1em 'Book Sans'"}
    code, mathematics = "1em 'Book Code'", "1em 'STIX Two Math'"
    assert asked["index.html"] == always
    assert asked["labs/lab.html"] - always == {"italic 1em 'Book Serif'", code}
    assert asked["chapters/chapter.html"] - always == {code, mathematics}
    for page in found.values():
        places = [page.index(part) for part in ('rel="stylesheet"', "document.fonts.load", "<body")]
        assert places == sorted(places)
    face = r'@font-face\{font-family:"([^"]+)";src:url[^}]*font-display:(\w+)'
    faces = re.findall(face, (book / "_static" / "book.css").read_text())
    assert len(faces) == 6
    assert {name for name, display in faces if display != "optional"} == {"STIX Two Math"}
    assert {f"'{name}'" for name, _ in faces} == {
        re.search("'.*'", face)[0] for page in asked.values() for face in page
    }


@pytest.mark.slow
def test_pages_carry_few_bytes(book):
    """Mutation: put the search index, or the theme's scripts, back on every page."""
    more = {"search.html": {"search.js", "search-text.js"}, "labs/lab.html": {"figures.js"}}
    for name, page in pages(book).items():
        asks = {"predict.js"} if "box-predict asks" in page else set()
        loaded = {Path(url).name for url in re.findall(r'<script\b[^>]*\bsrc="([^"?]*)', page)}
        assert loaded == {"book.js"} | more.get(name, set()) | asks, name


@pytest.mark.slow
def test_every_page_describes_itself(book):
    """Must catch: a page without a description, or one with the same for all pages; the address of
    a picture or of a page where nobody has said where the book is; llms.txt without a page."""
    found = {
        name: dict(re.findall(r'<meta (?:name|property)="([^"]+)" content="([^"]*)"/>', page))
        for name, page in pages(book).items()
    }
    described = {name: tags["description"] for name, tags in found.items()}
    assert described["index.html"] == "Read on."
    assert described["chapters/chapter.html"].startswith("Some ")
    assert described["labs/lab.html"] == "With outputs."
    assert described["search.html"] == "Search: a page of Split, Shard, Recompute."
    for name, tags in found.items():
        assert tags["og:description"] == described[name] and tags["og:title"], name
        assert tags["og:type"] == ("website" if name == "index.html" else "article")
        assert not {"og:url", "og:image"} & tags.keys()
    listed = (book / "llms.txt").read_text("utf-8")
    assert listed.startswith("# Split, Shard, Recompute\n\n> Read on.\n")
    assert "](chapters/chapter.html): Some " in listed
    assert "](labs/lab.html): With outputs.\n" in listed


def test_a_list_for_programs_has_whole_questions(tmp_path):
    """Must catch: a question of two sentences cut after the first; a part named for each page."""
    page = '<meta name="description" content="{0}"/><meta property="og:title" content="A &amp; B"/>'
    (tmp_path / "index.html").write_text(page.format("Read on. And on."))
    (tmp_path / "a.html").write_text(page.format("Two texts. Which is right? More."))
    found = listed(tmp_path, "index", [("P", "a")] * 2, "Book", {"a": {"question": "Two. Which?"}})
    assert found == "# Book\n\n> Read on.\n\n## P\n\n" + "- [A & B](a.html): Two. Which?\n" * 2


@pytest.mark.slow
def test_there_is_one_search_box(book):
    """Mutation: leave the theme's search dialog, or its second button field, in the page."""
    for name, page in pages(book).items():
        if name != "search.html":
            assert len(re.findall(r"<input[^>]*type=\"search\"", page)) == 1, name


@pytest.mark.slow
def test_a_figure_is_data_in_the_page(book):
    """Mutation: take the stored HTML; leave ``</script>`` in the data, which ends the element; load
    plotly.js always."""
    page = pages(book)["labs/lab.html"]
    (data,) = re.findall(r'<script type="application/json">(.*?)</script>', page, flags=re.DOTALL)
    stored = json.loads(data)
    assert stored["data"] == FIGURE["data"]
    assert stored["layout"] == {"title": {"text": "Bytes <b>held</b>"}, "height": 320}
    assert 'aria-label="Bytes held"' in page and "min-height: 320px" in page
    assert "not this" not in page
    assert "<noscript><p>Bytes held: an interactive figure" in page
    assert 'data-plotly="../_static/plotly.min.js"' in page
    assert (book / "_static" / "plotly.min.js").stat().st_size > 1_000_000
    assert "plotly" not in pages(book)["chapters/chapter.html"].replace("plotly-figure", "")


@pytest.mark.slow
def test_a_live_card_that_is_no_page_of_the_book_is_a_sentence(book):
    """Must catch: the text of a stored card in the page, or nothing at all."""
    page = pages(book)["labs/lab.html"]
    assert page.count("This control is live in the lab") == 1
    assert "Mine: a sentence." not in page


@from_told("kind, label")
@pytest.mark.slow
def test_boxes_say_what_they_are(book, kind, label):
    """Mutation: label by colour only; give two boxes one mark; drop a box's own title."""
    page = pages(book)["chapters/chapter.html"]
    (box,) = re.findall(rf'(?s)<div class="box box-{kind}(?: asks)? admonition">(.*?)</div>', page)
    assert f'<span class="box-label">{label}</span>' in box
    marks = re.findall(r'<svg class="box-mark".*?</svg>', page)
    assert len(set(marks)) == 4
    if kind == "measured":
        assert '<span class="box-title">On a laptop</span>' in box and "not <code" in box


@pytest.mark.slow
def test_a_quotation_with_a_label_is_a_box(book):
    """Mutation: leave the label in the text; box every quotation that begins in bold; lose the
    second paragraph."""
    page = pages(book)["labs/lab.html"]
    (box,) = re.findall(r'(?s)<div class="box box-predict[^"]*">(.*?)</div>', page)
    assert '<span class="box-label">Predict</span>' in box
    assert "<p>How <em>many</em>?</p>" in box and "<p>Write it down.</p>" in box
    assert re.search(r"<blockquote>\s*<div><p><strong>Not a box.</strong> Quoted.</p>", page)


@pytest.mark.slow
def test_the_contents_show_the_sections_of_the_page(book):
    """Mutation: put the sections under every entry, or under none."""
    for name, page in pages(book).items():
        contents = re.search(r'(?s)<nav class="bd-links.*?</nav>', page)[0]
        of_its_own = name == "chapters/chapter.html"
        assert contents.count('href="#a-section"') == contents.count("#a-section") == of_its_own


def test_a_page_that_changed_is_read_again(tmp_path):
    """Mutation: take every page's references from the last build: a new picture is deleted."""
    pages, cache = tmp_path / "html", tmp_path / "references.json"
    pages.mkdir()
    for name in ("one", "another one"):
        (pages / "index.html").write_text(f'<p class="{name}"><img src="{name}.png"></p>')
        references = offline.looked_at(pages, cache, offline._references)["index.html"]
        assert references["loaded"] == [f"{name}.png"]


def test_a_bibliography_is_no_list_without_items():
    """Mutation: leave docutils' roles as they are: axe calls it critical that a list holds no list
    items."""
    from bookkit.look import _without_roles

    others = '<ul role="list"><li>Two</li></ul>'
    body = (
        '<div{} class="citation-list">\n<div class="citation" id="id1"{}>\nOne</div></div>' + others
    )
    given = body.format(' role="list"', ' role="doc-biblioentry"')
    assert _without_roles(given) == body.format("", "")


OUTSIDE = [
    '<img src="https://example.org/a.png" alt="">',
    '<script src="//example.org/a.js"></script>',
    '<link rel="stylesheet" href="http://example.org/a.css"/>',
    '<iframe src="https://example.org"></iframe>',
    '<p style="background: url(https://example.org/b.png)">b</p>',
    '<img srcset="https://example.org/c.png 2x" alt="">',
]


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, *at_night(2)])
def test_a_page_that_would_load_from_elsewhere_is_not_built(tmp_path, capfd, times):
    """Mutation: look for ``src`` only; look at ``http:`` only; log it as information."""
    pages = {f"chapters/page{i}": f"# Page {i}\n\n{html}\n" for i, html in enumerate(OUTSIDE)}
    book = real_book(tmp_path / "book", **pages)
    for _ in range(times):
        with pytest.raises(BuildFailed):
            build_book(book, tmp_path / "html")
        said = capfd.readouterr().err
        for i, html in enumerate(OUTSIDE):
            address = re.search(r"(?:https?:)?//example\.org[^\s\"')]*", html)[0]
            words = "a page must not ask for anything outside"
            assert f"chapters/page{i}.html would load {address}: {words}" in said


def test_the_theme_stays_below_the_book():
    """Mutations: leave ``!important``, which wins over book.css from inside a layer; leave the
    theme's fonts, which the book does not carry; drop a rule that a page needs, also one that
    `:not()` names; keep one that none needs, or a media query without rules."""
    sheet = """/* a */ @font-face { src: url(a.woff2) }
      .a, .c { x: 1 !important; y: '}' } @media print { .b { z: 2 } } @media screen { .c { z: 3 } }
      p:not(.c), [class~="c"] { k: 1 } @keyframes in { 0% { o: 0 } to { o: 1 } }"""
    assert offline.theme_css(sheet, {"a", "b"}) == (
        "@layer theme{.a{x:1;y:'}'}@media print{.b{z:2}}"
        'p:not(.c),[class~="c"]{k:1}@keyframes in{0%{o:0}to{o:1}}}'
    )


# sha256 of "go()", as `printf 'go()' | openssl dgst -sha256 -binary | base64` prints it
GO = "'sha256-5KYv+PUboo5h+0+YAtGRPbwv5d/QxzHslP4YGnUaxRw='"
WITH_A_SCRIPT = '<head>\n<meta charset="utf-8" /><title>a</title><script>go()</script></head>'


def scripts_named(page):
    return re.search("script-src ([^;]*)", policy(page))[1].split()


def test_a_page_gets_one_policy_in_front_of_all():
    """Mutations: a second policy at the second build; the policy of an older build, with hashes of
    scripts that are gone; the policy behind a script."""
    once = with_policy(WITH_A_SCRIPT)
    assert with_policy(once) == once and once.count("Content-Security-Policy") == 1
    assert once.index(GO) < once.index("<title>") < once.index("<script>")
    assert GO not in with_policy(once.replace("go()", "went()"))
    with pytest.raises(ValueError, match='no <meta charset="utf-8" />'):
        with_policy("<head></head>")
