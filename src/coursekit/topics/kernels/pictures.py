"""The still pictures of chapter 13: trips to memory, and the graph that autograd builds."""

from typing import NamedTuple

from coursekit.show.drawing import PICTURE_WIDTH, Drawing

# --- nine trips, and two --------------------------------------------------------------------------

CHAIN = (("x + b", 1), ("relu", 1), ("· 0.5", 1), ("+ x", 2))  # words, tensors read


def trips(drawing, top, kernels):
    """Memory above, kernels below, an arrow for each tensor that one of them reads or writes."""
    drawing.box(0, top, PICTURE_WIDTH, 26, "parameters pale", 4)
    drawing.text(8, top + 18, "memory", "small")
    drawing.text(0, top + 98, "chip", "small soft")
    room = (PICTURE_WIDTH - 36) / len(kernels)
    for number, (words, reads) in enumerate(kernels):
        x, wide = 36 + number * room, room - 10
        drawing.box(x, top + 74, wide, 34, "forward", 4)
        drawing.text(x + wide / 2, top + 96, words, "middle white")
        arrows = reads + 1
        for place in range(arrows):
            at = x + wide * (place + 0.5) / arrows
            if place < reads:
                drawing.arrow(at, top + 28, at, top + 72, "communication thick")
            else:
                drawing.arrow(at, top + 72, at, top + 28, "backward thick")


def draw_nine_trips():
    drawing = Drawing("nine-trips", "Four kernels and nine trips, one kernel and two")
    reads = sum(count for _, count in CHAIN)
    moved = reads + len(CHAIN)
    drawing.text(0, 14, f"four kernels, {moved} tensors move", "bold small")
    trips(drawing, 24, CHAIN)
    drawing.text(0, 162, "one kernel, 2 tensors move", "bold small")
    trips(drawing, 172, (("relu(x + b) · 0.5 + x", 1),))
    drawing.legend(262, 4, (("communication", "read"), ("backward", "written")), 70)
    words = (
        f"Above, four kernels in a row below a band that is the memory: {reads} arrows down, which"
        f" are reads, and {len(CHAIN)} up, which are results. The last kernel has two reads. Below,"
        " one kernel for all four operations, with one arrow down and one up."
    )
    return drawing.svg(282, words)


# --- the graph that autograd builds ---------------------------------------------------------------


class GraphNode(NamedTuple):
    """A node of autograd's graph: its line among CODE, what it keeps, and where backward goes
    next."""

    name: str
    line: int
    keeps: str
    then: tuple[int, ...] = ()  # places in NODES


CODE = ("h = x @ w + b", "y = h.relu()", "loss = (y * y).mean()")
NODES = (  # backward's order; x asks for no gradient
    GraphNode("MeanBackward0", 2, "a shape", (1,)),
    GraphNode("MulBackward0", 2, "y, twice", (2,)),
    GraphNode("ReluBackward0", 1, "y", (3,)),
    GraphNode("AddBackward0", 0, "nothing", (4, 6)),
    GraphNode("MmBackward0", 0, "x", (5,)),
    GraphNode("AccumulateGrad", -1, "w.grad"),
    GraphNode("AccumulateGrad", -1, "b.grad"),
)


def draw_autograd_graph():
    drawing = Drawing("autograd-graph", "Three lines of code, and the graph they leave behind")
    left, wide, pitch, side = 158, 122, 40, 152
    drawing.text(0, 14, "the code", "bold small")
    drawing.text(left, 14, "the graph, as backward walks", "bold small")
    places = [(left, 26 + pitch * row) for row in range(6)] + [(0, 26 + pitch * 5)]
    for (x, y), node in zip(places, NODES):
        leaf = not node.then
        drawing.box(x, y, wide, 26, "gradients" if leaf else "quiet", 4)
        drawing.text(x + wide / 2, y + 18, node.name, "middle small" + " ink" * leaf)
        words = f"adds to {node.keeps}" if leaf else f"keeps {node.keeps}"
        if x:
            drawing.text(x + wide + 8, y + 18, words, "small soft")
        else:
            drawing.text(x, y + 42, words, "small soft")
        for after in node.then:
            to_x, to_y = places[after]
            if to_x == x:
                drawing.arrow(x + wide / 2, y + 27, x + wide / 2, to_y - 1)
            else:
                drawing.arrow(x - 1, y + 22, to_x + wide - 14, to_y - 1)
    for line, words in enumerate(CODE):
        rows = [row for row, node in enumerate(NODES) if node.line == line]
        y = 26 + pitch * sum(rows) / len(rows)
        drawing.text(0, y + 18, words, "small")
        drawing.path(f"M{side - 4} {26 + pitch * rows[0]}V{52 + pitch * rows[-1]}", "grid thick")
    said = "; ".join(
        f"{node.name} {'adds to' if not node.then else 'keeps'} {node.keeps}" for node in NODES
    )
    return drawing.svg(
        286,
        f"Left the code, {', '.join(CODE)}. Right a chain of nodes, from the loss down to the"
        f" leaves: {said}.",
    )


PICTURES = {"nine-trips": draw_nine_trips, "autograd-graph": draw_autograd_graph}
