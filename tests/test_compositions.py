"""Techniques composed at random beside the plain model: see compositions.py.

`make compose N=200 SEED=7` trains others; every night a machine does so with new ones.
"""

import pytest
from compositions import case_of, layout, outcome, parity_in
from night import at_night

# Chosen so that together they have each schedule, stage, axis, scaler, optimizer and kind of model,
# and most pairs of axes, clipping, scalers, accumulation, recomputation and a tied head. Those by
# day have each stage, tensor and context parallelism, both scalers and clipping.
SEEDS = [2370, 8660, *at_night(4, 5, 80, 2303, 6055, 6160, 6805, 6809, 8679, 10881)]


@pytest.mark.ranks
@pytest.mark.parametrize("seed", SEEDS)
def test_parity_on_every_axis_at_once(seed):
    """Must catch: DistributedDataParallel or ZeRO over ranks that hold other parts; an optimizer
    that steps on parameters that were cut meanwhile; a save of one of several parts; a gradient,
    norm, state or cut of tokens that two techniques count twice, or neither."""
    assert outcome(case_of(seed)) == "parity", case_of(seed)


# chunks of row layers whose messages overlap; zero bubble puts off the products of such layers
CHUNKS = {"GPipe": 3, "1F1B": 0, "interleaved 1F1B": 1, "zero-bubble H1": 2}


@pytest.mark.nightly  # by day two axes at a time, and three in test_all_ranks_agree_on_an_overflow
@pytest.mark.parametrize("kind", ["GPipe", "1F1B", "interleaved 1F1B", "zero-bubble H1"])
def test_dp_pp_tp_and_sequence_parallel(worlds, kind):
    """Must catch: gradients of a microbatch averaged before the last; a tied weight's part added to
    another part; messages of whole sequences between stages; an overlapped layer that asks for the
    autocast of the meta device, on which the stages are planned."""
    axes = dict(pp=2, tp=2, sequence_parallel=kind != "GPipe", schedule=kind, microbatches=4)
    case = layout(2, 0, **axes, chunks=CHUNKS[kind], clip=0)
    case = case._replace(sizes={**case.sizes, "layers": 4, "tied_head": 1})
    assert parity_in(worlds(8), case) == "parity"
