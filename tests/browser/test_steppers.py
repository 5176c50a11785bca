"""The cards that go step by step, as a reader meets them: their data and their pictures are
Python's, knobs, keys, play, less motion. Names, colours, paper and a phone: test_cards.py."""

import json
from contextlib import ExitStack
from functools import partial

import pytest
from cards import STEPPED, opener
from keyboard import VALUES
from night import at_night
from visit import PHONE, click, in_colours, stop_clock, until
from wcag import contrast

from coursekit.topics.collectives import steps as collectives
from coursekit.topics.collectives.steps import COLLECTIVES, stepper_steps
from coursekit.topics.tensor_parallelism import steps as pairs
from coursekit.topics.tensor_parallelism.steps import FIRST_SHOWN, PAIR_COLUMNS, Extent
from coursekit.topics.zero import steps as shards
from coursekit.topics.zero.moves import AllGather, AllReduce, HeldPart
from coursekit.topics.zero.steps import UNIT_LETTERS, first_number, name_of

pytestmark = pytest.mark.xdist_group("cards")  # one worker builds their small book
FIRST = "ring all-reduce"


@pytest.fixture
def open_card(browser, card_pages):
    """open_card(name, **options of the browser's context)."""
    with ExitStack() as stack:

        def open_it(name, **options):
            opened = stack.enter_context(opener(browser, card_pages[name], STEPPED[name]))
            return opened(**options)

        yield open_it


@pytest.fixture
def card(open_card, name):
    card = open_card(name)
    yield card
    assert not card.page.watch.errors and not card.page.watch.failed


of_all = pytest.mark.parametrize("name", STEPPED)
of_collectives = pytest.mark.parametrize("name", ["stepper"])

dumps = partial(json.dumps, separators=(",", ":"), ensure_ascii=False)

# --- the data and the picture ---------------------------------------------------------------------

# Card -> what its page brings, another choice, and all data: name -> ranks -> data.
DATA = {
    "stepper": (
        FIRST,
        ("scatter", 4),
        {
            name: {n: collectives.page_data(name, n) for n in collectives.RANKS}
            for name in COLLECTIVES
        },
    ),
    "shards": (
        name_of(1, 1),
        (2, 4, 1),
        {
            name_of(stage, times): {n: shards.page_data(stage, n, times) for n in shards.RANKS}
            for stage in range(4)
            for times in shards.MICROBATCHES
        },
    ),
    "pairs": (
        "tensor",
        ("gathered again", 4),
        {way: {n: pairs.page_data(way, n) for n in pairs.RANKS} for way in pairs.PAIR_WAYS},
    ),
}


@of_all
def test_the_page_has_pythons_data(card, name):
    """Must catch: the words of one number of ranks for another; all data in the page; the script of
    an older build."""
    first, choice, data = DATA[name]
    assert card.page.evaluate("Object.keys(BOOK.steppers.known)") == [first]
    card.choose(*choice)
    assert card.page.evaluate("BOOK.steppers.known") == json.loads(json.dumps(data))


@pytest.mark.parametrize("name", ["pairs"])
def test_a_second_choice_before_the_first_is_there(card):
    """Must catch: the second choice made from what is still shown, so that the first is lost."""
    card.page.evaluate(
        """() => { const append = document.head.append.bind(document.head), held = [];
        document.head.append = node => held.push(node);
        window.goOn = () => held.forEach(node => append(node)); }"""
    )
    card.find("[name=pairs-way][value='gathered again']").check()
    card.find("[name=pairs-n][value='8']").check()
    card.page.evaluate("goOn()")
    card.until_shown("gathered again", 8)
    assert card.find("[name=pairs-way]:checked").input_value() == "gathered again"


# What the eye finds in a cell: [left, top, words, digits, kinds, new bars, old bars]; and of each
# sign [top, 2 for +].
DRAWN = """() => {
  const svg = document.querySelector(".stepper svg"), all = kind => [...svg.querySelectorAll(kind)];
  const paths = kind => all(kind).flatMap(path => (path.getAttribute("d") || "").split("M").slice(1)
    .map(text => ({ text, at: text.match(/[-.\\d]+/g).map(Number) })));
  const within = (box, found) => found.filter(({ at: [x, y] }) => x > box.x && y > box.y
    && x < box.x + box.width && y < box.y + box.height).length;
  const chunks = all(".chunk"), digits = all(".digits"), fresh = paths(".bars.fresh"),
    bars = paths(".bars:not(.fresh)");
  return { cells: all(".cell").map((cell, k) => { const box = cell.getBBox();
      return [Math.round(box.x), Math.round(box.y), chunks[k].textContent, digits[k].textContent,
        cell.getAttribute("class"), within(box, fresh), within(box, bars)]; }),
    arrows: paths(".arrow").length, heads: paths(".head").length,
    signs: paths(".operator").map(({ text, at }) => [at[1], text.split("v").length]) }; }"""


