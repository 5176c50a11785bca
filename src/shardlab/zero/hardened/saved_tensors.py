"""Tensors that leave a computation of a unit of stage 3: by its output, or because autograd keeps
them for backward.

    saved_with(is_parameter, needed, unit)   what operations keep for backward says when backward
                                             comes for it: for a loss that uses an attribute, or a
                                             tensor in a container that nobody knows
    tensors_of(output)                       the tensors in an output, in dataclasses and
                                             dictionaries of any kind too
    without_parameters(output, ...)          an output that is a parameter, or a view of one, gets
                                             memory of its own: the parameter's is given back

`is_parameter(tensor)` says whether a tensor lies in the memory of parameters.
"""

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from ...common.outer_hooks import OuterHooks
from ...common.torch_internals import current_backward, tree_leaves, tree_map


def saved_with(
    is_parameter: Callable[[Tensor], bool], needed: Callable[[], None], unit: str
) -> saved_tensors_hooks:
    """A context in which operations keep tensors for backward: `needed` is called before backward
    gets one that is a parameter. Outer hooks, such as checkpoint's or the ledger's, get the tensor
    as well."""
    outer = OuterHooks(f" in {unit}")

    def pack(tensor):
        return outer.pack(tensor), is_parameter(tensor)

    def unpack(kept):
        packed, parameter = kept
        if parameter:
            if current_backward() is None:
                raise RuntimeError(
                    f"a tensor that autograd keeps for {unit} is read outside of backward: its"
                    " memory is given back, so read the parameter within `with unsharded(...)`."
                )
            needed()
        return outer.unpack(packed, compared=not parameter)

    return saved_tensors_hooks(pack, unpack)


def tensors_of(output, depth: int = 4) -> list[Tensor]:
    """The tensors in an output."""
    found = []
    for leaf in tree_leaves(output):
        if isinstance(leaf, Tensor):
            found.append(leaf)
        elif depth and (inner := inside(leaf)):
            found += tensors_of(inner, depth - 1)
    return found


def inside(leaf) -> list:
    """The contents of an object that PyTorch's trees take for a leaf."""
    if isinstance(leaf, Mapping):
        return list(leaf.values())
    if isinstance(leaf, nn.Module | type | Callable):
        return []
    return list(getattr(leaf, "__dict__", {}).values())  # a dataclass, or a class like one


def with_leaves(gradients: Sequence[Tensor | None], leaves: Sequence[Tensor]):
    """The gradients that autograd brings, or none at all, plus those of leaves."""
    if all(leaf.grad is None for leaf in leaves):
        return gradients
    return [
        leaf.grad if own is None else own if leaf.grad is None else own + leaf.grad
        for own, leaf in zip(gradients or [None] * len(leaves), leaves)
    ]


def without_parameters(output, is_parameter: Callable[[Tensor], bool], unit: str):
    """The output, with a copy of each tensor in it that is a parameter."""

    def copied(leaf):
        return leaf.clone() if isinstance(leaf, Tensor) and is_parameter(leaf) else leaf

    if any(map(is_parameter, tensors_of(output))):
        output = tree_map(copied, output)
        if any(map(is_parameter, tensors_of(output))):
            raise TypeError(
                f"{unit} returns a parameter, or a view of one, inside a {type(output).__name__},"
                " and its memory is given back: return a .clone() of it."
            )
    return output
