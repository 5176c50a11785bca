"""The ``{stepper}`` directive: a collective drawn step by step, live without a server.

    ```{stepper} ring all-reduce
    :ranks: 4
    ```

The argument is the collective that is shown first, the option on how many ranks; the reader chooses
others. The card has the look and the habits of an explorer (``explorer.py``). Moves and words are
data (``coursekit.topics.collectives.steps``): those of the first picture stand in the card, the
others in one script that is fetched when the reader asks for another. ``static/stepper.js`` steps,
``static/chunks.js`` draws. Without a script, and on paper, a table says the same steps.
"""

import json
import re
from html import escape

from docutils import nodes
from docutils.parsers.rst import directives

from bookkit import cards
from coursekit import topics
from coursekit.show.card import STATUS, json_in_html, menu

# The topic whose steps these are, found by what it has.
_steps = topics.the_one_with("stepper_steps", "steps")

SCRIPT = "_static/collective-steps.js"


class stepper(nodes.General, nodes.Element):
    """The place of a stepper in a page; ``name`` is a key of COLLECTIVES, ``ranks`` is in RANKS."""


class SteppedDirective(cards.CardDirective):
    """A card that goes step by step, on as many ranks as its option says."""

    option_spec = {"ranks": directives.nonnegative_int}


class StepperDirective(SteppedDirective):
    def make(self):
        name, ranks = " ".join(self.arguments[0].split()), self.options.get("ranks", 4)
        _steps.stepper_steps(name, ranks)
        self.first_on_this_page(stepper, name)
        return stepper(name=name, ranks=ranks)


# --- the card -------------------------------------------------------------------------------------

BUTTONS = {  # 24 x 24, lines only, like the book's icons
    "first": ("First", "M17 6l-7 6 7 6M7 6v12"),
    "back": ("One step back", "M15 6l-7 6 7 6"),
    "play": ("Play", None),
    "forward": ("One step forward", "M9 6l7 6-7 6"),
    "last": ("Last", "M7 6l7 6-7 6M17 6v12"),
}
PLAY, PAUSE = "M8 5l11 7-11 7z", "M9 5.5v13M15 5.5v13"


def card(name, ranks, source):
    """The stepper as HTML, at its first step; `source` is the address of the script with all the
    others."""
    ident, steps = f"stepper-{name.replace(' ', '-')}", _steps.stepper_steps(name, ranks)
    data = _steps.page_data(name, ranks)
    look = f"""<span class="stepper-look">{escape(_steps.COLLECTIVES[name].look)}</span>
Arrows are what this step sends: + is added, = is put in place."""
    menus = menu(f"{ident}-name", "Collective", list(_steps.COLLECTIVES), name)
    menus += ranks_buttons(ident, _steps.RANKS, ranks)
    return frame(
        ident,
        title(name),
        look,
        menus,
        "Step",
        steps,
        1,
        (name, ranks, data),
        source,
        f"The steps of {_a(name)} on {ranks} ranks.",
        _room(data),
    )


def _room(data):
    """The height of chunks.js' picture of these data."""
    ranks, top = len(data["have"]), 42 if data.get("exchange") else 24
    pitch = (40 if data["need"] > 1 else 32) + (6 if ranks > 6 else 9)
    return f"min-height:{top + ranks * pitch}px"


def room_of_shards(ranks):
    """The height of shards.js' picture."""
    return f"min-height:{44 + ranks * (29 if ranks > 5 else 40)}px"


def frame(
    ident, heading, look, menus, step, steps, number, first, source, caption, room_of_picture
):
    """The card of whatever goes step by step: `look` says what to look at, `menus` what is chosen
    (both HTML), `step` what a step is called; it is shown at step `number`. `first` are name, ranks
    and data of the first picture, `room_of_picture` is the style that keeps its place."""
    last, (name, ranks, data) = len(steps) - 1, first
    data = {key: value for key, value in data.items() if key != "say"}  # the table says it
    longest = lambda texts: max(map(unbroken, texts), key=len)
    sentences, details = zip(*((step.sentence, step.detail) for step in steps))
    room = f"{longest(sentences)}\n{longest(details)}"  # as stepper.js writes it
    inside = f"""<div class="explorer-picture" tabindex="0" role="group"
 aria-label="Picture: the arrow keys step, space plays">
<p class="explorer-caption">{look}</p>
<div class="explorer-drawing" style="{room_of_picture}"></div></div>
<div class="explorer-menus">{menus}</div>
<div class="explorer-controls"><div class="explorer-menu">
<label for="{ident}-step">{step}
<span class="stepper-count">{number} of {last}</span></label>
<input type="range" id="{ident}-step" min="0" max="{last}" step="1" value="{number}"></div>
<div class="stepper-buttons">{"".join(map(_button, BUTTONS))}</div>
<p class="stepper-keys">Keys: <kbd>←</kbd> <kbd>→</kbd> one step, <kbd>space</kbd> plays</p></div>
<div class="explorer-words" id="{ident}-words">
<p class="explorer-sentence">{escape(unbroken(steps[number].sentence))}</p>
<p class="explorer-detail">{escape(unbroken(steps[number].detail))}</p>
<p class="stepper-room" aria-hidden="true">{escape(room)}</p></div>
{STATUS}
{cards.foot(table(steps, caption))}
<script>BOOK.stepper("{ident}", {json_in_html({name: {ranks: data}})});</script>"""
    attributes = f' data-script="{escape(source)}"'
    return cards.frame(ident, "explorer stepper", "stepper", heading, inside, attributes)


def ranks_buttons(ident, choices, chosen):
    return cards.radio_buttons(ident, "n", "Ranks", {n: n for n in choices}, chosen)


def unbroken(text):
    """No line ends between a rank and its number."""
    return re.sub("(rank|chunk|unit) (?=[0-9A-H])", "\\1\N{NO-BREAK SPACE}", text)


def title(name):
    return f"{name[0].upper()}{name[1:]}, step by step"


def _button(name):
    words, path = BUTTONS[name]
    paths = (
        f'<path d="{path}"/>'
        if path
        else f'<path class="play" d="{PLAY}"/><path class="pause" d="{PAUSE}"/>'
    )
    kind = f'data-to="{name}"' if path else 'class="stepper-play"'
    return (
        f'<button type="button" {kind} aria-label="{words}">'
        f'<svg class="icon" viewBox="0 0 24 24" aria-hidden="true">{paths}</svg></button>'
    )


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
    shown = lambda node, source: card(node["name"], node["ranks"], source)
    add_card(app, stepper, StepperDirective, "chunks", SCRIPT, script, shown)
