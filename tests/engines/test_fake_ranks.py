"""One rank of many without the others: the same bytes as on a real rank, and those of the formulas
at sizes nobody here has."""

import pytest
import torch.distributed as dist
from solved import Given, value

from coursekit.formulas import RECIPES, evaluate, quantities
from coursekit.topics.zero.rank_of_many import rank_of_many, sharded_step
from ranklab.measure.fake_ranks import fake_ranks
from shardlab.gpt import GPTConfig
from shardlab.zero.hardened.flat import Native

# long enough for a peak among activations: in a reduce-scatter gloo has a copy of its own
SMALL = GPTConfig(layers=3, hidden=64, heads=4, vocabulary=96, max_sequence=256, tied_head=0)


def units(config):
    """Parameters of the embedding, of each block, of the head."""
    parts = [f"{part}_parameters" for part in ("embedding", "layer", "head", "norm")]
    embedding, layer, *head = evaluate(parts, **config.quantities()).values()
    return [embedding, *[layer] * config.layers, sum(head)]


def on_a_real_rank(recompute):
    """The leanest of three steps, at rest and at the peak: gloo's thread may keep a buffer for a
    moment after its work is done."""
    steps = [sharded_step(SMALL, recompute=recompute, collectives=Native()) for _ in range(3)]
    return steps[0]._replace(
        resting=min((step.resting for step in steps), key=lambda counts: counts.total),
        peak=min((step.peak for step in steps), key=lambda point: point.bytes.total),
    )


@pytest.mark.one_in(2)
@pytest.mark.parametrize("recompute", (False, True))
def test_a_fake_rank_is_as_full_as_a_real_one(worlds, recompute):
    """Mutation: weights whose memory the fake side does not give back."""
    real = worlds(2).run(on_a_real_rank, recompute)[1]
    fake = rank_of_many(SMALL, 2, rank=1, recompute=recompute)
    assert fake.resting == real.resting and fake.peak == real.peak
    ours, theirs = (
        {name: total[:2] for name, total in one.messages.items()} for one in (fake, real)
    )
    assert ours == theirs


def resting(config, n, rank):
    """Bytes of parameters, gradients and optimizer states on the rank, by the formulas. Zeros
    behind a unit make its shards equal, and have no states."""
    given = dict(zero_stage=3, data_parallel=n, rank=rank, accumulation_steps=1)
    given |= RECIPES["fp32 Adam"].quantities

    def bytes_of(target, **more):
        return value(target, **given, **more)

    each = [(unit, unit + -unit % n) for unit in units(config)]
    targets = ["zero_parameter_bytes", "zero_gradient_bytes", "zero_optimizer_bytes"]
    sums = [sum(bytes_of(one, parameters=even) for _, even in each) for one in targets]
    of_one = sums[2] // sum(even // n for _, even in each)
    zeros = sum(
        even // n - len(range(unit)[rank * even // n :][: even // n]) for unit, even in each
    )
    flat = dict(zero_flat_tensors=len(each), **config.quantities())
    counters = bytes_of("zero_step_counter_bytes", **flat)
    return *sums[:2], sums[2] - of_one * zeros + counters


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("rank", (0, 4))
def test_the_rank_has_its_own_shard(rank):
    """Five ranks do not divide any unit, so the last shards are smaller. Mutation: the shard of
    another rank."""
    found = rank_of_many(SMALL, 5, rank=rank).resting[:3]
    assert found == resting(SMALL, 5, rank) != resting(SMALL, 5, 4 - rank)


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("rank", (0, 1023))
def test_one_of_a_thousand(rank):
    """A block of GPT-3's size on 1,024 ranks, by the formulas. Mutations: a model that is built
    whole; a recomputed block that is gathered while it is whole."""
    config = GPTConfig(**quantities(model="GPT-3 175B", layers=2, tied_head=0))
    step = rank_of_many(config, 1024, rank=rank)
    assert step.resting[:3] == resting(config, 1024, rank)
    parameters = sum(units(config))
    assert {name: total[:2] for name, total in step.messages.items()} == {
        "all_gather": (8, 2 * 2 * parameters),
        "reduce_scatter": (4, 2 * parameters),
    }
    assert step.peak.bytes.gathered <= 2 * max(units(config))


@pytest.mark.slow
def test_what_is_whole_at_the_peak():
    """The sum that chapter 6 prints for GPT-3, for a smaller model. Must catch: a table that is
    freed between its two units; a second block that is whole."""
    config = GPTConfig(layers=2, hidden=512, heads=4, vocabulary=2000, max_sequence=256)
    peak = rank_of_many(config, 64).peak
    whole = Given(
        zero_unit_parameters=units(config)[1],
        zero_root_parameters=config.vocabulary * config.hidden,
        parameter_element_bytes=2,
    ).zero_gathered_bytes
    one_input = 2 * config.max_sequence * config.hidden
    assert peak.phase == "backward" and peak.bytes.gathered == whole
    assert peak.bytes.temporaries == pytest.approx(whole + 6 * one_input, rel=1e-3)
    assert peak.bytes.activations == pytest.approx(config.layers * one_input, rel=1e-2)


def test_bad_input():
    """Mutation: a fake world put over a real one, whose ranks would wait forever."""
    with pytest.raises(ValueError, match="rank = 4: a world of 4 has ranks 0 to 3."):
        rank_of_many(SMALL, 4, rank=4)
    with fake_ranks(4, 3):
        with pytest.raises(ValueError, match="this process is rank 3 of 4 already"):
            rank_of_many(SMALL, 2)
    assert not dist.is_initialized()
