"""Collectives step by step, as data: what the stepper draws and says. The steps are the plans that
run (collective_plans.py).

    steps = stepper_steps("ring all-reduce", 4)
    steps[2].moves        # [Move(source=0, target=1, chunk=2, operator="+="), ...]
    steps[2].picture      # what every rank holds now: of each rank, chunk -> the ranks whose parts
                          # are in it
    steps[2].sentence     # "Step 2 of 6: rank 0 sends chunk C to rank 1, rank 1 chunk D to rank 2,
                          # ..."
    stepper_steps("reduce-scatter", 4, plan=my_plan)      # a plan of your own: a function of n

Step 0 is the picture before the first. The stepper on a page gets moves and words from here
(`page_data`), and follows the moves itself; a test compares what it draws with these pictures.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import MappingProxyType

from shardlab import collective_plans as plans
from shardlab.collective_plans import Holdings, Move, Plan, follow

CHUNK_LETTERS = "ABCDEFGH"
RANKS = range(2, len(CHUNK_LETTERS) + 1)

# Whose chunks: numbers of those that a rank has before the first step, or has to have after the
# last.
CHUNKS = MappingProxyType(
    {
        "all": lambda rank, n, chunks: list(range(chunks)),
        "root": lambda rank, n, chunks: list(range(chunks)) if rank == 0 else [],
        "own": lambda rank, n, chunks: [rank],
        "for all": lambda rank, n, chunks: [n * rank + to for to in range(n)],
        "from all": lambda rank, n, chunks: [n * source + rank for source in range(n)],
    }
)


CELLS = "Rows are ranks, columns are chunks."
SUMS = "Rows are ranks, columns are chunks; the bars of a cell are the ranks whose parts are in it."
WHOLE_SUMS = "Rows are ranks; the bars are the ranks whose arrays are in a rank's sum."


@dataclass(frozen=True)
class Collective:
    """A collective as the stepper knows it. Texts may name {n}; `adds` and `puts`, what is sent,
    {chunk}; `progress` {done} and {wanted}."""

    plan: Callable[[int], Plan]
    have: str  # key of CHUNKS: before the first step
    want: str  # key of CHUNKS: after the last
    begin: str  # what is the case before, and what is wanted
    end: str  # what is the case after
    progress: str = "{done} of {wanted} chunks are where they belong"
    look: str = CELLS  # what to look at
    cut: bool = True  # into n chunks; else every move carries the whole array
    # a chunk is complete when the parts of all ranks are in it; else where it is
    sums: bool = False
    hearsay: bool = False  # a move carries word of all that its sender had heard of
    adds: str = "chunk {chunk}"
    puts: str = "chunk {chunk}"

    def chunks(self, n):
        """How many the array is cut into."""
        return n if self.cut else 1

    def need(self, n):
        """Parts of a complete chunk."""
        return n if self.sums else 1


NAIVE_ALL_REDUCE = Collective(
    plans.naive_all_reduce,
    "all",
    "all",
    cut=False,
    sums=True,
    adds="its array",
    puts="the sum",
    look=WHOLE_SUMS,
    begin="each of the {n} ranks has an array of its own, and all want the sum.",
    end="Now all have the sum.",
    progress="{done} of {wanted} ranks have the sum",
)
COLLECTIVES = MappingProxyType(
    {
        "broadcast": Collective(
            plans.tree_broadcast,
            "root",
            "all",
            cut=False,
            puts="the array",
            look="Rows are ranks.",
            begin="rank 0 has an array, and all {n} ranks want it.",
            end="Now all have it.",
            progress="{done} of {wanted} ranks have the array",
        ),
        "reduce": Collective(
            plans.tree_reduce,
            "all",
            "root",
            cut=False,
            sums=True,
            adds="what it has",
            look=WHOLE_SUMS,
            begin="each of the {n} ranks has an array of its own, and rank 0 wants their sum.",
            end="Now rank 0 has the sum.",
            progress="Rank 0 has the sum of {done} of {wanted} arrays",
        ),
        "naive all-reduce": NAIVE_ALL_REDUCE,
        "tree all-reduce": replace(
            NAIVE_ALL_REDUCE, plan=plans.tree_all_reduce, adds="what it has"
        ),
        "ring all-reduce": Collective(
            plans.ring_all_reduce,
            "all",
            "all",
            sums=True,
            look=SUMS,
            begin="each rank has an array of its own, cut into {n} chunks, and all want the sum.",
            end="Now all have the sum.",
            progress="{done} of {wanted} chunks are complete",
        ),
        "scatter": Collective(
            plans.scatter,
            "root",
            "own",
            begin="rank 0 has an array of {n} chunks, one for each rank.",
            end="Now each rank has its chunk.",
        ),
        "gather": Collective(
            plans.gather,
            "own",
            "root",
            begin="each rank has one chunk, and rank 0 wants all {n}.",
            end="Now rank 0 has all chunks.",
        ),
        "all-gather": Collective(
            plans.ring_all_gather,
            "own",
            "all",
            begin="each rank has one chunk, and all want all {n}.",
            end="Now all have all chunks.",
        ),
        "reduce-scatter": Collective(
            plans.ring_reduce_scatter,
            "all",
            "own",
            sums=True,
            look=SUMS,
            begin=(
                "each rank has an array of its own, cut into {n} chunks, and wants one chunk of"
                " the sum."
            ),
            end="Now each rank has its chunk of the sum.",
            progress="{done} of {wanted} chunks are complete",
        ),
        "all-to-all": Collective(
            plans.all_to_all,
            "for all",
            "from all",
            look=(
                "Rows are ranks. The letter of a chunk is for the rank that gets it, the digit is"
                " the rank that has it."
            ),
            begin="each rank has {n} chunks, one for each rank.",
            end="Now each rank has what was for it.",
        ),
        "barrier": Collective(
            plans.barrier,
            "all",
            "all",
            cut=False,
            sums=True,
            hearsay=True,
            puts="word",
            look=("Rows are ranks; the bars are the ranks that have come, as far as a rank knows."),
            begin="each of the {n} ranks knows only that it has come itself.",
            end="Now each knows that all have come, and goes on.",
            progress="{done} of {wanted} ranks know of all",
        ),
    }
)


@dataclass(frozen=True)
class Step:
    number: int  # 0 is before the first
    moves: list[Move]
    picture: Holdings
    sentence: str  # what this step does
    detail: str  # how far it is


def stepper_steps(name: str, n: int, plan: Callable[[int], Plan] | None = None) -> list[Step]:
    """The collective on ranks 0 ... n - 1, from the picture before its first step to the one after
    its last.

    Raises ValueError for a name that is no key of COLLECTIVES, n not in RANKS, or a plan that
    cannot be (see `follow`).
    """
    if name not in COLLECTIVES:
        raise ValueError(f"no collective is named {name!r}; there are {', '.join(COLLECTIVES)}.")
    if n not in RANKS:
        raise ValueError(f"n = {n}: the stepper draws {RANKS[0]} to {RANKS[-1]} ranks.")
    shown = COLLECTIVES[name] if plan is None else replace(COLLECTIVES[name], plan=plan)
    moves = [[], *shown.plan(n)]
    for number, move in ((number, move) for number, step in enumerate(moves) for move in step):
        if not (0 <= move.source < n and 0 <= move.target < n):
            raise ValueError(f"step {number}, {move}: there are ranks 0 to {n - 1}.")
    pictures = holdings(shown, n)
    return [
        Step(
            number,
            moves[number],
            pictures[number],
            sentence(shown, n, moves, pictures, number),
            detail(shown, n, moves, pictures, number),
        )
        for number in range(len(moves))
    ]


def holdings(shown: Collective, n: int) -> list[Holdings]:
    """The chunks that every rank holds before the first step and after each; for a barrier, the
    ranks of whom it has heard."""
    have = [
        dict.fromkeys(CHUNKS[shown.have](rank, n, shown.chunks(n)), frozenset([rank]))
        for rank in range(n)
    ]
    if not shown.hearsay:
        return follow(shown.plan(n), have)
    pictures = [have]
    for moves in shown.plan(n):
        before, after = pictures[-1], [dict(heard) for heard in pictures[-1]]
        for move in moves:
            after[move.target][0] |= before[move.source][0]
        pictures.append(after)
    return pictures


# --- in words -------------------------------------------------------------------------------------


def label(shown: Collective, n: int, chunk: int) -> str:
    """A letter; of an all-to-all the letter of the rank that the chunk is for and the number of the
    one that it is from."""
    return (
        f"{CHUNK_LETTERS[chunk % n]}{chunk // n}"
        if shown.have == "for all"
        else CHUNK_LETTERS[chunk]
    )


def sentence(shown, n, moves, pictures, number):
    last = len(moves) - 1
    if not number:
        return f"Before step 1 of {last}: {shown.begin.format(n=n)}"
    if not moves[number]:
        return f"Step {number} of {last}: nobody sends."
    first, said = moves[number][0], []
    for move in moves[number]:
        what = (shown.adds if move.operator == "+=" else shown.puts).format(
            chunk=label(shown, n, move.chunk)
        )
        said.append(f"rank {move.source} {'' if said else 'sends '}{what} to rank {move.target}")
    if shown.hearsay:
        text = f"{listed(said)}. Each then knows of all that the sender knew of."
    else:
        held = first.chunk in pictures[number - 1][first.target]
        one, each = ADDS if first.operator == "+=" else REPLACES if held else KEEPS
        text = f"{said[0]}, which {one}." if len(said) == 1 else f"{listed(said)}. Each {each}."
    done, wanted = count_complete(shown, n, pictures[number])
    return (
        f"Step {number} of {last}:"
        f" {text}{' ' + shown.end if number == last and done == wanted else ''}"
    )


ADDS = "adds it to its own", "adds what arrives to its own"
REPLACES = "replaces its own with it", "replaces its own with what arrives"
KEEPS = "keeps it", "keeps what arrives"


def detail(shown, n, moves, pictures, number):
    so_far, total = most_sent(moves[: number + 1]), most_sent(moves)
    done, wanted = count_complete(shown, n, pictures[number])
    progress = shown.progress.format(done=done, wanted=wanted)
    sent = (
        f"{share(shown, n, so_far)} so far, {share(shown, n, total, short=so_far > 0)} in the end"
    )
    return f"Sent by the rank that sends most: {sent}. {progress}."


def listed(parts):
    return " and ".join([", ".join(parts[:-1])] * (len(parts) > 1) + parts[-1:])


def most_sent(moves: Plan) -> int:
    """Messages of the rank that sends most."""
    sources = [move.source for step in moves for move in step]
    return max(map(sources.count, sources), default=0)


def share(shown, n, sent, short=False):
    """Chunks or arrays sent, as a share of the array; of a barrier, bytes. `short`: without
    what they are a share of."""
    if not sent:
        return "nothing"
    if shown.hearsay:
        return f"{sent}" if short else f"{sent} byte{'s' if sent > 1 else ''}"
    if shown.cut:
        return f"{sent}/{n}{'' if short else ' of the array'}"
    return f"{'' if short else 'the array '}{'once' if sent == 1 else f'{sent} times'}"


def count_complete(shown, n, picture):
    """(done, wanted): chunks that are complete where they are wanted; of a reduce, arrays in the
    root's sum."""
    wanted = [
        (rank, chunk) for rank in range(n) for chunk in CHUNKS[shown.want](rank, n, shown.chunks(n))
    ]
    if shown.sums and len(wanted) == 1:
        return len(picture[0][0]), n
    return sum(len(picture[rank].get(chunk, ())) >= shown.need(n) for rank, chunk in wanted), len(
        wanted
    )


