"""The explorer's card as it is written: before any script runs, and what the script finds in it."""

import json
import re
from dataclasses import replace
from functools import cache
from html import escape
from html.parser import HTMLParser

import pytest

from bookkit.explorer import card, marked_equation
from bookkit.mathml import to_mathml
from coursekit.formulas import BOOK
from coursekit.formulas.render import latex
from coursekit.show.card import unbroken
from coursekit.show.explorers import EXPLORERS
from coursekit.show.spec import Say, default_style


@pytest.fixture(params=EXPLORERS.values(), ids=EXPLORERS)
def explorer(request):
    return request.param


@cache
def written(name):
    """The card of an explorer, with links to a sheet."""
    return card(EXPLORERS[name], "sheet.html#{}".format)


class Nesting(HTMLParser):
    """Fails where a tag is not closed, and collects ids and what refers to them."""

    EMPTY = {"input", "br", "mspace"}

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.references = [], [], []
        self.feed(text)
        assert not self.open, f"not closed: {self.open}"

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
    found = Nesting(written(explorer.name))
    assert len(found.ids) == len(set(found.ids)) and set(found.references) <= set(found.ids)


def test_the_card_speaks_before_any_script(explorer):
    """Mutation: leave the sentence to the script."""
    text = written(explorer.name)
    shown = explorer.compute(explorer.start())
    assert f'<p class="explorer-sentence">{escape(unbroken(explorer.say(shown)))}</p>' in text
    for name, cells in explorer.rows():
        numbers = "".join(f'<td class="number">{cell}</td>' for cell in cells)
        assert f'<tr><th scope="row">{escape(name)}</th>{numbers}</tr>' in text
    assert text.count("<math") == len(explorer.explained) + len(explorer.inputs)
    more = len(explorer.formulas) - len(explorer.explained)
    assert (f"{more} more formulas stand behind these" in text) == (more > 0)


def test_the_scripts_data_are_the_explorers(explorer):
    """Mutations: sort the values of a preset; leave the style of what "Why?" shows to the
    script."""
    text = written(explorer.name)
    raw = re.search(r'<script type="application/json">(.*?)</script>', text, re.S)[1]
    data = json.loads(raw)
    begins = (explorer.start(), explorer.chosen_at_start(), explorer.inputs)
    assert tuple(data[name] for name in ("values", "chosen", "inputs")) == begins
    styles = dict(re.findall(r'<li data-quantity="(\w+)" data-style="([^"]+)">', text))
    assert styles == {name: default_style(name) for name in [*explorer.inputs, *explorer.explained]}
    for control, given in zip(explorer.controls, data["controls"], strict=True):
        stops = given["stops"]
        if isinstance(stops, dict):
            first, last = stops["range"]
            stops = [*range(first, last + 1)]
        assert list(control.stops) == stops
    for menu, given in zip(explorer.menus, data["menus"], strict=True):
        assert [*given["presets"]] == list(menu.names)
        for name, values in given["presets"].items():
            preset = dict(zip(given["quantities"], values, strict=True))
            assert preset == explorer.preset(menu.kind, name)
    pieces = [piece["text"] for piece in data["sentence"] + data["detail"]]
    assert not re.search(r"\{\w+\}", json.dumps(pieces)), "a quantity without a style"


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
