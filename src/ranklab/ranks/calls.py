"""Every collective of this process, seen where PyTorch hands it to the backend.

This package's own code, DDP's reducer in C++, FSDP2, DTensor and pipelining all end in the
operators `c10d::...`. A kernel at their dispatch key BackendSelect sees each call once, on real,
fake and inference tensors, and costs nothing to any other operator: a TorchDispatchMode would run
Python for every addition.

    with listening(listener):     # listener(call) -> after; after(result) is called when the
                                  # operator has returned
        ...

A listener that returns a dist.Work has made the collective itself, instead of the backend.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ranklab.torch_internals import next_kernel, reduction_name, with_work, withdraw
from shardlab.common.torch_internals import argument_names, tree_leaves

from . import staging


class Operator(NamedTuple):
    """How to read one operator of c10d. `own` is the argument with this rank's data; the message is
    that argument, or one such part for each rank. `alike` says whether the shape must be the same
    on all ranks."""

    name: str
    own: str
    parts: bool = False
    alike: bool = True
    peer: str = ""


OPERATORS = {
    "allreduce_": Operator("all_reduce", "tensors"),
    "allreduce_coalesced_": Operator("all_reduce", "tensors"),
    "reduce_": Operator("reduce", "tensors", peer="root_rank"),
    "broadcast_": Operator("broadcast", "tensors", peer="root_rank"),
    "allgather_": Operator("all_gather", "input_tensors", parts=True),
    "_allgather_base_": Operator("all_gather", "input_tensor", parts=True),
    "allgather_coalesced_": Operator("all_gather", "input_list", parts=True),
    "allgather_into_tensor_coalesced_": Operator("all_gather", "inputs", parts=True),
    "reduce_scatter_": Operator("reduce_scatter", "output_tensors", parts=True),
    "_reduce_scatter_base_": Operator("reduce_scatter", "output_tensor", parts=True),
    "reduce_scatter_tensor_coalesced_": Operator("reduce_scatter", "outputs", parts=True),
    "gather_": Operator("gather", "input_tensors", parts=True, peer="root_rank"),
    "scatter_": Operator("scatter", "output_tensors", parts=True, peer="root_rank"),
    "alltoall_": Operator("all_to_all", "input_tensors", alike=False),
    "alltoall_base_": Operator("all_to_all", "input", alike=False),
    "send": Operator("send", "tensors", peer="dst"),
    "recv_": Operator("recv", "tensors", peer="src"),
    "recv_any_source_": Operator("recv", "tensors"),
    "barrier": Operator("barrier", "tensor"),
    "monitored_barrier_": Operator("barrier", "tensor"),
}


UNIT_BITS = 16  # of the chunk's number in a tag


@dataclass(frozen=True)
class CollectiveCall:
    """One collective that this rank is about to make."""

    name: str  # all_reduce, reduce_scatter, send, ...
    group: dist.ProcessGroup
    own: tuple[Tensor, ...]  # this rank's data (for a scatter, the received data)
    parts: bool
    alike: bool
    # rank in the group: the root, the receiver of a send, the sender of a recv
    peer: int | None
    tag: int
    reduction: str  # "sum", "avg", ...; empty where nothing is reduced
    asynchronous: bool  # the caller continues and waits for the call later
    # of an all-to-all: elements to each member, and elements from each member
    splits: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    @property
    def chunk(self) -> int:
        """Shardlab's rings number the chunks of a tensor by the tag."""
        return self.tag & (1 << UNIT_BITS) - 1

    @property
    def unit(self) -> int:
        """The unit (a layer of the model) whose chunk is sent, from the bits of the tag above the
        chunk's number; 0 for none. A native collective has no tag, and its tensor the number."""
        return self.tag >> UNIT_BITS

    @property
    def nbytes(self) -> int:
        """Logical bytes of the message, the whole array as nccl-tests count it; none for a
        barrier."""
        own = sum(tensor.numel() * tensor.element_size() for tensor in self.own)
        return own * self.group.size() if self.parts else own


Listener = Callable[[CollectiveCall], Callable[[object], None] | dist.Work | None]
_listeners: list[Listener] = []  # one list, as there is one dispatcher in a process


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Calls `listener` before each collective of this process; an error of the listener is raised
    instead of making the collective."""
    if not _listeners:
        _install()
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
        if not _listeners:
            withdraw(_library.pop())


_library: list[torch.library.Library] = []


def _install():
    library = torch.library.Library("c10d", "IMPL")
    for name, operator in OPERATORS.items():
        if hasattr(torch.ops.c10d, name):  # some versions of PyTorch lack some operators
            library.impl(
                name,
                _kernel(getattr(torch.ops.c10d, name).default, operator),
                "BackendSelect",
                with_keyset=True,
            )
    _library.append(library)


def _kernel(function, operator: Operator):
    names = argument_names(function)

    def kernel(keyset, *args, **kwargs):
        call = _read(operator, {**dict(zip(names, args)), **kwargs})
        after = [done for listener in tuple(_listeners) if (done := listener(call))]
        works = [done for done in after if isinstance(done, dist.Work)]
        if works:
            result = with_work(function, args[0], works[0])
        elif staging.must_stage(call):
            result = staging.through_the_host(function, call, *args[1:], **kwargs)
        else:
            result = next_kernel(function, keyset, *args, **kwargs)
        for done in after:
            if done not in works:
                done(result)
        return result

    return kernel


def _read(operator: Operator, arguments: dict) -> CollectiveCall:
    own = () if operator.name == "barrier" else tuple(tree_leaves(arguments[operator.own]))
    reduction = reduction_name(arguments["reduce_op"]) if "reduce_op" in arguments else ""
    group = dist.ProcessGroup.unbox(arguments["process_group"])
    unit = getattr(own[0], "unit", 0) if own else 0
    return CollectiveCall(
        operator.name,
        group,
        own,
        operator.parts,
        operator.alike,
        arguments.get(operator.peer),
        arguments.get("tag", unit << UNIT_BITS),
        reduction,
        arguments.get("async_op", True),
        _splits(arguments, group.size()) if operator.name == "all_to_all" else None,
    )


def _splits(arguments: dict, members: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if "input_tensors" in arguments:
        lists = arguments["input_tensors"], arguments["output_tensors"]
        return tuple(tuple(tensor.numel() for tensor in tensors) for tensors in lists)
    found = []
    for name in ("input", "output"):
        tensor, sizes = arguments[name], arguments[f"{name}_split_sizes"]
        row = tensor.numel() // tensor.shape[0] if tensor.numel() else 0
        found.append(tuple(size * row for size in sizes) or (tensor.numel() // members,) * members)
    return tuple(found)
