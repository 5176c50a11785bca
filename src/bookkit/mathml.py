r"""LaTeX formulas become MathML while the book is built, so that a page needs no script to show
them.

The library latex2mathml translates. It writes a command that it does not know as a letter of that
name, and it takes some formulas that browsers then draw wrongly. ``to_mathml`` therefore refuses,
with ``UnsupportedMath``, every command, environment and character that is not KNOWN,
and ``_mend`` writes what the library leaves to chance. In a build a refusal is a
warning with page, line and formula, and a warning stops the build.

A new command enters ``COMMANDS`` after somebody has looked at a page with it, in light and dark.
"""

import re
from functools import cache
from html import escape
from xml.etree import ElementTree

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.util.math import get_node_equation_number

from bookkit.cards import warn


class UnsupportedMath(ValueError):
    """A formula uses something ``to_mathml`` does not know; the message names it and shows the
    formula."""


FUNCTIONS = {"max", "min", "lim", "log", "ln", "exp"}
COMMANDS = {
    *"alpha beta gamma delta epsilon varepsilon zeta eta theta iota kappa lambda mu nu xi".split(),
    *"pi rho sigma tau upsilon phi varphi chi psi omega".split(),
    *"Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega".split(),
    *"cdot times pm le leq ge geq ne neq ll gg approx equiv propto in notin to".split(),
    *"infty partial nabla ell prime ldots cdots sum prod frac sqrt".split(),
    *", : ; quad qquad".split(),
    *FUNCTIONS,
}
ENVIRONMENTS = {"aligned": "split", "cases": "cases"}  # the library's name for each

# Elements of MathML with a fixed number of children; with another number a browser draws an error.
CHILDREN = dict(mfrac=2, msub=2, msup=2, msubsup=3, munder=2, mover=2, munderover=3)
CAPITAL_GREEK = set("ΓΔΘΛΞΠΣΥΦΨΩ")
OPENING, CLOSING = set("([⌈⌊"), set(")]}⌉⌋|")

NAMES = "|".join(sorted(name for name in COMMANDS if name.isalpha()))
# The beginning of a formula of which the book knows everything.
KNOWN = re.compile(
    rf"""(?:
      \\(?:begin|end)\{{(?:{"|".join(ENVIRONMENTS)})\}}
    | \\text\{{[\w @.,:/()-]+\}}
    | \\(?:left|right|Big)\s*(?=[()\[\]]|\\[lr](?:ceil|floor)\b)
    | \\(?:{NAMES}|[lr](?:ceil|floor))(?![a-zA-Z])
    | \\[,:;\\]
    | [a-zA-Z0-9\s+*/=<>()\[\]|,.:^_{{}}&-]
    )*+""",
    re.VERBOSE,
)


@cache  # a formula is on its page, on a formula sheet and in explorers
def to_mathml(latex: str, display: bool) -> str:
    r"""Translate a formula to one ``<math>`` element.

    ``latex`` is the formula without dollars, ``display`` says whether it has a line of its own.
    Raises ``UnsupportedMath``.

    >>> to_mathml(r"4\Psi", display=False)
    '<math><mn>4</mn><mi mathvariant="normal">Ψ</mi></math>'
    """
    if problem := _problem(latex):
        _refuse(problem, latex)
    theirs = latex
    for name, library_name in ENVIRONMENTS.items():
        theirs = re.sub(rf"(\\(?:begin|end)){{{name}}}", rf"\1{{{library_name}}}", theirs)
    try:
        math = ElementTree.fromstring(convert(theirs, "", "block" if display else "inline"))
    except Exception as error:  # the library's errors have no class in common
        _refuse(f"latex2mathml's {type(error).__name__}", latex)
    for element in math.iter():
        if problem := _broken(element):
            _refuse(problem, latex)
    math.attrib = {"display": "block"} if display else {}  # neither xmlns="" nor display="inline"
    _mend(math)
    row = math[0]  # the library's, around everything: a <math> is a row by itself
    math.remove(row)
    math.extend(row)
    return ElementTree.tostring(math, encoding="unicode")


def _refuse(problem, latex):
    raise UnsupportedMath(f"{problem} in the formula  {' '.join(latex.split())}")


def _problem(latex):
    """Where a formula begins that the book does not know, in words; "" if it knows everything."""
    unknown = latex[KNOWN.match(latex).end() :]
    if unknown or not latex.strip():
        return f"'{unknown}'"
    if r"\begin" not in latex and re.search(r"&|\\\\", latex):
        return r"a cell or a line outside of '\begin{aligned}' and '\begin{cases}'"
    return "" if latex.count("{") == latex.count("}") else "'{' without '}', or '}' without '{'"


def _broken(element):
    """The fault of an element that the library wrote, in words; "" if there is none."""
    wanted = CHILDREN.get(element.tag, len(element))
    if len(element) != wanted:
        return f"{len(element)} of {wanted} arguments"
    if element.tag in {"msub", "msup", "msubsup"} and not "".join(element[0].itertext()):
        return "a subscript or a superscript of nothing"
    return ""


def _mend(math):
    """Write what the library leaves to chance: capital Greek letters are upright; \\cdot is the dot
    of products; a full stop and a slash stand close; a sign after an operator belongs to what
    follows; functions are names."""
    for row in list(math.iter()):
        children = list(row)
        for before, element, after in zip([None, *children], children, [*children[1:], None]):
            if element.tag == "mi" and element.text in CAPITAL_GREEK:
                element.set("mathvariant", "normal")
            elif element.tag == "mo" and element.text == "·":
                element.text = "⋅"
            elif element.tag == "mo" and element.text in {".", "/"}:
                element.attrib = {"lspace": "0", "rspace": "0"}
            elif element.tag == "mo" and element.text in {"+", "−", "±"}:
                if before is not None and before.tag == "mo" and before.text not in CLOSING:
                    element.set("form", "prefix")
            elif row.tag not in {"msub", "munder"}:
                _mend_function(element, after)


def _mend_function(element, after):
    """A thin space after the name of a function, but none before a bracket; limits below a name
    that has limits, where there is room."""
    name = element[0] if element.tag in {"msub", "munder"} else element
    if name.tag not in {"mi", "mo"} or name.text not in FUNCTIONS:
        return
    thin = after is not None and not _begins_with_bracket(after)
    name.tag = "mo"
    name.attrib = {"form": "prefix", "lspace": "0", "rspace": "0.1667em" if thin else "0"}
    if element.tag == "msub" and name.text in {"max", "min", "lim"}:
        element.tag = "munder"
        name.set("movablelimits", "true")


def _begins_with_bracket(element):
    first = next(iter(element), element) if element.tag == "mrow" else element
    return first.tag == "mo" and first.text in OPENING


# ---------------------------------------------------------------- in a Sphinx build


def _markup(writer, node, latex, display):
    try:
        return to_mathml(latex, display)
    except UnsupportedMath as error:
        warn(node, "math", error)
        return f"<code>{escape(latex)}</code>"


def _visit_inline(writer, node):
    writer.body.append(_markup(writer, node, node.astext(), display=False))
    raise nodes.SkipNode


def _visit_block(writer, node):
    math = _markup(writer, node, node.astext(), display=True)
    writer.body.append(writer.starttag(node, "div", CLASS="math-block"))
    writer.body.append(f'<div class="math-scroll">{math}</div>')
    if node["number"]:
        number = get_node_equation_number(writer, node)
        writer.body.append(f'<span class="eqno">({number})')
        writer.add_permalink_ref(node, "Link to this equation")
        writer.body.append("</span>")
    writer.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (_visit_inline, None), (_visit_block, None))
