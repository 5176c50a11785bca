"""Weigh any nn.Module: the bytes of its parameters and buffers, and the bytes that one forward pass
keeps for backward, module by module.

    weigh(model, images)      # fake tensors weigh the same and take no memory
"""

from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor, nn

from shardlab.common.torch_internals import storage_key

from .ledger import Ledger, storage_of


class Weight(NamedTuple):
    """Bytes of one module, its children not counted. A tied parameter counts where it comes
    first."""

    module: str
    kind: str
    parameters: int
    buffers: int
    activations: int  # made or first kept in this module, for backward


def weigh(module: nn.Module, *inputs, **keyword_inputs) -> list[Weight]:
    """One line for each module that holds or keeps bytes, in the order of named_modules; an input
    counts in the module that keeps it."""
    with Ledger(module) as ledger:
        result = module(*inputs, **keyword_inputs)
    kept = ledger.by_module("activations")
    del result
    seen: set[int] = set()
    lines = []
    for name, child in module.named_modules():
        own = [
            _new_bytes(tensors, seen)
            for tensors in (child.parameters(recurse=False), child.buffers(recurse=False))
        ]
        if any(own) or kept.get(name):
            lines.append(
                Weight(name or "(the module itself)", type(child).__name__, *own, kept.get(name, 0))
            )
    return lines


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of memory behind the tensors; memory shared by several tensors counts once."""
    return _new_bytes(tensors, set())


def _new_bytes(tensors, seen):
    # all at once: of two short-lived tensors, the second could get the address of the first
    storages = [storage for storage in map(storage_of, tensors) if storage is not None]
    found = {key: s.nbytes() for s in storages if (key := storage_key(s)) not in seen}
    seen.update(found)
    return sum(found.values())
