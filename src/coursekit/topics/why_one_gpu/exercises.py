"""Chapter 1: does it fit, and how long?"""

from typing import NamedTuple

import torch

from coursekit.exercises.checker import same
from coursekit.exercises.edits import Topic
from coursekit.exercises.numbers import plain_number
from shardlab.gpt import GPT, GPTConfig

topic = Topic(__name__)


# --- seconds from a rate --------------------------------------------------------------------------


def _operations(found, right, parameters, tokens, flops_per_second):
    """A whole number of operations for each parameter and token that is not 6."""
    if not isinstance(found, (int, float)):
        return None
    many = 6 * found / right
    if not 1 <= round(many) < 100 or not same(many, float(round(many))):
        return None
    return (
        f"yours are {many:.0f} operations for each parameter and token. Forward has 2, a"
        " multiplication and an addition; backward twice as many; and nothing runs twice here."
    )


def _without(found, right, parameters, tokens, flops_per_second):
    """An argument that is left out, or stands on the wrong side."""
    for value, sentence in (
        (right / tokens, "that is one token; the run has many."),
        (right / parameters, "that is one parameter; the model has many."),
        (right * flops_per_second, "those are operations; divide by how many of them are done in a"
         " second."),
        (right * flops_per_second**2, "operations divided by operations per second are seconds; you"
         " multiplied."),
        (1 / right, "upside down: operations over operations a second are seconds."),
        (right / 1e12, "flops_per_second are operations a second, not TFLOP/s: leave 10^12 out."),
    ):  # fmt: skip
        if same(found, float(value)):
            return sentence
    return None


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
    properties=(_without, _operations),
    unit="seconds",
    right="2 operations forward and 4 backward for every parameter and token, over the rate.",
)


# --- a scale for tensors --------------------------------------------------------------------------

_SIX = torch.zeros(6, dtype=torch.float16)
_OTHER, _TWIN = torch.zeros(2), torch.zeros(3)


def _one_of_the_storages(found, right, tensors):
    sizes = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    if len(sizes) == 1 or not any(same(found, size) for size in sizes.values()):
        return None
    return (
        f"your {found} bytes are one storage, of {len(sizes)}: each of them takes memory, the first"
        " and the last, and two that are equally large. Tell them apart by .data_ptr(), and add"
        " them up."
    )


def _times_elements(found, right, tensors):
    behind = {t.untyped_storage().data_ptr(): (t.untyped_storage(), t) for t in tensors}.values()
    if not same(found, sum(storage.nbytes() * t.element_size() for storage, t in behind)):
        return None
    return "you multiply by the size of an element, but nbytes() are bytes already."


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
    properties=(_one_of_the_storages, _times_elements),
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


def _exchanged(found, right, number):
    for one, other in (("parameters", "gradients"), ("moments", "step_counters")):
        mine, theirs = ((getattr(of, one), getattr(of, other)) for of in (found, right))
        if mine == theirs[::-1] != theirs:
            return (
                f"{one} and {other.replace('_', ' ')} are exchanged. Parameters come first, then"
                " gradients (a frozen parameter has none), moments, step counters."
            )
    return None


_WHERE = KindsOfStates(
    parameters="model.parameters()",
    gradients="p.grad of each parameter, where it is not None. (If you go through one"
    " model.parameters() twice: the second time nothing is left in it.)",
    moments="what the optimizer keeps under any name but step, two tensors a parameter with Adam.",
    step_counters='the entry named "step" takes 4 bytes for each parameter.',
)


def _missing(found, right, number):
    for kind, mine, theirs, where in zip(right._fields, found, right, _WHERE):
        if theirs and not mine:
            return f"the {kind.replace('_', ' ')} are missing: {where}"
    return None


def _counters_among_the_moments(found, right, number):
    if not found.moments == right.moments + right.step_counters > right.moments:
        return None
    return (
        "the step counters are weighed twice: by themselves, and among the moments. Leave the entry"
        ' named "step" out of the moments.'
        if found.step_counters
        else 'the moments are too heavy by 4 bytes a tensor: the entry named "step" is a counter,'
        " not a moment."
    )


