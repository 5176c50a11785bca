"""Refusals of ZeRO, before anything is moved or sent: one sentence each."""

from collections.abc import Iterable
from inspect import getgeneratorlocals, isgenerator

import torch
from torch import Tensor, nn

from ...common.agreement import agree, fact
from ...common.shards import CannotShard, misses_experts
from .flat import Group


def refuse_sets(parameters):
    """Raise TypeError for a set, or for a generator that goes through one."""
    while isgenerator(parameters):
        parameters = getgeneratorlocals(parameters).get(".0")
    if isinstance(parameters, (set, frozenset, type(iter(set())))):
        raise TypeError(
            "the parameters are a set, whose order differs from rank to rank and from run to run:"
            " give a list."
        )


def named_list(parameters: Tensor | Iterable) -> list[tuple[str, nn.Parameter]]:
    """(name, parameter) of what PyTorch's optimizers take, with a number for a missing name."""
    refuse_sets(parameters)
    (group,) = torch.optim.SGD([{"params": parameters}]).param_groups
    numbers = [f"parameter {k}" for k in range(len(group["params"]))]
    return list(zip(group.get("param_names", numbers), group["params"]))


def check_parameters(
    named: list[tuple[str, nn.Parameter]], others: list[nn.Parameter], group: Group
):
    """Raise CannotShard on all ranks or on none, before anything is moved. `others` are in the
    optimizer already."""
    facts = [fact(name, parameter) for name, parameter in named]
    rule = "all ranks shard the same parameters, in the same order"
    complaint = complaint_of_group(named, others) or misses_experts(named, group)
    agree(facts, group, CannotShard, rule, complaint)


def complaint_of_group(named: list[tuple[str, nn.Parameter]], others: list[nn.Parameter]) -> str:
    """The problem of this rank, or an empty string."""
    if not any(parameter.requires_grad for _, parameter in named):
        return (
            f"a group of {len(named)} parameters, none of them trained: there is nothing to shard."
        )
    known = set(others)
    for name, parameter in named:
        if parameter.is_meta:
            return (
                f"{name} is on the meta device: fill the model (to_empty and its initialisation)"
                " before the sharded optimizer is made."
            )
        if parameter in known:
            return (
                f"{name} of shape {list(parameter.shape)} is given twice: each belongs to one"
                " group, once."
            )
        known.add(parameter)
    return ""


def check_state(state_dict: dict, inner: torch.optim.Optimizer):
    """Each tensor of a shard's state is a number or has the shard's size."""
    shards = [shard for group in inner.param_groups for shard in group["params"]]
    for number, state in state_dict["state"].items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.dim() and value.shape != shards[number].shape:
                raise CannotShard(
                    f"{name} has {value.numel():,} elements, this rank's shard"
                    f" {shards[number].numel():,}: the state is another rank's, or of another"
                    " number of ranks; saving.resume takes any number."
                )


def filled(tensors: list[Tensor | None], shapes: list[torch.Size], like: Tensor) -> list[Tensor]:
    """None means zeros of the expected shape."""
    return [
        like.new_zeros(shape) if tensor is None else tensor
        for tensor, shape in zip(tensors, shapes)
    ]
