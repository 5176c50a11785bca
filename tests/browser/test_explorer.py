"""The explorers as a reader meets them: keys, typing, dragging, refusals, reset, Python, a phone.
Paper and a reader without scripts: test_pages.py."""

import math
import random
import re
import time
from contextlib import ExitStack
from html import unescape

import pytest
from visit import DESKTOP, DRAWN, PHONE, Readers, click, stop_clock, until

from coursekit.formulas import BOOK, InvalidQuantity, evaluate
from coursekit.show.explorers import EXPLORERS
from coursekit.show.format import format_as, format_to_type, parse_number
from coursekit.show.schedule_pictures import PLAYS, simulated
from coursekit.show.spec import Choice, Hand, default_style, fill_in
from coursekit.show.svg import drawings

# Words of a card, refusals by control, and what boxes and choices hold.
STATE = """root => {
  const rows = [...root.querySelectorAll(".explorer-control")],
    by = (rows, text) => Object.fromEntries(
    rows.map(row => [row.dataset.quantity, text(row)]));
  // the script makes them
  const refused = row => !!row.querySelector(".explorer-error")?.checkVisibility();
  return [[...root.querySelectorAll(".explorer-words p")]
    .map(p => p.textContent.replaceAll("\\u00a0", " ")).join(" "),
    by(rows.filter(refused), row => row.querySelector(".explorer-error").textContent),
    by(rows, row => row.querySelector("[type=text]")
      ? row.querySelector("[type=text]").value
      : [...row.querySelectorAll("[type=radio]")].findIndex(button => button.checked))];
}"""

# What a reader does, move after move, and what `look` sees after each: a message to the browser for
# each of them would take longer than the moves.
FOLLOW = """(root, [moves, of]) => moves.map(([what, name, to]) => {
  const row = `.explorer-control[data-quantity=${name}]`, tell = (node, ...events) =>
    events.forEach(event => node.dispatchEvent(new Event(event, {bubbles: true})));
  if (what === "choose") {
    const menu = root.querySelector(`[data-kind=${name}]`);
    menu.value = [...menu.options].find(one => one.value === to || one.label === to).value;
    tell(menu, "input", "change");
  } else {
    const buttons = root.querySelectorAll(`${row} [type=radio]`);
    if (what === "type") {
      const box = root.querySelector(`${row} [type=text]`);
      tell(box, "focus");
      box.value = to;
      tell(box, "input", "change");
    } else if (buttons.length) { buttons[to].checked = true; tell(buttons[to], "change"); }
    else {
      const slider = root.querySelector(`${row} [type=range]`);
      slider.value = to;
      tell(slider, "input", "change");
    }
  }
  dispatchEvent(new Event("beforeprint")); // pictures out of sight are drawn at once
  const seen = [(STATE)(root), (LOOK)(root, of)];
  if ((ANEW)(Object.keys(seen[0][1]), what)) root.querySelector(".explorer-reset").click();
  return seen;
})"""


# What there is to see of a card, unless the ghost of the picture before is drawn into a picture.
SEE = """root => {
  dispatchEvent(new Event("beforeprint")); // pictures out of sight are drawn at once
  return document.querySelector(".ghosted") ? null : [(STATE)(root),
    [...root.querySelectorAll(".explorer-drawing")].map(place => place.innerHTML)];
}"""


class Card:
    """One explorer on an open page, and what a reader does with it."""

    def __init__(self, page, name):
        self.page, self.name, self.spec = page, name, EXPLORERS[name]
        self.root = page.locator(f"#explorer-{name}")

    def find(self, selector):
        return self.root.locator(selector)

    def slider(self, quantity):
        return self.find(f".explorer-control[data-quantity={quantity}] [type=range]")

    def box(self, quantity):
        return self.find(f".explorer-control[data-quantity={quantity}] [type=text]")

    def error(self, quantity):
        return self.find(f".explorer-control[data-quantity={quantity}] .explorer-error")

    def control(self, quantity):
        return next(control for control in self.spec.controls if control.quantity == quantity)

    def unfold(self):
        self.root.evaluate(
            """root => root.querySelectorAll('.explorer-group').forEach(group => {
              group.removeAttribute("name"); group.open = true; })"""
        )

    def type(self, quantity, text):
        self.box(quantity).fill(text)
        self.box(quantity).press("Enter")

    def slide(self, quantity, stop):
        """The effect of a drag that ends at this stop, or of a click on this option of a choice."""
        control = self.control(quantity)
        position = list(control.stops).index(stop)
        if isinstance(control, Choice):
            buttons = self.find(f".explorer-control[data-quantity={quantity}] [type=radio]")
            buttons.nth(position).evaluate(
                "button => { button.checked = true; button.dispatchEvent(new Event('change')); }"
            )
            return
        self.slider(quantity).evaluate(
            "(slider, position) => { slider.value = position; slider.dispatchEvent(new"
            " Event('input')); slider.dispatchEvent(new Event('change')); }",
            position,
        )

    def choose(self, kind, name):
        self.find(f"[data-kind={kind}]").select_option(name)

    def to_follow(self, quantity, stop):
        """The arguments of `follow` for `slide`."""
        return "slide", quantity, list(self.control(quantity).stops).index(stop)

    def follow(self, moves, look="() => null", of=None, anew="() => false"):
        """[(state, what the script `look` sees)] after each of the moves ("slide", quantity,
        position), ("type", quantity, text) and ("choose", kind, name). `anew` says whether Reset is
        pressed then: a function of the names that are refused, and of what the move was."""
        script = FOLLOW.replace("STATE", STATE).replace("LOOK", look).replace("ANEW", anew)
        return [
            (self._said(state), seen) for state, seen in self.root.evaluate(script, [moves, of])
        ]

    @property
    def state(self):
        """(words with ordinary spaces, visible refusals by control, values in the boxes and choices
        by control) in one look."""
        return self._said(self.root.evaluate(STATE))

    def _said(self, state):
        words, errors, values = state
        return (
            words,
            errors,
            {
                name: (
                    value
                    if isinstance(value, str)
                    else str([*self.control(name).stops, "own"][value])
                )
                for name, value in values.items()
            },
        )

    @property
    def words(self):
        return self.state[0]

    @property
    def errors(self):
        return list(self.state[1].values())

    @property
    def pictures(self):
        """The markup of every picture, without a ghost in it."""
        return self.seen[1]

    @property
    def seen(self):
        """(state, pictures) in one look, once there is no ghost."""
        end = time.monotonic() + 30
        while (found := self.root.evaluate(SEE.replace("STATE", STATE))) is None:
            assert time.monotonic() < end, "the ghost of a picture stays"
            self.page.wait_for_timeout(20)
        return self._said(found[0]), found[1]

    def until_as_wide(self):
        """Wait until every picture is as wide as its place."""
        until(
            self.page,
            """id => [...document.querySelectorAll(id + " .explorer-drawing")].every(
          place => +place.querySelector("svg").getAttribute("width") === place.clientWidth)""",
            arg=f"#explorer-{self.name}",
        )

    def expected_words(self, values, along=""):
        shown = self.spec.compute(values)
        return f"{self.spec.say(shown)}{along} {self.spec.say_detail(shown)}"

    def hand(self):
        """A hand on the card's start."""
        return Hand(self.spec, self.spec.start(), self.spec.chosen_at_start())


WHEN_READY = """addEventListener("explorer:ready", () => {
  (window.readyWhile ||= []).push(document.readyState);
}, true)"""


@pytest.fixture(scope="module")
def readers(browser):
    return Readers(browser, WHEN_READY)


@pytest.fixture
def open_card(readers, explorers_alone):
    """open_card(name, **options of the browser's context) opens a page with that explorer, as a
    file. A test that leaves behind what nobody sees, such as a stopped clock, says `fresh`.
    `places`: by default, the pages that have one explorer each."""
    with ExitStack() as stack:

        def open_it(name, fresh=False, places=explorers_alone, **options):
            address = places[name].address()
            return Card(stack.enter_context(readers.reader(address, not fresh, **options)), name)

        yield open_it


@pytest.fixture(scope="module", params=EXPLORERS)
def name(request):
    """The tests of an explorer follow one another, as this is a module's: they share its pages."""
    return request.param


