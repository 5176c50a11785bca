"""Bytes that a function's operators move between memory and the chip: each reads its operands and
writes its results. Seen is each operator that PyTorch calls, in backward too, so a chain of small
ones moves its tensors again and again, and a fused one moves them once.

    moved = moved_bytes(lambda x: torch.relu(x + 1), torch.ones(1000))
    moved.read, moved.written, moved.total, moved.calls
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WRITES_ONLY = {"copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_"}
PICKS = {"embedding", "index", "index_select", "gather"}  # the elements that a result has


class Call(NamedTuple):
    """An operator's name, and the bytes that it reads and writes."""

    name: str
    read: int
    written: int


class MovedBytes(TorchDispatchMode):
    """Counts while it is entered. A tensor that stands twice among the operands of a call is read
    once, and an element that is repeated by expand() too. Views and new memory move nothing."""

    def __init__(self):
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        name, given = func.overloadpacket.__name__, (args, kwargs or {})
        changed, reads = [], []
        for place, argument in enumerate(func._schema.arguments):
            value = given[1].get(argument.name, args[place] if place < len(args) else None)
            writes = argument.alias_info is not None and argument.alias_info.is_write
            changed += tensors(value) if writes else []
            if not (argument.is_out or writes and name in WRITES_ONLY):
                reads += tensors(value)
        made = [t for t in tensors(results) if not any(map(t.is_set_to, changed))]
        memory = {t.untyped_storage()._cdata for t in reads}
        if changed or not all(t.untyped_storage()._cdata in memory for t in made):  # no view
            if not name.startswith(("empty", "new_empty")):
                self.calls.append(Call(name, self.sizes(reads), self.sizes(made + changed)))
        return results

    @staticmethod
    def sizes(found: list[torch.Tensor]) -> int:
        return sum(distinct_bytes(t) for t in {id(t): t for t in found}.values())

    @property
    def read(self) -> int:
        return sum(call.read for call in self.calls)

    @property
    def written(self) -> int:
        return sum(call.written for call in self.calls)

    @property
    def total(self) -> int:
        return self.read + self.written


def tensors(values) -> list[torch.Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]


def distinct_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor without the copies that expand() pretends."""
    count = tensor.element_size()
    for size, stride in zip(tensor.shape, tensor.stride()):
        count *= size if stride else min(size, 1)
    return count


def moved_bytes(function: Callable, *inputs) -> MovedBytes:
    """Call function(*inputs) and count."""
    with MovedBytes() as moved:
        function(*inputs)
    return moved
