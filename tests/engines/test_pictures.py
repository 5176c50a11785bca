"""Still pictures of all topics: drawn as SVG that follows the page, is heard, and is read on a
phone."""

from functools import cache
from xml.etree import ElementTree

import pytest
from pages import ROOT

from bookkit.pictures import pictures, style_sheet
from coursekit.show.drawing import COLOUR_WORDS, LETTER_UNITS, LOOKS, PICTURE_WIDTH

PICTURES = {name: cache(draw) for name, draw in pictures().items()}
SVG = "{http://www.w3.org/2000/svg}"
COLUMN = 354  # pixels of a phone's 390 that the text has
LEAST = 11  # pixels of a letter
SMALL_LETTER_UNITS = int(LOOKS["small"].removeprefix("font-size:").removesuffix("px"))


@pytest.mark.parametrize("name", PICTURES)
def test_it_is_svg_with_a_title_and_words(name):
    """Must catch: a bare `<` or `&` in a label; a picture without alternative text; an id that two
    pictures of a page share."""
    svg = ElementTree.fromstring(PICTURES[name]())
    assert svg.attrib["role"] == "img"
    assert svg.attrib["aria-labelledby"] == f"{name}-title {name}-text"
    title, words = svg.find(f"{SVG}title"), svg.find(f"{SVG}desc")
    assert (title.attrib["id"], words.attrib["id"]) == (f"{name}-title", f"{name}-text")
    assert len(title.text) > 10 and len(words.text) > 80 and words.text.endswith(".")


@pytest.mark.parametrize("name", PICTURES)
def test_marks_lie_within_it_and_follow_the_page(name):
    """Must catch: a colour of its own, which dark pages would not change; a box that is cut off; a
    negative width."""
    svg = ElementTree.fromstring(PICTURES[name]())
    *_, width, height = map(float, svg.attrib["viewBox"].split())
    assert width == PICTURE_WIDTH
    for mark in svg:
        assert not {"style", "fill", "stroke", "font-size"} & set(mark.attrib)
        if mark.tag == f"{SVG}rect":
            x, y, wide, high = (float(mark.attrib[key]) for key in ("x", "y", "width", "height"))
            assert 0 <= x and x + wide <= width and 0 <= y and y + high <= height, mark.attrib
            assert wide >= 0 and high >= 0
        if mark.tag == f"{SVG}text":
            assert all(0 <= float(x) <= width for x in mark.attrib["x"].split())
            assert SMALL_LETTER_UNITS - 2 < float(mark.attrib["y"]) <= height, mark.text


@pytest.mark.parametrize("name", PICTURES)
def test_it_stands_on_one_page(name):
    """Must catch: a picture that nobody sees."""
    pages = [*ROOT.glob("chapters/*.md"), ROOT / "index.md"]
    shown = [page.name for page in pages if f"{{picture}} {name}\n" in page.read_text("utf-8")]
    assert len(shown) == 1


def test_letters_are_large_enough_on_a_phone():
    """Must catch: a smaller size of letters, or a wider drawing."""
    assert min(LETTER_UNITS, SMALL_LETTER_UNITS) * COLUMN / PICTURE_WIDTH >= LEAST


def test_every_look_has_a_rule():
    """Must catch: a look that draws and that no page knows."""
    css = style_sheet()
    for look in (*COLOUR_WORDS, *(look for look, declarations in LOOKS.items() if declarations)):
        assert f".picture .{look}{{" in css, look
    assert css.count("{") == css.count("}")
