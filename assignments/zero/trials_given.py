"""Helpers that the trials of the assignment share."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from coursekit.exercises.assignments import Assignment
from shardlab.zero import core, core_stage3
from shardlab.zero.hardened import stage1, stage2, stage3
from shardlab.zero.hardened.full_parameters import unsharded


def whole_parameters(module: nn.Module) -> dict[str, Tensor]:
    """The reference's: what the plain module's named_parameters would be, on every rank."""
    with unsharded(module):
        return {name: p.detach().clone() for name, p in module.named_parameters()}


ASSIGNMENT = Assignment(
    "zero",
    reference={
        "ShardedStates": stage1.ShardedOptimizer,
        "ShardedGradients": stage2.ShardedOptimizer,
        "fully_shard": stage3.fully_shard,
        "whole_parameters": whole_parameters,
    },
    core={
        "ShardedStates": core.ShardedStates,
        "ShardedGradients": core.ShardedGradients,
        "fully_shard": core_stage3.fully_shard,
        "whole_parameters": core_stage3.whole_parameters,
    },
    forbidden=(
        "torch.distributed.fsdp",
        "torch.distributed._composable",
        "torch.distributed.optim",
        "torch.distributed.tensor",
        "torch.nn.parallel",
    ),
)
CLOSE = 1e-9  # after a few steps in float64
FOUR_BYTES = 4


def layers(count: int, size: int = 64) -> nn.Sequential:
    """Equal layers in fp32, each of size * (size + 1) parameters: a batch of two weighs nothing
    beside them."""
    torch.manual_seed(3)
    return nn.Sequential(*(nn.Linear(size, size) for _ in range(count)))


def bytes_of(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
