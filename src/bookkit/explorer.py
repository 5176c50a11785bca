"""The ``{explorer}`` directive: one card with controls, a picture and a sentence, live without a
server.

    ```{explorer} does-it-fit
    ```

What the explorer shows is data (``coursekit.show.explorers``); what it computes is generated from
the formulas. This module writes the card, with everything in it that needs no script: menus and
controls, the sentence for the start, the equations behind "Why?", and a table for print and for
readers without JavaScript. ``static/explorer.js`` makes it live while the rest of the page is still
being read; ``static/pictures.js``, ``static/timeline.js``, ``static/curves.js``,
``static/streams.js`` and ``static/schedules.js`` draw.
"""

import json
import re
from dataclasses import fields
from functools import cache, partial
from html import escape
from pathlib import Path

import rjsmin
from docutils import nodes

from bookkit.cards import CardDirective, add_card, foot, live, table
from bookkit.mathml import to_mathml
from coursekit.formulas import BOOK
from coursekit.formulas.render import latex
from coursekit.planner.layout import RankLayout, model_sizes
from coursekit.planner.nearest import nearest
from coursekit.show.card import COPY, explorer_card, ident_of
from coursekit.show.embed import drawing_scripts, text_in
from coursekit.show.explorer_data import functions_of
from coursekit.show.explorers import EXPLORERS
from coursekit.show.format import format_as
from coursekit.show.spec import default_style
from coursekit.topics.which_layout.planner_page import facts, words_of_change


class explorer(nodes.General, nodes.Element):
    """The place of an explorer in a page; ``name`` is a key of EXPLORERS."""


class ExplorerDirective(CardDirective):
    def make(self):
        name = self.argument(EXPLORERS)
        self.first_on_this_page(explorer, name)
        return explorer(name=name)


# --- the card -------------------------------------------------------------------------------------


def card(spec, sheet=None, script=None):
    """The explorer as HTML. ``sheet`` gives the address of a formula or quantity on a formula
    sheet, or None; ``script`` is that of the script which brings the equations behind "Why?" when
    they are asked for; without one they stand in the card."""
    ident = ident_of(spec)
    starts = f"""
<script>
{functions_of(spec, rjsmin.jsmin)}
BOOK.start({json.dumps(ident)});
</script>"""
    return explorer_card(
        spec,
        foot(_table(spec), equations(spec, sheet, script), COPY),
        "explorer wide",
        parts=parts_of(spec),
        first=live("start") + "\n",
        last=starts,
        of_parts=data_of_parts(spec),
    )


def equations(spec, sheet=None, script=None):
    """The formulas of a card, in its foot."""
    given = f' data-script="{escape(script)}"' if script else ""
    inside = "" if script else why(spec, sheet)
    return f'<details class="explorer-why"{given}><summary>Why?</summary>{inside}</details>'


def parts_of(spec):
    """The parts beside the pictures that pages alone have."""
    return "".join(PARTS[part](spec) for part in spec.parts)


def data_of_parts(spec):
    """Data for the scripts of these parts."""
    return {"parts": spec.parts, "layouts": facts()} if spec.parts else {}


PARTS = dict(
    nearest=lambda spec: (
        '<div class="explorer-nearest" role="group" aria-label="Nearest that fits">'
        f"{nearest_buttons(spec)}</div>"
    ),
    ranks=lambda spec: (
        '<div class="explorer-ranks"><div class="ranks-drawing"></div>'
        '<p class="ranks-words"></p></div>'
    ),
)


def nearest_buttons(spec):
    """The buttons that ranks.js puts beside a rank which does not fit at the start."""
    start = {**spec.start(), **spec.begin}
    if spec.compute(spec.start())["fits"]:
        return ""
    given = {field.name: start[field.name] for field in fields(RankLayout) if field.name in start}
    gpus = start["data_parallel"] * start["tensor_parallel"] * start["pipeline_parallel"]
    layout = RankLayout(**given, sizes=model_sizes(start["model"]), gpus=gpus)
    return "Nearest that fits: " + "".join(
        f'<button type="button">{escape(words_of_change(change))} <small>'
        f"{format_as(found.needed_bytes(found.solved()), 'decimal bytes')}</small></button>"
        for change, found in nearest(layout)
    )


def _table(spec):
    kind = next(asked.label for asked in spec.menus if asked.kind == spec.table.kind)
    heads = [kind, *(head for head, *_ in spec.table.columns)]
    rows = [list(map(escape, (name, *texts))) for name, texts in spec.rows()]
    numbers = range(1, len(heads))
    return table(escape(spec.table.caption), list(map(escape, heads)), rows, numbers)


# --- why ------------------------------------------------------------------------------------------


@cache  # a formula is behind several explorers, and a card is written more than once
def marked_equation(name):
    """MathML of a formula. Every symbol stands in an element with ``data-quantity``, where the
    script puts numbers."""
    formula = BOOK.formulas[name]
    places = [name, *formula.needs]

    def place(need):  # with a digit where the symbol has one: it asks for a dot after a number
        digit = "0_" * BOOK.find(need).symbol[0].isdigit()
        return rf"{digit}\text{{@{places.index(need)}@}}"

    markup = to_mathml(latex(name, symbol=place), display=False)
    placed = r"(<msub><mn>0</mn>)?<mtext>@(\d+)@</mtext>(?(1)</msub>)"
    return re.sub(placed, lambda match: _marked(places[int(match[2])]), markup)


