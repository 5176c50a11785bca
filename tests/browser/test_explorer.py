"""The explorers as a reader meets them: keys, typing, dragging, refusals, reset, Python, a phone.
Paper and a reader without scripts: every_page.py."""

import math
import random
import re
import time
from contextlib import ExitStack
from functools import partial

import pytest
from cards import AS_WIDE
from keyboard import VALUES, walk
from page_scripts import page_scripts
from reader import Hand, marks, refusal, swept
from visit import DRAWN, PHONE, TOUCH, Readers, click, open_all, stop_clock, until
from visit import JS as ON_PAGES

from coursekit.formulas import BOOK, InvalidQuantity, evaluate
from coursekit.formulas.events import end_seconds, operations, play, waiting
from coursekit.show.explorers import EXPLORERS
from coursekit.show.format import format_as, format_to_type, parse_number
from coursekit.show.spec import Choice, default_style, fill_in
from coursekit.topics.pipelines.schedule_picture import PLAYS, simulated

JS = page_scripts("explorer")
# one worker builds the small book of explorers
pytestmark = pytest.mark.xdist_group("explorers")


class Card:
    """One explorer on an open page, and what a reader does with it."""

    def __init__(self, page, name):
        self.page, self.name, self.spec = page, name, EXPLORERS[name]
        self.root = page.locator(f"#explorer-{name}")

    def find(self, selector):
        return self.root.locator(selector)

    def shown(self, quantity):
        """The control, whose group a reader unfolds first."""
        control = self.find(f".explorer-control[data-quantity={quantity}]")
        control.evaluate(
            "one => { const group = one.closest('details'); if (group) group.open = 1; }"
        )
        return control

    def slider(self, quantity):
        return self.shown(quantity).locator("[type=range]")

    def box(self, quantity):
        return self.shown(quantity).locator("[type=text]")

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
        self.follow([("slide", quantity, stop)])

    def choose(self, kind, name):
        self.find(f"[data-kind={kind}]").select_option(name)

    @property
    def state(self):
        """(words with ordinary spaces, visible refusals by control, values in the boxes and choices
        by control) in one look."""
        return self._said(self.root.evaluate(JS.STATE))

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

    def move(self, what, name=None, to=None, of=None):
        """The page's part of a move, for `follow`."""
        return what, name, list(self.control(name).stops).index(to) if what == "slide" else to, of

    def follow(self, moves, look="() => null"):
        """[(state, what the script `look` sees)] after each of the moves ("slide", quantity, stop),
        ("type", quantity, text), ("choose", kind, name) and ("reset",). `look` is given what stands
        behind these."""
        script = JS.FOLLOW.replace("STATE", JS.STATE).replace("LOOK", look)
        seen = self.root.evaluate(script, [self.move(*move) for move in moves])
        return [(self._said(state), found) for state, found in seen]

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
        while (found := self.root.evaluate(JS.SEE.replace("STATE", JS.STATE))) is None:
            assert time.monotonic() < end, "the ghost of a picture stays"
            self.page.wait_for_timeout(20)
        return self._said(found[0]), found[1]

    def expected_words(self, values, along=""):
        shown = self.spec.compute(values)
        return f"{self.spec.say(shown)}{along} {self.spec.say_detail(shown)}"

    def hand(self):
        """A hand on the card's start."""
        return Hand(self.spec, self.spec.start(), self.spec.chosen_at_start())


@pytest.fixture(scope="module")
def readers(browser):
    return Readers(browser)


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


def by_day(*names):
    """The test is of these explorers by day, and of all at night."""
    rest = pytest.mark.nightly
    rows = [pytest.param(name, marks=() if name in names else rest) for name in EXPLORERS]
    return pytest.mark.parametrize("name", rows, indirect=True)


# The scripts behind these tests know no explorer by name. These stand for the others, which wait
# for the night: streams and tabs, parts with a search; and whose pictures and links are of every
# kind.
alike = by_day(*(TWO := ("step-time", "rank-of-any-layout")))
OF_EACH_KIND = (*TWO, "fits-and-how-long", "where-the-memory-goes", "schedule")
same = by_day(*OF_EACH_KIND)


