"""The still pictures of chapter 14: three mixes; published runs are in published_pictures.py."""

from coursekit.show.drawing import Drawing
from coursekit.topics.long_sequences.published_pictures import draw_longer_runs

SHARERS = 4  # ranks, and heads
_CELL = 15


def grid(drawing, x, y, filled, now=(), words=""):
    """Tokens across by rank, heads down; pairs (token, head) that a rank has, and that it gets."""
    places = [(token, head) for token in range(SHARERS) for head in range(SHARERS)]
    box = lambda token, head: (x + _CELL * token, y + _CELL * head, _CELL - 2, _CELL - 2)
    drawing.boxes([box(*at) for at in places], "frame")
    drawing.boxes([box(*at) for at in filled], "parameters")
    drawing.boxes([box(*at) for at in now], "communication")
    drawing.text(x, y + SHARERS * _CELL + 13, words, "small soft")


def draw_three_mixes():
    """Rank 1 of four: its queries, and the keys that come to them."""
    drawing = Drawing("three-mixes", "Three ways in which rank 1 of 4 sees all keys")
    every = range(SHARERS)
    own = [(1, head) for head in every]
    far = [[(token, head) for head in every] for token in (0, 3, 2)]
    drawing.legend(0, 4, (("parameters", "rank 1 has it"), ("communication", "it comes")), 130)
    drawing.text(0, 42, "columns: tokens of ranks 0 to 3; rows: heads", "small soft")
    left, pitch = 104, 76
    top = 62
    drawing.text(0, top + 14, "ring", "bold")
    drawing.text(0, top + 32, "a block a turn", "small soft")
    grid(drawing, left, top, own, words="queries")
    for turn, block in enumerate(far):
        grid(drawing, left + pitch * (turn + 1), top, (), block, f"keys, turn {turn + 2}")
    top += 100
    drawing.text(0, top + 14, "gathered", "bold")
    drawing.text(0, top + 32, "all keys at once", "small soft")
    grid(drawing, left, top, own, words="queries")
    grid(drawing, left + pitch, top, own, sum(far, []), "keys")
    top += 100
    drawing.text(0, top + 14, "Ulysses", "bold")
    drawing.text(0, top + 32, "heads for", "small soft")
    drawing.text(0, top + 48, "tokens", "small soft")
    head = [(token, 1) for token in every if token != 1]
    grid(drawing, left, top, [(1, 1)], head, "queries")
    grid(drawing, left + pitch, top, [(1, 1)], head, "keys")
    drawing.text(left + 2 * pitch, top + 34, "then back: rank 1 keeps", "small soft")
    drawing.text(left + 2 * pitch, top + 50, "its tokens of all heads", "small soft")
    words = (
        "Squares of four tokens by four heads, for rank 1 of four. Ring: queries of its own tokens,"
        " all heads; in turns 2, 3 and 4 the keys of ranks 0, 3 and 2 come, one rank's at a time."
        " Gathered: the same queries, and the keys of all ranks come at once. Ulysses: of one head"
        " the queries and the keys of all ranks come; rank 1 gives away its tokens' other heads."
    )
    return drawing.svg(top + 78, words)


PICTURES = {"three-mixes": draw_three_mixes, "longer-runs": draw_longer_runs}