# The scripts behind these tests know no explorer by name: streams and tabs, parts with a search,
# and neither groups nor tabs stand for the others, which wait for the night.
THREE = ("step-time", "rank-of-any-layout", "does-it-fit")
alike = pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=() if one in THREE else pytest.mark.nightly) for one in EXPLORERS],
    indirect=True,
)


@pytest.fixture
def card(name, open_card):
    card = open_card(name)
    yield card
    assert not card.page.watch.errors


@pytest.fixture
def card_in_chapter(name, open_card, explorer_places):
    """The explorer on the page of the book that has it."""
    card = open_card(name, places=explorer_places)
    yield card
    assert not card.page.watch.errors


# --- the same in a notebook ---------------------------------------------------------------------


TEXTS = """root => [...root.querySelectorAll(
    ".explorer-drawing svg text:not(.tick):not(.digit):not([visibility=hidden])")]
  .map(text => text.textContent)"""


def words_in_notebook(spec, values):
    """The words of an explorer's pictures in a notebook, without ticks and without digits in
    boxes."""
    drawn = "".join(made.svg("") for made in drawings(spec, spec.compute(values)))
    found = re.findall(r"<text ([^>]*)>([^<]*)</text>", drawn)
    return {unescape(text) for how, text in found if not re.search("fill-opacity|stroke:none", how)}


