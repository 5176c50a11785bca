"""Formulas of recomputation against the byte ledger, a counter of operations, a rank of many, and a
clock."""

import math
import random
from functools import partial

import pytest
import torch
from night import at_night
from operators import Operators
from solved import Given, of_model, value
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from coursekit.formulas import BOOK, InvalidQuantity, quantities
from coursekit.formulas.events import end_seconds, operations, play
from coursekit.recordings.races import TrainingTask
from coursekit.topics.activation_checkpointing.runs import KEEPS_ALL, WAYS, by_operations, training
from coursekit.topics.activation_checkpointing.timeline import OFFLOADED_STEP
from ranklab.measure.fake_ranks import fake_ranks
from ranklab.measure.ledger import Ledger
from shardlab.common.torch_internals import FUSED_ATTENTION, FakeTensorMode
from shardlab.gpt import GPT, Block, CoreAttention, GPTConfig, next_token_loss
from shardlab.recompute.layers import checkpoint_every, checkpoint_modules
from shardlab.recompute.partitioned import checkpoint_partitioned
from shardlab.recompute.selective import checkpoint_selective
from shardlab.tensor_parallel import (
    apply_tensor_parallel,
    gpt_plan,
    sequence_parallel,
    vocabulary_parallel_loss,
)

pytestmark = pytest.mark.usefixtures("one_thread")
NOTHING, CORE, PRODUCTS, WHOLE = range(4)


def under(policy, model, n=1, whole=checkpoint_every):
    """The model under a policy, which is a number as in the formulas."""
    if policy == CORE:
        checkpoint_modules(model, CoreAttention)
    elif policy == PRODUCTS:
        model.blocks = checkpoint_every(model.blocks, 1, checkpoint_selective)
    elif policy == WHOLE:
        model.blocks = whole(model.blocks, n)
    return model


# --- a step ---------------------------------------------------------------------------------------


def drawn(draw):
    """A step of some kind: (config, what the formulas take)."""
    pick = draw.choice
    groups, in_group, dropout = pick([1, 2, 3]), pick([1, 1, 2]), pick([0.0, 0.0, 0.1])
    config = GPTConfig(
        layers=pick([1, 2, 3, 4, 5, 7]),
        hidden=groups * in_group * pick([8, 12, 20]),
        heads=groups * in_group,
        key_value_heads=groups,
        vocabulary=draw.randint(2, 400),
        feed_forward=pick([17, 48, 160]),
        max_sequence=48,
        learned_positions=pick([0, 1]),
        biases=pick([0, 1]),
        gated_mlp=pick([0, 1]),
        tied_head=pick([0, 1]),
        dropout=dropout,
        fused_attention=in_group == 1 and not dropout and pick([True, False]),
    )
    recipe = pick(["fp32 Adam", "bf16, no master"])
    given = of_model(config, draw.randint(1, 4), draw.randint(6, 48), recipe)
    given |= dict(accumulation_steps=pick([1, 2]), first_step=pick([0, 1]))
    return config, given | dict(optimizer_mode=0, recompute_every=draw.randint(1, 4))


def weighed(config, policy, given):
    """(bytes of activations after the loss of the last microbatch, most bytes) of a step."""
    dtype = torch.float32 if given["parameter_element_bytes"] == 4 else torch.bfloat16
    model = under(policy, GPT(config).to(dtype), given["recompute_every"])
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    kept = []

    def train(microbatches):
        for _ in range(microbatches):
            tokens = torch.zeros(given["microbatch"], given["sequence"], dtype=torch.long)
            loss = next_token_loss(model(tokens), torch.zeros_like(tokens))
            kept.append(ledger.bytes.activations)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    if not given["first_step"]:
        ledger = Ledger(model)
        train(1)
    with Ledger(model, optimizer) as ledger:
        train(given["accumulation_steps"])
    return kept[-1], ledger.peak.bytes.total


@pytest.mark.slow
@pytest.mark.parametrize("steps", [4, *at_night(12)])
def test_kept_bytes_and_peak_of_every_policy(steps):
    """Must catch: the batch's last checkpoint forgotten where n does not divide the layers; a
    second copy of an input; an output of a product kept as a view of something larger; the scores
    kept although the core is recomputed; a recomputed layer that stays until the next is done; kept
    products that are there beside what was made of them; gradients of earlier layers left out; the
    second run's scores left out."""
    draw, places = random.Random(5), set()
    for _ in range(steps):
        config, given = drawn(draw)
        for policy in (NOTHING, CORE, PRODUCTS, WHOLE):
            kept, peak = weighed(config, policy, given)
            found = Given(recompute_policy=policy, **given)
            assert found.kept_activation_bytes == kept, (policy, given)
            assert found.recompute_peak_bytes == pytest.approx(peak, rel=0.01), (policy, given)
            places.add(found.recompute_peak_place)
    assert len(places) >= 4 or steps < 12


