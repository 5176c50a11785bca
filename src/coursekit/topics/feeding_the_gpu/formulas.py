"""Feeding the GPU: bytes that training asks for, bytes that a store keeps and a read fetches, how
far a buffer carries, who sees which sample, and what a packed row throws away.

What workers are for, time with and without them, is a formula of the chapter before.
"""

from coursekit.formulas.registry import BOOK
from coursekit.formulas.subset import ceil_div, floor_div, maximum, minimum, where

# --- what the reader gives

BOOK.given(
    r"""
stored_tokens | n_\text{stored} | count | tokens of a token file
samples | n_\text{samples} | count | samples of a data set, such as images or windows
sample_bytes | S_\text{sample} | bytes | bytes of one sample as it is stored
read_windows | n_\text{read} | count | windows that are read, each at another place of the file
read_ahead_bytes | M_\text{ahead} | bytes, from 4096 | bytes that the system reads at once where a
    mapped file is read as if in order
buffered_batches_per_worker | n_\text{per} | count, usually 2 | batches that a worker makes ahead:
    prefetch_factor
hiccup_microseconds | n_\text{hic} | count, from 0 | microseconds by which one batch is late
shown_steps | n_\text{shown} | count, to 100 | steps in a picture, after those of a full buffer
documents | n_\text{doc} | count | documents, all of one length, that a packer puts into rows
document_tokens | n_\ell | count | tokens of each document
all_document_tokens | n_{\ell,\text{all}} | count | tokens of all documents, of any lengths
fitting_tokens | n_{\ell,\text{fit}} | count | the same, of each document as many as a row holds
packed_rows | n_\text{pack} | count | rows that a packer has made
mean_sequence | s_\text{mean} | count | tokens of a window, on average over a curriculum's steps
object_bytes | S_\text{obj} | bytes | bytes of a Python object as the allocator gives them: a
    multiple of 16
"""
)

_TESTS = "tests/feeding_the_gpu/test_loading_formulas.py"
_BY_FILE = f"{_TESTS}::test_bytes_of_stores"
_PAGES = f"{_TESTS}::test_pages_that_windows_touch"
_SLEEPS = "tests/virtual/test_virtual_loading.py::test_what_a_late_batch_costs"
_ORDER = f"{_TESTS}::test_an_order_costs_memory"
_PACKS = f"{_TESTS}::test_packers_of_equal_documents"
_BY_HAND = f"{_TESTS}::test_by_hand"
_SHORT = f"{_TESTS}::test_short_windows_save_pairs"
_AROUND = f"{_TESTS}::test_around_each_missing_page"
_SAMPLE = "tests/feeding_the_gpu/test_text_to_shards.py::test_what_the_packers_lose_of_the_text"
_WORKERS = "tests/feeding_the_gpu/test_workers.py::test_workers_copy_what_they_read"


class BytesAskedFor(BOOK.section(source="definition", measured_by=_BY_HAND)):
    @BOOK.own(source="shardlab.data_loading.core", measured_by=_BY_FILE)
    def token_element_bytes(q):
        r"""\beta_\text{tok} | bytes | bytes of a stored token: the smallest unsigned type that
        holds the vocabulary"""
        return where(q.vocabulary <= 65536, 2, 4)

    @BOOK.own(source="6 operations for a parameter and a token")
    def eaten_tokens_per_second(q):
        r"""\nu_\text{eat} | tokens/s | tokens that one GPU trains on in a second"""
        return q.flops_per_second * q.utilisation / (6 * q.parameters)

    def token_stream_bytes_per_second(q):
        r"""B_\text{tok} | bytes/s | bytes that training takes out of a token file in a second"""
        return q.token_element_bytes * q.eaten_tokens_per_second

    def asked_bytes_per_second(q):
        r"""B_\text{ask} | bytes/s | bytes a second that a GPU asks for, if it never waits"""
        return q.loader_batch * q.sample_bytes / (1e-6 * q.fed_step_microseconds)

    def delivered_bytes_per_second(q):
        r"""B_\text{got} | bytes/s | bytes a second that it gets"""
        return q.loader_batch * q.sample_bytes / q.loaded_step_seconds

    def stall_share(q):
        r"""\varphi_\text{stall} | fraction | share of the time in which the GPU waits for its
        batch"""
        return 1 - 1e-6 * q.fed_step_microseconds / q.loaded_step_seconds


