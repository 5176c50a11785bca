"""The explorers of the labs, as what a cell shows: where they begin, what they refuse, what is
stored. tests/browser/test_notebook.py opens them."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from html import escape

import pytest

from coursekit.show.embed import STORED
from coursekit.show.explorers import EXPLORERS
from coursekit.show.widgets import explorer

FIT = "does-it-fit"


def data_in(shown):
    """The data of an output's script."""
    card = json.loads(
        re.search(r"^const CARD = (.*);$", shown.html(), re.M)[1].replace("<\\/", "</")
    )
    return json.loads(re.search(r'<script type="application/json">(.*?)</script>', card)[1])


# ---------------------------------------------------------------- what is shown


@pytest.mark.parametrize("name", list(EXPLORERS))
def test_it_starts_as_the_page_does(name):
    """Mutations: the presets not applied at the start; a planner of a page in a lab; something
    that the network would be asked for; code of pictures that the explorer has not."""
    spec, shown = EXPLORERS[name], explorer(name)
    data, html = data_in(shown), shown.html()
    assert (data["values"], data["chosen"]) == (spec.start(), spec.chosen_at_start())
    assert shown.sentence == spec.say(spec.compute(spec.start()))
    assert html.startswith('<div id="card-') and escape(repr(shown)) in re.sub("</?b>", "", html)
    assert "parts" not in data and "measured" not in html.partition("const CARD")[2][:5]
    assert not re.findall(r"(?:src|href)=|@import|url\((?!#)|import\(|fetch\(", html)
    assert {*re.findall(r"https?://[\w./]+", html)} <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1998/Math/MathML",
    }
    assert ("BOOK.pictures.curves =" in html) == any(one.kind == "curves" for one in spec.pictures)
    assert len(html) < 180_000


def test_presets_come_first_and_quantities_win():
    """Mutations: quantities without a control (the rate, the memory) not taken from the start; a
    preset over the quantity beside it; the first preset's ratios kept."""
    own = dict(gpus=1, data_parallel=1, gpus_per_copy=1, flops_per_second=1e11)
    shown = explorer("fits-and-how-long", gpu="T4", **own, gpu_memory_bytes=10**10)
    assert shown.shown["achieved_flops_per_second"] == 1e11 * 0.4
    data = data_in(shown)
    assert (data["chosen"]["gpu"], data["values"]["gpu_memory_bytes"]) == ("T4", 10**10)
    fit = data_in(explorer(FIT, model="GPT-2 1.5B", layers=3))
    assert fit["values"]["hidden"] == 1600 and fit["values"]["layers"] == 3


def test_an_explorer_of_ones_own_and_numbers_of_numpy():
    """Must catch: an Explorer refused; a number that JSON does not know."""
    from numpy import float32, int64

    own = replace(EXPLORERS[FIT], title="Mine: a < b")
    shown = explorer(own, measured={"parameter_bytes_per_gpu": float32(8)}, layers=int64(3))
    data = data_in(shown)
    assert data["values"]["layers"] == 3 and repr(shown).startswith("Mine: a < b ")
    assert data["pictures"][0]["measured"] == {"parameter_bytes_per_gpu": 8}
    assert "<b>Mine: a &lt; b</b>" in shown.html()


def test_a_choice_has_a_button_for_its_own_start():
    """Mutations: the value of a start that is no option lost; a schedule of other sizes than the
    page's, which then has no list to play."""
    card = explorer("where-the-memory-goes", dropout=0.25, accumulation_steps=2).html()
    words = re.findall(r"<span>(off|on|\d+%)</span>", card.replace("<\\/", "</"))
    assert words == ["off", "on", "25%"]
    picture = data_in(explorer("schedule", pipeline_parallel=3, microbatches=5))["pictures"][0]
    assert "1,3,5,1" in picture["lists"] and "1,4,8,1" in picture["lists"]


# ---------------------------------------------------------------- as text, and in a lab


def test_as_text_it_is_the_sentence():
    """Mutations: the text of an object, or the page, in every stored notebook; no text beside the
    HTML, for who runs no script."""
    fit = explorer(FIT)
    assert repr(fit) == f"Does it fit? {fit.sentence}"
    bundle = fit._repr_mimebundle_()
    assert {*bundle} == {STORED, "text/html", "text/plain"} and bundle[STORED] == {"name": FIT}
    assert repr(fit).startswith(bundle["text/plain"][:-1]) and len(bundle["text/plain"]) == 111


@pytest.mark.slow
def test_an_explorer_needs_nothing_that_is_slow_to_load():
    """Must catch: torch, which the book is built without; SymPy before an explorer is shown; what
    only the book's build has, when it is."""
    code = """
import sys
from coursekit.show.widgets import explorer
shown = explorer("zero")
slow = {"torch", "numpy", "plotly", "IPython", "rjsmin", "latex2mathml", "bookkit"}
assert not {*slow, "sympy"} & {*sys.modules}
shown.html()
assert not slow & {*sys.modules}
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