def _marked(name):
    symbol = to_mathml(BOOK.find(name).symbol, display=False)
    inside = symbol.removeprefix("<math>").removesuffix("</math>")
    return f'<mrow data-quantity="{name}">{inside}</mrow>'


SHORT = {"duration": "short duration"}  # in a sum


PLAYED = (  # what a simulator says above its formulas
    ("A simulated step takes", "simulated_seconds"),
    (", in which a rank works for", "simulated_work_seconds"),
    (" and is idle for the rest,", "simulated_idle_seconds"),
)


def why(spec, sheet):
    """The sentence as a sum, of which each number opens its own equations; behind it the given
    quantities, then every equation in the order in which one needs the other."""
    computed = spec.with_derived(spec.compute(spec.start()))

    def item(name, math):
        found, style = BOOK.find(name), default_style(name)
        text = escape(format_as(computed[name], style))
        meaning = _linked(sheet and sheet(name), found.meaning)
        return (
            f'<li data-quantity="{name}" data-style="{style}">{math}<p>{meaning}: <span'
            f' class="explorer-value">{text}</span></p></li>'
        )

    given = "".join(
        item(name, to_mathml(BOOK.find(name).symbol, display=False)) for name in spec.inputs
    )
    equations = "".join(
        item(name, f'<div class="math-scroll">{marked_equation(name)}</div>')
        for name in spec.explained
    )
    terms = "".join(
        f'<span><button type="button" aria-expanded="false" data-quantity="{name}"'
        f' data-style="{SHORT.get(default_style(name), default_style(name))}"><b></b> '
        f"<small>{escape(words)}</small></button></span>"
        for name, words in spec.sum
    )
    played = "".join(
        f'{words} <b data-simulated="{name}">{format_as(computed[name], "short duration")}</b>'
        for words, name in PLAYED
        if name in computed
    )
    if played:
        played = f"<p>{played}. The formulas below know no messages and no slow rank.</p>"
    rest = [name for name in spec.formulas if name not in spec.explained]
    place = sheet(rest[0]) if sheet and rest else None
    where = _linked(place and place.partition("#")[0], "formula sheets")
    more = f"<p>{len(rest)} more formulas stand behind these; they are on the {where}.</p>"
    more *= bool(rest)
    return (
        f'<div class="explorer-equations">{played}<div class="explorer-sum">{terms}</div>'
        f'<div class="explorer-own"></div><details class="explorer-all"><summary>Every'
        " formula, from what is given</summary>"
        f'<p>Given</p><ul class="explorer-given">{given}</ul>'
        f"<p>Computed, each from what comes before it</p><ol>{equations}</ol>{more}</details></div>"
    )


def _linked(address, words):
    return f'<a href="{escape(address)}">{escape(words)}</a>' if address else escape(words)


def anchor(name):
    """The id of a formula or quantity on the formula sheet."""
    return f"formula-{name.replace('_', '-')}"


# --- in a Sphinx build ----------------------------------------------------------------------------


def sheet_address(builder, page, name):
    """The address of a formula or quantity on its formula sheet, seen from a page; None where none
    prints it."""
    part = getattr(BOOK.find(name), "group", "given")
    sheet = getattr(builder.env, "bookkit_formula_sheets", {}).get(part)
    return f"{builder.get_relative_uri(page, sheet)}#{anchor(name)}" if sheet else None


@cache
def _reasons():
    return rjsmin.jsmin(text_in(Path(__file__).parent / "static" / "why.js"))


def _html(node, builder):
    """The card, and beside the page a script with its equations: most readers never ask for
    them."""
    page, spec = builder.current_docname, EXPLORERS[node["name"]]
    sheet = partial(sheet_address, builder, page)
    script = f"_static/why/{page.replace('/', '-')}-{spec.name}.js"
    path = Path(builder.outdir) / script
    path.parent.mkdir(parents=True, exist_ok=True)
    equations = json.dumps(why(spec, sheet), ensure_ascii=False)
    path.write_text(
        f"{_reasons()}\nBOOK.why({json.dumps(spec.name)}, {equations});\n", encoding="utf-8"
    )
    return card(spec, sheet, "../" * page.count("/") + script)


OF_PARTS = ("layouts.js", "ranks.js")


def _files(found):
    specs = [EXPLORERS[node["name"]] for node in found]
    looks = {"explorer.css": 810} | ({"layouts.css": 811} if any(s.parts for s in specs) else {})
    of_parts = OF_PARTS * any(spec.parts for spec in specs)
    scripts = ("formulas.js", "svg.js", *drawing_scripts(specs), *of_parts, "explorer.js")
    return looks | {script: 810 + place for place, script in enumerate(scripts)}


def setup(app):
    add_card(app, explorer, ExplorerDirective, _html, _files)
