"""A layout of data, tensor and pipeline parallelism that runs, beside the formulas of a rank."""

import pytest

from coursekit.formulas import InvalidQuantity
from coursekit.topics.which_layout.lab import WeighedRun, predicted, weigh_layout
from coursekit.topics.which_layout.runs import RunLayout, weigh_rank
from ranklab.measure.ledger import Counts

CUBE = dict(data_parallel=2, tensor_parallel=2, pipeline_parallel=2, microbatches=4)
OWN_TOKENS = dict(sequence_parallel=True, regather=True)
LAYOUTS = (
    RunLayout(**CUBE, zero_stage=1, **OWN_TOKENS),
    RunLayout(**CUBE, zero_stage=2, recompute_policy=3, schedule="GPipe"),
    RunLayout(**CUBE, zero_stage=0, recompute_policy=3, **OWN_TOKENS),
    RunLayout(tensor_parallel=2, pipeline_parallel=2, microbatches=3, sizes=dict(vocabulary=257)),
    RunLayout(
        data_parallel=2,
        pipeline_parallel=2,
        zero_stage=1,
        microbatches=4,
        recompute_policy=3,
        schedule="eager 1F1B",
        sizes=dict(biases=0, gated_mlp=1, learned_positions=0, tied_head=0),
    ),
    RunLayout(data_parallel=2, tensor_parallel=2, zero_stage=3, microbatches=2, **OWN_TOKENS),
    RunLayout(
        data_parallel=2,
        zero_stage=2,
        microbatch=1,
        microbatches=3,
        sizes=dict(vocabulary=10_240, max_sequence=8),
    ),
)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_rank_to_the_byte(worlds, layout):
    """Each rank's bytes at its fullest, by category, on ranks that send to each other.

    Must catch: the batch left out of activations on a rank that saves none of it; a layer that is
    computed again counted as kept; the losses of earlier microbatches forgotten; the optimizer's
    counters of every parameter where they are of buckets; one rank's bytes said of all; stage 2's
    new gradients, which wait whole for their bucket, taken for a part of the shard's."""
    found = worlds(layout.ranks).run(weigh_rank, layout)
    assert found == [predicted(layout, rank) for rank in range(layout.ranks)]


@pytest.mark.ranks
def test_a_run_and_its_explorer():
    """The call of a notebook: a table without differences, and the explorer with the ledger's
    bytes, whose knobs move from there.

    Must catch: the bytes of another rank; an explorer that begins with another layout."""
    run = weigh_layout(RunLayout(tensor_parallel=2, pipeline_parallel=2, microbatches=2))
    assert [row[-1] for row in run.table().rows] == ["+0"] * 4
    widget = run.explorer(rank=2)
    assert widget.shown["rank_peak_bytes"] == run.measured[2].total
    assert "Rank 1 of the pipeline, one of 4 ranks" in widget.sentence
    assert all(f"{nbytes:,}" in widget.pictures[0] for nbytes in run.measured[2] if nbytes)
    widget.sliders["accumulation_steps"].value = 8
    assert widget.shown["rank_peak_bytes"] > run.measured[2].total
    assert repr(WeighedRun(run.layout, (Counts(),) * 4).explorer()) != repr(widget)


@pytest.mark.parametrize(
    "wrong, message",
    [
        (dict(tensor_parallel=3), "key_value_heads = 4 is not divisible by tensor_parallel = 3"),
        (dict(pipeline_parallel=2, zero_stage=3), "compose with stages 0 to 2"),
        (dict(pipeline_parallel=3, microbatches=3), "pipeline_parallel = 3 with layers = 4: the"),
        (dict(pipeline_parallel=2, schedule="zero-bubble H1"), "known about, not to the byte"),
        (dict(data_parallel=2, microbatches=2), "zero_stage = 0 with data_parallel = 2 without a"),
    ],
)
def test_a_layout_that_cannot_be_starts_no_rank(wrong, message):
    """Must catch: ranks that start, and say the same in eight tracebacks."""
    with pytest.raises(InvalidQuantity, match=message):
        weigh_layout(RunLayout(**wrong))
