"""The pictures of a chapter as sheets for a projector."""

import re

import pytest
import stills
from pypdfium2 import PdfDocument
from visit import printed_text

PAGE = "chapters/zero.html"


@pytest.mark.nightly  # by day: the deck has every figure
def test_a_chapter_becomes_sheets(browser, book_html, tmp_path):
    """Must catch: a figure in a fold or an answer left out, a stepper with its first step alone or
    with one step on all sheets, a sheet without its caption or its place, upright paper, letters of
    another font, a link to this disk, a picture that is cut (write_stills raises then)."""
    output = tmp_path / "stills.pdf"
    count = stills.write_stills(book_html, output, [PAGE], browser)
    data, sheets = output.read_bytes(), PdfDocument(output)
    page = (book_html / PAGE).read_text("utf-8")
    pictures = len(re.findall(r'class="(?:[\w-]+ )*figure(?: [\w-]+)*"', page))
    cards = len(re.findall(r'class="explorer(?: [\w-]+)* wide"', page))
    text = printed_text(sheets)
    steps = re.findall(r"shards · step (\d+) of (\d+)", text)
    assert [int(step) for step, _ in steps] == list(range(int(steps[0][1]) + 1))
    assert count == pictures + cards - 1 + len(steps) == len(sheets)
    assert len(set(re.findall(r"Move (\d+) of", text))) == len(steps)
    assert {sheet.get_size() for sheet in sheets} == {(960, 540)}
    captions = re.findall(r"<strong>(Figure \d+)\.</strong>", page)
    assert captions and all(
        caption.replace(" ", "") in text.replace(" ", "") for caption in captions
    )
    assert text.count(PAGE) == count
    assert b"+BookSans" in data and b"+BookSerif" in data and b"file:" not in data