class BytesOfStores(BOOK.section(source="formats of files", measured_by=_BY_FILE)):
    def token_file_bytes(q):
        r"""M_\text{flat} | bytes | a flat file of tokens"""
        return q.stored_tokens * q.token_element_bytes

    def small_files_bytes(q):
        r"""M_\text{small} | bytes | a file for each sample, in blocks of 4,096 bytes"""
        return 4096 * q.samples * ceil_div(q.sample_bytes, 4096)

    def tar_file_bytes(q):
        r"""M_\text{tar} | bytes | a tar of all samples: a header of 512 bytes for each, contents in
        blocks of 512, the end filled up to 10,240"""
        return 10240 * ceil_div(
            q.samples * (512 + 512 * ceil_div(q.sample_bytes, 512)) + 1024, 10240
        )

    @BOOK.own(source="torch: an index is int64", measured_by=_BY_HAND)
    def copied_batch_bytes(q):
        r"""S_\text{wide} | bytes | inputs of a batch, widened on the host and copied to the GPU"""
        return 8 * q.microbatch * q.sequence

    @BOOK.own(source="shardlab.data_loading.core", measured_by=_BY_HAND)
    def narrow_batch_bytes(q):
        r"""S_\text{nar} | bytes | the same, copied as stored and widened on the GPU"""
        return q.token_element_bytes * q.microbatch * q.sequence

    @BOOK.own(source="Linux: a mapped file is read around a page", measured_by=_AROUND)
    def read_ahead_fetched_share(q):
        r"""\pi_\text{fetch} | fraction | share of a cold file that comes from the disk for windows
        at random places: around each page that is not there, half before and half after. To 2%
        that of parts laid at random, none on a hidden middle (Rényi 1958)"""
        return 1 - 1 / (1 + q.read_windows * q.read_ahead_bytes / (4 * q.token_file_bytes)) ** 4

    @BOOK.own(source="MADV_RANDOM: pages alone", measured_by=_PAGES)
    def page_fetched_bytes(q):
        r"""M_\text{page} | bytes | bytes that come from the disk without read-ahead: the
        pages that a window touches, on average over places that begin anywhere"""
        return q.read_windows * (4096 + q.token_element_bytes * (q.sequence - 1))


class BatchesAndHiccups(
    BOOK.section(source="Little 1961: batches in flight, rate and latency", measured_by=_SLEEPS)
):
    def batch_making_seconds(q):
        r"""\tau_\text{mk} | seconds | time from one batch to the next out of all workers, or of the
        loop that loads by itself"""
        return 1e-6 * q.loader_batch * q.sample_microseconds / maximum(q.loader_workers, 1)

    def fed_step_seconds(q):
        r"""\tau_\text{fed} | seconds | time of a step whose batch is there"""
        return 1e-6 * q.fed_step_microseconds

    def hiccup_seconds(q):
        r"""\tau_\text{hic} | seconds | time by which one batch comes late"""
        return 1e-6 * q.hiccup_microseconds

    def full_buffer_batches(q):
        r"""n_\text{buf} | count | batches that are ready when the hiccup begins: as many as the
        buffer holds, or none where the loader is late all the time"""
        return where(
            q.loader_batch * q.sample_microseconds <= q.loader_workers * q.fed_step_microseconds,
            q.loader_workers * q.buffered_batches_per_worker,
            0,
        )

    def hiccup_wait_seconds(q):
        r"""\tau_\text{stall} | seconds | how long the GPU waits for the late batch: the buffer
        carries over as many steps as it has batches"""
        return maximum(0, q.hiccup_seconds - q.full_buffer_batches * q.fed_step_seconds)


