"""Chapter 13: kernels."""

import math

import torch

from coursekit.exercises.edits import Topic
from shardlab.kernels.tiles import run

topic = Topic(__name__)


# --- tensors that a chain moves -------------------------------------------------------------------


def moved_tensors(operands):
    return sum(read + 1 for read in operands)


tensors_that_move = topic.exercise(
    "tensors_that_move",
    moved_tensors,
    cases=(
        dict(operands=[1, 1, 1, 2]),
        dict(operands=[2, 2, 1]),
        dict(operands=[1]),
        dict(operands=[3, 1, 2, 1, 1]),
    ),
    words=("relu(x + b) * 0.5 + x", "two sums, then exp", "exp alone", "five operations"),
    hint="What does one operation read, and what does it write? Then add up.",
    right="each operation reads its operands and writes one result.",
)


# --- softmax in tiles -----------------------------------------------------------------------------


def _by_tiles(solution, rows, columns, shift):
    """(the result, bytes read, bytes written) of a kernel in blocks of a power of two."""
    x = torch.arange(rows * columns, dtype=torch.float32).view(rows, columns) % 7 + shift
    out = torch.full_like(x, math.nan)
    counted = run(solution, (rows,), x, out, columns, BLOCK=1 << (columns - 1).bit_length())
    numbers = ["nan" if value != value else round(value, 5) for value in out.flatten().tolist()]
    return numbers, counted.read, counted.written


softmax_in_tiles = topic.exercise(
    "softmax_in_tiles",
    cases=(
        dict(rows=3, columns=5, shift=0),
        dict(rows=2, columns=8, shift=200),
        dict(rows=2, columns=3, shift=-50),
    ),
    words=("three rows of 5", "two rows of 8, large numbers", "two rows of 3, negative numbers"),
    answer=_by_tiles,
    hint="Load the row, with a mask and -inf beyond its end. The largest element goes out first.",
    right="a row is read once and written once: two tensors move, whatever happens between.",
)


# --- one row of attention -------------------------------------------------------------------------


def _rounded(solution, tiles):
    return round(float(solution(tiles)), 6)


one_row_of_attention = topic.exercise(
    "one_row_of_attention",
    cases=(
        dict(tiles=[([1.0, 3.0], [10.0, 20.0])]),
        dict(tiles=[([1.0, 3.0], [10.0, 20.0]), ([2.0, 5.0], [30.0, 40.0])]),
        dict(tiles=[([4.0, 0.0], [1.0, 2.0]), ([2.0, 1.0], [3.0, 4.0]), ([6.0], [5.0])]),
        dict(tiles=[([900.0, 901.0], [1.0, 2.0]), ([899.0], [7.0])]),
        dict(tiles=[([-900.0, -901.0], [1.0, 2.0]), ([-899.0], [7.0])]),
        dict(tiles=[([720.0], [1.0]), ([0.0], [2.0])]),
    ),
    words=("one tile", "two tiles", "three tiles", "near 900", "near -900", "720, then 0"),
    answer=_rounded,
    hint="Carry three numbers: the largest score, the sum of powers, and their sum times values.",
    right="a larger score shrinks what has been added up so far, both sums alike.",
)


# --- the gradient of the loss ---------------------------------------------------------------------


def gradient(logits, target, up):
    top = max(logits)
    powers = [math.exp(one - top) for one in logits]
    total = sum(powers)
    return [up * (p / total - (at == target)) for at, p in enumerate(powers)]


def _six_digits(solution, **case):
    return [round(float(one), 6) for one in solution(**case)]


gradient_of_the_loss = topic.exercise(
    "gradient_of_the_loss",
    gradient,
    cases=(
        dict(logits=[0.0, 0.0], target=0, up=1.0),
        dict(logits=[1.0, 3.0, 2.0], target=1, up=1.0),
        dict(logits=[1.0, 3.0, 2.0], target=0, up=0.25),
        dict(logits=[900.0, 898.0], target=1, up=2.0),
    ),
    words=("two equal logits", "three logits", "a mean over four tokens", "logits of 900"),
    answer=_six_digits,
    hint="The loss is log(sum(exp(logits))) - logits[target]: what is the derivative of each term?",
    right="softmax, minus one at the target, times the gradient from above.",
)


# --- bytes of attention in tiles ------------------------------------------------------------------


def bytes_read(sequence, size, tile, element):
    return element * sequence * size * (1 + 2 * (sequence // tile))


bytes_of_attention = topic.exercise(
    "bytes_of_attention",
    bytes_read,
    cases=(
        dict(sequence=1024, size=64, tile=64, element=2),
        dict(sequence=1024, size=64, tile=128, element=4),
        dict(sequence=64, size=32, tile=64, element=2),
        dict(sequence=4096, size=128, tile=16, element=2),
    ),
    unit="bytes",
    hint="Queries are read once. Who reads the keys, and how many of these are there?",
    right="each tile of queries reads all keys and all values: larger tiles read less.",
)


# --- the largest result of a loss -----------------------------------------------------------------


largest_result = topic.exercise(
    "largest_result",
    [256 * 4096 * 4, 32 * 4096 * 4],
    name="largest",
    cases=({},),
    of_a_value=True,
    hint="Each call of `.calls` has `written`: take the largest, for either function.",
    right="4,194,304 bytes of logits in one piece, and 524,288 in chunks of 32 tokens.",
)


# --- bug hunt: strides ----------------------------------------------------------------------------


def floats_at(tensor):
    """The numbers from a tensor's address on, as many as it has elements: a kernel's view."""
    return torch.as_strided(tensor, (tensor.numel(),), (1,), tensor.storage_offset()).numpy()


TENSORS = {
    "row by row": lambda x: x,
    "transposed": lambda x: x.t().contiguous().t(),
    "every second column": lambda x: x.repeat_interleave(2, dim=1)[:, ::2],
    "a part of a larger tensor": lambda x: torch.cat([x, x + 1], dim=1)[:, : x.shape[1]],
}


def _product(solution, kind, strided_weight):
    """The result on a tensor that lies in memory in another way."""
    x, weight = torch.arange(12.0).view(3, 4), torch.tensor([1.0, 10.0, 100.0, 1000.0])
    if strided_weight:
        weight = weight.repeat_interleave(3)[::3]
    given = TENSORS[kind](x)
    before, found = given.clone(), solution(given, weight)
    if not torch.equal(given, before):
        raise ValueError("x has other numbers now: leave inputs alone, or name them as mutated.")
    return found.tolist()


ignored_strides = topic.exercise(
    "ignored_strides",
    cases=(
        *(dict(kind=kind, strided_weight=False) for kind in TENSORS),
        dict(kind="row by row", strided_weight=True),
    ),
    words=(*TENSORS, "a weight with gaps"),
    answer=_product,
    hint="A kernel gets an address. What does it need to know to find x[1, 2]?",
    right="contiguous() copies where strides are not those of rows, and costs nothing elsewhere.",
)
