"""A bucket of which large gradients are sent from their own memory, where NCCL makes the mean.

    FlatBucket     w | b | v | flags            one message, of copies
    OwnMemory      w        b | v | flags       two messages: w, which is large, is not copied

A copy reads and writes each gradient once, while nothing computes. NCCL's mean is taken where it is
exact; elsewhere fp16 is divided before the sum, which could be too large, and bf16 after it.
"""

import torch
import torch.distributed as dist
from torch import nn

from ..common.collective_wire import Group, has_exact_mean
from ..common.shards import replicas_of
from ..common.torch_internals import divide_into
from . import core


class FlatBucket(core.FlatBucket):
    """The core's, with one launch for all small gradients on a GPU."""

    divide = staticmethod(divide_into)


class OwnMemory(FlatBucket):
    """A parameter of at least `large_bytes` has its flag in the flat tensor, and no elements."""

    def __init__(self, parameters: list[nn.Parameter], n: int, large_bytes: int):
        self.n, self.alone, inside = n, [], []
        for p in parameters:
            if p.nbytes < large_bytes:
                inside.append(p)
                continue
            flag = nn.Parameter(p.detach().new_empty(0))
            flag.grad = None if p.grad is None else flag.detach()
            gradient = torch.zeros_like(p) if p.grad is None else p.grad.detach()
            p.grad = gradient.to(p.dtype).contiguous()  # as all ranks lay it out
            self.alone.append((p, flag))
            inside.append(flag)
        super().__init__(inside, n)

    def all_reduce(self, group: Group):
        mean = has_exact_mean(self.flat.dtype, self.n)
        early = not mean and self.flat.dtype is torch.float16
        self.late = not mean and not early
        op = dist.ReduceOp.AVG if mean else dist.ReduceOp.SUM
        gradients = [p.grad for p, _ in self.alone]
        if early and gradients:
            torch._foreach_div_(gradients, self.n)
        self.works = [dist.all_reduce(g, op=op, group=group, async_op=True) for g in gradients]
        super().all_reduce(group)

    def finish(self):
        for work, (p, _) in zip(self.works, self.alone):
            work.wait()
            if self.late:
                p.grad.div_(self.n)
        super().finish()

    def settle(self):
        super().settle()
        for p, flag in self.alone:
            if flag.grad is None:
                p.grad = None


def join_the_rest(buckets: list[list[nn.Parameter]]) -> list[list[nn.Parameter]]:
    """A small last bucket joins a large one of its dtype before it, as the table of positions joins
    the table of tokens: both leave at the end of backward, where every latency is exposed."""
    *others, large, rest = [[], [], *buckets]
    small = 16 * sum(p.nbytes for p in rest) < sum(p.nbytes for p in large)
    alike = small and large[0].dtype == rest[0].dtype
    alike = alike and replicas_of(large[0], None) is replicas_of(rest[0], None)
    return [*others, large + rest][2:] if alike else buckets
