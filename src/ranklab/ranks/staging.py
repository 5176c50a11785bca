"""send and recv of CUDA tensors by gloo, through the host's memory on both sides. gloo itself sends
CPU tensors only.

Where there are more ranks than GPUs the backend is gloo, and without this a plain `dist.send` of a
CUDA tensor would hand gloo an address that it cannot read. A received tensor is on its device when
`wait()` returns, as with any backend.
"""

import torch
import torch.distributed as dist

from ranklab.torch_internals import on_the_cpu
from shardlab.common.collective_wire import backend_for

NOT_SENT_BY_GLOO = ("cuda",)


def must_stage(call) -> bool:
    """Whether the call is a send or recv of tensors on a device that the group's backend does not
    support. `call` is from calls.py."""
    if call.name not in ("send", "recv"):
        return False
    device = call.own[0].device.type
    return device in NOT_SENT_BY_GLOO and backend_for(device, call.group) == "gloo"


def through_the_host(function, call, *rest, **named):
    """Make the call with copies on the host; `rest` and `named` are its arguments after the
    tensors."""
    if call.name == "send":
        copies = [tensor.to("cpu", copy=True) for tensor in call.own]
        return on_the_cpu(function, copies, *rest, **named)
    copies = [torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in call.own]
    work = dist.Work.unbox(on_the_cpu(function, copies, *rest, **named))
    return Arriving(work, copies, call.own).boxed()


class Arriving(dist.Work):
    """A recv into copies on the host. wait() moves them to the tensors."""

    under_way: set["Arriving"] = set()  # PyTorch holds only its C++ half

    def __init__(
        self, work: dist.Work, copies: list[torch.Tensor], tensors: tuple[torch.Tensor, ...]
    ):
        super().__init__()
        self.work, self.copies, self.tensors = work, copies, tensors
        self.under_way.add(self)

    def wait(self, *timeout) -> bool:
        self.under_way.discard(self)
        self.work.wait(*timeout)
        while self.copies:
            # a buffer may require grad, as those of PyTorch's pipelining do
            self.tensors[len(self.copies) - 1].detach().copy_(self.copies.pop())
        return True

    def is_completed(self) -> bool:
        return self.work.is_completed()
