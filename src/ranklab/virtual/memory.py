"""Memory of a virtual GPU and of its host.

Live bytes of the GPU are those of each storage that an operator has returned, as a Ledger counts
them, without their purpose. More than the GPU has are refused.

In the host's memory are tensors that were made with pin_memory=True, those that
VirtualGPU.on_host() has been told, and what the host computes of them. A copy occupies the stream
to which it is given, and the engine of its direction: copies of one direction follow each other,
whatever their streams. What the host computes takes no time.

Memory that is not pinned is copied through a small pinned buffer of the driver's, by the host: it
waits, whether or not the copy is asked for with non_blocking=True.
"""

import weakref
from collections.abc import Iterable

import torch
from torch import Tensor

from shardlab.common.torch_internals import storage_key

from .clock import VirtualClock
from .hardware import GPU

TO_THE_HOST, FROM_THE_HOST = "copy to the host", "copy from the host"


class OutOfMemory(torch.OutOfMemoryError):
    """The virtual GPU has less memory than the program needs: one sentence."""

    def __init__(self, gpu: GPU, operation: str, nbytes: int):
        super().__init__(
            f"{gpu.name} runs out of memory: it has {gpu.memory_bytes / 1e9:.2f} GB beside its"
            f" context, and with the result of {operation} {nbytes / 1e9:.2f} GB are live."
        )
        self.nbytes = nbytes


class LiveBytes:
    def __init__(self, gpu: GPU):
        self.gpu, self.now, self.peak = gpu, 0, 0
        self.sizes: dict[int, int] = {}
        self.watchers: dict[int, weakref.ref] = {}

    def add(self, operation: str, tensors: Iterable[Tensor]):
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage_key(storage) not in self.sizes and not tensor.is_meta:
                self.count(storage, operation)

    def count(self, storage: torch.UntypedStorage, operation: str = "resize_"):
        """Count a new storage, or the new size of one that is known."""
        key, nbytes = storage_key(storage), storage.nbytes()
        if key not in self.sizes:
            self.watchers[key] = weakref.ref(storage, lambda _: self._gone(key))
        self.now += nbytes - self.sizes.get(key, 0)
        self.sizes[key], self.peak = nbytes, max(self.peak, self.now)
        if 0 < self.gpu.memory_bytes < self.now:
            raise OutOfMemory(self.gpu, operation, self.now)

    def forget(self, tensor: Tensor):
        """The tensor is in other memory."""
        self._gone(storage_key(tensor.untyped_storage()))

    def _gone(self, key: int):
        if self.watchers.pop(key, None):
            self.now -= self.sizes.pop(key)


class PinnedMemory:
    def __init__(self, gpu: GPU, clock: VirtualClock):
        self.gpu, self.clock = gpu, clock
        self.storages: dict[int, bool] = {}  # of the host -> whether they are pinned

    def add(self, *tensors: Tensor, pinned: bool = True):
        for tensor in tensors:
            if not self.has(tensor):
                self.note(tensor, pinned)

    def note(self, tensor: Tensor, pinned: bool = True):
        storage = tensor.untyped_storage()
        self.storages[storage_key(storage)] = pinned
        weakref.finalize(storage, self.storages.pop, storage_key(storage), None)

    def has(self, tensor: Tensor) -> bool:
        return storage_key(tensor.untyped_storage()) in self.storages

    def is_pinned(self, tensor: Tensor) -> bool:
        return self.storages.get(storage_key(tensor.untyped_storage()), False)

    def copy(self, stream: str, to: Tensor, source: Tensor, phase: str, waits: bool):
        """The host waits unless its memory is pinned and non_blocking=True is asked for."""
        host, engine = (to, TO_THE_HOST) if self.has(to) else (source, FROM_THE_HOST)
        pinned = self.is_pinned(host)
        self.clock.launch(self.gpu.launch_nanoseconds)
        self.clock.wait(stream, self.clock.free[engine])
        duration = self.gpu.copy_nanoseconds(to.numel() * to.element_size(), pinned)
        self.clock.free[engine] = self.clock.work(stream, engine, duration, phase)
        if waits or not pinned:
            self.clock.synchronize(stream)
