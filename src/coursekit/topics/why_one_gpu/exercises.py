"""Chapter 1: does it fit, and how long?"""

from typing import NamedTuple

import torch

from coursekit.exercises.checker import Exercise, Misconception
from coursekit.exercises.numbers import plain_number
from shardlab.gpt import GPT, GPTConfig


def _states(parameters):
    return 16 * parameters


states_bytes_of_fp32_adam = Exercise(
    name="states_bytes",
    reference=_states,
    cases=(dict(parameters=1), dict(parameters=124_439_808), dict(parameters=175_000_000_000)),
    misconceptions=(
        Misconception(
            lambda parameters: 4 * parameters,
            "that is the parameters alone; backward makes a gradient for each, and Adam keeps two"
            " moments for each.",
        ),
        Misconception(
            lambda parameters: 8 * parameters,
            "parameters and gradients are there; Adam's two moments are not.",
        ),
        Misconception(
            lambda parameters: 12 * parameters,
            "Adam keeps two tensors for every parameter, a first and a second moment; or the"
            " gradients are missing.",
        ),
        Misconception(
            lambda parameters: 20 * parameters,
            "in fp32 the parameters are their own master copy: there is no fifth tensor.",
        ),
    ),
    right="4 bytes of parameter, 4 of gradient, 8 of moments: 16 for every parameter.",
)


def _seconds(parameters, tokens, flops_per_second):
    return 6 * parameters * tokens / flops_per_second


training_seconds_from_rate = Exercise(
    name="training_seconds",
    reference=_seconds,
    cases=(
        dict(parameters=1_000, tokens=50, flops_per_second=2e3),
        dict(parameters=175e9, tokens=300e9, flops_per_second=28e12),
        dict(parameters=1_000, tokens=7, flops_per_second=3e4),
        dict(parameters=1_000, tokens=1, flops_per_second=7e6),
    ),
    hint="Operations over operations a second are seconds. How many operations are forward and"
    " backward together, for one parameter and one token?",
    misconceptions=(
        Misconception(
            lambda parameters, tokens, flops_per_second: 2 * parameters * tokens / flops_per_second,
            "2 operations per parameter and token is the forward pass; backward does twice as many"
            " again.",
        ),
        Misconception(
            lambda parameters, tokens, flops_per_second: 3 * parameters * tokens / flops_per_second,
            "a multiplication and an addition are two operations, so each pass over a parameter"
            " counts 2, not 1.",
        ),
        Misconception(
            lambda parameters, tokens, flops_per_second: 6 * parameters * tokens * flops_per_second,
            "operations divided by operations per second are seconds; you multiplied.",
        ),
        Misconception(
            lambda parameters, tokens, flops_per_second: 6 * parameters / flops_per_second,
            "that is one token; the run has many.",
        ),
        Misconception(
            lambda parameters, tokens, flops_per_second: (
                6 * parameters * tokens // flops_per_second
            ),
            "those are whole seconds: // rounds down, and a step of 1.4 s comes out as 1. Divide"
            " with /.",
        ),
        Misconception(
            lambda parameters, tokens, flops_per_second: 4 * parameters * tokens / flops_per_second,
            "4 operations per parameter and token, twice the 2 of forward, is backward alone:"
            " forward comes on top.",
        ),
        Misconception(
            lambda parameters, tokens, flops_per_second: parameters * tokens / flops_per_second,
            "that is one operation for each parameter and token. A multiplication and an"
            " addition are two, forward, and backward does twice as many again.",
        ),
        Misconception(
            lambda parameters, tokens, flops_per_second: 8 * parameters * tokens / flops_per_second,
            "8 is a step that recomputes its forward in backward: 2 forward, 2 again, and 4"
            " backward. Here nothing runs twice.",
        ),
        Misconception(
            lambda parameters, tokens, flops_per_second: 6 * parameters * tokens,
            "those are operations; divide by how many of them are done in a second.",
        ),
        Misconception(
            lambda parameters, tokens, flops_per_second: (
                flops_per_second / (6 * parameters * tokens)
            ),
            "upside down: operations over operations a second are seconds.",
        ),
        Misconception(
            lambda parameters, tokens, flops_per_second: 6 * tokens / flops_per_second,
            "that is one parameter; the model has many.",
        ),
        Misconception(
            lambda parameters, tokens, flops_per_second: (
                6 * parameters * tokens / flops_per_second / 1e12
            ),
            "flops_per_second are operations a second, not TFLOP/s: leave 10^12 out.",
        ),
    ),
    unit="seconds",
    right="2 operations forward and 4 backward for every parameter and token, over the rate.",
)


# --- a scale for tensors --------------------------------------------------------------------------

_SIX = torch.zeros(6, dtype=torch.float16)
_OTHER, _TWIN = torch.zeros(2), torch.zeros(3)