@pytest.mark.one_in(2)
@of_collectives
@pytest.mark.parametrize(
    ("of", "n"),
    [
        ("ring all-reduce", 4),
        ("tree all-reduce", 6),
        ("barrier", 8),
        ("scatter", 7),
        *at_night(("ring all-reduce", 8), ("reduce-scatter", 3)),
        *at_night(("all-gather", 5), ("broadcast", 5)),
    ],
)
def test_what_is_drawn_is_what_is_held(card, of, n):
    """Must catch: rows and columns exchanged; the parts before the step; every bar fresh; a sign at
    the sender; + for =; `=` for `+=`; moves of one step seen by each other; a barrier without
    hearsay."""
    card.choose(of, n)
    shown, places, steps = COLLECTIVES[of], None, stepper_steps(of, n)
    chunks = n if shown.cut else 1
    for number, step in enumerate(steps):
        card.step(number)
        drawn = card.page.evaluate(DRAWN)
        cells = drawn["cells"]
        assert len(cells) == n * chunks and drawn["arrows"] == drawn["heads"] == len(step.moves)
        assert places in (None, [cell[:2] for cell in cells]), "the same rank, the same place"
        places = [cell[:2] for cell in cells]
        assert places == sorted(places, key=lambda place: (place[1], place[0]))
        assert len({tuple(place) for place in places}) == n * chunks
        targets = {(move.target, 0 if shown.hearsay else move.chunk): move for move in step.moves}
        for k, (_, _, words, digits, kinds, fresh, old) in enumerate(cells):
            rank, chunk = divmod(k, chunks)
            parts = step.picture[rank].get(chunk, frozenset())
            move = targets.get((rank, chunk))
            assert ("empty" in kinds, "full" in kinds) == (not parts, len(parts) >= shown.need(n))
            assert ("moved" in kinds) == (move is not None)
            if shown.sums:
                before = steps[number - 1].picture[rank].get(chunk, frozenset())
                adds = shown.hearsay or move and move.operator == "+="
                came = (parts - before if adds else parts) if move else frozenset()
                assert (fresh, old) == (len(came), len(parts - came))
                assert digits in ("", "".join(map(str, sorted(parts))))
            assert bool(words) == bool(parts)
            assert words == "ABCDEFGH"[chunk] or not (parts and shown.cut)
        rows = sorted({place[1] for place in places})
        near = [min(range(n), key=lambda rank: abs(rows[rank] - top)) for top, _ in drawn["signs"]]
        assert near == [move.target for move in step.moves]
        assert [lines == 2 for _, lines in drawn["signs"]] == [
            shown.hearsay or move.operator == "+=" for move in step.moves
        ]


@of_collectives
def test_an_exchange_is_drawn_from_what_one_has_to_what_one_got(card):
    """Must catch: a chunk that arrives put in its sender's column of the left half; the own chunk
    not among what one got."""
    card.choose("all-to-all", 4)
    for number, step in enumerate(stepper_steps("all-to-all", 4)):
        card.step(number)
        words = [cell[2] for cell in card.page.evaluate(DRAWN)["cells"]]
        for rank in range(4):
            row = words[8 * rank : 8 * rank + 8]
            assert row[:4] == [f"{letter}{rank}" for letter in "ABCD"]
            got = [source for source in range(4) if 4 * source + rank in step.picture[rank]]
            assert row[4:] == [
                f"{'ABCD'[rank]}{source}" if source in got else "" for source in range(4)
            ]


@of_collectives
def test_bars_are_numbered_where_there_is_room(card):
    """Must catch: digits over one another on a phone; a width that is measured once."""
    card.step(2)
    digits = lambda: any(cell[3] for cell in card.page.evaluate(DRAWN)["cells"])
    assert digits()
    card.page.set_viewport_size(PHONE)
    until(
        card.page,
        """() => { const place = document.querySelector(".explorer-drawing");
      return +place.querySelector("svg").getAttribute("width") === place.clientWidth; }""",
    )
    assert not digits()


