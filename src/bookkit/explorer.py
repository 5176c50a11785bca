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
from functools import cache, partial
from html import escape
from pathlib import Path

import rjsmin
from docutils import nodes

from bookkit import room
from bookkit.cards import STATUS, CardDirective, add_card, foot, frame, json_in_html, menu, table
from bookkit.explorer_data import data_of, functions_of
from bookkit.mathml import to_mathml
from coursekit.formulas import BOOK
from coursekit.formulas.render import latex
from coursekit.show.explorers import EXPLORERS
from coursekit.show.format import format_as, format_to_type
from coursekit.show.spec import Choice, default_style


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
    ident, start = f"explorer-{spec.name}", spec.start()
    computed = spec.compute(start)
    menus = "".join(_menu(ident, spec, asked) for asked in spec.menus)
    controls = _controls(spec, start)
    first, *others = (
        f'<div class="explorer-picture"><p class="explorer-caption">{escape(picture.title)}</p>'
        f"{room.of_picture(picture)}</div>"
        for picture in spec.pictures
    )
    parts = "".join(PARTS[part](spec) for part in spec.parts)
    detail = (
        f'<div class="explorer-words" id="{ident}-detail"><p class="explorer-detail">'
        f"{escape(unbroken(spec.say_detail(computed)))}</p></div>"
    )
    equations = (
        '<details class="explorer-why"'
        f' data-script="{escape(script)}"><summary>Why?</summary></details>'
        if script
        else f'<details class="explorer-why"><summary>Why?</summary>{why(spec, sheet)}</details>'
    )
    copy = '<button type="button" class="explorer-copy">Copy as Python</button>\n'
    inside = f"""<div class="explorer-body">
<div class="explorer-menus">{menus}</div>
<div class="explorer-controls">{controls}</div>
<div class="explorer-shown"><div class="explorer-pinned">{first}
<div class="explorer-words" id="{ident}-words">
<p class="explorer-sentence">{escape(unbroken(spec.say(computed)))}</p></div>
<p class="explorer-stale">last valid values</p></div>{parts}{_others(spec, others)}
{"</div>" + detail if tall(spec) else detail + "</div>"}
</div>
{STATUS}
{foot(_table(spec), equations, copy)}
<pre class="explorer-python" tabindex="0" hidden></pre>
<script type="application/json">{json_in_html(data_of(spec))}</script>
<script>
{functions_of(spec)}
BOOK.start({json.dumps(ident)});
</script>"""
    attributes = f' data-explorer="{spec.name}"'
    return frame(ident, "explorer", "start", escape(spec.title), inside, attributes)


PARTS = dict(
    nearest=lambda spec: (
        '<div class="explorer-nearest" role="group" aria-label="Nearest that fits">'
        f"{room.nearest_buttons(spec)}</div>"
    ),
    ranks=lambda spec: (
        '<div class="explorer-ranks"><div class="ranks-drawing"></div>'
        '<p class="ranks-words"></p></div>'
    ),
)


def tall(spec):
    """Whether pictures and parts fill the height of a screen, so that words and controls have to
    share the other column."""
    return bool(spec.parts) or any(picture.kind != "time" for picture in spec.pictures[1:])


def unbroken(text):
    """No line ends between a number and its unit."""
    return re.sub(r"(?<=\d) (?=[A-Za-z])", "\N{NO-BREAK SPACE}", text)


def initials(name):
    """The ids of an explorer's controls begin with these: each id stands five times or more on the
    page."""
    return "".join(word[0] for word in name.split("-"))


def _others(spec, pictures):
    """The pictures after the first, behind tabs where there are several: the card stays within a
    screen."""
    if len(pictures) > 1:
        ident = initials(spec.name)
        tabs = "".join(
            f'<label><input type="radio" name="{ident}"{"" if place else " checked"}><span>'
            f"{escape(picture.title)}</span></label>"
            for place, picture in enumerate(spec.pictures[1:])
        )
        tabs = f'<div class="explorer-tabs" role="radiogroup" aria-label="Picture">{tabs}</div>'
    else:
        tabs = ""
    return f'<div class="explorer-others">{tabs}{"".join(pictures)}</div>' if pictures else ""


def _menu(ident, spec, asked):
    return menu(
        f"{ident}-{asked.kind}",
        asked.label,
        asked.names,
        spec.begin[asked.kind],
        own="own values",
        attributes=f' data-kind="{asked.kind}"',
    )


def _controls(spec, start):
    """The controls, in groups that fold where the explorer has groups; beside several pictures, or
    of many controls, one group is open at a time."""
    made = {
        control.quantity: (_choice if isinstance(control, Choice) else _control)(
            f"{initials(spec.name)}{place}", control, start[control.quantity]
        )
        for place, control in enumerate(spec.controls)
    }
    many = tall(spec) or len(spec.controls) > 9
    alone = f' name="{initials(spec.name)}"' if many else ""
    groups = "".join(
        f'<details class="explorer-group"{alone}{"" if group.folded else " open"}>'
        f"<summary>{escape(group.title)}</summary>"
        '<div class="explorer-grouped">'
        f"{''.join(made.pop(name) for name in group.quantities)}</div></details>"
        for group in spec.groups
    )
    return "".join(made.values()) + groups


def _control(ident, control, value):
    """A box and a slider of one name. The slider moves over positions of the list of stops; the
    script says how many there are."""
    text = escape(format_to_type(value, control.style))
    return (
        f'<div class="explorer-control" data-quantity="{control.quantity}"><label'
        f' id="{ident}-label" for="{ident}">{escape(control.label)}</label><input type="text"'
        f' id="{ident}" value="{text}"><input type="range" aria-labelledby="{ident}-label"></div>'
    )


def _choice(ident, control, value):
    """One button for each option; one of them is down. The value of a button is its place in the
    list."""
    options = "".join(
        f'<label><input type="radio" name="{ident}"'
        f' value="{place}"{" checked" if option == value else ""}>'
        f"<span>{escape(words)}</span></label>"
        for place, (option, words) in enumerate(control.options)
    )
    return (
        f'<div class="explorer-control explorer-choice" data-quantity="{control.quantity}"><span'
        f' id="{ident}-label">{escape(control.label)}</span><div class="explorer-options"'
        f' role="radiogroup" aria-labelledby="{ident}-label">{options}</div></div>'
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
    code = Path(__file__).parent / "static" / "why.js"
    return rjsmin.jsmin(code.read_text(encoding="utf-8"))


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


DRAWN_BY = dict(  # kind of picture -> its script, in the order in which scripts are loaded
    memory="pictures.js",
    timeline="timeline.js",
    time="timeline.js",
    curves="curves.js",
    streams="streams.js",
    schedule="schedules.js",
)


def drawing_scripts(specs):
    """The scripts that draw the pictures and parts of these explorers."""
    kinds = {picture.kind for spec in specs for picture in spec.pictures}
    drawing = dict.fromkeys(script for kind, script in DRAWN_BY.items() if kind in kinds)
    return [*drawing] + ["layouts.js", "ranks.js"] * any(spec.parts for spec in specs)


def _files(found):
    specs = [EXPLORERS[node["name"]] for node in found]
    looks = {"explorer.css": 810} | ({"layouts.css": 811} if any(s.parts for s in specs) else {})
    scripts = ("formulas.js", "svg.js", *drawing_scripts(specs), "explorer.js")
    return looks | {script: 810 + place for place, script in enumerate(scripts)}


def setup(app):
    add_card(app, explorer, ExplorerDirective, _html, _files)