def test_a_notebook_draws_the_same_words(card):
    """Labels, numbers and keys of each picture, at the start and after a move of each slider.

    Must catch: another total, another style of a number, a line or a part that only one of both
    draws."""
    values, notes = card.spec.start(), [""]
    for picture in card.spec.pictures:
        notes += [picture.note[1]] if picture.kind == "curves" and picture.note else []
    moves, after = [], [values]
    for control in card.spec.controls:
        stop = control.stops[len(control.stops) // 2]
        moves.append(card.to_follow(control.quantity, stop))
        after.append(card.spec.move(after[-1] or values, control.quantity, stop))
        try:
            card.spec.compute(after[-1])
        except InvalidQuantity:
            after[-1] = None
    texts = [card.root.evaluate(TEXTS)]
    seen = card.follow(moves, TEXTS, anew="refused => refused.length")
    texts += [drawn for _, drawn in seen]
    for move, values, on_page in zip([None, *moves], after, texts, strict=True):
        if values is None:
            continue  # refused
        shown = card.spec.compute(values)
        free = {fill_in(note, shown) for note in notes}  # whether there is room for them differs
        ours = words_in_notebook(card.spec, values)
        if any("far to the right" in words for words in ours):
            continue  # the page draws a bar of a pixel
        assert ours - free == set(on_page) - free - {""}, move


def test_a_step_of_too_many_pieces_says_so(open_card):
    """1,000 layers are drawn; from 1,001 on the picture says why it is empty, the sentence stays,
    and neither page nor notebook plays four million operations.

    Must catch: no limit (page and notebook hang); a limit that only one of both has; the numbers of
    the step before left in the picture."""
    card, layers = open_card("recompute"), ("1000", "1001", "1_000_000")
    moves = [("type", "microbatch", "1"), *(("type", "layers", number) for number in layers)]
    for number, (state, texts) in zip(layers, card.follow(moves, TEXTS)[1:], strict=True):
        hand = card.hand()
        hand.move("microbatch", 1)
        hand.move("layers", int(number))
        assert state[:2] == (card.expected_words(hand.values, hand.along), {}), number
        assert words_in_notebook(card.spec, hand.values) == set(texts) - {""}, number
        said = [text for text in texts if " pieces: up to 5,000 are drawn" in text]
        assert len(said) == (number != "1000"), number


# --- alive ----------------------------------------------------------------------------------------


@alike
def test_it_is_alive_while_the_page_is_still_read(card_in_chapter):
    """Mutation: start at DOMContentLoaded, or load the scripts with `defer`."""
    card = card_in_chapter
    assert (
        card.page.evaluate("window.readyWhile")
        == ["loading"] * card.page.locator(".explorer").count()
    )
    assert float(card.root.get_attribute("data-ready")) > 0
    assert card.words == card.expected_words(card.spec.start())


def test_the_page_says_what_python_says(card):
    """A random walk over sliders and menus: what follows from a move, the sentence, the refusal and
    its place, at each of 80 steps.

    Mutations: round the ratio's follower down; let gpus follow gpus_per_copy; say `when` for
    `unless`."""
    spec, chance, hand = card.spec, random.Random(card.name), card.hand()
    shown, refusals = card.words, 0
    moves, expected = [], []
    for _ in range(80):
        changed = None
        if chance.random() < 0.15:
            menu = chance.choice(spec.menus)
            hand.choose(menu.kind, chance.choice(menu.names))
            moves.append(("choose", menu.kind, hand.chosen[menu.kind]))
        else:
            if not moves or chance.random() < 0.7:  # else the hand stays where it is
                control = chance.choice(spec.controls)
            changed, stop = control.quantity, chance.choice(control.stops)
            hand.move(changed, stop)
            moves.append(card.to_follow(changed, stop))
        try:
            shown, sentences = card.expected_words(hand.values, hand.along), {}
        except InvalidQuantity as refused:
            sentences = {spec.marks(refused.quantity, changed): spec.refusal(refused, hand.values)}
            refusals += 1
        expected.append((shown, sentences, hand.values))
    for move, (shown, sentences, values), ((words, errors, boxes), _) in zip(
        moves, expected, card.follow(moves), strict=True
    ):
        assert words == shown and errors == sentences, move
        assert {
            name: parse_number(text, card.control(name).style) for name, text in boxes.items()
        } == {name: values[name] for name in boxes}, move
    assert refusals < 60, "often refused: more than 2^53 bytes"


# What a link may move after each stop of each control, from the start and from every preset, and
# the refusals of all that.
EVERY_STOP = """(root, linked) => {
  const spec = JSON.parse(root.querySelector("script[type='application/json']").textContent);
  const row = (menu, name) => Object.fromEntries(
    menu.quantities.map((quantity, k) => [quantity, menu.presets[name][k]]));
  const chosen = Object.fromEntries(spec.menus.map(menu => [menu.kind, spec.chosen[menu.kind]]));
  const begins = [[spec.values, chosen]], found = [], refused = [];
  spec.menus.forEach(menu => Object.keys(menu.presets).forEach(name => {
    const preset = row(menu, name), from = {...spec.values, ...preset};
    begins.push([BOOK.follow(spec.links, from, Object.keys(preset), preset),
      {...chosen, [menu.kind]: name}]);
  }));
  begins.forEach(([values, chosen], k) => {
    found.push([]);
    const preset = Object.assign({}, ...spec.menus.map(menu => row(menu, chosen[menu.kind])));
    spec.controls.forEach(({quantity, stops}) => {
      const range = stops.range;
      if (range) stops = [...Array(range[1] - range[0] + 1).keys()].map(k => k + range[0]);
      stops.forEach(stop => {
        const from = {...values, [quantity]: stop};
        const moved = BOOK.follow(spec.links, from, [quantity], preset);
        found[k].push(linked.map(name => moved[name]));
        try {
          BOOK.models[spec.name](moved);
          if (moved[quantity] !== stop) refused.push([quantity, stop, moved[quantity]]);
        } catch (error) { refused.push([quantity, stop, error.message]); }
      });
    });
  });
  return [found, refused]; }"""


def test_a_control_never_refuses_its_own_stops(card):
    """Every stop of every control, from the start and from every preset, through the card's own
    functions; what follows is what follows in Python.

    Must catch: a link that only one of both languages has; a follower that stays where it divides
    nothing; the nearest divisor below in one language and above in the other."""
    spec = card.spec
    linked = list(dict.fromkeys(name for link in spec.links for name in link.quantities))
    found, refused = card.root.evaluate(EVERY_STOP, linked)
    assert refused == []
    begins = [({}, spec.start())] + [
        ({menu.kind: name}, spec.choose(spec.start(), menu.kind, name))
        for menu in spec.menus
        for name in menu.names
    ]
    for (chosen, values), moved in zip(begins, found, strict=True):
        sets = [name for choice in chosen.items() for name in spec.preset(*choice)]
        if chosen and not {*linked} & {*sets}:
            continue  # as at the start
        stops = [(control.quantity, stop) for control in spec.controls for stop in control.stops]
        assert len(moved) == len(stops)
        for (quantity, stop), on_page in zip(stops, moved, strict=True):
            here = spec.move(values, quantity, stop, chosen)
            assert [here[name] for name in linked] == on_page, (chosen, quantity, stop)


TYPED = ("7", "0", "-5", "1e99", "1e400", "many", "-1e99", "0.5", "12 apples", "300,000")


def test_whatever_is_typed_is_taken_or_refused_in_words(card):
    """Bare numbers, numbers with the unit on show, rubbish, negative and huge numbers in every box:
    what Python says, in its words, and what it would show.

    Must catch: a bare number without the unit on show; Python's name of a quantity in a message; an
    integer of 100 digits; -5e9 ns for -5 s."""
    moves, expected = [], []
    for control in card.spec.controls:
        if isinstance(control, Choice):
            continue
        on_show = format_to_type(card.spec.start()[control.quantity], control.style)
        unit = re.sub(r"^[\d.,]+", "", on_show)
        for text in (*TYPED, f"9{unit}", f"-9{unit}"):
            hand = card.hand()
            hand.move(control.quantity, value := parse_number(text, control.style, on_show))
            try:
                said = {}, card.expected_words(hand.values, hand.along)
            except InvalidQuantity as refused:
                place = card.spec.marks(refused.quantity, control.quantity)
                said = {place: card.spec.refusal(refused, hand.values)}, None
            moves.append(("type", control.quantity, text))
            box = value if isinstance(value, str) else format_to_type(value, control.style)
            expected.append((*said, box))
    seen = card.follow(moves, anew="() => true")
    for move, (refusals, words, box), ((said, errors, boxes), _) in zip(
        moves, expected, seen, strict=True
    ):
        assert errors == refusals and boxes[move[1]] == box, move
        assert said == words or words is None, move
        shown = " ".join([said, *errors.values(), *boxes.values()])
        nonsense = r"\w*[a-z]_[a-z]\w*|(?:\d,?){30}|e\d+ [nµm]s|NaN|undefined|Infinity"
        assert not re.search(nonsense, shown), (move, shown)


def test_no_setting_shows_nonsense(card):
    """Both ends of every slider, and every preset.

    Mutation: format a value that is undefined; a bar without width; a logarithm of zero."""
    nonsense = re.compile(r"NaN|undefined|null|Infinity|\binf\b")
    look = """root => root.innerText + [...root.querySelectorAll(".explorer-drawing")]
      .map(place => place.innerHTML).join("")"""
    assert not nonsense.search(card.root.evaluate(look))
    moves = [
        card.to_follow(control.quantity, stop)
        for control in card.spec.controls
        for stop in (control.stops[0], control.stops[-1])
    ]
    moves += [("choose", menu.kind, name) for menu in card.spec.menus for name in menu.names]
    seen = card.follow(moves, look, anew="(refused, what) => what === 'slide'")
    for move, (_, text) in zip(moves, seen, strict=True):
        assert not nonsense.search(text), move


# --- keys -----------------------------------------------------------------------------------------


@alike
def test_every_control_by_keyboard_alone(card):
    """Tab reaches each slider, box, menu and button; an arrow key moves each of them, and the card
    says something else.

    Mutations: tabindex="-1" on the boxes; a slider drawn with divs; no ArrowUp in the boxes."""
    kinds = lambda control: ("radio",) if isinstance(control, Choice) else ("range", "text")
    wanted = {
        f"{control.quantity} {kind}" for control in card.spec.controls for kind in kinds(control)
    }
    groups = {group.title: group.folded for group in card.spec.groups}
    feet = ("Reset", "Copy as Python", "Why?", "Full screen")
    wanted |= {menu.kind for menu in card.spec.menus} | {*feet, *groups}
    wanted |= {"another picture"} if len(card.spec.pictures) > 2 else set()
    wanted |= {*card.spec.parts}
    nearest = card.find(".explorer-nearest button").first
    reached = set()
    # a link to the card was followed: the next Tab goes on from there
    card.page.evaluate("id => { location.hash = id; }", f"explorer-{card.name}")
    for _ in range(200):
        card.page.keyboard.press("Tab")
        here, outline = card.page.evaluate(
            """id => { const node = document.activeElement;
          if (!node.closest("#" + id)) return [null, null];
          const control = node.closest(".explorer-control");
          return [control ? control.dataset.quantity + " " + node.type
            : node.closest(".explorer-tabs") ? "another picture"
            : node.closest(".explorer-nearest") ? "nearest"
            : node.closest(".explorer-ranks") ? "ranks"
            : node.dataset.kind || node.textContent, getComputedStyle(node).outlineStyle]; }""",
            f"explorer-{card.name}",
        )
        if here is None and reached:
            break
        if here is None or here in reached:
            continue
        reached.add(here)
        assert outline != "none", f"{here} shows no focus"
        if here == "another picture":
            assert len(card.spec.pictures) > 2
            card.page.keyboard.press("ArrowRight")
            assert card.find(".behind .explorer-caption").evaluate_all(
                "captions => captions.map(caption => caption.textContent)"
            ) == [card.spec.pictures[1].title]
            continue
        if here == "ranks":
            card.page.keyboard.press("ArrowRight")
            assert card.find(".ranks-words").text_content().startswith("Rank 1 ")
        if here in (*feet, *card.spec.parts, *groups):
            if groups.get(here):
                card.page.keyboard.press("Enter")  # unfolds it
            continue
        key = {"range": "ArrowRight", "radio": "ArrowRight", "text": "ArrowUp"}.get(
            here.rpartition(" ")[2], "ArrowDown"
        )

        def seen():
            (words, errors, _), pictures = card.seen
            return words, errors, pictures

        before = now = seen()
        for _ in range(8):  # the next presets of a menu may have the same quantities
            card.page.keyboard.press(key)
            if (now := seen()) != before:
                break
        assert now != before, f"{key} does nothing at {here}"
        card.find(".explorer-reset").evaluate("button => button.click()")
        if card.spec.parts:  # once the hand rests
            nearest.wait_for()
    assert reached == wanted


def test_arrow_keys_in_a_box_go_to_the_next_stop(open_card):
    """Mutation: go to the nearest stop, or leave the box with the old text."""
    card = open_card("fits-and-how-long")
    box = card.box("gpus_per_copy")
    card.type("gpus_per_copy", "100")
    box.press("ArrowUp")
    assert box.input_value() == "128"
    box.press("ArrowDown")
    box.press("ArrowDown")
    assert box.input_value() == "32"


# --- typing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, quantity, text, value, shown",
    [
        ("fits-and-how-long", "parameters", "70b", 70 * 10**9, "70B"),
        ("fits-and-how-long", "tokens", "1.5T", 15 * 10**11, "1.5T"),
        ("fits-and-how-long", "tokens", "300e9", 300 * 10**9, "300B"),
        ("fits-and-how-long", "utilisation", "35", 0.35, "35%"),
        ("fits-and-how-long", "utilisation", "52.5%", 0.525, "52.5%"),
        ("does-it-fit", "hidden", "12,288", 12_288, "12,288"),
        ("does-it-fit", "layers", " 1000 ", 1000, "1,000"),
    ],
)
def test_typed_values(open_card, name, quantity, text, value, shown):
    """A typed value may lie beyond the slider's ends and between its stops.

    Mutation: take the nearest stop for what was typed."""
    card = open_card(name)
    card.type(quantity, text)
    assert card.box(quantity).input_value() == shown
    assert card.words == card.expected_words(card.spec.move(card.spec.start(), quantity, value))
    stops = list(
        next(control.stops for control in card.spec.controls if control.quantity == quantity)
    )
    below = max(index for index, stop in enumerate(stops) if stop <= value)
    assert card.slider(quantity).input_value() == str(below)
    assert card.slider(quantity).get_attribute("aria-valuetext") == shown


def test_typing_is_not_interrupted(open_card):
    """While a reader types, the box keeps what was typed; an empty box is no mistake yet, but one
    that is left empty is.

    Mutation: write the box at every input, or refuse an empty box at once."""
    card = open_card("does-it-fit")
    box = card.box("layers")
    box.fill("")
    assert card.errors == [] and card.words == card.expected_words(card.spec.start())
    box.press_sequentially("007")
    assert box.input_value() == "007" and card.words == card.expected_words(
        card.spec.move(card.spec.start(), "layers", 7)
    )
    box.press("Tab")
    assert box.input_value() == "7"
    box.fill("")
    box.press("Tab")
    assert card.errors == ["“layers” = nothing: it must be a whole number of at least 1."]


