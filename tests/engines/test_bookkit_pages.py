"""Chapters by number, their objectives and minutes; code and tables of two widths; the glossary."""

import re
from types import SimpleNamespace

import nbformat
from docutils import nodes
from docutils.utils import new_document
from pages import ROOT
from small_books import builder
from told import sample

from bookkit import glossary, search, words
from bookkit.look import COLUMN_LETTERS, WORD_LETTERS, keep_words, mend_tables, widen_code

TYPED = re.compile(r"\b[Cc]hapters? [0-9]")


def test_no_chapters_number_is_typed():
    """Must catch: a number that is wrong as soon as a chapter is added before it, in a chapter or
    in a lab."""
    pages = {
        page.name: page.read_text("utf-8")
        for page in [*sorted((ROOT / "chapters").glob("*.md")), ROOT / "index.md"]
    }
    for lab in sorted((ROOT / "labs").glob("*.ipynb")):
        cells = nbformat.read(lab, as_version=4).cells
        texts = [cell.source for cell in cells if cell.cell_type == "markdown"]
        pages[lab.name] = "\n\n".join(texts)
    typed = [
        f"{name}:{number}: {text}"
        for name, page in pages.items()
        for number, _, text in words.prose(page)
        if TYPED.search(text)
    ]
    assert typed == []


def test_the_role_says_the_place_in_the_contents(tmp_path):
    """Must catch: numbers from 0; no link; a page outside the numbered parts passed in silence."""
    contents = "parts:\n  - caption: A\n    numbered: 1\n    chapters:\n"
    contents += "      - file: first\n      - file: index\n"
    second = "# Second\n\nSee {chapter}`first`, {chapter}`index as number`, {chapter}`third`.\n"
    pages = {"_toc.yml": contents, "first": "# First\n", "index": second}
    pages, warnings = builder(tmp_path, "chapters", nitpicky=False)(**pages)
    page = pages["index"]
    assert re.search(r'<a[^>]*href="first.html"[^>]*>(<[^>]*>)*chapter 1<', page)
    assert re.search(r'<a[^>]*href="#"[^>]*>(<[^>]*>)*2<', page)
    assert "'third' is not a page of a numbered part; there are first, index." in warnings


OPENING = sample("opening.md")


def test_the_opening(tmp_path):
    """Must catch: code, tables or answers that nobody counts; folded text that is counted;
    objectives after the first section, or after what stands beside them."""
    # 400 words of text with symbols, 400 in a table, 400 of code, and ten times as many folded
    body = [
        "word $x$ " * 200,
        "| a |\n|:--|\n" + "| word |\n" * 399,
        "```python\n" + "name = 1\n" * 200 + "```",
        ":::{dropdown} Why\n" + "word " * 4000 + "\n:::",
    ]
    contents = "parts:\n  - numbered: 1\n    chapters:\n      - file: index\n"
    build = builder(tmp_path, "objectives", more_extensions=["sphinx_design"])
    pages = {"_toc.yml": contents, "index": OPENING % "\n\n".join(body), "lab": "# A lab\n"}
    page = build(**pages)[0]["index"]
    opening = re.search(r'<div class="opening.*?(?=<section)', page, re.DOTALL)[0]
    words = " ".join(re.sub(r"<[^>]+>", " ", opening).split())
    assert words == (
        "After this chapter you can add. 10 minutes to read without folds, 60 for the lab ."
        " It runs anywhere. A question."
    )
    assert 'href="lab.html"' in opening


def test_long_code_is_wide_and_short_code_is_not():
    """Must catch: the width of the longest line; a caption left behind at the column's width; code
    in a box that grows out of the box; code cut in a fold, which has no box."""
    short, long = "x" * COLUMN_LETTERS, "x\n" + "x" * (COLUMN_LETTERS + 1)
    section, box = nodes.section(), nodes.container(classes=["admonition"])
    wrapper = nodes.container(classes=["literal-block-wrapper"])
    cell, cell_input = nodes.container(classes=["cell"]), nodes.container(classes=["cell_input"])
    section += [nodes.literal_block("", short), nodes.paragraph(), nodes.literal_block("", long)]
    section += [box, wrapper, nodes.paragraph(), cell]
    fold, body = nodes.container(), nodes.container(design_component="dropdown-body")
    section += [nodes.paragraph(), fold]
    fold += body
    for place in (box, wrapper, cell_input, body):
        place += nodes.literal_block("", long)
    cell += cell_input
    widen_code(section)
    wide = [found for found in section.findall(nodes.Element) if "wide" in found.get("classes", ())]
    assert wide == [section[2], wrapper, cell_input, body[0]]


def test_code_beside_code_has_its_width():
    """Must catch: blocks of 584 and of 860 pixels below one another."""
    short, long = "x" * COLUMN_LETTERS, "x" * (COLUMN_LETTERS + 1)
    section = nodes.section()
    for text in (long, short, "", short, short):
        section += nodes.literal_block("", text) if text else nodes.paragraph()
    widen_code(section)
    assert ["wide" in block["classes"] for block in section] == [True, True, False, False, False]