# Of each cell: a grid of points that are solid (2), hatched (1) or empty, row by row, and its mark.
GRIDS = """([rows, columns]) => [...document.querySelectorAll(".stepper svg g[transform]")].map(
  cell => {
  const box = cell.querySelector(".place").getBBox(),
    [solid, hatched] = [".solid", ".hatched"].map(kind => cell.querySelector(kind));
  const there = (x, y) => { const point = new DOMPoint(x * box.width, y * box.height);
    return (solid.isPointInFill(point) ? 2 : 0) + (hatched.isPointInFill(point) ? 1 : 0); };
  return [[...Array(rows).keys()].map(row => [...Array(columns).keys()]
    .map(column => there((column + 0.5) / columns, (row + 0.5) / rows))),
    cell.querySelector(".mark").getAttribute("class").slice(5)]; })"""

SHARD_COLUMNS = ("parameters", "gradients", "optimizer", "gathered")


def shards_drawn(step, rank, n, stage):
    """Cells of shards of one rank at a step: (grid, marked as moved or None: whatever)."""
    for column in SHARD_COLUMNS:
        for unit in range(len(UNIT_LETTERS)):
            has = step.picture[unit]
            shard = [2 * (chunk == rank) for chunk in range(n)]
            amounts = {HeldPart.NOTHING: [0] * n, HeldPart.SHARD: shard, HeldPart.WHOLE: [2] * n}
            grid = [amounts[getattr(has, column)]] * 2
            if column == "parameters" and has.old:
                grid = [[max(1, chunk) for chunk in shard]] * 2
            if column == "gradients" and has.own:
                grid = [[1] * n, amounts[has.gradients] if has.gradients else [1] * n]
            fills = None
            if isinstance(step.move, AllReduce):  # a reduce-scatter is one
                fills = "gradients", step.move.unit
            elif isinstance(step.move, AllGather):
                fills = "gathered" if stage == 3 else "parameters", step.move.unit
            yield grid, (column, unit) == fills


def pairs_drawn(step, rank, n, way):
    """Cells of a block of one rank at a step."""
    places = {
        Extent.NOTHING: lambda row, column: 0,
        Extent.COLUMNS: lambda row, column: 2 * (column == rank),
        Extent.TOKENS: lambda row, column: 2 * (row == rank),
        Extent.WHOLE: lambda row, column: 2,
        Extent.TERM: lambda row, column: 1,
    }
    for name in (name for *_, names in PAIR_COLUMNS for name in names):
        place = places[step.has[name]]
        sends = step.move is not None and step.move.sends
        grid = [[place(row, column) for column in range(n)] for row in range(n)]
        yield grid, sends and name == step.move.moved


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("shards", (1, 4, 1)),
        ("shards", (2, 2, 2)),
        ("shards", (3, 4, 2)),
        ("pairs", ("tensor", 4)),
        ("pairs", ("gathered again", 8)),
        *at_night(("shards", (0, 3, 2)), ("shards", (2, 5, 2)), ("shards", (3, 8, 1))),
        *at_night(("pairs", ("sequence", 2))),
    ],
)
def test_what_is_drawn_is_what_every_rank_has(card, name, of):
    """Must catch: rank r's shard at r + 1; old parameters solid; the shard of the first microbatch
    hidden behind whole gradients; units and columns, or rows and columns, exchanged; a term drawn
    as a whole; a mark on one rank only; the picture of the move before."""
    card.choose(*of)
    n, drawn_of = of[1], shards_drawn if name == "shards" else pairs_drawn
    for step in STEPPED[name].steps(*of):
        card.step(step.number)
        drawn = card.page.evaluate(GRIDS, [2 if name == "shards" else n, n])
        wanted = [cell for rank in range(n) for cell in drawn_of(step, rank, n, of[0])]
        for place, ((grid, mark), (ours, moved)) in enumerate(zip(drawn, wanted, strict=True)):
            assert (grid, mark == "moved") == (ours, moved), (step.sentence, place)
            assert step.move or not mark


# The column heads of a picture, and how often the letters of units stand below each.
HEADS = {
    "shards": [
        head
        for column in ("parameters", "gradients", "optimizer states", "gathered")
        for head in (column, *UNIT_LETTERS)
    ],
    "pairs": [name.removeprefix("d") for *_, names in PAIR_COLUMNS for name in names],
}


@pytest.mark.parametrize("name", HEADS)
def test_rows_are_ranks_and_columns_are_said(card, name):
    """Must catch: cells of a rank in two rows; units without letters; the head of another column;
    letters of one column over another."""
    boxes = card.find("svg .place").evaluate_all(
        "nodes => nodes.map(node => { const box = node.getBoundingClientRect(); "
        "return [Math.round(box.left), Math.round(box.top)]; })"
    )
    per_row = len(boxes) // 4
    rows = [boxes[k : k + per_row] for k in range(0, len(boxes), per_row)]
    assert all(len({top for _, top in row}) == 1 and row == sorted(row) for row in rows)
    assert [row[0][1] for row in rows] == sorted({row[0][1] for row in rows})
    if name == "shards":
        heads = [*HEADS[name], "0", "1", "2", "3"]
        assert card.find("svg text").all_text_contents()[1:] == heads
    else:
        assert card.find("svg .tick").all_text_contents()[1:] == HEADS[name]


