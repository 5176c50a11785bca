"""The ``{pairs}`` directive: a block cut among ranks, forward and backward, live without a server.

    ```{pairs}
    ```

The reader chooses the way and the number of ranks. The card is a stepper's (``stepper.py``),
``static/shards.js`` draws what it shows. Moves, words and numbers are data
(``coursekit.topics.tensor_parallelism.steps``): those of the first picture stand in the card, the
others in a script that is fetched when the reader asks for another. Without a script, and on paper,
a table says the same moves.
"""

from docutils import nodes

from bookkit import stepper
from bookkit.cards import LoneCardDirective, radio_buttons
from bookkit.stepper import RANKS
from coursekit import topics

# The topic whose steps these are, found by what it has.
_steps = topics.the_one_with("pair_steps", "steps")

SCRIPT = "_static/pair-steps.js"
IDENT = "pairs"
WAY = "tensor"  # at first


class pairs(nodes.General, nodes.Element):
    """The place of the card in a page."""


class PairsDirective(LoneCardDirective):
    kind = pairs


def card(source):
    """The card as HTML, at the sum; `source` is the address of the script with all other
    pictures."""
    data, steps = _steps.page_data(WAY, RANKS), _steps.pair_steps(WAY, RANKS)
    ways = {name: name for name in _steps.PAIR_WAYS}
    menus = radio_buttons(IDENT, "way", "Parallelism", ways, WAY)
    menus += stepper.ranks_buttons(IDENT, _steps.RANKS)
    return stepper.frame(
        IDENT,
        data["title"],
        _steps.PAIR_LOOK,
        menus,
        "Move",
        steps,
        _steps.FIRST_SHOWN,
        (WAY, RANKS, data),
        source,
        f"The moves of {_steps.PAIR_WAYS[WAY].lower()} on {RANKS} ranks.",
        stepper.ROOM_OF_SHARDS,
    )


def script():
    """Every way on every number of ranks."""
    data = {way: {n: _steps.page_data(way, n) for n in _steps.RANKS} for way in _steps.PAIR_WAYS}
    return f"BOOK.steppers.add({stepper.json_of(data)});\n"


def setup(app):
    shown = lambda node, source: card(source)
    stepper.add_card(app, pairs, PairsDirective, "shards", SCRIPT, script, shown)
