"""The ``{stepper}`` directive: a collective drawn step by step, live without a server.

    ```{stepper} ring all-reduce
    ```

The argument is the collective that is shown first, on four ranks; the reader chooses others. The
card has the look and the habits of an explorer (``explorer.py``). Moves and words are data
(``coursekit.topics.collectives.steps``): those of the first picture stand in the card, the others
in one script that is fetched when the reader asks for another. ``stepper.js`` steps, ``chunks.js``
draws, in a notebook, too. Without a script, and on paper, a table says the same steps.
"""

import json
from html import escape

from docutils import nodes

from bookkit import cards
from coursekit import topics
from coursekit.show.card import json_in_html, menu
from coursekit.show.stepped import inside_of
from coursekit.topics.collectives.stepper import (
    stepper_ident,
    stepper_look,
    stepper_room,
    stepper_title,
)

# The topic whose steps these are, found by what it has.
_steps = topics.the_one_with("stepper_steps", "steps")

SCRIPT = "_static/collective-steps.js"
RANKS = 4  # at first, in each card of this kind
ROOM_OF_SHARDS = "min-height:204px"  # of shards.js' picture of so many ranks


class stepper(nodes.General, nodes.Element):
    """The place of a stepper in a page; ``name`` is a key of COLLECTIVES."""


class StepperDirective(cards.CardDirective):
    def make(self):
        name = self.argument(_steps.COLLECTIVES)
        self.first_on_this_page(stepper, name)
        return stepper(name=name)


# --- the card -------------------------------------------------------------------------------------


def card(name, source):
    """The stepper as HTML, at its first step; `source` is the address of the script with all the
    others."""
    ident, steps = stepper_ident(name), _steps.stepper_steps(name, RANKS)
    data = _steps.page_data(name, RANKS)
    menus = menu(f"{ident}-name", "Collective", list(_steps.COLLECTIVES), name)
    menus += ranks_buttons(ident, _steps.RANKS)
    return frame(
        ident,
        stepper_title(name),
        stepper_look(data),
        menus,
        "Step",
        steps,
        1,
        (name, RANKS, data),
        source,
        f"The steps of {_a(name)} on {RANKS} ranks.",
        stepper_room(data),
    )


def frame(
    ident, heading, look, menus, step, steps, number, first, source, caption, room_of_picture
):
    """The card of whatever goes step by step (`inside_of`). `first` are name, ranks and data of the
    first picture."""
    name, ranks, data = first
    data = {key: value for key, value in data.items() if key != "say"}  # the table says it
    inside = f"""{inside_of(ident, look, step, steps, number, room_of_picture, menus)}\
{cards.foot(table(steps, caption))}
<script>BOOK.stepper("{ident}", {json_in_html({name: {ranks: data}})});</script>"""
    attributes = f' data-script="{escape(source)}"'
    return cards.frame(ident, "explorer stepper", "stepper", heading, inside, attributes)


def ranks_buttons(ident, choices):
    return cards.radio_buttons(ident, "n", "Ranks", {n: n for n in choices}, RANKS)


def table(steps, caption):
    """The steps as a table: what each does, and how far it comes; stepper.js reads its first words
    here."""
    rows = [(escape(step.sentence), escape(step.detail)) for step in steps]
    return cards.table(caption, ("What it does", "How far it is"), rows, named=False)


def _a(name):
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


# --- in a Sphinx build ----------------------------------------------------------------------------


def script():
    """Every collective on every number of ranks."""
    data = {
        name: {n: _steps.page_data(name, n) for n in _steps.RANKS} for name in _steps.COLLECTIVES
    }
    return f"BOOK.steppers.add({json_of(data)});\n"


def json_of(data):
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False)


def add_card(app, node_class, directive, kind, path, script, card):
    """Make a card known to Sphinx. Its picture is of that kind, chunks or shards; `script()` is the
    text of the file `path`, which the page fetches when the reader asks for another picture;
    `card(node, address of that file)` is the card as HTML."""

    def html(node, builder):
        return card(node, "../" * builder.current_docname.count("/") + path)

    looks = {"explorer.css": 810, "stepper.css": 811, f"{kind}.css": 812}
    scripts = {"svg.js": 811, "stepper.js": 813, f"{kind}.js": 814}
    cards.add_card(app, node_class, directive, html, looks | scripts)
    cards.add_static(app, path, script)


def setup(app):
    shown = lambda node, source: card(node["name"], source)
    add_card(app, stepper, StepperDirective, "chunks", SCRIPT, script, shown)
