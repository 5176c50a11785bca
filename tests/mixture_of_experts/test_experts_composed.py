"""Experts with every other technique, trained beside the plain model: see compositions.py. Losses,
norms, all weights and the moves of the choosing bias are the plain model's."""

import pytest
from compositions import layout, outcome, parity_in
from night import at_night

LLAMA = dict(biases=0, gated_mlp=1, tied_head=0, shared_experts=1)


def case(dp, stage, ep, sizes=(), **others):
    """ep ranks divide the experts; 0: each has all of them."""
    plain = layout(dp, stage, ep=(ep, ep), **others)
    return plain._replace(
        sizes={**plain.sizes, "experts": 4, "experts_per_token": 2, **dict(sizes)}
    )


TWICE = dict(accumulate=2, recompute="function")
ROWS = {
    "data parallelism": case(4, 0, 2, **TWICE),
    "stage 2": case(4, 2, 4, **TWICE),
    "stage 3": case(4, 3, 2, recompute="hooks"),
    "no rank alone has experts": case(4, 2, 0),
    "tensor parallelism": case(2, 1, 2, tp=2, chunks=2),
    "pipeline": case(2, 1, 2, pp=2, microbatches=4),
}
BY_NIGHT = {
    "data parallelism, no replicas": case(4, 0, 4),
    "stage 1": case(4, 1, 2, sizes=LLAMA),
    "stage 3, no replicas": case(4, 3, 4, **TWICE, sizes=LLAMA),
    "tensor parallelism, stage 3": case(2, 3, 2, tp=2, sizes=LLAMA, recompute="selective"),
    "tensor parallelism alone": case(2, 0, 0, tp=2),
    "GPipe, stage 2": case(2, 2, 2, pp=2, microbatches=4, schedule="GPipe", sizes=LLAMA),
    "zero bubble": case(2, 0, 2, pp=2, microbatches=4, schedule="zero-bubble H1"),
}


@pytest.mark.parametrize("row", [*ROWS, *at_night(*BY_NIGHT)])
def test_parity_with_other_techniques(worlds, row):
    """Must catch: an expert averaged or sharded over all ranks; a norm in which an expert counts
    once for each replica, or not at all; loads of a rank's own; a load that a recomputation counts
    again; the bias of `down` added by each rank of tensor parallelism."""
    assert parity_in(worlds(4), {**ROWS, **BY_NIGHT}[row]) == "parity"


def resumed(before, after, ep, ep_after, sizes=(), **others):
    plain = case(*before, ep, sizes, **others)
    return plain._replace(after=after, ep=(ep, ep_after))


RESUMED = {
    "4 to 2": resumed((4, 1), (4, 2), 4, 2),
}
RESUMED_BY_NIGHT = {
    "2 to all on 2 ranks": resumed((4, 3), (2, 0), 2, 0, sizes=LLAMA),
    "all to 2, stage 3": resumed((2, 0), (4, 3), 0, 2),
    "4 to 2 of 2 ranks, no ZeRO": resumed((4, 0), (2, 0), 4, 2, optimizer="AdamW"),
    "2 to 1 beside tensor parallelism": resumed((2, 1), (2, 3), 2, 1, tp=2),
}


@pytest.mark.ranks
@pytest.mark.parametrize("row", [*RESUMED, *at_night(*RESUMED_BY_NIGHT)])
def test_a_run_goes_on_with_experts_on_other_ranks(row):
    """Must catch: an expert that is known by its place on a rank; chunks of experts written by all
    ranks of data parallelism; moments of another expert; a choosing bias that begins anew."""
    assert outcome({**RESUMED, **RESUMED_BY_NIGHT}[row]) == "parity"
