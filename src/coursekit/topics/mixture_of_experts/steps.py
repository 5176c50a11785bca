"""Tokens on their way to experts and back, step by step, as data for the card in the chapter: four
ranks with two tokens and two experts each, and two experts a token.

    steps = dispatch_steps(1)   # an uneven routing
    steps[4].rows[0]        # rows on rank 0 after the exchange
    steps[4].sentence       # "All-to-all of rows: ..."

Every step holds what each rank has. A test sends the same rows, and compares.
"""

from typing import NamedTuple

from coursekit.show.drawing import Drawing
from coursekit.show.frames import FrameCard

DISPATCH_RANKS, TOKENS_OF_A_RANK, EXPERTS_OF_A_RANK = 4, 2, 2
WEIGHTS = (0.6, 0.4)  # of a token's first and second expert
ROUTINGS = (  # a pair of experts for each token, A to H; tokens 2r and 2r + 1 are on rank r
    ((0, 2), (4, 6), (1, 3), (5, 7), (0, 2), (4, 6), (1, 3), (5, 7)),
    ((0, 3), (0, 1), (0, 5), (1, 2), (0, 1), (4, 0), (1, 3), (0, 6)),
    ((0, 1),) * 8,
)
COLOURS_OF_RANKS = ("parameters", "activations", "gradients", "optimizer")  # of the ranks' experts
DISPATCH_LOOK = (
    "A box is a row: a token's letter above, its expert's number below. Rank r has experts 2r and"
    " 2r + 1, and a row has the colour of the rank to which it goes."
)


class TokenRow(NamedTuple):
    token: int
    expert: int
    weight: float

    @property
    def home(self) -> int:
        """The rank that has the token."""
        return self.token // TOKENS_OF_A_RANK

    @property
    def there(self) -> int:
        """The rank that has the expert."""
        return self.expert // EXPERTS_OF_A_RANK


class DispatchStep(NamedTuple):
    number: int
    rows: list[list[TokenRow]]  # of each rank; empty where a rank has tokens
    done: bool  # the experts have computed them
    sentence: str
    detail: str


def letter(token: int) -> str:
    return "ABCDEFGH"[token]


