"""Chapters by number: the contents number them, the role says the number."""

import re
from pathlib import Path

import nbformat
from small_books import builder

from bookkit import words

ROOT = Path(__file__).resolve().parents[2]
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


def test_every_chapter_that_is_named_is_in_the_contents():
    """Must catch: a page that was renamed."""
    known = {page.stem for page in words.chapters(ROOT)}
    asked = {
        name.removesuffix(" as number")
        for page in [*(ROOT / "chapters").glob("*.md"), ROOT / "index.md"]
        for name in re.findall(r"\{chapter\}`([^`]+)`", page.read_text("utf-8"))
    }
    assert asked and asked <= known


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
