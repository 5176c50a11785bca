"""Broken kernels, each with the fault that tiles name, and arguments that no kernel takes."""

import torch

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


ORDER = "programs run in any order, or at once."
MASK = "a mask is missing, or lets too much through."
BROKEN = {  # with n = 10 in blocks of 4, 3 programs: the fault, its sentence
    load_without_mask: (OutOfBounds, f"(2, 0, 0) reads element 10 of x, which has 10: {MASK}"),
    store_without_mask: (OutOfBounds, f"(2, 0, 0) writes element 10 of out, which has 10: {MASK}"),
    mask_one_too_long: (OutOfBounds, f"(2, 0, 0) reads element 10 of x, which has 10: {MASK}"),
    begins_before_the_tensor: (
        OutOfBounds,
        f"(0, 0, 0) reads element -1 of x, which has 10: {MASK}",
    ),
    grid_without_blocks: (
        Race,
        f"(1, 0, 0) writes element 1 of out, which program (0, 0, 0) writes: {ORDER}",
    ),
    sums_without_atomic: (
        Race,
        f"(1, 0, 0) reads element 0 of out, which program (0, 0, 0) writes: {ORDER}",
    ),
    reads_a_neighbours_result: (
        Race,
        f"(1, 0, 0) writes element 4 of out, which program (0, 0, 0) reads: {ORDER}",
    ),
    shifts_in_place: (
        Race,
        f"(1, 0, 0) writes element 4 of x, which program (0, 0, 0) reads: {ORDER}",
    ),
    reads_an_atomic_sum: (
        Race,
        f"(0, 0, 0) reads element 0 of out, which an atomic sum writes: {ORDER}",
    ),
    stores_over_an_atomic_sum: (
        Race,
        f"(1, 0, 0) writes element 0 of out, which an atomic sum writes: {ORDER}",
    ),
    begins_a_sum_that_others_add_to: (
        Race,
        f"(1, 0, 0) adds to element 0 of out, which program (0, 0, 0) writes: {ORDER}",
    ),
    rows_with_a_columns_stride: (
        Race,
        "(0, 0, 0) writes an element of out twice at once: strides are wrong.",
    ),
    reads_several_then_writes: (
        Race,
        f"(2, 0, 0) writes element 0 of out, which several programs reads: {ORDER}",
    ),
}


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
BAD = {  # kernel, first and second argument: the sentence
    (block_of_three, ONES, ONES): (
        "program (0, 0, 0) asks for tl.arange(0, 3): blocks have powers of two."
    ),
    (writes_a_fraction, ONES, ONES.long()): (
        "program (0, 0, 0) writes float32 to element 0 of out, which is int64."
    ),
    (offset_that_is_no_number_of_elements, ONES, ONES): (
        "program (0, 0, 0) moves x by float32: offsets are whole numbers."
    ),
    (adds_in_few_bits, ONES, ONES.bfloat16()): (
        "program (0, 0, 0) adds to out, which is bfloat16: sums want fp32."
    ),
    (touches_nothing, torch.ones(4, 5).t(), ONES): (
        "x is not contiguous: its strides are (1, 5), and they are not among the kernel's"
        " arguments. Pass them, or the tensor's contiguous()."
    ),
    (touches_nothing, ONES, ONES.to(torch.complex64)): (
        "out is torch.complex64 on cpu: tiles run on the CPU, with numbers of 16 bits or more."
    ),
    (touches_nothing, ONES.bool(), ONES): (
        "x is torch.bool on cpu: tiles run on the CPU, with numbers of 16 bits or more."
    ),
    (touches_nothing, ONES.to("meta"), ONES): (
        "x is torch.float32 on meta: tiles run on the CPU, with numbers of 16 bits or more."
    ),
}
FAULTS = (BadArgument, OutOfBounds, Race)