def rows_at_home(routing: int) -> list[list[TokenRow]]:
    """The rows of each rank's tokens, sorted by expert."""
    rows: list[list[TokenRow]] = [[] for _ in range(DISPATCH_RANKS)]
    for token, experts in enumerate(ROUTINGS[routing]):
        for expert, weight in zip(experts, WEIGHTS):
            rows[token // TOKENS_OF_A_RANK].append(TokenRow(token, expert, weight))
    return [sorted(here, key=lambda row: row.expert) for here in rows]


def exchanged(rows: list[list[TokenRow]]) -> list[list[TokenRow]]:
    """Rows at the ranks of their experts, by the rank from which they come."""
    return [
        [row for here in rows for row in here if row.there == rank]
        for rank in range(DISPATCH_RANKS)
    ]


def dispatch_steps(routing: int) -> list[DispatchStep]:
    """Before the router, six moves, and the weighted sum; `routing` is a place in ROUTINGS."""
    nothing: list[list[TokenRow]] = [[] for _ in range(DISPATCH_RANKS)]
    home = rows_at_home(routing)
    there = exchanged(home)
    local = [sorted(here, key=lambda row: row.expert) for here in there]
    loads = [len(here) for here in there]
    total, most = sum(loads), max(loads)
    moved = sum(row.home != row.there for here in there for row in here)
    of_rank_0 = [sum(row.there == 0 for row in here) for here in home]
    (first, second), times = ROUTINGS[routing][0], most * DISPATCH_RANKS / total
    wait = f"All ranks have {most} rows, so nobody waits."
    if most > min(loads):
        wait = f"Rank 0 has {most} rows, {times:g} times an even share, and all others wait for it."
    empty = "In balance one row in four stays."
    if not min(loads):
        empty = (
            "A rank that gets no row takes part with empty messages, and the gradients of its"
            " experts are zeros."
        )
    one, other = WEIGHTS
    said = (
        (nothing, "Each rank has two tokens, and two of the layer's eight experts.",
         "Everything but the experts is a copy on each rank, as in data parallelism."),
        (nothing, f"The router gives each token two experts: A goes to {first} and {second}.",
         f"Each choice has a weight, here {one} and {other}. No rank knows yet what the others will"
         " send."),
        (home, "Each rank copies its tokens into rows, and sorts the rows by expert.",
         "Rows for one rank are neighbours now, so one message takes them."),
        (home, "All-to-all of counts: each rank tells the others how many rows will come.",
         f"Rank 0 will get {' + '.join(map(str, of_rank_0))} = {loads[0]} rows. The CPU has to read"
         " the counts before it can receive."),
        (there, f"All-to-all of rows: of {total} rows {moved} travel.", empty),
        (local, "Each rank sorts what came by expert, and its experts compute.", wait),
        (home, "All-to-all back: the same messages, with sizes exchanged.",
         "Each row is where it was before it left, so no label has to travel."),
        (nothing, f"A token is the weighted sum of its rows: {one} of expert {first}'s and {other}"
         f" of expert {second}'s for A.",
         "Backward goes the same way: the gradient of an all-to-all is an all-to-all with sizes"
         " exchanged."),
    )  # fmt: skip
    return [DispatchStep(at, rows, at > 4, *words) for at, (rows, *words) in enumerate(said)]


def dispatch_picture(routing: int, step: DispatchStep) -> str:
    """The marks of one step, for a drawing as wide as any still picture."""
    number, before = step.number, step.number < 2
    drawing = Drawing(f"dispatch-{routing}-{number}", "")
    for rank, rows in enumerate(step.rows):
        y, right = 6 + rank * 54, 58 + 21 * len(rows) + 8
        drawing.text(0, y + 16, f"rank {rank}", "small bold")
        drawing.text(0, y + 34, f"has {2 * rank}, {2 * rank + 1}", "small soft")
        if before or number == 7:
            _tokens(drawing, ROUTINGS[routing], rank, y, number)
        for place, row in enumerate(rows):
            x, ink = 58 + 21 * place, "middle white" if step.done else "middle"
            drawing.box(x, y, 18, 40, COLOURS_OF_RANKS[row.there] + " pale" * (not step.done), 3)
            drawing.text(x + 9, y + 17, letter(row.token), f"{ink} bold")
            drawing.text(x + 9, y + 34, row.expert, f"{ink} small")
        counts = [sum(row.there == other for row in rows) for other in range(DISPATCH_RANKS)]
        if number == 3:
            drawing.text(right, y + 25, f"sends {', '.join(map(str, counts))} rows", "small")
        elif number in (4, 5) and len(rows) < 12:
            drawing.text(right, y + 25, f"{len(rows) or 'no'} row{'s' * (len(rows) > 1)}", "small")
    return "".join(drawing.marks)


def _tokens(drawing: Drawing, routing: tuple, rank: int, y: int, number: int) -> None:
    """A rank's tokens before they leave, or made of what came back."""
    for place in range(TOKENS_OF_A_RANK):
        token = rank * TOKENS_OF_A_RANK + place
        x, (first, second), came_back = 58 + place * 172, routing[token], number > 1
        drawing.box(x, y, 26, 40, "forward" if came_back else "frame", 3)
        drawing.text(x + 13, y + 25, letter(token), "middle bold" + " white" * came_back)
        words = f"to {first} and {second}" if number == 1 else ""
        if came_back:
            words = f"{WEIGHTS[0]} · E{first} + {WEIGHTS[1]} · E{second}"
        drawing.text(x + 32, y + 25, words, "small")


FRAMES = FrameCard(
    name="to the experts and back",
    title="To the experts and back, {} routing",
    look=DISPATCH_LOOK,
    label="Routing",
    choices={0: "even", 1: "uneven", 2: "collapsed"},
    first=1,
    high=224,
    caption="Eight tokens to eight experts on four ranks and back, with a routing that is {}.",
    steps=dispatch_steps,
    picture=dispatch_picture,
)