def test_autocast_is_refused():
    """Must catch: a peak that leaves the cached copies of weights out, without a word."""
    _, given = drawn(random.Random(5))
    given |= quantities(recipe="autocast Adam")
    assert value("recompute_peak_bytes", **given)
    with pytest.raises(InvalidQuantity, match="recompute_policy = 3 under autocast"):
        value("recompute_peak_bytes", recompute_policy=3, **given)


# --- operations -----------------------------------------------------------------------------------


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    "style",
    [
        dict(fused_attention=False),
        dict(fused_attention=False, dropout=0.1),
        dict(fused_attention=False, biases=0, gated_mlp=1, key_value_heads=2),
    ],
)
def test_operations_that_are_done_twice(style):
    """Must catch: the last product counted although the second run ends before it; a kept product
    that is made again."""
    sizes = dict(layers=5, hidden=24, heads=4, vocabulary=31, max_sequence=8, feed_forward=50)
    config = GPTConfig(**{**sizes, **style})
    tokens = torch.zeros(3, 8, dtype=torch.long)
    for policy, n in ((NOTHING, 1), (CORE, 1), (PRODUCTS, 1), (WHOLE, 1), (WHOLE, 2)):
        model = under(policy, GPT(config), n)
        with FlopCounterMode(display=False) as counter:
            next_token_loss(model(tokens), tokens).backward()
        given = of_model(config, 3, 8, recompute_policy=policy, recompute_every=n)
        found = Given(**given)
        total = found.step_flops + found.recomputed_flops
        assert counter.get_total_flops() == total, (policy, n)
        assert math.isclose(found.recomputed_share, total / found.step_flops - 1)


def test_operations_beside_the_race():
    """Must catch: the checkpoint by an autograd function taken for one that stops early."""
    task = TrainingTask(
        "small", dict(layers=3, hidden=16, heads=2, vocabulary=31, max_sequence=8), microbatch=2
    )

    def operations_of(name):
        with FlopCounterMode(display=False) as counter:
            training(WAYS[name], task, "cpu").step()
        counted = counter.get_flop_counts()["Global"].items()  # in PyTorch 2.15 also attention
        return sum(n for operator, n in counted if "attention" not in str(operator))

    config = GPTConfig(**task.sizes)
    given = dict(**config.quantities(), dropout=0, fused_attention=1, microbatch=2, sequence=8)
    core, step = (value(name, **given) for name in ("attention_core_flops", "step_flops"))
    once = operations_of(KEEPS_ALL)
    for name, cores in (("by hooks", 3), ("by function", 3), ("selective", 0)):
        again = operations_of(name) - once + cores * core
        assert by_operations(WAYS[name], task) == pytest.approx(1 + again / step, abs=5e-4), name


def test_fused_attention_is_kept_or_made_again():
    """Must catch: kept attention that runs again; the core recomputed half, as if it had two
    products."""
    config = GPTConfig(layers=3, hidden=16, heads=2, vocabulary=31, max_sequence=8)
    tokens = torch.zeros(2, 8, dtype=torch.long)
    given = dict(**config.quantities(), dropout=0, fused_attention=1, microbatch=2, sequence=8)
    once = value("attention_core_flops", **given)
    for policy in (CORE, PRODUCTS, WHOLE):
        model = under(policy, GPT(config))
        with Operators() as operators:
            next_token_loss(model(tokens), tokens).backward()
        runs = sum(one.overloadpacket in FUSED_ATTENTION for one, _ in operators.seen)
        want = value("recomputed_flops", recompute_policy=policy, **given)
        others = (policy == WHOLE) * 2 * 16 * 16 * (3 * 16 + 16 + 64)  # products before the last
        assert runs == 3 + (want - 3 * others) / once, policy


# --- how many layers in a checkpoint --------------------------------------------------------------


class Layer(nn.Module):
    """Keeps its output and nothing else: A = r."""

    def forward(self, x):
        return x.tanh()


def most_activations(layers, n, rows=64):
    """Bytes over those of the input, of forward and backward of a chain."""
    model = nn.Sequential(*(Layer() for _ in range(layers)))
    x = torch.randn(rows, 16, requires_grad=True)
    chain = checkpoint_every(model, n)
    with Ledger(model) as ledger:
        chain(x).sum().backward()
    return max(point.bytes.total for point in ledger.timeline) / (4 * x.numel())


