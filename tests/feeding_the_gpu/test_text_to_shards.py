"""From raw text to numbers, and the numbers that the page prints about the labs' text."""

import re

import pytest
from pages import ROOT
from solved import Given

from coursekit.topics.feeding_the_gpu.text_to_shards import (
    decoded,
    documents_of,
    encoded,
    learned_merges,
    likeness,
    signature,
    without_copies,
)
from shardlab.data_loading.core_packing import (
    best_fit_crop,
    first_fit_decreasing,
    greedy_crop,
    one_in_a_row,
)
from shardlab.text import load_text

PAGE = ROOT / "chapters" / "feeding-the-gpu.md"
TEXT = load_text()
DOCUMENTS = documents_of(TEXT)


def test_copies_are_found():
    """Must catch: a copy that another line break hides; the last of each kept instead of the
    first."""
    assert without_copies(["a b", "c", "a\n b", "c ", "d"]) == ["a b", "c", "d"]
    kept = without_copies(DOCUMENTS)
    assert f"{len(DOCUMENTS)} paragraphs, and {len(DOCUMENTS) - len(kept)} of them" in (
        PAGE.read_text("utf-8")
    )


def test_near_copies_are_found():
    """The refrain of the Lobster Quadrille, twice. Must catch: hash functions that are all one; a
    signature that depends on the order of words' groups."""
    refrains = [signature(each) for each in DOCUMENTS if "you join the" in each][-2:]
    other = signature(DOCUMENTS[20])
    assert likeness(*refrains) > 0.8 > 0.1 > likeness(refrains[0], other)
    assert len(set(other)) == 32


def test_the_encoder_gives_the_text_back():
    """Must catch: a merge that is applied out of order; a part of a word lost at its end."""
    merges = learned_merges(TEXT[:20_000], 60)
    tokens = encoded(TEXT, merges)
    assert decoded(tokens, merges) == TEXT and max(tokens) < 256 + 60
    assert len(tokens) < 0.75 * len(TEXT)
    assert learned_merges("ab ab cd cd cd", 2)[0] in [(b" ", b"c"), (b"c", b"d")]
    assert encoded("dé", []) == [100, 195, 169]


@pytest.mark.parametrize("packer", [one_in_a_row, greedy_crop, best_fit_crop, first_fit_decreasing])
def test_what_the_packers_lose_of_the_text(packer):
    """Must catch: a row of the page's table that the packers no longer give; ends of long documents
    that the formula leaves out; padding counted as tokens; fewer rows than tokens need."""
    lengths = [len(each) for each in DOCUMENTS]
    rows = packer(lengths, 512)
    tokens = sum(length for row in rows for _, length in row)
    padding, thrown = 1 - tokens / (512 * len(rows)), 1 - tokens / sum(lengths)
    cut = sum(length < lengths[number] for row in rows for number, length in row)
    given = dict(
        all_document_tokens=sum(lengths),
        fitting_tokens=sum(min(length, 512) for length in lengths),
        packed_rows=len(rows),
        sequence=512,
    )
    shares = Given(**given)
    last_row = 512 - sum(length for _, length in rows[-1]) if "crop" in packer.__name__ else 0
    assert padding - shares.packed_padding_share == pytest.approx(last_row / (512 * len(rows)))
    assert thrown - shares.packed_thrown_share == pytest.approx(last_row / sum(lengths))
    assert "crop" in packer.__name__ or len(rows) >= shares.least_rows
    assert packer is not first_fit_decreasing or len(rows) <= shares.least_rows + 1
    line = f"`{packer.__name__}` | {len(rows)} | {padding:.1%} | {thrown:.1%} | {cut} |"
    assert re.search(re.escape(line), PAGE.read_text("utf-8")), line
