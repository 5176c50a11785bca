"""The shards that each rank holds, move by move, as data: what the card in the chapter on ZeRO
draws and says.

    steps = shard_steps(stage=2, ranks=4, microbatches=1)
    steps[4].move          # Backward(unit=2); steps[0] is what there is before the first move
    steps[4].picture       # of each unit, what every rank has
    steps[4].sentence      # "Move 4 of 13: backward of unit C. ..."

The moves are those of coursekit.topics.zero.moves, which a test compares with the code that runs;
bytes and elements come from the formulas. Units are of one size, which the ranks divide. What the
card gets says `page_data`.
"""

from functools import cache
from typing import NamedTuple

from coursekit.formulas import RECIPES, evaluate
from coursekit.show.format import format_number
from coursekit.topics.zero.moves import (
    STAGES,
    AllGather,
    AllReduce,
    Backward,
    Forward,
    Free,
    Has,
    HeldPart,
    ReduceScatter,
    ShardMove,
    Update,
    follow_moves,
)

UNIT_LETTERS = "ABC"
RANKS = range(2, 9)
MICROBATCHES = range(1, 3)
RECIPE = "bf16 + fp32 master"
COLUMNS = (
    ("parameters", "parameters"),
    ("gradients", "gradients"),
    ("optimizer", "optimizer states"),
    ("gathered", "gathered"),
)
LOOK = (
    f"Rows are ranks; {', '.join(UNIT_LETTERS)} are units of the model. Solid: the same on all"
    " ranks, or a rank's shard. Hatched: gradients of this rank's examples only, or"
    " parameters from before the update."
)


class Step(NamedTuple):
    number: int  # 0 is before the first move
    move: ShardMove | None
    picture: list[Has]
    sentence: str  # what this move does
    detail: str  # what a rank has then, and has sent


def shard_steps(stage: int, ranks: int, microbatches: int) -> list[Step]:
    """One training step under the stage, from what is kept between two steps to the last move.

    Raises ValueError for a stage, ranks or microbatches that the card does not show.
    """
    for name, value, known in (
        ("stage", stage, range(4)),
        ("ranks", ranks, RANKS),
        ("microbatches", microbatches, MICROBATCHES),
    ):
        if value not in known:
            raise ValueError(f"{name} = {value}: the card shows {known[0]} to {known[-1]}.")
    moves, pictures = (
        list(STAGES[stage](len(UNIT_LETTERS), microbatches)),
        follow_moves(stage, len(UNIT_LETTERS), microbatches),
    )
    bytes_held = [bytes_of_picture(picture, ranks) for picture in pictures]
    sent = [sent_elements(moves[:number], ranks) for number in range(len(pictures))]
    steps = []
    for number, picture in enumerate(pictures):
        before = pictures[max(number - 1, 0)]
        words = sentence(stage, moves[:number], before, microbatches)
        begin = f"Move {number}" if number else "Before move 1"
        steps.append(
            Step(
                number,
                moves[number - 1] if number else None,
                picture,
                f"{begin} of {len(moves)}: {words}",
                detail(bytes_held, sent, number),
            )
        )
    return steps


# --- counted --------------------------------------------------------------------------------------


@cache
def per_element():
    """Bytes of one parameter's parameter, gradient and optimizer states."""
    targets = ["parameter_bytes", "gradient_bytes", "optimizer_bytes"]
    return tuple(evaluate(targets, parameters=1, **RECIPES[RECIPE].quantities).values())


def bytes_of_picture(picture: list[Has], ranks: int) -> float:
    """Bytes that a rank holds for each parameter of the model."""
    parameter, gradient, optimizer = per_element()
    # of a unit that has one for each rank
    elements = {HeldPart.NOTHING: 0, HeldPart.SHARD: 1, HeldPart.WHOLE: ranks}
    return sum(
        parameter * (elements[has.parameters] + elements[has.gathered])
        + gradient * (elements[has.own] + elements[has.gradients])
        + optimizer * elements[has.optimizer]
        for has in picture
    ) / (ranks * len(picture))


SENT = {
    AllReduce: "ring_all_reduce_sent_bytes",
    ReduceScatter: "ring_reduce_scatter_sent_bytes",
    AllGather: "ring_all_gather_sent_bytes",
}


@cache
def sent_by(kind: type[ShardMove], ranks: int) -> int:
    """Elements that a rank sends in a move, of a unit that has one for each rank."""
    formula = SENT.get(kind)
    return (
        evaluate([formula], ranks=ranks, rank=0, message_elements=ranks, message_element_bytes=1)[
            formula
        ]
        if formula
        else 0
    )


def sent_elements(moves: list[ShardMove], ranks: int) -> float:
    """Elements that a rank has sent after these moves, for each parameter of the model."""
    return sum(sent_by(type(move), ranks) for move in moves) / (ranks * len(UNIT_LETTERS))


# --- in words -------------------------------------------------------------------------------------

