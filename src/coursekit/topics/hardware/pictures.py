"""Still pictures of the chapter on hardware: the paths between sixteen GPUs, and a product as
tiles."""

from coursekit.formulas import LINKS
from coursekit.show.drawing import PICTURE_WIDTH, Drawing
from coursekit.show.format import format_as

NODE_GPUS = 8  # of a node
NODE_CARDS = 8  # network cards of a node
NODE_PATHS = {  # what is drawn -> its link
    "NVLink": "NVLink 4 (H100)",
    "PCIe": "PCIe 5 x16",
    "network": "network, 400 Gbit/s",
}
PATHS_LEFT, GPU_PITCH = 92, 38.5
UNITS_A_GB = 18 / 450  # width of a line


def path_rates():
    """The paths that are drawn -> bytes/s, one way."""
    return {
        path: LINKS[link].quantities["link_bytes_per_second"] for path, link in NODE_PATHS.items()
    }


def one_way(rate):
    return format_as(rate, "bandwidth")


def draw_two_nodes():
    found = path_rates()
    drawing = Drawing("two-nodes", "Two nodes of eight GPUs, and what each connection carries")
    fabric = 222
    for number, (top, down) in enumerate(((2, 1), (2 * fabric + 20, -1))):
        draw_node(drawing, found, number, top, down)
    drawing.box(4, fabric - 2, PICTURE_WIDTH - 8, 26, "communication pale", 14)
    drawing.text(PICTURE_WIDTH / 2, fabric + 16, "network between nodes", "middle small")
    both, total = one_way(found["network"]), one_way(found["network"] * NODE_CARDS)
    words = (
        "Two boxes, node 0 above and node 1 below, mirror images. In each node"
        f" {NODE_GPUS} GPUs hang on an NVSwitch, each by a line of {one_way(found['NVLink'])}, by"
        f" far the thickest in the picture. From each GPU a thin line of {one_way(found['PCIe'])}"
        " leads through PCIe switches, to which a CPU is connected as well, to a network card of"
        f" its own, and from each card a line of {both} to the network between the nodes: {total}"
        " for a whole node."
    )
    return drawing.svg(2 * fabric + 22, words)


def draw_node(drawing, found, number, top, down):
    """One node; `down` is 1 if its network cards are below, or -1. `top` is its outer edge."""
    y = lambda distance: top + down * distance
    block = lambda near, far: (min(y(near), y(far)), abs(far - near))

    def box(x, near, wide, far, looks, corner=4):
        begin, high = block(near, far)
        drawing.box(x, begin, wide, high, looks, corner)

    def words(x, near, far, text, looks):
        drawing.text(x, (y(near) + y(far)) / 2 + 5, text, looks)

    wide = NODE_GPUS * GPU_PITCH - 4
    box(1, 0, PICTURE_WIDTH - 2, 194, "frame", 10)
    words(10, 4, 36, f"node {number}", "bold")
    box(PATHS_LEFT, 6, wide, 34, "quiet")
    words(PATHS_LEFT + wide / 2, 6, 34, "NVSwitch", "middle")
    box(PATHS_LEFT, 124, wide, 150, "quiet")
    words(PATHS_LEFT + wide / 2, 124, 150, "PCIe switches, and the CPU", "middle small")
    for gpu in range(NODE_GPUS):
        x = PATHS_LEFT + gpu * GPU_PITCH
        middle = x + GPU_PITCH / 2 - 2
        for near, far, path in (
            (34, 70, "NVLink"),
            (96, 124, "PCIe"),
            (150, 164, "PCIe"),
            (188, 218, "network"),
        ):
            drawing.path(
                f"M{middle:.4g} {y(near):g}V{y(far):g}",
                "line communication",
                found[path] * UNITS_A_GB / 1e9,
            )
        box(x, 70, GPU_PITCH - 4, 96, "quiet")
        words(middle, 70, 96, f"{gpu + NODE_GPUS * number}", "middle bold")
        box(x, 164, GPU_PITCH - 4, 188, "quiet")
        words(middle, 164, 188, "card", "middle small")
    words(10, 34, 70, one_way(found["NVLink"]), "bold small")
    words(10, 70, 96, "GPU", "small")
    words(10, 96, 124, one_way(found["PCIe"]), "bold small")
    words(10, 164, 188, one_way(found["network"]), "bold small")


# --- a product ------------------------------------------------------------------------------------

