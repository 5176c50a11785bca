"""Trials of the assignment: a loader that is a function, and a packer. README.md beside this file
says what a learner builds."""

import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from coursekit.exercises.assignments import Assignment
from shardlab.data_loading import core, core_packing

from ..asking import demand, expect, race_of_two, refuses

WRITE, ORDER, LOADER, PACK = "write_tokens", "shuffled", "TokenLoader", "best_fit_crop"
REFERENCE = {
    WRITE: core.write_tokens,
    ORDER: core.shuffled,
    LOADER: core.TokenLoader,
    PACK: core_packing.best_fit_crop,
}
ASSIGNMENT = Assignment(
    "feeding_the_gpu",
    reference=REFERENCE,
    core=REFERENCE,
    forbidden=("torch.utils.data",),
    world_size=1,
)
TOKENS, WINDOW, BATCH = 323, 10, 7  # 32 windows, and 4.6 steps an epoch
LENGTHS = [9, 3, 8, 25, 1, 7, 10, 2, 6]


class Numbers:
    """A file whose tokens are their places."""

    path = Path("numbers.bin")

    def __len__(self) -> int:
        return TOKENS

    def windows(self, starts: np.ndarray, length: int) -> np.ndarray:
        return np.asarray(starts)[:, None] + np.arange(length)


def order_of(mine, count: int, key: int) -> list[int]:
    return np.asarray(mine.shuffled(np.arange(count), count, key)).tolist()


def loader_of(mine, **named):
    return mine.TokenLoader(Numbers(), WINDOW, BATCH, **named)


def global_starts(loader, step: int, ranks: int) -> list[int]:
    return np.concatenate([loader.starts(step, rank, ranks) for rank in range(ranks)]).tolist()


# --- parity ---------------------------------------------------------------------------------------


@ASSIGNMENT.trial("parity", ORDER)
def permutations(mine):
    """every element once, for counts from 1 to 1,000"""
    for count in (1, 2, 7, 64, 1000):
        found = order_of(mine, count, key=3)
        demand(
            sorted(found) == list(range(count)),
            f"of {count} elements {len({*found} & {*range(count)})} come: some come twice or are"
            " beyond the last. Every round of a permutation can be undone; a result of count or"
            " more goes through again.",
        )


@ASSIGNMENT.trial("parity", ORDER)
def keys_are_orders(mine):
    """another order for each key, and an order that is no shift"""
    orders = [order_of(mine, 500, key) for key in range(6)]
    demand(
        all(order != other for order in orders for other in orders if order is not other),
        "two keys give one order: the key has to be in every round.",
    )
    for order in orders:
        steps = {(b - a) % 500 for a, b in zip(order, order[1:])}
        demand(
            len(steps) > 100,
            f"neighbours differ by one of {len(steps)} numbers: that is a shift or a stride, in"
            " which neighbours of the text stay together.",
        )


@ASSIGNMENT.trial("parity", ORDER)
def one_place_alone(mine):
    """an element is the same whichever places are asked for with it"""
    whole = order_of(mine, 300, 5)
    alone = [int(mine.shuffled(np.array([place]), 300, 5)[0]) for place in (0, 17, 299)]
    demand(
        alone == [whole[0], whole[17], whole[299]],
        "a place that is asked for alone has another element: it may follow from place, count and"
        " key only.",
    )


@ASSIGNMENT.trial("parity", LOADER)
def every_window_once(mine):
    """every window once in each of three epochs, in three orders"""
    loader = loader_of(mine, seed=11)
    found = [start for step in range(14) for start in global_starts(loader, step, 1)]
    epochs = [found[32 * epoch : 32 * (epoch + 1)] for epoch in range(3)]
    for number, epoch in enumerate(epochs):
        demand(
            sorted(epoch) == [WINDOW * at for at in range(32)],
            f"epoch {number} has {len({*epoch})} of 32 windows: step times global batch counts"
            " windows of all epochs, and an epoch's end may lie within a step.",
        )
    demand(epochs[0] != epochs[1], "two epochs have one order: the epoch has to be in the key.")
    other = global_starts(loader_of(mine, seed=12), 0, 1)
    demand(other != found[:BATCH], "two seeds have one order: the seed has to be in the key.")


@ASSIGNMENT.trial("parity", LOADER)
def any_number_of_ranks(mine):
    """the batches of a run on 4 ranks, then 3, then 2, are those of one rank"""
    whole = loader_of(mine, seed=5)
    for step, ranks in ((0, 4), (1, 4), (2, 3), (3, 3), (4, 2), (2, 4)):
        found, wanted = global_starts(loader_of(mine, seed=5), step, ranks), whole.starts(step)
        demand(
            len(found) == BATCH,
            f"{ranks} ranks have {len(found)} windows in a step, and not {BATCH}: divide the ends"
            " of a rank's part, not its length.",
        )
        demand(
            found == np.asarray(wanted).tolist(),
            f"step {step} on {ranks} ranks has other windows than on one rank, or another order:"
            " ranks cut the global batch, one after the other.",
        )


