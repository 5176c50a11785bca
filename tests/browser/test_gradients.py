"""Recorded gradients beside a format, as a reader meets them: shares and words are Python's,
sliders, keys, a phone."""

import random

import pytest
from cards import CARDS, FOUND, GradientCard, build_cards, opener
from visit import click

from coursekit.topics.mixed_precision.formats import CARD_FORMATS
from coursekit.topics.mixed_precision.histogram import (
    HISTOGRAM_FORMATS,
    MOST_MICROBATCHES,
    MOST_SCALE,
    START,
    share_detail,
    share_sentence,
    shares,
)

pytestmark = pytest.mark.xdist_group("cards")  # one worker builds their small book


@pytest.fixture
def open_card(browser, card_pages):
    with opener(browser, card_pages["gradients"], GradientCard) as open_it:
        yield open_it


COMPUTED = """([formats, cases]) => cases.map(([name, first, counts, microbatches, scale]) => {
  const kind = BOOK.bits.format(formats.find(one => one[0] === name)), sizes = { first, counts };
  const found = BOOK.gradients.shares(sizes, kind, scale - microbatches);
  return [found.lost, found.fewer, found.overflow,
    BOOK.gradients.sentence(sizes, kind, microbatches, scale),
    BOOK.gradients.detail(sizes, kind, microbatches)];
})"""


def test_the_page_computes_what_python_does(card):
    """Mutations: a place counted as lost that rounds up; e4m3 with an exponent for infinities;
    commas that begin from the front; `none become`."""
    draw, cases, expected = random.Random(3), [], []
    for sizes in FOUND.values():
        for name in HISTOGRAM_FORMATS:
            for _ in range(8):
                microbatches = draw.randint(0, MOST_MICROBATCHES)
                scale, kind = draw.randint(0, MOST_SCALE), CARD_FORMATS[name]
                cases.append([name, sizes.first, list(sizes.counts), microbatches, scale])
                words = share_sentence(sizes, kind, microbatches, scale)
                said = [words, share_detail(sizes, kind, microbatches)]
                expected.append([*shares(sizes, kind, scale - microbatches), *said])
    formats = [
        [kind.name, kind.exponent_bits, kind.fraction_bits, int(kind.infinities)]
        for kind in map(CARD_FORMATS.get, HISTOGRAM_FORMATS)
    ]
    assert card.page.evaluate(COMPUTED, [formats, cases]) == expected


def test_a_reader_moves_the_scale(card):
    """Mutations: the scale divides; another recording than the one that is chosen; Reset leaves the
    format."""
    assert card.shows(**START)
    card.choose(scale=24)
    assert card.shows(**{**START, "scale": 24})
    chosen = dict(of="qkv", steps=0, kind="e4m3", microbatches=3, scale=7)
    card.choose(**chosen)
    assert card.shows(**chosen)
    assert card.find("#gradients-scale").get_attribute("aria-valuetext") == "2^7"
    assert card.find("#gradients-microbatches-value").text_content() == "8"
    click(card.find(".explorer-reset"))
    assert card.shows(**START)
    card.find("#gradients-scale").focus()
    card.page.keyboard.press("ArrowRight")
    assert card.shows(**{**START, "scale": START["scale"] + 1})


AREAS = """() => Object.fromEntries(["lost", "fewer", "kept"].map(name => [name,
  [...document.querySelectorAll(".gradients-bars." + name)]
    .map(path => (path.getAttribute("d").match(/M/g) || []).length)
    .reduce((one, other) => one + other)]))"""


def test_the_picture_colours_what_becomes_of_each_bar(card):
    """Mutations: all bars kept; a zone that stays when the format changes."""
    sizes = FOUND[START["of"], START["steps"]]
    card.choose(kind="bf16", microbatches=0)
    assert card.page.evaluate(AREAS) == {
        "lost": 0,
        "fewer": 0,
        "kept": sum(map(bool, sizes.counts)),
    }
    card.choose(kind="fp16", microbatches=11)
    places = [place - 11 for place, count in enumerate(sizes.counts, sizes.first) if count]
    found = card.page.evaluate(AREAS)
    assert found["lost"] == sum(place < -25 for place in places)
    assert found["fewer"] == sum(-25 <= place < -14 for place in places)
    assert found["kept"] == len(places) - found["lost"] - found["fewer"]


def test_without_a_recording_there_is_no_card(card_pages, tmp_path):
    """Mutation: an empty card, or an error, where nothing was recorded."""
    bare = build_cards(tmp_path, {"gradients": CARDS["gradients"]}, recordings=False)
    assert 'class="explorer gradients' in card_pages["gradients"].read_text(encoding="utf-8")
    assert 'class="explorer' not in bare["gradients"].read_text(encoding="utf-8")
