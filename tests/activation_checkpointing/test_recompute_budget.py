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


def first_layers(
    count: int, keep: LayerOption, again: LayerOption, budget_bytes: int, loss_bytes: int = 0
) -> int:
    """How many of equal layers to recompute, from the first on, by division. Gradients are left
    out. A number above `count` says that nothing fits."""
    at_the_loss = count * keep.kept_bytes + loss_bytes - budget_bytes
    in_the_last = (count - 1) * keep.kept_bytes + keep.work_bytes - budget_bytes
    saved = keep.kept_bytes - again.kept_bytes
    needed = max(0, -(-at_the_loss // saved), -(-in_the_last // saved))
    if needed >= count:  # then the last is recomputed, too
        at_the_loss = count * again.kept_bytes + loss_bytes
        in_the_last = (count - 1) * again.kept_bytes + again.work_bytes
        return count if max(at_the_loss, in_the_last) <= budget_bytes else count + 1
    return needed


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


RULES = {  # the name of a rule -> of L layers, the order in which it recomputes them
    "the first": lambda layers: list(range(layers)),
    "the last": lambda layers: list(range(layers))[::-1],
    "spread": lambda layers: [*range(0, layers, 2), *range(1, layers, 2)],
    "all or nothing": None,
}


def by_rule(rule: str, layers: Layers, budget_bytes: int, **beside: int) -> RecomputePlan | None:
    """The first plan of a rule that fits, which recomputes as few layers as the rule can: each by
    its last option. None where all layers are not enough."""
    order = (RULES[rule] or RULES["the first"])(len(layers))
    for count in (0, len(layers)) if RULES[rule] is None else range(len(layers) + 1):
        chosen = set(order[:count])
        choices = [len(o) - 1 if n in chosen else 0 for n, o in enumerate(layers)]
        plan = plan_of_choices(choices, layers, **beside)
        if plan.peak_bytes <= budget_bytes:
            return plan
    return None


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


def test_equal_layers_by_division():
    """Must catch: the last layer's work counted beside what it keeps; one layer too many where the
    budget fits to the byte."""
    draw = random.Random(8)
    for _ in range(30):
        count, whole = draw.randint(1, 7), draw.randint(4, 20)
        keep, again = LayerOption(whole, whole + 5, 0.0), LayerOption(1, whole + 5, 1.0)
        loss = draw.choice([0, 15, 60])
        for budget in range(whole, count * whole + loss + 8, 3):
            by_division = first_layers(count, keep, again, budget, loss)
            try:
                found = plan_recomputation([[keep, again]] * count, budget, loss)
            except BudgetTooSmall:
                assert by_division == count + 1
                continue
            assert len(found.recomputed) == by_division
            choices = [1] * by_division + [0] * (count - by_division)
            assert plan_of_choices(choices, [[keep, again]] * count, loss).peak_bytes <= budget


def test_first_layers_before_last_layers():
    """Must catch: the solver's layers at the end, where they do not help; a rule that is better
    than the best."""
    draw, more = random.Random(2), []
    for _ in range(10):
        count, whole = draw.randint(3, 7), 16
        keep, again = LayerOption(whole, whole + 6, 0.0), LayerOption(1, whole + 6, 1.0)
        layers = [[keep, again]] * count
        lowest = plan_of_choices([1] * count, layers).peak_bytes
        for budget in range(lowest, plan_of_choices([0] * count, layers).peak_bytes, 3):
            best = plan_recomputation(layers, budget)
            plans = {rule: by_rule(rule, layers, budget) for rule in RULES}
            assert plans["the first"].seconds == best.seconds
            assert all(plan is None or plan.seconds >= best.seconds for plan in plans.values())
            more.append(plans["the last"].seconds - best.seconds)
    assert set(more) == {1.0}  # one layer's forward, at every budget
    assert by_rule("the last", layers, 3) is None


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
