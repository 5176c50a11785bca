"""The memory ladder: each rung by the formulas and by the ledger, and the update of masters."""

import pytest
import torch
from dtypes import default_dtype
from night import at_night
from solved import Given

from coursekit.formulas import MODELS, RECIPES
from coursekit.topics.slow_to_fast.rungs import LADDER_BATCH, MEMORY_RUNGS, climb
from ranklab.measure.fake_ranks import fake_ranks
from ranklab.measure.ledger import Ledger
from shardlab.common.torch_internals import FakeTensorMode
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.mixed_precision import MasterWeights
from shardlab.recompute.layers import checkpoint_every
from shardlab.zero.hardened import stage1
from shardlab.zero.hardened.stage3 import fully_shard

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = GPTConfig(layers=12, hidden=96, heads=4, vocabulary=1000, max_sequence=64)
WIDE = GPTConfig(**{**MODELS["GPT-2 1.5B"].quantities, "layers": 2})


def peak_of(config: GPTConfig, rung: str) -> int:
    """Bytes at the fullest point of rank 0's second step, with all rungs up to this one."""
    given = {}
    for name, changes in MEMORY_RUNGS.items():
        given |= changes
        if name == rung:
            break
    masters = given["recipe"] != "fp32 Adam"
    with default_dtype(torch.bfloat16 if masters else torch.float32):
        model = GPT(config)
    if given["zero_stage"]:
        fully_shard(model, [model.embedding, *model.blocks, model.head])
    if given["recompute_policy"]:
        model.blocks = checkpoint_every(model.blocks, 1)
    how = [dict(foreach=False), dict(foreach=True), dict(fused=True)][given["optimizer_mode"]]
    if masters:
        optimizer = MasterWeights(model.parameters(), torch.optim.AdamW, **how)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), **how)

    return second_step(
        model, optimizer, given["microbatch"], given["accumulation_steps"]
    ).bytes.total


def second_step(model, optimizer, microbatch, microbatches):
    """Its peak."""

    def step():
        for _ in range(microbatches):
            tokens = torch.zeros(microbatch, model.config.max_sequence, dtype=torch.long)
            targets = torch.zeros_like(tokens)
            loss = next_token_loss(model(tokens), targets)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    with Ledger(model, optimizer) as ledger:
        step()
    return ledger.peak


@pytest.fixture
def alone(monkeypatch):
    """Ranks that nobody has to agree with."""
    monkeypatch.setattr(stage1, "agree", lambda *facts: None)


def by_formula(config, ranks):
    step = dict(LADDER_BATCH, **config.quantities(), sequence=config.max_sequence)
    return {rung.name: rung.nbytes for rung in climb(step, ranks)}


@pytest.mark.slow
@pytest.mark.parametrize("every", [4, *at_night(1)])
def test_every_rung_to_the_byte(alone, every):
    """Must catch: a rung that changes what the formulas do not; fp32 gradients of masters
    forgotten; step counters of stage 3 counted by units."""
    wanted = by_formula(SMALL, 4)
    with fake_ranks(4):
        found = {rung: peak_of(SMALL, rung) for rung in [*MEMORY_RUNGS][::-every]}
    assert found.items() <= wanted.items() and wanted.keys() == MEMORY_RUNGS.keys()
    assert sorted(wanted.values(), reverse=True) == list(wanted.values())


@pytest.mark.nightly
def test_real_widths(alone):
    """GPT-2 1.5B with two layers, under fake tensors: the same six rungs. (By day: the small one.)

    Must catch: a place that only a wide model reaches."""
    wanted = by_formula(WIDE, 8)
    with fake_ranks(8), FakeTensorMode():
        assert {rung: peak_of(WIDE, rung) for rung in MEMORY_RUNGS} == wanted


@pytest.mark.parametrize("mode", (1, 2), ids=("foreach", "fused"))
def test_masters_are_updated_in_piles(mode):
    """At the update of 16-bit weights that are recomputed: within half a percent.

    Must catch: fp32 gradients, or foreach's roots, of the whole model at once, or of none."""
    config = GPTConfig(layers=16, hidden=96, heads=4, vocabulary=257, max_sequence=16)
    model = GPT(config).to(torch.bfloat16)
    how = dict(foreach=True) if mode == 1 else dict(fused=True)
    optimizer = MasterWeights(model.parameters(), torch.optim.AdamW, **how)
    peak = second_step(model, optimizer, 1, 1)
    assert peak.phase == "optimizer"
    given = dict(config.quantities(), **RECIPES["bf16 + fp32 master"].quantities)
    given |= dict(microbatch=1, sequence=16, optimizer_mode=mode, step_counter_element_bytes=4)
    wanted = Given(**given).peak_bytes
    assert abs(wanted / peak.bytes.total - 1) < 0.005
