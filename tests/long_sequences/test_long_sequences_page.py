"""The page and the lab of chapter 14 beside what runs: the stepper, the explorer's timeline, the
published run, the lab's pairs."""

import re
from types import SimpleNamespace

import pytest
from docutils import nodes
from pages import ROOT, chapter
from solved import Given

from bookkit.recorded import _virtual_races
from coursekit.formulas import quantities
from coursekit.formulas.events import end_seconds, operations, play
from coursekit.recordings.recordings import nearby
from coursekit.topics.long_sequences import lab
from coursekit.topics.long_sequences.exercises import places_in_zigzag
from coursekit.topics.long_sequences.explorer import LONG_SEQUENCES, RING_FORWARD
from coursekit.topics.long_sequences.published import NEMO, TORCHTITAN
from coursekit.topics.long_sequences.steps import (
    CONTIGUOUS,
    FRAMES,
    RING_RANKS,
    RING_TOKENS,
    STRIPED,
    TOKEN_ORDERS,
    ZIGZAG,
    block_steps,
    places_of,
    seen_pairs,
)
from shardlab.context_parallel.core import Context

RING = "context parallelism, ring"


@pytest.mark.parametrize("order", TOKEN_ORDERS)
def test_the_stepper_computes_each_pair_once(order):
    """Must catch: a pair that no rank computes, or two do; keys of a rank that comes later in the
    ring; a step without a picture."""
    turns = range(1, RING_RANKS + 1)
    seen = [
        pair
        for rank in range(RING_RANKS)
        for turn in turns
        for pair in seen_pairs(order, rank, turn)
    ]
    assert sorted(seen) == [(q, k) for q in range(RING_TOKENS) for k in range(q + 1)]
    steps, data = block_steps(order), FRAMES.data(order)
    assert len(steps) == len(data["frames"]) == len(data["say"]) == RING_RANKS + 2
    assert sum(map(sum, (step.pairs for step in steps))) == len(seen)


@pytest.mark.parametrize("order, in_a_row", [(CONTIGUOUS, 58), (STRIPED, 40), (ZIGZAG, 34)])
def test_the_slowest_rank_of_each_turn(order, in_a_row):
    """Must catch: the mean instead of the slowest rank; an order under another name."""
    assert sum(block_steps(order)[-1].longest) == in_a_row
    places = [places_of(order, rank) for rank in range(RING_RANKS)]
    row = lab.table_of_turns({TOKEN_ORDERS[order]: places}).rows[0]
    assert row[2].endswith(f"= {in_a_row}") and f"{row[3].removesuffix(' %')} % of the ring" in (
        block_steps(order)[-1].sentence
    )


@pytest.mark.parametrize("order, zigzag", [(CONTIGUOUS, False), (ZIGZAG, True)])
def test_places_are_those_of_the_core(order, zigzag):
    """Must catch: a stepper, or an exercise, whose order is not the technique's."""
    context = SimpleNamespace(ranks=RING_RANKS, zigzag=zigzag)
    context.numbers = lambda rank: Context.numbers(context, rank)
    for rank in range(RING_RANKS):
        chunks = Context.chunks(context, rank, RING_TOKENS // RING_RANKS)
        assert [place for chunk in chunks for place in chunk] == places_of(order, rank)
        assert not zigzag or places_in_zigzag(rank, RING_RANKS, RING_TOKENS) == places_of(
            order, rank
        )


@pytest.mark.parametrize("tokens", (1024, 16_384))
@pytest.mark.parametrize("order", (1, 2))
@pytest.mark.parametrize("ranks", (1, 2, 8))
def test_the_timeline_takes_as_long_as_the_formula(ranks, order, tokens):
    """Must catch: a message that leaves before its turn, a turn that begins before its keys are
    there, a first turn that is as long as a later one."""
    given = LONG_SEQUENCES.start() | dict(context_parallel=ranks, context_order=order)
    given["sequence"] = tokens
    found = LONG_SEQUENCES.compute(given)
    ran = play(operations(RING_FORWARD, found))
    assert end_seconds(ran) == pytest.approx(found["ring_forward_seconds"], rel=1e-9)


def test_the_published_run_by_its_operations():
    """Speed falls by 7.1, of which operations of a token explain 3.5, and Figure 2's line 6.3, as
    the page says. Must catch: scores of the whole square, a sequence that counts per rank; waiting
    for keys that takes more than the page says."""
    sizes = quantities(model="Llama 3 8B")
    flops = [
        Given(**sizes, microbatch=1, score_share=0.5, sequence=s).step_flops / s
        for s in (TORCHTITAN[0].sequence, TORCHTITAN[-1].sequence)
    ]
    slower = TORCHTITAN[0].tokens_per_second / TORCHTITAN[-1].tokens_per_second
    assert slower == pytest.approx(7.1, abs=0.05)
    assert flops[1] / flops[0] == pytest.approx(3.5, abs=0.05)
    least, most = TORCHTITAN[0].values(), TORCHTITAN[-1].values()
    line = most["layout_seconds"] / least["layout_seconds"]
    assert line == pytest.approx(6.3, abs=0.05) and slower / line == pytest.approx(1.1, abs=0.05)
    waiting = 32 * most["layer_context_seconds"] / most["layout_seconds"]
    assert waiting == pytest.approx(0.005, abs=0.0005)


def test_the_page_has_nvidias_table():
    """Must catch: a number of another column, or of the other model."""
    page = chapter("long-sequences")
    runs = NEMO["Llama 7B"][1:]
    for words, rates in (
        ("without context", [run.whole for run in runs]),
        ("with it", [run.shared for run in runs]),
    ):
        row = re.search(rf"^\| best {words}.*?\|(.*)\|$", page, re.MULTILINE)[1]
        assert [float(cell.split()[0]) for cell in row.split("|")] == rates


def test_the_page_has_the_recorded_race():
    """Must catch: a mix that is left out of the table; numbers of another implementation."""
    recording = next(one for one in nearby(ROOT) if one.find("virtual.step"))
    table, _ = _virtual_races(recording, shared=True)
    rows = [
        [entry.astext() for entry in row.findall(nodes.entry)] for row in table.findall(nodes.row)
    ]
    assert "```{virtual} mixes" in chapter("long-sequences")
    peers = ["PyTorch, ring", "PyTorch, gathered", "DeepSpeed, heads"]
    assert [(row[0], row[-1]) for row in rows[1:]] == [(one.split(", ")[1], one) for one in peers]
    step, peak = (
        [
            recording.find(name, technique=RING, implementation=one)[0].value
            for one in ("shardlab", peers[0])
        ]
        for name in ("virtual.step", "virtual.peak")
    )
    assert rows[1][1] == "{:.1f}\N{NO-BREAK SPACE}({:.1f})".format(*(1e3 * one for one in step))
    assert rows[1][4] == "{:.1f}\N{NO-BREAK SPACE}({:.1f})".format(*(1e-9 * one for one in peak))
