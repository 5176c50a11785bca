"""Rows of tables.py that the stages of ZeRO take: right as the plain model, or one sentence."""

from functools import partial

import cloudpickle
import pytest
import tables
import torch
from tables import (
    CORES,
    RIGHT,
    STAGES,
    assigned,
    by_rule,
    by_the_former,
    check,
    clipped,
    clipped_by_torch,
    clipped_by_value,
    copy_of_the_optimizer,
    frozen_later,
    given_a_gradient,
    in_16_bits,
    infinite_on_one_rank,
    loaded_between,
    made_before,
    made_of,
    made_twice,
    masked,
    microbatches,
    nothing_but_no_sync,
    of_any_strides,
    read_after_a_step,
    replicated_afterwards,
    sparse,
    stepped_in_between,
    takes,
    two_steps,
    under_replicas,
    unfrozen_later,
    with_a_graph,
    with_a_scheduler,
)
from torch.optim import SGD

from shardlab.mixed_precision import MasterWeights
from shardlab.zero.hardened import stage1, stage2
from shardlab.zero.hardened.offload import cpu_offload

cloudpickle.register_pickle_by_value(tables)
BY_KIND = ("stage 1 native", "stage 2 native", "stage 3 native")
BY_KIND += ("stage 1 fast", "stage 2 fast", "stage 3 fast")
ALL = (*STAGES, "by hand")
AHEAD = ("stage 1 ahead", "stage 2 ahead")
OFFLOADED = ("stage 1 offload", "stage 2 offload", "stage 3 offload")
PLAIN = partial(SGD, lr=0.1)
COPIES = partial(MasterWeights, of=SGD, lr=0.1)
HOSTED = partial(cpu_offload(SGD), lr=0.1)
STAGE_1 = partial(stage1.ShardedOptimizer, optimizer_cls=SGD, lr=0.1)
STAGE_2 = partial(stage2.ShardedOptimizer, optimizer_cls=SGD, lr=0.1)

TWICE = "CannotShard: Linear is sharded already"
MOVED = "CannotShard: a parameter was moved after the sharded optimizer was made (by model.to, "
CLAIMED = "ValueError: these gradients are averaged already"
SHARDED = "ValueError: the module is sharded already"
TAKEN = "CannotShard: SGD steps with a parameter of shape [7, 4] whose gradient {} takes: of these"
BEFORE = "CannotShard: {} was made before fully_shard: its parameter of shape [7, 4] is no longer"
FROZEN = "CannotShard: 0.weight was frozen when the sharded optimizer was made, and is trained now"
CHANGED = "RuntimeError: ...modified by an inplace operation"
BY_TORCH = "CannotShard: torch.nn.utils.clip_grad_norm_ knows this rank's gradients alone"
SOME = "CannotShard: torch.nn.utils.clip_grad_value_ of 1 of 3 parameters whose gradients"
LOOKS = "TypeError: optimizer_cls = {}: it looks at more than one element at a time"
COPIED = TAKEN.replace("SGD", "MasterWeights")
HALVED = "CannotCopy: a parameter was frozen, unfrozen or converted after the optimizer was"
NO_COPY = "CannotShard: a sharded optimizer is not copied or pickled"
GRAPH = "NotOurGradient: backward(create_graph=True): "

DIFFERS = "CannotShard: rank 0 has {}...rank 1 has {}"
UNITS = "CannotShard: rank 0 has ..., rank 1 has ...: all ranks shard the same model in the same"
INFERENCE = "CannotShard: rank {} was made in inference mode: make the module outside of torch."
ROW_CHANGES = "CannotShard: rank 1: 0 has max_norm = 1.0: each rank would shorten the rows of its"
CHANGES = "CannotShard: rank 1: 0 is a {} with max_norm = 1.0, which shortens rows in forward"
SCRIPT = "CannotShard: rank 0: 0 is a RecursiveScriptModule, whose parameters stay"
UNTRAINED = "CannotShard: rank 0: a group of 2 parameters, none of them trained"