@pytest.fixture
def card(name, open_card):
    card = open_card(name)
    yield card
    assert not card.page.watch.errors


# --- the same as in Python ------------------------------------------------------------------------


def test_every_kind_is_looked_at_by_day():
    """Must catch: a kind of picture or of link that waits for the night."""
    kinds = {
        name: {picture.kind for picture in spec.pictures} | {type(link) for link in spec.links}
        for name, spec in EXPLORERS.items()
    }
    assert set().union(*kinds.values()) == set().union(*(kinds[name] for name in OF_EACH_KIND))


TEXTS = """root => [...root.querySelectorAll(
    ".explorer-drawing svg text:not(.tick):not(.digit):not([visibility=hidden])")]
  .map(text => text.textContent)"""


def words_of_picture(picture, shown):
    """Words in a picture that say its numbers."""

    def said(name, style="decimal bytes"):
        return format_as(shown[name], style)

    if picture.kind == "memory":
        parts = [part for part in picture.parts if shown[part.quantity]]
        return {said(picture.total), *(f"{one.label} {said(one.quantity)}" for one in parts)}
    if picture.kind == "timeline":
        return {"peak " + said(max(picture.shown(shown), key=lambda one: shown[one.total]).total)}
    if picture.kind == "curves":
        lines = picture.shown(shown)
        return {
            fill_in(words, shown) for words in (picture.words, *(one.label for _, one in lines))
        }
    if picture.kind == "time":
        return {said(picture.quantity, "duration")}
    if picture.kind == "streams":
        if too_many := picture.too_many(shown):
            return {too_many}
        ran = play(operations(picture.step, shown))
        idle = sum(stop - start for _, start, stop in waiting(ran))
        of = [format_as(seconds, "short duration") for seconds in (idle, end_seconds(ran))]
        return {f"{' of '.join(of)} {picture.idle}"}
    share = said("simulated_share_of_total", "percent")
    return {f"{share} of {said('simulated_seconds', 'short duration')} idle"}


def words_of_pictures(spec, shown):
    shown = spec.with_derived(shown)
    return set().union(*(words_of_picture(picture, shown) for picture in spec.pictures))


class Both:
    """A reader on the page and a hand in Python that make the same moves: `moves`, as `follow`
    takes them, and (words, refusals, values) as Python has them after each in `said`."""

    def __init__(self, card):
        self.card, self.moves, self.said = card, [], []
        self._begin()

    def _begin(self):
        self.hand = self.card.hand()
        self.words = self.card.expected_words(self.hand.values)

    def __call__(self, what, name=None, to=None, of=None):
        """Whether the move is refused."""
        spec, sentences = self.card.spec, {}
        if what == "reset":
            self._begin()
        elif what == "choose":
            self.hand.choose(name, to)
        elif what == "slide":
            self.hand.move(name, to)
        else:  # one types over what the start shows
            style = self.card.control(name).style
            on_show = format_to_type(spec.start()[name], style)
            self.hand.move(name, parse_number(to, style, on_show))
        try:
            self.words = self.card.expected_words(self.hand.values, self.hand.along)
        except InvalidQuantity as refused:
            changed = name if what in ("slide", "type") else None
            place = marks(spec, refused.quantity, changed)
            sentences = {place: refusal(spec, refused, self.hand.values)}
        self.moves.append((what, name, to, of))
        self.said.append((self.words, sentences, self.hand.values))
        return bool(sentences)

    def alone(self, *move):
        """One move from the start."""
        self(*move)
        self("reset")


TYPED = ("7", "0", "-5", "1e99", "1e400", "many", "-1e99", "0.5", "12 apples", "300,000")
NONSENSE = re.compile(r"\w*[a-z]_[a-z]\w*|(?:\d,?){30}|e\d+ [nµm]s|NaN|undefined|Infinity")


