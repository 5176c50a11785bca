"""Formulas become MathML that a browser draws as LaTeX would, or they are refused by name."""

import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest

from bookkit.build import build_book
from bookkit.mathml import (
    ACCENTS,
    BRACES,
    CAPITAL_GREEK,
    GREEK,
    LARGE,
    OPERATORS,
    SYMBOLS,
    UnsupportedMath,
    to_mathml,
)

# Elements of MathML that take a fixed number of children; with another number a browser draws an
# error or nothing.
CHILDREN = {
    "mfrac": 2,
    "msub": 2,
    "msup": 2,
    "msubsup": 3,
    "munder": 2,
    "mover": 2,
    "munderover": 3,
    "mroot": 2,
}
# Elements whose content is text; no element may stand in them, and no text outside them.
TOKENS = {"mi", "mn", "mo", "mtext", "mspace"}


def inner(latex, display=False):
    return ElementTree.fromstring(to_mathml(latex, display))


def markup(latex):
    return to_mathml(latex, display=False).removeprefix("<math>").removesuffix("</math>")


def check(root):
    """Raise AssertionError if a tree is not MathML a browser takes as it is meant."""
    for element in root.iter():
        if element.tag in TOKENS:
            assert len(element) == 0, f"{element.tag} holds elements"
            assert element.tag == "mspace" or element.text, f"an empty {element.tag}"
        else:
            assert not (element.text or "").strip(), f"{element.text!r} loose in {element.tag}"
            assert len(element) == CHILDREN.get(element.tag, len(element)), (
                f"{len(element)} children of {element.tag}"
            )
        assert not (element.tail or "").strip()
        assert "\\" not in (element.text or "")


WRITTEN = {
    r"16\,\Psi": '<mn>16</mn><mspace width="0.1667em"/><mi mathvariant="normal">Ψ</mi>',
    r"a_i": "<msub><mi>a</mi><mi>i</mi></msub>",
    r"x^10": "<msup><mi>x</mi><mn>1</mn></msup><mn>0</mn>",
    r"x'^2": "<msup><mi>x</mi><mrow><mo>′</mo><mn>2</mn></mrow></msup>",
    r"a = -b": '<mi>a</mi><mo>=</mo><mo form="prefix">−</mo><mi>b</mi>',
    r"a - b": "<mi>a</mi><mo>−</mo><mi>b</mi>",
    r"\left(a\right) + b": (
        '<mrow><mo form="prefix" fence="true" stretchy="true" symmetric="true">(</mo><mi>a</mi>'
        '<mo form="postfix" fence="true" stretchy="true" symmetric="true">)</mo></mrow>'
        "<mo>+</mo><mi>b</mi>"
    ),
    r"(-b)": (
        '<mo form="prefix" stretchy="false">(</mo><mo form="prefix">−</mo><mi>b</mi>'
        '<mo form="postfix" stretchy="false">)</mo>'
    ),
    r"\mathrm{GiB}": "<mi>GiB</mi>",
    r"\mathrm{d}": '<mi mathvariant="normal">d</mi>',
    r"\mathtt{\text{zero\_stage}}": '<mi class="math-code">zero_stage</mi>',
    r"\text{if } x": "<mtext>if\N{NO-BREAK SPACE}</mtext><mi>x</mi>",
    r"a < b": "<mi>a</mi><mo>&lt;</mo><mi>b</mi>",
    r"1{,}024.5": "<mn>1,024.5</mn>",
    r"\log n": '<mi>log</mi><mspace width="0.1667em"/><mi>n</mi>',
    r"\log(n)": (
        '<mi>log</mi><mo form="prefix" stretchy="false">(</mo><mi>n</mi>'
        '<mo form="postfix" stretchy="false">)</mo>'
    ),
    r"\mathbb{R}": "<mi>ℝ</mi>",
    r"\mathcal{L}": "<mi>ℒ</mi>",
    r"\mathbf{W}": "<mi>𝐖</mi>",
    r"50\%": '<mn>50</mn><mi mathvariant="normal">%</mi>',
}


