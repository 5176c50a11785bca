"""Chapter 9: mixed precision. What readers write runs in this process, on tensors of a few
elements; the ranks are thread ranks: no check can hang."""

import math
from typing import NamedTuple

import torch
from torch import nn

from coursekit.exercises.answers import nine_digits
from coursekit.exercises.checker import Failure, same
from coursekit.exercises.edits import Topic
from coursekit.exercises.thread_ranks import value_of_ranks
from shardlab.mixed_precision import LossScaler

topic = Topic(__name__)

_INF, _NAN = math.inf, math.nan


def _digits(tensor):
    """The elements; text where they are not finite, since NaN does not equal NaN."""
    values = tensor.double().flatten().tolist()
    return [float(f"{v:.9g}") if math.isfinite(v) else str(v) for v in values]


# --- a loss scaler --------------------------------------------------------------------------------

_INTERVAL = 3  # good steps until the scale doubles


class _Step(NamedTuple):
    """The two numbers that a step hands back, and the finite gradients of its updates."""

    scale: float
    good_steps: int
    seen: list


_BEGIN = _Step(8.0, 0, [])


def _scaled_steps(solution, rounds):
    """Each step of a run. `rounds` has the gradients before they were scaled: of each, its first
    element, or both."""
    last, steps = _BEGIN, []
    for values in rounds:
        gradients = [
            torch.tensor(each if isinstance(each, tuple) else [each, 0.125]) * last.scale
            for each in values
        ]
        seen = []

        def update(gradients=gradients, seen=seen):
            seen.append([round(v, 9) for g in gradients for v in g.tolist() if math.isfinite(v)])

        result = solution(gradients, last.scale, last.good_steps, update, _INTERVAL)
        if result is None or result is ...:
            return result
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            raise TypeError("it is to return two values, the next scale and the good steps.")
        last = _Step(float(result[0]), int(result[1]), seen)
        steps.append(last)
    return steps


_GOOD, _ONE_INF, _ONE_NAN = [0.5, 0.25], [0.5, _INF], [_NAN, 0.25]
scaler_step_of_a_loop = topic.exercise(
    "scaler_step_of_a_loop",
    cases=(
        dict(rounds=[_GOOD]),
        dict(rounds=[_GOOD, _ONE_INF, _GOOD, _GOOD, _GOOD, _GOOD]),
        dict(rounds=[_ONE_NAN, _GOOD, _GOOD, _GOOD, _GOOD]),
        dict(rounds=[[_INF, 0.25], [_INF, 0.25], [-_INF, 0.25]]),
        dict(rounds=[[(4e37, 4e37), 0.25]]),
    ),
    words=(
        "one good step",
        "a good step, an infinite gradient, then good steps; the scale doubles after three",
        "a gradient that is NaN, then good steps",
        "three overflows in a row",
        "finite gradients of which the sum overflows",
    ),
    answer=_scaled_steps,
    hint="Four questions: has any element overflowed, what happens to the gradients if"
    " none has, what happens to the scale if one has, and when does the scale grow?",
    right="looked at, divided in place, skipped and halved, doubled after a run of good steps: the"
    " rule of GradScaler.",
)


# --- an update through masters --------------------------------------------------------------------

_WEIGHTS = ([1.0, -2.0], [3.0])


class _Updated(NamedTuple):
    """All weights and all masters after some steps, and the parameters' types and gradients."""

    weights: list
    masters: list
    types: list
    gradients: list


def _updated(solution, steps, size):
    """The state after some steps of SGD, of that size, on bf16 weights."""
    parameters = [nn.Parameter(torch.tensor(v, dtype=torch.bfloat16)) for v in _WEIGHTS]
    masters = [p.detach().float() for p in parameters]
    optimizer = torch.optim.SGD(masters, lr=1.0)
    for _ in range(steps):
        for p in parameters:
            gradient = torch.full_like(p, size)
            p.grad = gradient if p.grad is None else p.grad + gradient
        if solution(list(parameters), list(masters), optimizer) is ...:
            return ...
    return _Updated(
        [nine_digits(p) for p in parameters],
        [nine_digits(master) for master in masters],
        [str(p.dtype) for p in parameters],
        [
            "none" if p.grad is None else "a gradient" if p.grad.any() else "zeros"
            for p in parameters
        ],
    )


