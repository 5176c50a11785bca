"""Are the parameters and the scale right, step by step?"""

import torch
from torch import nn

from coursekit.exercises.on_a_rank import demand, expect

from .given import (
    ASSIGNMENT,
    COMPARED_STEPS,
    MASTERS,
    SCALER,
    factor_of,
    give_gradients,
    parameters_of_all_kinds,
    scaled_step,
    stepped_by_hand,
    stepped_without_copies,
    words_of_kinds,
)


@ASSIGNMENT.trial("parity", MASTERS)
def steps_on_copies(mine):
    """bits of the parameters after 12 steps of SGD with momentum and of AdamW"""
    for kind, settings in (
        (torch.optim.SGD, dict(lr=1e-3, momentum=0.9)),
        (torch.optim.AdamW, dict(lr=1e-3)),
    ):
        parameters = parameters_of_all_kinds()
        optimizer = mine.MasterWeights(parameters, kind, **settings)
        for number in range(COMPARED_STEPS):
            give_gradients(parameters, number)
            optimizer.step()
            optimizer.zero_grad()
        wanted = stepped_by_hand(kind, COMPARED_STEPS, **settings)
        lost = stepped_without_copies(kind, COMPARED_STEPS, **settings)
        before = parameters_of_all_kinds()
        for place, name in enumerate(words_of_kinds(parameters)):
            expect(
                f"{name} after {COMPARED_STEPS} steps of {kind.__name__}",
                parameters[place],
                wanted[place],
                {
                    "The copies may be right: round them into the parameters after the update.": (
                        before[place].detach()
                    ),
                    "That is 16-bit training: updates smaller than half a spacing are lost. The"
                    " optimizer inside must update fp32 copies that live on.": lost[place],
                },
                close=0,
            )


@ASSIGNMENT.trial("parity", MASTERS)
def small_updates(mine):
    """a thousand updates of 0.0001 move a weight of 1 by 0.1"""
    weight = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = mine.MasterWeights([weight], torch.optim.SGD, lr=1e-4)
    for _ in range(1000):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        optimizer.zero_grad()
    expect(
        "a bf16 weight of 1 after 1,000 updates of -0.0001",
        weight,
        torch.full((3,), 0.9).bfloat16(),
        {
            "It has not moved: each update is smaller than half of bf16's spacing at 1, 0.0078 and"
            " 0.0039 below. The fp32 copy must live from step to step.": torch.ones(3).bfloat16()
        },
        close=0,
    )


@ASSIGNMENT.trial("parity", MASTERS)
def microbatches_in_fp32(mine):
    """gradients of 512 microbatches, taken after each, add up in fp32"""
    weight = nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
    optimizer = mine.MasterWeights([weight], torch.optim.SGD, lr=1.0)
    for _ in range(512):
        weight.grad = torch.ones_like(weight)
        optimizer.take_gradients()
        demand(
            weight.grad is None,
            "after take_gradients the parameter still has its gradient, which the next backward"
            " would add to.",
        )
    optimizer.step()
    expect(
        "a weight of 0 after 512 microbatches with gradients of 1",
        weight,
        torch.full((2,), -512.0).bfloat16(),
        {
            "In bf16 256 + 1 is 256: add the gradients in fp32.": torch.full(
                (2,), -256.0
            ).bfloat16(),
            "Only the last microbatch counts: add to the gradient that the copy has.": torch.full(
                (2,), -1.0
            ).bfloat16(),
        },
        close=0,
    )


@ASSIGNMENT.trial("parity", SCALER)
def scales_step_by_step(mine):
    """the scale over steps with and without overflows, and the parameters, which skip these"""
    weight = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = mine.LossScaler(init_scale=8.0, growth_interval=3)
    story = "good good good good OVERFLOW good good good good good good OVERFLOW OVERFLOW good"
    factor, row, moved = 8.0, 0, 0.0
    for number, event in enumerate(story.split(), 1):
        bad = event == "OVERFLOW"
        before = factor_of(scaler)
        scaled_step(scaler, weight, optimizer, torch.inf if bad else 0.25)
        moved -= 0.0 if bad else 0.25
        row = 0 if bad else row + 1
        factor = factor / 2 if bad else factor * 2 if row == 3 else factor
        row = 0 if row == 3 else row
        happened = "an overflow" if bad else "a good step"
        expect(
            f"the weight after step {number}, {happened}, at scale {before:g}",
            weight,
            torch.full((3,), moved),
            {
                "The gradient was not divided by the scale.": torch.full(
                    (3,), moved + (0 if bad else 0.25 - 0.25 * before)
                ),
                "The gradient was divided by the scale twice.": torch.full(
                    (3,), moved + (0 if bad else 0.25 - 0.25 / before)
                ),
            },
        )
        after = factor_of(scaler)
        why = ""
        if bad and after == before:
            why = " An overflow halves it."
        elif not bad and after > factor:
            why = (
                " It grows after growth_interval good steps in a row: an overflow begins a new row."
            )
        elif not bad and after < factor:
            why = " After growth_interval good steps in a row it doubles."
        demand(
            after == factor,
            f"the scale after step {number}, {happened}, growth_interval = 3, should be {factor:g},"
            f" and is {after:g}.{why}",
        )
        optimizer.zero_grad()


@ASSIGNMENT.trial("parity", SCALER)
def clipped_between(mine):
    """unscale_, a clip, then step: the gradients are divided once"""
    weight = nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = mine.LossScaler(init_scale=1024.0)
    loss = scaler.scale((weight * 3.0).sum())
    expect("scale(loss) of a loss of 0", loss, torch.zeros(()))
    loss.backward()
    scaler.unscale_(optimizer)
    expect(
        "the gradient after unscale_",
        weight.grad,
        torch.full((4,), 3.0),
        {"It is still scaled.": torch.full((4,), 3072.0)},
    )
    nn.utils.clip_grad_norm_([weight], 1.0)
    scaler.step(optimizer)
    scaler.update()
    expect(
        "the weight after unscale_, a clip to 1, and step",
        weight,
        torch.full((4,), -0.5),
        {"step divided the gradients again.": torch.full((4,), -0.5 / 1024)},
        close=1e-6,
    )


@ASSIGNMENT.trial("parity", SCALER)
def masters_and_a_scale(mine):
    """with MasterWeights, fp16 gradients of 2^-26 arrive"""
    weight = nn.Parameter(torch.zeros(3, dtype=torch.float16))
    optimizer = mine.MasterWeights([weight], torch.optim.SGD, lr=2.0**20)
    scaler = mine.LossScaler(init_scale=2.0**12)
    scaler.scale((weight.float() * 2.0**-26).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    expect(
        "an fp16 weight of 0 after a step with gradients of 2^-26, lr = 2^20",
        weight,
        torch.full((3,), -(2.0**-6)).half(),
        {
            "The gradient became zero in fp16: divide it in fp32, after take_gradients.": (
                torch.zeros(3).half()
            ),
            "The gradient was not divided by the scale.": torch.full((3,), -(2.0**6)).half(),
        },
        close=0,
    )
