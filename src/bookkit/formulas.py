"""Numbers and equations out of the formula registry: no formula and no number that follows from one
is written in a page.

    {bytes}`states_bytes(parameters=175_000_000_000, recipe="fp32 Adam") as TB`      gives 2.8 TB
    {number}`matmul_flops(rows=64, columns=64, depth=64)`                            gives 524,288

The text is a call with keywords; model=, recipe= and gpu= name presets. After it may stand ``as``
and a style of ``coursekit.show.format``; without one, bytes are GiB and everything else is printed
as its unit asks. The call and its exact value appear on hover. A call that is wrong is a warning
with page and line, and so stops the build.

    {bytes}`peak_bytes(small) at loss`                                               gives 512 MiB

A peak, and a part of a peak, is printed with the place that the sentence gives it. The build stops
where another place of the step has more bytes.

    ```{given} small
    model="GPT-2 124M", layers=4, recipe="fp32 Adam", microbatch=2, sequence=256
    ```

prints nothing and gives these quantities a name for the rest of the page:
``{bytes}`logit_bytes(small, microbatch=4)```.

    ```{equation} achieved_flops_per_second training_seconds
    :numbered:
    ```

typesets the formulas, with what they mean below; ``formula_sheet.py`` prints all of them.
"""

import ast
import re
from functools import cache
from html import escape
from itertools import chain
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective, SphinxRole

from bookkit.cards import add_element, warn
from bookkit.explorer import sheet_address
from coursekit.formulas import BOOK, PRESETS, UnusedQuantity, evaluate, quantities
from coursekit.formulas.registry import show
from coursekit.formulas.render import right_hand_side, width
from coursekit.formulas.subset import expression_of
from coursekit.show.card import json_in_html, unbroken
from coursekit.show.format import BINARY, DECIMAL, DURATIONS, STYLE_OF_UNIT, format_as

SECONDS = {"seconds": 1, "days": 86_400}  # units that can be printed as any duration
ANY_UNIT = {"exact", "number", "count"}
STYLES_OF_UNIT = {
    "bytes": {"bytes", "decimal bytes", *(unit for unit, _ in DECIMAL[1:] + BINARY[1:])},
    "bytes, any number": {"bytes", "decimal bytes"},
    "seconds": {"duration", "short duration", *(f"{unit}s" for unit, _ in DURATIONS)},
    "days": {"duration", *(f"{unit}s" for unit, _ in DURATIONS)},
    "fraction": {"percent"},
    "FLOP/s": {"rate"},
    "bytes/s": {"bandwidth"},
}


CALL = re.compile(r"(?s)\s*(\w+\s*\(.*\))\s*(?:\bat\s+(\w+))?\s*(?:(?:as\s+)?(\S.*?))?\s*")
# what an author's mistake raises: each is a warning with page and line
MISTAKES = ValueError, TypeError, SyntaxError, LookupError, AttributeError


# --- numbers --------------------------------------------------------------------------------------


