"""A number in six formats as a reader meets it: what the page computes is Python's, typing, turning
bits, keys, a phone."""

import math
import random

import pytest
from cards import Card, opener
from visit import TOUCH, click

from coursekit.topics.mixed_precision.explorer import EXAMPLES, format_words, sentence, words_of_all
from coursekit.topics.mixed_precision.formats import CARD_FORMATS

pytestmark = pytest.mark.xdist_group("cards")  # one worker builds their small book
NAMES = tuple(CARD_FORMATS)


class Bits(Card):
    root_selector = ".explorer.bits"

    def type(self, value, step=None):
        self.find("#bits-value").fill(value)
        if step is not None:
            self.find("#bits-step").fill(step)

    def turn(self, name, place):
        click(self.find(f"[data-format={name}] [role=switch]").nth(place))

    def bits(self, name):
        switches = self.find(f"[data-format={name}] [role=switch]")
        return "".join(
            switches.evaluate_all("all => all.map(one => one.ariaChecked === 'true' ? '1' : '0')")
        )

    def shows(self, value, step):
        """Whether every row and the sentence are Python's for this number."""
        for name, words in words_of_all(value, step).items():
            assert self.bits(name) == words.bits.replace(" ", ""), name
            for kind in ("value", "error", "neighbours", "sum"):
                text = self.find(f"[data-format={name}] .bits-{kind}").text_content()
                assert text == getattr(words, kind), (name, kind)
        assert self.find(".explorer-sentence").text_content() == sentence(value, step)
        return True


@pytest.fixture
def open_card(browser, card_pages):
    with opener(browser, card_pages["bits"], Bits) as open_it:
        yield open_it


# --- what the page computes -----------------------------------------------------------------------

ROWS = """cases => {
  const kinds = Object.fromEntries(%s.map(one => [one[0], BOOK.bits.format(one)]));
  const named = { nan: NaN, inf: Infinity, "-inf": -Infinity, "-0.0": -0 };
  const number = text => named[text] ?? +text;
  return cases.map(([name, pattern, given, step]) => {
    const shown = BOOK.bits.row(kinds[name], pattern, number(given), number(step));
    return [BOOK.bits.encode(kinds[name], number(given)), shown.bits, shown.value,
      shown.significand, shown.power, shown.error, shown.neighbours, shown.sum, shown.moves];
  });
}"""


def described(name, pattern, given, step):
    kind = CARD_FORMATS[name]
    return [kind.encode(given), *format_words(kind, pattern, given, step)]


def compare(page, cases):
    formats = [
        [kind.name, kind.exponent_bits, kind.fraction_bits, int(kind.infinities)]
        for kind in CARD_FORMATS.values()
    ]
    sent = [[name, pattern, repr(given), repr(step)] for name, pattern, given, step in cases]
    found = page.evaluate(ROWS % formats, sent)
    for case, theirs in zip(cases, found):
        assert described(*case) == theirs, case


def test_the_page_computes_what_python_does(card):
    """Mutations: Math.round for halves; Math.log2 without a look at the power beside it; a
    subnormal number with an implied one; toPrecision, which writes 0.00001; a step that is not
    rounded before it is added."""
    draw = random.Random(7)
    steps = (0.0, 1e-8, -0.001, 1.0, 3e4, 1e-40, math.inf)
    cases = []
    for name, kind in CARD_FORMATS.items():
        patterns = (
            range(2**kind.bits)
            if kind.bits == 8
            else [draw.randrange(2**kind.bits) for _ in range(150)]
        )
        ends = [0, 1, kind.sign, kind.sign + 1, kind.largest_pattern, kind.largest_pattern + 1]
        for pattern in (*patterns, *ends):
            value = kind.decode(pattern)
            cases.append((name, pattern, value, draw.choice(steps)))
            below, above = kind.neighbours(pattern)
            if math.isfinite(above) and math.isfinite(below):
                middle = (value + above) / 2
                for given in (middle, math.nextafter(middle, 0.0), value * (1 + 2**-50)):
                    cases.append((name, kind.encode(given), given, draw.choice(steps)))
    for power in range(-155, 131):
        for given in (2.0**power, math.nextafter(2.0**power, 0.0), -3.3 * 2.0**power):
            name = draw.choice(NAMES)
            cases.append((name, CARD_FORMATS[name].encode(given), given, draw.choice(steps)))
    for given in (math.nan, math.inf, -math.inf, -0.0, 1e308, 5e-324):
        cases += [(name, kind.encode(given), given, 1.0) for name, kind in CARD_FORMATS.items()]
    compare(card.page, cases)
    assert len(cases) > 4000


# --- what a reader does ---------------------------------------------------------------------------