@pytest.mark.parametrize("latex", WRITTEN)
def test_markup(latex):
    """Mutation: let a sign after ``=`` or ``(`` be an operation, or one after ``\\right)`` a sign;
    take the whole number as the exponent of ``x^10``; italicise ``\\mathrm{d}``; leave ``<``
    unescaped; space ``log(n)`` like ``log n``."""
    assert markup(latex) == WRITTEN[latex]


SHAPED = [
    r"\sum_{i=1}^{n} a_i",
    r"\prod_{i} b_i",
    r"\max_{0 \le i < p} t_i",
    r"\int_0^1 f",
    r"\lim_{n \to \infty} a_n",
    r"\frac{a+b}{c}",
    r"\dfrac12",
    r"\tfrac{1}{2}",
    r"\binom{n}{k}",
    r"\sqrt{x}",
    r"\sqrt[3]{x+1}",
    r"\underbrace{2\Psi + 2\Psi}_{\text{bf16}}",
    r"\overbrace{a}^{b}",
    r"\overline{x y}",
    r"\hat{x}",
    r"\bar{x}_i^2",
    r"\left\lceil \frac{V}{128\,t} \right\rceil",
    r"\left\lfloor x \right\rfloor",
    r"\left. x \right|_{x=0}",
    r"\left( a \middle| b \right)",
    r"\bigl( a \bigr)",
    r"\Big[ x \Big]",
    r"|x|",
    r"\|x\|",
    r"\{1, 2\}",
    r"n!",
    r"\begin{cases} 1 & \text{if } z = 0 \\ 2 & \text{otherwise} \end{cases}",
    r"\begin{aligned} a &= b \\ &= c \end{aligned}",
    r"\begin{pmatrix} 1 & 0 \\ 0 & 1 \end{pmatrix}",
    r"\begin{array}{lr} a & b \end{array}",
    r"\begin{equation} a = b \end{equation}",
    r"\begin{align*} a &= b \\ c &= d \end{align*}",
    r"a = b \\ c = d",
    r"a \not= b",
    r"x''",
    r"{}_a b",
    r"\operatorname{ceil}(x)",
    r"\operatorname*{argmax}_x f",
    r"\displaystyle \frac{1}{2}",
    r"\overset{!}{=}",
    r"2(d-1)/d",
    r"a\;b\:c\!d\quad e\qquad f~g\ h",
    r"10^{-12}",
]


@pytest.mark.parametrize("latex", SHAPED)
def test_shape(latex):
    """Mutation: give ``munderover`` its scripts unwrapped, close no ``mrow``, write ``\\quad`` as
    an empty ``mtext``."""
    for display in (False, True):
        check(inner(latex, display))


def test_every_known_name_is_drawn():
    """Mutation: put an empty string, or two commands in one, into a table of commands."""
    for name in [*GREEK, *CAPITAL_GREEK, *SYMBOLS, *OPERATORS, *LARGE]:
        root = inner("\\" + name + " x")
        check(root)
        assert len(root) == 2 and root[0].text
    for name in [*ACCENTS, *BRACES]:
        check(inner(rf"\{name}{{x}}"))


def test_limits_of_sums_stand_below_and_above():
    """Mutation: use ``msubsup`` for ``\\sum``: in a display the limits would stand beside it."""
    assert inner(r"\sum_{i}^{n} a")[0].tag == "munderover"
    assert inner(r"x_i^n")[0].tag == "msubsup"


def test_alignment():
    """Mutation: drop the class by which the style sheet aligns; leave the ``-`` of ``&- c`` a
    sign."""
    table = inner(r"\begin{aligned} a &= b \\ &- c \end{aligned}", display=True)[0]
    assert table.get("class") == "aligned" and table.get("displaystyle") == "true"
    assert [[len(cell) for cell in row] for row in table] == [[1, 2], [0, 2]]
    assert table[1][1][0].get("form") == "infix"
    assert inner(r"a = b \\ c = d", display=True)[0].get("class") == "gathered"


