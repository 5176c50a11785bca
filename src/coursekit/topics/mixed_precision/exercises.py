"""Chapter 9: mixed precision. What readers write runs in this process, on tensors of a few
elements; the ranks are thread ranks: no check can hang."""

import math

import torch
from torch import nn

from coursekit.exercises.checker import Exercise, Failure, Misconception
from coursekit.exercises.thread_ranks import value_of_ranks
from coursekit.topics.mixed_precision.building import scaler_step_of_a_loop as scaler_step_of_a_loop
from coursekit.topics.mixed_precision.building import (
    update_through_masters as update_through_masters,
)
from shardlab.mixed_precision import LossScaler


def _digits(tensor):
    """The elements; text where they are not finite, since NaN does not equal NaN."""
    values = tensor.double().flatten().tolist()
    return [float(f"{v:.9g}") if math.isfinite(v) else str(v) for v in values]


# --- unscale once, however many microbatches ------------------------------------------------------


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


def _accumulate(each=None, after=None, share=lambda losses: len(losses), scaled=True):
    def gradients_of(weight, losses, scale):
        for loss in losses:
            value = loss(weight) / share(losses)
            (value * scale if scaled else value).backward()
            if each:
                weight.grad /= each(scale, len(losses))
        if after:
            weight.grad /= after(scale, len(losses))

    return gradients_of