# --- stepping -------------------------------------------------------------------------------------

# Card -> what is shown at first, and (a choice or a step, the step then).
KNOBS = {
    "stepper": (
        ((FIRST, 4), 1),
        [(6, 6), ((FIRST, 8), 6), ((FIRST, 2), 2), ((FIRST, 5), 2), (("broadcast", 5), 1)],
    ),
    "shards": (
        ((1, 4, 1), 10),
        [((3, 4, 1), 22), ((3, 4, 2), first_number(3, 2)), (7, 7), ((3, 8, 2), 7)]
        + [((2, 8, 2), first_number(2, 2))],
    ),
    "pairs": (
        (("tensor", 4), FIRST_SHOWN),
        [(("gathered again", 4), FIRST_SHOWN), (9, 9), (("gathered again", 8), 9)],
    ),
}


@of_all
def test_knobs(card, name):
    """Must catch: step 6 of 2; the first step whenever the ranks change; a stage that forgets the
    microbatches, a way that forgets the ranks; two ways checked at once."""
    (first, number), moves = KNOBS[name]
    steps, of, before = STEPPED[name].steps, first, card.page.evaluate(VALUES)
    assert card.says(steps(*first), number)
    for move, there in moves:
        if isinstance(move, tuple):
            of = move
            card.choose(*of)
        else:
            card.step(move)
        assert card.says(steps(*of), there), move
        assert card.find("[type=range]").get_attribute("max") == str(len(steps(*of)) - 1)
    click(card.find(".explorer-reset"))
    assert card.says(steps(*first), number) and card.page.evaluate(VALUES) == before


@pytest.mark.one_in(2)
@of_all
@pytest.mark.parametrize("place", [".explorer-picture", "[type=range]", "[data-to=last]"])
def test_keys(card, name, place):
    """Must catch: two steps where the slider has the focus; a step beyond the last; Home left to
    the page; arrows on the stages or numbers of ranks that step."""
    (first, number), _ = KNOBS[name]
    steps = STEPPED[name].steps(*first)
    card.find(place).focus()
    top, end = card.page.evaluate("scrollY"), len(steps) - 1
    keys = [("ArrowRight", number + 1), ("ArrowLeft", number), ("Home", 0), ("ArrowLeft", 0)]
    for key, there in (*keys, ("ArrowRight", 1), ("End", end), ("ArrowRight", end)):
        card.page.keyboard.press(key)
        assert card.says(steps, there), key
    assert card.page.evaluate("scrollY") == top
    card.find(".explorer-picture").focus()
    card.page.keyboard.press("Home")
    card.page.keyboard.press("Space")
    assert card.at == 1
    card.find("[type=radio]:checked").first.focus()
    before = card.page.evaluate(VALUES)
    card.page.keyboard.press("ArrowRight")
    until(card.page, f"before => JSON.stringify(({VALUES})()) !== before", dumps(before))


@of_collectives
def test_buttons_and_slider(card):
    """Must catch: `disabled`, which drops the focus to the page."""
    steps = stepper_steps(FIRST, 4)
    for button, number in (("last", 6), ("forward", 6), ("back", 5), ("first", 0), ("forward", 1)):
        # Playwright would wait until it does something
        click(card.find(f"[data-to={button}]"), force=True)
        assert card.says(steps, number)
        assert card.page.evaluate("document.activeElement.dataset.to") == button
        dead = card.find("[data-to][aria-disabled=true]").evaluate_all(
            "buttons => buttons.map(button => button.dataset.to)"
        )
        assert dead == {0: ["first", "back"], 6: ["forward", "last"]}.get(number, [])
    card.step(4)
    assert card.find("[type=range]").get_attribute("aria-valuetext") == "step 4 of 6"
    assert card.find(".stepper-count").text_content() == "4 of 6"
    assert card.find(".stepper-look").text_content() == COLLECTIVES[FIRST].look


# --- playing: the page's clock is the test's ------------------------------------------------------


@pytest.fixture
def playing(open_card):
    """The stepper of a reader who minds no motion, with a stopped clock; and its steps."""
    card = open_card("stepper", reduced_motion="no-preference")
    stop_clock(card.page)
    return card, stepper_steps(FIRST, 4)


