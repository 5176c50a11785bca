"""The stepper as a reader meets it: its pictures are Python's, keys, play, less motion, a phone."""

import pytest
from cards import StepperCard, contrast, opener
from visit import (
    BEYOND,
    PHONE,
    click,
    stop_clock,
    until,
)

from coursekit.topics.collectives.steps import COLLECTIVES, RANKS, page_data, stepper_steps

FIRST, RANKS_FIRST = "ring all-reduce", 4


class Stepper(StepperCard):
    """The stepper on an open page, and what a reader does with it."""

    def choose(self, name, n):
        """Choose as a reader does, from the menu and by a click on a number."""
        if name != self.find("select").input_value():
            self.find("select").select_option(name)
            until(
                self.page,
                "name =>"
                " document.querySelector('.explorer-title').textContent"
                ".toLowerCase().startsWith(name"
                " + ',')",
                arg=name,
            )
        self.find(f"[type=radio][value='{n}']").check()
        until(
            self.page,
            "count => +document.querySelector('.stepper [type=range]').max === count",
            arg=len(stepper_steps(name, n)) - 1,
        )

    def shows(self, name, n, number):
        return self.says(stepper_steps(name, n), number)


@pytest.fixture
def open_card(browser, card_pages):
    usual = dict(reduced_motion="no-preference")
    with opener(browser, card_pages["stepper"], Stepper, **usual) as open_it:
        yield open_it


# --- the data and the picture ---------------------------------------------------------------------

FOLLOWED = """() => Object.entries(BOOK.steppers.known).flatMap(([name, sizes]) =>
  Object.entries(sizes).map(([n, data]) => [
  name, +n, data, BOOK.steppers.kinds.chunks.follow(data)
    .map(step => step.picture.map(held => Object.entries(held).map(([chunk, parts]) =>
    [+chunk, [...Array(+n).keys()].filter(rank => parts >> rank & 1)])))]))"""


def test_the_page_follows_the_moves_as_python_does(card):
    """Every collective on every number of ranks: the data that arrive, and what every rank holds
    after every step.

    Mutations: `=` for `+=`; moves of one step seen by each other; a barrier without hearsay; the
    script of an older build."""
    assert card.page.evaluate("Object.keys(BOOK.steppers.known)") == [FIRST], (
        "the others come when they are asked for"
    )
    card.choose("scatter", RANKS_FIRST)
    found = card.page.evaluate(FOLLOWED)
    assert sorted((name, n) for name, n, *_ in found) == sorted(
        (name, n) for name in COLLECTIVES for n in RANKS
    )
    for name, n, data, pictures in found:
        assert data == page_data(name, n)
        assert pictures == [
            [
                [[chunk, sorted(parts)] for chunk, parts in sorted(held.items())]
                for held in step.picture
            ]
            for step in stepper_steps(name, n)
        ], (name, n)


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


