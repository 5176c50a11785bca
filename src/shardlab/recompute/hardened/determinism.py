"""The surroundings that a second run of a function shares with the first, how to tell that the runs
differed, and how inputs are kept."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from ...common.torch_internals import in_plain_backward, tree_leaves


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


def refuse_hidden_outputs(outputs):
    """Raises CheckpointError if `outputs` is neither a tensor nor a tuple of tensors."""
    several = (outputs,) if isinstance(outputs, Tensor) else outputs
    if not isinstance(several, tuple) or not all(isinstance(y, Tensor) for y in several):
        raise CheckpointError(
            HIDDEN_FROM_AUTOGRAD.format(f"the function returns a {type(outputs).__name__}")
        )


def refuse_all_but_backward():
    """Raises CheckpointError in any other backward than that of backward()."""
    if torch.is_grad_enabled() or not in_plain_backward():
        raise CheckpointError(
            "checkpoint_by_function() supports backward() only: for autograd.grad() and"
            " create_graph=True use checkpoint()."
        )


def with_a_gradient(outputs: Tensor | tuple, gradients: tuple) -> tuple[tuple, tuple]:
    """The outputs that require a gradient, and their gradients; CheckpointError if there are
    none."""
    outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
    pairs = [(y, dy) for y, dy in zip(outputs, gradients) if y.requires_grad]
    if not pairs:
        raise CheckpointError(
            "nothing that checkpoint_by_function() was given or used requires a gradient; call"
            " the function itself."
        )
    return tuple(zip(*pairs))


class Surroundings:
    """The surroundings of a call: the state of the random numbers of the CPU and of each CUDA
    device that has a tensor or is the current one, and autocast."""

    def __init__(self, tensors: Sequence[Tensor]):
        self.random = torch.get_rng_state()
        devices = {tensor.device.index for tensor in tensors if tensor.is_cuda}
        if torch.cuda.is_initialized():  # a function without arguments may draw there
            devices.add(torch.cuda.current_device())
        self.devices = sorted(devices)
        self.random_of_device = [torch.cuda.get_rng_state(device) for device in self.devices]
        kinds = ["cpu", "cuda"] if self.devices else ["cpu"]
        self.autocast = [
            dict(
                device_type=kind,
                enabled=torch.is_autocast_enabled(kind),
                dtype=torch.get_autocast_dtype(kind),
                cache_enabled=torch.is_autocast_cache_enabled(),
            )
            for kind in kinds
        ]

    @contextmanager
    def again(self) -> Iterator[None]:
        """Everything as it was around the call, and afterwards as it was before."""
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(self.devices))
            for settings in self.autocast:
                stack.enter_context(torch.autocast(**settings))
            torch.set_rng_state(self.random)
            for device, state in zip(self.devices, self.random_of_device):
                torch.cuda.set_rng_state(state, device)
            yield


class ActivationTraits(NamedTuple):
    """The traits of an activation that both runs share."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    digest: int | None  # of its bytes, each with a weight, if values are compared

    @classmethod
    def of(cls, activation: Tensor, values: bool) -> "ActivationTraits":
        digest = digest_of(activation.detach()) if values else None
        return cls(activation.shape, activation.dtype, activation.device, digest)

    def __str__(self):
        size = "x".join(map(str, self.shape)) or "one element"
        return f"{size}, {str(self.dtype).removeprefix('torch.')}, on {self.device}"


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
        if was.digest != now.digest:
            return f"activation {number}, {was}, has other elements in the second run: {rule}"
    if len(first) != len(second):
        return f"the first run saved {len(first)} activations and the second {len(second)}: {rule}"
    return ""


# --- what is kept ---------------------------------------------------------------------------------


class KeepInputs(torch.autograd.Function):
    """A node that keeps the inputs as any operation does, so that autograd notices a change in
    place, and a checkpoint around this one drops them in its turn."""

    @staticmethod
    def forward(ctx, _, *tensors):
        ctx.save_for_backward(*tensors)
        return torch.empty(0)

    @staticmethod
    def backward(ctx, _):
        raise AssertionError("nothing follows from this node")


class InANode:
    """Tensors that a node of autograd keeps. The node is asked through its output, because up to
    PyTorch 2.6 what it keeps goes with the output."""

    def __init__(self, *tensors: Tensor):
        self.output = KeepInputs.apply(torch.empty(0, requires_grad=True), *tensors)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.output.grad_fn.saved_tensors