# --- refusals -------------------------------------------------------------------------------------


A_COUNT = "it must be a whole number of at least 1."
A_SHARE = "it must be a number above 0% and at most 100%."
EXACT = "from 2^53 = 9,007,199,254,740,992 on a count is no longer exact, so it is refused."


@pytest.mark.parametrize(
    "name, quantity, text, sentence",
    [
        ("does-it-fit", "layers", "0", f"“layers” = 0: {A_COUNT}"),
        ("does-it-fit", "layers", "-12", f"“layers” = -12: {A_COUNT}"),
        ("does-it-fit", "layers", "2.5", f"“layers” = 2.5: {A_COUNT}"),
        ("does-it-fit", "layers", "many", f"“layers” = many: {A_COUNT}"),
        ("does-it-fit", "layers", "100T", f"stack parameters = 2.02e+22: {EXACT}"),
        ("does-it-fit", "hidden", "4503599627370496", f"feed forward = 1.21e+16: {EXACT}"),
        ("fits-and-how-long", "parameters", "9e18", f"“parameters” = 9e18: {EXACT}"),
        ("fits-and-how-long", "utilisation", "400", f"“utilisation” = 400%: {A_SHARE}"),
        ("fits-and-how-long", "utilisation", "0", f"“utilisation” = 0%: {A_SHARE}"),
    ],
)
def test_a_refusal_stands_beside_its_control(open_card, name, quantity, text, sentence):
    """One sentence, Python's; the last valid picture and sentence stay and are marked; mending it
    takes everything back.

    Mutations: draw what could not be computed; mark the control that moved; leave aria-invalid
    behind."""
    card = open_card(name)
    pictures, words = card.pictures, card.words
    style, on_show = card.control(quantity).style, card.box(quantity).input_value()
    card.type(quantity, text)
    typed = parse_number(text, style, on_show)
    values = card.spec.move(card.spec.start(), quantity, typed)
    with pytest.raises(InvalidQuantity) as refused:
        card.spec.compute(values)
    assert card.spec.refusal(refused.value, values) == sentence
    assert card.errors == [sentence] and card.error(quantity).is_visible()
    for control in (card.box(quantity), card.slider(quantity)):
        assert control.get_attribute("aria-invalid") == "true"
        assert (
            card.page.locator(f"[id='{control.get_attribute('aria-describedby')}']").text_content()
            == sentence
        )
    assert card.find("[aria-invalid]").count() == 2
    assert card.pictures == pictures and card.words == words
    assert card.find(".explorer-stale").is_visible()
    card.type(quantity, format_to_type(card.spec.start()[quantity], style))
    assert card.errors == [] and card.find("[aria-invalid], [aria-describedby]").count() == 0
    assert not card.find(".explorer-stale").is_visible() and card.words == words


def test_what_is_refused_is_not_folded_away(open_card):
    """No model has 0 heads; their control lies in a group that starts folded.

    Mutations: all groups open at the start; the refusal written where nobody sees it."""
    card = open_card("where-the-memory-goes")
    groups = "groups => groups.map(group => group.open)"
    assert (
        card.find(".explorer-group").evaluate_all(groups)
        == [not group.folded for group in card.spec.groups]
        == [True, False, False]
    )
    card.follow([("type", "heads", "0")])
    assert card.errors == ["“attention heads” = 0: it must be a whole number of at least 1."]
    assert (
        card.find(".explorer-group").evaluate_all(groups) == [False, False, True]
        and card.error("heads").is_visible()
    )


def test_the_sentence_is_announced_once_the_reader_rests(open_card):
    """A screen reader hears one sentence for a whole drag, politely, with what moved along; and the
    refusal where there is one.

    Mutations: make the visible sentence live, which would be read at every step; an announcement
    that the next step does not put off."""
    card = open_card("does-it-fit", fresh=True)
    stop_clock(card.page)
    status = card.find("[role=status]")
    assert (
        card.find("[aria-live], [role=alert], output, [role=status]").count() == 1
        and status.text_content() == ""
    )
    for layers in (40, 50, 60):
        card.slide("layers", layers)
        card.page.clock.run_for(600)
        assert status.text_content() == ""
    card.page.clock.run_for(200)
    shown = card.spec.compute(card.spec.move(card.spec.start(), "layers", 60))
    assert status.text_content() == card.spec.say(shown)
    card.type("heads", "7")
    card.page.clock.run_for(800)
    assert status.text_content().endswith(
        " Moved along: hidden size to 4,095, key value heads to 7."
    )
    card.type("heads", "0")
    card.page.clock.run_for(800)
    assert status.text_content().startswith("“attention heads” = 0")


# --- menus, reset, Python -------------------------------------------------------------------------


@alike
def test_menus_set_values_and_show_when_they_are_left(card):
    """Mutation: leave the menu on the preset when a value moved, or forget that values came back to
    it."""
    of = lambda menu: f"[data-kind={menu.kind}]"
    for menu in card.spec.menus:
        assert card.find(of(menu)).evaluate(
            "menu => [...menu.options].filter(option => !option.hidden).map(option => option.text)"
        ) == list(menu.names)
        chosen = [("choose", menu.kind, name) for name in menu.names]
        shown = card.follow(chosen, "(root, kind) => root.querySelector(kind).value", of(menu))
        assert [value for _, value in shown] == list(menu.names)
    click(card.find(".explorer-reset"))
    card.unfold()
    both = [
        (control, menu.kind)
        for control in card.spec.controls
        for menu in card.spec.menus
        if control.quantity in card.spec.preset(menu.kind, card.spec.begin[menu.kind])
    ]
    if not both:  # no control moves what a menu sets
        return
    moved, kind = both[0]
    chooser, start = card.find(f"[data-kind={kind}]"), card.spec.start()[moved.quantity]
    card.slide(moved.quantity, next(stop for stop in reversed(moved.stops) if stop != start))
    assert (
        chooser.input_value() == ""
        and chooser.evaluate("menu => menu.selectedOptions[0].text") == "own values"
    )
    (
        card.slide(moved.quantity, start)
        if isinstance(moved, Choice)
        else card.type(moved.quantity, format_to_type(start, moved.style))
    )
    assert chooser.input_value() == card.spec.begin[kind]


@alike
def test_reset(card):
    """A reset gives back every value, and the name of a preset with the same quantities as another:
    an H100 has the memory of an A100.

    Mutation: forget the menus, the presets last chosen, or the refusal."""
    pictures, words = card.pictures, card.words
    for menu in card.spec.menus:
        at_start = card.spec.preset(menu.kind, card.spec.begin[menu.kind])
        twins = [
            name
            for name in menu.names
            if name != card.spec.begin[menu.kind] and card.spec.preset(menu.kind, name) == at_start
        ]
        card.choose(menu.kind, (twins or menu.names)[0])
    for control in card.spec.controls:
        card.slide(control.quantity, control.stops[-1])
    if boxes := [
        control.quantity for control in card.spec.controls if not isinstance(control, Choice)
    ]:
        card.unfold()
        card.type(boxes[0], "nonsense")
        assert card.errors
    assert card.words != words
    click(card.find(".explorer-reset"))
    assert card.words == words and card.pictures == pictures and card.errors == []
    assert [
        card.find(f"[data-kind={menu.kind}]").input_value() for menu in card.spec.menus
    ] == list(card.spec.chosen_at_start().values())