_TINY = 2.0**-23  # divided by 4 microbatches it is zero in fp16
unscale_once = Exercise(
    name="gradients_of",
    reference=_accumulate(after=lambda scale, k: scale),
    cases=(
        dict(gradients=[[_TINY, 1.0], [_TINY, 2.0], [_TINY, 3.0], [_TINY, 6.0]], scale=2.0**10),
        dict(gradients=[[3.0, -_TINY], [5.0, _TINY / 2]], scale=2.0**8),
    ),
    words=("4 microbatches, a scale of 2^10", "2 microbatches, a scale of 2^8"),
    answer=_accumulated,
    misconceptions=(
        Misconception(
            _accumulate(each=lambda scale, k: scale),
            "divided by the scale after every microbatch: the first one's gradient has been divided"
            " k times, and only the last one counts. Nothing raises, and the loss falls a little"
            " more slowly. Divide once, after the last backward.",
        ),
        Misconception(
            _accumulate(),
            "the gradients are still larger by the scale: Adam hides it, SGD explodes.",
        ),
        Misconception(
            _accumulate(scaled=False),
            "without the scale the small gradients are zero: they pass through fp16, where nothing"
            " of 2^-25 or less is left.",
        ),
        Misconception(
            _accumulate(scaled=False, after=lambda scale, k: scale),
            "divided by a scale that the loss was never multiplied by.",
        ),
        Misconception(
            _accumulate(share=lambda losses: 1, after=lambda scale, k: scale),
            "the sum over the microbatches, and not their mean: divide each loss by their number.",
        ),
        Misconception(
            _accumulate(after=lambda scale, k: scale * k),
            "divided by the number of microbatches twice: in the losses, and with the scale.",
        ),
        Misconception(
            _accumulate(after=lambda scale, k: scale**k),
            "divided by the scale once for each microbatch. A sum of k scaled gradients is scaled"
            " once.",
        ),
    ),
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


def _may_step(own=lambda g: not g.isfinite().all(), reduce=True, most=True, invert=True):
    def may_step(gradient, dist):
        flag = torch.as_tensor(own(gradient), dtype=torch.float32).reshape(1)
        if reduce:
            dist.all_reduce(flag)
        found = flag.item() > 0 if most else flag.item() >= dist.get_world_size()
        return not found if invert else found

    return may_step


def _reduced_gradient(gradient, dist):
    dist.all_reduce(gradient)
    return bool(gradient.isfinite().all())


def _flags(gradient, dist):
    flag = torch.tensor([float(not gradient.isfinite().all())])
    dist.all_reduce(flag)
    return flag.item()


def _exactly_one(gradient, dist):
    return _flags(gradient, dist) != 1


def _most_of_them(gradient, dist):
    return _flags(gradient, dist) <= dist.get_world_size() / 2


def _of_rank_0(gradient, dist):
    flag = torch.tensor([float(not gradient.isfinite().all())])
    dist.broadcast(flag, 0)
    return flag.item() == 0


_INF, _NAN = math.inf, math.nan
found_on_one_rank = Exercise(
    name="may_step",
    reference=_may_step(),
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
    misconceptions=(
        Misconception(
            _may_step(reduce=False),
            "each rank decides by its own shard: one skips and one steps. From then on half of the"
            " model is a step ahead, and the ranks divide by different scales. Add up the flags of"
            " all ranks first.",
        ),
        Misconception(
            _may_step(most=False),
            "it skips only if all ranks have found an overflow. One is enough: the gradient is one"
            " tensor, of which each rank has a part.",
        ),
        Misconception(
            _may_step(own=lambda g: g.isinf().any()),
            "an infinity minus an infinity is NaN, and NaN is not infinite: ask what is finite.",
        ),
        Misconception(
            _may_step(own=lambda g: g.isnan().any()),
            "that finds NaN and steps with infinities: ask what is finite.",
        ),
        Misconception(
            _may_step(own=lambda g: not g.sum().isfinite()),
            "a sum of finite numbers may overflow, so this skips a good step. Ask each element, or"
            " the largest and the smallest.",
        ),
        Misconception(
            _may_step(invert=False),
            "the other way round: True means that the step may be made.",
        ),
        Misconception(
            _reduced_gradient,
            "the gradients are added up, and each rank's are of other elements; the sum of large"
            " finite numbers may overflow besides. Sum the flags.",
        ),
        Misconception(
            _may_step(own=lambda g: not g.isfinite().any()),
            "it asks whether any element is finite. One element is enough to spoil a step:"
            " isfinite().all().",
        ),
        Misconception(
            _may_step(own=lambda g: g.isfinite().all()),
            "your flag says that all is well, and its sum is taken for the opposite: let 1 mean"
            " overflow.",
        ),
        Misconception(
            _exactly_one,
            "that skips if exactly one rank has found an overflow, and two or more are worse:"
            " any number but 0 skips.",
        ),
        Misconception(
            lambda gradient, dist: True,
            "it always says yes: with an overflow the step must not be made. (all_reduce returns"
            " nothing: after flag = dist.all_reduce(flag) the flag is None.)",
        ),
        Misconception(
            lambda gradient, dist: False,
            "no step is ever made: where all gradients are finite, make the step. (all_reduce"
            " returns nothing: after flag = dist.all_reduce(flag) the flag is None, and None is not"
            " 0.)",
        ),
        Misconception(
            _most_of_them,
            "it skips only if more than one rank, or more than half of them, has found an"
            " overflow, and one is enough.",
        ),
        Misconception(
            _of_rank_0,
            "that is rank 0's flag for all: an overflow elsewhere goes unseen. Sum the flags of"
            " all ranks.",
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

_EVENTS = ("..x...x", ".....", "x.x..x..", "....x....")


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


def _next_scale(reset_at_skip=True, reset_at_growth=True, grow_at=lambda good, n: good >= n):
    def next_scale(scale, good_steps, overflow, interval):
        if overflow:
            return scale / 2, 0 if reset_at_skip else good_steps
        good_steps += 1
        if grow_at(good_steps, interval):
            return scale * 2, 0 if reset_at_growth else good_steps
        return scale, good_steps

    return next_scale


def _counts_skips(scale, good_steps, overflow, interval):
    good_steps += 1
    if overflow:
        scale, good_steps = scale / 2, good_steps
    if good_steps >= interval:
        return scale * 2, 0
    return scale, good_steps


def _never_down(scale, good_steps, overflow, interval):
    return (scale, 0) if overflow else _next_scale()(scale, good_steps, overflow, interval)


def _never_up(scale, good_steps, overflow, interval):
    return (scale / 2, 0) if overflow else (scale, good_steps + 1)


scale_after_a_step = Exercise(
    name="next_scale",
    reference=_next_scale(),
    cases=tuple(dict(events=events, interval=3) for events in _EVENTS),
    words=tuple(f"steps {events}, where x overflows, and an interval of 3" for events in _EVENTS),
    answer=_history,
    misconceptions=(
        Misconception(
            _next_scale(reset_at_skip=False),
            "the count of good steps goes on after a skip, so the scale grows again right after it"
            " has fallen, and the next step overflows: more steps are skipped. The interval counts"
            " good steps in a row.",
        ),
        Misconception(
            _counts_skips,
            "a step that was skipped counts as a good one: the scale halves and doubles in one"
            " step.",
        ),
        Misconception(
            _next_scale(reset_at_growth=False),
            "once the interval is full, the scale doubles in every step: begin to count anew after"
            " it has grown.",
        ),
        Misconception(
            _next_scale(grow_at=lambda good, n: good > n),
            "it grows one step late: after `interval` good steps, and not after one more.",
        ),
        Misconception(
            _never_down, "it never falls, so a scale that is too large skips every step from then."
        ),
        Misconception(
            _never_up,
            "it never grows, so one bad batch keeps the scale low forever, and small gradients"
            " die.",
        ),
    ),
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


def _averaged(solution, gradients):
    """(the mean, bytes sent) on the first rank, where all ranks run the solution."""
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
    return [round(value, 6) for value in result.float().tolist()], wire.sent_bytes


def _mean(before=True, after=False, wide=False):
    def mean_over_ranks(gradient, ranks, all_reduce):
        gradient = gradient.float() if wide else gradient
        if before:
            gradient = gradient / ranks
        all_reduce(gradient)
        if after:
            gradient = gradient / ranks
        return gradient.half() if wide else gradient

    return mean_over_ranks


def _no_sum(gradient, ranks, all_reduce):
    return gradient / ranks


mean_that_fits = Exercise(
    name="mean_over_ranks",
    reference=_mean(),
    cases=(
        dict(gradients=([40_000.0, 1.0], [40_000.0, 3.0])),
        dict(gradients=([30_000.0, -8.0], [30_000.0, 0.0], [30_000.0, 4.0], [30_000.0, 4.0])),
    ),
    words=("2 ranks, gradients of 40,000", "4 ranks, gradients of 30,000"),
    answer=_averaged,
    misconceptions=(
        Misconception(
            _mean(before=False, after=True),
            "the sum is infinite before it is divided: fp16 ends at 65,504, and 2 x 40,000 is more."
            " The mean would have fitted. Divide first.",
        ),
        Misconception(
            _mean(wide=True),
            "right, and fp32 travels: twice the bytes, where the division alone keeps fp16 in"
            " range.",
        ),
        Misconception(
            _mean(before=False), "that is the sum, and it is infinite: the mean is wanted."
        ),
        Misconception(_mean(after=True), "divided before the sum and after it."),
        Misconception(_no_sum, "nothing was sent: each rank has a share of its own gradient."),
    ),
    right="each rank sends its share of the mean, and no partial sum is larger than the mean can"
    " be.",
)


# --- which bytes halve ----------------------------------------------------------------------------


def _bytes(parameters=2, gradients=2, master=4, moments=8, times=1):
    def state_bytes(count):
        each = dict(parameters=parameters, gradients=gradients, master=master, moments=moments)
        return {name: bytes_ * count * times for name, bytes_ in each.items()}

    return state_bytes


def _rows(solution, count):
    result = solution(count)
    if not isinstance(result, dict):
        return result
    wanted = ("parameters", "gradients", "master", "moments")
    if missing := [name for name in wanted if name not in result]:
        raise KeyError(
            f"{', '.join(missing)}: the dictionary has parameters, gradients, master, moments"
        )
    if any(result[name] is ... for name in wanted):
        return ...
    return [result[name] for name in wanted]


which_bytes_halve = Exercise(
    name="state_bytes",
    reference=_bytes(),
    cases=(dict(count=1), dict(count=124_439_808)),
    answer=_rows,
    misconceptions=(
        Misconception(
            _bytes(gradients=2, master=0, moments=4),
            "half of everything, 8 bytes a parameter: that is bf16 without a master copy, in"
            " which small updates are lost. Mixed precision keeps the master and both moments in"
            " fp32.",
        ),
        Misconception(
            _bytes(master=0),
            "without a master copy the optimizer updates 16-bit weights: an update below half of"
            " their spacing is lost.",
        ),
        Misconception(
            _bytes(moments=4),
            "one moment is forgotten, or both are in 16 bits. Adam has two, and both are fp32"
            " here.",
        ),
        Misconception(
            _bytes(parameters=4, gradients=4, master=0),
            "that is fp32, or autocast, which keeps fp32 weights: the same 16 bytes, divided"
            " differently. Here the model has 16 bits.",
        ),
        Misconception(
            _bytes(gradients=4),
            "gradients have the type of their parameters: 2 bytes. A run that adds gradients up"
            " in fp32 has 4, and 18 bytes in all.",
        ),
        Misconception(
            _bytes(parameters=4),
            "forward and backward compute with 16-bit parameters, 2 bytes; the 4 are the master's.",
        ),
        Misconception(_bytes(times=8), "those are bits. A 16-bit number takes 2 bytes."),
    ),
    right="2 + 2 + 4 + 8 = 16, as many as in fp32. What halves is the parameters, the gradients,"
    " the activations and the traffic.",
)


# --- bug hunt: clip before unscale ----------------------------------------------------------------


def _trained(solution, steps, scale):
    """(norms that the step returned, the weight afterwards), of a line fitted by SGD."""
    weight = nn.Parameter(torch.tensor([4.0, -3.0]))
    optimizer = torch.optim.SGD([weight], lr=0.25)
    scaler = LossScaler(scale, growth_interval=2)
    aim, norms = torch.tensor([0.5, 0.25]), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (weight - aim).square().sum()
        scaler.scale(loss).backward()
        try:
            norm = solution([weight], optimizer, scaler)
        except Exception as error:
            return Failure.of(error)
        if not isinstance(norm, (float, torch.Tensor)):
            return norm
        norms.append(float(norm))
    return _digits(torch.tensor(norms)), _digits(weight)


def _clipping(unscale=True, clip=True, only_norm=False, max_norm=1.0, update=True):
    def finish_step(parameters, optimizer, scaler):
        norm = torch.tensor(0.0)
        if unscale:
            scaler.unscale_(optimizer)
        if clip:
            norm = torch.nn.utils.clip_grad_norm_(parameters, math.inf if only_norm else max_norm)
        scaler.step(optimizer)
        if update:
            scaler.update()
        return norm

    return finish_step


def _by_value(parameters, optimizer, scaler):
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(parameters, math.inf)
    torch.nn.utils.clip_grad_value_(parameters, 1.0)
    scaler.step(optimizer)
    scaler.update()
    return norm


def _limit_times_scale(parameters, optimizer, scaler):
    limit = scaler.scale(torch.tensor(1.0)).item()
    norm = torch.nn.utils.clip_grad_norm_(parameters, limit)
    scaler.step(optimizer)
    scaler.update()
    return norm


def _no_step(parameters, optimizer, scaler):
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    scaler.update()
    return norm


def _two_steps(parameters, optimizer, scaler):
    norm = _clipping()(parameters, optimizer, scaler)
    optimizer.step()
    return norm


def _past_the_scaler(parameters, optimizer, scaler):
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    scaler.update()
    return norm


clip_what_was_unscaled = Exercise(
    name="finish_step",
    reference=_clipping(),
    cases=(dict(steps=6, scale=2.0**16), dict(steps=5, scale=2.0**127)),
    words=("6 steps, a scale of 2^16", "5 steps, a scale of 2^127, with which the first overflow"),
    answer=_trained,
    hint="The scaler divides by its scale inside step(), unless somebody has asked for"
    " that before. Which gradients is the norm to be of?",
    misconceptions=(
        Misconception(
            _clipping(unscale=False),
            "the norm that comes back shows the fault: it is in the hundreds of thousands. The"
            " gradients that were clipped to 1 still carry the scale, and dividing by the scale"
            " then leaves next to nothing: SGD stands still, and Adam, which is nearly blind to a"
            " factor, hides it. Unscale first, then clip.",
        ),
        Misconception(_clipping(clip=False), "nothing is clipped, and the norm is not looked at."),
        Misconception(
            _clipping(only_norm=True),
            "the norm is right, and what steps is not clipped: the limit is 1, not the limit times"
            " the scale, and clipping comes before the step.",
        ),
        Misconception(
            _past_the_scaler,
            "optimizer.step() goes past the scaler, which would have skipped the step that"
            " overflowed: from then on the weights are NaN.",
        ),
        Misconception(
            _clipping(update=False),
            "without update() the scaler does not know that the step is over: the next unscale_()"
            " is refused, and the scale never moves. And the order is step before update.",
        ),
        Misconception(
            _by_value,
            "that clips each element by itself, which turns the gradient to another direction:"
            " clip_grad_norm_ scales all of it.",
        ),
        Misconception(
            _limit_times_scale,
            "the step is right, and the norm is still that of scaled gradients, which tells a"
            " reader nothing: unscale first, and clip to 1.",
        ),
        Misconception(
            _no_step,
            "nothing steps: scaler.step(optimizer) is missing, or the gradients are cleared"
            " before it.",
        ),
        Misconception(
            _two_steps,
            "it steps twice: optimizer.step() goes past the scaler, which has made the step, or"
            " has skipped it for a reason.",
        ),
    ),
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


def _scales(*of_ranks):
    return lambda: list(of_ranks)


scales_of_two_ranks = Exercise(
    name="the list",
    reference=_scales(512.0, 512.0),
    cases=({},),
    answer=lambda found: [float(scale) for scale in found()],
    of_a_value=True,
    hint="ranks(2) starts two ranks, in a with block. Each makes a parameter and a LossScaler, and"
    " 1e38 times 1,024 is more than fp32 holds.",
    misconceptions=(
        Misconception(
            _scales(1024.0, 512.0),
            "rank 0 has not heard of the overflow, so its scaler is in a group of its own: leave"
            " `group` away.",
        ),
        Misconception(
            _scales(512.0, 1024.0),
            "the other way round: rank 1 was to overflow, and all to hear it.",
        ),
        Misconception(
            _scales(1024.0, 1024.0),
            "nothing has overflowed: a gradient of 1e38 times the scale is infinite.",
        ),
        Misconception(
            _scales(256.0, 256.0), "both steps have overflowed: the second was to be good."
        ),
        Misconception(
            _scales(512.0), "that is one rank. run() hands back a list: hand over all of it."
        ),
    ),
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