def test_steps_are_announced_when_the_reader_rests(playing):
    """Once, politely, and not on the way. Must catch: a sentence that is no live region; every step
    announced; `assertive`."""
    card, steps = playing
    status = card.find(".explorer-status")
    assert status.get_attribute("role") == "status" and not status.text_content()
    card.page.evaluate(
        """() => { window.said = [];
      const status = document.querySelector(".explorer-status");
      const listen = () => { if (status.textContent) said.push(status.textContent); };
      new MutationObserver(listen).observe(status,
        {childList: true, characterData: true, subtree: true}); }"""
    )
    card.find(".explorer-picture").focus()
    for _ in range(3):
        card.page.keyboard.press("ArrowRight")
        card.page.clock.run_for(600)
    card.page.clock.run_for(5000)
    assert card.page.evaluate("said") == [steps[4].sentence]
    assert card.find("svg").first.get_attribute("aria-labelledby") == card.find(
        ".explorer-words"
    ).get_attribute("id")


def test_space_plays_to_the_end_and_stops_there(playing):
    """Must catch: play on beyond the end; an interval left running; every step announced; the wish
    looked up once."""
    card, steps = playing
    status, run = card.find(".explorer-status"), card.page.clock.run_for
    named = lambda: card.find(".stepper-play").get_attribute("aria-label")
    card.find(".explorer-picture").focus()
    card.page.keyboard.press("Space")
    assert card.says(steps, 2) and named() == "Pause"
    run(2400)  # a second after the last step
    assert card.says(steps, 3) and not status.text_content()
    run(20_000)
    assert card.says(steps, 6) and named() == "Play"
    assert status.text_content() == steps[6].sentence
    click(card.find(".stepper-play"))
    run(1500)
    assert card.says(steps, 1)
    for stop in ("Space", "ArrowLeft", None):
        if stop:
            card.find(".explorer-picture").focus()
            card.page.keyboard.press(stop)
        else:
            card.page.emulate_media(reduced_motion="reduce")
            until(card.page, "!document.querySelector('.stepper.playing')")
            assert not card.find(".stepper-play").is_visible()
        here = card.at
        run(5000)
        assert card.at == here and "playing" not in card.root.get_attribute("class")
        if stop:
            click(card.find(".stepper-play"))


# --- what is drawn is seen ------------------------------------------------------------------------

# Card -> steps at which one looks, what is seen against the page as a line, and texts on what lies
# under them: (selector, property).
SEEN = {
    "stepper": (
        (5,),
        [(".cell:not(.moved)", "stroke"), (".cell.moved", "stroke"), (".arrow", "stroke")]
        + [(".operator", "stroke")],
        [(".chunk:not(.on)", None), (".chunk.on", ".cell.full"), (".strong", None)]
        + [(".digits", ".bars:not(.fresh)"), (".digits", ".bars.fresh"), (".tick", None)],
    ),
    "shards": (
        (7, 10, 11),  # gradients hatched and reduced; parameters old; gathered
        [(".place.held", "stroke"), (".solid", "stroke"), (".stripe", "fill"), (".link", "stroke")]
        + [(".mark.used", "stroke"), (".mark.moved", "stroke")],
        [],
    ),
    "pairs": (
        (FIRST_SHOWN,),
        [(".place.held", "stroke"), (".solid", "stroke"), (".stripe", "fill")]
        + [(".mark.moved", "stroke")],
        [],
    ),
}
COLOURS = """([selector, property]) => [...document.querySelectorAll(selector)].map(
  node => getComputedStyle(node)[property])"""


@of_all
def test_what_is_drawn_is_seen(card, name):
    """Must catch: the palette's fill for the line; the page's ink on a full cell in the dark; a
    band or a mark in a pale ink."""
    numbers, strokes, texts = SEEN[name]
    for mode in ("light", "dark"):
        in_colours(card.page, mode)
        (page,) = card.page.evaluate(COLOURS, ["html", "backgroundColor"])
        found = 0
        for number in numbers:
            card.step(number)
            for selector, kind in strokes:
                colours = card.page.evaluate(COLOURS, [f".stepper svg {selector}", kind])
                found += len(colours)
                assert all(contrast(colour, page) >= 3 for colour in colours), (mode, selector)
        assert found > (10 if name == "stepper" else 40)
        for selector, under in texts:
            colour = card.page.evaluate(COLOURS, [f".stepper svg {selector}", "fill"])[0]
            behind = page
            if under:
                behind = card.page.evaluate(COLOURS, [f".stepper svg {under}", "fill"])[0]
            assert contrast(colour, behind) >= 4.5, (mode, selector, under)
