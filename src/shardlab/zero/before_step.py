"""PyTorch's functions between backward and step, made aware of the shards on other ranks.

    scaler = torch.amp.GradScaler()                      where one rank has a gradient that is not
                                                         finite, no rank steps: all stages
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                                                         the norm of all shards, in stage 3. Stages
                                                         1 and 2 refuse it: gradients of parameters
                                                         are this rank's own, or gone

FSDP2 has both by DTensor. Both stay as they are for tensors that are not shards.
"""

import functools
from collections.abc import Callable
from weakref import ref

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ..shards import Groups, groups_of, groups_of_shards, updated_by
from ..torch_internals import watch_clipping, watch_unscaling
from .flat import CannotShard

# parameter -> a weak reference to the optimizer of stage 1 or 2 that shards it
sharded = WeakTensorKeyDictionary()


@functools.cache
def watch_steps():
    """Watch from the first shard of this process on."""
    watch_unscaling(updated_by, agree_on_infinities)
    watch_clipping(norm_over_ranks, refuse_clipping)


def note(parameters: list[Tensor], optimizer: torch.optim.Optimizer):
    """This optimizer shards these parameters."""
    watch_steps()
    for parameter in parameters:
        sharded[parameter] = ref(optimizer)


@torch.no_grad()
def agree_on_infinities(updated: list[Tensor], found: dict[torch.device, Tensor]):
    """`found` has a scaler's result for this rank's gradients, afterwards the result for the
    gradients of all ranks."""
    groups = dict.fromkeys(group for p in updated for group in groups_of(p))
    if not groups:
        return
    worst = torch.zeros((), dtype=torch.float32, device=updated[0].device)
    for infinite in found.values():
        worst = worst.maximum(infinite.to(worst.device))
    for group in groups:
        dist.all_reduce(worst, dist.ReduceOp.MAX, group=group)
    for device in {*found, worst.device}:
        found[device] = worst.to(device)


def norm_over_ranks(
    gradients: list[Tensor], norm_type: float, norm: Callable[[list[Tensor]], Tensor]
) -> Tensor:
    """The norm of all these gradients: shards count over the ranks of their groups, whole gradients
    count once."""
    of_shards = {id(shard.grad): groups for shard, groups in groups_of_shards.items()}
    of_shards.pop(id(None), None)
    piles: dict[Groups, list[Tensor]] = {}
    for gradient in gradients:
        piles.setdefault(of_shards.get(id(gradient), ()), []).append(gradient)
    if set(piles) <= {()}:
        return norm(gradients)
    norms = [
        over_ranks(pile, groups, norm_type, norm) if groups else norm(pile)
        for groups, pile in piles.items()
    ]
    device = gradients[0].device
    return torch.linalg.vector_norm(torch.stack([one.to(device) for one in norms]), norm_type)


def over_ranks(pile: list[Tensor], groups: Groups, norm_type: float, norm) -> Tensor:
    first = pile[0]
    wide = torch.promote_types(first.dtype, torch.float32)
    one = norm([gradient for gradient in pile if gradient.numel()]).to(first.device, wide)
    if norm_type == float("inf"):
        for group in groups:
            dist.all_reduce(one, dist.ReduceOp.MAX, group=group)
        return one
    one = one**norm_type
    for group in groups:
        dist.all_reduce(one, group=group)
    return one ** (1 / norm_type)


def refuse_clipping(parameters: list[Tensor]):
    for parameter in parameters:
        if parameter in sharded and sharded[parameter]() is not None:
            raise CannotShard(
                "torch.nn.utils.clip_grad_norm_ knows this rank's gradients alone, and this"
                " parameter's are averaged by a sharded optimizer: call"
                " options.clip_gradients(optimizer, max_norm)."
            )