def _moved(by):
    """All weights, moved by so much."""
    return [[value - by for value in one] for one in _WEIGHTS]


def _as_bf16(weights):
    return [nine_digits(torch.tensor(one).bfloat16()) for one in weights]


update_through_masters = topic.exercise(
    "update_through_masters",
    cases=(dict(steps=2, size=0.75), dict(steps=1, size=2.0**-10), dict(steps=8, size=2.0**-10)),
    words=("two large steps", "one small step", "eight steps, each too small for a bf16 weight"),
    answer=_updated,
    hint="An update smaller than half a step between two bf16 numbers is lost. Which"
    " tensor is to take it, and which only gets a copy?",
    right="the copies remember what the weights cannot hold, and the weights are their rounding.",
)


# --- unscale once, however many microbatches ------------------------------------------------------

_TINY = 2.0**-23  # divided by 4 microbatches it is zero in fp16


def _accumulated(solution, gradients, scale):
    """weight.grad after the solution, over losses whose gradients pass through fp16."""
    weight = nn.Parameter(torch.zeros(len(gradients[0])))

    def loss_of(gradient):
        factors = torch.tensor(gradient, dtype=torch.float64)
        return lambda weight: (weight.half().double() * factors).sum()

    solution(weight, [loss_of(gradient) for gradient in gradients], scale)
    if weight.grad is None:
        raise ValueError("it left weight.grad empty: backward() fills it.")
    return _digits(weight.grad)


def mean_gradient_at_a_scale(weight, losses, scale):
    for loss in losses:
        (loss(weight) / len(losses) * scale).backward()
    weight.grad /= scale


_SMALL = (
    "without the scale the small gradients are zero: they pass through fp16, where nothing of 2^-25"
    " or less is left"
)
_SCALES = {
    1: "weight.grad, which counts, is still larger by the scale: Adam hides it, SGD explodes",
    -1: "they are divided by the scale once for each microbatch, or by a scale that the loss was"
    " never multiplied by. A sum of k scaled gradients is scaled once",
}
_COUNTS = {
    True: "the sum over the microbatches, and not their mean: divide each loss by their number",
    False: "divided by the number of microbatches twice: once is enough",
}


def _of_the_scale(found, right, gradients, scale):
    """The scale and the number of microbatches, each as often as it is in the answer."""
    if not all(isinstance(value, float) for value in found):
        return (
            "the gradients are infinite: the scale is in them more than once, and fp16 ends at"
            " 65,504. Multiply each loss once, before its backward."
        )
    k, factor = len(gradients), found[-1] / right[-1] if len(found) == len(right) else 0
    large = [(one, factor * wanted) for one, wanted in zip(found, right) if abs(wanted) > 1e-6]
    if not all(map(same, *zip(*large))):
        return None
    said = [] if found[0] else [_SMALL]
    for scales in (1, -1, 1 - k, -k, 0):
        for counts in (1, k, 1 / k):
            if math.isclose(factor, counts * scale**scales, rel_tol=1e-6):
                said += [_SCALES.get(scales, _SCALES[-1])] * bool(scales)
                said += [_COUNTS[counts > 1]] * (counts != 1)
    return f"{'; '.join(said)}." if said else None


unscale_once = topic.exercise(
    "unscale_once",
    mean_gradient_at_a_scale,
    name="gradients_of",
    cases=(
        dict(
            gradients=[
                [_TINY, 1.0, 0.0, 0.0, 1.0],
                [_TINY, 0.0, 2.0, 0.0, 2.0],
                [_TINY, 0.0, 0.0, 1.0, 3.0],
                [_TINY, 0.0, 0.0, 0.0, 6.0],
            ],
            scale=2.0**10,
        ),
        dict(gradients=[[-_TINY, 3.0, 1.0], [_TINY / 2, 5.0, 0.0]], scale=2.0**8),
    ),
    words=("4 microbatches, a scale of 2^10", "2 microbatches, a scale of 2^8"),
    answer=_accumulated,
    right="each loss is scaled, the sum is unscaled once, when the last microbatch is in it.",
)


