"""What a second run of a function needs to be like the first, and how to tell that it was not."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from torch import Tensor


class CheckpointError(RuntimeError):
    """Why a checkpoint cannot be made, or what differs in its second run."""


class Surroundings:
    """What was around a call: the state of the random numbers of the CPU and of each CUDA device
    that has a tensor, and autocast."""

    def __init__(self, tensors: Sequence[Tensor]):
        self.random = torch.get_rng_state()
        self.devices = sorted({tensor.device.index for tensor in tensors if tensor.is_cuda})
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
    """What an activation is like."""

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
    """A number that other elements, or the same in another order, hardly ever have."""
    octets = tensor.contiguous().flatten().view(torch.uint8).long()
    weights = torch.arange(len(octets), device=octets.device) % 65_521 + 1
    return int((octets * weights).sum())


def differs(first: list[ActivationTraits], second: list[ActivationTraits]) -> str:
    """What the second run did otherwise, in one sentence, or nothing."""
    rule = "the function must do the same both times."
    for number, (was, now) in enumerate(zip(first, second)):
        if was[:3] != now[:3]:
            return f"activation {number} was {was}, and in the second run it is {now}: {rule}"
        if was.digest != now.digest:
            return f"activation {number}, {was}, has other elements in the second run: {rule}"
    if len(first) != len(second):
        return f"the first run saved {len(first)} activations and the second {len(second)}: {rule}"
    return ""