@pytest.mark.slow
def test_the_least_peak_by_formula_and_by_counting():
    """Must catch: sqrt(L) for every kind of layer, where a GPT's has sqrt(L r / A); the root of L A
    / r; a checkpoint that keeps more than its input."""
    for layers in (16, 36):
        by_n = {n: most_activations(layers, n) for n in range(1, layers + 1)}
        given = dict(layers=layers, residual_bytes=1, layer_activation_bytes=1)
        best = Given(**given).best_recompute_every
        assert best == math.sqrt(layers) and by_n[round(best)] == min(by_n.values())
        for n, found in by_n.items():
            want = Given(recompute_every=n, **given).grouped_activation_bytes
            assert 0 <= found - want <= 3, n  # x itself, the gradient in and the one that is made
    for layers in (12, 24, 30, 34, 48, 400):
        given = dict(layers=layers, residual_bytes=1, layer_activation_bytes=16)
        every = [Given(recompute_every=1 + n, **given) for n in range(layers)]
        kept = [each.grouped_activation_bytes for each in every]
        found, least = Given(**given), 1 + kept.index(min(kept))
        assert abs(least - found.best_recompute_every) < 1
        assert (least == 1) == (layers <= found.layers_worth_grouping)


# --- a rank among several -------------------------------------------------------------------------

PLAIN, OWN, AGAIN = dict(), dict(sequence_parallel=1), dict(sequence_parallel=1, regather=1)
STYLES = (
    dict(),
    dict(biases=0, gated_mlp=1, learned_positions=0),
    dict(fused_attention=False, dropout=0.1),
    dict(fused_attention=False, key_value_heads=6, tied_head=0),
)


def kept_on_a_rank(t, rank, way, policy, n, partition, config, microbatch, sequence):
    with fake_ranks(t, rank), FakeTensorMode():
        plan = gpt_plan(config)
        if way:
            plan = sequence_parallel(plan, regather=bool(way.get("regather")))
        model = apply_tensor_parallel(GPT(config), plan)
        by = dict(by=partial(checkpoint_partitioned, None)) if partition else {}
        under(policy, model, n, partial(checkpoint_every, **by))
        tokens = torch.zeros(microbatch, sequence, dtype=torch.long)
        with Ledger(model) as ledger:
            loss = vocabulary_parallel_loss(model(tokens), tokens.clone(), config.vocabulary)
            del loss
            return max(point.bytes.activations for point in ledger.timeline)


@pytest.mark.one_in(2)
@pytest.mark.ranks  # on fake ranks: seconds, not milliseconds
@pytest.mark.parametrize("policy", [CORE, WHOLE, *at_night(PRODUCTS)])
def test_kept_bytes_of_a_rank(policy):
    """Must catch: the whole input kept by each rank with sequence parallelism, or when it is
    partitioned; a product that is changed in place kept beside its change; scores of all heads."""
    sizes = dict(layers=3, hidden=48, heads=12, feed_forward=53, vocabulary=101, max_sequence=16)
    for number, (way, style) in enumerate((way, s) for way in (PLAIN, OWN, AGAIN) for s in STYLES):
        t, rank = ((3, 2), (2, 0), (3, 1))[number % 3]
        config = GPTConfig(**{**sizes, **style})
        for partition in {0, int(policy == WHOLE and not way)}:
            n = 1 + number % 2
            found = kept_on_a_rank(t, rank, way, policy, n, partition, config, 2, 12)
            given = dict(tensor_parallel=t, tensor_rank=rank, partition_activations=partition)
            given |= dict(recompute_policy=policy, recompute_every=n)
            given |= {"sequence_parallel": 0, "regather": 0, **way}
            given = of_model(config, 2, 12, **given)
            assert Given(**given).tensor_kept_activation_bytes == found, given


def test_one_rank_is_one_gpu():
    """Must catch: what a rank keeps at t = 1, which explorers show, beside what one GPU keeps."""
    draw = random.Random(1)
    for _ in range(30):
        _, given = drawn(draw)
        given |= dict(tensor_parallel=1, tensor_rank=0, sequence_parallel=0, regather=0)
        for policy in range(4):
            found = Given(recompute_policy=policy, **given)
            assert found.rank_layers_kept_bytes == found.kept_layers_bytes, (policy, given)