def test_copy_as_python(card):
    """The Python on show runs, and gives the page's numbers; so does what the page shows after one
    more move. It is a call of explain(), which refuses what its outputs do not depend on.

    Mutation: leave out what is not the preset's; keep the old text when a value moves."""
    chance = random.Random(11)
    click(card.find(".explorer-copy"))
    until(
        card.page,  # a browser may take its time over the clipboard
        "name => ['Copied', 'Press Ctrl+C to"
        " copy'].includes(document.querySelector(name).textContent)",
        arg=f"#explorer-{card.spec.name} .explorer-copy",
    )
    spec, tried, hand = card.spec, 0, card.hand()
    moves, after = [], []
    for _ in range(30):
        menu, control = chance.choice(spec.menus), chance.choice(spec.controls)
        name, stop = chance.choice(menu.names), chance.choice(control.stops)
        moves += [("choose", menu.kind, name), card.to_follow(control.quantity, stop)]
        hand.choose(menu.kind, name)
        hand.move(control.quantity, stop)
        try:
            words = card.expected_words(hand.values, hand.along)
            after.append((words, spec.compute(hand.values)))
        except InvalidQuantity:
            after.append(None)
            hand = card.hand()
    seen = card.follow(
        moves,
        "root => root.querySelector('.explorer-python').textContent",
        anew="(refused, what) => what === 'slide' && refused.length",
    )
    for expected, ((words, errors, _), code) in zip(after, seen[1::2], strict=True):
        assert bool(errors) == (expected is None)
        if errors:
            continue
        tried += 1
        expected_words, shown = expected
        header, _, call = code.partition("\n\n")
        if simulates := header != "from coursekit.formulas import explain":
            assert header == PLAYS.partition("\n\n")[0] and spec.name == "schedule"
        # the same arguments, and no tree printed
        answer = eval(call, {"explain": evaluate, "simulated": simulated})
        drawn = spec.with_derived(shown)
        assert answer == {name: drawn[name] for name in (answer if simulates else spec.outputs)}
        assert words == expected_words
    assert tried >= 12


# --- the picture ----------------------------------------------------------------------------------


def test_the_bar_is_to_scale(open_card):
    """Widths of the parts are as their bytes, from zero; the line stands at the capacity; what is
    over begins there.

    Mutation: start the bar at the axis' margin plus one part, or draw the capacity in GiB."""
    card = open_card("does-it-fit")
    for recipe in ("bf16 + fp32 master", "fp32 SGD momentum"):
        card.choose("recipe", recipe)
        shown = card.spec.compute(card.spec.choose(card.spec.start(), "recipe", recipe))
        boxes = card.find(".part").evaluate_all(
            "nodes => nodes.map(node => node.getBBox()).map(box => [box.x, box.width])"
        )
        scale = sum(width for _, width in boxes) / shown["states_bytes_per_gpu"]
        start = boxes[0][0]
        for (x, width), part in zip(boxes, card.spec.pictures[0].parts, strict=True):
            assert width == pytest.approx(shown[part.quantity] * scale, abs=0.01)
            assert x == pytest.approx(start, abs=0.01) or not width
            start += width
        line = float(re.match(r"M([\d.]+)", card.find(".capacity").get_attribute("d"))[1])
        assert line - boxes[0][0] == pytest.approx(shown["gpu_memory_bytes"] * scale, abs=0.01)
        begin, width = card.find(".over").evaluate(
            "node => [node.getBBox().x, node.getBBox().width]"
        )
        assert width == pytest.approx(shown["missing_bytes"] * scale, abs=0.01)
        assert begin == pytest.approx(line, abs=0.01) or not shown["missing_bytes"]


def test_the_bar_of_one_parameter_is_to_scale(open_card):
    """Tensor by tensor in bytes, on an axis that does not jump while the recipes take 20 bytes at
    most.

    Mutations: an axis as long as the bar; ticks at every tenth of it; a line of a card that nobody
    chose."""
    card = open_card("bytes-per-parameter")
    widths = {}
    for recipe in card.spec.menus[0].names:
        card.choose("recipe", recipe)
        shown = card.spec.compute(card.spec.choose(card.spec.start(), "recipe", recipe))
        boxes = card.find(".part").evaluate_all("nodes => nodes.map(node => node.getBBox().width)")
        for width, part in zip(boxes, card.spec.pictures[0].parts, strict=True):
            widths.setdefault(shown[part.quantity], set()).add(round(width, 2))
    assert {bytes_: len(found) for bytes_, found in widths.items()} == dict.fromkeys(widths, 1)
    assert max(widths[4]) == pytest.approx(2 * max(widths[2]), abs=0.02) and widths[0] == {0}
    ticks = card.find("svg .tick").evaluate_all(
        "nodes => nodes.map(node => node.textContent).filter(text => text)"
    )
    assert ticks == ["0", "4 B", "8 B", "12 B", "16 B", "20 B"]
    assert not card.find(".capacity").get_attribute("d")


# [name, strong, then for each path of parts and for the hatch [y, height] where it has a box over
# that name, else [0, 0]]
COLUMNS = """drawing => {
  const boxes = [...drawing.querySelectorAll("path.part, path.over")]
    .map(path => [...path.getAttribute("d").matchAll(
    /M([-\\d.]+) ([-\\d.]+)h([\\d.]+)v([-\\d.e]+)H/g)].map(found => found.slice(1).map(Number)));
  return [...drawing.querySelectorAll(".name")].filter(text => text.textContent)
    .map(text => [text.textContent, text.classList.contains("strong"),
    ...boxes.map(path => (path.find(([x, y, wide]) =>
      Math.abs(x + wide / 2 - text.getAttribute("x")) < wide / 2) || [0, 0, 0, 0])
        .filter((_, k) => k % 2))]); }"""


@pytest.mark.parametrize(
    "moves",
    [
        {},
        dict(fused_attention=0),
        dict(microbatch=64, optimizer_mode=1),
        dict(dropout=0.1, sequence=8192),
    ],
)
def test_the_columns_of_the_timeline_are_to_scale(open_card, moves):
    """A column for each point of the step, its parts from zero up, the highest marked, the card's
    line at its height, and what is above the line hatched.

    Mutations: parts from the top down; a column of fused attention; the hatch from zero; the last
    column marked; a logarithmic axis."""
    card, values = open_card("where-the-memory-goes"), EXPLORERS["where-the-memory-goes"].start()
    for quantity, value in moves.items():
        values = card.spec.move(values, quantity, value)
        card.slide(quantity, value)
    shown, picture = card.spec.compute(values), card.spec.pictures[1]
    drawing = card.find(".explorer-drawing >> nth=1")
    line = float(re.match(r"M[\d.]+ ([\d.]+)H", drawing.locator(".capacity").get_attribute("d"))[1])
    zero = max(y + height for _, _, *parts in drawing.evaluate(COLUMNS) for y, height in parts)
    scale = (zero - line) / shown["gpu_memory_bytes"]
    kinds = list(
        dict.fromkeys(
            (part.label, part.colour) for column in picture.columns for part in column.parts
        )
    )
    for column, (name, strong, *boxes) in zip(
        picture.shown(shown), drawing.evaluate(COLUMNS), strict=True
    ):
        assert name == column.name and strong == (shown[column.total] == shown["peak_bytes"])
        start = 0
        for part in column.parts:
            y, height = boxes[kinds.index((part.label, part.colour))]
            if shown[part.quantity]:
                start += shown[part.quantity]
                assert height == pytest.approx(
                    shown[part.quantity] * scale, abs=0.02
                ) and y == pytest.approx(zero - start * scale, abs=0.02)
        assert boxes[-1][1] == pytest.approx(
            max(0, start - shown["gpu_memory_bytes"]) * scale, abs=0.02
        )


def test_a_card_far_above_is_named_and_not_drawn(open_card):
    """Mutation: an axis up to the card, on which a small step is a line."""
    card = open_card("where-the-memory-goes")
    card.choose("model", "GPT-2 124M")
    card.slide("microbatch", 1)
    drawing = card.find(".explorer-drawing >> nth=1")
    assert (
        not drawing.locator(".capacity").get_attribute("d")
        and "85.1 GB card: far above" in drawing.text_content()
    )
    tops = [min(y for y, height in parts if height) for _, _, *parts in drawing.evaluate(COLUMNS)]
    assert min(tops) < 80, "the columns fill the picture"


