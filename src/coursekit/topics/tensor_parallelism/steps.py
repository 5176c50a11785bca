"""A block of a transformer through forward and backward, cut among ranks: what every rank has of
each tensor after each move, as data for the card in the chapter.

    steps = pair_steps("tensor", ranks=4)
    steps[5].move             # leave: an all-reduce; steps[0] is before the first move
    steps[5].has["y"]         # Extent.WHOLE
    steps[5].sentence         # "Move 5 of 11: leave makes an all-reduce. ..."

The block is norm and MLP, y = GELU(norm(x) A) B. A tensor has a letter, its gradient the letter
after a d: x, n = norm(x), u the inner columns, y; weights w of the norm, A and B. A test runs the
block on ranks and compares the collectives, their order and the shapes (tests/tensor_parallelism/
test_pair_steps.py). Bytes follow from the formulas.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from typing import NamedTuple

from coursekit.formulas import evaluate
from coursekit.show.format import format_number

PAIR_WAYS = {  # key of the page, title
    "tensor": "Tensor parallelism",
    "sequence": "Sequence parallelism",
    "gathered again": "Sequence parallelism, gathered again",
}
RANKS = (2, 4, 8)
INNER = 4  # columns of u for each column of x
PAIR_COLUMNS = (  # key in the memory palette, heading, tensors
    ("activations", "activations", ("x", "n", "u", "y")),
    ("gradients", "gradients", ("dx", "dn", "du", "dy")),
    ("gradients", "of weights", ("dw", "dA", "dB")),
)
PAIR_LOOK = (
    "Rows are ranks. A box is a matrix: tokens downwards, columns to the right. Filled: what the"
    " rank has. Hatched: a term, as large as the whole, of a sum that nobody has made yet. S is the"
    " size of a tensor of all tokens, such as x. u has four times as many columns and counts twice,"
    " before GELU and after. w is the weight of the norm."
)


class Extent(IntEnum):
    """The part of a matrix that a rank has; the numbers are those of the page's cells."""

    NOTHING = 0
    COLUMNS = 1  # its columns
    WHOLE = 2  # all of it, the same on all ranks
    TERM = 3  # of a sum over ranks
    TOKENS = 6  # its rows


_NONE, _COLUMNS, _ALL, _TERM, _TOKENS = Extent


@dataclass(frozen=True)
class PairMove:
    """A move in words; the tensors of a rank that change, as they are afterwards; the collective,
    or ""."""

    words: str
    then: Mapping[str, Extent] = field(default_factory=dict)
    collective: str = ""
    moved: str = ""  # the tensor that a collective moves, or that nothing is sent of

    @property
    def sends(self) -> bool:
        return bool(self.collective)


class Step(NamedTuple):
    number: int  # 0 is before the first
    move: PairMove | None
    has: dict[str, Extent]
    sentence: str
    detail: str


# --- the moves: forward, then backward ------------------------------------------------------------


def block_moves(way: str) -> Iterator[PairMove]:
    """The moves of one microbatch; with sequence parallelism also the sum of the norm's gradients,
    which is made once a step."""
    if way == "tensor":
        yield from whole_tokens()
    else:
        yield from own_tokens(again=way == "gathered again")


def whole_tokens() -> Iterator[PairMove]:
    yield PairMove("the norm. Every rank computes all of it, and all do the same", {"n": _ALL})
    yield PairMove("enter sends nothing: every rank has all of n", moved="n")
    yield UP
    yield DOWN
    yield PairMove(
        "leave makes an all-reduce: every rank has the sum of the terms",
        {"y": _ALL},
        "all_reduce",
        "y",
    )
    yield PairMove(
        "y is added to x and goes on through the model. Backward comes back with the gradient of y",
        {"y": _NONE, "dy": _ALL},
    )
    yield PairMove(
        "backward of leave sends nothing: every term has the gradient of the sum", moved="dy"
    )
    yield DOWN_BACK
    yield UP_BACK
    yield PairMove(
        "backward of enter makes an all-reduce: every rank has used n, so its gradient is a sum",
        {"dn": _ALL},
        "all_reduce",
        "dn",
    )
    yield PairMove(
        "backward of the norm. The gradient of its weight is complete, and the same on all ranks",
        {"dx": _ALL, "dw": _ALL, **GONE},
    )


def own_tokens(again: bool) -> Iterator[PairMove]:
    yield PairMove("the norm. Each rank computes it for its own tokens", {"n": _TOKENS})
    yield PairMove(
        "gather makes an all-gather: every rank has all of n", {"n": _ALL}, "all_gather", "n"
    )
    yield UP
    yield DOWN
    keeps = "keeps its own tokens of n" if again else "autograd keeps all of n"
    yield PairMove(
        f"a reduce-scatter: each rank has its own tokens of the sum, and {keeps}",
        {"y": _TOKENS, "n": _TOKENS if again else _ALL},
        "reduce_scatter",
        "y",
    )
    yield PairMove(
        "y is added to x and goes on through the model. Backward comes back with the gradient of y",
        {"y": _NONE, "dy": _TOKENS},
    )
    yield PairMove(
        "backward of the reduce-scatter is an all-gather: every term has the gradient of the sum",
        {"dy": _ALL},
        "all_gather",
        "dy",
    )
    yield PairMove(DOWN_BACK.words, {**DOWN_BACK.then, "dy": _TOKENS})
    if again:
        yield PairMove(
            "gathered again: A's gradient needs all of n", {"n": _ALL}, "all_gather", "n"
        )
    yield UP_BACK
    yield PairMove(
        "backward of gather is a reduce-scatter: each rank has its own tokens of the gradient",
        {"dn": _TOKENS},
        "reduce_scatter",
        "dn",
    )
    yield PairMove(
        "backward of the norm. The gradient of its weight is a term, of the rank's own tokens only",
        {"dx": _TOKENS, "dw": _TERM, **GONE},
    )
    yield PairMove(
        "once a step, sum_gradients adds up gradients of whole tensors, in one small all-reduce",
        {"dw": _ALL},
        "all_reduce",
        "dw",
    )