@ASSIGNMENT.trial("parity", LOADER)
def targets(mine):
    """targets are the tokens that come next"""
    loader = loader_of(mine, seed=2)
    inputs, found = loader.batch(3, 1, 2)
    begin = torch.as_tensor(np.asarray(loader.starts(3, 1, 2)))
    wanted = begin[:, None] + torch.arange(WINDOW)
    expect("the inputs", inputs, wanted, close=0)
    said = {"Targets are the inputs themselves.": wanted}
    expect("the targets", found, wanted + 1, said, close=0)


@ASSIGNMENT.trial("parity", PACK)
def packed_rows(mine):
    """nine documents in rows of 10"""
    rows = [[tuple(part) for part in row] for row in mine.best_fit_crop(LENGTHS, 10)]
    met = sorted(document for row in rows for document, _ in row)
    demand(
        met == [*range(len(LENGTHS))],
        f"documents {met} are in rows: each belongs into one row, once.",
    )
    for row in rows[:-1]:
        filled = sum(tokens for _, tokens in row)
        demand(
            filled == 10,
            f"row {row} has {filled} tokens of 10: where no document fits, the shortest is cut and"
            " fills the row.",
        )
    wanted = core_packing.best_fit_crop(LENGTHS, 10)
    lost, least = (
        sum(LENGTHS) - sum(tokens for row in some for _, tokens in row) for some in (rows, wanted)
    )
    demand(
        lost == least,
        f"{lost} tokens are thrown away, and {least} by best fit: take the longest that fits, and"
        " cut the shortest.",
    )


# --- bytes ----------------------------------------------------------------------------------------


@ASSIGNMENT.trial("bytes", WRITE)
def bytes_of_the_file(mine):
    """a file for GPT-2's vocabulary, for 65,536 tokens and for Llama 3's"""
    tokens = [0, 40_000, 50_256]
    with TemporaryDirectory() as folder:
        path = Path(folder, "tokens.bin")
        for vocabulary, kind in ((50_257, "<u2"), (65_536, "<u2"), (128_256, "<u4")):
            said = mine.write_tokens(path, tokens, vocabulary)
            size, wanted = path.stat().st_size, 3 * np.dtype(kind).itemsize
            demand(
                size == wanted == said,
                f"three tokens of a vocabulary of {vocabulary:,} take {size} bytes, {said} by what"
                f" came back: {wanted} are enough.",
            )
            read = np.fromfile(path, kind).tolist()
            demand(
                read == tokens,
                f"{tokens} came back as {read}: write the numbers, and nothing before them.",
            )


@ASSIGNMENT.trial("bytes", ORDER)
def memory_of_an_order(mine):
    """32 places of a million take no memory for a million"""
    tracemalloc.start()
    try:
        mine.shuffled(np.arange(32), 1_000_000, 7)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    demand(
        most < 500_000,
        f"{most:,} bytes for 32 places of a million: that is a list or an array of the whole order."
        " Compute the elements that are asked for.",
    )


# --- faults ---------------------------------------------------------------------------------------


@ASSIGNMENT.trial("faults", WRITE)
def tokens_outside(mine):
    """a token below 0, and one that is as large as the vocabulary"""
    with TemporaryDirectory() as folder:
        for token in (-1, 777):
            refuses(
                f"write_tokens of token {token} with a vocabulary of 777",
                lambda token=token: mine.write_tokens(Path(folder, "t"), [3, token], 777),
                errors=(ValueError,),
            )


@ASSIGNMENT.trial("faults", LOADER)
def steps_that_are_not_there(mine):
    """a step below 0, one behind two epochs, a file without a window"""
    loader = loader_of(mine, epochs=2)  # 64 windows, 9 steps
    loader.starts(8)
    for step in (-1, 9):
        refuses(
            f"step {step} of 0 ... 8", lambda step=step: loader.starts(step), errors=(ValueError,)
        )
    refuses(
        f"a loader with windows of {TOKENS} and {TOKENS} tokens, which leave no last target",
        lambda: mine.TokenLoader(Numbers(), TOKENS, 1),
        errors=(ValueError,),
    )


# --- speed ----------------------------------------------------------------------------------------


@ASSIGNMENT.trial("speed", ORDER)
def seconds_of_an_order(mine):
    """4,096 places of a million"""
    places = np.arange(4096)
    return race_of_two(
        lambda: mine.shuffled(places, 1_000_000, 3), lambda: core.shuffled(places, 1_000_000, 3)
    )