@pytest.mark.parametrize(
    ("policy", "n", "sequence", "fused"),
    [(NOTHING, 1, 8, 1), (CORE, 1, 32, 0), (PRODUCTS, 1, 8, 1), (WHOLE, 1, 8, 1), (WHOLE, 2, 8, 1)],
)
def test_kept_in_flight(policy, n, sequence, fused):
    """Must catch: an input for each layer where two share a checkpoint; the recomputed layers
    counted for every microbatch in flight; the layer at work left out where a part of each layer is
    recomputed."""
    sizes = dict(layers=10, hidden=24, heads=4, vocabulary=31, max_sequence=sequence)
    config = GPTConfig(**sizes, fused_attention=bool(fused))
    given = dict(pipeline_schedule=2, pipeline_parallel=2, pipeline_rank=0, microbatches=4)
    given |= dict(stages_per_rank=1, sequence_parallel=0, regather=0)
    given |= dict(recompute_policy=policy, recompute_every=n)
    given = of_model(config, 3, sequence, **given)
    stage = nn.Module()
    stage.blocks = nn.Sequential(*(Block(config) for _ in range(5)))
    chain = under(policy, stage, n).blocks
    inputs = [torch.randn(3, sequence, 24, requires_grad=True) for _ in range(2)]  # in flight
    with Ledger(stage) as ledger:
        outputs = [chain(x) for x in inputs]
        kept = ledger.bytes.activations
        gradient = torch.ones(3, sequence, 24)
        outputs[0].backward(gradient)
    found = Given(**given)
    assert found.held_kept_bytes == kept
    # two of them in flight, five layers each
    alone = Given(**given | dict(layers=5)).rank_layers_bytes
    assert alone == found.held_working_bytes - kept // 2
    backward = [point for point in ledger.timeline if point.phase == "backward"]
    most = max(p.bytes.activations + p.bytes.temporaries for p in backward)
    outside = (2 + 1) * gradient.nbytes  # outputs, whose names are in this test, and it
    # of the layer at work, what is not saved: gradients that come and go
    at_work = found.layer_work_bytes - found.layer_activation_bytes
    want = found.held_working_bytes + outside + at_work
    assert most == pytest.approx(want, rel=0.01)


# --- the link to the host -------------------------------------------------------------------------


def test_offload_is_what_is_simulated():
    """Must catch: the copy at an edge hidden; copies of two layers at once; backward as fast as
    forward; a layer's activations that are back more than one layer early, as in no run."""
    draw = random.Random(3)
    names = ["copies_exposed_seconds", "hiding_bytes_per_second"]
    for _ in range(300):
        given = quantities(
            model="GPT-2 124M",
            recipe="bf16, no master",
            **dict(dropout=0, fused_attention=1, microbatch=4, sequence=1024),
            utilisation=draw.uniform(0.1, 1),
            flops_per_second=10 ** draw.uniform(12, 15),
            pcie_bytes_per_second=10 ** draw.uniform(8, 13),
            recompute_policy=draw.randrange(4),
        )
        given["layers"] = draw.choice([1, 2, 12, 40])
        found = BOOK.solve(names, given, allow_unused=True)
        ran = play(operations(OFFLOADED_STEP, {**given, **found}))
        whole = found["offloaded_forward_seconds"] + found["offloaded_backward_seconds"]
        assert math.isclose(end_seconds(ran), whole, rel_tol=1e-9)
        back = [each.start for each in ran if each.name == "back"]
        backward = [each.start for each in ran if each.name == "backward"]
        assert all(copy >= before for copy, before in zip(back[1:], backward))
        of_a_layer = found["layer_forward_seconds"] + found["layer_backward_seconds"]
        computes = given["layers"] * of_a_layer
        assert math.isclose(found["copies_exposed_seconds"], whole - computes, rel_tol=1e-6)
        fast = found["hiding_bytes_per_second"] <= given["pcie_bytes_per_second"]
        edges = 2 * found["layer_copy_seconds"]
        assert fast <= math.isclose(found["copies_exposed_seconds"], edges, rel_tol=1e-6)


def test_link_that_hides_the_copies():
    """32 bytes over 24 h + 4 s operations, at 400 TFLOP/s, by hand. Must catch: scores counted
    although attention is fused; seconds of backward taken."""
    for h, s, gigabytes in ((4096, 4096, 111.6), (8192, 8192, 55.8)):
        config = GPTConfig(layers=1, hidden=h, heads=h // 128, vocabulary=2, max_sequence=s)
        speed = dict(utilisation=1.0, flops_per_second=400e12, recompute_policy=0)
        found = Given(**of_model(config, 1, s, "bf16, no master", **speed)).hiding_bytes_per_second
        assert found / 1e9 == pytest.approx(gigabytes, rel=0.01)
