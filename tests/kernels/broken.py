"""Broken kernels, each with the fault that tiles name, and arguments that no kernel takes."""

import torch
from told import told

from shardlab.kernels.tiles import run, tl
from shardlab.kernels.watched import BadArgument, OutOfBounds, Race


def load_without_mask(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at), mask=at < n)


def store_without_mask(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n))


def mask_one_too_long(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at <= n), mask=at <= n)


def begins_before_the_tensor(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + (at - 1), mask=at < n), mask=at < n)


def grid_without_blocks(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) + tl.arange(0, BLOCK)
    tl.store(out + at, 1.0, mask=at < n)


def sums_without_atomic(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.sum(tl.load(x + at, mask=at < n, other=0.0), axis=0)
    tl.store(out, tl.load(out) + part)


def reads_a_neighbours_result(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 1.0, mask=at < n)
    tl.load(out + at + 1, mask=at + 1 < n)


def shifts_in_place(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at + 1, mask=at + 1 < n), mask=at + 1 < n)


def reads_an_atomic_sum(x, out, n, BLOCK: tl.constexpr):
    tl.atomic_add(out, 1.0)
    tl.load(out)


def stores_over_an_atomic_sum(x, out, n, BLOCK: tl.constexpr):
    if tl.program_id(0):
        tl.store(out, 0.0)
    else:
        tl.atomic_add(out, 1.0)


def begins_a_sum_that_others_add_to(x, out, n, BLOCK: tl.constexpr):
    if tl.program_id(0) == 0:
        tl.store(out, 0.0)
    tl.atomic_add(out, 1.0)


def rows_with_a_columns_stride(x, out, n, BLOCK: tl.constexpr):
    row, column = tl.arange(0, BLOCK), tl.arange(0, BLOCK)
    tl.store(out + row[:, None] + column[None, :], 1.0)


def reads_several_then_writes(x, out, n, BLOCK: tl.constexpr):
    tl.load(out)
    if tl.program_id(0) == 2:
        tl.store(out, 1.0)


BROKEN = told("test_tiles::test_broken_kernels_are_named", globals())


def launch_broken(kernel):
    run(kernel, (3,), torch.zeros(10), torch.zeros(10), 10, BLOCK=4)


def block_of_three(x, out):
    tl.load(x + tl.arange(0, 3))


def writes_a_fraction(x, out):
    tl.store(out, tl.load(x))


def offset_that_is_no_number_of_elements(x, out):
    tl.load(x + tl.load(x))


def adds_in_few_bits(x, out):
    tl.atomic_add(out, 1.0)


def touches_nothing(x, out):
    pass


ONES = torch.ones(4, 4)
BAD = told("test_tiles::test_bad_arguments_are_named", globals())
FAULTS = (BadArgument, OutOfBounds, Race)
