"""Bytes that a function moves between memory and chip. Each operator that PyTorch calls, in
backward too, reads its operands and writes its results: a chain of small ones moves its tensors
again and again, a fused one moves them once.

    moved = moved_bytes(lambda x: torch.relu(x + 1), torch.ones(1000))
    moved.read, moved.written, moved.total, moved.calls
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from ..common.torch_internals import (
    ONLY_WRITTEN,
    TorchDispatchMode,
    argument_names,
    storage_key,
    tree_leaves,
    written_arguments,
)

PICKS = {"embedding", "index", "index_select", "gather"}  # as much as their result has


class OperatorCall(NamedTuple):
    """An operator's name, the bytes that it reads, and those that it writes."""

    name: str
    read: int
    written: int


class MovedBytes(TorchDispatchMode):
    """Counts as long as it is entered. A tensor that is given twice to one call is read once, and
    so is an element that expand() repeats. A view moves nothing, nor does new memory that nobody
    fills. The loss that PyTorch takes out of log-softmax reads one element a row."""

    def __init__(self):
        super().__init__()
        self.calls: list[OperatorCall] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        given = dict(zip(argument_names(func), args)) | (kwargs or {})
        read = {argument: tensors(value) for argument, value in given.items()}
        known = {storage_key(t.untyped_storage()) for t in tensors(given)}
        made = [t for t in tensors(results) if storage_key(t.untyped_storage()) not in known]
        # the first is not read: at most its shape is
        if name in ONLY_WRITTEN or name == "nll_loss_backward" or name.endswith("_like"):
            del read["self"]
        elif name in PICKS:
            read[next(iter(read))] = made
        elif name == "nll_loss_forward":
            read["self"] = [given["self"][:, 0]]
        changed = tensors(written_arguments(func, given))
        if (made or changed) and not name.startswith(("empty", "new_empty")):
            read = [t for argument in read.keys() - {"out"} for t in read[argument]]
            self.calls.append(
                OperatorCall(name, distinct_bytes(read), distinct_bytes(made + changed))
            )
        return results

    read = property(lambda self: sum(call.read for call in self.calls))
    written = property(lambda self: sum(call.written for call in self.calls))
    total = property(lambda self: self.read + self.written)


def tensors(values) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def distinct_bytes(found: list[Tensor]) -> int:
    """Bytes of some tensors, without repetitions."""
    total = 0
    for tensor in {id(tensor): tensor for tensor in found}.values():
        sizes = (n for n, stride in zip(tensor.shape, tensor.stride()) if stride or not n)
        total += math.prod(sizes) * tensor.element_size()
    return total


def moved_bytes(function: Callable, *inputs) -> MovedBytes:
    """Call function(*inputs), and count."""
    with MovedBytes() as moved:
        function(*inputs)
    return moved
