"""Things that readers of the lab build: a loss scaler, and an update through fp32 copies."""

import math

import torch
from torch import nn

from coursekit.exercises.checker import Exercise, Misconception

INTERVAL = 3  # good steps until the scale doubles, in the check
INF = float("inf")
NAN = float("nan")


# --- a loss scaler --------------------------------------------------------------------------------


def _scaled_steps(solution, rounds):
    """The story of a run: after each step its scale and its good steps, the finite gradients that
    the update saw, and how many updates there were. `rounds` has the unscaled gradients: of each,
    its first element, or both."""
    scale, good_steps, updates, story = 8.0, 0, [], []
    for values in rounds:
        gradients = [
            torch.tensor(each if isinstance(each, tuple) else [each, 0.125]) * scale
            for each in values
        ]

        def update(gradients=gradients):
            updates.append([round(v, 9) for g in gradients for v in g.tolist() if math.isfinite(v)])

        result = solution(gradients, scale, good_steps, update, INTERVAL)
        if result is None or result is ...:
            return result
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            raise TypeError("it is to return two values, the next scale and the good steps.")
        scale, good_steps = (
            float(found) if place == 0 else int(found) for place, found in enumerate(result)
        )
        story.append((scale, good_steps))
    return story, updates


def _scaler(
    finite=torch.isfinite,
    look_at=slice(None),
    unscale=lambda g, scale: g.div_(scale),
    steps_anyway=False,
    after_overflow=lambda scale, good: (scale / 2, 0),
    after_growth=lambda scale, good: (2 * scale, 0),
    reached=lambda good, interval: good == interval,
    found=lambda finite, all_of: all(all_of(each) for each in finite),
    unscale_first=True,
    calls=True,
    counts=1,
):
    def scaler_step(gradients, scale, good_steps, update, interval):
        overflow = not found([finite(g) for g in gradients[look_at]], torch.all)
        if not overflow or unscale_first:
            for g in gradients:
                unscale(g, scale)
        if overflow:
            if steps_anyway:
                update()
            return after_overflow(scale, good_steps)
        if calls:
            update()
        good_steps += counts
        if reached(good_steps, interval):
            return after_growth(scale, good_steps)
        return scale, good_steps

    return scaler_step


def _divided_by_the_next(gradients, scale, good_steps, update, interval):
    if not all(g.isfinite().all() for g in gradients):
        return scale / 2, 0
    good_steps += 1
    if good_steps == interval:
        scale, good_steps = 2 * scale, 0
    for g in gradients:
        g.div_(scale)
    update()
    return scale, good_steps


def _turned_looks(gradients, scale, good_steps, update, interval):
    if all(g.isfinite().all() for g in gradients):
        return scale / 2, 0
    for g in gradients:
        g.div_(scale)
    update()
    good_steps += 1
    return (2 * scale, 0) if good_steps == interval else (scale, good_steps)


def _without_a_skip_in_the_count(scale, good):
    return scale / 2, good


