"""Copies to the host's memory and back: how offload.py moves a storage, and ZeRO its gradients.

copies = copies_on(device)
host = copies.out(flat)                 # flat may be dropped
flat, when = copies.back(host, device)
copies.wait(flat, when)                 # before flat is used

host = copies.room(gradient)
copies.copy(host, gradient, device)     # the gradient stays
copies.finish()                         # before the host reads
"""

from types import ModuleType

import torch
from torch import Tensor

from ..common.torch_internals import active_fake_mode, storage_key

HELD = 4  # storages that computing may be ahead of their copies to the host


def copies_on(device: torch.device) -> "Copies":
    return OverlappedCopies(device) if streams_of(device) else Copies()


def streams_of(device: torch.device) -> ModuleType | None:
    """The module that has the streams and events of a GPU, or of a virtual one: torch.cpu. None if
    all is done in order: a CPU's own stream does nothing, and cannot be waited for."""
    if device.type != "cpu" and active_fake_mode() is not None:  # the device may not exist
        return None
    streams = torch.get_device_module(device)
    return streams if hasattr(streams.current_stream(device), "synchronize") else None


class Copies:
    """Copies that are done when the call returns."""

    overlap = False

    def room(self, like: Tensor) -> Tensor:
        """Memory of the host."""
        return torch.empty(like.shape, dtype=like.dtype, device="cpu", pin_memory=self.overlap)

    def out(self, flat: Tensor) -> Tensor:
        host = self.room(flat)
        self.copy(host, flat, flat.device)
        return host

    def copy(self, to: Tensor, source: Tensor, device: torch.device):
        to.copy_(source)

    def finish(self):
        """Wait, on the host."""

    def back(self, host: Tensor, device: torch.device) -> tuple[Tensor, object]:
        return torch.empty_like(host, device=device).copy_(host), None

    def wait(self, flat: Tensor, when):
        pass


class OverlappedCopies(Copies):
    """Copies in a stream of their own, through pinned memory, which PyTorch keeps for later copies.
    record_stream would keep memory from others until the GPU is there, layers behind the host. So
    computing waits for the copy of what left `held` moves before: at most as many storages are on
    the device beside their copies. Backward begins with these, and takes them as they are. What
    comes back lies in memory of the computing stream."""

    overlap = True

    def __init__(self, device: torch.device, held: int = HELD):
        self.held, self.streams = held, torch.get_device_module(device)
        self.stream = self.streams.Stream(device)
        self.leaving: dict[int, tuple[Tensor, object]] = {}  # by the address on the host, in order

    def out(self, flat: Tensor) -> Tensor:
        host = self.room(flat)
        self.leaving[key_of(host)] = flat, self.copy(host, flat, flat.device)
        if len(self.leaving) > self.held:
            self.wait(*self.leaving.pop(next(iter(self.leaving))))
        return host

    def back(self, host: Tensor, device: torch.device) -> tuple[Tensor, object]:
        if key_of(host) in self.leaving:
            return self.leaving.pop(key_of(host))
        flat = torch.empty_like(host, device=device)
        return flat, self.copy(flat, host, device)

    def copy(self, to: Tensor, source: Tensor, device: torch.device):
        self.stream.wait_stream(self.streams.current_stream(device))
        with self.streams.stream(self.stream):
            to.copy_(source, non_blocking=True)
        return self.stream.record_event()

    def finish(self):
        self.stream.synchronize()
        self.leaving.clear()

    def wait(self, flat: Tensor, when):
        self.streams.current_stream(flat.device).wait_event(when)


def key_of(host: Tensor) -> int:
    return storage_key(host.untyped_storage())