BEFORE = (
    "every rank has all parameters and all optimizer states.",
    "every rank has all parameters, and the optimizer states of its shard.",
    "every rank has all parameters, and the optimizer states of its shard.",
    "every rank has its shard of the parameters and of the optimizer states.",
)
CHANGED = (
    "Every rank changes all parameters, and all do the same work.",
    (
        "A rank changes its shard, for which it has the optimizer states. Its other parameters are"
        " old now."
    ),
    (
        "A rank changes its shard, for which it has the optimizer states. Its other parameters are"
        " old now."
    ),
    "A rank changes its shard, and that is all: the next forward gathers.",
)


def sentence(stage, made, before, microbatches):
    """A sentence on the last of the moves made; `before` is what there was before it."""
    if not made:
        return BEFORE[stage]
    move, had = made[-1], before[made[-1].unit or 0]
    if isinstance(move, Update):
        return f"the update. {CHANGED[stage]}"
    unit = f"unit {UNIT_LETTERS[move.unit]}"
    microbatch = -(-sum(type(one) is type(move) for one in made) // len(UNIT_LETTERS))
    within = f" in microbatch {microbatch}" if microbatches > 1 else ""
    if isinstance(move, Backward):
        more = (
            "Each rank adds to its gradients of the unit"
            if had.own
            else "Each rank has all gradients of the unit now"
        )
        return f"backward of {unit}{within}. {more}, from its own examples only."
    if isinstance(move, Forward):
        return f"forward of {unit}{within}. Each rank computes with examples of its own."
    if isinstance(move, ReduceScatter):
        keeps = (
            "adds its shard of their mean to the one it has"
            if had.gradients
            else "keeps its shard of their mean"
        )
        return f"reduce-scatter of {unit}’s gradients. A rank {keeps} and frees the rest."
    if isinstance(move, AllReduce):
        return f"all-reduce of {unit}’s gradients. Now every rank has their mean over all ranks."
    if isinstance(move, Free):
        return f"{unit}’s parameters are freed. A rank has only its shard of them again."
    return f"all-gather of {unit}’s parameters. " + (
        "Each rank gets what the others have updated."
        if had.old
        else "For a moment every rank has them whole."
    )


def detail(held, sent, number):
    so_far = f"sent {format_number(sent[number])}Ψ" if sent[number] else "sent nothing"
    return (
        f"A rank holds {format_number(held[number])} bytes for each of Ψ parameters"
        f" ({format_number(max(held))} at its peak). It has {so_far} of"
        f" {format_number(sent[-1])}Ψ elements."
    )


# --- what a page gets -----------------------------------------------------------------------------


def name_of(stage: int, microbatches: int) -> str:
    """The page's name of a step; the values of its knobs, one after the other."""
    return f"stage {stage}, {microbatches} microbatch{'es' * (microbatches > 1)}"


def first_number(stage: int, microbatches: int) -> int:
    """The step that is shown first: the update, when shards are seen best."""
    return next(
        number
        for number, move in enumerate(STAGES[stage](len(UNIT_LETTERS), microbatches), 1)
        if isinstance(move, Update)
    )


def page_data(stage: int, ranks: int, microbatches: int) -> dict:
    """Data that static/shards.js draws.

    `moves`: of each step, from step 0 on, a character for each cell of a rank's row, columns from
    left to right, in each its units; a space between steps. `0` nothing, `1` the rank's shard, `2`
    all; `3` all, but hatched; `4` is `3` and `1` over one another; `5` is `2` hatched, but for the
    rank's shard. A letter in its place marks the cell: `a` to `f` a collective, `A` to `F`
    computing. `columns`: of each its key in the memory palette and its name. `say`: of each step
    its sentence and detail. `first`: the step shown first.
    """
    steps = shard_steps(stage, ranks, microbatches)
    return {
        "shards": ranks,
        "title": f"Who holds which shard in stage {stage}",
        "first": first_number(stage, microbatches),
        "units": UNIT_LETTERS,
        "columns": COLUMNS,
        "moves": " ".join(map(encode, steps)),
        "say": [[step.sentence, step.detail] for step in steps],
    }


def encode(step: Step) -> str:
    cells = [
        *(5 if has.old else has.parameters for has in step.picture),
        *(
            (3 + (has.gradients == HeldPart.SHARD) if has.own else has.gradients)
            for has in step.picture
        ),
        *(has.optimizer for has in step.picture),
        *(has.gathered for has in step.picture),
    ]
    letters = "abcdef" if type(step.move) in SENT else "ABCDEF"
    return "".join(
        letters[code] if number in marked(step) else str(int(code))
        for number, code in enumerate(cells)
    )


def marked(step: Step) -> set[int]:
    """Cells of a row that the move reads or changes."""
    move, count = step.move, len(UNIT_LETTERS)
    if move is None:
        return set()
    if move.unit is None:
        return set(range(count))  # it changes parameters
    weights = move.unit + (0 if step.picture[move.unit].parameters == HeldPart.WHOLE else 3 * count)
    gradients = move.unit + count
    return {
        Forward: {weights},
        Backward: {weights, gradients},
        AllReduce: {gradients},
        ReduceScatter: {gradients},
    }.get(type(move), {weights})
