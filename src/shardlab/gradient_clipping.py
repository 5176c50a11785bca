"""Clipping by the norm of all gradients, however the model is laid out: ZeRO, tensor parallelism,
pipelines, data parallelism, and any of them together.

    clip_gradients(optimizer, 1.0)             between backward and step(), on every rank

PyTorch's own functions are in common/before_step.py.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from .common.shards import Groups, groups_of, stages_of, updated_by


@torch.no_grad()
def clip_gradients(optimizer: torch.optim.Optimizer, max_norm: float) -> Tensor:
    """Scale all gradients so that their norm, together, is at most max_norm. Returns the norm
    before.

    Shards count over their ranks, whole gradients (all gradients in data parallelism) count once;
    parts of tensor parallelism and stages of a Pipeline count over its ranks, too. All ranks call
    it, between backward and step().
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm = {max_norm!r}: it must be above 0.")
    updated = updated_by(optimizer)
    squares = sum(squares_by_groups(updated).values())
    if pipeline := next(filter(None, map(stages_of, updated)), None):
        dist.all_reduce(squares, group=pipeline.group)
    norm = squares.sqrt()
    scale = (max_norm / (norm + 1e-6)).clamp(max=1)  # 1e-6 as in PyTorch
    for parameter in updated:
        if parameter.grad is not None:
            parameter.grad.mul_(scale.to(parameter.grad.device))
    return norm


def squares_by_groups(updated: list[Tensor]) -> dict[Groups, Tensor]:
    """The sum of the squares of all gradients, of parts over the ranks of their groups; () is what
    every rank has whole. A tied weight counts on the first of the stages that have it."""
    found: dict[Groups, Tensor] = {}
    for parameter in updated:
        groups, gradient = groups_of(parameter), parameter.grad
        if groups not in found:
            wide = torch.promote_types(parameter.dtype.to_real(), torch.float32)
            found[groups] = torch.zeros((), dtype=wide, device=updated[0].device)
        stages = stages_of(parameter)
        if gradient is not None and (stages is None or stages.counts):
            gradient = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
            found[groups] = (
                found[groups] + torch.linalg.vector_norm(gradient).to(found[groups]) ** 2
            )
    for groups, squares in found.items():
        for group in groups:
            dist.all_reduce(squares, group=group)
    return found
