"""The ``{frames}`` directive: steps whose pictures are drawn in Python, live without a server.

    ```{frames} online softmax
    ```

The argument is the name of a card, a ``coursekit.show.frames.FrameCard`` that the ``steps.py`` of a
topic has as FRAMES; the reader chooses among its choices. The card is a stepper's (``stepper.py``),
and ``static/frames.js`` shows one of its pictures. Those of the first choice stand in the card, all
others in a script that is fetched when the reader asks for another. Without a script, and on paper,
a table says the same steps.
"""

from docutils import nodes

from bookkit import stepper
from bookkit.cards import CardDirective, add_files, radio_buttons
from bookkit.pictures import SHEET
from coursekit import topics
from coursekit.show.drawing import PICTURE_WIDTH

CARDS = {
    module.FRAMES.name: module.FRAMES
    for module in topics.modules("steps")
    if hasattr(module, "FRAMES")
}
SCRIPT = "_static/frame-steps.js"


class frames(nodes.General, nodes.Element):
    """The place of the card in a page; ``name`` is a key of CARDS."""


class FramesDirective(CardDirective):
    def make(self):
        name = self.argument(CARDS)
        self.first_on_this_page(frames, name)
        return frames(name=name)


def card(name, source):
    """The card as HTML, at its first choice; `source` is the address of the script with all other
    pictures."""
    shown = CARDS[name]
    ident, first, data = name.replace(" ", "-"), shown.first, shown.data(shown.first)
    return stepper.frame(
        ident,
        data["title"],
        shown.look,
        radio_buttons(ident, "n", shown.label, shown.choices, first),
        "Step",
        shown.steps(first),
        1,
        (name, first, data),
        source,
        shown.caption.format(shown.choices[first]),
        f"aspect-ratio:{PICTURE_WIDTH}/{shown.high}",
    )


def script():
    """Every choice of every card."""
    data = {
        name: {choice: shown.data(choice) for choice in shown.choices}
        for name, shown in CARDS.items()
    }
    return f"BOOK.steppers.add({stepper.json_of(data)});\n"


def setup(app):
    shown = lambda node, source: card(node["name"], source)
    stepper.add_card(app, frames, FramesDirective, "frames", SCRIPT, script, shown)
    add_files(app, frames, {SHEET: 803})