# --- an overflow on one rank ----------------------------------------------------------------------


def _decided(solution, gradients):
    def work(dist):
        gradient = torch.tensor(gradients[dist.get_rank()])
        steps = solution(gradient, dist)
        if isinstance(steps, torch.Tensor) and steps.numel() == 1:
            steps = bool(steps.item())
        return steps

    return value_of_ranks(len(gradients), work)


found_on_one_rank = topic.exercise(
    "found_on_one_rank",
    cases=(
        dict(gradients=([1.0, 2.0], [1.0, _INF])),
        dict(gradients=([1.0], [2.0], [3.0])),
        dict(gradients=([_NAN, 1.0], [2.0, 2.0], [1.0, -1.0])),
        dict(gradients=([-_INF], [_INF])),
        dict(gradients=([3e38, 3e38], [1.0, 1.0])),
        dict(gradients=([3e38], [3e38])),
        dict(gradients=([_INF], [_NAN], [1.0])),
        dict(gradients=([_INF, 1.0], [1.0, _NAN])),
    ),
    words=(
        "an infinity on rank 1 of 2",
        "3 ranks, all finite",
        "a NaN on rank 0 of 3",
        "infinities of both signs, on both ranks",
        "2 ranks, large and finite",
        "2 ranks, both large and finite",
        "3 ranks, an overflow on two",
        "2 ranks, an overflow on each, beside finite numbers",
    ),
    answer=_decided,
    hint="A rank that skips beside one that steps has another model from then on. Who"
    " has to know, before anybody steps?",
    right="one flag from every rank, and one decision for all.",
)


# --- when the scale grows -------------------------------------------------------------------------

_EVENTS = (".......", "..x...x", "x.x..x..", "....x....")


def _history(solution, events, interval):
    """The scale after each step."""
    scale, good, found = 1024.0, 0, []
    for event in events:
        try:
            result = solution(scale, good, event == "x", interval)
        except Exception as error:
            return Failure.of(error)
        if not isinstance(result, tuple) or len(result) != 2:
            return result
        scale, good = result
        if scale is ... or good is ...:
            return ...
        found.append(float(scale))
    return found


def next_scale(scale, good_steps, overflow, interval):
    if overflow:
        return scale / 2, 0
    good_steps += 1
    if good_steps >= interval:
        return scale * 2, 0
    return scale, good_steps


scale_after_a_step = topic.exercise(
    "scale_after_a_step",
    next_scale,
    cases=tuple(dict(events=events, interval=3) for events in _EVENTS),
    words=tuple(f"steps {events}, where x overflows, and an interval of 3" for events in _EVENTS),
    answer=_history,
    right="down at once, up after good steps in a row, and the count begins anew either way.",
)


# --- a sum that overflows -------------------------------------------------------------------------


class _Wire:
    """all_reduce as a 16-bit ring has it: ranks add, one after the other, in the tensor's type."""

    def __init__(self, others):
        self.others, self.sent_bytes = others, 0

    def all_reduce(self, tensor):
        self.sent_bytes += tensor.nbytes
        for other in self.others(tensor):
            tensor.add_(other)


class _Averaged(NamedTuple):
    mean: list
    bytes_sent: int


def _averaged(solution, gradients):
    """The first rank's answer, where all ranks run the solution."""
    halves = [torch.tensor(gradient, dtype=torch.float16) for gradient in gradients]
    brought = []
    for gradient in halves:  # what each rank brings to its all-reduces
        own = []
        wire = _Wire(lambda tensor, own=own: own.append(tensor.clone()) or ())
        solution(gradient.clone(), len(halves), wire.all_reduce)
        brought.append(own)
    number = iter(range(10))

    def others(tensor):
        k = next(number)
        return [own[k].to(tensor.dtype) for own in brought[1:]]

    wire = _Wire(others)
    result = solution(halves[0].clone(), len(halves), wire.all_reduce)
    return _Averaged([round(value, 6) for value in result.float().tolist()], wire.sent_bytes)


def mean_over_ranks(gradient, ranks, all_reduce):
    gradient = gradient / ranks
    all_reduce(gradient)
    return gradient


