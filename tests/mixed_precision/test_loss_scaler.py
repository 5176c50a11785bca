"""The loss scaler's additions to torch.amp.GradScaler, whose events it has, and its refusals."""

import math

import pytest
import torch
from torch import nn

from shardlab.mixed_precision import LossScaler, MasterWeights
from shardlab.mixed_precision.hardened.loss_scaler import CannotScale, OverflowEveryStep


def weight_and_optimizer(values=(1.0, -2.0, 0.5)):
    weight = nn.Parameter(torch.tensor(values))
    return weight, torch.optim.SGD([weight], lr=0.1, momentum=0.9)


def two_scalers(scale):
    return torch.amp.GradScaler("cpu", scale), LossScaler(scale)


def step(scaler, weight, optimizer, gradient, loss=1.0):
    """With this gradient in every element, or these."""
    scaler.scale(torch.tensor(loss))
    weight.grad = torch.tensor(gradient).expand(3).clone()
    scaler.step(optimizer)
    scaler.update()


def test_a_step_overflows_on_one_of_two_optimizers():
    """Must catch: one flag for both; the overflow of the first forgotten."""
    found = []
    for scaler in two_scalers(2.0**10):
        pairs = [weight_and_optimizer() for _ in range(2)]
        scaler.scale(torch.ones(()))
        for number, (weight, optimizer) in enumerate(pairs):
            weight.grad = torch.tensor([1.0, math.inf if number == 0 else 2.0, 3.0])
            scaler.step(optimizer)
        scaler.update()
        found.append([weight.tolist() for weight, _ in pairs] + [scaler.state_dict()["scale"]])
    assert found[0] == found[1] and found[0][2] == 512 and scaler.skips == 1
    assert found[0][0] == [1.0, -2.0, 0.5] != found[0][1]


def test_a_loss_that_was_not_scaled():
    """In the first step or in a later one. A scale of 1 divides by nothing.

    Must catch: gradients that never had the scale, divided by the scale, so that nothing trains; a
    step without a gradient."""
    with pytest.raises(CannotScale, match="run backward first"):
        LossScaler().step(weight_and_optimizer()[1])
    for scaled_first in (False, True):
        scaler, (weight, optimizer) = LossScaler(), weight_and_optimizer()
        weight.grad = torch.ones(3)
        if scaled_first:
            scaler.scale(torch.ones(()))
            scaler.step(optimizer)
            scaler.update()
        with pytest.raises(CannotScale, match="no loss was scaled .* divided by 65536"):
            scaler.step(optimizer)
    weight, optimizer = weight_and_optimizer()
    weight.grad = torch.ones(3)
    LossScaler(1.0).step(optimizer)
    assert weight[0].item() == pytest.approx(0.9)


def test_a_floor():
    """Must catch: a floor that is applied to growth, or not at all."""
    scaler = LossScaler(16.0, floor=4.0, growth_interval=1)
    weight, optimizer = weight_and_optimizer()
    seen = []
    for value in (math.inf, math.inf, math.inf, 1.0, 1.0):
        step(scaler, weight, optimizer, value)
        seen.append(scaler.get_scale())
    assert seen == [8, 4, 4, 8, 16]


def test_a_static_scale():
    """Must catch: factors of 1 refused; a static scale that steps with infinities."""
    scaler = LossScaler(2.0**8, growth_factor=1.0, backoff_factor=1.0, growth_interval=1)
    weight, optimizer = weight_and_optimizer()
    for value in (math.nan, 2.0**8, 2.0**8):
        step(scaler, weight, optimizer, value)
        assert scaler.get_scale() == 2.0**8
    assert weight.isfinite().all() and weight[0].item() == pytest.approx(1 - 0.1 - 0.19)


def overflow(scaler, named=False, weight_value=1.0, loss=1.0):
    weight = nn.Parameter(torch.full((3,), weight_value))
    given = [("blocks.0.bias", weight)] if named else [weight]
    optimizer = torch.optim.SGD(given, lr=0.1)
    for _ in range(100):
        step(scaler, weight, optimizer, [0.0, math.inf, 1.0], loss)


def test_overflow_on_every_step():
    """Must catch: the scale halved to zero in silence; skips counted that were not in a row; one
    skip too early or too late."""
    scaler = LossScaler(most_skips=7)
    with pytest.raises(OverflowEveryStep, match=r"^8 steps in a row.*blocks.0.bias of shape \[3\]"):
        overflow(scaler, named=True)
    assert scaler.get_scale() == 2.0**8
    with pytest.raises(OverflowEveryStep, match="parameter 0 .* is not finite itself"):
        overflow(LossScaler(most_skips=2), weight_value=math.nan)
    with pytest.raises(OverflowEveryStep, match="the loss itself is nan"):
        overflow(LossScaler(most_skips=2), loss=math.nan)
    with pytest.raises(OverflowEveryStep, match="or a static one is too large"):
        overflow(LossScaler(growth_factor=1.0, backoff_factor=1.0, most_skips=2))
    weight, optimizer = weight_and_optimizer()
    patient = LossScaler(most_skips=1)
    for value in (math.inf, 1.0) * 5:
        step(patient, weight, optimizer, value)


def test_what_is_refused():
    """Must catch: fp16 gradients divided in fp16, where they are zero again; a loss in fp16, whose
    gradient would be the infinite scale; all 16-bit gradients refused, not fp16's alone."""
    half = nn.Parameter(torch.ones(3, dtype=torch.float16))
    optimizer = torch.optim.SGD([half], lr=0.1)
    half.grad = torch.ones_like(half)
    with pytest.raises(ValueError, match="unscale FP16 gradients"):
        LossScaler().step(optimizer)
    with pytest.raises(CannotScale, match="logits.float"):
        LossScaler().scale(half.sum())
    weight = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    scaler, optimizer = LossScaler(2.0**4), torch.optim.SGD([weight], lr=0.5)
    scaler.scale(weight.float().square().sum()).backward()
    scaler.step(optimizer)
    assert weight.tolist() == [0, 0, 0]


def test_grad_scaler_takes_master_weights():
    """Must catch: GradScaler that finds no gradient, or fp16 ones; clip_grad_norm_ of parameters
    whose gradients are gone, which would clip nothing and say 0; clip_grad_value_ of the same."""
    updated = []
    for scaler in two_scalers(2.0**12):
        torch.manual_seed(0)
        model = nn.Linear(5, 3).half()
        optimizer = MasterWeights(model.parameters(), torch.optim.SGD, lr=0.25)
        x = torch.randn(4, 5).half()
        loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        for clip in (torch.nn.utils.clip_grad_norm_, torch.nn.utils.clip_grad_value_):
            with pytest.raises(ValueError, match="clip_gradients"):
                clip(model.parameters(), 1.0)
        masters = [p for group in optimizer.param_groups for p in group["params"]]
        norm = torch.nn.utils.clip_grad_norm_(masters, 0.125)
        scaler.step(optimizer)
        scaler.update()
        updated.append([norm.item(), *(p.tolist() for p in masters)])
    assert updated[0] == updated[1] and updated[0][0] > 0.125
