"""Online softmax, tile by tile, as data for the card in the chapter: one query's row of eight keys,
whose values have one column.

    steps = tile_steps(2)
    steps[3].largest, steps[3].total, steps[3].mixed   # after three tiles of two keys
    steps[3].sentence                                  # "Tile 3 of 4: its largest score, 5, ..."

A test compares the last step with softmax times values.
"""

from math import exp, inf
from typing import NamedTuple

from coursekit.show.drawing import Drawing
from coursekit.show.frames import FrameCard

ROW_SCORES = (1, 3, 2, 0, 5, 2, 4, 1)
ROW_VALUES = (2, 6, 4, 8, 1, 3, 5, 7)
TILES = (1, 2, 4, 8)  # keys of a tile
HIGH = 218  # of a picture
TILES_LOOK = (
    "One query, eight keys. The filled tile is on the chip; pale ones have been, and only three"
    " numbers are left of them: m, the largest score so far, l, the sum of powers, and o, the sum"
    " of powers times values."
)


class TileStep(NamedTuple):
    number: int  # 0 is before the first tile, the last one divides
    keys: range  # of the tile
    shrink: float  # what l and o are multiplied by
    powers: tuple
    largest: float
    total: float
    mixed: float
    sentence: str
    detail: str


def short_number(number: float) -> str:
    """At most three decimals; minus infinity as a sign."""
    if number == -inf:
        return "−∞"
    return f"{number:.3f}".rstrip("0").rstrip(".").replace("-", "−")


def tile_steps(tile: int) -> list[TileStep]:
    """Before the first tile, after each, and the division. ValueError unless tile is in TILES."""
    if tile not in TILES:
        raise ValueError(f"{tile} keys in a tile: there are {', '.join(map(str, TILES))}.")
    tiles, largest, total, mixed = len(ROW_SCORES) // tile, -inf, 0.0, 0.0
    steps = [
        TileStep(
            *(0, range(0), 1.0, (), largest, total, mixed),
            f"Eight scores will come, in tiles of {tile}. Nothing is known yet: m is minus"
            " infinity, l and o are 0.",
            "A softmax in one piece would need all eight scores on the chip.",
        )
    ]
    for number in range(1, tiles + 1):
        keys = range(tile * (number - 1), tile * number)
        top = max(ROW_SCORES[key] for key in keys)
        before, largest = largest, max(largest, top)
        shrink = exp(before - largest)
        powers = tuple(exp(ROW_SCORES[key] - largest) for key in keys)
        added, product = sum(powers), sum(p * ROW_VALUES[key] for p, key in zip(powers, keys))
        detail = (
            f"l = {short_number(shrink)} × {short_number(total)} + {short_number(added)}, and o ="
            f" {short_number(shrink)} × {short_number(mixed)} + {short_number(product)}."
        )
        total, mixed = shrink * total + added, shrink * mixed + product
        begin = f"Tile {number} of {tiles}: its largest score is {top}, "
        if before == -inf:
            said = "the first maximum. There is nothing to shrink."
        elif largest > before:
            said = f"above {before}: l and o shrink by exp({before} − {largest})."
        else:
            said = f"not above {before}: l and o stay as they are, and the tile is added."
        state = (largest, total, mixed)
        steps.append(TileStep(number, keys, shrink, powers, *state, begin + said, detail))
    steps.append(
        TileStep(
            *(tiles + 1, range(0), 1.0, (), largest, total, mixed),
            f"The end: o / l = {short_number(mixed / total)}, the softmax of all eight scores times"
            " their values. One division.",
            f"Forward keeps m + ln l as well, one number for the row: backward makes every"
            f" probability from it. The tiles were of {tile}; any other size gives the same.",
        )
    )
    return steps


def tile_picture(tile: int, step: TileStep) -> str:
    """The marks of one step, for a drawing as wide as any still picture and HIGH units high."""
    drawing = Drawing(f"tiles-{tile}-{step.number}", "")
    left, pitch, last = 62, 42, step.number > len(ROW_SCORES) // tile
    for y, words, numbers in ((26, "scores", ROW_SCORES), (60, "values", ROW_VALUES)):
        drawing.text(0, y + 17, words, "small")
        for key, number in enumerate(numbers):
            done = last or (step.number and key < tile * (step.number - 1))
            here = key in step.keys
            look = "forward" if here else "forward pale" if done else "frame"
            drawing.box(left + key * pitch, y, pitch - 6, 26, look)
            letters = "middle white" if here else "middle"
            drawing.text(left + key * pitch + 18, y + 18, number, letters)
    for place in range(0, len(ROW_SCORES), tile):
        drawing.text(left + place * pitch, 18, f"tile {place // tile + 1}", "small soft")
    powers = ", ".join(short_number(power) for power in step.powers[:4])
    more = ", …" * (len(step.powers) > 4)
    if powers:
        drawing.text(left, 108, f"exp(score − m): {powers}{more}", "small")
    kept = (("m", step.largest), ("l", step.total), ("o", step.mixed))
    for row, (name, number) in enumerate(kept):
        y = 122 + 32 * row
        drawing.text(0, y + 18, name, "bold")
        drawing.box(left, y, 88, 26, "activations")
        drawing.text(left + 44, y + 18, short_number(number), "middle ink")
    if step.shrink != 1 and step.number > 1:
        drawing.text(left + 100, 172, f"× {short_number(step.shrink)} first", "small")
        drawing.text(left + 100, 204, f"× {short_number(step.shrink)} first", "small")
    if last:
        drawing.text(left + 100, 188, f"o / l = {short_number(step.mixed / step.total)}", "bold")
    return "".join(drawing.marks)


FRAMES = FrameCard(
    name="online softmax",
    title="Online softmax in tiles of {}, step by step",
    look=TILES_LOOK,
    label="Keys in a tile",
    choices={tile: str(tile) for tile in TILES},
    first=2,
    high=HIGH,
    caption="Online softmax of eight keys in tiles of {}.",
    steps=tile_steps,
    picture=tile_picture,
)
