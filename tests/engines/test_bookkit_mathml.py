"""Formulas become MathML that a browser draws as LaTeX would, or they are refused by name."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from small_books import ROOT, builder, real_book
from told import sample, sections

from bookkit.mathml import (
    CAPITAL_GREEK,
    CHILDREN,
    COMMANDS,
    FUNCTIONS,
    to_mathml,
)

# Elements whose content is text; no element may stand in them, and no text outside them.
TOKENS = {"mi", "mn", "mo", "mtext", "mspace"}


def inner(latex, display=False):
    return ElementTree.fromstring(to_mathml(latex, display))


def markup(latex, display=False):
    math = to_mathml(latex, display)
    opening = '<math display="block">' if display else "<math>"
    assert math.startswith(opening) and math.endswith("</math>")
    return math.removeprefix(opening).removesuffix("</math>")


def check(root):
    """Raise AssertionError if a tree is not MathML a browser takes as it is meant."""
    for element in root.iter():
        if element.tag in TOKENS:
            assert len(element) == 0, f"{element.tag} holds elements"
            assert element.tag in {"mi", "mspace"} or element.text, f"an empty {element.tag}"
        else:
            assert not (element.text or "").strip(), f"{element.text!r} loose in {element.tag}"
            assert len(element) == CHILDREN.get(element.tag, len(element)), (
                f"{len(element)} children of {element.tag}"
            )
        assert not (element.tail or "").strip()
        assert "\\" not in (element.text or "")


SHAPED = [latex for latex, _ in sections()["test_bookkit_mathml::test_shape"]]


@pytest.mark.parametrize("latex", SHAPED)
def test_shape(latex):
    """Mutation: wrap a script in nothing, so that ``munderover`` has four children."""
    for display in (False, True):
        check(inner(latex, display))


def test_every_known_name_is_drawn():
    """Mutation: a name in ``COMMANDS`` that the library does not know, such as ``frobnicate``."""
    for name in sorted(COMMANDS - {"frac", "sqrt"}):
        root = inner(rf"a \{name} x")
        check(root)
        assert len(root) == 3 and (name.isalpha() and root[1].text or root[1].tag == "mspace")
        assert root[1].text != name or name in FUNCTIONS
    assert len(CAPITAL_GREEK) == sum(name[0].isupper() for name in COMMANDS)


def test_alignment():
    """Mutation: translate ``aligned`` as it is: every cell would be centred; leave the ``-`` of
    ``&- c`` a sign."""
    table = inner(r"\begin{aligned} a &= b \\ &- c \end{aligned}", display=True)[0]
    assert table.tag == "mtable" and table.get("displaystyle") == "true"
    assert [[cell.get("columnalign") for cell in row] for row in table] == [["right", "left"]] * 2
    # the empty name stands for what is left of the sign
    assert [part.text for part in table[1][1]] == [None, "−", "c"]
    assert table[1][1][1].get("form") is None


@pytest.mark.slow
def test_the_registry_can_be_typeset():
    """Mutation: refuse a command that SymPy's printer writes for a formula of the book."""
    from coursekit.formulas import BOOK
    from coursekit.formulas.render import latex

    for name in BOOK.formulas:
        check(inner(latex(name), display=True))


PAGE = sample("formulas.md")


def test_in_a_page(tmp_path):
    """Mutation: register the renderer under another name (MathJax's markup appears); forget the
    number, its anchor."""
    more = dict(math_eqref_format="({number})", myst_enable_extensions=["amsmath", "dollarmath"])
    pages, warnings = builder(tmp_path, "mathml", **more)(index=PAGE)
    page = pages["index"]
    assert not warnings
    assert page.count("<math>") == 1 and page.count('<math display="block">') == 2
    assert "<mo>&lt;</mo>" in page and "MathJax" not in page and r"\(" not in page
    for label, number in (("equation-one", "1"), ("equation-two", "2")):
        assert f'href="#{label}">({number})</a>' in page
        assert f'id="{label}"' in page
    assert '<span class="eqno">(1)<a class="headerlink" href="#equation-one"' in page


WORKSHOP = {"PYTHONPATH": str(ROOT / "workshop")}  # of an extension that the configuration names


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_a_page_with_an_unknown_command_is_not_built_twice_over(tmp_path, times):
    """Mutation: log the refusal as information; at night: keep the environment after a failure, so
    that the second build, which has nothing to write, succeeds."""
    page = "# A page\n\nHere $a + \\frobnicate{b}$ fails.\n"
    book = real_book(tmp_path / "book", **{"chapters/page": page})
    for _ in range(times):
        command = [sys.executable, "-m", "bookkit", book, tmp_path / "html"]
        built = subprocess.run(command, capture_output=True, text=True, env=os.environ | WORKSHOP)
        assert built.returncode == 1
        assert "page.md:3" in built.stderr
        assert r"'\frobnicate{b}' in the formula  a + \frobnicate{b}" in built.stderr
        assert f"the book in {book} was not built" in built.stderr
