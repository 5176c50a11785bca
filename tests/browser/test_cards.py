"""Every card that is no explorer, in the same ways: names and colours that axe asks for, a table
where there is no script and on paper, room for fingers. (An explorer's card: test_explorer.py.)"""

import pytest
from cards import ROOT, StepperCard, opener
from visit import (
    BEYOND,
    EXPLORERS_AT_REST,
    NO_SCRIPT_PROBLEMS,
    PAPER_PROBLEMS,
    PHONE,
    axe_findings,
    on_paper,
)

from coursekit.recordings.recordings import read_all
from coursekit.topics.collectives.steps import stepper_steps
from coursekit.topics.mixed_precision import histogram
from coursekit.topics.mixed_precision.explorer import EXAMPLES, words_of_all
from coursekit.topics.tensor_parallelism.steps import pair_steps
from coursekit.topics.zero.steps import shard_steps


class AnyCard(StepperCard):
    root_selector = ".explorer"


def bits():
    _, value, step = EXAMPLES[0]
    return [
        [name, words.bits, words.value, words.error, words.neighbours, words.sum]
        for name, words in words_of_all(value, step).items()
    ]


def gradients():
    found, _ = histogram.recorded_sizes(read_all(ROOT / "measured"))
    return histogram.table_rows(found[histogram.START["of"], histogram.START["steps"]])


def steps(made):
    return [[step.sentence, step.detail] for step in made]


# Card -> the rows of its table.
TABLES = {
    "bits": bits,
    "gradients": gradients,
    "pairs": lambda: steps(pair_steps("tensor", 4)),
    "shards": lambda: steps(shard_steps(1, 4, 1)),
    "stepper": lambda: steps(stepper_steps("ring all-reduce", 4)),
}
STEPPED = ("pairs", "shards", "stepper")


@pytest.fixture(params=TABLES)
def name(request):
    return request.param


@pytest.fixture
def open_card(browser, card_pages, name):
    with opener(browser, card_pages[name], AnyCard) as open_it:
        yield open_it


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_axe_finds_nothing_grave(open_card, mode):
    """Must catch: a switch, a slider, a radio or a button without a name, a label of nothing; a
    bit, shares, a band or a text in a pale ink."""
    assert not axe_findings(open_card(color_scheme=mode).page)


def test_without_javascript_the_table_stands_there(open_card, name):
    """Must catch: a dead switch, slider or button; a table that is hidden in the style sheet until
    a script shows it."""
    card = open_card(java_script_enabled=False)
    assert card.rows() == TABLES[name]() and card.find("table").is_visible()
    assert not card.find("[role=switch]:visible").count()
    assert not card.page.evaluate(EXPLORERS_AT_REST) + card.page.evaluate(NO_SCRIPT_PROBLEMS)


def test_on_paper_the_table_stands_below_the_picture(card):
    """Must catch: the table hidden in print; switches, sliders or buttons printed."""
    on_paper(card.page)
    assert card.find("table").is_visible() and card.find("svg").first.is_visible()
    assert not card.find("[role=switch]:visible").count()
    assert not card.page.evaluate(EXPLORERS_AT_REST)
    assert not card.page.evaluate(PAPER_PROBLEMS) + card.page.evaluate(BEYOND)


@pytest.mark.parametrize("name", STEPPED, indirect=True)
def test_nothing_below_jumps(open_card):
    """Must catch: a card as high as its sentence."""
    for card in (open_card(), open_card(viewport=PHONE)):
        heights = set()
        for number in range(1 + int(card.find("[type=range]").get_attribute("max"))):
            card.step(number)
            heights.add(card.root.bounding_box()["height"])
        assert len(heights) == 1


def test_fingers_find_every_control(open_card, name):
    """On a phone: the picture, then the buttons, seen together, then words and menus, in a card
    that goes step by step; a bit has 24 px, as WCAG asks for, and other controls have 44.

    Must catch: controls first; controls, sliders or bits of a desktop's height; fp32 in one
    line."""
    card = open_card(viewport=PHONE, has_touch=True, is_mobile=True)
    assert not card.page.evaluate(BEYOND)
    if name in STEPPED:
        card.assert_picture_and_buttons_seen_together()
    for control in card.find(":is(input, select, button, [role=switch]):visible").all():
        box, html = control.bounding_box(), control.evaluate("node => node.outerHTML.slice(0, 80)")
        height, width = (24, 24) if 'role="switch"' in html else (44, 40)
        assert box["height"] >= height and box["width"] >= width, html
        assert box["x"] >= 0 and box["x"] + box["width"] <= PHONE["width"], html
