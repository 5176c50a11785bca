"""A tiny book, built with the real configuration, asks for nothing outside itself and carries
nothing unused."""

import json
import re
from pathlib import Path

import nbformat
import pytest
from sphinx.errors import ExtensionError

from bookkit import offline
from bookkit.build import BuildFailed, build_book
from bookkit.described import listed

ROOT = Path(__file__).resolve().parents[2]

CHAPTER = """# A chapter

Some $x^2$ and a [link out](https://example.org/page), which is no request.

```{predict}
How many?
```

```{measured} On a laptop
Two, not `three`.
```

```{which-number}
Both.
```

```{wild}
DeepSpeed calls it the same.
```

```{margin} Aside
A note.
```

(here)=
## A section

Read [this](here), `in two words`.

```python
print("code", *self.names)
```

```{dropdown} More
Folded.
```

| a | b |
|:--|--:|
| one | 1 |
"""

FIGURE = {
    "data": [{"type": "bar", "x": ["a</script><b>"], "y": [1]}],
    "layout": {
        "title": {"text": "Bytes <b>held</b>"},
        "height": 320,
        "template": {"layout": {"colorway": ["#111111"]}},
    },
}


def write_lab(path):
    """A notebook with a stored plotly figure, a stored widget and the widget's state."""
    outputs = [
        nbformat.v4.new_output(
            "display_data",
            {"application/vnd.plotly.v1+json": FIGURE, "text/html": "<p>not this</p>"},
        ),
        nbformat.v4.new_output(
            "display_data",
            {
                "application/vnd.jupyter.widget-view+json": {"model_id": "0"},
                "text/plain": "IntSlider()",
            },
        ),
    ]
    quotations = "> **Predict.** How *many*?\n>\n> Write it down.\n\n> **Not a box.** Quoted.\n"
    cells = [
        nbformat.v4.new_markdown_cell("# A lab\n\nWith outputs."),
        nbformat.v4.new_markdown_cell(quotations),
        nbformat.v4.new_code_cell("figure", outputs=outputs, execution_count=1),
    ]
    metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3"},
        "language_info": {"name": "python", "pygments_lexer": "ipython3"},
        "widgets": {
            "application/vnd.jupyter.widget-state+json": {
                "state": {"0": {"model_name": "IntSlider"}}
            }
        },
    }
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), path)


def write_book(folder, **pages):
    """The book's own configuration around other pages."""
    for name in ("chapters", "labs", "build/wheel"):
        (folder / name).mkdir(parents=True)
    (folder / "build" / "wheel" / "shardlab-0-py3-none-any.whl").touch()
    for name in ("_config.yml", "references.bib"):
        (folder / name).write_bytes((ROOT / name).read_bytes())
    files = [*(f"chapters/{name}" for name in pages), "labs/lab"]
    (folder / "_toc.yml").write_text(
        "format: jb-book\nroot: index\nparts:\n- caption: Chapters\n  chapters:\n"
        + "".join(f"  - file: {name}\n" for name in files)
    )
    (folder / "index.md").write_text("# A tiny book\n\nRead on.\n")
    for name, text in pages.items():
        (folder / "chapters" / f"{name}.md").write_text(text)
    write_lab(folder / "labs" / "lab.ipynb")
    return folder


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """Folder of the pages of a tiny book: index, chapters/chapter, labs/lab."""
    folder = tmp_path_factory.mktemp("offline")
    build_book(write_book(folder / "book", chapter=CHAPTER), folder / "html")
    return folder / "html"


def pages(book):
    return {
        path.relative_to(book).as_posix(): path.read_text() for path in sorted(book.rglob("*.html"))
    }


def loads(page):
    """Addresses of everything a page loads, read with a rougher net than the build's own check."""
    tags = re.findall(r"<(?:script|img|iframe|source|embed|object)\b[^>]*>", page)
    tags += re.findall(r"<link\b[^>]*rel=\"(?!next|prev|search|author|index|canonical)[^>]*>", page)
    return [
        address
        for tag in tags
        for address in re.findall(r"(?:src|href|data|data-plotly)=\"([^\"]*)\"", tag)
    ]


@pytest.mark.slow
def test_our_own_files_lose_their_comments(book):
    """Mutation: copy book.js and book.css as they are."""
    for name in ("book.js", "book.css"):
        ours = (offline.OURS / name).read_text(encoding="utf-8")
        carried = (book / "_static" / name).read_text(encoding="utf-8")
        assert "/*" in ours and "/*" not in carried and len(carried) < 0.85 * len(ours), name


@pytest.mark.slow
def test_pages_ask_for_the_faces_they_show(book):
    """Before they are laid out; a face that comes later is not shown, so nothing moves when it
    comes.

    Mutations: a face of book.css forgotten; italics asked for where there are none; `swap`, with
    which lines break twice."""
    asked = {
        name: json.loads(
            re.search(r"<script>(\[.*?\])\.forEach\(function\(f\)\{document\.fonts\.load", page)[1]
        )
        for name, page in pages(book).items()
    }
    always = {"1em 'Book Serif'", "600 1em 'Book Serif'", "1em 'Book Sans'"}
    assert set(asked["index.html"]) == always and set(asked["labs/lab.html"]) - always == {
        "italic 1em 'Book Serif'",
        "1em 'Book Code'",
    }
    assert set(asked["chapters/chapter.html"]) - always == {
        "1em 'Book Code'",
        "1em 'STIX Two Math'",
    }
    for page in pages(book).values():
        assert (
            page.index('rel="stylesheet"') < page.index("document.fonts.load") < page.index("<body")
        )
    faces = re.findall(
        r'@font-face\{font-family:"([^"]+)";src:url[^}]*font-display:(\w+)',
        (book / "_static" / "book.css").read_text(),
    )
    assert len(faces) == 6 and {name for name, display in faces if display != "optional"} == {
        "STIX Two Math"
    }
    assert {name for name, _ in faces} == {
        re.search("'(.*)'", face)[1] for page in asked.values() for face in page
    }


