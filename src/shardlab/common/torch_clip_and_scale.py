"""PyTorch's functions between backward and step, made aware of the shards on other ranks.

    scaler = torch.amp.GradScaler()                      where one rank has a gradient that is not
                                                         finite, no rank steps: all stages of ZeRO,
                                                         tensor parallelism and pipelines
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                                                         the norm of all shards, in stage 3. Stages
                                                         1 and 2 refuse it, because a parameter has
                                                         the gradient of this rank alone, or none;
                                                         they refuse clip_grad_value_, too.
                                                         Pipelines refuse it, because each rank has
                                                         parameters of its own
    torch.nn.parallel.DistributedDataParallel(model)     refused over ranks that have other parts

A norm that you make by hand of gradients, or of their copies, is this rank's alone, and nothing
raises. torch.nn.utils.get_total_norm knows the .grad of shards and parts, and refuses where a
sharded optimizer, fp32 copies or other stages of a pipeline have gradients that it is not given.

FSDP2 has the first two by DTensor. All stay as they are for tensors that are not shards.
"""

import functools
import sys
from collections.abc import Callable
from weakref import ref

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .optimizer_checks import gradient_is_with, holder_of, look, looked_at
from .shards import (
    CannotShard,
    Groups,
    groups_of,
    groups_of_shards,
    stages_of,
    stages_of_parameters,
    take_place,
    updated_by,
    would_mix,
)
from .torch_internals import (
    watch_clipping,
    watch_fsdp,
    watch_unscaling,
    watch_value_clipping,
)


def watch_steps():
    """Watch steps from the first shard of this process on; what has stepped is looked at once
    more."""
    looked_at.clear()
    watch_once()
    if "torch.distributed.fsdp" in sys.modules:  # to import it takes a second
        watch_fsdp(take_places)


def take_places(modules, parameters: list[Tensor], groups, shards: list[Tensor]):
    """A shard that fully_shard makes of a part is cut as the part is."""
    for parameter, shard in zip(parameters, shards):
        take_place(shard, [parameter])


def note(parameters: list[Tensor], optimizer: torch.optim.Optimizer):
    """This optimizer takes the gradients of these parameters, and why_not_clip(parameter) says why
    they cannot be clipped by PyTorch's function, or nothing."""
    watch_steps()
    for parameter in parameters:
        gradient_is_with[parameter] = ref(optimizer)


@functools.cache
def watch_once():
    register_optimizer_step_pre_hook(look)
    watch_unscaling(updated_in_order, agree_on_infinities, loss_is_elsewhere)
    watch_clipping(norm_over_ranks, refuse_clipping, refuse_norm)
    watch_value_clipping(refuse_taken)
    watch_torch_replicas()


def watch_torch_replicas():
    """PyTorch's DistributedDataParallel refuses parts where it would write rank 0's over those of
    other ranks."""
    make = torch.nn.parallel.DistributedDataParallel.__init__

    @functools.wraps(make)
    def refuse_first(self, module, *args, **named):
        mesh = named.get("device_mesh")
        group = mesh.get_group(0) if mesh else named.get("process_group")
        if why := would_mix(module.named_parameters(), group):
            raise CannotShard(f"rank {dist.get_rank()}: {why}")
        make(self, module, *args, **named)

    torch.nn.parallel.DistributedDataParallel.__init__ = refuse_first


def updated_in_order(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """updated_by(optimizer), which was made after the model was cut."""
    look(optimizer)
    return updated_by(optimizer)


@torch.no_grad()
def agree_on_infinities(updated: list[Tensor], found: dict[torch.device, Tensor]):
    """`found` has a scaler's result for this rank's gradients, afterwards the result for the
    gradients of all ranks."""
    groups = dict.fromkeys(group for p in updated for group in groups_of(p))
    # stages last: by then the ranks that share a stage agree, whatever each stage is cut into
    groups |= dict.fromkeys(stages.group for p in updated if (stages := stages_of(p)))
    if not groups:
        return
    worst = torch.zeros((), dtype=torch.float32, device=updated[0].device)
    for infinite in found.values():
        worst = worst.maximum(infinite.to(worst.device))
    for group in groups:
        dist.all_reduce(worst, dist.ReduceOp.MAX, group=group)
    for device in {*found, worst.device}:
        found[device] = worst.to(device)


def loss_is_elsewhere(optimizer: torch.optim.Optimizer) -> bool:
    """Whether this rank's stages of a pipeline are not the last, so that no loss is scaled here."""
    tensors = [p for param_group in optimizer.param_groups for p in param_group["params"]]
    return any((stages := stages_of(p)) and not stages.has_loss for p in tensors)


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
    if not norm_type > 0:
        raise CannotShard(
            f"torch.nn.utils.clip_grad_norm_(norm_type={norm_type}) of shards: ranks add up powers"
            " of their norms, so norm_type must be above 0."
        )
    norms = [
        over_ranks(pile, groups, norm_type, norm) if groups else whole_norm(norm(pile))
        for groups, pile in piles.items()
    ]
    device = gradients[0].device
    return torch.linalg.vector_norm(torch.stack([one.to(device) for one in norms]), norm_type)


def over_ranks(pile: list[Tensor], groups: Groups, norm_type: float, norm) -> Tensor:
    first = pile[0]
    wide = torch.promote_types(first.dtype.to_real(), torch.float32)
    one = whole_norm(norm([gradient for gradient in pile if gradient.numel()])).to(
        first.device, wide
    )
    if norm_type == float("inf"):
        for group in groups:
            dist.all_reduce(one, dist.ReduceOp.MAX, group=group)
        return one
    one = one**norm_type
    for group in groups:
        dist.all_reduce(one, group=group)
    return one ** (1 / norm_type)


def whole_norm(norm: Tensor) -> Tensor:
    """The norm of DTensors is one, whose ranks have shares."""
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm


def refuse_norm(gradients: list[Tensor]):
    """Raise CannotShard where get_total_norm is given gradients that are not yet averaged, those of
    some stages, or nothing where an optimizer takes gradients."""
    given = {id(gradient) for gradient in gradients}
    of_stages = any(id(parameter.grad) in given for parameter in stages_of_parameters)
    why_not = "are of this rank's stages of a pipeline alone" if of_stages else ""
    for parameter in gradient_is_with if not why_not else ():
        optimizer = holder_of(parameter)
        asked = not given or id(parameter.grad) in given
        if asked and optimizer is not None and optimizer.why_not_clip(parameter):
            why_not = f"{type(optimizer).__name__} averages or has taken"
    if why_not:
        raise CannotShard(
            f"torch.nn.utils.get_total_norm of gradients that {why_not}: the norm of all is what"
            ' gradient_clipping.clip_gradients(optimizer, float("inf")) returns, which clips'
            " nothing."
        )


def refuse_clipping(parameters: list[Tensor]):
    if any(map(stages_of, parameters)):
        raise CannotShard(
            "torch.nn.utils.clip_grad_norm_ knows the gradients of this rank's stages alone: call"
            " gradient_clipping.clip_gradients(optimizer, max_norm) on all ranks of the pipeline."
        )
    refuse_taken(parameters)


def refuse_taken(parameters: list[Tensor]):
    for parameter in parameters:
        optimizer = holder_of(parameter)
        if optimizer is not None and (why_not := optimizer.why_not_clip(parameter)):
            raise CannotShard(why_not)