def read_call(text, named=None):
    """(name, keywords, place or None, style or None) of a role's text; `named` holds the quantities
    that have a name on the page."""
    if not (match := CALL.fullmatch(text)):
        raise ValueError("it is no call of a formula with keywords.")
    call, given = ast.parse(match[1], mode="eval").body, {}
    for argument in call.args:
        given |= (named or {})[argument.id]
    given |= {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    return call.func.id, given, match[2], match[3]


def typed_names(text):
    """The keywords of a role's text. What the page has given a name holds for many numbers; what is
    typed must be used."""
    call = ast.parse(CALL.fullmatch(text)[1], mode="eval").body
    return [keyword.arg for keyword in call.keywords]


@cache
def peaks():
    """Peaks, and what each is made of: quantity -> (the number of its place, the places' bytes in
    the order of these numbers)."""
    written = {name: expression_of(found.function) for name, found in BOOK.formulas.items()}
    numbers = {
        name: BOOK.formulas[name].needs
        for name, text in written.items()
        if re.fullmatch(r"arg_max\([\w, ]+\)", text)
    }
    found = {}
    for name, text in written.items():
        for number, places in numbers.items():
            of_all = text == f"maximum({', '.join(places)})"
            if of_all or text.startswith(f"choose({number}, "):
                found[name] = number, places
    return found


def check_place(name, given, place):
    """Raises ValueError unless `place` is where a peak is, None for what is no peak."""
    there = None
    if name in peaks():
        number, places = peaks()[name]
        found = places[evaluate([number], allow_unused=True, **given)[number] - 1]
        there = re.sub(r"^live_at_|(_peak)?_bytes$", "", found)
    if place != there:
        raise ValueError(f"{name} is {f'at {there}' if there else 'no peak, and has no place'}.")


def compute(text, named=None):
    """(printed, origin) of a role's text: the number with its unit, and the call with the exact
    value for the hover."""
    name, given, place, style = read_call(text, named)
    found = BOOK.find(name)
    value = evaluate([name], allow_unused=True, **given)[name]
    if spare := [key for key in typed_names(text) if key not in _needed(name, given)]:
        raise UnusedQuantity([name], spare, ())
    check_place(name, given, place)
    own_style = "days" if found.unit == "days" else STYLE_OF_UNIT.get(found.unit, "count")
    allowed = ANY_UNIT | STYLES_OF_UNIT.get(found.unit, set())
    if style not in (None, *allowed):
        raise ValueError(f"{found.unit} can be printed as one of {', '.join(sorted(allowed))}.")
    style = style or own_style
    printed = format_as(
        value * SECONDS[found.unit] if found.unit in SECONDS and style not in ANY_UNIT else value,
        style,
    )
    said = ", ".join(
        f'{key}="{what}"' if isinstance(what, str) else f"{key}={show(what)}"
        for key, what in _needed(name, given).items()
    )
    unit = found.unit.partition(",")[0]  # "bytes, any number" is the range, not the unit
    unit = "" if unit in ("count", "fraction") else f" {unit}"
    exactly = show(value) if isinstance(value, int) else format_as(value, "number")
    where = f", at {place}" if place else ""
    return printed, f"computed: {name}({said}) = {exactly}{unit}{where}"


def _needed(name, given):
    """The keywords that the value depends on: a page names what holds for all its numbers once."""
    needed = BOOK.resolve([name], list(quantities(**given)))[1]
    return {
        key: what
        for key, what in given.items()
        if key in needed
        or key in PRESETS
        and any(part in needed and part not in given for part in quantities(**{key: what}))
    }


class computed(nodes.inline):
    """A number in the text; ``origin`` is shown on hover, by ``static/book.js``."""


class NumberRole(SphinxRole):
    """``{number}``, and ``{bytes}`` for what is in bytes."""

    def run(self):
        try:
            printed, origin = compute(self.text, self.env.temp_data.get("bookkit_given"))
            if self.name == "bytes" and " bytes" not in origin.rpartition(" = ")[2]:
                raise ValueError("not in bytes; use the role {number}.")
        except MISTAKES as wrong:
            warn(self.get_location(), "number", f"{self.text}: {wrong}")
            return [nodes.literal(self.text, self.text)], []
        return [computed(self.rawtext, unbroken(printed), origin=origin)], []


class GivenDirective(SphinxDirective):
    """``{given} name``: quantities that calls below on this page take by that name. Prints
    nothing."""

    required_arguments = 1
    has_content = True

    def run(self):
        named = self.env.temp_data.setdefault("bookkit_given", {})
        try:
            if self.arguments[0] in named:
                raise ValueError("this name is on the page already.")
            named[self.arguments[0]] = read_call(f"given({' '.join(self.content)})", named)[1]
        except MISTAKES as wrong:
            warn(self.get_location(), "number", f"{{given}} {self.arguments[0]}: {wrong}")
        return []


def share_inputs(origins):
    """(inputs, calls): each input of the origins once, and each origin with the numbers of its
    inputs in their place."""
    inputs, calls = {}, []
    for origin in origins:
        call, said, value = re.fullmatch(r"(computed: \w+)\((.*?)\)( = .*)", origin).groups()
        found = re.split(r", (?=\w+=)", said) if said else []
        numbers = (str(inputs.setdefault(one, len(inputs))) for one in found)
        calls.append(f"{call.removeprefix('computed: ')}({' '.join(numbers)}){value}")
    return list(inputs), calls


def _share_inputs(app, doctree, docname):
    numbers = list(doctree.findall(computed))
    inputs, calls = share_inputs(node["origin"] for node in numbers)
    for node, call in zip(numbers, calls):
        node["call"] = call
    doctree["bookkit_inputs"] = inputs


def _write_inputs(app, pagename, templatename, context, doctree):
    if doctree is not None and doctree.get("bookkit_inputs"):
        data = json_in_html(doctree["bookkit_inputs"])
        context["body"] += f'<script type="application/json" id="inputs">{data}</script>\n'


def _start_of_number(node, builder):
    # book.js writes the title: the same inputs again and again would be most of a page's numbers.
    # A title of the page that is shown elsewhere has none.
    return f'<span data-call="{escape(node["call"])}">' if "call" in node else "<span>"


# --- equations ------------------------------------------------------------------------------------


class code_name(nodes.literal):
    """A name in code, written without the classes that would be most of a formula sheet's bytes."""


class formula_link(nodes.inline):
    """Leads to the formula ``name`` on the formula sheet, in a book that has one."""


def _start_of_link(node, builder):
    address = sheet_address(builder, builder.current_docname, node["name"])
    return f'<a href="{escape(address)}">' if address else "<span>"


WORDS_IN_SIGHT = 50  # of what symbols mean


def _too_long(said):
    return len("".join(node.astext() for node in said).split()) > WORDS_IN_SIGHT


class fold(nodes.General, nodes.Element):
    """A folded box: its nodes wait behind the words ``title`` until the reader opens it."""


class EquationDirective(SphinxDirective):
    """``{equation} name [name ...]``: the formulas, one under the other, and below what they mean,
    and what the symbols on the right are that the page has not explained. What is longer than
    ``WORDS_IN_SIGHT`` is folded.

    What the directive holds is the form for people: then the formulas themselves are folded.
    ``:numbered:`` numbers them as one equation, labelled ``eq-`` and the first name.
    ``name(zero_stage=1)`` is the formula with a number for a quantity, and what follows from it
    written out.
    """

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec = {"numbered": directives.flag}

    def run(self):
        asked = [
            (name, {key: int(value) for key, value in re.findall(r"(\w+)\s*=\s*(\d+)", given)})
            for name, given in re.findall(r"(\w+)(\([^)]*\))?", self.arguments[0])
        ]
        names = list(dict.fromkeys(name for name, _ in asked))
        known = {*BOOK.formulas, *BOOK.quantities}
        unknown = [name for name in names if name not in BOOK.formulas]
        unknown += [name for _, given in asked for name in given if name not in known]
        if unknown:
            said = f"no formula is named {', '.join(unknown)}"
            warn(self.get_location(), "equation", said)
            return []
        found = equation(asked, self.env.docname)
        self.set_source_info(found)
        made = [found]
        if "numbered" in self.options:
            label = "eq-" + names[0].replace("_", "-")
            domain = self.env.get_domain("math")
            domain.note_equation(self.env.docname, label, location=found)
            found["label"], found["number"] = label, domain.get_equation_number_for(label)
            target = nodes.target("", "", ids=[nodes.make_id(f"equation-{label}")])
            self.state.document.note_explicit_target(target)
            made.insert(0, target)
        left = [*_meanings(names)]
        right = [*_meanings(self._not_explained(asked), right=True)]
        made += self._small_print(left, right)
        if self.content:
            made = [fold("", *made, title="The exact form")]
            human = nodes.Element()
            self.state.nested_parse(self.content, self.content_offset, human)
            made = [*human.children, *made]
        return made

    def _small_print(self, left, right):
        """The meanings of the symbols, in sight as far as they are short."""
        seen, folded = left + right, []
        if not self.content and _too_long(seen):
            seen, folded = left, right
        if not self.content and _too_long(seen):
            seen, folded = [], left + right
        made = [
            nodes.paragraph("", "", *said, classes=["equation-meaning"])
            for said in (seen, folded)
            if said
        ]
        return [*made[:-1], fold("", made[-1], title="What the symbols mean")] if folded else made

    def _not_explained(self, asked):
        """The quantities on the right of these formulas, and in their conditions, that no equation
        above explains, and whose symbols the page's text does not name."""
        explained = self.env.temp_data.setdefault("bookkit_explained", set())
        explained.update(name for name, _ in asked)
        page = Path(self.env.doc2path(self.env.docname)).read_text("utf-8")
        shown = [(*_symbols_on_the_right(name, given), *given) for name, given in asked]
        new = [
            name
            for name in dict.fromkeys(chain(*shown))
            if name not in explained and f"${BOOK.find(name).symbol}$" not in page
        ]
        explained.update(new)
        return new


ROOM = 58  # characters of a formula that the column of text has room for


def equation(asked, docname):
    """One block of mathematics with the formulas, pairs (name, numbers given to it), aligned at
    their equals signs; sums too long for a line go on in the next."""
    rows = []
    for name, given in asked:
        rows += _rows(BOOK.formulas[name].symbol, right_hand_side(name, given=given))
        if given:
            said = ", ".join(f"{BOOK.find(key).symbol} = {value}" for key, value in given.items())
            rows[-1] += rf"\quad \text{{if }} {said}"
    text = r"\begin{aligned}" + r" \\ ".join(rows) + r"\end{aligned}"
    if len(rows) == 1:
        text = rows[0].replace("&", "", 1)
    return nodes.math_block(text, text, docname=docname, number=None, label=None, nowrap=False)


def _rows(left, right):
    """`left &= terms`, and `& + more terms` where one line is not enough."""
    rows = [f"{left} &="]
    for term in _terms(right):
        if width(rows[-1]) + width(term) > ROOM and not rows[-1].endswith("="):
            rows.append("&")
        rows[-1] += f" {term}"
    return rows


def _terms(text):
    """The terms of a sum, each with its sign; what stands in brackets or in an environment stays
    together."""
    terms, depth = [""], 0
    for token in re.findall(r"\\[a-zA-Z]+|\\.|[{}]|.", text, re.DOTALL):
        depth += {"{": 1, "}": -1, r"\left": 1, r"\right": -1, r"\begin": 1, r"\end": -1}.get(
            token, 0
        )
        if depth == 0 and token in "+-" and terms[-1].strip():
            terms.append("")
        terms[-1] += token
    return [term.strip() for term in terms]


def _symbols_on_the_right(name, given):
    """The names of the quantities that a formula prints on its right-hand side, in that order."""
    shown = []

    def symbol(needed):
        shown.append(needed)
        return BOOK.find(needed).symbol

    text = right_hand_side(name, symbol=symbol, given=given)
    return sorted(shown, key=lambda needed: (text.find(BOOK.find(needed).symbol), needed))


def _meanings(names, right=False):
    """Symbols and meanings; those on the left of the equation lead to the formula sheet, from which
    those on the right are one step away, so that a page stays light."""
    for index, name in enumerate(names):
        known = BOOK.find(name)
        yield nodes.Text("; " if index else " On the right: " if right else "")
        yield nodes.math(known.symbol, known.symbol)
        yield nodes.Text(" ")
        meaning = nodes.Text(known.meaning)
        yield meaning if right else formula_link("", "", meaning, name=name)
        yield nodes.Text("" if index < len(names) - 1 else ".")


def setup(app):
    start = '<details class="equation-fold"><summary>{title}</summary>\n'
    add_element(app, computed, _start_of_number)
    add_element(app, code_name, lambda node, builder: "<code>")
    add_element(app, fold, lambda node, builder: start.format(title=node["title"]))
    add_element(app, formula_link, _start_of_link)
    app.add_role("number", NumberRole())
    app.add_role("bytes", NumberRole())
    app.add_directive("given", GivenDirective)
    app.add_directive("equation", EquationDirective)
    app.add_css_file("formulas.css", priority=809)
    app.connect("doctree-resolved", _share_inputs)
    app.connect("html-page-context", _write_inputs)
