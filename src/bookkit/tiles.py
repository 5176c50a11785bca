"""The ``{tiles}`` directive: online softmax tile by tile, live without a server.

    ```{tiles} 2
    ```

The argument is the number of keys in a tile that is shown first; the reader chooses others. The
card is a stepper's (``stepper.py``). Its pictures are drawn in Python
(``coursekit.topics.kernels.steps``), and ``static/frames.js`` shows one of them. Those of the first
choice stand in the card, the others in a script that is fetched when the reader asks for another.
Without a script, and on paper, a table says the same steps.
"""

from docutils import nodes
from docutils.parsers.rst import directives

from bookkit import stepper
from bookkit.cards import CardDirective, add_files, radio_buttons
from bookkit.pictures import SHEET
from coursekit import topics

# The topic whose steps these are, found by what it has.
_steps = topics.the_one_with("tile_steps", "steps")

SCRIPT = "_static/tile-steps.js"
IDENT, NAME = "tiles", "online softmax"


class tiles(nodes.General, nodes.Element):
    """The place of the card in a page; ``tile`` is the one shown first."""


class TilesDirective(CardDirective):
    def make(self):
        tile = directives.nonnegative_int(self.arguments[0])
        _steps.tile_steps(tile)
        self.first_on_this_page(tiles)
        return tiles(tile=tile)


def card(tile, source):
    """The card as HTML, at its first tile; `source` is the address of the script with all other
    pictures."""
    data, choices = _steps.tiles_data(tile), {n: n for n in _steps.TILES}
    return stepper.frame(
        IDENT,
        data["title"],
        _steps.TILES_LOOK,
        radio_buttons(IDENT, "n", "Keys in a tile", choices, tile),
        "Step",
        _steps.tile_steps(tile),
        1,
        (NAME, tile, data),
        source,
        f"Online softmax of eight keys in tiles of {tile}.",
        _steps.HIGH,
    )


def script():
    """Every size of a tile."""
    data = {NAME: {tile: _steps.tiles_data(tile) for tile in _steps.TILES}}
    return f"BOOK.steppers.add({stepper.json_of(data)});\n"


def setup(app):
    shown = lambda node, source: card(node["tile"], source)
    stepper.add_card(app, tiles, TilesDirective, "frames", SCRIPT, script, shown)
    add_files(app, tiles, {SHEET: 803})
