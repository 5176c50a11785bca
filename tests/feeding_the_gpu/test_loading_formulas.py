"""Formulas of chapter 12 beside files, pages, sleeping workers and packers."""

import tarfile
import tracemalloc

import numpy as np
import pytest
import torch
from solved import value
from torch.utils.data import DistributedSampler, RandomSampler

from coursekit.formulas import evaluate
from shardlab.data_loading.core import TokenFile, TokenLoader, shuffled, write_tokens
from shardlab.data_loading.core_packing import (
    best_fit_crop,
    first_fit_decreasing,
    greedy_crop,
    one_in_a_row,
)


@pytest.mark.parametrize("vocabulary", [50_257, 65_536, 65_537, 128_256])
@pytest.mark.parametrize("samples, tokens", [(3, 1), (20, 255), (7, 256), (40, 2_049)])
def test_bytes_of_stores(tmp_path, vocabulary, samples, tokens):
    """Must catch: a vocabulary that is one too large for two bytes; a header or a last block of a
    tar left out; a file that ends where its content does."""
    whole = np.arange(samples * tokens) % vocabulary
    written = write_tokens(tmp_path / "flat.bin", whole, vocabulary)
    given = dict(vocabulary=vocabulary, stored_tokens=len(whole))
    assert value("token_file_bytes", **given) == written == (tmp_path / "flat.bin").stat().st_size
    blocks = 0
    with tarfile.open(tmp_path / "all.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for number in range(samples):
            path = tmp_path / f"{number}.bin"
            each = write_tokens(path, whole[number * tokens : (number + 1) * tokens], vocabulary)
            tar.add(path, path.name)
            blocks += -(-path.stat().st_size // 4096)
    given = dict(samples=samples, sample_bytes=each)
    assert value("tar_file_bytes", **given) == (tmp_path / "all.tar").stat().st_size
    assert value("small_files_bytes", **given) == 4096 * blocks


@pytest.mark.parametrize("samples", [20, 1000, 3000])
def test_bytes_of_an_arrow_file(tmp_path, samples):
    """The page's words. Must catch: a list of lists, which keeps 4 bytes of an offset a sample."""
    arrow = pytest.importorskip(
        "pyarrow", reason="pyarrow is not installed: pip install pyarrow", exc_type=ImportError
    )
    whole, path = np.arange(samples * 256).astype(np.uint16), str(tmp_path / "all.arrow")
    table = arrow.table({"tokens": arrow.FixedSizeListArray.from_arrays(arrow.array(whole), 256)})
    with arrow.OSFile(path, "wb") as file, arrow.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)
    flat = value("token_file_bytes", stored_tokens=len(whole), vocabulary=50_257)
    assert (tmp_path / "all.arrow").stat().st_size == flat + 386 + 200 * -(-samples // 1000)


def test_pages_that_windows_touch(tmp_path):
    """Pages of the file that windows of a loader's length lie on, counted from their places.

    Must catch: a window that is taken to begin with a page; four bytes for a token of two."""
    write_tokens(tmp_path / "t", np.zeros(4_000_000, int), 50_257)
    file, length, windows = TokenFile(tmp_path / "t", 50_257), 1024, 20_000
    starts = np.random.default_rng(0).integers(0, len(file) - length, windows)
    first, last = starts * 2 // 4096, (starts * 2 + 2 * length - 1) // 4096
    found = 4096 * (last - first + 1).sum()
    given = dict(read_windows=windows, sequence=length, vocabulary=50_257)
    assert value("page_fetched_bytes", **given) == pytest.approx(found, rel=0.01)


@pytest.mark.parametrize("windows", [5, 50, 200, 500])
@pytest.mark.parametrize("ahead", [2**17, 2**21])
def test_around_each_missing_page(windows, ahead):
    """Linux 6.18 did so to 2% in 24 runs on a cold file. Must catch: windows whose pages came with
    earlier ones counted again; pages after alone."""
    pages, around, found = 2**15, ahead // 4096, []
    for seed in range(40):
        there = np.zeros(pages, bool)
        for page in np.random.default_rng(seed).integers(0, pages, windows):
            if not there[page]:
                there[max(0, page - around // 2) : page + around // 2] = True
        found.append(there.mean())
    given = dict(stored_tokens=pages * 2048, vocabulary=50_257)
    given |= dict(read_windows=windows, read_ahead_bytes=ahead)
    assert value("read_ahead_fetched_share", **given) == pytest.approx(np.mean(found), rel=0.03)


def test_short_windows_save_pairs(tmp_path):
    """Batches of equally many tokens, whose windows see themselves alone.

    Must catch: windows counted instead of tokens; the share that is left."""
    write_tokens(tmp_path / "t", np.arange(5_001) % 777, 777)
    file, lengths = TokenFile(tmp_path / "t", 777), [8, 16, 32, 32]
    seen = {length: TokenLoader(file, length, 512 // length).batch(0)[0] for length in lengths}
    pairs = {length: inputs.numel() * inputs.shape[1] for length, inputs in seen.items()}
    saved = 1 - sum(pairs[length] for length in lengths) / (len(lengths) * pairs[32])
    assert value("saved_pairs_share", mean_sequence=sum(lengths) / 4, sequence=32) == saved


def test_an_order_costs_memory():
    """Must catch: a list that costs what a tensor costs; repeats of a rank instead of all."""
    count = 100_000
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    kept = torch.arange(count).tolist()
    listed = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(list(RandomSampler(kept))) == count
    given = dict(samples=count)
    assert value("order_list_bytes", **given) == pytest.approx(listed, rel=0.01)
    assert value("order_tensor_bytes", **given) == torch.randperm(count).nbytes
    assert shuffled(np.arange(5), 10**9, 1).nbytes == 40  # of a thousand million places, five
    for samples, ranks in ((10, 4), (12, 4), (9, 2)):
        own = [
            list(DistributedSampler(range(samples), ranks, rank, shuffle=False))
            for rank in range(ranks)
        ]
        repeats = value("sampler_repeats", samples=samples, data_parallel=ranks)
        assert repeats == sum(map(len, own)) - samples


@pytest.mark.parametrize("length", [1, 3, 7, 33, 50, 64, 65, 100, 128, 300])
def test_packers_of_equal_documents(length):
    """Must catch: tokens counted that a row has no room for; a document that fits exactly, cut."""
    sequence, count = 64, 6 * 64
    given = dict(sequence=sequence, document_tokens=length)
    tokens = lambda rows: sum(cut for row in rows for _, cut in row)
    one_each, cut = (
        one_in_a_row([length] * count, sequence),
        greedy_crop([length] * count, sequence),
    )
    assert value("padded_row_share", **given) == pytest.approx(
        1 - tokens(one_each) / (len(one_each) * sequence)
    )
    whole = first_fit_decreasing([length] * count, sequence)
    assert value("whole_rows", documents=count, **given) == len(whole)
    full = [row for row in whole if len(row) == len(whole[0])]
    assert value("whole_row_share", **given) == pytest.approx(
        1 - tokens(full) / (len(full) * sequence)
    )
    each = len(cut[0])  # the last row may lack documents
    rows = count // each
    for packer in (greedy_crop, best_fit_crop):
        packed = packer([length] * (rows * each), sequence)
        thrown = 1 - tokens(packed) / (rows * each * length)
        assert value("cropped_share", **given) == pytest.approx(thrown)


def test_by_hand():
    """Must catch: bits for bytes; a batch that is not counted; workers that no rank multiplies."""
    rate = dict(flops_per_second=989e12, utilisation=0.5, parameters=124_000_000)
    assert value("eaten_tokens_per_second", **rate) == pytest.approx(664_651, rel=1e-5)
    assert value("token_stream_bytes_per_second", vocabulary=50_257, **rate) == pytest.approx(
        1.3293e6, rel=1e-4
    )
    loader = dict(loader_batch=8, sample_microseconds=5_000, fed_step_microseconds=20_000)
    names = ["asked_bytes_per_second", "delivered_bytes_per_second", "stall_share"]
    found = evaluate(names, **loader, loader_workers=1, sample_bytes=100_000)
    assert list(found.values()) == pytest.approx([40e6, 20e6, 0.5])
    batch = dict(microbatch=4, sequence=1024)
    rows = torch.zeros(4, 1024, dtype=torch.int64)
    assert value("copied_batch_bytes", **batch) == rows.nbytes
    assert value("narrow_batch_bytes", vocabulary=50_257, **batch) == rows.to(torch.int16).nbytes
    assert value("stream_copies", data_parallel=2, loader_workers=4) == 8
    assert value("stream_copies", data_parallel=2, loader_workers=0) == 2
