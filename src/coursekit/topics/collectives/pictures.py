"""Still pictures of the chapter on collectives: two trees, rings through two nodes, and a
hierarchical all-reduce."""

from fractions import Fraction

from coursekit.show.drawing import Drawing

# --- two trees ------------------------------------------------------------------------------------

TREE_RANKS = 8


def first_tree(ranks):
    """Rank -> its parent; the root has None. As NCCL's ncclGetBtree: a rank's level is its lowest
    bit, so that odd ranks are leaves."""
    parents = {0: None}
    for rank in range(1, ranks):
        bit = rank & -rank
        above = (rank ^ bit) | (bit << 1)
        parents[rank] = above if above < ranks else rank ^ bit
    return parents


def second_tree(ranks):
    """The mirror image, in which even ranks are leaves; `ranks` is even (ncclGetDtree)."""
    mirror = lambda rank: None if rank is None else ranks - 1 - rank
    return {mirror(rank): mirror(above) for rank, above in first_tree(ranks).items()}


def tree_depth(parents, rank):
    return 0 if parents[rank] is None else 1 + tree_depth(parents, parents[rank])


def draw_two_trees():
    drawing = Drawing("two-trees", "Two trees over the same eight ranks")
    x = lambda rank: 28 + rank * 49
    for top, down, parents, half in (
        (44, 1, first_tree(TREE_RANKS), "first"),
        (336, -1, second_tree(TREE_RANKS), "second"),
    ):
        y = lambda rank, top=top, down=down, parents=parents: (
            top + down * 36 * tree_depth(parents, rank)
        )
        inner = set(parents.values())
        for rank, above in parents.items():
            if above is not None:
                line = f"M{x(rank):g} {y(rank):g}L{x(above):g} {y(above):g}"
                drawing.path(line, "line communication thick")
        for rank in parents:
            drawing.box(x(rank) - 14, y(rank) - 12, 28, 24, "blank", 12)
            look = "communication" if rank in inner else "frame"
            drawing.box(x(rank) - 14, y(rank) - 12, 28, 24, look, 12)
            ink = "ink" if rank in inner else ""
            drawing.text(x(rank), y(rank) + 5, rank, f"middle small bold {ink}".rstrip())
        words = f"one tree sums the {half} half of the array"
        drawing.text(396, 14 if down > 0 else 374, words, "end small")
    trees = [
        "; ".join(
            f"{above} above {' and '.join(str(r) for r in sorted(parents) if parents[r] == above)}"
            for above in sorted(set(parents.values()) - {None})
        )
        for parents in (first_tree(TREE_RANKS), second_tree(TREE_RANKS))
    ]
    words = (
        "Two trees over ranks 0 to 7, one drawn from the top down, the other, its mirror image,"
        f" from the bottom up; every rank has the same column in both. First tree: {trees[0]}."
        f" Second tree: {trees[1]}. Ranks with children are filled: the even ones in the first"
        " tree, the odd ones in the second."
    )
    return drawing.svg(382, words)


# --- rings through two nodes ----------------------------------------------------------------------

DRAWN_NODES, DRAWN_PLACES = 2, 4


def rings_through_nodes(rings):
    """The ranks in the order of each ring: down one node, over the border, up the other. Each ring
    begins one place further, so that no two leave a node at the same place."""
    turned = [
        [(first + step) % DRAWN_PLACES for step in range(DRAWN_PLACES)] for first in range(rings)
    ]
    return [[*places, *(DRAWN_PLACES + place for place in reversed(places))] for places in turned]