def test_a_short_word_of_code_is_whole():
    """Must catch: a line that ends after the `--` of `--trace`; a long name, which a phone has no
    room for, kept whole."""
    short, long = "--trace " + "x" * WORD_LETTERS, "x" * (WORD_LETTERS + 1)
    line = nodes.paragraph("", "", nodes.literal("", short), nodes.literal("", long))
    keep_words(line)
    assert [code["classes"] for code in line] == [["whole"], []]


def table_of(columns):
    """A table with a head of one cell and so many columns."""
    group = nodes.tgroup(cols=columns)
    group += [nodes.colspec() for _ in range(columns)]
    group += nodes.thead("", nodes.row("", nodes.entry("", nodes.paragraph("", "with T = 1,024"))))
    return nodes.table("", group)


def test_a_table_of_five_columns_is_wide():
    """Must catch: five columns squeezed into the column; a table that grows out of its box; a head
    broken at its equals sign."""
    box, answer = nodes.container(classes=["box"]), nodes.container(classes=["answer"])
    section = nodes.section("", table_of(4), table_of(5), box, answer)
    box += table_of(5)
    answer += table_of(6)
    mend_tables(section)
    wide = [found for found in section.findall(nodes.Element) if "wide" in found.get("classes", ())]
    assert wide == [section[1], answer[0]]
    assert all(head.astext() == "with T\u00a0=\u00a01,024" for head in section.findall(nodes.thead))


def test_every_head_says_something():
    """Must catch: an empty head, which axe calls a minor fault and a reader who listens does not
    understand."""
    table = table_of(2)
    head = next(table.findall(nodes.row))
    head += [nodes.entry(), nodes.entry("", nodes.paragraph())]
    head += nodes.entry("", nodes.paragraph("", "", nodes.math("", "t")))
    mend_tables(nodes.section("", table))
    assert [entry.astext() for entry in head][1:] == ["Row", "Row", "t"]


GLOSSARY = sample("glossary.md")


def link(term, anchor):
    """The node that Sphinx makes of a term: a reference around its words."""
    inside = nodes.inline("", term, classes=["xref", "std", "std-term"])
    return nodes.reference("", "", inside, refuri=f"glossary.html#{anchor}", internal=True)


def test_a_term_shows_its_definition(tmp_path):
    """Must catch: a term of two words or in capitals without its definition; a link that is no term
    given one; a definition of two lines cut, markup in a tooltip, code left out of it or without
    its underscores, a second glossary of the page not read."""
    (tmp_path / "chapters").mkdir()
    (tmp_path / "chapters" / "glossary.md").write_text(GLOSSARY)
    page = new_document("page")
    other = nodes.reference("", "rank", refuri="glossary.html#term-rank")
    terms = [link("ranks", "term-rank"), link("states", "term-model-states")]
    terms.append(link("NCCL", "term-NCCL"))
    page += [*terms, other]
    glossary._explain(SimpleNamespace(srcdir=tmp_path), page, "page")
    shown = [term["reftitle"] for term in terms]
    assert shown == ["One process, and its number.", "0 of these.", "A library_of collectives."]
    assert "reftitle" not in other


def test_definitions_fit_a_tooltip():
    """Must catch: a definition cut off in the book; a word that no chapter links."""
    known = glossary.definitions((ROOT / f"{glossary.PAGE}.md").read_text("utf-8"))
    assert len(known) > 20 and max(map(len, known.values())) <= glossary.LONGEST
    chapters = "".join(page.read_text("utf-8") for page in (ROOT / "chapters").glob("*.md"))
    linked = re.findall(r"\{term\}`(?:[^`<]*<)?([^`>]+)>?`", chapters)
    assert {"rank", "node", "group", "shard", "collective", "NCCL", "gloo"} <= set(linked)
    assert set(linked) <= set(known)


def test_text_that_nobody_searches_is_left_out():
    """Must catch: outputs, solutions and installing cells searched; every line of code kept, or one
    that alone has a name left out; prose left out because its words were said; what follows a
    folded solution left out, too."""
    cell = '<div class="cell {}"><div class="{}"><pre>{}</pre></div></div>'
    page = "<article><section id=a><h1>Ring</h1><p>gather sends</p>" + "".join(
        cell.format(*given)
        for given in (
            ("tag_install", "cell_input", "pip"),
            ("tag_solution", "cell_input", "sends(x + 1)"),
            ("", "cell_input", "gather = 1\nreturn gather\n)\nreturn 2\ntorch.cat(gather)"),
            ("", "cell_output", "right: 3"),
        )
    )
    page += "<pre>yield gather\nyield</pre><details><summary>Solution</summary><p>2 (d - 1)</p>"
    said = search.sections(page + "</details><p>gather</p></section></article>")
    assert said == [["", "Ring", "gather sends\nreturn\ntorch.cat\nyield gather\ngather"]]
