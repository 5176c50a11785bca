"""The plain model's state_dict, from a model of which each rank has parts.

    whole = whole_state_dict(model)               # on every rank: what the plain model would have

To continue on another number of ranks, load it into the plain model, and cut that.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...common.collective_wire import place
from .layers import Cut, CutModule


def cuts_of(model: nn.Module) -> Iterator[tuple[str, Cut, dist.ProcessGroup | None]]:
    """(name of a parameter, how it was cut, in which group)"""
    for name, module in model.named_modules():
        if isinstance(module, CutModule):
            for own, cut, group in module.every_cut():
                if getattr(module, own) is not None:
                    yield f"{name}.{own}" if name else own, cut, group


@torch.no_grad()
def whole_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """On every rank; a tied tensor is one tensor. All ranks call it."""
    states, cuts = model.state_dict(), {}
    for name, *cut in cuts_of(model):
        cuts.setdefault(name, []).append(cut)
    made: dict[int, Tensor] = {}
    for name, tensor in states.items():
        key = tensor.data_ptr()
        if name in cuts and key not in made:
            made[key] = tensor
            for cut in cuts[name]:
                made[key] = joined(made[key], *cut)
        states[name] = made[key] if name in cuts else tensor
    return dict(states)


def joined(part: Tensor, cut: Cut, group: dist.ProcessGroup | None) -> Tensor:
    """Parts differ in size, so each rank in turn hands out its own."""
    n, me = place(group)
    sizes = [None] * n
    dist.all_gather_object(sizes, part.shape[cut.dim], group)
    shapes = [[*part.shape[: cut.dim], size, *part.shape[cut.dim + 1 :]] for size in sizes]
    parts = [part.contiguous() if r == me else part.new_empty(s) for r, s in enumerate(shapes)]
    for rank, each in enumerate(parts):
        dist.broadcast(each, dist.get_global_rank(group or dist.group.WORLD, rank), group)
    return torch.cat(parts, cut.dim)