@pytest.mark.parametrize(
    ("name", "n"),
    [
        ("ring all-reduce", 4),
        ("ring all-reduce", 8),
        ("reduce-scatter", 3),
        ("tree all-reduce", 6),
        ("all-gather", 5),
        ("scatter", 7),
        ("broadcast", 5),
        ("barrier", 8),
    ],
)
def test_what_is_drawn_is_what_is_held(card, name, n):
    """Each step is drawn as it is held: a cell for each rank and chunk, at its row and column, its
    words, a bar for each part, what came marked, a sign for each move at its target, + where parts
    are added.

    Mutations: rows and columns exchanged; the parts before the step; every bar fresh; a sign at the
    sender; + for =."""
    card.choose(name, n)
    shown = COLLECTIVES[name]
    places = None
    steps = stepper_steps(name, n)
    for number, step in enumerate(steps):
        card.step(number)
        drawn = card.page.evaluate(DRAWN)
        chunks = n if shown.cut else 1
        assert len(drawn["cells"]) == n * chunks and drawn["arrows"] == drawn["heads"] == len(
            step.moves
        )
        assert places in (
            None,
            [cell[:2] for cell in drawn["cells"]],
        ), "the same rank has the same place in every step"
        places = [cell[:2] for cell in drawn["cells"]]
        assert places == sorted(places, key=lambda place: (place[1], place[0]))
        assert len({tuple(place) for place in places}) == n * chunks
        targets = {(move.target, 0 if shown.hearsay else move.chunk): move for move in step.moves}
        for k, (_, _, words, digits, kinds, fresh, old) in enumerate(drawn["cells"]):
            rank, chunk = divmod(k, chunks)
            parts = step.picture[rank].get(chunk, frozenset())
            assert ("empty" in kinds, "full" in kinds) == (not parts, len(parts) >= shown.need(n))
            assert ("moved" in kinds) == ((rank, chunk) in targets)
            if shown.sums:
                before = steps[number - 1].picture[rank].get(chunk, frozenset())
                adds = (
                    shown.hearsay
                    or (rank, chunk) in targets
                    and targets[rank, chunk].operator == "+="
                )
                came = (
                    (parts - before if adds else parts) if (rank, chunk) in targets else frozenset()
                )
                assert (fresh, old) == (len(came), len(parts - came))
                assert digits in ("", "".join(map(str, sorted(parts))))
            assert words == (
                "" if not parts else "ABCDEFGH"[chunk] if shown.cut else words
            ) and bool(words) == bool(parts)
        rows = sorted({place[1] for place in places})
        near = [min(range(n), key=lambda rank: abs(rows[rank] - top)) for top, _ in drawn["signs"]]
        assert near == [move.target for move in step.moves]
        assert [lines == 2 for _, lines in drawn["signs"]] == [
            shown.hearsay or move.operator == "+=" for move in step.moves
        ]


