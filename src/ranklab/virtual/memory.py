"""Live bytes of a virtual GPU: of each storage that an operator has returned, as a Ledger counts
them, without their purpose. More than the GPU has are refused."""

import weakref
from collections.abc import Iterable

import torch
from torch import Tensor

from shardlab.common.torch_internals import storage_key

from .hardware import GPU


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
