"""The checkpoint by hooks of ../core.py for any function, and its refusals.

    checkpoint   is torch.utils.checkpoint.checkpoint(use_reentrant=False), which tells autograd how
                 to keep a tensor. The graph is the plain function's. Any arguments, any outputs,
                 retain_graph, create_graph and autograd.grad. The second run stops at the last
                 tensor that backward needs.

Output and gradients have the bits of the plain function's, dropout included.
"""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import CheckpointError, set_checkpoint_early_stop
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from ...common.torch_internals import (
    base_of,
    hooks_of_saved_tensors,
    tree_leaves,
    tree_map,
    version,
)

A_TENSOR = object()  # where a tensor was among arguments


def checkpoint(function: Callable, *args, same: bool = False, **named):
    """function(*args, **named), whose activations are recomputed in backward.

    same   compare the elements of each activation with those of the first run, which costs time
           and the rest of the second run

    Raises CheckpointError: at once if no output requires a gradient, and in backward if the second
    run differs from the first, or if a parameter was written after the first.
    """
    if not torch.is_grad_enabled():
        return function(*args, **named)
    tensors, others = taken_apart((args, named))
    with set_checkpoint_early_stop(False) if same else nullcontext():
        output = torch_checkpoint(Runs(function, others, same), *tensors, use_reentrant=False)
    if all(map(needs_no_gradient, tree_leaves(output))):
        raise CheckpointError(
            "nothing that checkpoint() was given or used requires a gradient, so there is nothing"
            " to recompute; call the function itself, or under torch.no_grad()."
        )
    return output


def taken_apart(arguments) -> tuple[list[Tensor], object]:
    """The tensors in nested arguments, and the arguments without them."""
    tensors = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)]
    return tensors, tree_map(lambda x: A_TENSOR if isinstance(x, Tensor) else x, arguments)


def put_together(tensors: Iterable[Tensor], others):
    left = iter(tensors)
    return tree_map(lambda x: next(left) if x is A_TENSOR else x, others)


class Runs:
    """A function that PyTorch's checkpoint runs twice. PyTorch compares how many activations the
    runs save, and their shapes; the parameters, and elements if asked, are compared here."""

    def __init__(self, function: Callable, others, same: bool):
        self.function, self.others, self.same = function, others, same
        self.first: list[SavedTraits] | None = None  # None before the first run
        self.versions: list[tuple[nn.Parameter, int]] = []

    def __call__(self, *tensors: Tensor):
        """One of the runs."""
        check_versions(self.versions)
        seen: list[SavedTraits] = []
        if self.first is None:
            self.first = seen
        pack, unpack = hooks_of_saved_tensors()  # PyTorch's checkpoint

        def compare(activation: Tensor):
            saved = SavedTraits.of(activation, self.same)
            if seen is not self.first and len(seen) < len(self.first):
                saved.check(len(seen), self.first[len(seen)])
            seen.append(saved)
            return pack(activation)

        args, named = put_together(tensors, self.others)
        try:
            with saved_tensors_hooks(compare, unpack):
                return self.function(*args, **named)
        finally:  # a function may write a parameter itself
            self.versions = [(each, version(each)) for each, _ in self.first if each is not None]


class SavedTraits(NamedTuple):
    """The traits of an activation that PyTorch does not compare."""

    parameter: nn.Parameter | None  # the one that it is, or is a view of
    digest: int | None  # of its bytes, if elements are compared

    @classmethod
    def of(cls, activation: Tensor, values: bool) -> "SavedTraits":
        base = base_of(activation)
        # isinstance() takes longer, and most are plain tensors
        parameter = base if type(base) is not Tensor and isinstance(base, nn.Parameter) else None
        return cls(parameter, digest_of(activation.detach()) if values else None)

    def check(self, number: int, first: "SavedTraits"):
        """Raises CheckpointError unless the first run has saved the same as its `number`-th."""
        # in the second run an argument may be a plain tensor
        if self.parameter is not None and self.parameter is not first.parameter:
            differs = "is another parameter"
        elif self.digest != first.digest:
            differs = "has other elements"
        else:
            return
        raise CheckpointError(
            f"activation {number} {differs} in the second run: the function must do the same both"
            " times."
        )


def digest_of(tensor: Tensor) -> int:
    """A number that other elements, or the same in another order, almost never have."""
    octets = tensor.contiguous().flatten().view(torch.uint8).long()
    weights = torch.arange(len(octets), device=octets.device) % 65_521 + 1
    return int((octets * weights).sum())


def check_versions(before: list[tuple[nn.Parameter, int]]):
    """Raises CheckpointError if a parameter was written since then. Autograd looks at this for what
    it keeps, and a checkpoint keeps no parameter."""
    for parameter, then in before:
        if version(parameter) != then:
            raise CheckpointError(
                f"a parameter of shape {list(parameter.shape)} was written after the first run"
                f" ({then} writes then, {version(parameter)} now): call backward() before"
                " optimizer.step(), load_state_dict() or any other write."
            )


def needs_no_gradient(leaf) -> bool:
    """Whether nothing in the leaf needs a gradient. An object of the user's own, such as a
    dataclass, may hold any tensor."""
    if isinstance(leaf, Tensor):
        return not leaf.requires_grad
    return leaf is None or isinstance(leaf, int | float | complex | str)