def test_an_exchange_is_drawn_from_what_one_has_to_what_one_got(card):
    """Mutations: a chunk that arrives put in its sender's column of the left half; the own chunk
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


def test_bars_are_numbered_where_there_is_room(open_card):
    """Mutation: digits over one another on a phone."""
    wide, phone = open_card(), open_card(viewport=PHONE)
    for card, there in ((wide, True), (phone, False)):
        card.step(2)
        assert bool("".join(cell[3] for cell in card.page.evaluate(DRAWN)["cells"])) == there


# --- stepping -------------------------------------------------------------------------------------


def test_it_is_alive_while_the_page_is_still_read(card):
    """Mutation: start at DOMContentLoaded, or load the scripts with `defer`."""
    assert (
        card.page.evaluate("window.readyWhile") == "loading"
        and float(card.root.get_attribute("data-ready")) > 0
    )
    assert card.shows(FIRST, RANKS_FIRST, 1)


@pytest.mark.parametrize("place", [".explorer-picture", "[type=range]", "[data-to=last]"])
def test_keys(card, place):
    """Arrows step, Home and End go to the ends and no further; the page does not scroll.

    Mutations: two steps where the slider has the focus; a step beyond the last; Home left to the
    page."""
    card.find(place).focus()
    top = card.page.evaluate("scrollY")
    for key, number in (
        ("ArrowRight", 2),
        ("ArrowRight", 3),
        ("ArrowLeft", 2),
        ("Home", 0),
        ("ArrowLeft", 0),
        ("End", 6),
        ("ArrowRight", 6),
    ):
        card.page.keyboard.press(key)
        assert card.shows(FIRST, RANKS_FIRST, number), (key, number)
    assert card.page.evaluate("scrollY") == top


def test_keys_of_other_controls_stay_theirs(card):
    """Mutation: arrows on the numbers of ranks step instead."""
    card.find("[type=radio]:checked").focus()
    card.page.keyboard.press("ArrowRight")
    until(card.page, "document.querySelector('.stepper [type=range]').max === '8'")
    assert card.shows(FIRST, 5, 1)


def test_buttons_and_slider(card):
    """At an end a button says that it does nothing, and keeps the focus.

    Mutation: `disabled`, which drops the focus to the page."""
    for button, number in (("last", 6), ("forward", 6), ("back", 5), ("first", 0), ("forward", 1)):
        # Playwright would wait until it does something
        click(card.find(f"[data-to={button}]"), force=True)
        assert card.shows(FIRST, RANKS_FIRST, number)
        assert card.page.evaluate("document.activeElement.dataset.to") == button
        dead = card.find("[data-to][aria-disabled=true]").evaluate_all(
            "buttons => buttons.map(button => button.dataset.to)"
        )
        assert dead == {0: ["first", "back"], 6: ["forward", "last"]}.get(number, [])
    card.step(4)
    assert (
        card.shows(FIRST, RANKS_FIRST, 4)
        and card.find("[type=range]").get_attribute("aria-valuetext") == "step 4 of 6"
    )
    assert card.find(".stepper-count").text_content() == "4 of 6"


def test_other_ranks_keep_a_valid_step(card):
    """And another collective begins at its first step; Reset brings back what was there.

    Mutations: step 6 of 2; step 1 whenever the ranks change; a slider as long as before."""
    card.step(6)
    for n, number in ((8, 6), (2, 2), (5, 2)):
        card.choose(FIRST, n)
        assert card.shows(FIRST, n, number) and card.find("[type=range]").get_attribute(
            "max"
        ) == str(2 * (n - 1))
    card.choose("broadcast", 5)
    assert (
        card.shows("broadcast", 5, 1)
        and card.find(".stepper-look").text_content() == COLLECTIVES["broadcast"].look
    )
    click(card.find(".explorer-reset"))
    assert card.shows(FIRST, RANKS_FIRST, 1) and card.find("select").input_value() == FIRST
    assert card.find("[type=radio]:checked").get_attribute("value") == str(RANKS_FIRST)


def test_steps_are_announced_when_the_reader_rests(card):
    """Once, politely, and not on the way. Mutations: a sentence that is no live region; every step
    announced; `assertive`."""
    stop_clock(card.page)
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
    assert card.page.evaluate("said") == [stepper_steps(FIRST, RANKS_FIRST)[4].sentence]
    assert card.find("svg").first.get_attribute("aria-labelledby") == card.find(
        ".explorer-words"
    ).get_attribute("id")


# --- playing: the page's clock is the test's ------------------------------------------------------


def playing_card(open_card, **options):
    card = open_card(**options)
    stop_clock(card.page)
    return card


def test_space_plays_to_the_end_and_stops_there(open_card):
    """The end is announced, the way is not; played again from the end it begins anew; space, or any
    step, stops it.

    Mutations: play on beyond the end; an interval left running; announce every step."""
    card = playing_card(open_card)
    card.find(".explorer-picture").focus()
    card.page.keyboard.press("Space")
    assert (
        card.shows(FIRST, RANKS_FIRST, 2)
        and card.find(".stepper-play").get_attribute("aria-label") == "Pause"
    )
    card.page.clock.run_for(2400)  # a second after the last step
    assert card.shows(FIRST, RANKS_FIRST, 3) and not card.find(".explorer-status").text_content()
    card.page.clock.run_for(20_000)
    assert (
        card.shows(FIRST, RANKS_FIRST, 6)
        and card.find(".stepper-play").get_attribute("aria-label") == "Play"
    )
    assert (
        card.find(".explorer-status").text_content()
        == stepper_steps(FIRST, RANKS_FIRST)[6].sentence
    )
    click(card.find(".stepper-play"))
    card.page.clock.run_for(1500)
    assert card.shows(FIRST, RANKS_FIRST, 1)
    for stop in ("Space", "ArrowLeft"):
        card.find(".explorer-picture").focus()
        card.page.keyboard.press(stop)
        here = card.at
        card.page.clock.run_for(5000)
        assert card.at == here and "playing" not in card.root.get_attribute("class")
        click(card.find(".stepper-play"))


def test_who_wants_no_motion_gets_none(open_card):
    """No button to play, space is one step; a wish that comes while it plays stops it.

    Mutations: a play that starts nevertheless; the wish looked up once."""
    card = playing_card(open_card, reduced_motion="reduce")
    assert not card.find(".stepper-play").is_visible()
    card.find(".explorer-picture").focus()
    card.page.keyboard.press("Space")
    card.page.clock.run_for(10_000)
    assert card.shows(FIRST, RANKS_FIRST, 2)
    card = playing_card(open_card, reduced_motion="no-preference")
    click(card.find(".stepper-play"))
    card.page.emulate_media(reduced_motion="reduce")
    until(card.page, "!document.querySelector('.stepper.playing')")
    here = card.at
    card.page.clock.run_for(10_000)
    assert card.at == here


# --- everyone, everywhere -------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_what_is_drawn_is_seen(open_card, mode):
    """Lines 3:1 against the page, letters and digits 4.5:1 against what they stand on.

    Mutations: the palette's fill for the line; the page's ink on a full cell in the dark."""
    card = open_card(color_scheme=mode)
    card.step(5)
    colours = card.page.evaluate(
        """() => Object.fromEntries([["page", null, "backgroundColor"],
        ["line", ".cell:not(.moved)", "stroke"], ["moved", ".cell.moved", "stroke"],
        ["full", ".cell.full", "fill"],
        ["old", ".bars:not(.fresh)", "fill"],
        ["fresh", ".bars.fresh", "fill"], ["arrow", ".arrow", "stroke"],
        ["operator", ".operator", "stroke"],
        ["letter", ".chunk:not(.on)", "fill"], ["on", ".chunk.on", "fill"],
        ["digit", ".digits", "fill"],
        ["rank", ".strong", "fill"], ["head", ".tick", "fill"]].map(([name, selector, property]) =>
      [name, getComputedStyle(document.querySelector(
        selector ? ".stepper svg " + selector : "html"))[property]]))"""
    )
    for line in ("line", "moved", "arrow", "operator"):
        assert contrast(colours[line], colours["page"]) >= 3, line
    for text, under in (
        ("letter", "page"),
        ("on", "full"),
        ("digit", "old"),
        ("digit", "fresh"),
        ("rank", "page"),
        ("head", "page"),
    ):
        assert contrast(colours[text], colours[under]) >= 4.5, (text, under)


@pytest.mark.parametrize(
    ("name", "n"),
    [(FIRST, 8), ("all-to-all", 8), ("barrier", 8), ("tree all-reduce", 7), ("broadcast", 2)],
)
def test_on_a_phone(open_card, name, n):
    """Text keeps its size, stays inside and apart; picture and buttons are seen together.

    Mutations: a picture as wide as on a desktop; labels of 9 px; letters that run into one
    another."""
    card = open_card(viewport=PHONE, has_touch=True, is_mobile=True)
    card.choose(name, n)
    card.assert_picture_and_buttons_seen_together()
    for number in range(len(stepper_steps(name, n))):
        card.step(number)
        assert not card.page.evaluate(BEYOND)
        for text, size, left, right, beside in card.find("svg text").evaluate_all(
            """texts => texts.filter(
            text => text.textContent).map((text, k, all) => {
              const box = text.getBoundingClientRect();
            const svg = text.ownerSVGElement.getBoundingClientRect();
            const next = all[k + 1] && all[k + 1].getBoundingClientRect();
            return [text.textContent, parseFloat(getComputedStyle(text).fontSize),
              box.left - svg.left, svg.right - box.right,
              next && Math.abs(next.top - box.top) < 2 && next.left > box.left
                ? next.left - box.right : 1]; })"""
        ):
            assert size >= 11 and left >= -1 and right >= -1 and beside >= 0, (
                text,
                size,
                left,
                right,
                beside,
            )


def test_the_picture_follows_the_width_of_the_window(card):
    """Mutation: measure the width once."""
    card.page.set_viewport_size(PHONE)
    until(
        card.page,
        """() => { const place = document.querySelector(".explorer-drawing");
      return +place.querySelector("svg").getAttribute("width") === place.clientWidth; }""",
    )
    assert card.shows(FIRST, RANKS_FIRST, 1) and not card.page.evaluate(BEYOND)