def walk_of(both, chance):
    """40 moves of sliders and menus at random, each from where the one before ended; then, from
    the start, the middle of each control, both ends, each preset, and a third of what one may
    type. (Every input is refused in every way in test_javascript_equals_python.py.)"""
    spec = both.card.spec
    for step in range(40):
        of = "python" if step % 4 == 0 else None
        if chance.random() < 0.15:
            menu = chance.choice(spec.menus)
            both("choose", menu.kind, chance.choice(menu.names), of)
            continue
        if not step or chance.random() < 0.7:  # else the hand stays where it is
            control = chance.choice(spec.controls)
        both("slide", control.quantity, chance.choice(control.stops), of)
    both("reset", None, None, "drawn")
    for control in spec.controls:
        if both("slide", control.quantity, control.stops[len(control.stops) // 2], "drawn"):
            both("reset")
    both("reset")
    for number, control in enumerate(spec.controls):
        both.alone("slide", control.quantity, control.stops[0])
        both.alone("slide", control.quantity, control.stops[-1])
        if not isinstance(control, Choice):
            on_show = format_to_type(spec.start()[control.quantity], control.style)
            unit = re.sub(r"^[\d.,]+", "", on_show)
            for text in (*TYPED, f"9{unit}", f"-9{unit}")[number % 3 :: 3]:
                both.alone("type", control.quantity, text, "typed")
    for menu in spec.menus:
        for name in menu.names:
            both("choose", menu.kind, name)


@same
def test_page_and_python_say_the_same(card):
    """Must catch: the ratio's follower rounded down; `when` for `unless`; a bare number without the
    unit on show; Python's name of a quantity in a message; an integer of 100 digits; a total or a
    line that only one of both draws; a bar without width; Python that keeps the old values."""
    spec, both = card.spec, Both(card)
    click(card.find(".explorer-copy"))
    until(
        card.page,  # a browser may take its time over the clipboard
        "copy => /Copied|Press Ctrl\\+C to copy/.test(document.querySelector(copy).textContent)",
        arg=f"#explorer-{spec.name} .explorer-copy",
    )
    walk_of(both, random.Random(card.name))
    tried = 0
    for move, (words, refused, values), ((said, errors, boxes), (nonsense, texts, code)) in zip(
        both.moves, both.said, card.follow(both.moves, JS.LOOK.replace("TEXTS", TEXTS)), strict=True
    ):
        what, changed, to, of = move
        assert (said, errors, nonsense) == (words, refused, None), move
        shown = " ".join([said, *errors.values(), *boxes.values()])
        assert not NONSENSE.search(shown), (move, shown)
        if what == "type":
            value, style = values[changed], card.control(changed).style
            wanted = value if isinstance(value, str) else format_to_type(value, style)
            assert boxes[changed] == wanted, move
            continue
        assert {
            name: parse_number(text, card.control(name).style) for name, text in boxes.items()
        } == {name: values[name] for name in boxes}, move
        if refused or not of:
            continue
        tried += 1
        computed = spec.compute(values)
        if of == "drawn":
            assert words_of_pictures(spec, computed) <= set(texts), move
        else:
            header, _, call = code.partition("\n\n")
            if simulates := header != "from coursekit.formulas import explain":
                assert header == PLAYS.partition("\n\n")[0] and spec.name == "schedule"
            # the same arguments, and no tree printed
            answer = eval(call, {"explain": evaluate, "simulated": simulated})
            drawn = spec.with_derived(computed)
            assert answer == {name: drawn[name] for name in (answer if simulates else spec.outputs)}
    assert tried >= 12


def test_a_step_of_too_many_pieces_says_so(open_card):
    """Must catch: no limit (a page hangs); the numbers of the step before left in the picture."""
    card, layers = open_card("recompute"), ("1000", "1001", "1_000_000")
    moves = [("type", "microbatch", "1"), *(("type", "layers", number) for number in layers)]
    for number, (state, texts) in zip(layers, card.follow(moves, TEXTS)[1:], strict=True):
        hand = card.hand()
        hand.move("microbatch", 1)
        hand.move("layers", int(number))
        assert state[:2] == (card.expected_words(hand.values, hand.along), {}), number
        shown = card.spec.compute(hand.values)
        assert words_of_pictures(card.spec, shown) <= set(texts), number
        said = [text for text in texts if " pieces: up to 5,000 are drawn" in text]
        assert len(said) == (number != "1000"), number


# --- keys and typing ------------------------------------------------------------------------------


@alike
def test_every_control_by_keyboard_alone(card):
    """Must catch: tabindex="-1" on the boxes; a slider drawn with divs; no ArrowUp in the boxes."""
    values, press = card.page.evaluate(VALUES), card.page.keyboard.press
    open_all(card.page)
    # the nearest layouts come anew with each move: every_page.py reaches them
    assert walk(card.page, values, inert=".explorer-nearest") == []
    if len(card.spec.pictures) > 2:
        card.find(".explorer-tabs [type=radio]").first.check()
        press("ArrowRight")
        captions = card.find(".behind .explorer-caption").all_text_contents()
        assert captions == [card.spec.pictures[2].title]
    if card.spec.parts:
        card.find(".explorer-ranks svg").focus()
        press("ArrowRight")
        assert card.find(".ranks-words").text_content().startswith("Rank 1 ")


def test_arrow_keys_in_a_box_go_to_the_next_stop(open_card):
    """Must catch: the nearest stop instead of the next; a box left with the old text; a slider that
    stays, or says its stop, when another number was typed."""
    card = open_card("fits-and-how-long")
    box, slider = card.box("gpus_per_copy"), card.slider("gpus_per_copy")
    card.type("gpus_per_copy", "100")
    place = list(card.control("gpus_per_copy").stops).index(64)
    assert slider.input_value() == str(place) and slider.get_attribute("aria-valuetext") == "100"
    box.press("ArrowUp")
    assert box.input_value() == "128"
    box.press("ArrowDown")
    box.press("ArrowDown")
    assert box.input_value() == "32"


def test_typing_is_not_interrupted(open_card):
    """Mutation: write the box at every input, or refuse an empty box at once."""
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


@pytest.mark.parametrize(
    "name, quantity, text",
    [("does-it-fit", "hidden", "4503599627370496"), ("fits-and-how-long", "utilisation", "400")],
)
def test_a_refusal_stands_beside_its_control(open_card, name, quantity, text):
    """Must catch: what could not be computed drawn; the control marked that moved; aria-invalid
    left behind. (Sentences: test_page_and_python_say_the_same.)"""
    card = open_card(name)
    pictures, words = card.pictures, card.words
    style, on_show = card.control(quantity).style, card.box(quantity).input_value()
    card.type(quantity, text)
    values = card.spec.move(card.spec.start(), quantity, parse_number(text, style, on_show))
    with pytest.raises(InvalidQuantity) as refused:
        card.spec.compute(values)
    sentence = refusal(card.spec, refused.value, values)
    assert card.errors == [sentence] and card.error(quantity).is_visible()
    for control in (card.box(quantity), card.slider(quantity)):
        assert control.get_attribute("aria-invalid") == "true"
        said = card.page.locator(f"[id='{control.get_attribute('aria-describedby')}']")
        assert said.text_content() == sentence
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
    """Mutations: make the visible sentence live, which would be read at every step; an announcement
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
    it; a reset that leaves it on a twin of the start's."""
    of = lambda menu: f"[data-kind={menu.kind}]"
    for menu in card.spec.menus:
        assert card.find(of(menu)).evaluate(
            "menu => [...menu.options].filter(option => !option.hidden).map(option => option.text)"
        ) == list(menu.names)
        chosen = [("choose", menu.kind, name, of(menu)) for name in menu.names]
        shown = card.follow(chosen, "(root, kind) => root.querySelector(kind).value")
        assert [value for _, value in shown] == list(menu.names)
        start = card.spec.begin[menu.kind]
        preset_of = partial(card.spec.preset, menu.kind)
        twins = [
            name for name in menu.names if preset_of(name) == preset_of(start) and name != start
        ]
        card.follow([("choose", menu.kind, name) for name in twins])
    click(card.find(".explorer-reset"))
    shown = [card.find(of(menu)).input_value() for menu in card.spec.menus]
    assert shown == list(card.spec.chosen_at_start().values())
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
    names = next(menu.names for menu in card.spec.menus if menu.kind == kind)
    chooser, start = card.find(f"[data-kind={kind}]"), card.spec.start()[moved.quantity]
    of_presets = {
        values.get(moved.quantity) for values in map(partial(card.spec.preset, kind), names)
    }
    others = [stop for stop in reversed(moved.stops) if stop != start]
    own = next((stop for stop in others if stop not in of_presets), others[0])
    card.slide(moved.quantity, own)
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


# --- the picture ----------------------------------------------------------------------------------


def assert_to_scale(pairs, within=0.05):
    """Every (value, pixels) lies on the line through the lowest and the highest."""
    (low, start), *_, (high, end) = sorted(pairs)
    for value, pixels in pairs:
        wanted = start + (value - low) / (high - low) * (end - start)
        assert pixels == pytest.approx(wanted, abs=within), value


EDGES = """nodes => nodes.map(node => { const box = node.getBBox();
  return [box.x, box.x + box.width]; })"""


def bars_drawn(card, recipes):
    """For each recipe, (bytes, pixels) of the edges of a bar's parts, of what is over, and of the
    line of a card."""
    for recipe in recipes:
        card.choose("recipe", recipe)
        shown = card.spec.compute(card.spec.choose(card.spec.start(), "recipe", recipe))
        total, room, pairs = 0, shown.get("gpu_memory_bytes"), []
        if line := card.find(".capacity").get_attribute("d"):
            pairs.append((room, float(re.match(r"M([\d.]+)", line)[1])))
        edges, parts = card.find(".part").evaluate_all(EDGES), card.spec.pictures[0].parts
        for (left, right), part in zip(edges, parts, strict=True):
            if shown[part.quantity]:
                pairs += [(total, left), (total := total + shown[part.quantity], right)]
        if shown.get("missing_bytes"):
            ((left, right),) = card.find(".over").evaluate_all(EDGES)
            pairs += [(room, left), (room + shown["missing_bytes"], right)]
        yield pairs


def test_the_bar_is_to_scale(open_card):
    """Mutation: start the bar at the axis' margin plus one part, or draw the capacity in GiB."""
    for pairs in bars_drawn(open_card("does-it-fit"), ("bf16 + fp32 master", "fp32 SGD momentum")):
        assert_to_scale(pairs)


def test_the_bar_of_one_parameter_is_to_scale(open_card):
    """Mutations: an axis as long as the bar; ticks at every tenth of it; a line of a card that
    nobody chose."""
    card = open_card("bytes-per-parameter")
    assert_to_scale(sum(bars_drawn(card, card.spec.menus[0].names), []))
    ticks = card.find("svg .tick").all_text_contents()
    assert [*filter(None, ticks)] == ["0", "4 B", "8 B", "12 B", "16 B", "20 B"]
    assert not card.find(".capacity").get_attribute("d")


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
    """Mutations: parts from the top down; a column of fused attention; the hatch from zero; the
    last column marked; a logarithmic axis."""
    card, values = open_card("where-the-memory-goes"), EXPLORERS["where-the-memory-goes"].start()
    for quantity, value in moves.items():
        values = card.spec.move(values, quantity, value)
        card.slide(quantity, value)
    shown, picture = card.spec.compute(values), card.spec.pictures[1]
    drawing, room = card.find(".explorer-drawing >> nth=1"), shown["gpu_memory_bytes"]
    line = float(re.match(r"M[\d.]+ ([\d.]+)H", drawing.locator(".capacity").get_attribute("d"))[1])
    kinds = [(part.label, part.colour) for column in picture.columns for part in column.parts]
    kinds, pairs = list(dict.fromkeys(kinds)), [(room, line)]
    for column, (name, strong, *boxes) in zip(
        picture.shown(shown), drawing.evaluate(JS.COLUMNS), strict=True
    ):
        assert name == column.name and strong == (shown[column.total] == shown["peak_bytes"])
        total = 0
        for part in column.parts:
            y, height = boxes[kinds.index((part.label, part.colour))]
            if shown[part.quantity]:
                pairs += [(total, y + height), (total := total + shown[part.quantity], y)]
        y, height = boxes[-1]  # of the hatch
        assert bool(height) == (total > room)
        pairs += [(room, y + height), (total, y)] if height else []
    assert_to_scale(pairs)


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
    tops = [
        min(y for y, height in parts if height) for _, _, *parts in drawing.evaluate(JS.COLUMNS)
    ]
    assert min(tops) < 80, "the columns fill the picture"


def test_the_marker_of_time_is_logarithmic(open_card):
    """Mutation: a linear axis."""
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
    axis = card.find(".explorer-drawing >> nth=1")
    ticks = axis.locator(".tick").all_text_contents()
    marks = axis.locator("path.axis").evaluate_all(
        "nodes => nodes.slice(1).map(node => +node.getAttribute('d').match(/M([\\d.]+)/)[1])"
    )
    assert at() == pytest.approx(marks[ticks.index("year")], abs=0.05)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("comes", ["rest", "sight", "paper"])
def test_a_picture_out_of_sight_is_drawn_later(open_card, comes):
    """Mutations: all pictures drawn at once; a picture out of sight never drawn, or not for one of
    the three."""
    card = open_card("zero", fresh=True, viewport={"width": 1280, "height": 320})
    card.page.evaluate(DRAWN)
    slider = card.slider("parameters").element_handle()
    first, last = card.page.evaluate(JS.MOVE_AND_LOOK, [slider, comes, comes == "rest"])
    assert first and not last
    until(card.page, "moved()")


def test_the_ghost_of_the_picture_before(open_card):
    """Mutation: take the ghost anew at every step of the drag, or never take it away."""
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


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("selector", "event"),
    [("[type=range]", "change"), ("[data-kind=gpu]", "change"), (".explorer-reset", "click")],
)
def test_who_wants_no_motion_sees_no_ghost_go(open_card, selector, event):
    """Mutations: drop the ghost in a timer of 0 ms; forget to draw the picture anew without it."""
    calm = open_card("does-it-fit", reduced_motion="reduce")
    calm.slide("layers", 64)
    found = calm.root.evaluate(JS.AT_ONCE, [selector, event])
    assert "ghosted" not in found and "M" not in found
    moving = open_card("does-it-fit", reduced_motion="no-preference")
    found = moving.root.evaluate(JS.AT_ONCE, [selector, event])
    assert "ghosted" in found and "M" in found, "the reader who minds no motion sees one"


# --- curves ---------------------------------------------------------------------------------------


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
        list(swept(card.spec, curves, shown).items()),
        card.find(f".explorer-drawing >> nth={place}").evaluate(JS.CURVES),
    )