def border_crossings(ring):
    """Pairs (from, to) of the ring's hops between nodes."""
    hops = zip(ring, ring[1:] + ring[:1])
    return [(a, b) for a, b in hops if a // DRAWN_PLACES != b // DRAWN_PLACES]


def draw_many_rings():
    drawing = Drawing("many-rings", "One ring and four rings through two nodes")
    top, pitch, wide = 44, 44, 186
    bottom = top + DRAWN_PLACES * pitch
    for panel, (rings, title) in enumerate(((1, "one ring"), (DRAWN_PLACES, "four rings"))):
        left = 2 + panel * (400 - wide - 4)
        gpus, cards = (left + 24, left + wide - 24), (left + 48, left + wide - 48)
        y = lambda place: top + (place + 0.5) * pitch
        drawing.text(left + wide / 2, 14, title, "middle bold")
        for node in range(DRAWN_NODES):
            drawing.box((left, left + wide - 48)[node], top, 48, bottom - top, "frame", 8)
            drawing.text(gpus[node], top - 8, f"node {node}", "middle small")
        drawing.path(f"M{left + wide / 2:g} {top - 10}V{bottom + 6}", "line dashed")
        found = [border_crossings(ring) for ring in rings_through_nodes(rings)]
        used = {rank for crossings in found for hop in crossings for rank in hop}
        for node in range(DRAWN_NODES):
            for place in range(DRAWN_PLACES):
                rank = node * DRAWN_PLACES + place
                if place < DRAWN_PLACES - 1:
                    ends = (y(place) + 13, y(place + 1) - 13)
                    if rings > 1:  # hops in every order
                        drawing.path(f"M{gpus[node]:g} {ends[0]:g}V{ends[1]:g}", "grid thick")
                    else:
                        start, end = ends[::-1] if node else ends
                        drawing.arrow(gpus[node], start, gpus[node], end, "communication")
                drawing.box(gpus[node] - 14, y(place) - 12, 28, 24, "quiet", 12)
                drawing.text(gpus[node], y(place) + 5, rank, "middle small bold")
                look = "communication" if rank in used else "blank"
                drawing.box(cards[node] - 5, y(place) - 12, 10, 24, look)
                drawing.box(cards[node] - 5, y(place) - 12, 10, 24, "frame")
        for letter, crossings in zip("ABCD", found):
            for start, end in crossings:
                right = start < end
                line = y(start % DRAWN_PLACES) + (rings > 1) * (-5 if right else 5)
                ends = (cards[0] + 7, cards[1] - 7)
                drawing.arrow(
                    *((ends[0], line, ends[1], line) if right else (ends[1], line, ends[0], line)),
                    "communication",
                )
                if rings > 1:
                    x = cards[0] + 16 if right else cards[1] - 16
                    drawing.text(x, line + (-4 if right else 13), letter, "middle small bold")
    said = [
        " and ".join(f"from {a} to {b}" for a, b in border_crossings(ring))
        for ring in rings_through_nodes(DRAWN_PLACES)
    ]
    words = (
        "Two drawings of node 0 with GPUs 0 to 3 and node 1 with GPUs 4 to 7, a network card beside"
        " each GPU, and the nodes' border as a dashed line between the cards. One ring crosses the"
        f" border {said[0]}; the other four cards are idle. Four rings cross: "
        + ", ".join(f"{letter} {hops}" for letter, hops in zip("ABCD", said))
        + ". Every card sends in one ring and receives in another."
    )
    return drawing.svg(bottom + 8, words)


# --- in nodes first -------------------------------------------------------------------------------

HIERARCHICAL_PARTS = (
    "reduce-scatter in each node",
    "all-reduce across nodes",
    "all-gather in each node",
)


def hierarchical_states():
    """After 0 to 3 parts of a hierarchical all-reduce: for each rank and chunk the set of ranks
    whose parts it has added up; and of each part, what a rank sends as a share of the array."""
    world = range(DRAWN_NODES * DRAWN_PLACES)
    states = [[[{rank}] * DRAWN_PLACES for rank in world]]
    node = lambda rank: range(
        rank // DRAWN_PLACES * DRAWN_PLACES, rank // DRAWN_PLACES * DRAWN_PLACES + DRAWN_PLACES
    )
    across = lambda rank: range(rank % DRAWN_PLACES, DRAWN_NODES * DRAWN_PLACES, DRAWN_PLACES)

    def summed(group, chunk):
        return set().union(*(states[-1][rank][chunk] for rank in group))

    own = lambda rank: rank % DRAWN_PLACES
    states.append(
        [
            [summed(node(rank), c) if c == own(rank) else None for c in range(DRAWN_PLACES)]
            for rank in world
        ]
    )
    states.append(
        [
            [summed(across(rank), c) if c == own(rank) else None for c in range(DRAWN_PLACES)]
            for rank in world
        ]
    )
    states.append([[states[-1][node(rank)[c]][c] for c in range(DRAWN_PLACES)] for rank in world])
    inside = Fraction(DRAWN_PLACES - 1, DRAWN_PLACES)
    return states, (inside, Fraction(2 * (DRAWN_NODES - 1), DRAWN_NODES) / DRAWN_PLACES, inside)


def share_of_array(fraction):
    return f"{fraction.numerator}/{fraction.denominator} S"


def draw_hierarchical():
    states, sent = hierarchical_states()
    drawing = Drawing("hierarchical", "A hierarchical all-reduce on two nodes of four GPUs")
    cell, pitch, left = 17, 108, 8
    y = lambda rank: 26 + rank * 20 + (12 if rank >= DRAWN_PLACES else 0)
    ends = y(DRAWN_NODES * DRAWN_PLACES - 1) + 24
    titles = ("before", "after 1", "after 2", "after 3")
    for number, (state, title) in enumerate(zip(states, titles)):
        begin = left + number * pitch * 0.945
        drawing.text(begin + 10 + 2 * cell, 14, title, "middle small bold")
        written = []
        drawn = {"shade3": [], "shade2": [], "shade0": [], "": []}
        for rank, chunks in enumerate(state):
            if number == 0:
                drawing.text(begin, y(rank) + 13, rank, "small")
            signs = {"": [], " ink": []}  # on the full colour, dark in both modes
            for place, parts in enumerate(chunks):
                x = begin + 14 + place * cell
                count = len(parts or ())
                shade = {0: "", 1: "shade3", DRAWN_PLACES: "shade2"}.get(count, "shade0")
                drawn[shade].append((x, y(rank), cell - 1, 17))
                if parts:
                    ink = " ink" if shade == "shade0" else ""
                    signs[ink].append((x + cell / 2 - 0.5, "abcd"[place] if count == 1 else "Σ"))
            written += [(found, y(rank) + 13, ink) for ink, found in signs.items() if found]
        for shade, places in drawn.items():
            if places:
                drawing.boxes(places, f"gathered {shade}" if shade else "frame dashed")
        for signs, line, ink in written:
            drawing.signs(signs, line, f"middle small{ink}")
    drawing.path(f"M0 {(y(DRAWN_PLACES - 1) + 17 + y(DRAWN_PLACES)) / 2:g}H400", "line dashed")
    links = ("NVLink", "the network", "NVLink")
    for number, (step, part, link) in enumerate(zip(HIERARCHICAL_PARTS, sent, links), 1):
        line = f"{number}  {step}: a rank sends {share_of_array(part)} over {link}"
        drawing.text(left, ends + 2 + 20 * number, line, "small")
    words = (
        "Four grids: rows are ranks 0 to 3 of node 0 and, below a dashed line, 4 to 7 of node 1;"
        " columns are the four chunks of an array of S bytes. Before, every rank has its own part"
        " of all chunks. After part 1 each rank has one chunk, summed over its node; after part 2"
        " the same chunk, summed over both nodes; after part 3 all chunks, summed over all. A rank"
        f" sends {share_of_array(sent[0])} inside its node, {share_of_array(sent[1])} over the"
        f" network, {share_of_array(sent[2])} inside its node."
    )
    return drawing.svg(ends + 68, words)


PICTURES = {
    "two-trees": draw_two_trees,
    "many-rings": draw_many_rings,
    "hierarchical": draw_hierarchical,
}
