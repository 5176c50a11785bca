"""Which pairs of a query and a key each of four ranks computes in each turn of a ring, as data for
the card in the chapter: 16 tokens, in three orders.

    steps = block_steps(ZIGZAG)
    steps[2].pairs        # (8, 8, 8, 8): of each rank, in turn 2
    steps[2].sentence     # "Turn 2 of 4: ..."

A test compares the places with those of shardlab.context_parallel.
"""

from typing import NamedTuple

from coursekit.show.drawing import Drawing
from coursekit.show.frames import FrameCard

CONTIGUOUS, STRIPED, ZIGZAG = range(3)
TOKEN_ORDERS = {CONTIGUOUS: "contiguous", STRIPED: "striped", ZIGZAG: "zigzag"}
RING_RANKS, RING_TOKENS = 4, 16
BLOCKS_HIGH = 296  # of a picture
BLOCKS_LOOK = (
    "A row is a query, a column a key; the number beside it is the rank that has the token. Filled:"
    " computed in this turn. Faintly filled: before. Outlined: still to come. Beyond the diagonal"
    " nobody looks."
)


def places_of(order: int, rank: int) -> list[int]:
    """The tokens of a rank."""
    each, half = RING_TOKENS // RING_RANKS, RING_TOKENS // RING_RANKS // 2
    if order == CONTIGUOUS:
        return list(range(rank * each, (rank + 1) * each))
    if order == STRIPED:
        return list(range(rank, RING_TOKENS, RING_RANKS))
    starts = rank * half, (2 * RING_RANKS - 1 - rank) * half
    return [start + at for start in starts for at in range(half)]


class BlockStep(NamedTuple):
    number: int  # 0 is before the first turn, RING_RANKS + 1 after the last
    pairs: tuple  # of each rank, in this turn
    longest: tuple  # of each turn so far: the pairs of its slowest rank
    sentence: str
    detail: str


def seen_pairs(order: int, rank: int, turn: int) -> list[tuple[int, int]]:
    """(query, key) that a rank computes in a turn, from 1: its queries, and the keys of the rank
    from which they have come in so many steps."""
    keys = places_of(order, (rank - turn + 1) % RING_RANKS)
    return [(q, k) for q in places_of(order, rank) for k in keys if k <= q]


def _listed(pairs):
    """ "rank 0 none, ranks 1, 2 and 3 16 each"."""
    said = []
    for amount in sorted(set(pairs)):
        who = [str(rank) for rank, own in enumerate(pairs) if own == amount]
        names = " and ".join([", ".join(who[:-1]), who[-1]] if len(who) > 1 else who)
        said.append(f"{amount or 'none'} on rank{'s' * (len(who) > 1)} {names}")
    return "; ".join(said)


def block_steps(order: int) -> list[BlockStep]:
    """Before the first turn, after each, and the whole. ValueError unless there is the order."""
    if order not in TOKEN_ORDERS:
        raise ValueError(f"order {order}: there are {', '.join(map(str, TOKEN_ORDERS))}.")
    turns = [
        tuple(len(seen_pairs(order, rank, turn)) for rank in range(RING_RANKS))
        for turn in range(1, RING_RANKS + 1)
    ]
    longest = tuple(map(max, turns))
    each = sum(map(sum, turns)) // RING_RANKS  # 136 pairs of 16 tokens
    own = "; ".join(
        f"rank {r} {', '.join(map(str, places_of(order, r)))}" for r in range(RING_RANKS)
    )
    steps = [
        BlockStep(
            *(0, (0,) * RING_RANKS, ()),
            f"Tokens are dealt: {TOKEN_ORDERS[order]}. {sum(map(sum, turns))} pairs are to be"
            f" computed, {each} by each rank if all work alike.",
            f"Tokens by rank: {own}.",
        )
    ]
    for number, pairs in enumerate(turns, 1):
        far = _WHOSE[number - 1]
        steps.append(
            BlockStep(
                *(number, pairs, longest[:number]),
                f"Turn {number} of {RING_RANKS}: each rank has {far}. Pairs: {_listed(pairs)}.",
                f"The turn takes as long as its slowest rank: {max(pairs)}."
                + _summed(longest[:number]),
            )
        )
    work = [sum(turn[rank] for turn in turns) for rank in range(RING_RANKS)]
    steps.append(
        BlockStep(
            *(RING_RANKS + 1, (0,) * RING_RANKS, longest),
            f"The end: {' + '.join(map(str, longest))} = {sum(longest)} in a row, where an even"
            f" share is {each}: {100 * each / sum(longest):.0f} % of the ring is work.",
            f"In all: {_listed(work)}. {_LIMITS[order]}",
        )
    )
    return steps


def _summed(longest):
    if len(longest) == 1:
        return " Keys and values leave for the next rank meanwhile."
    return f" So far {' + '.join(map(str, longest))} = {sum(longest)}."


_WHOSE = (
    "its own keys",
    "the keys of the rank before it",
    "the keys of the rank two places before it",
    "the keys of the rank three places before it",
)
_LIMITS = {
    CONTIGUOUS: "With many tokens c / (2c − 1) is left: 57 % on 4 ranks, 53 % on 8.",
    STRIPED: "A rank that looks at keys of a later one has a diagonal less; with many tokens that"
    " does not count.",
    ZIGZAG: "An early chunk and a late one make up for each other, in every turn.",
}


def block_picture(order: int, step: BlockStep) -> str:
    """The marks of one step, for a drawing as wide as any still picture and BLOCKS_HIGH high."""
    drawing = Drawing(f"blocks-{order}-{step.number}", "")
    left, top, pitch = 40, 50, 15
    owner = {token: rank for rank in range(RING_RANKS) for token in places_of(order, rank)}
    centres = [(left + pitch * token + 4, owner[token]) for token in range(RING_TOKENS)]
    drawing.text(left, 14, "keys, by the rank that has them", "small soft")
    drawing.signs(centres, 42, "small")
    drawing.text(0, 42, "query", "small soft")
    for token in range(RING_TOKENS):
        drawing.text(left - 18, top + pitch * token + 12, owner[token], "small")
    done, now, later, work = [], [], [], []
    for rank in range(RING_RANKS):
        before = 0
        for turn in range(1, RING_RANKS + 1):
            pairs = seen_pairs(order, rank, turn)
            places = now if turn == step.number else done if turn < step.number else later
            before += len(pairs) * (turn < step.number)
            places += [(left + pitch * k, top + pitch * q, pitch - 2, pitch - 2) for q, k in pairs]
        work.append(before)
    drawing.boxes(later, "frame")
    drawing.boxes(done, "forward pale")
    drawing.boxes(now, "forward")
    x = left + pitch * RING_TOKENS + 14
    drawing.text(x, 14, "pairs by rank", "small soft")
    for rank, (before, own) in enumerate(zip(work, step.pairs)):
        y = top + 56 * rank
        drawing.text(x, y + 12, f"rank {rank}: {before + own}", "small")
        drawing.bar(x, y + 18, 12, [("forward pale", 1.5 * before), ("forward", 1.5 * own)])
    if step.longest:
        drawing.text(x, top + 56 * RING_RANKS + 12, f"in a row: {sum(step.longest)}", "small bold")
    return "".join(drawing.marks)


FRAMES = FrameCard(
    name="blocks of attention",
    title="Pairs by rank and turn, in {} order",
    look=BLOCKS_LOOK,
    label="Order of the tokens",
    choices=TOKEN_ORDERS,
    first=ZIGZAG,
    high=BLOCKS_HIGH,
    caption="A ring of four ranks, 16 tokens in {} order.",
    steps=block_steps,
    picture=block_picture,
)