def on_axis(text, axis):
    """The number that a tick's text stands for."""
    if axis.style == "decimal bytes":
        number, unit = text.split()
        return float(number) * 1000 ** ["B", "kB", "MB", "GB", "TB", "PB"].index(unit)
    return parse_number(f"{text}{axis.unit}", axis.style)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", WITH_CURVES, indirect=True)
def test_lines_are_to_scale(open_card, name):
    """Mutations: a linear axis for a logarithmic one; a scale for each line; the hierarchical line
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
        shown, curves, points, drawn = places(card, values)
        x_of, y_of = (math.log10 if one.log else float for one in (curves.x, curves.y))
        there = [place for place, _ in curves.shown(shown)]
        assert [line is not None for line in drawn["lines"]] == [
            place in there for place in range(len(curves.lines))
        ]
        assert len(set(drawn["dashes"])) == len(there)
        across = [(x_of(shown[curves.sweep]), drawn["point"][0])]
        up = [(y_of(shown[curves.point]), drawn["point"][1])]
        for place in there:
            line, name_ = drawn["lines"][place], curves.lines[place].name
            assert len(line) == 2 * len(points)
            across += zip((x_of(at) for at, _ in points), line[::2])
            up += zip((y_of(found[name_]) for _, found in points), line[1::2])
        ticks = [(y_of(on_axis(text, curves.y)), y) for text, y in drawn["ticks"]]
        assert_to_scale(across, 0.15)
        assert_to_scale(up, 0.15)
        assert_to_scale(up + ticks, 0.3)
        assert len(ticks) >= 3 and fill_in(curves.words, shown) in drawn["texts"]
        labels = {fill_in(line.label, shown) for _, line in curves.shown(shown)}
        assert labels <= {*drawn["texts"]}


def test_a_point_beyond_the_axis_is_an_arrow(open_card):
    """Mutation: the point off the picture, or at the axis' end as if it were there."""
    card = open_card("roofline")
    assert not places(card, card.spec.start())[3]["arrow"]
    inside = places(card, card.spec.start())[3]["point"][0]
    for quantity in ("operation_rows", "operation_columns", "operation_depth"):
        card.type(quantity, "200,000")
    drawn = card.find(".explorer-drawing >> nth=0").evaluate(JS.CURVES)
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
    assert "500 TB" in [text for text, _ in drawing.evaluate(JS.CURVES)["ticks"]]
    assert not drawing.evaluate(ON_PAGES.CARD_PROBLEMS, 0)


