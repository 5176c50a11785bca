"""GPT-2 from slow to fast: the step of several microbatches, what a rung frees, and a loop that
frees nothing."""

from typing import NamedTuple

import torch

from coursekit.exercises.answers import nine_digits
from coursekit.exercises.edits import Topic
from ranklab.measure.ledger import Ledger
from shardlab.gpt import (
    GPT,
    GPTConfig,
    next_token_loss,  # noqa: F401 - solutions call it
)

topic = Topic(__name__)
_CONFIG = GPTConfig(layers=2, hidden=16, heads=2, vocabulary=31, max_sequence=8)


class StepTaken(NamedTuple):
    """The weights after a step of several microbatches, and whether gradients are left."""

    weights: list
    gradients_left: bool


class StepWeighed(NamedTuple):
    """A step taken, and the most bytes that were held in it."""

    weights: list
    gradients_left: bool
    peak_kib: int  # whole KiB: a loss that has a name does no harm


def _taken(solution, microbatches):
    """A step of plain SGD in float64 on a model of two layers."""
    torch.manual_seed(0)
    model = GPT(_CONFIG).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    draw = torch.Generator().manual_seed(1)
    pairs = [torch.randint(31, (2, 2, 8), generator=draw).unbind() for _ in range(microbatches)]
    with Ledger(model, optimizer) as ledger:
        if solution(model, optimizer, pairs) is ...:
            return None
    weights = [nine_digits(parameter) for parameter in model.parameters()]
    left = any(parameter.grad is not None for parameter in model.parameters())
    return weights, left, ledger.peak.bytes.total // 2**10


def _step_taken(solution, microbatches):
    found = _taken(solution, microbatches)
    return ... if found is None else StepTaken(*found[:2])


def _step_weighed(solution, microbatches):
    found = _taken(solution, microbatches)
    return ... if found is None else StepWeighed(*found)


accumulated_step = topic.exercise(
    "accumulated_step",
    cases=(dict(microbatches=1), dict(microbatches=2), dict(microbatches=4)),
    answer=_step_taken,
    hint="backward() adds to the gradients that are there. The loss of each microbatch is a mean.",
    right="a backward for each microbatch, of its share of the mean, and one update.",
)

freed_by_a_rung = topic.exercise(
    "freed_by_a_rung",
    cases=(
        dict(points=dict(loss=48, layers=44, update=31), place="loss", nbytes=16),
        dict(points=dict(loss=48, layers=44, update=31), place="update", nbytes=6),
        dict(points=dict(loss=29, layers=20, update=31), place="update", nbytes=1),
        dict(points=dict(loss=48, layers=20, update=31), place="loss", nbytes=2),
        dict(points=dict(loss=48, layers=20, update=48), place="loss", nbytes=9),
    ),
    hint="The peak is the largest of all places, before the rung and after it.",
    unit="GB",
    right="the largest place before, minus the largest place after.",
)

accumulation_that_frees_nothing = topic.exercise(
    "accumulation_that_frees_nothing",
    cases=(dict(microbatches=2), dict(microbatches=4)),
    answer=_step_weighed,
    hint="When are the activations of the first microbatch freed?",
    right="a backward for each microbatch frees its activations before the next one begins.",
)

peak_of_the_third_rung = topic.exercise(
    "peak_of_the_third_rung",
    21_787_404,
    name="the peak",
    cases=({},),
    answer=lambda found: round(found() / 10**5),
    of_a_value=True,
    hint="weigh() takes any optimizer. SGD keeps one momentum for each parameter.",
    right="one momentum instead of two moments: 4 bytes a parameter fewer, at every place.",
)
