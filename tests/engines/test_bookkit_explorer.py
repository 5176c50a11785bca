"""The cards of explorers and of steps as they are written, before any script runs."""

import json
import re
from dataclasses import replace
from functools import cache
from html import escape
from html.parser import HTMLParser

import pytest
from small_books import builder
from told import from_told

from bookkit import frames, pairs, shards, stepper
from bookkit.explorer import card, marked_equation
from bookkit.mathml import to_mathml
from coursekit.formulas import BOOK
from coursekit.formulas.render import latex
from coursekit.show.card import unbroken
from coursekit.show.explorers import EXPLORERS
from coursekit.show.spec import Say, default_style
from coursekit.topics.collectives.steps import COLLECTIVES, stepper_steps
from coursekit.topics.kernels.steps import tile_steps
from coursekit.topics.long_sequences.steps import block_steps
from coursekit.topics.mixture_of_experts.steps import dispatch_steps
from coursekit.topics.tensor_parallelism.steps import FIRST_SHOWN, pair_steps
from coursekit.topics.zero.steps import shard_steps


@pytest.fixture(params=EXPLORERS.values(), ids=EXPLORERS)
def explorer(request):
    return request.param


@cache
def written(name):
    """The card of an explorer, with links to a sheet."""
    return card(EXPLORERS[name], "sheet.html#{}".format)


class Nesting(HTMLParser):
    """Fails where a tag is not closed, an id stands twice, or a label points at nothing."""

    EMPTY = {"input", "br", "mspace", "path"}

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.references = [], [], []
        self.feed(text)
        assert not self.open, f"not closed: {self.open}"
        assert len(self.ids) == len(set(self.ids)) and set(self.references) <= set(self.ids)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids += [attributes["id"]] if "id" in attributes else []
        names = {"for", "aria-labelledby", "aria-describedby"} & attributes.keys()
        self.references += [attributes[name] for name in names]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"


def test_the_card_is_whole(explorer):
    """Mutation: forget a closing tag, give two elements one id, or point a label at nothing."""
    Nesting(written(explorer.name))


def test_the_card_speaks_before_any_script(explorer):
    """Mutations: leave the sentence to the script, or the style of what "Why?" shows."""
    text = written(explorer.name)
    shown = explorer.compute(explorer.start())
    assert f'<p class="explorer-sentence">{escape(unbroken(explorer.say(shown)))}</p>' in text
    for name, cells in explorer.rows():
        numbers = "".join(f'<td class="number">{cell}</td>' for cell in cells)
        assert f'<tr><th scope="row">{escape(name)}</th>{numbers}</tr>' in text
    styles = dict(re.findall(r'<li data-quantity="(\w+)" data-style="([^"]+)">', text))
    assert styles == {name: default_style(name) for name in [*explorer.inputs, *explorer.explained]}
    assert text.count("<math") == len(styles)
    more = len(explorer.formulas) - len(explorer.explained)
    assert (f"{more} more formulas stand behind these" in text) == (more > 0)


def test_nothing_in_the_data_ends_the_script():
    """Mutation: write the data as JSON does, with `<` as it is."""
    text = card(replace(EXPLORERS["does-it-fit"], sentence=(Say("a < b </script> {layers}"),)))
    raw = re.search(r'<script type="application/json">(.*?)</script>', text, re.S)[1]
    assert json.loads(raw)["sentence"][0]["text"] == "a < b </script> {layers:count}"


@pytest.mark.parametrize("group", sorted({formula.group for formula in BOOK.formulas.values()}))
def test_every_symbol_of_an_equation_is_marked(group):
    """Mutation: replace symbols in the finished equation by text search (the h of h_kv would be
    taken for h)."""
    plain = lambda markup: re.sub(r"<[^>]*>", "", markup)
    for name, formula in BOOK.formulas.items():
        if formula.group == group:
            marked = marked_equation(name)
            assert set(re.findall(r'data-quantity="(\w+)"', marked)) == {name, *formula.needs}
            read = plain(to_mathml(latex(name), display=False))
            assert plain(marked) == read and "@" not in marked, name