mean_that_fits = topic.exercise(
    "mean_that_fits",
    mean_over_ranks,
    cases=(
        dict(gradients=([40_000.0, 1.0], [40_000.0, 3.0])),
        dict(gradients=([30_000.0, -8.0], [30_000.0, 0.0], [30_000.0, 4.0], [30_000.0, 4.0])),
    ),
    words=("2 ranks, gradients of 40,000", "4 ranks, gradients of 30,000"),
    answer=_averaged,
    right="each rank sends its share of the mean, and no partial sum is larger than the mean can"
    " be.",
)


# --- which bytes halve ----------------------------------------------------------------------------


class _States(NamedTuple):
    parameters: int
    gradients: int
    master: int
    moments: int


def _rows(solution, count):
    result = solution(count)
    if not isinstance(result, dict):
        return result
    if missing := [name for name in _States._fields if name not in result]:
        return f"{missing[0]} is not in it: the dictionary has {', '.join(_States._fields)}."
    rows = _States(*(result[name] for name in _States._fields))
    return ... if any(value is ... for value in rows) else rows


def state_bytes(count):
    return dict(parameters=2 * count, gradients=2 * count, master=4 * count, moments=8 * count)


_ROWS = {
    "parameters": "forward and backward compute with 16-bit parameters, 2 bytes; the 4 are the"
    " master's",
    "gradients": "gradients have the type of their parameters: 2 bytes. A run that adds gradients"
    " up in fp32 has 4, and 18 bytes in all",
    "master": "the master is a copy in fp32, 4 bytes. Without a master copy the optimizer updates"
    " 16-bit weights: an update below half of their spacing is lost",
    "moments": "Adam has two, and both are fp32 here, 8 bytes together: one moment is forgotten, or"
    " both are in 16 bits",
}


which_bytes_halve = topic.exercise(
    "which_bytes_halve",
    state_bytes,
    cases=(dict(count=1), dict(count=124_439_808)),
    answer=_rows,
    right="2 + 2 + 4 + 8 = 16, as many as in fp32. What halves is the parameters, the gradients,"
    " the activations and the traffic.",
)


# --- bug hunt: clip before unscale ----------------------------------------------------------------


class _Fitted(NamedTuple):
    """The norms that each step returned, and the weight afterwards."""

    norms: list
    weight: list


_START, _AIM = torch.tensor([4.0, -3.0]), torch.tensor([0.5, 0.25])


def _trained(solution, steps, scale):
    """A line, fitted by SGD."""
    weight = nn.Parameter(_START.clone())
    optimizer = torch.optim.SGD([weight], lr=0.25)
    scaler = LossScaler(scale, growth_interval=2)
    norms = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (weight - _AIM).square().sum()
        scaler.scale(loss).backward()
        try:
            norm = solution([weight], optimizer, scaler)
        except Exception as error:
            return Failure.of(error)
        if not isinstance(norm, (float, torch.Tensor)):
            return norm
        norms.append(float(norm))
    return _Fitted(_digits(torch.tensor(norms)), _digits(weight))


clip_what_was_unscaled = topic.exercise(
    "clip_what_was_unscaled",
    cases=(dict(steps=6, scale=2.0**16), dict(steps=5, scale=2.0**127)),
    words=("6 steps, a scale of 2^16", "5 steps, a scale of 2^127, with which the first overflow"),
    answer=_trained,
    hint="The scaler divides by its scale inside step(), unless somebody has asked for"
    " that before. Which gradients is the norm to be of?",
    right="unscale, clip, step, update: clipping sees gradients of their true size.",
)


# --- two ranks of one's own -----------------------------------------------------------------------


scales_of_two_ranks = topic.exercise(
    "scales_of_two_ranks",
    [512.0, 512.0],
    name="the list",
    cases=({},),
    answer=lambda found: [float(scale) for scale in found()],
    of_a_value=True,
    hint="ranks(2) starts two ranks, in a with block. Each makes a parameter and a LossScaler, and"
    " 1e38 times 1,024 is more than fp32 holds.",
    right="both have skipped, and both divide by 512 from now on: one overflow is everybody's.",
)