def test_the_marker_of_time_is_logarithmic(open_card):
    """A year's tick is where a year is; twice as long moves the marker as far everywhere.

    Mutation: a linear axis."""
    card = open_card("fits-and-how-long")
    at = lambda: float(card.find(".marker[cx]").get_attribute("cx"))
    places = []
    for gpus in (1024, 2048, 4096):
        card.slide("gpus", gpus)
        places.append(at())
    assert (
        places[0] - places[1] == pytest.approx(places[1] - places[2], abs=0.01)
        and places[0] - places[1] > 5
    )
    click(card.find(".explorer-reset"))
    shown = card.spec.compute(card.spec.start())
    card.type("utilisation", f"{40 * shown['training_days'] / 365}%")
    ticks = card.find("svg .tick").all_text_contents()
    marks = (
        card.find(".explorer-drawing >> nth=1")
        .locator("path.axis")
        .evaluate_all(
            "nodes => nodes.slice(1).map(node => +node.getAttribute('d').match(/M([\\d.]+)/)[1])"
        )
    )
    # the first tick is the bar's zero
    assert at() == pytest.approx(marks[ticks[1:].index("year")], abs=0.05)


MOVE_AND_LOOK = """([slider, comes, waits]) => {
  const card = document.querySelector(".explorer"), look = place => place.innerHTML;
  const pictures = [...card.querySelectorAll(".explorer-drawing")], before = pictures.map(look);
  if (!waits) window.setTimeout = () => 0; // no timer ends
  slider.value = +slider.value === 0 ? 1 : 0;
  slider.dispatchEvent(new Event("input"));
  const moved = () => pictures.map((place, k) => look(place) !== before[k]);
  window.moved = () => moved()[pictures.length - 1];
  const at_once = moved();
  if (comes === "paper") dispatchEvent(new Event("beforeprint"));
  if (comes === "sight") pictures[pictures.length - 1].scrollIntoView();
  return [at_once[0], at_once[pictures.length - 1]];
}"""


@pytest.mark.parametrize("comes", ["rest", "sight", "paper"])
def test_a_picture_out_of_sight_is_drawn_later(open_card, comes):
    """Pictures that the reader sees are drawn at once; the others when the hand rests, when the
    reader comes near, and before a page is printed.

    Mutations: all pictures drawn at once; a picture out of sight never drawn, or not for one of the
    three."""
    card = open_card("zero", fresh=True, viewport={"width": 1280, "height": 320})
    card.page.evaluate(DRAWN)
    slider = card.slider("parameters").element_handle()
    first, last = card.page.evaluate(MOVE_AND_LOOK, [slider, comes, comes == "rest"])
    assert first and not last
    until(card.page, "moved()")


def test_the_ghost_of_the_picture_before(open_card):
    """It appears with the first move of a drag, stays where the picture was, and goes after the
    release.

    Mutation: take the ghost anew at every step of the drag, or never take it away."""
    card = open_card("does-it-fit", reduced_motion="no-preference")
    ghost, total = (
        card.find(".ghost >> nth=1"),
        "parts => parts.reduce((sum, part) => sum + part.getBBox().width, 0)",
    )
    before = card.spec.compute(card.spec.start())["states_bytes_per_gpu"]
    box = card.slider("layers").bounding_box()
    middle = box["y"] + box["height"] / 2
    card.page.mouse.move(box["x"] + box["width"] * 0.25, middle)
    assert ghost.get_attribute("d") == ""
    card.page.mouse.down()
    for share in (0.4, 0.6, 0.8):
        card.page.mouse.move(box["x"] + box["width"] * share, middle)
    layers = parse_number(card.box("layers").input_value())
    assert layers > 80
    now = card.spec.compute(card.spec.move(card.spec.start(), "layers", layers))[
        "states_bytes_per_gpu"
    ]
    end = float(re.search(r"H([\d.]+)V", ghost.get_attribute("d"))[1])
    assert (end - 1) / card.find(".part").evaluate_all(total) == pytest.approx(
        before / now, rel=1e-3
    )
    card.page.mouse.up()
    until(card.page, "document.querySelectorAll('.ghost')[1].getAttribute('d') === ''")


# Uses a control as a reader does, and looks before the page has a moment to do anything else.
AT_ONCE = """(root, [selector, event]) => { const control = root.querySelector(selector);
  if (event === "change") control.dispatchEvent(new Event("input"));
  control.dispatchEvent(new Event(event));
  const ghosts = [...root.querySelectorAll(".ghost")];
  return [root.className, ...ghosts.map(node => node.getAttribute("d") || "")].join(" "); }"""


@pytest.mark.parametrize(
    ("selector", "event"),
    [("[type=range]", "change"), ("[data-kind=gpu]", "change"), (".explorer-reset", "click")],
)
def test_who_wants_no_motion_sees_no_ghost_go(open_card, selector, event):
    """The ghost is gone when the reader's move is done, not a moment later: a test or a reader who
    compares two pictures never meets half of one.

    Mutations: drop the ghost in a timer of 0 ms; forget to draw the picture anew without it."""
    calm = open_card("does-it-fit", reduced_motion="reduce")
    calm.slide("layers", 64)
    found = calm.root.evaluate(AT_ONCE, [selector, event])
    assert "ghosted" not in found and "M" not in found
    moving = open_card("does-it-fit", reduced_motion="no-preference")
    found = moving.root.evaluate(AT_ONCE, [selector, event])
    assert "ghosted" in found and "M" in found, "the reader who minds no motion sees one"


# --- curves ---------------------------------------------------------------------------------------

CURVES = """drawing => {
  const seen = text => text.textContent,
    numbers = text => (text.match(/-?[\\d.]+/g) || []).map(Number);
  return {
    lines: [...drawing.querySelectorAll(".curve")]
      .map(line => line.getAttribute("d") ? numbers(line.getAttribute("d")) : null),
    dashes: [...drawing.querySelectorAll(".curve")].filter(line => line.getAttribute("d"))
      .map(line => line.getAttribute("stroke-dasharray")),
    point: numbers(drawing.querySelector(".marker").getAttribute("d")).slice(0, 2),
    arrow: drawing.querySelector(".marker").getAttribute("d").includes("v14"),
    ticks: [...drawing.querySelectorAll(".tick[text-anchor=end]")].filter(seen)
      .map(text => [text.textContent, +text.getAttribute("y") - 4]),
    texts: [...drawing.querySelectorAll("text")].filter(seen).map(text => text.textContent),
    ghost: drawing.querySelector(".ghost:not(.halo)").getAttribute("d")}; }"""

CLASHES = """drawing => {
  const texts = [...drawing.querySelectorAll("text")]
    .filter(text => text.checkVisibility({visibilityProperty: true}) && text.textContent);
  const boxes = texts.map(text => text.getBoundingClientRect()), found = [];
  boxes.forEach((one, k) => boxes.slice(k + 1).forEach((other, j) => {
    if (Math.min(one.right, other.right) - Math.max(one.left, other.left) > 1
      && Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top) > 4)
      found.push(texts[k].textContent + " | " + texts[k + 1 + j].textContent);
  }));
  return found; }"""

WITH_CURVES = [
    name
    for name, spec in EXPLORERS.items()
    if "curves" in (picture.kind for picture in spec.pictures[:2])
]


def first_curves(spec):
    """The place of an explorer's first picture of curves."""
    return [picture.kind for picture in spec.pictures].index("curves")


def places(card, values):
    """(lines as drawn, their Python values by stop, what was drawn) of an explorer's first picture
    of curves."""
    place = first_curves(card.spec)
    shown, curves = card.spec.compute(values), card.spec.pictures[place]
    return (
        shown,
        curves,
        list(card.spec.swept(curves, shown)),
        card.find(f".explorer-drawing >> nth={place}").evaluate(CURVES),
    )


def on_axis(text, axis):
    """The number that a tick's text stands for."""
    if axis.style == "decimal bytes":
        number, unit = text.split()
        return float(number) * 1000 ** ["B", "kB", "MB", "GB", "TB", "PB"].index(unit)
    return parse_number(f"{text}{axis.unit}", axis.style)


