"""Assignment: experts on several ranks. README.md beside this file says what to build.

Try it with `python -m shardlab grade mixture_of_experts`.
"""

import torch.distributed as dist
from torch import Tensor, nn


def route(scores: Tensor, bias: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(indices of the chosen experts [T, k], their gates [T, k])"""
    raise NotImplementedError("route is a TODO")


class ExpertParallel(nn.Module):
    """This rank's experts, instead of all."""

    def __init__(self, experts: nn.Module, group: dist.ProcessGroup | None = None):
        super().__init__()
        # TODO: a copy of the experts, of whose parameters this rank keeps its part
        raise NotImplementedError("ExpertParallel is a TODO")

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:  # [R, H], [E]
        # TODO: counts, rows there, an order by expert, experts, rows back
        raise NotImplementedError("forward is a TODO")

    # TODO: a torch.autograd.Function whose backward is the way back
