"""Refusals of a checkpoint, how to tell that two runs differed, and how inputs are kept."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...common.torch_internals import base_of, in_plain_backward, tree_leaves, version
from ..core import KeptInputs


class CheckpointError(RuntimeError):
    """Why a checkpoint cannot be made, or what differs in its second run."""


def needs_no_gradient(leaf) -> bool:
    """Whether nothing in the leaf needs a gradient. An object of the user's own, such as a
    dataclass, may hold any tensor."""
    if isinstance(leaf, Tensor):
        return not leaf.requires_grad
    return leaf is None or isinstance(leaf, int | float | complex | str)


HIDDEN_FROM_AUTOGRAD = (
    "checkpoint_by_function() sees tensors and tuples of tensors alone, and {}: autograd would lose"
    " its gradients without a word; take checkpoint()."
)


def refuse_hidden_inputs(args: tuple):
    """Raises CheckpointError if a list, a tuple or a dict holds a tensor that needs a gradient."""
    for arg in args:
        leaves = [] if isinstance(arg, Tensor) else tree_leaves(arg)
        if any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves):
            raise CheckpointError(
                HIDDEN_FROM_AUTOGRAD.format(f"an argument is a {type(arg).__name__}")
            )


def refuse_outputs(outputs):
    """Raises CheckpointError if `outputs` is neither a tensor nor a tuple of tensors, or if none of
    the second run's requires a gradient."""
    several = (outputs,) if isinstance(outputs, Tensor) else outputs
    if not isinstance(several, tuple) or not all(isinstance(y, Tensor) for y in several):
        raise CheckpointError(
            HIDDEN_FROM_AUTOGRAD.format(f"the function returns a {type(outputs).__name__}")
        )
    # the first run records nothing
    if torch.is_grad_enabled() and not any(y.requires_grad for y in several):
        raise CheckpointError(
            "nothing that checkpoint_by_function() was given or used requires a gradient; call"
            " the function itself."
        )


def refuse_all_but_backward():
    """Raises CheckpointError in any other backward than that of backward()."""
    if torch.is_grad_enabled() or not in_plain_backward():
        raise CheckpointError(
            "checkpoint_by_function() supports backward() only: for autograd.grad() and"
            " create_graph=True use checkpoint()."
        )


class ActivationTraits(NamedTuple):
    """The traits of an activation that both runs share."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    digest: int | None  # of its bytes, each with a weight, if values are compared
    parameter: nn.Parameter | None  # the one that it is, or is a view of

    @classmethod
    def of(cls, activation: Tensor, values: bool) -> "ActivationTraits":
        digest = digest_of(activation.detach()) if values else None
        base = base_of(activation)
        # isinstance() takes longer, and most are plain tensors
        parameter = base if type(base) is not Tensor and isinstance(base, nn.Parameter) else None
        return cls(activation.shape, activation.dtype, activation.device, digest, parameter)

    def __str__(self):
        size = "x".join(map(str, self.shape)) or "one element"
        return f"{size}, {str(self.dtype).removeprefix('torch.')}, on {self.device}"


def versions_of(saved: list[ActivationTraits]) -> list[tuple[nn.Parameter, int]]:
    """The parameters that a run has saved, and how often each was written. Autograd looks at this
    for what it keeps, and a checkpoint keeps no parameter."""
    parameters = [each.parameter for each in saved if each.parameter is not None]
    return [(parameter, version(parameter)) for parameter in parameters]


def check_versions(before: list[tuple[nn.Parameter, int]]):
    """Raises CheckpointError if a parameter was written since then."""
    for parameter, then in before:
        if version(parameter) != then:
            raise CheckpointError(
                f"a parameter of shape {list(parameter.shape)} was written after the first run"
                f" ({then} writes then, {version(parameter)} now): call backward() before"
                " optimizer.step(), load_state_dict() or any other write."
            )


def digest_of(tensor: Tensor) -> int:
    """A number that other elements, or the same in another order, almost never have."""
    octets = tensor.contiguous().flatten().view(torch.uint8).long()
    weights = torch.arange(len(octets), device=octets.device) % 65_521 + 1
    return int((octets * weights).sum())


def differs(first: list[ActivationTraits], second: list[ActivationTraits]) -> str:
    """The first difference of the second run, in one sentence; empty if there is none."""
    rule = "the function must do the same both times."
    for number, (was, now) in enumerate(zip(first, second)):
        if was[:3] != now[:3]:
            return f"activation {number} was {was}, and in the second run it is {now}: {rule}"
        # in the second run an argument is a plain tensor
        if now.parameter is not None and now.parameter is not was.parameter:
            return f"activation {number}, {was}, is another parameter in the second run: {rule}"
        if was.digest != now.digest:
            return f"activation {number}, {was}, has other elements in the second run: {rule}"
    if len(first) != len(second):
        return f"the first run saved {len(first)} activations and the second {len(second)}: {rule}"
    return ""


# --- what is kept ---------------------------------------------------------------------------------


class InANode:
    """Tensors that a node of autograd keeps. The node is asked through its output, because up to
    PyTorch 2.6 what it keeps goes with the output."""

    def __init__(self, *tensors: Tensor):
        self.output = KeptInputs.apply(torch.empty(0, requires_grad=True), *tensors)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.output.grad_fn.saved_tensors