REFUSED = {
    r"\foo{x}": r"the command '\foo'",
    r"\frac{a}": "something is missing at the end",
    r"\frac{a}{b": "'}' is missing",
    r"x^{a": "'}' is missing",
    r"a}": "'}' where it means nothing",
    r"x_1_2": "two subscripts",
    r"x^1^2": "two superscripts",
    r"\left( a": r"'\right' is missing",
    r"a \right)": r"'\right' where it means nothing",
    r"\left x \right)": "'x' as a delimiter",
    r"a & b": "'&' outside an alignment",
    r"\begin{aligned} a": r"'\end' is missing",
    r"\begin{aligned} a \end{cases}": r"'\begin{aligned}' closed by '\end{cases}'",
    r"\begin{tikzpicture} \end{tikzpicture}": "the environment 'tikzpicture'",
    r"\text{a $x$ b}": "'a $x$ b' inside text",
    r"\mathbb{+}": r"'+' in '\mathbb'",
    r"\not\sum": r"'\not\sum'",
    r"a % b": "the character '%'",
    r"a # b": "the character '#'",
    r"": "nothing",
    r"\label{x} a": r"the command '\label'",
    r"\tag{1} a": r"the command '\tag'",
    r"\mathrm{}": r"nothing in '\mathrm'",
}


@pytest.mark.parametrize("latex", REFUSED)
def test_refusals_name_what_and_where(latex):
    """Mutation: pass an unknown command through as an identifier; end a group at the formula's end;
    merge scripts."""
    with pytest.raises(UnsupportedMath) as refusal:
        to_mathml(latex, display=True)
    assert str(refusal.value).startswith(REFUSED[latex])
    assert " ".join(latex.split()) in str(refusal.value)


def test_the_registry_can_be_typeset():
    """Mutation: refuse a command that SymPy's printer writes for a formula of the book."""
    from shardlab.formulas import BOOK
    from shardlab.formulas.render import latex

    for name in BOOK.formulas:
        check(inner(latex(name), display=True))


PAGE = r"""# A page

Inline $\Psi < 3$, and in {eq}`one` and {eq}`two`:

```{math}
:label: one
a = b
```

$$
c &= d \\
  &= e
$$ (two)

\begin{align*}
f &= g \\
h &= i
\end{align*}
"""


def write_book(folder, page):
    folder.mkdir()
    (folder / "_config.yml").write_text(
        "title: Tiny\nsphinx:\n  recursive_update: true\n  config:\n    extensions: [myst_nb,"
        " jupyter_book, sphinx_external_toc, sphinx_design, sphinx_book_theme, bookkit]\n   "
        " html_math_renderer: mathml\n    math_eqref_format: '({number})'\n    nb_ipywidgets_js:"
        " {}\nparse:\n  myst_enable_extensions: [amsmath, dollarmath]\nlatex:\n "
        " use_jupyterbook_latex: false\n"
    )
    (folder / "_toc.yml").write_text("format: jb-book\nroot: index\n")
    (folder / "index.md").write_text(page)
    return folder


def test_in_a_page(tmp_path):
    """Mutation: register the renderer under another name (MathJax's markup appears); forget the
    number, its anchor."""
    build_book(write_book(tmp_path / "book", PAGE), tmp_path / "html")
    page = (tmp_path / "html" / "index.html").read_text()
    assert page.count("<math>") == 1 and page.count('<math display="block">') == 3
    assert "<mo>&lt;</mo>" in page and "MathJax" not in page and r"\(" not in page
    for label, number in (("equation-one", "1"), ("equation-two", "2")):
        assert f'href="#{label}">({number})</a>' in page
        assert f'id="{label}"' in page
    assert '<span class="eqno">(1)<a class="headerlink" href="#equation-one"' in page


def test_a_page_with_an_unknown_command_is_not_built_twice_over(tmp_path):
    """Mutation: log the refusal as information; keep the environment after a failure, so that the
    second build, which has nothing to write, succeeds."""
    book = write_book(tmp_path / "book", "# A page\n\nHere $a + \\frobnicate{b}$ fails.\n")
    for _ in range(2):
        command = [sys.executable, "-m", "bookkit", book, tmp_path / "html"]
        built = subprocess.run(command, capture_output=True, text=True)
        assert built.returncode == 1
        assert "index.md:3" in built.stderr
        assert r"the command '\frobnicate' in the formula  a + \frobnicate{b}" in built.stderr
        assert f"the book in {book} was not built" in built.stderr