class WhoSeesWhat(BOOK.section(source="definition", measured_by=_ORDER)):
    def order_tensor_bytes(q):
        r"""M_\text{perm} | bytes | a shuffled order of all samples as a tensor"""
        return 8 * q.samples

    def order_list_bytes(q):
        r"""M_\text{list} | bytes | the same as a list of Python's numbers, as RandomSampler keeps:
        8 bytes for the place and 32 for the number"""
        return 40 * q.samples

    def dealt_samples(q):
        r"""n_\text{dealt} | count | samples that all ranks get together, equally many each"""
        return q.data_parallel * ceil_div(q.samples, q.data_parallel)

    def sampler_repeats(q):
        r"""n_\text{rep} | count | samples that DistributedSampler gives out twice, so that all
        ranks have equally many"""
        return q.dealt_samples - q.samples

    @BOOK.own(source="CPython: a reference is counted in its object", measured_by=_WORKERS)
    def copied_by_workers_bytes(q):
        r"""M_\text{cow} | bytes | memory that forked workers add when each has read a list of
        objects, one a sample: reading an object writes its count; an array adds none"""
        return q.loader_workers * q.samples * q.object_bytes

    @BOOK.own(measured_by=_BY_HAND)
    def stream_copies(q):
        r"""n_\text{copies} | count | how often each sample of a stream comes, if the stream knows
        neither its rank nor its worker"""
        return q.data_parallel * maximum(q.loader_workers, 1)


class ShortWindowsFirst(BOOK.section(source="attention of a window to itself", measured_by=_SHORT)):
    def saved_pairs_share(q):
        r"""\pi_\text{saved} | fraction | pairs of tokens that attention does not look at where
        windows are shorter and tokens of a step as many"""
        return 1 - q.mean_sequence / q.sequence


class RowsOfEqualDocuments(
    BOOK.section(source="shardlab.data_loading.core_packing", measured_by=_PACKS)
):
    def padded_row_share(q):
        r"""\pi_\text{pad} | fraction | padding, with one document in a row"""
        return 1 - minimum(q.document_tokens, q.sequence) / q.sequence

    def documents_in_row(q):
        r"""n_\text{fit} | count | whole documents that fit into a row, or one that is cut"""
        return maximum(1, floor_div(q.sequence, q.document_tokens))

    def whole_row_share(q):
        r"""\pi_\text{whole} | fraction | padding, with as many whole documents in a row as fit"""
        return 1 - minimum(q.documents_in_row * q.document_tokens, q.sequence) / q.sequence

    def cropped_share(q):
        r"""\pi_\text{crop} | fraction | tokens thrown away where rows are filled and the last
        document is cut"""
        return 1 - q.sequence / (q.document_tokens * ceil_div(q.sequence, q.document_tokens))

    def whole_rows(q):
        r"""n_\text{rows} | count | rows for all documents, with whole documents alone"""
        return ceil_div(q.documents, q.documents_in_row)


class RowsOfAnyDocuments(
    BOOK.section(source="a place of a row is a token or padding", measured_by=_SAMPLE)
):
    def least_rows(q):
        r"""n_\text{least} | count | fewest rows that hold each document as far as one row can"""
        return ceil_div(q.fitting_tokens, q.sequence)

    def packed_padding_share(q):
        r"""\pi_\text{pack} | fraction | padding of a packer's rows; rows that crop are full, but
        for the last one"""
        return 1 - minimum(q.fitting_tokens, q.packed_rows * q.sequence) / (
            q.packed_rows * q.sequence
        )

    def packed_thrown_share(q):
        r"""\pi_\text{thrown} | fraction | tokens that a packer throws away: the ends of documents
        longer than a row, and what its rows have no place for"""
        return 1 - minimum(q.fitting_tokens, q.packed_rows * q.sequence) / q.all_document_tokens