def test_it_begins_with_the_first_example_and_shows_the_others(card):
    """Mutations: the menu's numbers of another example; Reset leaves the step."""
    assert card.shows(*EXAMPLES[0][1:])
    for place, (_, value, step) in enumerate(EXAMPLES):
        card.find("select").select_option(str(place))
        assert card.shows(value, step)
    click(card.find(".explorer-reset"))
    assert card.shows(*EXAMPLES[0][1:]) and card.find("select").input_value() == "0"


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("text", "value"),
    [("65,520", 65520.0), ("2^-24", 2.0**-24), ("-3e-5", -3e-5), ("inf", math.inf), (".5", 0.5)],
)
def test_typing(card, text, value):
    """Mutation: a comma read as the end of the number."""
    card.type(text, "0.25")
    assert card.shows(value, 0.25) and card.find("select").input_value() == ""


def test_what_is_no_number_is_refused_and_says_so(card):
    """Mutation: the last digits thrown away instead of an answer."""
    for text in ("1.2.3", "one", "", "0x10", "1e", "constructor"):
        card.type(text)
        assert card.find("#bits-value").get_attribute("aria-invalid") == "true"
        assert "is no number" in card.find("#bits-value-error").text_content()
        assert card.find(".explorer-sentence").text_content() == sentence(*EXAMPLES[0][1:])
    card.type("2")
    assert card.find("#bits-value").get_attribute("aria-invalid") == "false"
    assert card.shows(2.0, EXAMPLES[0][2])


def test_turning_a_bit_is_another_number_in_all_formats(card):
    """Mutations: bits counted from the other end; the number box left as it was; the other formats
    left as they were."""
    card.type("1", "0")
    card.turn("fp16", 15)  # the last bit of the fraction
    assert card.shows(1 + 2.0**-10, 0.0)
    assert card.find("#bits-value").input_value() == "1.0009765625"
    card.turn("bf16", 0)
    assert card.shows(CARD_FORMATS["bf16"].nearest(-1.0), 0.0)
    card.turn("e4m3", 1)
    value = CARD_FORMATS["e4m3"].decode(CARD_FORMATS["e4m3"].encode(-1.0) + 2**6)
    assert card.shows(value, 0.0)


def test_a_nan_keeps_the_bits_that_were_turned(card):
    """Mutation: a NaN shown with the bits that its name would get."""
    card.type("inf", "0")
    card.turn("fp16", 15)
    assert card.bits("fp16") == "0111110000000001"
    assert card.find("#bits-value").input_value() == "NaN"
    assert card.find("[data-format=fp16] .bits-neighbours").text_content() == "not a number"


def test_keys(card):
    """Mutations: every bit a stop of Tab; space and Enter exchanged for the arrows."""
    card.find("select").focus()
    for name in NAMES:
        card.page.keyboard.press("Tab")
        inside = card.page.evaluate("document.activeElement.closest('.bits-row')?.dataset.format")
        assert inside == name
    card.find("[data-format=bf16] [role=switch]").first.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
        card.page.keyboard.press(key)
    before = card.bits("bf16")
    card.page.keyboard.press("Space")
    after = card.bits("bf16")
    assert [place for place in range(16) if before[place] != after[place]] == [1]
    card.page.keyboard.press("End")
    card.page.keyboard.press("Enter")
    assert card.bits("bf16")[-1] != after[-1]
    card.type("0.75", "1")
    card.find("#bits-value").focus()
    card.page.keyboard.press("ArrowUp")
    assert card.shows(1.5, 1.0)


def test_the_picture_has_the_number_where_it_is(card):
    """Mutations: the line at the exponent of another number; subnormal sizes left out."""

    def places():
        return card.page.evaluate(
            """() => {
              const all = selector => [...document.querySelectorAll(".bits svg " + selector)];
              const at = selector => all(selector).map(node => {
                const box = node.getBBox(); return [box.x, box.x + box.width]; });
              return [at(".bits-normal"), at(".bits-subnormal"), at(".bits-number")]; }"""
        )

    half = NAMES.index("fp16")
    card.type("1e-9")
    normal, subnormal, [[line, _]] = places()
    assert line < subnormal[half][0] and subnormal[0][0] < line
    card.type("2e-6")
    normal, subnormal, [[line, _]] = places()
    assert subnormal[half][0] < line < subnormal[half][1] == pytest.approx(normal[half][0])
    card.type("3e4")
    normal, _, [[line, _]] = places()
    assert normal[half][0] < line < normal[half][1]
    assert normal[NAMES.index("e4m3")][1] < line


# --- everyone, everywhere -------------------------------------------------------------------------


def test_a_finger_turns_a_bit(open_card):
    """Must catch: bits that answer a pointer alone."""
    card = open_card(**TOUCH)
    card.find("[data-format=fp16] [role=switch]").nth(3).tap()
    assert card.bits("fp16")[3] != words_of_all(*EXAMPLES[0][1:])["fp16"].bits.replace(" ", "")[3]
