"""The tile language: faults by name, bytes, types, and views of one tensor."""

import re

import pytest
import torch
from broken import BAD, BROKEN, launch_broken

from shardlab.kernels.tiles import run, tl
from shardlab.kernels.watched import BadArgument, Race, rounded_to_bf16


@pytest.mark.parametrize("kernel, kind, sentence", BROKEN, ids=[row[0].__name__ for row in BROKEN])
def test_broken_kernels_are_named(kernel, kind, sentence):
    """Must catch: a bound that is one too high; only the last reader remembered; a program that
    takes its own work for another's; an atomic sum that plain stores may overwrite."""
    with pytest.raises(kind, match=f"^{re.escape(f'program {sentence}')}$"):
        launch_broken(kernel)


@pytest.mark.parametrize("kernel, x, out, sentence", BAD)
def test_bad_arguments_are_named(kernel, x, out, sentence):
    """Must catch: a block of any size; a fraction that is cut off; strides that are ignored."""
    with pytest.raises(BadArgument, match=f"^{re.escape(sentence)}$"):
        run(kernel, (1,), x, out)


def doubles_in_place(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


def test_views_share_what_was_done():
    """Must catch: a history of each argument instead of each storage; a view's place in its storage
    left out."""
    x = torch.arange(10.0)
    run(doubles_in_place, (3,), x, x, 10, BLOCK=4)
    assert torch.equal(x, 2 * torch.arange(10.0))
    with pytest.raises(Race, match="writes element 2 of out, which program .0, 0, 0. reads"):
        run(doubles_in_place, (2,), x[4:8], x[2:6], 4, BLOCK=2)


def swaps(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here, there = tl.load(x + at, mask=at < n), tl.load(out + at, mask=at < n)
    tl.store(x + at, there, mask=at < n)
    tl.store(out + at, here, mask=at < n)


def test_what_was_loaded_stays():
    """Must catch: a tile that is a view of memory, which a store changes."""
    x, out = torch.arange(6.0), torch.arange(6.0) + 10
    run(swaps, (2,), x, out, 6, BLOCK=4)
    assert torch.equal(x, torch.arange(6.0) + 10) and torch.equal(out, torch.arange(6.0))


def counts(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + tl.load(x + at), 1)


@pytest.mark.parametrize("places", [torch.int32, torch.int64])
def test_atomic_sums(places):
    """A histogram: several elements of a tile, and of other tiles, add to one place.

    Must catch: the last of several that is kept; bytes of the read left out."""
    x = torch.randint(0, 5, (64,), dtype=places)
    out = torch.zeros(5, dtype=torch.int32)
    moved = run(counts, (8,), x, out, BLOCK=8)
    assert torch.equal(out.long(), torch.bincount(x, minlength=5))
    assert (moved.read, moved.written) == (64 * places.itemsize + 64 * 4, 64 * 4)


def sums_masked(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out, tl.sum(tl.load(x + at, mask=at < n), axis=0))


def test_nothing_is_promised_beyond_a_mask():
    """Must catch: zeros beyond a mask without `other`, under which a sum is right by luck."""
    out = torch.zeros(1)
    run(sums_masked, (1,), torch.ones(3), out, 3, BLOCK=4)
    assert out.isnan().all()


def picks(x, places, wanted, out, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    at, mask = tl.load(places + column), tl.load(wanted + column) > 0
    tl.store(out + column, 10.0)
    tl.store(out + column, tl.load(x + at, mask=mask, other=7.0), mask=mask)


@pytest.mark.parametrize("places", [(0, 1, 2, 3), (3, 2, 1, 0), (0, 2, 1, 3), (2, 2, 3, 5)])
@pytest.mark.parametrize("wanted", [(1, 1, 1, 1), (1, 1, 0, 0), (1, 0, 0, 1), (0, 0, 0, 0)])
@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_places_in_any_order_under_any_mask(places, wanted, kind):
    """Must catch: a mask with holes taken for one of the first elements; places between two ends
    taken for a row without a gap."""
    x, out = torch.arange(6.0) * 100, torch.zeros(4)
    at, mask = torch.tensor(places, dtype=kind), torch.tensor(wanted, dtype=torch.int32)
    moved = run(picks, (1,), x, at, mask, out, BLOCK=4)
    assert torch.equal(out, torch.where(mask.bool(), x[at.long()], 10.0))
    assert moved.written == 4 * (4 + sum(wanted))


def takes_rows(x, out, n, BLOCK: tl.constexpr):
    row, column = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    at, mask = row * BLOCK + column, row < n
    tl.store(out + at, tl.load(x + at, mask=mask), mask=mask)


def test_a_mask_of_rows():
    """Must catch: a mask that is not spread over the tile."""
    x, out = torch.arange(16.0) + 1, torch.zeros(16)
    moved = run(takes_rows, (1,), x, out, 3, BLOCK=4)
    assert torch.equal(out, torch.where(x <= 12, x, 0.0)) and moved.written == 4 * 12


def copies(x, out, rows, row_stride, column_stride, COLUMNS: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, COLUMNS)
    tile = tl.load(x + row * row_stride + column * column_stride)
    tl.store(out + row * COLUMNS + column, tile)


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(4, 6).t()[:4],
        torch.randn(4, 9)[:, 1:9:2],
        torch.randn(8, 4)[::2],
        torch.randn(1, 4).expand(4, 4),
        torch.randn(4, 4, 3)[..., 1],
    ],
    ids=["transposed", "every second", "rows", "expanded", "a slice"],
)
def test_strides_that_are_passed(x):
    """Must catch: places counted from the storage's beginning; a size without the strides."""
    out = torch.empty(4, 4)
    run(copies, (4,), x, out, 4, *x.stride(), COLUMNS=4)
    assert torch.equal(out, x)


def casts(x, out, n, KIND: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.cast(tl.load(x + at), KIND))


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64, torch.int32])
def test_types_round_as_in_pytorch(kind):
    """Must catch: bits that are cut off; ties away from even; NaN that becomes infinite."""
    x = torch.randn(1024) * 100
    x[:4] = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, -0.0])
    if kind is not torch.int32:
        x[4:6] = torch.tensor([torch.nan, torch.inf])
    x = x.clamp(-6e4, 6e4) if kind in (torch.float16, torch.int32) else x
    for out in (torch.empty(1024), torch.empty(1024, dtype=kind)):
        run(casts, (1,), x, out, 1024, KIND=kind, BLOCK=1024)
        assert torch.equal(out.nan_to_num(7), x.to(kind).to(out.dtype).nan_to_num(7))
    assert rounded_to_bf16(1.0) == 1


def names_axes(out, WIDTH: tl.constexpr):
    at = (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)) * WIDTH + tl.program_id(2)
    tl.store(out + at, at + tl.cdiv(7, 2))


def test_a_grid_of_three_axes():
    """Must catch: axes in another order; a program that runs twice or never."""
    out = torch.zeros(24)
    run(names_axes, (2, 3, 4), out, WIDTH=4)
    assert torch.equal(out, torch.arange(24.0) + 4)
