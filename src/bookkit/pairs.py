"""The ``{pairs}`` directive: a block cut among ranks, forward and backward, live without a server.

    ```{pairs} tensor
    :ranks: 4
    ```

The argument is the way that is shown first, the option on how many ranks; the reader chooses
others. The card is a stepper's (``stepper.py``), ``static/shards.js`` draws what it shows. Moves,
words and numbers are data (``coursekit.topics.tensor_parallelism.steps``): those of the first
picture stand in the card, the others in a script that is fetched when the reader asks for another.
Without a script, and on paper, a table says the same moves.
"""

from docutils import nodes

from bookkit import stepper
from bookkit.cards import radio_buttons
from coursekit import topics

# The topic whose steps these are, found by what it has.
_steps = topics.the_one_with("pair_steps", "steps")

SCRIPT = "_static/pair-steps.js"
IDENT = "pairs"


class pairs(nodes.General, nodes.Element):
    """The place of the card in a page; ``way`` and ``ranks`` are those shown first."""


class PairsDirective(stepper.SteppedDirective):
    def make(self):
        way, ranks = " ".join(self.arguments[0].split()), self.options.get("ranks", 4)
        _steps.pair_steps(way, ranks)
        self.first_on_this_page(pairs)
        return pairs(way=way, ranks=ranks)


def card(way, ranks, source):
    """The card as HTML, at the sum; `source` is the address of the script with all other
    pictures."""
    data, steps = _steps.page_data(way, ranks), _steps.pair_steps(way, ranks)
    ways = {name: name for name in _steps.PAIR_WAYS}
    menus = radio_buttons(IDENT, "way", "Parallelism", ways, way)
    menus += stepper.ranks_buttons(IDENT, _steps.RANKS, ranks)
    return stepper.frame(
        IDENT,
        data["title"],
        _steps.PAIR_LOOK,
        menus,
        "Move",
        steps,
        _steps.FIRST_SHOWN,
        (way, ranks, data),
        source,
        f"The moves of {_steps.PAIR_WAYS[way].lower()} on {ranks} ranks.",
        stepper.room_of_shards(ranks),
    )


def script():
    """Every way on every number of ranks."""
    data = {way: {n: _steps.page_data(way, n) for n in _steps.RANKS} for way in _steps.PAIR_WAYS}
    return f"BOOK.steppers.add({stepper.json_of(data)});\n"


def setup(app):
    shown = lambda node, source: card(node["way"], node["ranks"], source)
    stepper.add_card(app, pairs, PairsDirective, "shards", SCRIPT, script, shown)
