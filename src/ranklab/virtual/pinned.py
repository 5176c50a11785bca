"""Memory of the host, beside a virtual GPU: tensors that were made with pin_memory=True, those that
VirtualGPU.on_host() has been told, and what the host computes of them.

A copy occupies the stream to which it is given, and the engine of its direction: copies of one
direction follow each other, whatever their streams. What the host computes takes no time.

Memory that is not pinned is copied through a small pinned buffer of the driver's, by the host: it
waits, whether or not the copy is asked for with non_blocking=True.
"""

import weakref

from torch import Tensor

from shardlab.common.torch_internals import storage_key

from .clock import VirtualClock
from .hardware import GPU

TO_THE_HOST, FROM_THE_HOST = "copy to the host", "copy from the host"


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
