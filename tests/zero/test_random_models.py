"""Random models, trained by data parallelism and the stages of ZeRO beside the plain model.

`python -m bench random-models` draws 5,000 of them.
"""

import pytest
from night import at_night
from random_models import case_of, outcomes

# Chosen so that together they have each technique with each piece, inside a unit of stage 3 and in
# its root, with each output, optimizer, scaler and collective, and on each number of ranks.
# fmt: off
SEEDS = [
    198, 458, 621, 652, 654, 750, 833, 865, 879, 889, 1231, 1267, 1353, 1441, 2054, 2199, 2752,
    2984, 3246, 3317, 3345, 3358, 3537, 3600, 3666, 3956, 4465, 4674, 5017, 5342, 5439, 5475,
    5486, 5718, 5775, 6013, 6372, 6645, 6879, 7076, 7291, 7301, 7564, 7630, 7644, 8073, 8176,
    8268, 8844, 9188, 9466, 9607, 9888, 9919, 10137, 10151, 10747, 10812, 11226, 11243, 11253,
    11405, 11425, 11485, 11623, 11662, 11725, 11943, 12029, 12031, 12536, 12632, 12817, 13368,
    13379, 13525, 14101, 14188, 14323, 14368, 14398, 14598, 14612, 15099, 15598, 15901, 16102,
    16141, 16687, 17362, 17537, 17643, 17669, 17816, 17837, 17977, 18203, 18398, 18429, 18600,
    18605, 18729, 18730, 18949, 19100, 19458, 19500, 19560, 19729, 19756, 1414,
]
# fmt: on
# Ranks take different ways behind a reentrant checkpoint: their sums did not meet.
ALIKE = case_of(0)._replace(unused=False, clip=1e6, set_to_none=True)
DIFFERENT_WAYS = [
    ALIKE._replace(
        seed=3172,
        ranks=4,
        technique="stage 2",
        width=6,
        pieces=("layer", "recomputed reentrant", "by data", "recomputed reentrant"),
        output="tuple",
        optimizer="AdamW",
        microbatches=1,
        steps=1,
        collectives="default",
        bucket_bytes=10**6,
        scaler="fine",
    ),
    ALIKE._replace(
        seed=4001,
        ranks=3,
        technique="DistributedDataParallel",
        width=7,
        pieces=("layer", "checkpointed reentrant", "by data"),
        output="attribute",
        optimizer="SGD",
        microbatches=2,
        steps=3,
        no_sync=True,
        bucket_bytes=1,
        scaler="none",
    ),
]
CASES = [*map(case_of, SEEDS), *DIFFERENT_WAYS]
TOGETHER = 20  # cases of one call, which has the ranks' patience


def may_be_refused(case):
    outside = {"used by another", "other method"}
    return case.technique == "stage 3" and bool(outside & set(case.pieces))


@pytest.mark.parametrize("count", [3, *at_night(2, 4)])
def test_parity_or_a_typed_refusal(worlds, count):
    """Must catch: any wrong result; an error of PyTorch's own; one rank that refuses alone; a
    refusal of what is right. (Stage 3 refuses a weight used outside of its unit, or in another
    method.)"""
    cases = [case for case in CASES if case.ranks == count]
    found = {}
    for first in range(0, len(cases), TOGETHER):
        found |= outcomes(worlds(count), cases[first : first + TOGETHER])
    wrong = {
        case: said
        for case in cases
        if (said := found[case.seed]) != "parity"
        and not (said.startswith("refused: NotGathered") and may_be_refused(case))
    }
    assert not wrong, "\n".join(f"{said}  {case}" for case, said in wrong.items())


def test_the_cases_have_every_piece():
    """Must catch: a piece, an output or a technique that was added, and that no case has."""

    def those_of(cases):
        of_stage_3 = [case for case in cases if case.technique == "stage 3"]
        inside = {(c.pieces[k], k in c.units) for c in of_stage_3 for k in range(len(c.pieces))}
        pieces = {(case.technique, piece) for case in cases for piece in case.pieces}
        fields = ("ranks", "output", "optimizer", "scaler", "clip", "set_to_none")
        return inside | pieces | {(c.technique, f, getattr(c, f)) for c in cases for f in fields}

    assert those_of(CASES) == those_of(list(map(case_of, range(5000))))
