"""Memory of the host, beside a virtual GPU: tensors that were made with pin_memory=True, and what
the host computes of them.

A copy occupies the stream to which it is given, and the engine of its direction: copies of one
direction follow each other, whatever their streams. What the host computes takes no time.
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
        self.storages: set[int] = set()

    def add(self, *tensors: Tensor):
        for tensor in tensors:
            if not self.has(tensor):
                storage = tensor.untyped_storage()
                self.storages.add(storage_key(storage))
                weakref.finalize(storage, self.storages.discard, storage_key(storage))

    def has(self, tensor: Tensor) -> bool:
        return storage_key(tensor.untyped_storage()) in self.storages

    def copy(self, stream: str, to: Tensor, phase: str, waits: bool):
        """The host waits unless the copy is asked for with non_blocking=True."""
        engine = TO_THE_HOST if self.has(to) else FROM_THE_HOST
        self.clock.launch(self.gpu.launch_nanoseconds)
        self.clock.wait(stream, self.clock.free[engine])
        duration = self.gpu.copy_nanoseconds(to.numel() * to.element_size())
        self.clock.free[engine] = self.clock.work(stream, engine, duration, phase)
        if waits:
            self.clock.synchronize(stream)