def test_a_page_carries_what_it_uses(build):
    """Mutation: add the scripts to every page, that of curves or of the time axis where there are
    none, or with `defer`, so that nothing moves until the whole page is read."""
    pages, warnings = build(
        index="# One\n\n```{explorer} does-it-fit\n```\n\n[two](two.md) [three](three.md)\n",
        two="---\norphan: true\n---\n# Two\n\n```{explorer} fits-and-how-long\n```\n",
        three="---\norphan: true\n---\n# Three\n",
    )
    assert not warnings
    for page, here, elsewhere, drawing in (
        ("index", "does-it-fit", "fits-and-how-long", ["pictures.js"]),
        ("two", "fits-and-how-long", "does-it-fit", ["pictures.js", "timeline.js"]),
    ):
        head, _, body = pages[page].partition("<body")
        names = "formulas|svg|pictures|timeline|curves|explorer"
        scripts = re.findall(rf"<script[^>]*_static/(?:{names})\.js[^>]*>", head)
        found = [re.search(r"\w+\.js", script)[0] for script in scripts]
        assert found == ["formulas.js", "svg.js", *drawing, "explorer.js"]
        assert not re.search("defer|async|module", "".join(scripts))
        assert f'BOOK.define("{here}"' in body and elsewhere not in pages[page]
    assert "explorer" not in pages["three"] and "curves.js" not in "".join(pages.values())
    pages, _ = build(index="# One\n\n```{explorer} collective-cost\n```\n")
    found = re.findall(r"_static/(formulas|svg|pictures|curves|explorer)\.js", pages["index"])
    assert found == ["formulas", "svg", "curves", "explorer"]


def test_a_wrong_name_and_a_second_card_are_warnings(build):
    """Mutation: take the first explorer for an unknown one; two cards of one name share their
    ids."""
    card = "```{explorer} does-it-fit%s\n```\n\n"
    pages, warnings = build(index=f"# One\n\n{3 * card}" % ("t", "", ""))
    words = (
        "explorer: none is named 'does-it-fitt'; there are attention-tiles, bytes-per-parameter,"
    )
    assert f"index.md:3: WARNING: {words}" in warnings
    assert "index.md:9: WARNING: explorer: 'does-it-fit' is on this page already" in warnings
    assert pages["index"].count('id="explorer-does-it-fit"') == 1


# --- cards that go step by step -------------------------------------------------------------------

# (makes the card and its steps, of what, the step that is shown at first)
CARDS = {
    "shards": (shards.card, shard_steps, (), (1, 4, 1), 10),
    "pairs": (pairs.card, pair_steps, (), ("tensor", 4), FIRST_SHOWN),
    "tiles": (frames.card, tile_steps, ("online softmax",), (2,), 1),
    "dispatch": (frames.card, dispatch_steps, ("to the experts and back",), (1,), 1),
    "blocks": (frames.card, block_steps, ("blocks of attention",), (2,), 1),
    **{name: (stepper.card, stepper_steps, (name,), (name, 4), 1) for name in COLLECTIVES},
}


@pytest.mark.parametrize("name", CARDS)
def test_a_card_is_whole_and_speaks_before_any_script(name):
    """Must catch: a closing tag forgotten; two elements of one id; a label that points at nothing;
    sentence and table left to the script; a step left out of the table; a sentence of another step
    than the slider's."""
    card, steps_of, given, given_to_steps, first = CARDS[name]
    text, steps = card(*given, "steps.js"), steps_of(*given_to_steps)
    Nesting(text)
    text = text.replace("\N{NO-BREAK SPACE}", " ").replace("&#x27;", "'")
    assert f'value="{first}"' in text and f"{first} of {len(steps) - 1}" in text
    assert f'<p class="explorer-sentence">{steps[first].sentence}</p>' in text
    assert all(f"<tr><td>{step.sentence}</td><td>{step.detail}</td></tr>" in text for step in steps)


@from_told("kind, text, sentence")
def test_a_wrong_directive_is_a_warning(kind, text, sentence, tmp_path):
    """Must catch: an exception instead of a warning with page and line, or two cards with one
    id."""
    _, said = builder(tmp_path, kind)(index=f"# Page\n\n{text}\n")
    assert sentence in said and re.search(r"index\.md:\d+", said)
