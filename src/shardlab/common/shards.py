"""Which tensors are parts of something larger, and among whom.

    groups_of(tensor)            (), or the groups of which every rank has another part of it
    as_shard(tensor, group)      a part, as an optimizer takes it
    replicas_of(tensor, group)   the group, or, of an expert, the ranks that have the same one
    stages_of(tensor)            None, or the ranks that have other layers of the same model
    would_mix(named, group)      why ranks of the group cannot replicate or shard what has a name
    CannotShard                  the error of what cannot be a part, or cannot be done with parts

A rank of tensor parallelism has part of a weight: (tp,). ZeRO cuts that part once more, over the
ranks that see other batches: (tp, dp). A norm's weight is whole on all ranks of tp, and ZeRO cuts
it too: (dp,). A sum over all elements, as in clipping, is a sum over these groups: then each
element counts once, however the model is laid out.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

Groups = tuple[dist.ProcessGroup, ...]


class CannotShard(ValueError):
    """One sentence that says why something cannot be sharded, or cannot be done with shards."""


# part -> its groups: what is in here differs from rank to rank, what is not in here is whole
groups_of_shards = WeakTensorKeyDictionary()


def groups_of(tensor: Tensor) -> Groups:
    return groups_of_shards.get(tensor, ())


class Replicated(NamedTuple):
    """The ranks that have the same experts, all that see different tokens, and those that divide
    the experts."""

    group: dist.ProcessGroup
    everyone: dist.ProcessGroup
    divide: dist.ProcessGroup


replicated_experts = WeakTensorKeyDictionary()  # a parameter of experts that ranks divide


def replicas_of(tensor: Tensor, group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    """The ranks that average the gradient and share the states, where the group does so for
    others."""
    return replicated_experts[tensor].group if tensor in replicated_experts else group


def misses_experts(named: Iterable[tuple[str, Tensor]], group: dist.ProcessGroup | None) -> str:
    """would_mix for techniques that ask replicas_of: experts may be in it, if all ranks are that
    see different tokens."""
    named, members = list(named), dist.get_process_group_ranks(group or dist.group.WORLD)
    for name, tensor in named:
        if tensor in replicated_experts:
            wanted = dist.get_process_group_ranks(replicated_experts[tensor].everyone)
            if set(members) != set(wanted):
                return (
                    f"{name} is one of the experts that ranks {wanted} train together, and the"
                    f" group has ranks {members}: give the group of mesh.experts(...).everyone."
                )
    return would_mix((pair for pair in named if pair[1] not in replicated_experts), group)


class Stages(NamedTuple):
    """The ranks of a pipeline, None for the world; whether this one computes the loss, and whether
    it counts the parameter in a norm: of the ranks that have a tied weight, the first does."""

    group: dist.ProcessGroup | None
    has_loss: bool
    counts: bool = True


# parameter, its shard or its copy -> the pipeline that it is part of
stages_of_parameters = WeakTensorKeyDictionary()


def stages_of(tensor: Tensor) -> Stages | None:
    return stages_of_parameters.get(tensor)


def cut_among(tensor: Tensor) -> Groups:
    """The groups of which every rank has another part of the tensor, or other layers."""
    stages = stages_of(tensor)
    return groups_of(tensor) + ((stages.group or dist.group.WORLD,) if stages else ())


def would_mix(
    named: Iterable[tuple[str, Tensor]],
    group: dist.ProcessGroup | None,
    among: Callable[[Tensor], Groups] = cut_among,
) -> str:
    """Why ranks of the group cannot be given one value of each of these tensors, or shards of one:
    two of them have other parts. Empty if all ranks have the same part."""
    for name, tensor in named:
        for other in among(tensor):
            ranks = dist.get_process_group_ranks(other)
            if shared := ranks_in_both(other, group):
                return (
                    f"{name} is in part {ranks.index(dist.get_rank()) + 1} of {len(ranks)} of a"
                    f" model that is cut over ranks {ranks}, and the group has ranks {shared} of"
                    " these: give the group of the ranks that have the same part, such as"
                    " mesh.dp.group."
                )
    return ""


def ranks_in_both(one: dist.ProcessGroup, other: dist.ProcessGroup | None) -> list[int]:
    """The ranks that two groups share, if they are more than this one."""
    members = dist.get_process_group_ranks(other or dist.group.WORLD)
    shared = sorted(set(members).intersection(dist.get_process_group_ranks(one)))
    return shared if len(shared) > 1 else []


# a parameter of a model whose ranks have own tokens between the modules that are cut -> their group
of_own_tokens = WeakTensorKeyDictionary()


def take_place(copy: Tensor, of: Iterable[Tensor]):
    """The copy is what an optimizer updates instead of these tensors, which are cut alike: it is
    cut as they are, and of their pipeline."""
    for tensor in of:
        if groups := groups_of(tensor):
            groups_of_shards[copy] = groups
        if stages := stages_of(tensor):
            stages_of_parameters[copy] = stages
        for known in (of_own_tokens, replicated_experts):
            if tensor in known:
                known[copy] = known[tensor]
        return


def as_shard(
    tensor: Tensor,
    group: dist.ProcessGroup | None,
    requires_grad: bool = True,
    of: Iterable[Tensor] = (),
) -> torch.nn.Parameter:
    """A part of what lies whole in the group, as an optimizer takes it; `of` are the tensors that
    are in it, which are parts or not alike."""
    shard = torch.nn.Parameter(tensor, requires_grad)
    take_place(shard, of)
    groups_of_shards[shard] = (*groups_of(shard), group or dist.group.WORLD)
    return shard


def updated_by(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The tensors that the optimizer updates: shards, fp32 copies, and those that every rank has
    whole. Their gradients are there afterwards."""
    if hasattr(optimizer, "reduce_gradients"):  # ZeRO stage 1, whose shards have no gradients yet
        optimizer.reduce_gradients()
    for holder in (optimizer, getattr(optimizer, "inner", None)):
        if hasattr(holder, "take_gradients"):  # copies of parameters or of shards
            holder.take_gradients()
            return [p for param_group in holder.param_groups for p in param_group["params"]]
    if hasattr(optimizer, "buckets"):
        return [shard for bucket in optimizer.buckets for shard in bucket.shards]
    if hasattr(optimizer, "moved"):  # offloaded: the host gets gradients in step()
        return [parameter for parameter, _ in optimizer.moved]
    return [p for param_group in optimizer.param_groups for p in param_group["params"]]
