"""GPT-2 from slow to fast: the step of several microbatches, what a rung frees, and a loop that
frees nothing."""

from functools import cache
from typing import NamedTuple

import torch

from coursekit.exercises.answers import nine_digits, times_of_parts
from coursekit.exercises.edits import Topic
from ranklab.measure.ledger import Ledger
from shardlab.gpt import (
    GPT,
    GPTConfig,
    next_token_loss,
)

topic = Topic(__name__)
_CONFIG = GPTConfig(layers=1, hidden=16, heads=2, vocabulary=31, max_sequence=8)


_LR = 0.5


class StepsTaken(NamedTuple):
    """Two steps of several microbatches: how the first moved the weights, the weights after both,
    whether gradients are left, and of how many microbatches there were activations at once."""

    moved: list
    weights: list
    gradients_left: bool
    learning_rate: float
    microbatches_at_once: int


def _begun(microbatches):
    """A model of one layer in float64, and the microbatches of two steps."""
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(31, (2, microbatches, 2, 2, 8), generator=draw)
    return GPT(_CONFIG).double(), [[pair.unbind() for pair in step] for step in tokens]


def _weights(model):
    return torch.cat([own.detach().flatten() for own in model.parameters()])


def _taken(solution, microbatches):
    """Two steps of plain SGD."""
    model, steps = _begun(microbatches)
    optimizer = torch.optim.SGD(model.parameters(), lr=_LR)
    weights, left, most = [_weights(model)], False, 0
    for pairs in steps:
        with Ledger(model, optimizer) as one:
            kept = next_token_loss(model(pairs[0][0]), pairs[0][1])
        del kept
        with Ledger(model, optimizer) as all_of_them:
            if solution(model, optimizer, list(pairs)) is ...:
                return ...
        weights.append(_weights(model))
        left |= any(own.grad is not None and bool(own.grad.any()) for own in model.parameters())
        most = max(most, round(all_of_them.peak.bytes.activations / one.peak.bytes.activations))
    moved = nine_digits(weights[1] - weights[0])
    return StepsTaken(moved, nine_digits(weights[2]), left, optimizer.param_groups[0]["lr"], most)


@cache
def _of_each(microbatches):
    """The part of the first step that is each microbatch's."""
    model, (pairs, _) = _begun(microbatches)
    losses = [next_token_loss(model(tokens), targets) for tokens, targets in pairs]
    own = [torch.autograd.grad(loss, model.parameters()) for loss in losses]
    return [torch.cat([one.flatten() for one in each]) * -_LR / microbatches for each in own]


def times_of_each(moved, microbatches):
    """How often each microbatch's gradient is in the first step, where once is right; None if the
    step is no sum of them."""
    return times_of_parts(moved, _of_each(microbatches))


accumulated_step = topic.exercise(
    "accumulated_step",
    cases=(dict(microbatches=1), dict(microbatches=2), dict(microbatches=4)),
    words=("one microbatch", "two microbatches", "four microbatches"),
    answer=_taken,
    hint="backward() adds to the gradients that are there. The loss of each microbatch is a mean.",
    right="a backward for each microbatch, of its share of the mean, and one update.",
)


def _left_alone(solution, points, **rung):
    given = dict(points)
    found = solution(given, **rung)
    if given != points:
        raise ValueError("the points that were given have changed: use a copy, {**points}.")
    return found


freed_by_a_rung = topic.exercise(
    "freed_by_a_rung",
    cases=(
        dict(points=dict(loss=48, layers=44, update=31), place="loss", nbytes=16),
        dict(points=dict(loss=48, layers=44, update=31), place="update", nbytes=6),
        dict(points=dict(loss=29, layers=20, update=31), place="update", nbytes=1),
        dict(points=dict(loss=48, layers=20, update=31), place="loss", nbytes=2),
        dict(points=dict(loss=48, layers=20, update=48), place="loss", nbytes=9),
    ),
    answer=_left_alone,
    hint="The peak is the largest of all places, before the rung and after it.",
    unit="GB",
    right="the largest place before, minus the largest place after.",
)

accumulation_that_frees_nothing = topic.exercise(
    "accumulation_that_frees_nothing",
    cases=(dict(microbatches=2), dict(microbatches=4)),
    words=("two microbatches", "four microbatches"),
    answer=_taken,
    hint="When are the activations of the first microbatch freed?",
    right="a backward for each microbatch frees its activations before the next one begins.",
)

peak_of_the_third_rung = topic.exercise(
    "peak_of_the_third_rung",
    21_787_404,
    name="the peak",
    cases=({},),
    answer=lambda found: float(f"{found():.3g}"),
    of_a_value=True,
    hint="weigh() takes any optimizer. SGD keeps one momentum for each parameter.",
    right="one momentum instead of two moments: 4 bytes a parameter fewer, at every place.",
)
