"""The ``{shards}`` directive: who holds which shard under ZeRO, move by move, live without a
server.

    ```{shards}
    ```

The reader chooses the stage, the number of ranks, and one or two microbatches. The card is a
stepper's (``stepper.py``), ``static/shards.js`` draws what it shows. Moves, words and numbers are
data (``coursekit.topics.zero.steps``): those of the first picture stand in the card, the others in
a script that is fetched when the reader asks for another. Without a script, and on paper, a table
says the same moves.
"""

from docutils import nodes

from bookkit import stepper
from bookkit.cards import LoneCardDirective, radio_buttons
from bookkit.stepper import RANKS
from coursekit import topics

# The topic whose steps these are, found by what it has.
_steps = topics.the_one_with("shard_steps", "steps")

SCRIPT = "_static/shard-steps.js"
IDENT = "shards"
STAGE = 1  # at first


class shards(nodes.General, nodes.Element):
    """The place of the card in a page."""


class ShardsDirective(LoneCardDirective):
    kind = shards


def card(source):
    """The card as HTML, at the update; `source` is the address of the script with all other
    pictures."""
    data, steps = _steps.page_data(STAGE, RANKS, 1), _steps.shard_steps(STAGE, RANKS, 1)
    stages = {f"stage {number}": number for number in range(4)}
    counts = {_steps.name_of(0, count).partition(", ")[2]: count for count in _steps.MICROBATCHES}
    menus = (
        radio_buttons(IDENT, "stage", "Stage", stages, f"stage {STAGE}")
        + stepper.ranks_buttons(IDENT, _steps.RANKS)
        + radio_buttons(IDENT, "microbatches", "Microbatches in a step", counts, next(iter(counts)))
    )
    return stepper.frame(
        IDENT,
        data["title"],
        _steps.LOOK,
        menus,
        "Move",
        steps,
        _steps.first_number(STAGE, 1),
        (_steps.name_of(STAGE, 1), RANKS, data),
        source,
        f"The moves of a training step in stage {STAGE} on {RANKS} ranks.",
        stepper.ROOM_OF_SHARDS,
    )


def script():
    """Every stage, number of ranks and of microbatches. What does not depend on the ranks stands
    there once."""
    packed = {}
    for stage in range(4):
        for microbatches in _steps.MICROBATCHES:
            every = {n: _steps.page_data(stage, n, microbatches) for n in _steps.RANKS}
            some = every[_steps.RANKS[0]]
            packed[_steps.name_of(stage, microbatches)] = {
                "all": {key: value for key, value in some.items() if key not in ("shards", "say")},
                "sentences": [sentence for sentence, _ in some["say"]],
                "details": {n: [detail for _, detail in data["say"]] for n, data in every.items()},
            }
    return f"BOOK.steppers.add(BOOK.steppers.kinds.shards.unpack({stepper.json_of(packed)}));\n"


def setup(app):
    shown = lambda node, source: card(source)
    stepper.add_card(app, shards, ShardsDirective, "shards", SCRIPT, script, shown)
