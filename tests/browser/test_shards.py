"""The card of shards as a reader meets it: what is drawn is what every rank has; knobs, keys,
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

from coursekit.topics.zero.moves import AllGather, AllReduce, HeldPart, Update
from coursekit.topics.zero.steps import (
    MICROBATCHES,
    RANKS,
    UNIT_LETTERS,
    encode,
    first_number,
    name_of,
    page_data,
    shard_steps,
)


class Shards(StepperCard):
    """The card on an open page, and what a reader does with it."""

    def choose(self, stage, ranks, microbatches):
        for group, value in (
            ("stage", f"stage {stage}"),
            ("n", ranks),
            ("microbatches", name_of(0, microbatches).split(", ")[1]),
        ):
            self.find(f"[name=shards-{group}][value='{value}']").check()
            until(
                self.page,
                """([group, value]) =>
                 document.querySelector(`[name=shards-${group}]:checked`).value === value
                && document.querySelector(".explorer-title").textContent.endsWith(
                  document.querySelector("[name=shards-stage]:checked").value)""",
                arg=[group, str(value)],
            )
        until(
            self.page,
            """([count, ranks]) => +document.querySelector(".stepper [type=range]").max === count
            && document.querySelectorAll(".stepper svg .strong").length === ranks""",
            arg=[len(shard_steps(stage, ranks, microbatches)) - 1, ranks],
        )

    def shows(self, stage, ranks, microbatches, number):
        return self.says(shard_steps(stage, ranks, microbatches), number)


@pytest.fixture
def open_card(browser, card_pages):
    with opener(browser, card_pages["shards"], Shards) as open_it:
        yield open_it


# --- the data and the picture ---------------------------------------------------------------------


def test_the_page_has_pythons_data(card):
    """Every stage, number of ranks and of microbatches; they come when they are asked for.

    Mutations: the details of one number of ranks for another; a mark read as a code; all data in
    the page."""
    assert card.page.evaluate("Object.keys(BOOK.steppers.known)") == [name_of(1, 1)]
    card.choose(2, 4, 1)
    found = card.page.evaluate("BOOK.steppers.known")
    for stage in range(4):
        for microbatches in MICROBATCHES:
            sizes = found[name_of(stage, microbatches)]
            assert sorted(map(int, sizes)) == list(RANKS)
            for ranks in RANKS:
                assert sizes[str(ranks)] == json.loads(
                    json.dumps(page_data(stage, ranks, microbatches))
                ), (stage, ranks)
    followed = card.page.evaluate(
        f"BOOK.steppers.kinds.shards.follow(BOOK.steppers.known['{name_of(3, 2)}'][4])"
    )
    assert ["".join(str(cell["code"]) for cell in cells) for cells in followed] == [
        "".join(
            str("ABCDEF".find(letter.upper()) if letter.isalpha() else letter)
            for letter in encode(step)
        )
        for step in shard_steps(3, 4, 2)
    ]


# Of each cell: what is solid (2) or hatched (1) in the middle of each chunk, above and below, and
# its mark.
DRAWN = """n => [...document.querySelectorAll(".stepper svg g[transform]")].map(cell => {
  const box = cell.querySelector(".place").getBBox(),
    [solid, hatched] = [".solid", ".hatched"].map(kind => cell.querySelector(kind));
  const there = (x, y) => { const point = new DOMPoint(x, y);
    return (solid.isPointInFill(point) ? 2 : 0) + (hatched.isPointInFill(point) ? 1 : 0); };
  return [[0.25, 0.75].map(y => [...Array(n).keys()]
    .map(chunk => there((chunk + 0.5) / n * box.width, y * box.height))),
    cell.querySelector(".mark").getAttribute("class").slice(5)]; })"""


def wanted(has, column, rank, n):
    """[above, below]: of each chunk 2 if it is solid, 1 if it is hatched."""
    shard = [2 * (chunk == rank) for chunk in range(n)]
    amounts = {HeldPart.NOTHING: [0] * n, HeldPart.SHARD: shard, HeldPart.WHOLE: [2] * n}
    if column == "parameters" and has.old:
        return [[2 if chunk == rank else 1 for chunk in range(n)]] * 2
    if column == "gradients" and has.own:
        return [[1] * n, amounts[has.gradients] if has.gradients else [1] * n]
    return [amounts[getattr(has, column)]] * 2


@pytest.mark.parametrize(
    ("stage", "ranks", "microbatches"),
    [(0, 3, 2), (1, 4, 1), (2, 2, 2), (2, 5, 2), (3, 8, 1), (3, 4, 2)],
)
def test_what_is_drawn_is_what_every_rank_has(card, stage, ranks, microbatches):
    """At every move: each chunk of each unit, of parameters, gradients, optimizer states and
    gathered parameters, on each rank; a collective is marked where it fills cells, on all ranks,
    and nowhere else.

    Mutations: rank r's shard at r + 1; old parameters solid; the shard of the first microbatch
    hidden behind whole gradients; units and columns exchanged; a mark on one rank only; the picture
    of the move before."""
    card.choose(stage, ranks, microbatches)
    columns = ("parameters", "gradients", "optimizer", "gathered")
    for step in shard_steps(stage, ranks, microbatches):
        card.step(step.number)
        drawn = card.page.evaluate(DRAWN, ranks)
        assert len(drawn) == ranks * 4 * len(UNIT_LETTERS)
        for number, (found, mark) in enumerate(drawn):
            rank, cell = divmod(number, 4 * len(UNIT_LETTERS))
            column, unit = divmod(cell, len(UNIT_LETTERS))
            assert found == wanted(step.picture[unit], columns[column], rank, ranks), (
                step.sentence,
                rank,
                columns[column],
                unit,
            )
            if isinstance(step.move, (AllReduce, AllGather)):  # a reduce-scatter is one
                fills = (
                    "gradients"
                    if isinstance(step.move, AllReduce)
                    else "gathered"
                    if stage == 3
                    else "parameters"
                )
                assert (mark == "moved") == ((columns[column], unit) == (fills, step.move.unit))
            else:
                assert mark != "moved" and (step.move or not mark)


def test_rows_are_ranks_and_columns_are_said(card):
    """Mutations: cells of a rank in two rows; units without letters; the head of another column."""
    boxes = card.find("svg .place").evaluate_all(
        "nodes => nodes.map(node => { const box = node.getBoundingClientRect(); "
        "return [Math.round(box.left), Math.round(box.top)]; })"
    )
    per_row = 4 * len(UNIT_LETTERS)
    rows = [boxes[k : k + per_row] for k in range(0, len(boxes), per_row)]
    assert len(rows) == 4 and all(
        len({top for _, top in row}) == 1 and row == sorted(row) for row in rows
    )
    assert [row[0][1] for row in rows] == sorted(row[0][1] for row in rows)
    words = card.find("svg text").all_text_contents()
    assert words[:5] == ["rank", "parameters", *UNIT_LETTERS] and words[5:9] == [
        "gradients",
        *UNIT_LETTERS,
    ]
    assert words[9:13] == ["optimizer states", *UNIT_LETTERS] and words[13:] == [
        "gathered",
        *UNIT_LETTERS,
        "0",
        "1",
        "2",
        "3",
    ]


# --- knobs ----------------------------------------------------------------------------------------


def test_knobs(card):
    """It begins at the update; another stage or number of microbatches begins at its own, other
    ranks stay where one is; Reset.

    Mutations: move 10 of stage 3; the update whenever ranks change; a stage that forgets the
    microbatches."""
    assert card.shows(1, 4, 1, 10) and isinstance(shard_steps(1, 4, 1)[10].move, Update)
    card.choose(3, 4, 1)
    assert (
        card.shows(3, 4, 1, 22)
        and card.find(".explorer-title").text_content() == "Who holds which shard in stage 3"
    )
    card.choose(3, 4, 2)
    assert card.shows(3, 4, 2, first_number(3, 2))
    card.step(7)
    card.choose(3, 8, 2)
    assert card.shows(3, 8, 2, 7)
    card.find("[name=shards-stage][value='stage 2']").check()
    until(card.page, "document.querySelector('.explorer-title').textContent.endsWith('2')")
    assert card.shows(2, 8, 2, first_number(2, 2))
    click(card.find(".explorer-reset"))
    assert card.shows(1, 4, 1, 10)
    assert card.find("[type=radio]:checked").evaluate_all(
        "nodes => nodes.map(node => node.value)"
    ) == ["stage 1", "4", "1 microbatch"]


def test_keys(card):
    """Arrows on the picture step, on a knob they turn the knob.

    Mutation: arrows on the stages step instead."""
    card.find(".explorer-picture").focus()
    for key, number in (
        ("ArrowRight", 11),
        ("ArrowLeft", 10),
        ("Home", 0),
        ("End", 13),
        ("Space", 13),
    ):
        card.page.keyboard.press(key)
        assert card.shows(1, 4, 1, number), key
    card.find("[name=shards-stage]:checked").focus()
    card.page.keyboard.press("ArrowRight")
    until(card.page, "document.querySelector('.explorer-title').textContent.endsWith('2')")
    assert card.shows(2, 4, 1, first_number(2, 1))


# --- everyone, everywhere -------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_it_is_seen(open_card, mode):
    """Lines and stripes 3:1 against the page.

    Mutations: the page's line for a column's; a mark in a pale ink."""
    card = open_card(color_scheme=mode)
    for number in (7, 10, 11):  # gradients hatched and reduced; parameters old; gathered
        card.step(number)
        colours = card.page.evaluate(
            """() => [".place.held", ".solid", ".stripe", ".mark.used", ".mark.moved",
        ".link"].flatMap(kind =>
          [...document.querySelectorAll(".stepper svg " + kind)].map(node =>
            getComputedStyle(node)[kind === ".stripe" ? "fill" : "stroke"]))"""
        )
        page = card.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        assert len(colours) > 40 and all(contrast(colour, page) >= 3 for colour in colours)


@pytest.mark.parametrize("ranks", [2, 8])
def test_on_a_phone(open_card, ranks):
    """Text keeps its size, stays inside and apart; picture and buttons are seen together.

    Mutations: a picture as wide as on a desktop; heads that run into one another."""
    card = open_card(viewport=PHONE, has_touch=True, is_mobile=True)
    card.choose(3, ranks, 2)
    card.assert_picture_and_buttons_seen_together()
    assert not card.page.evaluate(BEYOND)
    card.assert_texts_apart()