@pytest.mark.parametrize("name", WITH_CURVES, indirect=True)
def test_lines_are_to_scale(open_card, name):
    """Every point of every line, the marked point and the ticks lie on the same two scales, which
    are what the axes say. A line that is not there is not drawn, and no two lines have the same
    dashes.

    Mutations: a linear axis for a logarithmic one; a scale for each line; the hierarchical line
    drawn over the ring's with one rank on a node; the point at the stop below."""
    card = open_card(name)
    values = card.spec.start()
    moves = {
        "roofline": [("operation_rows", 16), ("matrix_product", 0)],
        "collective-cost": [("ranks_per_node", 1), ("message_bytes", 2**14)],
    }
    moves = moves.get(
        name,
        [
            (control.quantity, control.stops[len(control.stops) // 3])
            for control in card.spec.controls[:2]
        ],
    )
    for quantity, stop in [(None, None), *moves]:
        if quantity:
            values = card.spec.move(values, quantity, stop)
            card.slide(quantity, stop)
        shown, curves, swept, drawn = places(card, values)
        along = {
            axis: math.log10 if axis.scale == "log" else float for axis in (curves.x, curves.y)
        }
        there = [place for place, _ in curves.shown(shown)]
        assert [line is not None for line in drawn["lines"]] == [
            place in there for place in range(len(curves.lines))
        ]
        assert len(set(drawn["dashes"])) == len(there)
        found = []  # (log of the value, pixels) on each axis
        for place in there:
            line = drawn["lines"][place]
            assert len(line) == 2 * len(swept)
            for (stop_, quantities_), x, y in zip(swept, line[::2], line[1::2]):
                found.append(
                    (
                        along[curves.x](stop_),
                        x,
                        along[curves.y](quantities_[curves.lines[place].name]),
                        y,
                    )
                )
        found.append(
            (
                along[curves.x](shown[curves.sweep]),
                drawn["point"][0],
                along[curves.y](shown[curves.point]),
                drawn["point"][1],
            )
        )
        for axis in (0, 2):
            pairs = sorted((each[axis], each[axis + 1]) for each in found)
            (low, start), (high, end) = pairs[0], pairs[-1]
            for value, pixels in pairs:
                assert pixels == pytest.approx(
                    start + (value - low) / (high - low) * (end - start), abs=0.15
                )
        for text, y in drawn["ticks"]:
            value = on_axis(text, curves.y)
            assert y == pytest.approx(
                start + (along[curves.y](value) - low) / (high - low) * (end - start), abs=0.3
            )
        assert len(drawn["ticks"]) >= 3 and fill_in(curves.words, shown) in drawn["texts"]
        assert {fill_in(line.label, shown) for _, line in curves.shown(shown)} <= set(
            drawn["texts"]
        )


@pytest.mark.parametrize("width", [320, DESKTOP["width"]])
@pytest.mark.parametrize("name", WITH_CURVES, indirect=True)
def test_no_words_lie_over_others(open_card, name, width):
    """Labels at the ends of lines that meet, ticks of an axis with little room, a point at either
    end: each can be read.

    Mutations: labels where the lines end; all ticks whatever the width; the words of the point not
    kept inside."""
    card, chance = (
        open_card(name, viewport={"width": width, "height": 844}),
        random.Random(name),
    )
    moves = []
    for _ in range(60):
        if chance.random() < 0.25:
            menu = chance.choice(card.spec.menus)
            moves.append(("choose", menu.kind, chance.choice(menu.names)))
        else:
            control = chance.choice(card.spec.controls)
            stops = [*control.stops, control.stops[0], control.stops[-1]]
            moves.append(card.to_follow(control.quantity, chance.choice(stops)))
    look = f"(root, place) => ({CLASHES})(root.querySelectorAll('.explorer-drawing')[place])"
    found = card.follow(moves, look, first_curves(card.spec), "refused => refused.length")
    assert len(found) == 60
    for (words, _, _), clashes in found:
        assert not clashes, words


def test_a_point_beyond_the_axis_is_an_arrow(open_card):
    """Mutation: the point off the picture, or at the axis' end as if it were there."""
    card = open_card("roofline")
    assert not places(card, card.spec.start())[3]["arrow"]
    inside = places(card, card.spec.start())[3]["point"][0]
    for quantity in ("operation_rows", "operation_columns", "operation_depth"):
        card.type(quantity, "200,000")
    drawn = card.find(".explorer-drawing >> nth=0").evaluate(CURVES)
    assert drawn["arrow"] and drawn["point"][0] > inside and not card.errors


def test_a_point_whose_lines_are_refused_has_its_axis(open_card):
    """Numbers beyond 2^53 are refused at every place of the axis, but not where the reader is.

    Mutation: an axis from 1 B to 10 B under a point of terabytes, with its words over the axis'."""
    card = open_card("recompute")
    values = card.spec.start()
    most = dict(layers=128, microbatch=128, sequence=131_072, fused_attention=0, dropout=0.1)
    for quantity, stop in most.items():
        values = card.spec.move(values, quantity, stop)
        card.slide(quantity, stop)
    assert not places(card, values)[2]
    drawing = card.find(".explorer-drawing").nth(first_curves(card.spec))
    assert "500 TB" in [text for text, _ in drawing.evaluate(CURVES)["ticks"]]
    assert not drawing.evaluate(CLASHES)


def test_the_ghost_of_lines(open_card):
    """While the hand moves, lines and point are seen as they were, on the scales of now; a line
    that did not move has no ghost.

    Mutations: the ghost of the step before; lines as pixels, which a new scale would leave behind;
    a ghost over lines that stayed."""
    card = open_card("collective-cost", reduced_motion="no-preference")
    slide = (
        "(slider, position) => { slider.value = position; slider.dispatchEvent(new"
        " Event('input')); }"
    )
    drawing = card.find(".explorer-drawing >> nth=0")
    before = drawing.evaluate(CURVES)
    stops = list(card.control("message_bytes").stops)
    for stop in (2**22, 2**16):
        card.slider("message_bytes").evaluate(slide, stops.index(stop))
    drawn = drawing.evaluate(CURVES)
    assert drawn["lines"] == before["lines"] and drawn["ghost"].count("M") == 1, (
        "only the point moved"
    )
    numbers = [float(text) for text in re.findall(r"-?[\d.]+", drawn["ghost"])]
    assert numbers[:2] == before["point"] and drawn["point"] != before["point"]
    ranks = list(card.control("ranks").stops)
    card.slider("ranks").evaluate(slide, ranks.index(4096))
    drawn = drawing.evaluate(CURVES)
    assert (
        drawn["ghost"].count("M") == len(before["lines"]) + 1 and drawn["lines"] != before["lines"]
    )
    card.slider("ranks").evaluate("slider => slider.dispatchEvent(new Event('change'))")
    until(
        card.page,
        "document.querySelector('#explorer-collective-cost .ghost:not(.halo)').getAttribute('d')"
        " === ''",
    )


# --- why ------------------------------------------------------------------------------------------


def test_why_shows_the_equations_with_the_readers_numbers(card_in_chapter, explorer_places):
    """Every formula behind the card, once, its own value left of the equals sign, and a link that
    leads to the formula sheet.

    Mutations: fill the numbers only when it opens; leave a symbol unfilled; link to an anchor that
    is not there; bring the equations twice when it is opened, closed and opened."""
    card = card_in_chapter
    assert card.find(".explorer-equations").count() == 0, "nobody has asked for them yet"
    for _ in range(3):
        click(card.find(".explorer-why > summary"))
    card.find(".explorer-equations").wait_for()
    control = card.spec.controls[0]
    stop = control.stops[len(control.stops) // 2]
    card.slide(control.quantity, stop)
    shown = card.spec.compute(card.spec.move(card.spec.start(), control.quantity, stop))
    items = card.find(".explorer-all ol > li")
    assert (
        items.evaluate_all("items => items.map(item => item.dataset.quantity)")
        == card.spec.explained
    )
    lines = items.evaluate_all(
        """items => items.map(item =>
      [...item.querySelectorAll(".explorer-numbers [data-quantity]")].map(
      place => [place.dataset.quantity || place.getAttribute("data-quantity"),
        place.textContent]))"""
    )
    for name, line in zip(card.spec.explained, lines, strict=True):
        assert line[0][0] == name and {quantity for quantity, _ in line} == {
            name,
            *BOOK.formulas[name].needs,
        }
        for quantity, text in line:
            if BOOK.find(quantity).whole:
                assert text == f"{shown[quantity]:,}"
            else:
                assert parse_number(text) == pytest.approx(shown[quantity], rel=0.005)
    links = card.find(".explorer-all li a").evaluate_all("links => links.map(link => link.href)")
    assert len(links) == len(card.spec.explained) + len(card.spec.inputs)
    for link in set(links):
        book = explorer_places[card.name].folder
        path, _, anchor = link.removeprefix(book.as_uri() + "/").partition("#")
        assert f'id="{anchor}"' in (book / path).read_text(encoding="utf-8")


# The sum that "Why?" begins with: quantities, numbers, and what each opens when it is pressed.
SUM = """root => [...root.querySelectorAll(".explorer-sum > span:not([hidden]) > button")]
  .map(term => {
    if (term.getAttribute("aria-expanded") === "false") term.click();
    const own = [...root.querySelectorAll(".explorer-own li")];
    return [term.dataset.quantity, term.firstChild.textContent.replaceAll("\\u00a0", " "),
      own.map(line => line.dataset.quantity), own[0].querySelector(".explorer-value").textContent];
  })"""


def test_why_begins_with_the_sentence_as_a_sum(card):
    """165 = 27.0 + 53.9 + 81.9 + 2.10 GB, of which each number opens its own line; the rest stays
    folded.

    Must catch: terms that do not add up to the total; a term of zero bytes shown; a click that
    opens another line, or leaves the last one open; all formulas open."""
    click(card.find(".explorer-why > summary"))
    card.find(".explorer-sum").wait_for()
    until(card.page, "document.querySelector('.explorer-why[open] .explorer-sum b').textContent")
    shown = card.spec.compute(card.spec.start())
    total, *terms = (name for name, _ in card.spec.sum)
    found = card.root.evaluate(SUM)
    assert [name for name, *_ in found] == [total, *(name for name in terms if shown[name])]
    for name, _, own, value in found:
        assert own[0] == name and len(own) == len(set(own))
        assert value == format_as(shown[name], default_style(name))
    if terms:
        assert sum(shown[name] for name in terms) == pytest.approx(shown[total])
    assert not card.find(".explorer-all").evaluate("all => all.open")
    if card.name == "where-the-memory-goes":
        numbers = [text for _, text, *_ in found]
        assert numbers == ["165", "27.0", "53.9", "81.9", "2.10 GB"]


# --- in a small window ----------------------------------------------------------------------------


# Controls with which less than nine tenths of the first picture, or of the sentence, can be seen:
# as they come to the middle of the screen, and as they get the focus from far above.
OUT_OF_VIEW = """async root => {
  const frame = () => new Promise(done => requestAnimationFrame(() => setTimeout(done)));
  const first = root.querySelector(".explorer-drawing"), found = [];
  const sentence = root.querySelector(".explorer-sentence");
  const share = node => { // of points at which nothing lies over it
    const box = node.getBoundingClientRect(), points = [];
    for (let k = 0; k < 10; k++) for (let j = 0; j < 10; j++)
      points.push([box.left + (k + 0.5) / 10 * box.width, box.top + (j + 0.5) / 10 * box.height]);
    return points.filter(([x, y]) => x >= 0 && y >= 0 && x < innerWidth && y < innerHeight
      && node.contains(document.elementFromPoint(x, y))).length / points.length; };
  let most = root.offsetHeight;
  for (const row of root.querySelectorAll(".explorer-menu, .explorer-control")) {
    const group = row.closest("details");
    if (group) group.open = true;
    most = Math.max(most, root.offsetHeight);
    const input = row.querySelector("select, [type=range], :checked");
    const meet = {
      middle: () => row.scrollIntoView({block: "center"}),
      focus: () => { scrollTo(0, 0); input.focus(); }
    };
    for (const how of Object.keys(meet)) {
      document.activeElement.blur();
      meet[how]();
      await frame();
      const seen = [share(first), share(sentence), share(input)];
      if (seen[0] < 0.9 || seen[1] < 0.9 || seen[2] < 0.5)
        found.push([row.textContent.trim().slice(0, 30), how, ...seen]);
    }
  }
  return [most, found];
}"""
SCREENS = [(1280, 720), (768, 1024), (390, 844)]


@alike
def test_what_the_hand_moves_stays_in_sight(open_card, explorer_places, name):
    """The first picture and the sentence, for each control, and the control itself; on a desk the
    card is at most 700 px high, whichever group is open.

    Must catch: a picture that scrolls away on a desk, the last picture pinned on a phone, a control
    that lies under what is pinned, groups that open beside one another."""
    card = open_card(name, places=explorer_places)
    for width, height in SCREENS:
        card.page.set_viewport_size({"width": width, "height": height})
        card.page.evaluate(DRAWN)
        tall, found = card.root.evaluate(OUT_OF_VIEW)
        assert found == [], (width, height)
        assert width < 1280 or tall <= 700, tall


# Text, size and room at both sides of each text in a card's pictures.
PLACES = """root => [...root.querySelectorAll("svg text")]
  .filter(text => text.checkVisibility({visibilityProperty: true}))
  .map(text => { const box = text.getBoundingClientRect(),
    svg = text.ownerSVGElement.getBoundingClientRect();
    const scale = svg.width / text.ownerSVGElement.width.baseVal.value;
    return [text.textContent, parseFloat(getComputedStyle(text).fontSize) * scale,
      box.left - svg.left, svg.right - box.right]; })"""


# Controls in which a finger or a pointer finds less than so many pixels.
SMALLER = """(controls, least) => controls
  .filter(node => { const box = node.getBoundingClientRect();
    return !(box.height >= least && box.width >= least); })
  .map(node => node.outerHTML.slice(0, 80))"""


@alike
def test_on_a_phone(open_card, explorer_places, name):
    """The picture comes first, its text keeps its size and stays inside, fingers find every
    control.

    Mutations: draw the picture in a viewBox that is scaled; `order` that puts the controls first; a
    20 px slider."""
    phone = {"viewport": PHONE, "has_touch": True, "is_mobile": True}
    card = open_card(name, places=explorer_places, **phone)
    card.unfold()
    picture, controls, menus = (
        card.find(part).bounding_box()
        for part in (".explorer-pinned", ".explorer-controls", ".explorer-menus")
    )
    assert picture["y"] + picture["height"] <= min(menus["y"], controls["y"]) + 1
    assert card.page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    moves = [
        card.to_follow(control.quantity, stop)
        for control in card.spec.controls
        for stop in (control.stops[0], control.stops[-1])
    ]
    for move, (_, texts) in zip(moves, card.follow(moves, PLACES, anew="() => true"), strict=True):
        for text, size, left, right in texts:
            assert size >= 11 and left >= -1 and right >= -1, (move, text, size, left, right)
    for control in card.find("input, select, button, summary").all():
        box = control.bounding_box()
        assert box["height"] >= 44 and box["width"] >= 44, control.evaluate(
            "node => node.outerHTML.slice(0, 80)"
        )


# What is wider than the control that it belongs to.
OUTSIDE = """root => [...root.querySelectorAll(".explorer-control")].flatMap(control => {
  const edge = control.getBoundingClientRect();
  return [...control.querySelectorAll("*")].filter(part => {
    const box = part.getBoundingClientRect();
    return box.width && (box.right > edge.right + 1 || box.left < edge.left - 1);
  }).map(part => part.textContent); })"""


@alike
def test_on_a_tablet(open_card, explorer_places, name):
    """Where a page has no margin column yet, a picture has as much room as on a phone, and its
    words and the options of a choice have it too.

    Mutations: two columns in the width of the text; options beside their name in any case."""
    card = open_card(name, places=explorer_places)
    card.unfold()
    for width in (700, 820, 992, 1100):
        card.page.set_viewport_size({"width": width, "height": 900})
        card.until_as_wide()
        drawings = card.find(".explorer-drawing")
        assert drawings.first.evaluate("place => place.clientWidth") >= 320, width
        assert card.root.evaluate(OUTSIDE) == [], width
        for drawing in drawings.all():
            assert drawing.evaluate(CLASHES) == [], width
        assert card.page.evaluate("document.documentElement.scrollWidth") <= width


@alike
def test_targets_with_a_pointer(card):
    """Mutation: a slider of 16 px."""
    card.unfold()
    assert card.find("input, select, button, summary").evaluate_all(SMALLER, 24) == []


@alike
def test_the_picture_follows_the_width_of_the_window(card):
    """Mutation: measure the width once."""
    card.page.set_viewport_size({"width": 1000, "height": 800})
    card.until_as_wide()
    wide = card.find("svg >> nth=0").bounding_box()["width"]
    card.page.set_viewport_size(PHONE)
    card.until_as_wide()
    assert card.find("svg >> nth=0").bounding_box()["width"] != wide