UP = PairMove(
    "the product of n and the rank's columns of A, then GELU: its columns of u, complete",
    {"u": _COLUMNS},
)
DOWN = PairMove(
    "the product of u and the rank's rows of B: a term of y, as large as y, different on each rank",
    {"y": _TERM},
)
DOWN_BACK = PairMove(
    "backward of B and GELU: the rank's columns of u's gradient, and its rows of B's, complete",
    {"du": _COLUMNS, "dB": _TOKENS, "u": _NONE},
)
UP_BACK = PairMove(
    "backward of A: the rank's columns of A's gradient, complete, and a term of n's gradient",
    {"dn": _TERM, "dA": _COLUMNS, "du": _NONE, "n": _NONE},
)
GONE = {"x": _NONE, "dn": _NONE, "dy": _NONE}


# --- what a list of moves does --------------------------------------------------------------------


def pair_steps(way: str, ranks: int) -> list[Step]:
    """The block from its input to the gradient of its input. Raises ValueError for a way or a
    number of ranks that the card does not show."""
    if way not in PAIR_WAYS:
        raise ValueError(f"way = {way!r}: the card shows {', then '.join(PAIR_WAYS)}.")
    if ranks not in RANKS:
        raise ValueError(f"ranks = {ranks}: the card shows {', '.join(map(str, RANKS))}.")
    moves = list(block_moves(way))
    has = dict.fromkeys((name for *_, names in PAIR_COLUMNS for name in names), _NONE)
    has["x"] = _ALL if way == "tensor" else _TOKENS
    begin = f"Before move 1 of {len(moves)}: each rank has "
    begin += "all tokens of x." if way == "tensor" else "its own tokens of x."
    end = sum(sent_tensors(move, ranks) for move in moves)
    steps, sent = [Step(0, None, has, begin, detail(has, ranks, 0, end))], 0.0
    for number, move in enumerate(moves, 1):
        has, sent = {**has, **move.then}, sent + sent_tensors(move, ranks)
        words = f"Move {number} of {len(moves)}: {move.words}."
        steps.append(Step(number, move, has, words, detail(has, ranks, sent, end)))
    return steps


def held_tensors(has: Mapping[str, Extent], names, ranks: int) -> float:
    """The amount that a rank holds of these, in tensors of all tokens and h columns. Two tensors u
    exist, before and after GELU; they and their gradient have 4h columns."""
    share = {_NONE: 0, _COLUMNS: 1 / ranks, _TOKENS: 1 / ranks, _ALL: 1, _TERM: 1}
    size = {"u": 2 * INNER, "du": INNER}
    return sum(size.get(name, 1) * share[has[name]] for name in names)


def sent_tensors(move: PairMove, ranks: int) -> float:
    """The amount that a rank sends around a ring, in the same unit; the gradient of a norm is next
    to nothing."""
    return _sent(move.collective, ranks) if move.sends and move.moved != "dw" else 0.0


@cache
def _sent(collective: str, ranks: int) -> float:
    name = f"ring_{collective}_sent_bytes"
    given = dict(ranks=ranks, rank=0, message_elements=ranks, message_element_bytes=1)
    return evaluate([name], **given)[name] / ranks


def detail(has, ranks, sent, end):
    activations, gradients = (
        format_number(held_tensors(has, names, ranks)) for *_, names in PAIR_COLUMNS[:2]
    )
    so_far = f"sent {format_number(sent)} S" if sent else "sent nothing"
    return (
        f"A rank holds {activations} S of activations and {gradients} S of their gradients. It has"
        f" {so_far} of {format_number(end)} S."
    )


# --- what a page gets -----------------------------------------------------------------------------

FIRST_SHOWN = 5  # after the sum


def page_data(way: str, ranks: int) -> dict:
    """Data that static/shards.js draws: page_data of coursekit.topics.zero.steps says how a step is
    written. `6` is the rank's rows."""
    steps = pair_steps(way, ranks)
    return {
        "shards": ranks,
        "title": f"{PAIR_WAYS[way]}: an MLP, forward and backward",
        "first": FIRST_SHOWN,
        "columns": [
            (kind, heading, [name.removeprefix("d") for name in names])
            for kind, heading, names in PAIR_COLUMNS
        ],
        "moves": " ".join(map(encode, steps)),
        "say": [[step.sentence, step.detail] for step in steps],
    }


def encode(step: Step) -> str:
    """A character for each cell of a rank's row: a digit, or a letter where the move changes the
    cell (A to G) or moves it between ranks (a to g)."""
    marked = {} if step.move is None else dict.fromkeys(step.move.then, "ABCDEFG")
    if step.move is not None and step.move.moved:
        marked[step.move.moved] = "abcdefg" if step.move.sends else "ABCDEFG"
    return "".join(
        marked[name][extent] if name in marked else str(int(extent))
        for name, extent in step.has.items()
    )