@pytest.mark.slow
def test_pages_carry_few_bytes(book):
    """Mutation: put the search index, or the theme's scripts, back on every page."""
    for name, page in pages(book).items():
        scripts = [
            address for address in loads(page) if ".js" in address and "plotly.min" not in address
        ]
        expected = {"book.js"}
        if name == "search.html":
            expected |= {"search.js", "search-text.js"}
        if name == "labs/lab.html":
            expected |= {"figures.js"}
        if "box-predict asks" in page:
            expected |= {"predict.js"}
        assert {Path(address.split("?")[0]).name for address in scripts} == expected, name


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
    assert (
        'aria-label="Bytes held"' in page and "min-height: 320px" in page and "not this" not in page
    )
    assert "<noscript><p>Bytes held: an interactive figure" in page
    assert 'data-plotly="../_static/plotly.min.js"' in page
    assert (book / "_static" / "plotly.min.js").stat().st_size > 1_000_000
    assert "plotly" not in pages(book)["chapters/chapter.html"].replace("plotly-figure", "")


@pytest.mark.slow
def test_a_widget_is_a_sentence(book):
    """Mutation: leave the view's script (a dead slider) or the state of the widgets in the page."""
    page = pages(book)["labs/lab.html"]
    assert page.count("This control is live in the lab") == 1
    assert "widget-view" not in page and "widget-state" not in page and "IntSlider" not in page


@pytest.mark.parametrize(
    "kind, label",
    [
        ("predict", "Predict"),
        ("measured", "Measured"),
        ("which-number", "Which number is right?"),
        ("wild", "In the wild"),
    ],
)
@pytest.mark.slow
def test_boxes_say_what_they_are(book, kind, label):
    """Mutation: label by colour only; give two boxes one mark; drop a box's own title."""
    page = pages(book)["chapters/chapter.html"]
    (box,) = re.findall(
        rf'<div class="box box-{kind}(?: asks)? admonition">(.*?)</div>', page, flags=re.DOTALL
    )
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
    (box,) = re.findall(
        r'<div class="box box-predict admonition">(.*?)</div>', page, flags=re.DOTALL
    )
    assert '<span class="box-label">Predict</span>' in box
    assert "<p>How <em>many</em>?</p>" in box and "<p>Write it down.</p>" in box
    assert re.search(r"<blockquote>\s*<div><p><strong>Not a box.</strong> Quoted.</p>", page)


@pytest.mark.slow
def test_the_contents_show_the_sections_of_the_page(book):
    """Mutation: put the sections under every entry, or under none."""
    contents = {
        name: re.search(r'<nav class="bd-links.*?</nav>', page, flags=re.DOTALL).group()
        for name, page in pages(book).items()
    }
    assert contents["chapters/chapter.html"].count('href="#a-section"') == 1
    assert (
        "#a-section" not in contents["labs/lab.html"] and "#a-section" not in contents["index.html"]
    )


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

    body = (
        '<div role="list" class="citation-list">\n<div class="citation" id="id1"'
        ' role="doc-biblioentry">\nOne</div></div><ul role="list"><li>Two</li></ul>'
    )
    assert (
        _without_roles(body)
        == '<div class="citation-list">\n<div class="citation" id="id1">\nOne</div></div>'
        '<ul role="list"><li>Two</li></ul>'
    )


OUTSIDE = [
    '<img src="https://example.org/a.png" alt="">',
    '<script src="//example.org/a.js"></script>',
    '<link rel="stylesheet" href="http://example.org/a.css"/>',
    '<iframe src="https://example.org"></iframe>',
    '<p style="background: url(https://example.org/b.png)">b</p>',
    '<img srcset="https://example.org/c.png 2x" alt="">',
]


@pytest.mark.slow
def test_a_page_that_would_load_from_elsewhere_is_not_built(tmp_path, capfd):
    """Mutation: look for ``src`` only; look at ``http:`` only; log it as information."""
    book = write_book(
        tmp_path / "book",
        **{f"page{i}": f"# Page {i}\n\n{html}\n" for i, html in enumerate(OUTSIDE)},
    )
    for _ in range(2):
        with pytest.raises(BuildFailed):
            build_book(book, tmp_path / "html")
        said = capfd.readouterr().err
        for i, html in enumerate(OUTSIDE):
            address = re.search(r"(?:https?:)?//example\.org[^\s\"')]*", html).group()
            assert (
                f"chapters/page{i}.html would load {address}: a page must not ask for anything"
                " outside" in said
            )


@pytest.mark.slow
def test_another_theme_is_refused_by_name(book, monkeypatch):
    """Mutation: build on with templates that replace nothing."""

    class Application:
        class builder:
            format = "html"

    offline._check_theme(Application)
    monkeypatch.setitem(offline.THEME_PARTS, "layout.html", ("block of_a_later_version",))
    with pytest.raises(ExtensionError, match="has no 'block of_a_later_version' in layout.html"):
        offline._check_theme(Application)


def test_the_theme_stays_below_the_book():
    """Mutations: leave ``!important``, which wins over book.css from inside a layer; leave the
    theme's fonts, which the book does not carry; drop a rule."""
    sheet = """/* a */ @font-face { src: url(a.woff2) }
      .a { x: 1 !important; y: '}' } @media print { .b { z: 2 } }"""
    assert offline.theme_css(sheet) == "@layer theme{.a{x:1;y:'}'}@media print{.b{z:2}}}"
