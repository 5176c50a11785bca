"""Chapter 1: does it fit, and how long?"""

from typing import NamedTuple

import torch

from coursekit.exercises.edits import Topic
from coursekit.exercises.numbers import plain_number
from shardlab.gpt import GPT, GPTConfig

topic = Topic(__name__)


# --- seconds from a rate --------------------------------------------------------------------------


training_seconds_from_rate = topic.exercise(
    "training_seconds_from_rate",
    cases=(
        dict(parameters=1_000, tokens=50, flops_per_second=2e3),
        dict(parameters=175e9, tokens=300e9, flops_per_second=28e12),
        dict(parameters=1_000, tokens=7, flops_per_second=3e4),
        dict(parameters=1_000, tokens=1, flops_per_second=7e6),
    ),
    hint="Operations over operations a second are seconds. How many operations are forward and"
    " backward together, for one parameter and one token?",
    unit="seconds",
    right="2 operations forward and 4 backward per parameter per token, over the rate.",
)


# --- a scale for tensors --------------------------------------------------------------------------

_SIX = torch.zeros(6, dtype=torch.float16)
_OTHER, _TWIN = torch.zeros(2), torch.zeros(3)


bytes_behind_tensors = topic.exercise(
    "bytes_behind_tensors",
    cases=(
        dict(tensors=[_SIX]),
        dict(tensors=[_SIX[:3]]),
        dict(tensors=[_SIX, _SIX[:3]]),
        dict(tensors=[_SIX, _OTHER]),
        dict(tensors=[_SIX, _TWIN]),
        dict(tensors=[_SIX, _SIX[3:]]),
        dict(tensors=[_OTHER, _SIX]),
    ),
    words=(
        "six fp16 numbers",
        "the first three of them",
        "the six and the first three of them",
        "the six and two fp32 numbers",
        "the six and three fp32 numbers",
        "the six and the last three of them",
        "two fp32 numbers and the six",
    ),
    hint="A dictionary with the storage's address as key counts each storage once.",
    unit="bytes",
    right="each storage once, however many tensors look at it.",
)
weigh = bytes_behind_tensors.reference


# --- model states, kind by kind -------------------------------------------------------------------


class KindsOfStates(NamedTuple):
    """Bytes of model states."""

    parameters: int
    gradients: int
    moments: int
    step_counters: int


def _model_after_a_step(tied, optimizer_cls, padded=0):
    """(model, optimizer) after a step; of the tied model a parameter has no gradient."""
    first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    if tied:
        second.weight = first.weight
        first.bias.requires_grad_(False)
    if padded:  # a flat tensor is larger than what lies in it
        flat = torch.zeros(padded)
        second.weight = torch.nn.Parameter(flat[:16].view(4, 4))
    model = torch.nn.Sequential(first, second)
    optimizer = optimizer_cls(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


_MODELS = (
    (False, torch.optim.AdamW),
    (True, torch.optim.AdamW),
    (False, torch.optim.SGD),
    (False, torch.optim.AdamW, 24),
)


def _kinds(solution, number):
    result = solution(*_model_after_a_step(*_MODELS[number]))
    if result is None or result is ...:
        return result
    if isinstance(result, (tuple, list)) and any(part is ... for part in result):
        return ...
    if (
        not isinstance(result, (tuple, list))
        or len(result) != 4
        or not all(isinstance(plain_number(part), (int, float)) for part in result)
    ):
        raise TypeError(
            "it is to return four numbers: the bytes of parameters, gradients, moments and step"
            " counters."
        )
    return KindsOfStates(*result)


states_kind_by_kind = topic.exercise(
    "states_kind_by_kind",
    cases=tuple(dict(number=number) for number in range(len(_MODELS))),
    words=(
        "two linear layers, AdamW",
        "two layers on one weight and a frozen bias, AdamW",
        "two linear layers, SGD",
        "two linear layers, one weight in a longer flat tensor, AdamW",
    ),
    answer=_kinds,
    hint="optimizer.state.values() are dictionaries, one for each parameter. Print the names in"
    " one: which is no moment?",
    right="each kind is weighed by itself; a parameter without a gradient is left out, and the"
    " counters have a number of their own.",
)


# --- bug hunt: the model that came back heavier ---------------------------------------------------


class Resumed(NamedTuple):
    """How a resumed model differs from the one that was saved."""

    bytes_too_many: int
    parameters_too_many: int
    same_outputs: bool
    frozen_too_many: int


_CONFIG = GPTConfig(layers=1, hidden=8, heads=2, vocabulary=13, max_sequence=4)


def compare_resumed(resume, seed) -> Resumed:
    """Save a small model, resume it with `resume`(config, saved), and compare the two."""
    torch.manual_seed(seed)
    model, tokens = GPT(_CONFIG), torch.arange(4)[None]
    resumed = resume(_CONFIG, model.state_dict())
    if not isinstance(resumed, GPT):
        what = "None" if resumed is None else f"something of type {type(resumed).__name__}"
        raise TypeError(f"it returned {what}; it is to return the resumed model.")
    with torch.no_grad():
        same = torch.equal(model(tokens), resumed(tokens))
    return Resumed(
        weigh(resumed.parameters()) - weigh(model.parameters()),
        len(list(resumed.parameters())) - len(list(model.parameters())),
        same,
        sum(not p.requires_grad for p in resumed.parameters()),
    )


model_that_came_back_heavier = topic.exercise(
    "model_that_came_back_heavier",
    cases=(dict(seed=0), dict(seed=1)),
    words=("config, saved", "config, saved by another run"),
    answer=compare_resumed,
    hint="Two modules of this model share one weight. Which line gives each of them its own?",
    right=(
        "to_empty gives every parameter new memory and so unties the head; initialise ties it"
        " again, before the loading."
    ),
)


# --- two ranks of one's own -----------------------------------------------------------------------

_OF_ADAM, _COUNTERS = 612_224 * 4, 160  # bytes of fp32 parameters of the lab's GPT; of 40 counters


states_of_two_ranks = topic.exercise(
    "states_of_two_ranks",
    [4 * _OF_ADAM + _COUNTERS] * 2,
    name="found_by_two",
    cases=({},),
    answer=lambda found: found(),
    of_a_value=True,
    hint="A function that takes no argument does everything on a rank: model, optimizer, batch,"
    " backward, step, and storage_bytes of a list of tensors. `with ranks(2) as two:`, and two.run"
    " of that function gives a number for each rank.",
    right="both ranks keep everything: two copies, and nothing fits that did not fit before.",
)