ROWS = [
    *takes(
        (),
        *(
            (made_of, name, {**dict.fromkeys(STAGES, DIFFERS.format(*differs)), "stage 3": UNITS})
            for name, *differs in (
                ("another shape", "weight [3, 2]", "weight [4, 2]"),
                ("a layer more", "nothing more", "1.weight [2, 2]"),
                ("another order", "a.weight [6, 4]", "b.weight [4, 6]"),
                ("frozen on one rank", "bias [2]", "bias [2] torch.float64 frozen"),
            )
        ),
        (made_of, "no parameters", dict.fromkeys(STAGES, "CannotShard: Tanh has no parameters")),
        (made_of, "nothing trained", {"stage 1, stage 2": UNTRAINED, "stage 3": "no word"}),
        (made_of, "inference mode", dict.fromkeys(STAGES, INFERENCE.format("1: 0.weight"))),
        (made_of, "a table of inference mode", dict.fromkeys(STAGES, INFERENCE.format("0: table"))),
        (
            made_of,
            "rows that change",
            {"stage 1, stage 2": ROW_CHANGES, "stage 3": CHANGES.format("Embedding")},
        ),
        (made_of, "rows of bags", {"stage 3": CHANGES.format("EmbeddingBag")}),
        (made_of, "frozen rows", {"stage 1": "no word"}),
        (made_of, "a script", {"stage 1, stage 2": "no word", "stage 3": SCRIPT}),
    ),
    *takes(STAGES, with_a_scheduler),
    *takes(
        (*STAGES, *CORES),
        (made_twice, {"stage 3": TWICE, "core 0, core 2": CLAIMED, "core 3": SHARDED}),
    ),
    *takes(STAGES, (by_the_former, {"stage 1, stage 2": MOVED, "stage 3": TWICE})),
    # --- another optimizer, another technique
    *takes(
        (),
        (
            made_before,
            PLAIN,
            {
                "stage 1, stage 2": TAKEN.format("ShardedOptimizer"),
                "stage 3": BEFORE.format("SGD"),
            },
        ),
        (made_before, COPIES, {"stage 3": BEFORE.format("MasterWeights")}),
        (made_before, HOSTED, {"stage 3": BEFORE.format("SGDOffloaded")}),
        (made_before, PLAIN, {"masters": TAKEN.format("MasterWeights"), "16 bits": RIGHT}),
        (made_before, COPIES, {"16 bits": HALVED}),
        (made_before, COPIES, torch.bfloat16, {"stage 1": COPIED.format("ShardedOptimizer")}),
        (made_before, STAGE_1, {"16 bits": MOVED}),
        (made_before, STAGE_2, {"stage 3": BEFORE.format("ShardedOptimizer")}),
        (
            under_replicas,
            {
                "stage 1, core 1": RIGHT,
                "stage 2": "CannotReplicate: a newer ShardedOptimizer averages gradients",
            },
        ),
        (
            replicated_afterwards,
            {
                "stage 1, core 1": RIGHT,
                "stage 2": "CannotShard: a newer DistributedDataParallel averages gradients",
                "stage 3": "CannotReplicate: rank 0: 0.weight is in part 1 of 2 of a model",
            },
        ),
    ),
    # --- parameters and gradients
    *takes(
        STAGES,
        (unfrozen_later, {"stage 1, stage 2": FROZEN}),
        (frozen_later, {"stage 1, stage 2": "CannotShard: a parameter of shape [7, 4] was frozen"}),
        (
            assigned,
            {
                "stage 1, stage 2": "CannotShard: step() without a gradient on this rank",
                "stage 3": "RuntimeError: Linear.weight was assigned after fully_shard",
            },
        ),
        (
            copy_of_the_optimizer,
            {"stage 1, stage 2": NO_COPY, "stage 3": None},
        ),
        of_any_strides,
        (sparse, dict.fromkeys(STAGES, "CannotShard: a gradient is torch.sparse_coo: only dense")),
        (
            with_a_graph,
            {"stage 1, stage 2": GRAPH, "stage 3": "NoSecondGradient: create_graph=True: Linear"},
        ),
        (stepped_in_between, dict.fromkeys(STAGES, CHANGED)),
        (
            given_a_gradient,
            {"stage 2": "CannotShard: a parameter has got a .grad", "stage 3": None},
        ),
        *((masked, when, {"stage 3": None}) for when in ("before", "after", "after a step")),
    ),
    *takes((*STAGES, *BY_KIND, *AHEAD), in_16_bits),
    # --- messages that come when they are waited for
    *takes(
        AHEAD,
        two_steps,
        with_a_scheduler,
        (made_twice, {"stage 1 ahead": None}),
        (by_the_former, dict.fromkeys(AHEAD, MOVED)),
        (frozen_later, dict.fromkeys(AHEAD, "CannotShard: a parameter of shape [7, 4] was frozen")),
        (assigned, dict.fromkeys(AHEAD, "CannotShard: step() without a gradient on this rank")),
        (copy_of_the_optimizer, dict.fromkeys(AHEAD, NO_COPY)),
        (stepped_in_between, dict.fromkeys(AHEAD, CHANGED)),
        (given_a_gradient, dict.fromkeys(AHEAD, "CannotShard: a parameter has got a .grad")),
        *((masked, when) for when in ("before", "after", "after a step")),
        clipped,
        clipped_by_value,
        loaded_between,
        *((infinite_on_one_rank, way) for way in (True, False)),
        *((microbatches, apart) for apart in (True, False)),
        (nothing_but_no_sync, dict.fromkeys(AHEAD, "CannotShard: a parameter has got a .grad")),
        partial(by_rule, rule=tables.MyAdamW),
        *((read_after_a_step, read) for read in tables.READS),
    ),
    *takes(
        AHEAD,
        partial(clipped_by_value, rule=MasterWeights, dtype=torch.float16, of=SGD),
        partial(loaded_between, rule=MasterWeights, dtype=torch.float16, of=SGD),
    ),
    *takes(("stage 1", "stage 2"), *((microbatches, apart) for apart in (True, False))),
    *takes(("stage 3",), partial(in_16_bits, compute_dtype=torch.float16)),
    # --- clipping, scaling, loading
    *takes(
        STAGES,
        *(
            (clipped_by_torch, order, {"stage 1, stage 2": BY_TORCH})
            for order in (1.0, 2.0, 3.0, float("inf"))
        ),
        clipped_by_value,
        *((infinite_on_one_rank, way) for way in (True, False)),
    ),
    *takes((), (clipped_by_value, True, dict.fromkeys(STAGES[:2], SOME))),
    *takes(
        STAGES[:2],
        partial(clipped_by_value, rule=MasterWeights, dtype=torch.float16, of=SGD),
        partial(loaded_between, rule=MasterWeights, dtype=torch.float16, of=SGD),
    ),
    *takes(
        OFFLOADED,
        partial(clipped, rule=torch.optim.AdamW, eps=1e-3),
        *((infinite_on_one_rank, way) for way in (True, False)),
    ),
    *takes(
        OFFLOADED[:2],
        loaded_between,
        partial(clipped, rule=MasterWeights, dtype=torch.float16, of=SGD),
        partial(clipped_by_value, rule=MasterWeights, dtype=torch.float16, of=SGD),
        (partial(infinite_on_one_rank, rule=MasterWeights, dtype=torch.float16, of=SGD), True),
    ),
    *takes(
        ("replicas",),
        partial(clipped_by_value, rule=cpu_offload(MasterWeights), dtype=torch.float16, of=SGD),
    ),
    *takes(
        ("replicas",),
        partial(loaded_between, rule=MasterWeights, dtype=torch.float16, of=SGD),
        partial(loaded_between, rule=cpu_offload(SGD)),
    ),
    *takes(
        ("stage 3",),
        *((partial(infinite_on_one_rank, fused=True), way) for way in (True, False)),
    ),
    # --- optimizers
    *takes(
        ALL,
        *((by_rule, rule) for rule in (tables.OfSigns, tables.MyAdamW)),
        *(
            (by_rule, rule, 0.0, dict.fromkeys(ALL, LOOKS.format(rule.__name__)))
            for rule in tables.LOOKING
        ),
        (
            by_rule,
            torch.optim.LBFGS,
            dict.fromkeys(ALL, "TypeError: optimizer_cls = LBFGS: it does not step with plain"),
        ),
    ),
]


@pytest.mark.parametrize("door, row, args, expected", ROWS)
def test_a_row(worlds, door, row, args, expected):
    """Must catch: what the row says."""
    check(worlds(2, patience_seconds=30), door, row, args, expected)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("door", [*STAGES, *CORES])
def test_two_steps(worlds, door, n):
    """One rank alone, and a number that divides few sizes.

    Must catch: a ring that sends to itself; what the row says."""
    check(worlds(n), door, two_steps, (), RIGHT)
