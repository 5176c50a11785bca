"""Chapter 9: mixed precision. What readers write runs in this process, on tensors of a few
elements; the ranks are thread ranks: no check can hang."""

import math
from typing import NamedTuple

import torch
from torch import nn

from coursekit.exercises.answers import share_of_each
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


def _nine(tensor):
    return [round(value, 9) for value in tensor.detach().float().tolist()]


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


def _first_that_differs(found, right, rounds):
    """The first step that is wrong, and what is wrong with it."""
    k = next(k for k, pair in enumerate(zip(found, right)) if not same(*pair))
    before, mine, theirs = right[k - 1] if k else _BEGIN, found[k], right[k]
    if (mine.scale, mine.good_steps) == (theirs.good_steps, theirs.scale):
        return "the two numbers come back in the other order: first the next scale, then the count."
    said = (_of_a_good_step if theirs.seen else _of_an_overflow)(before, mine, theirs, rounds[k])
    return f"step {k + 1}, {said}"


def _of_an_overflow(before, mine, theirs, values):
    which = next(k for k, one in enumerate(values) if one in (_INF, -_INF) or one != one)
    told = f"with {values[which]} in gradient {which + 1} of {len(values)}:"
    if mine.seen:
        return (
            f"{told} the update runs although a gradient has overflowed, and nothing mends a weight"
            " that is NaN. One element is enough to skip: look at all of them, with isfinite(),"
            " which is false for infinity and NaN. isinf() and isnan() alone miss one of the two."
        )
    if mine.scale != theirs.scale:
        does = "grows after an overflow" if mine.scale > before.scale else "stays"
        if mine.scale < before.scale:
            does = f"of {before.scale:g} becomes {mine.scale:g}"
        return f"{told} the scale {does}. Halve the scale: else the next step overflows as well."
    if mine.good_steps == before.good_steps:
        return (
            f"{told} the count of good steps goes on after a skip, so the scale grows back too"
            " early and overflows again. They have to be good in a row: begin at 0."
        )
    return f"{told} a skipped step counts as a good one, but is not: begin at 0 again."


def _of_a_good_step(before, mine, theirs, values):
    if not mine.seen and mine.scale < before.scale:
        why = (
            "a sum of finite numbers may overflow. Ask each element: isfinite().all()."
            if isinstance(values[0], tuple)
            else "is the question asked the other way round? What is finite steps."
        )
        return f"all elements finite: a good step is skipped; {why}"
    if len(mine.seen) != 1:
        return "all elements finite: update() was never called, or more than once."
    if mine.seen != theirs.seen:
        return _of_what_the_update_saw(before, mine, theirs)
    doubled = theirs.scale > before.scale
    row = f"the {theirs.good_steps or _INTERVAL}. good one in a row:"
    if doubled and mine.scale == before.scale:
        return (
            f"{row} the scale is to double, and stays. Count the step that was just made as well:"
            " else it doubles one step too late. Where good steps are not counted, or a count has"
            " passed the interval, the scale never grows, and one that only falls ends too low."
        )
    if mine.scale != theirs.scale:
        return (
            f"{row} the scale of {before.scale:g} becomes {mine.scale:g}. It doubles after"
            f" `interval`, {_INTERVAL}, good ones in a row, not after every good step."
        )
    if doubled:
        return (
            f"{row} the scale has doubled and the count goes on: it never doubles again, because it"
            " has passed the interval, or does so in every step. Begin at 0."
        )
    return f"{row} the good steps are not counted: good_steps + 1 after each."


