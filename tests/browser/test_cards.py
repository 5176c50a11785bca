"""Every card that is no explorer, in the same ways: names and colours that axe asks for, a table
where there is no script and on paper, room for fingers and for words. (An explorer's card:
test_explorer.py.)"""

from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from cards import FOUND, STEPPED, GradientCard, StepperCard, opener
from night import at_night
from visit import DESKTOP, JS, PHONE, TOUCH, axe_findings, in_colours, on_paper

from coursekit.topics.mixed_precision import histogram
from coursekit.topics.mixed_precision.explorer import EXAMPLES, words_of_all
from coursekit.topics.mixed_precision.histogram import HISTOGRAM_FORMATS, MOST_SCALE

pytestmark = pytest.mark.xdist_group("cards")  # one worker builds their small book


class AnyCard(StepperCard):
    root_selector = ".explorer"


def bits():
    _, value, step = EXAMPLES[0]
    return [
        [name, words.bits, words.value, words.error, words.neighbours, words.sum]
        for name, words in words_of_all(value, step).items()
    ]


def gradients():
    return histogram.table_rows(FOUND[histogram.START["of"], histogram.START["steps"]])


def steps(name, *of):
    return lambda: [[step.sentence, step.detail] for step in STEPPED[name].steps(*of)]


# Card -> the rows of its table.
TABLES = {
    "bits": bits,
    "gradients": gradients,
    "pairs": steps("pairs", "tensor", 4),
    "shards": steps("shards", 1, 4, 1),
    "stepper": steps("stepper", "ring all-reduce", 4),
}


@dataclass
class Seen:
    """A card, looked at once in every way."""

    axe: dict  # colours -> findings
    phone: list  # what is wrong there
    heights: list  # of a card that goes step by step: how high it is at each step, in each window
    paper: list


@pytest.fixture(scope="module", params=TABLES)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def seen(browser, card_pages, name):
    with opener(browser, card_pages[name], AnyCard, color_scheme="dark", **TOUCH) as open_it:
        card = open_it()
        page = card.page
        problems = f"root => ({JS.CARD_PROBLEMS})(root, 1)"
        phone = card.root.evaluate(problems) + page.evaluate(JS.BEYOND)
        found = Seen({"dark": axe_findings(page)}, phone, [], [])
        in_colours(page, "light")
        found.axe["light"] = axe_findings(page, {})
        for window in (PHONE, DESKTOP) if name in STEPPED else ():
            page.set_viewport_size(window)
            card.until_as_wide()
            if window == PHONE:
                card.assert_picture_and_buttons_seen_together()
            last = int(card.find("[type=range]").get_attribute("max"))
            heights = [card.step(k) or card.root.bounding_box()["height"] for k in range(last + 1)]
            found.heights.append(heights)
        on_paper(page)
        there = card.find("table").is_visible() and card.find("svg").first.is_visible()
        found.paper = [] if there else ["no table below a picture"]
        found.paper += ["a switch"] * card.find("[role=switch]:visible").count()
        for script in (JS.EXPLORERS_AT_REST, JS.PAPER_PROBLEMS, JS.BEYOND):
            found.paper += page.evaluate(script)
        assert not page.watch.errors and not page.watch.failed
        return found


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_axe_finds_nothing_grave(seen, mode):
    """Must catch: a switch, a slider, a radio or a button without a name, a label of nothing; a
    bit, shares, a band or a text in a pale ink."""
    assert not seen.axe[mode]


def test_on_paper_the_table_stands_below_the_picture(seen):
    """Must catch: the table hidden in print; switches, sliders or buttons printed."""
    assert not seen.paper


def test_fingers_find_every_control(seen):
    """Must catch: controls first, not the picture; controls, sliders or bits of a desktop's height
    (a bit has 24 px, others 44); fp32 in one line."""
    assert not seen.phone


def test_nothing_below_jumps(seen):
    """Must catch: a card as high as its sentence."""
    assert all(len({*heights}) == 1 for heights in seen.heights)


def test_without_javascript_the_table_stands_there(browser, card_pages, name):
    """Must catch: a dead switch, slider or button; a table that is hidden in the style sheet until
    a script shows it."""
    with opener(browser, card_pages[name], AnyCard) as open_it:
        card = open_it(java_script_enabled=False)
        assert card.rows() == TABLES[name]() and card.find("table").is_visible()
        assert not card.find("[role=switch]:visible").count()
        assert not card.page.evaluate(JS.EXPLORERS_AT_REST) + card.page.evaluate(
            JS.NO_SCRIPT_PROBLEMS
        )


# What is shown on a phone, and at how many of its steps: most ranks, columns, chunks; fewest.
SHOWN = [
    ("stepper", ("ring all-reduce", 8)),
    ("stepper", ("broadcast", 2)),
    ("shards", (3, 8, 2)),
    ("pairs", ("gathered again", 8)),
    *at_night(
        ("stepper", ("all-to-all", 8)),
        ("stepper", ("barrier", 8)),
        ("stepper", ("tree all-reduce", 7)),
        ("shards", (3, 2, 2)),
        ("pairs", ("gathered again", 2)),
    ),
]


@pytest.fixture(scope="module")
def phones(browser, card_pages):
    """Card -> the card on a phone."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(opener(browser, card_pages[name], kind, **TOUCH))()
            for name, kind in {**STEPPED, "gradients": GradientCard}.items()
        }


@pytest.mark.parametrize(("name", "of"), SHOWN)
def test_words_keep_apart_on_a_phone(phones, name, of):
    """Must catch: a picture as wide as on a desktop; labels of 9 px; letters or heads that run into
    one another."""
    card = phones[name]
    card.choose(*of)
    for number in range(len(card.steps(*of))):
        card.step(number)
        assert card.root.evaluate(f"root => ({JS.CARD_PROBLEMS})(root, 1)") == [], number


def test_heads_of_zones_keep_apart_on_a_phone(phones):
    """Must catch: heads at the middle of their zones, however narrow."""
    for scale in range(0, MOST_SCALE + 1, 5):
        phones["gradients"].choose(kind=HISTOGRAM_FORMATS[scale // 5 % 4], scale=scale)
        found = phones["gradients"].root.evaluate(f"root => ({JS.CARD_PROBLEMS})(root, 1)")
        assert found == [], scale
