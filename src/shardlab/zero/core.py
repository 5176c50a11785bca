"""The core of ZeRO stages 1 and 2: an optimizer, each rank of which has the states of its shard.

    optimizer = ShardedStates(model.parameters(), torch.optim.AdamW, lr=1e-3)       # stage 1
    optimizer = ShardedGradients(model.parameters(), torch.optim.AdamW, lr=1e-3)    # stage 2

Trained parameters lie one after the other in flat buckets and become views of them. Rank r owns
chunk r of each bucket, and the optimizer inside knows these chunks alone. A step has three moves:

    reduce-scatter    each rank gets the mean gradient of its chunks      Psi elements sent
    update            of its chunks, with the states of its chunks        nothing sent
    all-gather        each rank gets the chunks of the others             Psi elements sent

Stage 1 makes all three in step(). Stage 2 makes the first one in backward, bucket by bucket, and
frees the gradients. Rajbhandari et al. 2020, sections 5.1, 5.2 and 7. Clipping, loss scaling and
saving need zero.shard: they do not know these shards.

Letters: n ranks, E elements of a bucket, with fewer than n zeros at its end so that n divides E.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..common.collective_wire import Group, all_gather_single, reduce_scatter_single
from ..common.torch_internals import at_end_of_backward
from ..data_parallel.core import BUCKET_BYTES, check_unclaimed, first_rank, make_buckets


class Bucket:
    """Parameters of one dtype, as views of one tensor `flat` [E]. `shard` [E/n] is this rank's
    chunk of it: a parameter in the same memory, for the optimizer inside."""

    def __init__(self, parameters: list[nn.Parameter], group: Group):
        self.parameters, self.group = parameters, group
        self.n, me = dist.get_world_size(group), dist.get_rank(group)
        self.sizes = [p.numel() for p in parameters]
        chunk = -(-sum(self.sizes) // self.n)  # elements, rounded up
        self.flat = parameters[0].detach().new_zeros(self.n * chunk)  # [E]
        for p, part in zip(parameters, self.parts(self.flat)):
            part.copy_(p.detach().reshape(-1))
            p.data = part.view(p.shape)
        dist.broadcast(self.flat, first_rank(group), group=group)
        self.shard = nn.Parameter(self.flat[me * chunk : (me + 1) * chunk])  # [E/n]

    def parts(self, flat: Tensor) -> tuple[Tensor, ...]:
        """The part of each parameter in a tensor like `flat`, without the zeros at the end."""
        return flat[: sum(self.sizes)].split(self.sizes)

    @torch.no_grad()
    def reduce_scatter(self):
        """The shard's gradient grows by the mean over ranks, and the parameters' are freed. Where a
        parameter has none, on this rank or on all, it counts as zeros."""
        full = torch.zeros_like(self.flat)  # [E]
        for p, part in zip(self.parameters, self.parts(full)):
            if p.grad is not None:
                part.copy_(p.grad.reshape(-1))
            p.grad = None
        full /= self.n  # before the sum, which could be too large for 16 bits
        own = torch.empty_like(self.shard)  # [E/n]
        reduce_scatter_single(own, full, group=self.group)
        self.shard.grad = own if self.shard.grad is None else self.shard.grad + own

    @torch.no_grad()
    def all_gather(self):
        all_gather_single(self.flat, self.shard.detach().clone(), group=self.group)


class ShardedStates:
    """Stage 1: gradients wait, whole, for step().

    params         parameters, or groups of them with settings of their own
    optimizer_cls  torch.optim.AdamW, ..., which takes `settings` and updates each element by itself
    bucket_bytes   of parameters that travel together

    All ranks begin with the values of the group's rank 0. `param_groups` are those of the optimizer
    inside. Raises ValueError where nothing is trained, or bucket_bytes is below 1."""

    def __init__(self, params, optimizer_cls, group=None, *, bucket_bytes=BUCKET_BYTES, **settings):
        params = list(params)
        groups = params if params and isinstance(params[0], dict) else [{"params": params}]
        groups = [{**one, "params": list(one["params"])} for one in groups]
        if bucket_bytes < 1:
            raise ValueError(f"bucket_bytes = {bucket_bytes}: it must be at least 1.")
        if not any(p.requires_grad for one in groups for p in one["params"]):
            raise ValueError("no parameter is trained: there is nothing to update.")
        self.buckets: list[Bucket] = []
        for one in groups:
            for p in one["params"]:
                if not p.requires_grad:
                    dist.broadcast(p.detach(), first_rank(group), group=group)
            trained = [p for p in one["params"] if p.requires_grad]
            buckets = [Bucket(pile, group) for pile in make_buckets(trained, bucket_bytes)]
            one["params"] = [bucket.shard for bucket in buckets]
            self.buckets += buckets
        self.inner = optimizer_cls(groups, **settings)
        self.param_groups = self.inner.param_groups

    def reduce_gradients(self):
        for bucket in reversed(self.buckets):  # the order in which stage 2 has them complete
            bucket.reduce_scatter()

    def step(self):
        self.reduce_gradients()
        self.inner.step()
        for bucket in self.buckets:
            bucket.all_gather()

    def zero_grad(self):
        for bucket in self.buckets:
            for p in (*bucket.parameters, bucket.shard):
                p.grad = None


class ShardedGradients(ShardedStates):
    """Stage 2: a bucket's gradients are reduce-scattered in backward, as soon as all of them have
    arrived. Autograd makes the gradients of the last layers first, so the last bucket leaves first.
    A bucket that is complete early waits for the ones behind it: all ranks send in one order."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.bucket_of = {p: bucket for bucket in self.buckets for p in bucket.parameters}
        self.missing = None  # no backward runs
        check_unclaimed(self.bucket_of)
        for p in self.bucket_of:
            p.register_post_accumulate_grad_hook(self.gradient_arrives)

    def backward_begins(self):
        self.missing = {bucket: set(bucket.parameters) for bucket in self.buckets}
        self.waiting = list(self.buckets)

    def gradient_arrives(self, p: nn.Parameter):
        if self.missing is None:
            self.backward_begins()
            at_end_of_backward(self.backward_ends)
        self.missing[self.bucket_of[p]].discard(p)
        while self.waiting and not self.missing[self.waiting[-1]]:
            self.waiting.pop().reduce_scatter()

    def backward_ends(self):
        while self.waiting:  # this rank has not used a parameter
            self.waiting.pop().reduce_scatter()
        self.missing = None

    def reduce_gradients(self):
        """Nothing is left to reduce in step()."""

    def zero_grad(self):
        super().zero_grad()
        self.missing = None  # a backward that raised has no end