def test_the_ghost_of_lines(open_card):
    """Mutations: the ghost of the step before; lines as pixels, which a new scale would leave
    behind; a ghost over lines that stayed."""
    card = open_card("collective-cost", reduced_motion="no-preference")
    slide = (
        "(slider, position) => { slider.value = position; slider.dispatchEvent(new"
        " Event('input')); }"
    )
    drawing = card.find(".explorer-drawing >> nth=0")
    before = drawing.evaluate(JS.CURVES)
    stops = list(card.control("message_bytes").stops)
    for stop in (2**22, 2**16):
        card.slider("message_bytes").evaluate(slide, stops.index(stop))
    drawn = drawing.evaluate(JS.CURVES)
    assert drawn["lines"] == before["lines"] and drawn["ghost"].count("M") == 1, (
        "only the point moved"
    )
    numbers = [float(text) for text in re.findall(r"-?[\d.]+", drawn["ghost"])]
    assert numbers[:2] == before["point"] and drawn["point"] != before["point"]
    ranks = list(card.control("ranks").stops)
    card.slider("ranks").evaluate(slide, ranks.index(4096))
    drawn = drawing.evaluate(JS.CURVES)
    assert (
        drawn["ghost"].count("M") == len(before["lines"]) + 1 and drawn["lines"] != before["lines"]
    )
    card.slider("ranks").evaluate("slider => slider.dispatchEvent(new Event('change'))")
    until(
        card.page,
        "document.querySelector('#explorer-collective-cost .ghost:not(.halo)').getAttribute('d')"
        " === ''",
    )