def _behind(tensors):
    return sum(
        {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values()
    )


bytes_behind_tensors = Exercise(
    name="weigh",
    reference=_behind,
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
    misconceptions=(
        Misconception(
            lambda tensors: sum(t.numel() for t in tensors),
            "those are elements, and each of them takes two bytes or four.",
        ),
        Misconception(
            lambda tensors: sum(t.nbytes for t in tensors),
            "a slice keeps its whole storage alive, and two tensors on one storage take its memory"
            " once: ask for the storage.",
        ),
        Misconception(
            lambda tensors: sum(t.untyped_storage().nbytes() for t in tensors),
            "you count a storage twice: a view has no memory of its own. .data_ptr() tells one"
            " storage from another.",
        ),
        Misconception(
            lambda tensors: max(t.untyped_storage().nbytes() for t in tensors),
            "that is the largest storage; the others take memory too.",
        ),
        Misconception(
            lambda tensors: sum({t.untyped_storage().nbytes() for t in tensors}),
            "two storages may be equally large, and both take memory: tell them apart by where they"
            " are, .data_ptr(), not by how many bytes they have.",
        ),
        Misconception(
            lambda tensors: sum({t.data_ptr(): t.nbytes for t in tensors}.values()),
            "the slice begins where its storage begins and hides it: take address and bytes from"
            " untyped_storage().",
        ),
        Misconception(
            lambda tensors: sum(
                {t.data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values()
            ),
            "a slice that begins further on has a data_ptr() of its own, and so its storage counts"
            " twice: ask the storage, untyped_storage().data_ptr().",
        ),
        Misconception(
            lambda tensors: sum(4 * t.numel() for t in tensors),
            "4 bytes for each element are right for fp32 alone, and a view has no memory of its"
            " own: a storage knows its bytes.",
        ),
        Misconception(
            lambda tensors: tensors[0].untyped_storage().nbytes(),
            "that is the first tensor alone; the others take memory too.",
        ),
        Misconception(
            lambda tensors: tensors[-1].untyped_storage().nbytes(),
            "that is the last storage alone: each turn of the loop forgets the one before. Add"
            " them up.",
        ),
        Misconception(
            lambda tensors: sum(
                {t.untyped_storage().data_ptr(): t.nbytes for t in tensors}.values()
            ),
            "the storages are told apart, and then you weigh what each tensor shows of its own."
            " A slice keeps all of it alive: weigh the storage, untyped_storage().nbytes().",
        ),
        Misconception(
            lambda tensors: len({t.untyped_storage().data_ptr() for t in tensors}),
            "that is how many storages there are; add up their bytes.",
        ),
        Misconception(
            lambda tensors: sum(
                {
                    t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() * t.element_size()
                    for t in tensors
                }.values()
            ),
            "you multiply by the size of an element, but nbytes() gives bytes already.",
        ),
    ),
    unit="bytes",
    right="each storage once, however many tensors look at it.",
)


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


def _states_of(
    parameters=lambda model: model.parameters(),
    gradients=lambda model: [p.grad for p in model.parameters() if p.grad is not None],
    weigh=None,
    counters=True,
    without="",
):
    def states_of(model, optimizer):
        scale = weigh or _behind
        kept = [pair for state in optimizer.state.values() for pair in state.items()]
        kept = [(name, tensor) for name, tensor in kept if name != without]
        moments = [tensor for name, tensor in kept if name != "step" or not counters]
        steps = [tensor for name, tensor in kept if name == "step" and counters]
        found = parameters(model), gradients(model), moments, steps
        return tuple(scale(list(tensors)) for tensors in found)

    return states_of


states_kind_by_kind = Exercise(
    name="states_of",
    reference=_states_of(),
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
    misconceptions=(
        Misconception(
            _states_of(counters=False),
            'the moments are too heavy by 4 bytes a tensor: the entry named "step" is a counter,'
            " not a moment.",
        ),
        Misconception(
            lambda model, optimizer: (
                *_states_of(counters=False)(model, optimizer)[:3],
                _states_of()(model, optimizer)[3],
            ),
            "the step counters are weighed twice: by themselves, and among the moments. Leave the"
            ' entry named "step" out of the moments.',
        ),
        Misconception(
            _states_of(weigh=lambda tensors: sum(t.numel() for t in tensors)),
            "those are elements; weigh gives bytes.",
        ),
        Misconception(
            _states_of(gradients=lambda model: list(model.parameters())),
            "you weigh the parameters a second time for the gradients. A frozen parameter has no"
            " gradient, p.grad is None: leave it out.",
        ),
        Misconception(
            _states_of(gradients=lambda model: []),
            "the gradients are missing: p.grad of each parameter, where it is not None. (If you go"
            " through one model.parameters() twice: the second time nothing is left in it.)",
        ),
        Misconception(
            lambda model, optimizer: (
                *_states_of()(model, optimizer)[:2],
                *_states_of()(model, optimizer)[:1:-1],
            ),
            "moments and step counters are exchanged.",
        ),
        Misconception(
            _states_of(without="exp_avg_sq"),
            "one of the moments is missing. Adam keeps two moments for each parameter, exp_avg and"
            " exp_avg_sq.",
        ),
        Misconception(
            _states_of(without="step"),
            'the step counters are missing: the entry named "step" takes 4 bytes for each'
            " parameter.",
        ),
        Misconception(
            lambda model, optimizer: (
                *_states_of()(model, optimizer)[1::-1],
                *_states_of()(model, optimizer)[2:],
            ),
            "parameters and gradients are exchanged. A frozen parameter has no gradient, so the"
            " two differ.",
        ),
        Misconception(
            lambda model, optimizer: (*_states_of()(model, optimizer)[:3], len(optimizer.state)),
            "you have counted the step counters, and not their bytes: each takes 4.",
        ),
        Misconception(
            _states_of(
                gradients=lambda model: [p for p in model.parameters() if p.grad is not None]
            ),
            "you weigh the parameters that have a gradient, and not the gradients: take p.grad.",
        ),
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
        _behind(resumed.parameters()) - _behind(model.parameters()),
        len(list(resumed.parameters())) - len(list(model.parameters())),
        same,
        sum(not p.requires_grad for p in resumed.parameters()),
    )


def _resume(finish):
    def resume(config, saved):
        with torch.device("meta"):
            model = GPT(config)
        model.to_empty(device="cpu")
        finish(model, saved)
        return model

    return resume


def _tie_and_load(model, saved):
    model.initialise()
    model.load_state_dict(saved)


def _load_and_tie(model, saved):
    model.load_state_dict(saved)
    model.initialise()


def _freeze_the_second(model, saved):
    model.load_state_dict(saved)
    model.head.scores.weight.requires_grad_(False)


def _freeze_all(model, saved):
    _tie_and_load(model, saved)
    model.requires_grad_(False)


def _share_data(model, saved):
    model.load_state_dict(saved)
    model.head.scores.weight.data = model.embedding.tokens.weight.data


model_that_came_back_heavier = Exercise(
    name="resume",
    reference=_resume(_tie_and_load),
    cases=(dict(seed=0), dict(seed=1)),
    words=("config, saved", "config, saved by another run"),
    answer=compare_resumed,
    hint="Two modules of this model share one weight. Which line gives each of them its own?",
    misconceptions=(
        Misconception(
            _resume(lambda model, saved: model.load_state_dict(saved)),
            "the outputs are the same, and the model is too heavy by one tensor. Which one has just"
            " that many elements?",
        ),
        Misconception(
            _resume(_load_and_tie),
            "the bytes are right, but initialise draws new numbers: what was loaded is lost, or was"
            " never loaded. Initialise first, load then.",
        ),
        Misconception(
            _resume(_share_data),
            "the memory is one again, but there are still two parameters on it, and an optimizer"
            " would update both: the parameter itself must be shared.",
        ),
        Misconception(
            _resume(_freeze_the_second),
            "a frozen copy is not trained, but its bytes are still there, and it no longer"
            " follows the table of tokens. The two modules are to share one parameter.",
        ),
        Misconception(
            _resume(_freeze_all), "the model is whole, and frozen: it was to be trained further."
        ),
    ),
    errors=(
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


def _kept(copies, counters=_COUNTERS, ranks=2):
    return lambda: [copies * _OF_ADAM + counters] * ranks


states_of_two_ranks = Exercise(
    name="found_by_two",
    reference=_kept(4),
    cases=({},),
    answer=lambda found: found(),
    of_a_value=True,
    hint="A function that takes no argument does everything on a rank: model, optimizer, batch,"
    " backward, step, and storage_bytes of a list of tensors. `with ranks(2) as two:`, and two.run"
    " of that function gives a number for each rank.",
    misconceptions=(
        Misconception(
            _kept(4, counters=0),
            "the step counters are missing: AdamW keeps one of 4 bytes for each of the 40"
            " parameters.",
        ),
        Misconception(
            _kept(1, counters=0),
            "those are the parameters alone: gradients, and two moments of each, come on top.",
        ),
        Misconception(
            _kept(2, counters=0),
            "parameters and gradients: the optimizer keeps nothing before its first step, or is"
            " not counted.",
        ),
        Misconception(
            _kept(3), "something as large as the parameters is missing: gradients, or a moment."
        ),
        Misconception(
            _kept(2),
            "parameters or gradients are missing, or both moments: there are four of a kind.",
        ),
        Misconception(
            _kept(4, ranks=4),
            "four ranks have answered: ranks(2) starts two.",
        ),
        Misconception(
            lambda: [(4 * _OF_ADAM + _COUNTERS) // 2] * 2,
            "nobody has cut anything: each rank keeps all of it, so do not divide by two.",
        ),
        Misconception(
            lambda: 4 * _OF_ADAM + _COUNTERS,
            "that is one rank's number: hand over all that run gives back, a number for each rank.",
        ),
        Misconception(
            lambda: 2 * (4 * _OF_ADAM + _COUNTERS),
            "that is the sum of both ranks: hand over what run gives back, a number for each rank.",
        ),
    ),
    right="both ranks keep everything: two copies, and nothing fits that did not fit before.",
)