def _others_weighed(found, right, number):
    if found.gradients == right.parameters != right.gradients:
        return (
            "you weigh the parameters a second time for the gradients. A frozen parameter has no"
            " gradient, p.grad is None: leave it out."
        )
    return None


def _computed(found, right, number):
    if found.moments == 2 * found.parameters != right.moments:
        return (
            "your moments are twice the parameters, and a parameter that is frozen, or an optimizer"
            " other than Adam, has none: weigh what the optimizer keeps."
        )
    return None


def _some_states(found, right, number):
    if not 0 < found.step_counters < right.step_counters:
        return None
    return (
        f"you weigh the states of {found.step_counters // 4} of {right.step_counters // 4}"
        " parameters: go through all of optimizer.state.values(), and add to what is there."
    )


def _half_the_moments(found, right, number):
    if right.moments and 2 * found.moments == right.moments:
        return (
            "one of the moments is missing. Adam keeps two moments for each parameter, exp_avg and"
            " exp_avg_sq."
        )
    return None


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
    properties=(
        _exchanged,
        _counters_among_the_moments,
        _missing,
        _others_weighed,
        _computed,
        _some_states,
        _half_the_moments,
    ),
    errors=(
        (
            "NoneType",
            "A parameter that is frozen or was not used has no gradient, p.grad is None: leave"
            " it out.",
        ),
        (
            "'dict' object",
            "The values of optimizer.state are dictionaries, one for each parameter, and their"
            " values are the tensors.",
        ),
    ),
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


def _other_outputs(found, right, seed):
    if found.same_outputs:
        return None
    return (
        "the outputs differ from those of the model that was saved: what was loaded is lost, or was"
        " never loaded, into each of the parameters. Initialise first, load then."
    )


def _not_tied(found, right, seed):
    if found.bytes_too_many <= 0:
        return None
    return (
        f"the model has {found.bytes_too_many} bytes too many, {found.bytes_too_many // 4} elements"
        " of fp32. Which tensor has just that many?"
    )


model_that_came_back_heavier = topic.exercise(
    "model_that_came_back_heavier",
    cases=(dict(seed=0), dict(seed=1)),
    words=("config, saved", "config, saved by another run"),
    answer=compare_resumed,
    hint="Two modules of this model share one weight. Which line gives each of them its own?",
    properties=(_other_outputs, _not_tied),
    errors=(
        (
            "[Mm]eta tensor",
            "On the meta device a tensor has a shape and no memory: to_empty gives it some.",
        ),
        (
            "loading state_dict|no attribute 'weight'",
            "Now the head has no weight at all: it must have one, and share it with the table of"
            " tokens.",
        ),
    ),
    right=(
        "to_empty gives every parameter new memory and so unties the head; initialise ties it"
        " again, before the loading."
    ),
)


# --- two ranks of one's own -----------------------------------------------------------------------

_OF_ADAM, _COUNTERS = 612_224 * 4, 160  # bytes of fp32 parameters of the lab's GPT; of 40 counters


def _a_number_for_each(found, right):
    if isinstance(found, (list, tuple)):
        if len(found) == len(right):
            return None
        return f"{len(found)} ranks have answered: ranks(2) starts two."
    what = "the sum of both ranks" if same(found, sum(right)) else "one value"
    what = "one rank's number" if same(found, right[0]) else what
    return f"that is {what}: hand over all that run gives back, a number for each rank."


_OF_COPIES = {
    1: "those are the parameters alone: gradients, and two moments of each, come on top.",
    2: "two of a kind are there, and there are four: parameters, gradients and two moments. The"
    " optimizer keeps nothing before its first step.",
    3: "something as large as the parameters is missing: gradients, or a moment.",
}


def _copies(found, right):
    """How many tensors are there for each parameter, with or without the counters."""
    for copies, sentence in _OF_COPIES.items():
        if any(same(found, [copies * _OF_ADAM + more] * 2) for more in (0, _COUNTERS)):
            return sentence
    return None


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
    properties=(_a_number_for_each, _copies),
    right="both ranks keep everything: two copies, and nothing fits that did not fit before.",
)
