"""A block cut among ranks, as a reader meets it: what is drawn is what every rank has; knobs,
a phone."""

import json

import pytest
from cards import StepperCard, contrast, opener
from visit import (
    BEYOND,
    PHONE,
    click,
    until,
)

from coursekit.topics.tensor_parallelism.steps import (
    FIRST_SHOWN,
    PAIR_COLUMNS,
    PAIR_WAYS,
    RANKS,
    Extent,
    page_data,
    pair_steps,
)

CELLS = [name for *_, names in PAIR_COLUMNS for name in names]


SHOWN = """([count, ranks]) => +document.querySelector(".stepper [type=range]").max === count
  && document.querySelectorAll(".stepper svg .strong").length === ranks"""


class Pairs(StepperCard):
    def choose(self, way, ranks):
        self.find(f"[name=pairs-way][value='{way}']").check()
        self.find(f"[name=pairs-n][value='{ranks}']").check()
        until(self.page, SHOWN, arg=[len(pair_steps(way, ranks)) - 1, ranks])

    def shows(self, way, ranks, number):
        return self.says(pair_steps(way, ranks), number)


@pytest.fixture
def open_card(browser, card_pages):
    with opener(browser, card_pages["pairs"], Pairs) as open_it:
        yield open_it


def test_a_second_choice_before_the_first_is_there(card):
    """A reader chooses a way, and ranks while the data are on their way: both count.

    Must catch: the second choice made from what is still shown, so that the first is lost."""
    card.page.evaluate(
        """() => { const append = document.head.append.bind(document.head), held = [];
        document.head.append = node => held.push(node);
        window.goOn = () => held.forEach(node => append(node)); }"""
    )
    card.find("[name=pairs-way][value='gathered again']").check()
    card.find("[name=pairs-n][value='8']").check()
    card.page.evaluate("goOn()")
    until(card.page, SHOWN, arg=[len(pair_steps("gathered again", 8)) - 1, 8])
    assert card.find("[name=pairs-way]:checked").input_value() == "gathered again"


def test_the_page_has_pythons_data(card):
    """They come when they are asked for. Must catch: the words of one number of ranks for
    another; all data in the page."""
    assert card.page.evaluate("Object.keys(BOOK.steppers.known)") == ["tensor"]
    card.choose("gathered again", 4)
    found = card.page.evaluate("BOOK.steppers.known")
    for way in PAIR_WAYS:
        assert sorted(map(int, found[way])) == list(RANKS)
        for ranks in RANKS:
            assert found[way][str(ranks)] == json.loads(json.dumps(page_data(way, ranks)))


# Of each cell: a grid of points, n by n, that are solid (2), hatched (1) or empty, and its mark.
DRAWN = """n => [...document.querySelectorAll(".stepper svg g[transform]")].map(cell => {
  const box = cell.querySelector(".place").getBBox(),
    [solid, hatched] = [".solid", ".hatched"].map(kind => cell.querySelector(kind));
  const there = (x, y) => { const point = new DOMPoint(x * box.width, y * box.height);
    return (solid.isPointInFill(point) ? 2 : 0) + (hatched.isPointInFill(point) ? 1 : 0); };
  return [[...Array(n).keys()].map(row => [...Array(n).keys()]
    .map(column => there((column + 0.5) / n, (row + 0.5) / n))),
    cell.querySelector(".mark").getAttribute("class").slice(5)]; })"""


def wanted(extent, rank, n):
    """Rows of a matrix, columns in each."""
    places = {
        Extent.NOTHING: lambda row, column: 0,
        Extent.COLUMNS: lambda row, column: 2 * (column == rank),
        Extent.TOKENS: lambda row, column: 2 * (row == rank),
        Extent.WHOLE: lambda row, column: 2,
        Extent.TERM: lambda row, column: 1,
    }
    return [[places[extent](row, column) for column in range(n)] for row in range(n)]


@pytest.mark.parametrize(("way", "ranks"), [("tensor", 4), ("sequence", 2), ("gathered again", 8)])
def test_what_is_drawn_is_what_every_rank_has(card, way, ranks):
    """At every move each tensor on each rank; a collective is marked where it moves something, on
    all ranks.

    Must catch: rows drawn as columns; rank r's at r + 1; a term drawn as a whole; letters of one
    column over another."""
    card.choose(way, ranks)
    heads = card.find("svg .tick").all_text_contents()[1:]
    assert heads == [name.removeprefix("d") for name in CELLS]
    for step in pair_steps(way, ranks):
        card.step(step.number)
        drawn = card.page.evaluate(DRAWN, ranks)
        assert len(drawn) == ranks * len(CELLS)
        for number, (found, mark) in enumerate(drawn):
            rank, cell = divmod(number, len(CELLS))
            assert found == wanted(step.has[CELLS[cell]], rank, ranks), (step.sentence, CELLS[cell])
            sends = step.move is not None and step.move.sends
            assert (mark == "moved") == (sends and CELLS[cell] == step.move.moved)


def test_knobs(card):
    """It begins at the sum; another way begins there, too; other ranks stay where one is; Reset.

    Must catch: a way that forgets the ranks; two ways checked at once."""
    assert card.shows("tensor", 4, FIRST_SHOWN)
    card.choose("gathered again", 4)
    assert card.shows("gathered again", 4, FIRST_SHOWN)
    assert card.find("[name=pairs-way]:checked").count() == 1
    card.step(9)
    card.choose("gathered again", 8)
    assert card.shows("gathered again", 8, 9)
    click(card.find(".explorer-reset"))
    assert card.shows("tensor", 4, FIRST_SHOWN)


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_it_is_seen(open_card, mode):
    """Must catch: a band in a pale ink."""
    card = open_card(color_scheme=mode)
    colours = card.page.evaluate(
        """() => [".place.held", ".solid", ".stripe", ".mark.moved"].flatMap(kind =>
        [...document.querySelectorAll(".stepper svg " + kind)].map(node =>
        getComputedStyle(node)[kind === ".stripe" ? "fill" : "stroke"]))"""
    )
    page = card.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert len(colours) > 40 and all(contrast(colour, page) >= 3 for colour in colours)


@pytest.mark.parametrize("ranks", RANKS)
def test_on_a_phone(open_card, ranks):
    """Text keeps its size, stays inside and apart. Must catch: headings that run into one another;
    a picture wider than the phone."""
    card = open_card(viewport=PHONE, has_touch=True, is_mobile=True)
    card.choose("gathered again", ranks)
    assert not card.page.evaluate(BEYOND)
    card.assert_texts_apart()
