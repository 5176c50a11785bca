"""How backward reaches a unit of stage 3 other than through an output, and still finds its
parameters.

    saved            what the unit's operations keep for backward says when backward comes for it:
                     a loss that uses an attribute, a tensor in a container that nobody knows
    tensors_of       the tensors in an output, in dataclasses and dictionaries of any kind too
    without_views    an output that is a parameter, or a view of one, gets memory of its own: the
                     parameter's is given back
    for_recomputation, with_recomputed, deliver
                     inside backward, activation checkpointing computes parts of a unit again. It
                     finds parameters in their slots, as leaves; of the reentrant kind they get
                     gradients, which go with those that autograd brings

FSDP2 (torch 2.13) has the last of these, prefetches into most of the first, and dies of a unit that
returns its parameter.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from ...common.backward import NoSecondGradient
from ...common.torch_internals import (
    current_backward,
    hooks_of_saved_tensors,
    storage_key,
    tree_leaves,
    tree_map,
    version,
)

# --- what autograd keeps --------------------------------------------------------------------------


def saved(unit) -> saved_tensors_hooks:
    """A context in which every tensor that operations keep for backward brings the unit's
    parameters back when backward needs it. Outer hooks, such as checkpoint's or the ledger's, get
    the tensor as well."""
    outer_pack, outer_unpack = hooks_of_saved_tensors() or (Tensor.detach, None)
    lies_in_parameters = own_memory(unit)

    def pack(tensor):
        return outer_pack(tensor), lies_in_parameters(tensor), version(tensor)

    def unpack(kept):
        packed, is_parameter, before = kept
        if is_parameter:
            come_back(unit)
        if outer_unpack is not None:
            return outer_unpack(packed)
        if not is_parameter and version(packed) != before:
            raise RuntimeError(  # with hooks in force, autograd leaves this check to them
                "one of the variables needed for gradient computation has been modified by an"
                f" inplace operation: a tensor of shape {list(packed.shape)} in"
                f" {type(unit.module).__name__} is at version {version(packed)}, expected"
                f" version {before}."
            )
        return packed

    return saved_tensors_hooks(pack, unpack)


def own_memory(unit):
    """A function that says whether a tensor is memory of the unit's parameters."""
    own = {storage_key(flat.full.untyped_storage()) for flat in unit.flats}
    return lambda tensor: (
        tensor.layout is torch.strided and storage_key(tensor.untyped_storage()) in own
    )


def come_back(unit):
    """Backward needs a parameter."""
    if not unit.whole and current_backward() is None:
        raise RuntimeError(
            f"a tensor that autograd keeps for {type(unit.module).__name__} is read outside of"
            " backward: its memory is given back, so read the parameter within `with"
            " unsharded(...)`."
        )
    unit.enter_backward()


def refuse_second_gradients(unit):
    """Backward computes with gradients on if it is asked for create_graph=True."""
    if torch.is_grad_enabled():
        raise NoSecondGradient(
            f"create_graph=True: {type(unit.module).__name__} gives its parameters back after"
            " backward, and gradients of gradients would need them again: take ZeRO stage 2."
        )


# --- outputs --------------------------------------------------------------------------------------


def tensors_of(output) -> list[Tensor]:
    """The tensors in an output that want a gradient."""
    return [leaf for leaf in leaves_of(output) if leaf.requires_grad]


def leaves_of(output, depth: int = 4) -> list[Tensor]:
    found = []
    for leaf in tree_leaves(output):
        if isinstance(leaf, Tensor):
            found.append(leaf)
        elif depth and (inner := inside(leaf)):
            found += leaves_of(inner, depth - 1)
    return found


def inside(leaf) -> list:
    """The contents of an object that PyTorch's trees take for a leaf."""
    if isinstance(leaf, Mapping):
        return list(leaf.values())
    if isinstance(leaf, nn.Module | type | Callable):
        return []
    return list(getattr(leaf, "__dict__", {}).values())  # a dataclass, or a class like one


def without_views(unit, output):
    """The output, with a copy of each tensor in it that lies in the unit's parameters."""
    refuse_changes(unit)
    lies_in_parameters = own_memory(unit)

    def settled(leaf):
        return leaf.clone() if isinstance(leaf, Tensor) and lies_in_parameters(leaf) else leaf

    leaves = leaves_of(output)
    if not any(map(lies_in_parameters, leaves)):
        return output
    output = tree_map(settled, output)
    if any(map(lies_in_parameters, leaves_of(output))):
        raise TypeError(
            f"{type(unit.module).__name__} returns a parameter, or a view of one, inside a"
            f" {type(output).__name__}, and its memory is given back: return a .clone() of it."
        )
    return output


def refuse_changes(unit):
    """A gathered parameter is given back, and a change of it would be lost."""
    for module, name, number in unit.sites:
        if version(unit.placed[number]):
            raise RuntimeError(
                f"{type(module).__name__}.{name} was changed in place while"
                f" {type(unit.module).__name__} computed, and its shards would not know: write to"
                " parameters between steps, outside of forward."
            )


# --- recomputation inside backward ----------------------------------------------------------------


def for_recomputation(unit) -> list[Tensor]:
    """The parameters, as leaves outside of the graph of the running backward."""
    return [
        view.requires_grad_() if shard.requires_grad else view
        for flat in unit.flats
        for view, shard in zip(flat.views(), flat.shards)
    ]


def with_recomputed(unit, gradients: Sequence[Tensor | None] | None):
    """The gradients that autograd brings (None: no gradient), plus the gradients of the leaves."""
    leaves = unit.placed if unit.in_backward else ()
    if all(leaf.grad is None for leaf in leaves):
        return gradients
    gradients = gradients or [None] * len(leaves)
    return [
        sum(part for part in (gradient, leaf.grad) if part is not None)
        if leaf.grad is not None
        else gradient
        for gradient, leaf in zip(gradients, leaves)
    ]


def deliver(unit, gradients: Sequence[Tensor | None] | None):
    """Deliver gradients to the shards if autograd does not, because it has seen no use of the
    parameters."""
    if gradients is None:
        return
    for shard, gradient in zip(unit.shards, unit.reduce(gradients)):
        if gradient is not None:
            shard.grad = gradient if shard.grad is None else shard.grad + gradient