_GOOD, _INF, _NAN = [0.5, 0.25], [0.5, INF], [NAN, 0.25]
scaler_step_of_a_loop = Exercise(
    name="scaler_step",
    reference=_scaler(),
    cases=(
        dict(rounds=[_GOOD]),
        dict(rounds=[_GOOD, _INF, _GOOD, _GOOD, _GOOD, _GOOD]),
        dict(rounds=[_NAN, _GOOD, _GOOD, _GOOD, _GOOD]),
        dict(rounds=[[INF, 0.25], [INF, 0.25], [-INF, 0.25]]),
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
    misconceptions=(
        Misconception(
            _scaler(steps_anyway=True),
            "the update runs although a gradient has overflowed, and the weights become infinite or"
            " NaN, which no later step mends. Skip the update.",
        ),
        Misconception(
            _scaler(unscale=lambda g, scale: g.div(scale)),
            "the update sees gradients that are still multiplied by the scale. With SGD that is a"
            " learning rate of 65,536 times yours. Divide before update(), and in place,"
            " g.div_(scale): g / scale is a new tensor, which nobody reads.",
        ),
        Misconception(
            _scaler(unscale=lambda g, scale: g.mul_(scale)),
            "multiplied a second time. The loss was multiplied before backward; gradients are to be"
            " divided.",
        ),
        Misconception(
            _scaler(finite=lambda g: ~g.isinf()),
            "an overflow may also be NaN: infinity minus infinity, say. isfinite() is false for"
            " both.",
        ),
        Misconception(
            _scaler(finite=lambda g: ~g.isnan()),
            "isnan() alone misses infinity, which is what an overflow gives first. isfinite() is"
            " false for both.",
        ),
        Misconception(
            _scaler(finite=lambda g: g.sum().isfinite()),
            "a sum of finite numbers may overflow, so this skips a good step. Ask each element:"
            " isfinite().all().",
        ),
        Misconception(
            _scaler(look_at=slice(0, 1)),
            "you look at the first gradient only. One element of one gradient is enough to spoil"
            " the update: look at all.",
        ),
        Misconception(
            _scaler(after_overflow=lambda scale, good: (scale, 0)),
            "skipped, and the scale stays: the next step overflows as well, and every one after it."
            " Halve the scale.",
        ),
        Misconception(
            _scaler(after_overflow=_without_a_skip_in_the_count),
            "the count of good steps goes on after a skip, so the scale grows back too early and"
            " overflows again. They have to be good in a row: begin at 0.",
        ),
        Misconception(
            _scaler(after_overflow=lambda scale, good: (scale / 2, good + 1)),
            "a skipped step counts as a good one, but is not: begin at 0 again.",
        ),
        Misconception(
            _scaler(after_overflow=lambda scale, good: (2 * scale, 0)),
            "the scale grows after an overflow. Then the next one overflows for certain: halve it.",
        ),
        Misconception(
            _scaler(after_growth=lambda scale, good: (2 * scale, good)),
            "the scale has doubled and the count goes on: it never doubles again, because it has"
            " passed the interval. Begin at 0.",
        ),
        Misconception(
            _scaler(after_growth=lambda scale, good: (scale, good)),
            "the scale never grows. Gradients shrink while a model learns, and a scale that only"
            " falls ends too low: double it after the interval.",
        ),
        Misconception(
            _divided_by_the_next,
            "where the scale has just doubled, the gradients are divided by the new one. This"
            " step's loss was multiplied by the old one: divide, update, and double then.",
        ),
        Misconception(
            _scaler(
                reached=lambda good, interval: True,
                after_growth=lambda scale, good: (2 * scale, good),
            ),
            "the scale doubles after every good step: after `interval` of them in a row.",
        ),
        Misconception(
            _scaler(reached=lambda good, interval: good > interval),
            "doubled one step too late: after `interval` good steps, and this was the one after.",
        ),
        Misconception(
            _scaler(steps_anyway=True, unscale_first=False),
            "the update runs although a gradient has overflowed, and the weights become infinite"
            " or NaN, which no later step mends. Skip the update, and do not even divide.",
        ),
        Misconception(
            _scaler(found=lambda finite, all_of: any(all_of(each) for each in finite)),
            "it skips only if every gradient has overflowed, or every element of one. One element"
            " is enough to spoil the update: any(...) of them not finite.",
        ),
        Misconception(
            _scaler(calls=False),
            "update() was never called: the gradients are divided, and nobody takes the step.",
        ),
        Misconception(
            _scaler(counts=0),
            "the good steps are not counted, so the scale never doubles: good_steps + 1 after"
            " each.",
        ),
        Misconception(
            lambda *given: _scaler()(*given)[::-1],
            "the two numbers come back in the other order: first the next scale, then the number"
            " of good steps.",
        ),
        Misconception(
            _turned_looks,
            "the two are exchanged, the other way round: a good step is skipped, and one that"
            " has overflowed updates.",
        ),
    ),
    right="looked at, divided in place, skipped and halved, doubled after a run of good steps: the"
    " rule of GradScaler.",
)


# --- an update through masters --------------------------------------------------------------------


def _updated(solution, steps, size):
    """Weights, copies and gradients left after some steps of SGD, of that size, on bf16 weights."""
    parameters = [nn.Parameter(torch.tensor(v, dtype=torch.bfloat16)) for v in ([1.0, -2.0], [3.0])]
    masters = [p.detach().float() for p in parameters]
    optimizer = torch.optim.SGD(masters, lr=1.0)
    for _ in range(steps):
        for p in parameters:
            gradient = torch.full_like(p, size)
            p.grad = gradient if p.grad is None else p.grad + gradient
        if solution(list(parameters), list(masters), optimizer) is ...:
            return ...
    return [
        (
            [round(value, 9) for value in p.detach().float().tolist()],
            [round(value, 9) for value in master.tolist()],
            str(p.dtype),
            "no gradient"
            if p.grad is None
            else "a gradient of zeros"
            if not p.grad.any()
            else "a gradient",
        )
        for p, master in zip(parameters, masters)
    ]


def _through_masters(begin=None, take=None, back=None, clear=True, step=True, then=None):
    def update(parameters, masters, optimizer):
        with torch.no_grad():
            for p, master in zip(parameters, masters):
                if begin is not None:
                    begin(p, master)
                (take or _take)(p, master)
                if clear:
                    p.grad = None
                if then:
                    then(p, master)
            if step:
                optimizer.step()
            for p, master in zip(parameters, masters):
                (back or _copy_back)(p, master)

    return update


def _take(p, master):
    master.grad = p.grad.float()


def _copy_back(p, master):
    p.copy_(master)


def _add_up(p, master):
    master.grad = p.grad.float() if master.grad is None else master.grad + p.grad.float()


def _change_the_type(p, master):
    p.data = master.clone()


def _round_the_master(p, master):
    p.copy_(master)
    master.copy_(p)


def _without_masters(parameters, masters, optimizer):
    with torch.no_grad():
        for p in parameters:
            p.sub_(p.grad)
            p.grad = None


def _late_step(parameters, masters, optimizer):
    _through_masters(step=False)(parameters, masters, optimizer)
    optimizer.step()


def _early_step(parameters, masters, optimizer):
    optimizer.step()
    _through_masters(step=False)(parameters, masters, optimizer)


def _first_alone(parameters, masters, optimizer):
    for p, master in zip(parameters, masters):
        _take(p, master)
        p.grad = None
    optimizer.step()
    with torch.no_grad():
        parameters[0].copy_(masters[0])


update_through_masters = Exercise(
    name="update",
    reference=_through_masters(),
    cases=(dict(steps=1, size=0.75), dict(steps=1, size=2.0**-10), dict(steps=8, size=2.0**-10)),
    words=("one large step", "one small step", "eight steps, each too small for a bf16 weight"),
    answer=_updated,
    hint="An update smaller than half a step between two bf16 numbers is lost. Which"
    " tensor is to take it, and which only gets a copy?",
    misconceptions=(
        Misconception(
            _through_masters(begin=lambda p, master: master.copy_(p)),
            "the copies are made anew from the rounded weights in every step, so what rounding took"
            " away is gone each time. A copy has to live from step to step.",
        ),
        Misconception(
            _through_masters(back=_round_the_master),
            "the copies take the rounded weights back, and lose what rounding took away. The way"
            " goes from the copy to the weight only.",
        ),
        Misconception(
            _through_masters(back=lambda p, master: None),
            "the copies move and the model does not: it computes with the old weights forever."
            " Copy each master into its parameter, p.copy_(master): a new tensor in the list is not"
            " the model's.",
        ),
        Misconception(
            _through_masters(back=_change_the_type),
            "the parameters are fp32 now: p.data = ... replaces the tensor, and the next forward"
            " computes in fp32. p.copy_(master) rounds and keeps the type.",
        ),
        Misconception(
            _through_masters(clear=False),
            "p.grad is still there, so the next backward adds to it, and old gradients count again."
            " Take it away: p.grad = None.",
        ),
        Misconception(
            _through_masters(take=_add_up),
            "master.grad keeps the gradients of earlier steps, and adds to them. Set it anew in"
            " each step.",
        ),
        Misconception(
            _without_masters,
            "you update the bf16 weights themselves, and the steps are lost in rounding. The"
            " optimizer updates the masters.",
        ),
        Misconception(
            _through_masters(step=False),
            "neither copies nor weights have moved: nobody called optimizer.step(), or the masters"
            " have no gradients when it is called, or the copies are made anew after it.",
        ),
        Misconception(
            lambda parameters, masters, optimizer: optimizer.step(),
            "the masters have no gradients, so the optimizer leaves them alone. Give each of them"
            " its parameter's, in fp32.",
        ),
        Misconception(
            _through_masters(clear=False, then=lambda p, master: p.grad.zero_()),
            "p.grad is zero, and still there, with its memory: the next backward adds to it."
            " Afterwards no parameter has a gradient: p.grad = None.",
        ),
        Misconception(
            _late_step,
            "the weights are copied before the step, so they are one step behind their masters:"
            " first optimizer.step(), then copy.",
        ),
        Misconception(
            _early_step,
            "optimizer.step() comes before the masters have this step's gradients: first"
            " master.grad = parameter.grad.float(), then the step.",
        ),
        Misconception(
            _first_alone, "the first parameter alone follows its master: zip all of them."
        ),
    ),
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
