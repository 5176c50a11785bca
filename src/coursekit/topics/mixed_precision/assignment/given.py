"""Helpers that the trials of the assignment share."""

import torch
from torch import Tensor, nn

from coursekit.exercises.grading import Assignment
from shardlab import mixed_precision
from shardlab.mixed_precision import core

ASSIGNMENT = Assignment(
    "mixed_precision",
    reference={
        "MasterWeights": mixed_precision.MasterWeights,
        "LossScaler": mixed_precision.LossScaler,
    },
    core={"MasterWeights": core.MasterWeights, "LossScaler": core.LossScaler},
    forbidden=("torch.amp", "torch.cuda.amp"),
    world_size=2,
)
MASTERS, SCALER = "MasterWeights", "LossScaler"
COMPARED_STEPS = 12
AGREEMENT_BYTES = 64  # of an agreement about an overflow


def parameters_of_all_kinds(dtype: torch.dtype = torch.bfloat16) -> list[nn.Parameter]:
    """A matrix, a vector of fp32, one that is frozen, one that gets no gradient."""
    torch.manual_seed(11)
    made = [nn.Parameter(torch.randn(5, 7).to(dtype)), nn.Parameter(torch.randn(7))]
    made += [nn.Parameter(torch.randn(3).to(dtype)), nn.Parameter(torch.randn(3).to(dtype))]
    made[2].requires_grad_(False)
    return made


def give_gradients(parameters: list[nn.Parameter], number: int, factor: float = 1.0):
    """Gradients of a step: no backward is needed to try an optimizer."""
    generator = torch.Generator().manual_seed(number)
    for parameter in parameters[:2]:
        gradient = torch.randn(parameter.shape, generator=generator) * factor
        parameter.grad = gradient.to(parameter.dtype)


def stepped_by_hand(kind: type, steps: int, **settings) -> list[Tensor]:
    """The parameters after these steps, with fp32 copies."""
    parameters = parameters_of_all_kinds()
    copies = [nn.Parameter(p.detach().float()) for p in parameters]
    optimizer = kind([copies[0], copies[1], copies[3]], **settings)
    for number in range(steps):
        give_gradients(parameters, number)
        for parameter, copy in zip(parameters[:2], copies):
            copy.grad = parameter.grad.float()
        optimizer.step()
        for parameter, copy in zip(parameters, copies):
            parameter.data.copy_(copy.data)
    return [p.detach() for p in parameters]


def stepped_without_copies(kind: type, steps: int, **settings) -> list[Tensor]:
    """The update without copies: the optimizer is on the 16-bit parameters."""
    parameters = parameters_of_all_kinds()
    optimizer = kind([p for p in parameters if p.requires_grad], **settings)
    for number in range(steps):
        give_gradients(parameters, number)
        optimizer.step()
    return [p.detach() for p in parameters]


def words_of_kinds(parameters: list[nn.Parameter]) -> list[str]:
    return ["the bf16 matrix", "the fp32 vector", "the frozen vector", "the vector not used"]


def factor_of(scaler) -> float:
    return float(scaler.factor)


def scaled_step(scaler, weight: nn.Parameter, optimizer, gradient: float):
    """A step in which the true gradient is `gradient`."""
    scaler.scale((weight * 0.0).sum()).backward()
    weight.grad = torch.full_like(weight, gradient * factor_of(scaler))
    scaler.step(optimizer)
    scaler.update()