def _of_what_the_update_saw(before, mine, theirs):
    ratios = {round(f / r, 6) for f, r in zip(mine.seen[0], theirs.seen[0])}
    if ratios == {before.scale**2}:
        return (
            "the gradients are multiplied a second time. The loss was multiplied before backward;"
            " gradients are to be divided."
        )
    if before.scale in ratios:
        return (
            "the update sees gradients that are still multiplied by the scale. With SGD that is a"
            " learning rate of 65,536 times yours. Divide all of them before update(), and in"
            " place, g.div_(scale): g / scale is a new tensor, which nobody reads."
        )
    if ratios == {before.scale / mine.scale}:
        return (
            "where the scale has just doubled, the gradients are divided by the new one. This"
            " step's loss was multiplied by the old one: divide, update, and double then."
        )
    return (
        f"the update sees gradients {min(ratios):g} times as large as they should be: divide each"
        f" by the scale of {before.scale:g}, once."
    )


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
    properties=(_first_that_differs,),
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
        [_nine(p) for p in parameters],
        [_nine(master) for master in masters],
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
    return [_nine(torch.tensor(one).bfloat16()) for one in weights]


def _of_types_and_gradients(found, right, steps, size):
    if found.types != right.types:
        return (
            "the parameters are fp32 now: p.data = ... replaces the tensor, and the next forward"
            " computes in fp32. p.copy_(master) rounds and keeps the type."
        )
    if found.gradients != right.gradients:
        return (
            f"p.grad is still there ({max(found.gradients)}), with its memory: the next backward"
            " adds to it. Afterwards no parameter has a gradient: p.grad = None."
        )


def _of_the_weights(found, right, steps, size):
    if same(found.weights, right.weights) or not same(found.masters, right.masters):
        return None
    if same(found.weights, _WEIGHTS):
        return (
            "the copies move and the model does not: it computes with the old weights forever."
            " Copy each master into its parameter, p.copy_(master): a new tensor in the list, or"
            " under the parameter's name, is not the model's."
        )
    if same(found.weights, _as_bf16(_moved((steps - 1) * size))):
        return (
            "the weights are copied before the step, so they are one step behind their masters:"
            " first optimizer.step(), then copy."
        )
    if any(map(same, found.weights, right.weights)):
        return "not every parameter follows its master (the first parameter alone?): zip them all."


def _of_the_masters(found, right, steps, size):
    if same(found.masters, _WEIGHTS) and same(found.weights, _WEIGHTS):
        return (
            "neither copies nor weights have moved: nobody called optimizer.step(), or the masters"
            " have no gradients when it is called (master.grad = parameter.grad.float()), or the"
            " copies are made anew after it."
        )
    if same(found.masters, _WEIGHTS):
        return (
            "you update the bf16 weights themselves, and the steps are lost in rounding. The"
            " optimizer updates the masters."
        )
    for moved, sentence in (
        (
            steps * (steps + 1) / 2,
            "master.grad keeps the gradients of earlier steps, and adds to them. Set it anew in"
            " each step.",
        ),
        (
            steps - 1,
            "optimizer.step() comes before the masters have this step's gradients: first"
            " master.grad = parameter.grad.float(), then the step.",
        ),
    ):
        if moved != steps and same(found.masters, _moved(moved * size)):
            return sentence
    if any(map(same, found.masters, right.masters)) and not same(found.masters, right.masters):
        return "not every master has moved: zip all of them."


