"""The lab's figures, which no run of the lab compares, and the bytes a plan starts from."""

import pytest

from coursekit.lab import batches, small_gpt
from coursekit.topics.activation_checkpointing import lab
from coursekit.topics.activation_checkpointing.exercises import peak_of_blocks
from coursekit.topics.activation_checkpointing.figures import (
    DRAWN_PARTS,
    live_figure,
    tradeoff_figure,
)
from ranklab.measure.ledger import Ledger
from shardlab.gpt import next_token_loss
from shardlab.recompute.layers import checkpoint_some


def test_every_rung_is_a_mark_of_its_own():
    """Must catch: seconds and bytes exchanged; two rungs with one mark and one colour."""
    figure = tradeoff_figure("", {str(n): (0.01 * n, 2e6 * n) for n in range(1, 6)})
    assert [(mark.x[0], mark.y[0]) for mark in figure.data] == [
        (10.0 * n, 2.0 * n) for n in range(1, 6)
    ]
    assert len({(mark.marker.symbol, mark.marker.color) for mark in figure.data}) == 5


def test_a_long_step_is_drawn_as_high_as_it_gets():
    """Must catch: a peak between two drawn places that is lost; a long line made as short as
    another; the unit left out."""
    long = [1.0] * 1000
    long[777] = 9.0
    figure = live_figure("A step", {"nothing": [1, 3, 2], "each block": long}, "vectors")
    short, drawn = figure.data
    assert list(short.y) == [1, 3, 2] and max(drawn.y) == 9.0 and len(drawn.y) == DRAWN_PARTS
    assert list(short.x) == [0, 1, 2] and drawn.x[-1] > 990
    assert figure.layout.yaxis.title.text == "vectors"


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("blocks", [[0, 1, 2, 3, 4, 5], [13, 14, 15]], ids=str)
def test_what_a_plan_starts_from(blocks):
    """The bytes that the reader's function is given say the ledger's peak within a percent.

    Must catch: gradients of the first microbatch left out, or counted for each block."""
    model = small_gpt(layers=16, hidden=64, heads=4, max_sequence=64)
    model.blocks = checkpoint_some(model.blocks, blocks)
    for _, (inputs, targets) in zip(range(2), batches(8, 64)):
        with Ledger(model) as ledger:
            next_token_loss(model(inputs), targets).backward()
    layers, *of, standing = lab.bytes_of_blocks(model.config)
    peak = standing + peak_of_blocks(blocks, layers, *of)
    assert peak == pytest.approx(ledger.peak.bytes.total, rel=0.01)
