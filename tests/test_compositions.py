"""Techniques composed at random beside the plain model: see compositions.py.

`make compose N=200 SEED=7` trains others; every night a machine does so with new ones.
"""

import cloudpickle
import compositions
import pytest
from compositions import case_of, outcome

cloudpickle.register_pickle_by_value(compositions)
# Chosen so that together they have each schedule, stage, axis, scaler, optimizer and kind of model,
# and most pairs of axes, clipping, scalers, accumulation, recomputation and a tied head; few have 8
# ranks, which take twice the time. In 4 all ranks have parts of one shape, so that nothing but the
# guard of groups can refuse.
SEEDS = (4, 2303, 2370, 6055, 6160, 6805, 6809, 8660, 8679, 10881)


@pytest.mark.ranks
@pytest.mark.parametrize("seed", SEEDS)
def test_parity_on_every_axis_at_once(seed):
    """A run on 4 or 8 ranks, saved and resumed on another layout, is the plain model's; a group
    forgotten, an optimizer made too early and a save of one part are refused on every rank.

    Must catch: DistributedDataParallel or a stage of ZeRO over ranks that hold other parts; an
    optimizer that steps on parameters that were cut meanwhile; a save of one of several parts; any
    gradient, norm or state that two techniques count twice, or neither counts."""
    assert outcome(case_of(seed)) == "parity", case_of(seed)
