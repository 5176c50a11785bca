"""Which layers to recompute, so that a step fits a budget and costs least.

    keep = LayerOption(kept_bytes=16 * r, work_bytes=20 * r, seconds=0)
    again = LayerOption(kept_bytes=r, work_bytes=20 * r, seconds=0.01)
    plan = plan_recomputation([[keep, again]] * 24, budget_bytes, loss_bytes)
    model.blocks = checkpoint_some(model.blocks, plan.recomputed)

When backward is at layer i there are: what the layers before i keep, what layer i needs at work,
and the gradients of the layers after it. So a layer that keeps much burdens all layers after it,
and the first ones are the ones to recompute: when backward comes to them, the others are done.

Source: dynamic programming as in Rotor (Beaumont et al. 2019), with options given for each layer.
The result is the best of all combinations.
"""

from collections.abc import Sequence
from typing import NamedTuple


class LayerOption(NamedTuple):
    """One way to treat a layer."""

    kept_bytes: int  # from forward to backward
    work_bytes: int  # at most while the layer goes backward, with all that is recomputed for it
    seconds: float  # of recomputing


class RecomputePlan(NamedTuple):
    """Which option each layer takes, and what follows."""

    choices: tuple[int, ...]
    seconds: float
    peak_bytes: int

    @property
    def recomputed(self) -> list[int]:
        """The layers that do not take their first option, which is to keep all."""
        return [number for number, choice in enumerate(self.choices) if choice]


class BudgetTooSmall(ValueError):
    """No choice fits: the message and `least_bytes` say what the least possible is."""

    def __init__(self, budget_bytes: int, least_bytes: int):
        super().__init__(
            f"budget_bytes = {budget_bytes:,}: whatever is recomputed, {least_bytes:,} bytes are"
            " needed at least; give that much, or make the microbatch smaller."
        )
        self.least_bytes = least_bytes


Layers = Sequence[Sequence[LayerOption]]


def plan_recomputation(
    layers: Layers, budget_bytes: int, loss_bytes: int = 0, gradient_bytes: int = 0
) -> RecomputePlan:
    """The choice of least seconds whose peak is within the budget; of equal ones the one that needs
    least.

    layers          the options of each layer, in the order of forward
    loss_bytes      at the loss, beside what all layers keep
    gradient_bytes  of a layer that is done

    Raises BudgetTooSmall if nothing fits, ValueError for a layer without options."""
    best = fronts(layers, loss_bytes, gradient_bytes, budget_bytes)
    if not best:
        cheapest = fronts(layers, loss_bytes, gradient_bytes, None)
        raise BudgetTooSmall(budget_bytes, min(plan.peak_bytes for plan in cheapest))
    return min(best, key=lambda plan: (plan.seconds, plan.peak_bytes))


class Partial(NamedTuple):
    """A choice for the first layers."""

    kept: int
    seconds: float
    peak: int
    choices: tuple[int, ...]


def fronts(
    layers: Layers, loss_bytes: int, gradient_bytes: int, budget: int | None
) -> list[RecomputePlan]:
    """The plans worth a look: with a budget, those within it that take the fewest seconds; without
    one (None), those with the lowest peak."""
    partial = [Partial(0, 0.0, 0, ())]
    for number, options in enumerate(layers):
        if not options:
            raise ValueError(f"layer {number} has no options: give at least one, to keep all.")
        done = gradient_bytes * (len(layers) - 1 - number)
        grown = [
            Partial(
                before.kept + option.kept_bytes,
                before.seconds + option.seconds,
                max(before.peak, before.kept + option.work_bytes + done),
                (*before.choices, choice),
            )
            for before in partial
            for choice, option in enumerate(options)
        ]
        if budget is None:
            partial = worth_keeping(grown, lambda each: each.peak)
        else:
            fits = [each for each in grown if each.peak <= budget]
            partial = worth_keeping(fits, lambda each: each.seconds)
    plans = [
        RecomputePlan(each.choices, each.seconds, max(each.peak, each.kept + loss_bytes))
        for each in partial
    ]
    return [plan for plan in plans if budget is None or plan.peak_bytes <= budget]


def worth_keeping(found: list[Partial], cost) -> list[Partial]:
    """The candidates that keep less than all that cost no more."""
    front: list[Partial] = []
    for each in sorted(found, key=lambda each: (each.kept, cost(each), each.peak)):
        if not front or cost(each) < cost(front[-1]):
            front.append(each)
    return front