update_through_masters = topic.exercise(
    "update_through_masters",
    cases=(dict(steps=2, size=0.75), dict(steps=1, size=2.0**-10), dict(steps=8, size=2.0**-10)),
    words=("two large steps", "one small step", "eight steps, each too small for a bf16 weight"),
    answer=_updated,
    hint="An update smaller than half a step between two bf16 numbers is lost. Which"
    " tensor is to take it, and which only gets a copy?",
    properties=(_of_types_and_gradients, _of_the_weights, _of_the_masters),
    errors=(
        (
            "assign a gradient|grad_dtype",
            "A gradient has the master's type: parameter.grad.float().",
        ),
        (
            "NoneType",
            "p.grad is None: its gradient was taken away before the master had it. First"
            " master.grad = parameter.grad.float(), then None.",
        ),
    ),
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


def _of_each_microbatch(found, right, gradients, scale):
    said = share_of_each(
        found,
        {f"microbatch {n}": torch.tensor(gradient) for n, gradient in enumerate(gradients, 1)},
        1 / len(gradients),
    )
    return said and f"{said}: divide the sum by the scale once, after the last backward."


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
    errors=(
        (
            "'function'",
            "Each loss is a function of the weight: loss(weight) runs its forward, in fp16.",
        ),
    ),
    properties=(_of_the_scale, _of_each_microbatch),
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


def _steps_where(bad, sentence):
    """A property: all ranks step although some have overflowed, in cases of this kind. `bad` gets
    the ranks that have, each with its gradient, and the number of ranks."""

    def asked(found, right, gradients):
        have = {k: g for k, g in enumerate(gradients) if not all(map(math.isfinite, g))}
        if set(found) == {True} and have and bad(have, len(gradients)):
            said = " and ".join(f"rank {k} has {values}" for k, values in have.items())
            return f"{said}, and all {len(gradients)} ranks step. {sentence}"

    return asked


def _all_elements(have):
    return [value for values in have.values() for value in values]


def _decides_alone(found, right, gradients):
    if len(set(found)) > 1:
        return (
            f"each rank decides by its own shard: rank {found.index(True)} steps and rank"
            f" {found.index(False)} skips. From then on half of the model is a step ahead, and the"
            " ranks divide by different scales. Add up the flags of all ranks first."
        )


def _skips_a_good_step(found, right, gradients):
    if any(found) or not right[0] or max(max(gradients)) < 1e38:
        return None
    if max(map(sum, gradients)) > 3.4e38:
        return (
            "a sum of finite numbers may overflow, so this skips a good step. Ask each element, or"
            " the largest and the smallest."
        )
    return (
        "the gradients are added up, and each rank's are of other elements; the sum of large"
        " finite numbers may overflow besides. Sum the flags."
    )


def _no_decision(found, right, gradients):
    if any(type(one) is not bool for one in found):
        kind = type(found[0]).__name__
        return f"True or False is wanted, and a rank returns a {kind}: compare the sum with 0."


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
    properties=(
        _no_decision,
        _decides_alone,
        _skips_a_good_step,
        _steps_where(
            lambda have, n: 0 not in have,
            "That is rank 0's flag for all: an overflow elsewhere goes unseen. Sum the flags of all"
            " ranks.",
        ),
        _steps_where(
            lambda have, n: not any(map(math.isinf, _all_elements(have))),
            "An infinity minus an infinity is NaN, and NaN is not infinite: ask what is finite.",
        ),
        _steps_where(
            lambda have, n: not any(map(math.isnan, _all_elements(have))),
            "That finds NaN and steps with infinities: ask what is finite.",
        ),
        _steps_where(
            lambda have, n: len(have) < n,
            "It skips only if all ranks have found an overflow, or more than one rank, and one is"
            " enough: the gradient is one tensor, of which each rank has a part.",
        ),
        _steps_where(
            lambda have, n: len(have) > 1,
            "It skips if exactly one rank has found an overflow, and two or more are worse: any"
            " number but 0 skips.",
        ),
        _steps_where(
            lambda have, n: all(any(map(math.isfinite, values)) for values in have.values()),
            "It asks whether any element is finite. One element is enough to spoil a step:"
            " isfinite().all().",
        ),
    ),
    errors=(
        (
            "'bool' object|'float' object|wants a tensor",
            "all_reduce sums a tensor, not a Python number: torch.tensor([float(overflow)]).",
        ),
        (
            "nobody can go on",
            "Every rank takes part in each all_reduce, also one that has found nothing: call it"
            " before any if.",
        ),
    ),
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


def _first_wrong_scale(found, right, events, interval):
    """The first step after which the scale is wrong, and what happened since it last changed."""
    k = next(k for k, pair in enumerate(zip(found, right)) if not same(*pair))
    before, mine = right[k - 1] if k else 1024.0, found[k]
    told = (
        f"of the steps {events}, step {k + 1}: the scale of {before:g} is to become {right[k]:g},"
        f" and yours is {mine:g}:"
    )
    if events[k] == "x":
        return (
            f"{told} halve it. A scale that never falls skips every step from then; and a skipped"
            " step that counts as a good one halves and doubles it at once."
        )
    skipped = events[:k].rfind("x") >= max(k - interval, 0)
    if skipped:
        return (
            f"{told} the count goes on after a skip, or a skipped step counts as a good one. The"
            " interval counts good steps in a row: after an overflow begin at 0."
        )
    if mine > right[k]:
        return (
            f"{told} it grows early, or in every step once the interval is full: count {interval}"
            " good steps, and begin to count anew after it has grown."
        )
    if max(found) > before:
        return (
            f"{told} it grows one step late: after `interval` good steps, and not after one more."
        )
    if before > right[0]:
        return f"{told} it grows once and never again: begin to count anew after it has grown."
    return (
        f"{told} it never grows, so one bad batch keeps the scale low forever, and small gradients"
        " die: each good step counts."
    )


scale_after_a_step = topic.exercise(
    "scale_after_a_step",
    next_scale,
    cases=tuple(dict(events=events, interval=3) for events in _EVENTS),
    words=tuple(f"steps {events}, where x overflows, and an interval of 3" for events in _EVENTS),
    answer=_history,
    properties=(_first_wrong_scale,),
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
    if not isinstance(result, torch.Tensor):
        return result
    return _Averaged([round(value, 6) for value in result.float().tolist()], wire.sent_bytes)


def mean_over_ranks(gradient, ranks, all_reduce):
    gradient = gradient / ranks
    all_reduce(gradient)
    return gradient


def _of_the_mean(found, right, gradients):
    n, mean = len(gradients), found.mean
    if same(mean, right.mean):
        return (
            f"right, and {found.bytes_sent} bytes travel instead of {right.bytes_sent}, as in fp32:"
            " the division alone keeps fp16 in range."
        )
    if not found.bytes_sent:
        return "nothing was sent: each rank has a share of its own gradient, or all of it."
    if math.isinf(mean[0]):
        return (
            f"the sum is infinite: fp16 ends at 65,504, and {n} x {gradients[0][0]:,.0f} is more."
            " The mean would have fitted. Divide first: before the sum, and not after it."
        )
    if same(mean, [one / n for one in right.mean]):
        return "divided before the sum and after it: once is enough."
    if same(mean, gradients[0]) or same(mean, [one / n for one in gradients[0]]):
        return (
            "something was sent, and each rank returns its own gradient, or a share of it:"
            " all_reduce works in place, so return the tensor that it was given."
        )


mean_that_fits = topic.exercise(
    "mean_that_fits",
    mean_over_ranks,
    cases=(
        dict(gradients=([40_000.0, 1.0], [40_000.0, 3.0])),
        dict(gradients=([30_000.0, -8.0], [30_000.0, 0.0], [30_000.0, 4.0], [30_000.0, 4.0])),
    ),
    words=("2 ranks, gradients of 40,000", "4 ranks, gradients of 30,000"),
    answer=_averaged,
    properties=(_of_the_mean,),
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


_ALL_ROWS = {
    (2, 2, 0, 4): "half of everything, 8 bytes a parameter: that is bf16 without a master copy, in"
    " which small updates are lost. Mixed precision keeps the master and both moments in fp32.",
    (4, 4, 0, 8): "that is fp32, or autocast, which keeps fp32 weights: the same 16 bytes, divided"
    " differently. Here the model has 16 bits.",
    (16, 16, 32, 64): "those are bits. A 16-bit number takes 2 bytes.",
}
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


def _of_each_row(found, right, count):
    each = [value / count for value in found]
    if tuple(each) in _ALL_ROWS:
        return _ALL_ROWS[tuple(each)]
    if same(each, [each[0] * wanted / right[0] * count for wanted in right]):
        return f"each is {each[0] / 2:g} times what it should be: bytes are wanted."
    said = [
        f"{each[k]:g} bytes for {name}: {_ROWS[name]}"
        for k, name in enumerate(_States._fields)
        if not same(found[k], right[k])
    ]
    return f"{'; '.join(said)}."


which_bytes_halve = topic.exercise(
    "which_bytes_halve",
    state_bytes,
    cases=(dict(count=1), dict(count=124_439_808)),
    answer=_rows,
    properties=(_of_each_row,),
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


def _of_the_clipping(found, right, steps, scale):
    mine, theirs = found.norms[0], right.norms[0]
    if any(isinstance(value, str) for value in found.weight):
        return (
            "optimizer.step() goes past the scaler, which would have skipped the step that"
            " overflowed: from then on the weights are NaN."
        )
    if not (isinstance(mine, float) and isinstance(theirs, float)):
        return None
    if same(found.weight, right.weight) and mine > theirs:
        return (
            "the step is right, and the norm is still that of scaled gradients, which tells a"
            " reader nothing: unscale first, and clip to 1."
        )
    if mine > 100 * theirs:
        return (
            "the norm that comes back shows the fault: it is in the hundreds of thousands. The"
            " gradients that were clipped to 1 still carry the scale, and dividing by the scale"
            " then leaves next to nothing: SGD stands still, and Adam, which is nearly blind to a"
            " factor, hides it. Unscale first, then clip."
        )
    if 0 < mine < theirs / 100:
        return "the gradients are divided twice by the scale: unscale_() is enough, step() knows."
    if same(found.weight, _START.tolist()):
        return (
            "nothing steps: scaler.step(optimizer) is missing, or the gradients are cleared"
            " before it."
        )
    if not mine:
        return "nothing is clipped, and the norm is not looked at."
    if same(found.weight, right.weight):
        return "the step is right; return the norm before clipping: clip_grad_norm_ returns that."


clip_what_was_unscaled = topic.exercise(
    "clip_what_was_unscaled",
    cases=(dict(steps=6, scale=2.0**16), dict(steps=5, scale=2.0**127)),
    words=("6 steps, a scale of 2^16", "5 steps, a scale of 2^127, with which the first overflow"),
    answer=_trained,
    hint="The scaler divides by its scale inside step(), unless somebody has asked for"
    " that before. Which gradients is the norm to be of?",
    properties=(_of_the_clipping,),
    errors=(
        ("second time", "unscale_() twice would divide by the scale twice: once for each step."),
        ("not iterable", "clip_grad_norm_ wants the parameters, not their optimizer."),
        (
            "no attribute 'unscale'",
            "The method works in place, and its name says so: scaler.unscale_(optimizer).",
        ),
        (
            "no attribute 'get_scale'",
            "This scaler is the package's LossScaler, and nobody needs its scale here: unscale"
            " the gradients before they are clipped.",
        ),
    ),
    right="unscale, clip, step, update: clipping sees gradients of their true size.",
)


# --- two ranks of one's own -----------------------------------------------------------------------


def _of_two_scales(found, right):
    if len(found) != 2:
        return f"those are {len(found)}: run() hands back a list of two, hand over all of it."
    if found == [1024.0, 512.0]:
        return (
            "rank 0 has not heard of the overflow, so its scaler is in a group of its own: leave"
            " `group` away."
        )
    if found == [512.0, 1024.0]:
        return "the other way round: rank 1 was to overflow, and all to hear it."
    if min(found) == 1024:
        return (
            "nothing has overflowed: a gradient of 1e38 times the scale is infinite; or nobody"
            " called update()."
        )
    if max(found) > 1024:
        return "a scale has grown: it starts at 1,024, and two steps are too few for it to double."
    if max(found) == 256:
        return "both steps have overflowed: the second was to be good."


scales_of_two_ranks = topic.exercise(
    "scales_of_two_ranks",
    [512.0, 512.0],
    name="the list",
    cases=({},),
    answer=lambda found: [float(scale) for scale in found()],
    of_a_value=True,
    hint="ranks(2) starts two ranks, in a with block. Each makes a parameter and a LossScaler, and"
    " 1e38 times 1,024 is more than fp32 holds.",
    properties=(_of_two_scales,),
    errors=(
        (
            "not iterable",
            "A scale for each rank is wanted, a list, as run() hands it back.",
        ),
        (
            "float\\(\\) argument",
            "A scale for each rank is wanted: scaler.factor.item() after the second step.",
        ),
    ),
    right="both have skipped, and both divide by 512 from now on: one overflow is everybody's.",
)