# --- what a page gets -----------------------------------------------------------------------------

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-"


def encode(plan: Plan) -> str:
    """A plan in four characters a move: source, target, chunk (one of DIGITS), operator; a space
    before each step."""

    def written(move):
        return f"{move.source}{move.target}{DIGITS[move.chunk]}{move.operator[0]}"

    return "".join(" " + "".join(map(written, moves)) for moves in plan)


def page_data(name: str, n: int, plan: Callable[[int], Plan] | None = None) -> dict:
    """Data that chunks.js of show/static draws.

    `look`: what to look at. `columns`: their heads. `have`: of each rank its chunks before the
    first step, with its own part in each. `labels`: of each chunk, what is written in a cell that
    holds it; or `texts`: the same for a row that is one cell, by the number of parts in it. `need`:
    parts of a complete chunk; bars are drawn where it is more than one. `moves`: see `encode`.
    `say`: of each step, from step 0 on, its sentence and detail. `exchange`: columns stand twice,
    for what a rank has and for what it got. `hearsay`: see Collective.
    """
    steps, shown = stepper_steps(name, n, plan), COLLECTIVES[name]
    have = [sorted(chunks) for chunks in steps[0].picture]
    exchange, ranks = shown.have == "for all", [str(rank) for rank in range(n)]
    return {
        "look": shown.look,
        "need": shown.need(n),
        "have": have,
        "moves": encode([step.moves for step in steps[1:]]),
        "columns": (
            ranks
            if exchange
            else list(CHUNK_LETTERS[:n])
            if shown.cut
            else ["knows of" if shown.hearsay else "array"]
        ),
        **(
            {"labels": [label(shown, n, chunk) for chunk in range(n * n if exchange else n)]}
            if shown.cut
            else {"texts": texts(shown, n)}
        ),
        **({"exchange": 1} if exchange else {}),
        **({"hearsay": 1} if shown.hearsay else {}),
        "say": [[step.sentence, step.detail] for step in steps],
    }


def texts(shown, n):
    """The texts of a row that is one cell, for each number of parts in it."""
    if not shown.sums:
        return ["", "array"]
    if shown.hearsay:
        return ["", *(f"{count} of {n}" for count in range(1, n + 1))]
    return ["", "own", *(f"sum of {count}" for count in range(2, n)), "sum"]
