"""The solver against all combinations, against division, and against the ledger."""

import random
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import pytest
import torch
from solved import Given

from coursekit.formulas import quantities
from ranklab.measure.ledger import Ledger
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.recompute.budget import (
    BudgetTooSmall,
    LayerOption,
    Layers,
    RecomputePlan,
    plan_recomputation,
)
from shardlab.recompute.layers import checkpoint_some

pytestmark = pytest.mark.usefixtures("one_thread")


def plan_of_choices(
    choices: Sequence[int], layers: Layers, loss_bytes: int = 0, gradient_bytes: int = 0
) -> RecomputePlan:
    """The plan of these choices: what they cost and need."""
    kept, peak, seconds = 0, 0, 0.0
    for number, (choice, options) in enumerate(zip(choices, layers, strict=True)):
        option = options[choice]
        done = gradient_bytes * (len(layers) - 1 - number)
        peak = max(peak, kept + option.work_bytes + done)
        kept, seconds = kept + option.kept_bytes, seconds + option.seconds
    return RecomputePlan(tuple(choices), seconds, max(peak, kept + loss_bytes))


def layers_of(draw, count, alike):
    """Options of layers: keep all, recompute some, recompute all."""

    def options():
        whole, work = draw.randint(8, 24), draw.randint(0, 9)
        some = draw.randint(2, whole)
        return [
            LayerOption(whole, whole + work, 0.0),
            LayerOption(some, whole + work + draw.randint(0, 3), draw.uniform(0.1, 1)),
            LayerOption(1, whole + work, draw.uniform(1, 2)),
        ]

    return [options()] * count if alike else [options() for _ in range(count)]


def of_all(layers, **beside):
    return [plan_of_choices(c, layers, **beside) for c in product(*(range(len(o)) for o in layers))]


@pytest.mark.parametrize("alike", [True, False])
def test_the_best_of_all_combinations(alike):
    """Must catch: a layer's backward that counts the layer twice, or layers that are done; a choice
    dropped because it costs more, although it keeps less; the loss left out."""
    draw = random.Random(4)
    for _ in range(4):
        layers = layers_of(draw, draw.randint(1, 4), alike)
        beside = dict(loss_bytes=draw.choice([0, 30]), gradient_bytes=draw.choice([0, 3]))
        every = of_all(layers, **beside)
        least = min(plan.peak_bytes for plan in every)
        for budget in range(least, max(plan.peak_bytes for plan in every) + 2, 5):
            found = plan_recomputation(layers, budget, **beside)
            assert found == plan_of_choices(found.choices, layers, **beside)
            fits = [plan.seconds for plan in every if plan.peak_bytes <= budget]
            assert found.peak_bytes <= budget and found.seconds == pytest.approx(min(fits))
        with pytest.raises(BudgetTooSmall, match=f"{least:,} bytes are needed at least") as error:
            plan_recomputation(layers, least - 1, **beside)
        assert error.value.least_bytes == least


def test_many_layers_are_quick():
    """96 layers of three options: the fronts stay small.

    Must catch: choices that are kept although another is better in both."""
    layers = layers_of(random.Random(3), 96, alike=True)
    budget = sum(options[0].kept_bytes for options in layers) // 2
    found = plan_recomputation(layers, budget, loss_bytes=40)
    assert found.peak_bytes <= budget and len(found.choices) == 96


class OfModel(NamedTuple):
    """A model's layers as the solver takes them, and what is there beside all of it."""

    options: list[LayerOption]
    loss_bytes: int
    gradient_bytes: int
    standing: int
    step_flops: float

    def plan(self, layers, budget):
        layers = [self.options] * layers
        return plan_recomputation(
            layers, budget - self.standing, self.loss_bytes, self.gradient_bytes
        )


def of_model(config, microbatch, sequence, recipe):
    """The formulas' bytes, for the first step with SGD."""
    given = quantities(
        recipe=recipe,
        **config.quantities(),
        **dict(dropout=0, fused_attention=1, microbatch=microbatch, sequence=sequence),
        **dict(first_step=1, accumulation_steps=1),
    )
    of = Given(**given)
    each = given["gradient_element_bytes"]
    beside = of.batch_bytes + of.parameter_bytes
    standing = beside + each * of.norm_parameters + of.head_gradient_bytes + 8
    standing += of.residual_bytes
    work = of.layer_work_bytes
    again = of.layer_forward_flops - of.skipped_flops
    outside = of.kept_activation_bytes - of.kept_layers_bytes - of.batch_bytes
    return OfModel(
        [
            LayerOption(of.layer_activation_bytes, work, 0.0),
            LayerOption(of.residual_bytes, work, again),
        ],
        beside + outside + 2 * of.logit_bytes + 4 - standing,
        each * of.layer_parameters,
        standing,
        of.step_flops,
    )


def peak_with(model, tokens, recomputed):
    """The ledger's peak of forward and backward."""
    model.zero_grad()
    blocks = model.blocks
    model.blocks = checkpoint_some(model.blocks, recomputed)
    with Ledger(model) as ledger:
        next_token_loss(model(tokens), tokens.clone()).backward()
    model.blocks = blocks
    return ledger.peak.bytes.total


def test_a_plan_on_our_gpt():
    """Must catch: a plan whose layers are not the ones that are recomputed."""
    config = GPTConfig(layers=6, hidden=64, heads=4, vocabulary=64, max_sequence=32)
    of = of_model(config, 8, 32, "fp32 SGD momentum")
    model, tokens = GPT(config), torch.zeros(8, 32, dtype=torch.long)
    full = of.plan(6, 10**12).peak_bytes + of.standing
    for share in (1.0, 0.8, 0.6):
        plan = of.plan(6, of.standing + int(share * (full - of.standing)))
        found = peak_with(model, tokens, plan.recomputed)
        assert found == pytest.approx(plan.peak_bytes + of.standing, rel=0.01), plan
        assert plan.recomputed == list(range(len(plan.recomputed)))
        assert (share == 1) == (plan.recomputed == [])