TILED_PRODUCT = dict(rows=4096, columns=4096, tile_rows=128, tile_columns=256, warps=8)
MULTIPROCESSORS = 108  # of an A100, as in the chapter's text


def tile_rounds(rows, columns, tile_rows, tile_columns, multiprocessors=MULTIPROCESSORS, **_):
    """How many tiles a product has, the rounds in which the multiprocessors work on them, and how
    many of them work in the last round."""
    count = -(-rows // tile_rows) * -(-columns // tile_columns)
    rounds = -(-count // multiprocessors)
    return count, rounds, count - (rounds - 1) * multiprocessors


def draw_tiles():
    count, rounds, last = tile_rounds(**TILED_PRODUCT)
    larger = {
        **TILED_PRODUCT,
        "rows": TILED_PRODUCT["rows"] + 1,
        "columns": TILED_PRODUCT["columns"] + 1,
    }
    more, more_rounds, _ = tile_rounds(**larger)
    down, across, warps = (
        TILED_PRODUCT["tile_rows"],
        TILED_PRODUCT["tile_columns"],
        TILED_PRODUCT["warps"],
    )
    drawing = Drawing("tiles", "A product, a tile of it, and the warps that compute the tile")
    side, x, y = 112, 132, 156  # of a matrix; where the result lies
    one = (3, 2)  # the tile that is looked at: its place down and across, of 8 and 4
    tile_x, tile_y = x + one[1] * side / 4, y + one[0] * side / 8
    for left, top, name in ((x, 20, "B"), (4, y, "A"), (x, y, "C = A B")):
        drawing.box(left, top, side, side, "quiet")
        drawing.text(left + 2, top - 5, name, "bold")
    drawing.box(tile_x, 20, side / 4, side, "gathered")
    drawing.box(4, tile_y, side, side / 8, "gathered")
    for k in range(1, 4):
        drawing.path(f"M{x + k * side / 4:g} {y}v{side}", "frame")
    for k in range(1, 8):
        drawing.path(f"M{x} {y + k * side / 8:g}h{side}", "frame")
    drawing.box(tile_x, tile_y, side / 4, side / 8, "forward")
    # the tile, larger
    big_x, big_y, wide, high = 268, 160, 128, 64
    drawing.path(f"M{tile_x + side / 4:g} {tile_y:g}L{big_x} {big_y}", "line dashed")
    lower = f"M{tile_x + side / 4:g} {tile_y + side / 8:g}L{big_x} {big_y + high}"
    drawing.path(lower, "line dashed")
    drawing.text(big_x, 116, "a tile", "bold")
    drawing.text(big_x, 134, f"{down} × {across} numbers,", "small")
    drawing.text(big_x, 151, "one block of threads", "small")
    for warp in range(warps):
        column, row = warp % 4, warp // 4
        left, top = big_x + column * wide / 4, big_y + row * high / 2
        drawing.box(left, top, wide / 4, high / 2, "forward cut")
        drawing.text(left + wide / 8, top + 21, warp, "middle small white")
    drawing.text(big_x, big_y + high + 18, f"{warps} warps of 32 threads,", "small")
    drawing.text(big_x, big_y + high + 35, "all on one SM", "small")
    # the rounds
    top = y + side + 34
    drawing.text(4, top - 8, f"{count} tiles on {MULTIPROCESSORS} SMs take {rounds} rounds", "bold")
    room = 4 + 392
    for number in range(rounds):
        left, wide = 4 + number * room / rounds, room / rounds - 6
        busy = 1 if number < rounds - 1 else last / MULTIPROCESSORS
        drawing.box(left, top, wide, 30, "frame")
        drawing.box(left, top + 30 * (1 - busy), wide, 30 * busy, "forward")
        words = MULTIPROCESSORS if number < rounds - 1 else last
        drawing.text(left + wide / 2, top + 22, words, "middle small white")
    words = (
        f"Three square matrices: A, B and C = A B. C is cut into tiles; one tile is marked, and so"
        f" are the rows of A and the columns of B that it needs. The tile, {down} times {across}"
        f" numbers, is one block of threads: {warps} warps of 32 threads, each with a part of the"
        f" tile, all on one multiprocessor. Below, {rounds} bars: {count} tiles on"
        f" {MULTIPROCESSORS} multiprocessors take {rounds} rounds, and in the last one {last} of"
        f" them work. One row and one column more make {more} tiles and {more_rounds} rounds."
    )
    return drawing.svg(top + 34, words)


PICTURES = {"two-nodes": draw_two_nodes, "tiles": draw_tiles}