EQUATIONS = """root => [...root.querySelectorAll(".explorer-all ol > li")].map(item =>
  [item.dataset.quantity, [...item.querySelectorAll(".explorer-numbers [data-quantity]")].map(
    place => [place.getAttribute("data-quantity"), place.textContent])])"""


@alike
def test_why(open_card, explorer_places, name):
    """Must catch: terms that do not add up; a term of zero bytes shown; a click that leaves another
    line open; all formulas open; numbers filled in only when it opens; a symbol unfilled; a link to
    no place; the equations twice when it is opened, closed and opened."""
    card = open_card(name, places=explorer_places)
    assert card.find(".explorer-equations").count() == 0, "nobody has asked for them yet"
    for _ in range(3):
        click(card.find(".explorer-why > summary"))
    card.find(".explorer-equations").wait_for()
    until(card.page, "document.querySelector('.explorer-why[open] .explorer-sum b').textContent")
    shown = card.spec.compute(card.spec.start())
    total, *terms = (quantity for quantity, _ in card.spec.sum)
    found = card.root.evaluate(JS.SUM)
    assert [quantity for quantity, *_ in found] == [total, *filter(shown.get, terms)]
    for quantity, own, value in found:
        assert own[0] == quantity and len(own) == len(set(own))
        assert value == format_as(shown[quantity], default_style(quantity))
    if terms:
        assert sum(shown[quantity] for quantity in terms) == pytest.approx(shown[total])
    assert not card.find(".explorer-all").evaluate("all => all.open")
    control = card.spec.controls[0]
    stop = control.stops[len(control.stops) // 2]
    card.slide(control.quantity, stop)
    shown = card.spec.compute(card.spec.move(card.spec.start(), control.quantity, stop))
    lines = card.root.evaluate(EQUATIONS)
    assert [quantity for quantity, _ in lines] == card.spec.explained
    for quantity, numbers in lines:
        assert numbers[0][0] == quantity
        assert {of for of, _ in numbers} == {quantity, *BOOK.formulas[quantity].needs}
        for of, text in numbers:
            if BOOK.find(of).whole:
                assert text == f"{shown[of]:,}"
            else:
                assert parse_number(text) == pytest.approx(shown[of], rel=0.005)
    links = card.find(".explorer-all li a").evaluate_all("links => links.map(link => link.href)")
    assert len(links) == len(card.spec.explained) + len(card.spec.inputs)
    for link in set(links):
        book = explorer_places[name].folder
        path, _, anchor = link.removeprefix(book.as_uri() + "/").partition("#")
        assert f'id="{anchor}"' in (book / path).read_text(encoding="utf-8")


# --- in every window ------------------------------------------------------------------------------


WINDOWS = [(320, 844), (700, 900), (768, 1024), (820, 900), (992, 900), (1100, 900), (1280, 720)]
MET_IN = {PHONE["width"], 768, 1280}
# Nine parts, among them CUDA and NCCL, and up to seven layouts that fit, in three rows of buttons.
TALLEST = {"rank-of-any-layout": 790}


@pytest.mark.one_in(3)  # each on one of both
@alike
@pytest.mark.parametrize("phone", [True, False], ids=["phone", "desk"])
def test_in_every_window(open_card, explorer_places, name, phone):
    """Must catch: a width that is measured once; a picture in a viewBox that is scaled; labels
    where lines end; options beside their name in any case; a slider of 20 px; controls first; a
    picture that scrolls away on a desk, the last picture pinned on a phone, groups that open beside
    one another."""
    how, chance = TOUCH if phone else {}, random.Random(name)
    card = open_card(name, places=explorer_places, **how)
    problems, controls = (
        f"root => ({ON_PAGES.CARD_PROBLEMS})(root, {int(phone)})",
        card.spec.controls,
    )
    ends = [
        move
        for control in controls
        for stop in (control.stops[0], control.stops[-1])
        for move in (("slide", control.quantity, stop), ("reset",))
    ]
    wander = [("choose", menu.kind, chance.choice(menu.names)) for menu in card.spec.menus]
    for control in chance.choices(controls, k=40):
        stops = control.stops
        stop = chance.choice([*stops, stops[0], stops[-1]])
        wander.append(("slide", control.quantity, stop))
    windows = [(PHONE["width"], PHONE["height"])] if phone else WINDOWS
    for width, height in windows:
        if width in MET_IN:
            card.page.set_viewport_size({"width": width, "height": height})
            card.page.evaluate(DRAWN)
            tall, found = card.root.evaluate(JS.OUT_OF_VIEW)
            assert found == [], (width, height)
            assert width < 1280 or tall <= TALLEST.get(name, 700), tall
    card.unfold()
    card.page.evaluate("scrollTo(0, 0)")
    first, *below = (
        card.find(part).bounding_box()
        for part in (".explorer-pinned", ".explorer-controls", ".explorer-menus")
    )
    assert not phone or first["y"] + first["height"] <= min(box["y"] for box in below) + 1
    for width, height in windows:
        card.page.set_viewport_size({"width": width, "height": height})
        until(card.page, AS_WIDE)
        wide = card.find(".explorer-drawing").first.evaluate("place => place.clientWidth")
        assert wide >= 320 or width < 700, width
        assert card.root.evaluate(problems) == [], width
        wanders = width == 1280 or width == 320 and name in WITH_CURVES
        moves = ends if phone else wander if wanders else []
        for move, (state, found) in zip(moves, card.follow(moves, problems)):
            assert found == [], (width, move, state[0])
        click(card.find(".explorer-reset"))
