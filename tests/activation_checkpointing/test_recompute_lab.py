"""The lab's figures, which no run of the lab compares, and the bytes a plan starts from."""

import pytest

from coursekit.formulas import evaluate, quantities
from coursekit.lab import batches, small_gpt
from coursekit.show.format import decimal_bytes
from coursekit.topics.activation_checkpointing import lab, pictures
from coursekit.topics.activation_checkpointing.exercises import peak_of_blocks
from coursekit.topics.activation_checkpointing.figures import DRAWN_PARTS, live_figure
from ranklab.measure.ledger import Ledger
from shardlab.gpt import next_token_loss
from shardlab.recompute.layers import checkpoint_some


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
    """Must catch: gradients of the first microbatch left out, or counted for each block."""
    model = small_gpt(layers=16, hidden=64, heads=4, max_sequence=64)
    model.blocks = checkpoint_some(model.blocks, blocks)
    for _, (inputs, targets) in zip(range(2), batches(8, 64)):
        with Ledger(model) as ledger:
            next_token_loss(model(inputs), targets).backward()
    layers, *of, standing = lab.bytes_of_blocks(model.config)
    peak = standing + peak_of_blocks(blocks, layers, *of)
    assert peak == pytest.approx(ledger.peak.bytes.total, rel=0.01)


POLICIES = pictures.DRAWN_POLICIES


@pytest.mark.parametrize("name", POLICIES)
def test_the_outline_is_the_formulas(name):
    """Must catch: the input of a checkpoint counted beside its layers; a second run as long as the
    first; activations that outlive their layer."""
    step = pictures.layers_over_step(**POLICIES[name])
    given = quantities(**pictures.CHECKPOINTED_STEP, **POLICIES[name])
    names = ("rank_layers_kept_bytes", "rank_layers_bytes", "step_flops", "recomputed_flops")
    kept, most, work, twice = evaluate(names, allow_unused=True, **given).values()
    assert max(point.kept for point in step.points) == kept
    assert max(map(pictures.alive, step.points)) == most
    assert step.points[-1] == (pytest.approx(work + twice, rel=1e-12), 0, 0)
    assert min(min(point) for point in step.points) == 0
    shown = pictures.draw_steps()
    assert (
        f"{decimal_bytes(most)}</text>" in shown and f"forward keeps {decimal_bytes(kept)}" in shown
    )
