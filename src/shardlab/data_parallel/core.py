"""The core of data parallelism: every rank has a copy of the model and a part of the batch, and the
gradients are averaged while backward still runs.

    model = DistributedDataParallel(net)         # on every rank: any nn.Module
    loss = mean_loss(model(inputs), targets)     # of this rank's part of the batch
    loss.backward()                              # now .grad is the mean over all ranks
    optimizer.step()

Parameters lie in buckets, the last ones first, as backward makes their gradients. A bucket leaves
as one all-reduce as soon as it has all of its gradients, and backward goes on. All ranks send their
buckets in the same order. Li et al. 2020 (arXiv 2006.15704).

Letters: n ranks, E elements of a bucket's parameters, P parameters in it.
"""

from collections.abc import Callable, Iterable
from contextlib import contextmanager
from operator import attrgetter

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..common.collective_wire import Group
from ..common.torch_internals import at_end_of_backward

BUCKET_BYTES = 25 << 20  # PyTorch's default: latency is negligible, and something leaves early


def make_buckets(
    parameters: Iterable[nn.Parameter], bucket_bytes: int, kind: Callable = attrgetter("dtype")
) -> list[list[nn.Parameter]]:
    """Buckets of parameters in the given order. A bucket has one kind, and is closed once it holds
    `bucket_bytes` or more."""
    buckets, open_ones = [], {}
    for p in parameters:
        bucket = open_ones.setdefault(kind(p), [])
        bucket.append(p)
        if sum(q.nbytes for q in bucket) >= bucket_bytes:
            buckets.append(open_ones.pop(kind(p)))
    return buckets + list(open_ones.values())


class FlatBucket:
    """This rank's shares of the mean gradients, in one tensor `flat` [E + P], of which `.grad` is a
    view from now on. Behind them is a flag for each parameter: 1 if this rank has used it. After
    the sum, 0 says that no rank has."""

    def __init__(self, parameters: list[nn.Parameter], n: int):
        sizes = [p.numel() for p in parameters]
        self.flat = parameters[0].detach().new_empty(sum(sizes) + len(sizes))
        *parts, self.used = self.flat.split([*sizes, len(sizes)])
        self.used.fill_(1)
        self.absent, arrived = [], []
        for number, (p, part) in enumerate(zip(parameters, parts)):
            part = part.view(p.shape)
            if p.grad is None:
                part.zero_()
                self.used[number] = 0
                self.absent.append((number, p))
            else:
                arrived.append((p.grad, part))
            p.grad = part
        self.divide(arrived, n)

    def divide(self, arrived: list[tuple[Tensor, Tensor]], n: int):
        """Before the sum, which could be too large for 16 bits."""
        for gradient, part in arrived:
            torch.div(gradient, n, out=part)

    def all_reduce(self, group: Group):
        self.work = dist.all_reduce(self.flat, group=group, async_op=True)

    def finish(self):
        self.work.wait()
        self.settle()

    def settle(self):
        """A parameter that no rank has used gets no gradient: the optimizer leaves it alone."""
        used = self.used.tolist() if self.absent else []
        for number, p in self.absent:
            if not used[number]:
                p.grad = None


def first_rank(group: Group) -> int:
    """The global rank of the group's rank 0, whose values all ranks begin with."""
    return dist.get_global_rank(group or dist.group.WORLD, 0)


def check_unclaimed(parameters: Iterable[nn.Parameter]):
    """Raise ValueError where hooks average these gradients already: they would do it twice."""
    for p in parameters:
        if getattr(p, "averaged", False):
            raise ValueError("these gradients are averaged already: build the model anew.")
        p.averaged = True


class DistributedDataParallel(nn.Module):
    """A copy of the module on each rank. All ranks begin with the parameters and buffers of the
    group's rank 0, and run backward equally often. A parameter that a rank has not used counts as
    zeros there; one that no rank has used keeps no gradient.

    Raises ValueError where no parameter is trained, or bucket_bytes is below 1 or not whole, or
    the module has replicas already."""

    flat_bucket = FlatBucket

    def __init__(self, module: nn.Module, bucket_bytes: int = BUCKET_BYTES, group: Group = None):
        super().__init__()
        if not isinstance(bucket_bytes, int) or bucket_bytes < 1:
            raise ValueError(f"bucket_bytes = {bucket_bytes}: a whole number of at least 1.")
        trained = [p for p in module.parameters() if p.requires_grad]
        if not trained:
            raise ValueError("no parameter is trained: there is nothing to average.")
        check_unclaimed(trained)
        self.module, self.group, self.n = module, group, dist.get_world_size(group)
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), first_rank(group), group=group)
        self.buckets = make_buckets(reversed(trained), bucket_bytes)
        self.bucket_of = {p: i for i, bucket in enumerate(self.buckets) for p in bucket}
        self.sending, self.begun = True, False
        self.listen()

    def listen(self):
        for p in self.bucket_of:
            p.averaged = True
            p.register_post_accumulate_grad_hook(self.gradient_is_complete)

    def __setstate__(self, state: dict):
        """A copy has parameters of its own, whose gradients are averaged as well."""
        super().__setstate__(state)
        self.listen()

    def forward(self, *inputs, **named):
        self.begun = False  # a backward that raised has no end
        return self.module(*inputs, **named)

    @contextmanager
    def no_sync(self):
        """Backward within it adds up gradients on this rank and sends nothing: for all microbatches
        of a step except the last."""
        self.sending = False
        try:
            yield
        finally:
            self.sending = True

    @torch.no_grad()
    def gradient_is_complete(self, p: nn.Parameter):
        if not self.sending:
            return
        if not self.begun:
            self.begun = True
            self.backward_begins()
            at_end_of_backward(self.backward_ends)
        self.gradient_arrives(p)

    def backward_begins(self):
        self.missing = [set(bucket) for bucket in self.buckets]
        self.sent: list[FlatBucket] = []

    def gradient_arrives(self, p: nn.Parameter):
        self.missing[self.bucket_of[p]].discard(p)
        while len(self.sent) < len(self.buckets) and not self.missing[len(self.sent)]:
            self.send_next()

    def send_next(self):
        bucket = self.flat_bucket(self.buckets[len(self.sent)], self.n)
        bucket.all_reduce(self.group)
        self.sent.append(bucket)

    @torch.no_grad()
    def backward_ends(self):
        while len(self.sent) < len(self.buckets):  # a gradient did not arrive
            self.send_next()
        for bucket in self.sent:
            bucket.finish()
        self.sent, self.begun = [], False
