"""Overflows, wrong orders, loads, parameters without gradients."""

import torch
import torch.distributed as dist
from torch import nn

from coursekit.exercises.on_a_rank import demand, expect, refuses

from .given import ASSIGNMENT, MASTERS, SCALER, factor_of, scaled_step


@ASSIGNMENT.trial("faults", SCALER)
def overflow_on_one_rank(mine):
    """a NaN on rank 1 alone: all ranks skip the step and halve the scale"""
    for bad in (torch.nan, torch.inf, -torch.inf):
        weight = nn.Parameter(torch.zeros(3))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        scaler = mine.LossScaler(init_scale=8.0)
        scaler.scale(weight.sum()).backward()
        if dist.get_rank() == 1:
            weight.grad[1] = bad
        scaler.step(optimizer)
        scaler.update()
        rank = dist.get_rank()
        expect(
            f"rank {rank}'s weight after a step with a gradient of {bad} on rank 1",
            weight,
            torch.zeros(3),
            {
                "Ranks must agree: those that step alone drift away from the others.": torch.full(
                    (3,), -1.0
                )
            },
        )
        demand(
            factor_of(scaler) == 4.0,
            f"rank {rank}'s scale after a gradient of {bad} on rank 1 should be 4, and is"
            f" {factor_of(scaler):g}.",
        )


@ASSIGNMENT.trial("faults", SCALER)
def wrong_order(mine):
    """unscale_ twice, step twice, update without either: RuntimeError"""

    def begin():
        weight = nn.Parameter(torch.zeros(3))
        scaler = mine.LossScaler(init_scale=8.0)
        scaler.scale(weight.sum()).backward()
        return scaler, torch.optim.SGD([weight], lr=1.0)

    scaler, optimizer = begin()
    scaler.unscale_(optimizer)
    refuses(
        "unscale_ a second time",
        lambda: scaler.unscale_(optimizer),
        errors=(RuntimeError,),
        may_send=True,
    )
    scaler, optimizer = begin()
    scaler.step(optimizer)
    refuses(
        "step a second time", lambda: scaler.step(optimizer), errors=(RuntimeError,), may_send=True
    )
    scaler, optimizer = begin()
    refuses("update without a step", scaler.update, errors=(RuntimeError,), may_send=True)


@ASSIGNMENT.trial("faults", SCALER)
def wrong_scales(mine):
    """a scale of 0, -1 or infinity, a loss in fp16; a scale that would grow to infinity"""
    for value in (0.0, -1.0, torch.inf, torch.nan):
        refuses(
            f"LossScaler({value})",
            lambda value=value: mine.LossScaler(value),
            errors=(ValueError,),
            may_send=True,
        )
    loss = torch.ones((), dtype=torch.float16, requires_grad=True)
    refuses(
        "scale of a loss in fp16",
        lambda: mine.LossScaler(8.0).scale(loss),
        errors=(ValueError,),
        may_send=True,
    )
    weight = nn.Parameter(torch.zeros(3))
    scaler = mine.LossScaler(init_scale=2.0**127, growth_interval=1)
    scaled_step(scaler, weight, torch.optim.SGD([weight], lr=1.0), 0.0)
    factor = factor_of(scaler)
    demand(
        factor == 2.0**127,
        f"a scale of 2^127 became {factor:g} after a good step: fp32 ends there, so the scale"
        " stays.",
    )


@ASSIGNMENT.trial("faults", MASTERS)
def loaded_weights(mine):
    """weights that are loaded between steps stay; other copies keep their digits"""
    weights = [nn.Parameter(torch.ones(3, dtype=torch.bfloat16)) for _ in range(2)]
    optimizer = mine.MasterWeights(weights, torch.optim.SGD, lr=1e-3)

    def step(times):
        for _ in range(times):
            for weight in weights:
                weight.grad = torch.ones_like(weight)
            optimizer.step()
            optimizer.zero_grad()

    step(1)  # the copies are 0.999, the weights 1
    with torch.no_grad():
        weights[0].fill_(5.0)
    step(3)
    expect(
        "a bf16 weight, loaded as 5, after 3 updates of -0.001",
        weights[0],
        torch.full((3,), 5.0).bfloat16(),
        {
            "The load is lost: the copy remembered what was there before.": torch.full(
                (3,), 0.996
            ).bfloat16()
        },
        close=0,
    )
    step(20)
    expect(
        "the other bf16 weight after 24 updates of -0.001",
        weights[1],
        torch.full((3,), 1 - 0.024).bfloat16(),
        {
            "Its copy lost its digits: only where the parameter is not the rounding of its copy,"
            " the copy begins anew.": torch.ones(3).bfloat16()
        },
        close=0,
    )


@ASSIGNMENT.trial("faults", MASTERS)
def without_gradients(mine):
    """a parameter without a gradient is left alone, with weight decay too"""
    weights = [nn.Parameter(torch.ones(3, dtype=torch.bfloat16)) for _ in range(2)]
    optimizer = mine.MasterWeights(weights, torch.optim.AdamW, lr=0.1, weight_decay=0.5)
    for _ in range(2):
        weights[0].grad = torch.ones_like(weights[0])
        optimizer.step()
        optimizer.zero_grad()
    expect(
        "a weight of 1 that got no gradient, after two steps with weight decay",
        weights[1],
        torch.ones(3).bfloat16(),
        close=0,
    )
    demand(
        all(weight.grad is None for weight in weights),
        "after zero_grad a parameter still has a gradient.",
    )
