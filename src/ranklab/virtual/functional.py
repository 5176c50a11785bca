"""Functional collectives of PyTorch, which DTensor calls, made by the plain ones: they return a new
tensor at once, and wait_tensor waits for its contents.

On fake tensors they would compute shapes and send nothing.
"""

import torch.distributed as dist
from torch import Tensor

from ranklab.torch_internals import group_named, not_yet_waited_for
from shardlab.common.collective_wire import all_gather_single, reduce_scatter_single
from shardlab.common.torch_internals import storage_key

from .hardware import UnknownSpeed

NAMESPACE = "_c10d_functional"


class Functional:
    """The functional collectives on their way, by the tensor that they fill."""

    def __init__(self):
        self.works: dict[int, tuple[dist.Work, Tensor]] = {}  # an address stays taken meanwhile

    def call(self, name: str, x: Tensor, *args) -> Tensor:
        """Call the operator of this name; an all-reduce wants a copy to work in."""
        if name == "wait_tensor":
            work, _ = self.works.pop(key(x), (None, None))
            if work is not None:
                work.wait()
            return x
        if name == "_wrap_tensor_autograd":
            return not_yet_waited_for(x)
        *args, group = args
        group = group_named(group)
        asked = dict(group=group, async_op=True)
        if name == "all_reduce_":
            out, work = x, dist.all_reduce(x, reduction(args[0]), **asked)
        elif name == "broadcast_":
            out, work = x, dist.broadcast(x, group_src=args[0], **asked)
        elif name == "all_gather_into_tensor":
            out = x.new_empty(x.shape[0] * args[0], *x.shape[1:])
            work = all_gather_single(out, x.contiguous(), **asked)
        elif name == "reduce_scatter_tensor":
            out = x.new_empty(x.shape[0] // args[1], *x.shape[1:])
            work = reduce_scatter_single(out, x.contiguous(), reduction(args[0]), **asked)
        elif name == "all_to_all_single":
            out = x.new_empty(sum(args[0]), *x.shape[1:])
            work = dist.all_to_all_single(out, x.contiguous(), *args, **asked)
        else:
            raise UnknownSpeed(
                f"{NAMESPACE}.{name} is not a message that a virtual GPU knows: it has all_reduce,"
                " broadcast, all_gather_into_tensor, reduce_scatter_tensor and all_to_all_single."
            )
        self.works[key(out)] = work, out
        return out


def key(tensor: Tensor) -> int:
    return storage_key(tensor.untyped_storage())


def reduction(name: str) -> dist.ReduceOp:
    return getattr(dist.ReduceOp, name.upper())
