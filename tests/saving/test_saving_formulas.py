"""How often to save: the formulas against a run of years, on a pretended clock."""

import math
import random

import pytest
from pages import chapter
from solved import Given

from coursekit.formulas import (
    RECIPES,
    render,
    square_root,
)
from coursekit.formulas.registry import Registry
from coursekit.topics.saving import pictures
from shardlab.saving.resharding import HeldElements, Layout
from shardlab.zero.hardened.flat import chunk_of

STORAGE = 2e9  # bytes a second
RUN = dict(checkpoint_bytes=int(10 * STORAGE), storage_bytes_per_second=STORAGE)
RUN |= dict(failure_seconds=10_000.0)


def lost(interval, saving, between_failures, restart=0, failures=20_000):
    """The share of its time that a run loses which saves after each interval, and goes on from
    there after a failure, once it has been started again."""
    chance, whole, useful = random.Random(0), 0.0, 0.0
    for _ in range(failures):
        lives = chance.expovariate(1 / between_failures)
        whole += lives + restart
        useful += interval * (lives // (interval + saving))
    return 1 - useful / whole


def test_how_often_to_save():
    """A clock shows it to 5 %, at Young's interval and at half and twice of it. Mutations: the
    square root without the 2; a whole interval lost to a failure; the bandwidth of one rank for
    all."""
    interval = Given(**RUN).save_interval_seconds
    assert interval == math.sqrt(2 * 10 * 10_000)
    best = lost(interval, 10, 10_000)
    for factor in (0.5, 1, 2):
        found = Given(**RUN, save_interval_seconds=factor * interval).save_lost_fraction
        assert found == pytest.approx(lost(factor * interval, 10, 10_000), rel=0.05)
        assert factor == 1 or lost(factor * interval, 10, 10_000) > 1.1 * best


def test_what_a_restart_costs():
    """On the clock of the test above, and Llama 3 405B. Must catch: the restart left out, paid once
    for each save, or taken as time in which nothing fails."""
    interval = Given(**RUN).save_interval_seconds
    found = Given(**RUN, restart_seconds=200).failures_lost_fraction
    assert found == pytest.approx(lost(interval, 10, 10_000, restart=200), rel=0.05)
    llama = dict(
        parameters=405_000_000_000,
        storage_bytes_per_second=2e12,
        failure_seconds=54 * 86_400 / 419,
        restart_seconds=600,
        **RECIPES["bf16 + fp32 master"].quantities,
    )
    both = Given(**llama)
    assert both.save_lost_fraction == pytest.approx(0.0209, abs=5e-5)
    assert both.failures_lost_fraction == pytest.approx(0.0748, abs=5e-5)


def test_published_intervals():
    """Daly 2006, captions of figures 3 to 5; Young's is a third above the last. Must catch: the
    square root without the 2; a page that calls Young's interval exact."""
    page = " ".join(chapter("saving").split())
    for hours, minutes, most in ((24, 117, 1.06), (6, 57, 1.06), (0.25, 9.1, 1.35)):
        given = dict(checkpoint_seconds=300.0, failure_seconds=3600.0 * hours)
        found = Given(**given).save_interval_seconds
        assert 1.02 < found / (60 * minutes) < most
        assert f"{minutes} minutes" in page


def test_a_square_root_in_a_formula():
    """Typeset, and printed for the page, as it is called. Mutation: a power of a half, which the
    printer takes for none."""
    book = Registry()
    book.quantity("a", "a", "seconds", "a time", most=math.inf)

    class Parts(book.section(source="", measured_by="")):
        def b(q):
            """b | seconds | the root of twice the time"""
            return square_root(2 * q.a) / 3

    assert Parts.b(a=8) == 4 / 3 and square_root(2) == math.sqrt(2)
    assert render.latex("b", book) == r"b = \frac{\sqrt{2\,a}}{3}"
    assert "Math.sqrt(2 * a) / 3" in render.javascript(["b"], registry=book)


def test_pieces_are_those_that_a_rank_reads():
    """Must catch: chunks of unequal ends, a piece that two ranks read, files in another order."""
    elements, files = pictures.DRAWN_ELEMENTS, range(pictures.DRAWN_FILES)
    chunks = [chunk_of(file, elements, len(files)) for file in files]
    layout, want = Layout([[("w", chunk.start, chunk.stop)] for chunk in chunks]), []
    for rank in range(pictures.DRAWN_RANKS):
        own = HeldElements("w", [elements], chunk_of(rank, elements, pictures.DRAWN_RANKS), None)
        pieces = layout.sources(own)
        want += [(file, rank, here.stop - here.start) for file, _, _, here in pieces]
    found = [(file, rank, len(both)) for file, rank, both in pictures.drawn_pieces()]
    assert sorted(found) == sorted(want)
    assert sum(count for *_, count in found) == pictures.DRAWN_ELEMENTS


@pytest.mark.parametrize("elements, parts", [(40, 8), (40, 5), (7, 3), (2, 4)])
def test_chunks_are_cut_as_shards_are(elements, parts):
    """Must catch: the odd elements in the last part."""
    want = [chunk_of(part, elements, parts) for part in range(parts)]
    assert pictures.even_chunks(elements, parts) == want
