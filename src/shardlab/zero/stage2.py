"""ZeRO stage 2: each rank keeps the optimizer states and the gradients of its shard only.

    optimizer = ShardedOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)

Parameters stay whole on every rank. The first of stage 1's three moves goes from step() into
backward:

    reduce-scatter    of a bucket's gradients, as soon as it has all of them; then they are freed
                      Psi elements sent
    update            of its shard, with the states of its shard
                      nothing sent
    all-gather        of the parameters: each rank gets what the others have updated
                      Psi elements sent

Per step as many as in stage 1: Rajbhandari et al. 2020, section 7.2. But whole gradients are gone
after each backward, so whoever accumulates k microbatches sends (k + 1) Psi elements, not 2 Psi.
Buckets go in one order, the last parameters first, so that all ranks agree on it; a bucket that
lacks gradients goes at the end of backward.

To be made after the model is where it stays. All ranks begin with rank 0's parameters; buffers are
nobody's business here. A gradient that a parameter does not have counts as zeros. Call zero_grad()
of this optimizer: it knows the gradients of the shard. Clip with options.clip_gradients, which
knows the norm of all shards.
"""

from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import increment_version

from .buckets import (
    BUCKET_BYTES,
    Bucket,
    as_list,
    check_arguments,
    check_new,
    check_state,
    into_buckets,
)
from .flat import best_collectives


class ShardedOptimizer(torch.optim.Optimizer):
    """Any optimizer that updates each element by itself, on this rank's shard of the parameters.

    params         parameters, or groups of them, as torch.optim takes them
    optimizer_cls  torch.optim.AdamW, ...; **kwargs are its arguments
    group          the process group whose ranks share the states; by default the world
    bucket_bytes   of parameters that travel together
    collectives    by default the best for the group: see flat.py

    Its param_groups are those of the optimizer inside, so that learning-rate schedulers take it for
    what it is.
    """

    def __init__(
        self,
        params,
        optimizer_cls,
        group=None,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        collectives=None,
        **kwargs,
    ):
        check_arguments(optimizer_cls, bucket_bytes)
        self.optimizer_cls, self.arguments, self.inner = optimizer_cls, kwargs, None
        self.group, self.bucket_bytes, self.collectives = group, bucket_bytes, collectives
        self.buckets: list[Bucket] = []
        self._expect()
        super().__init__(params, kwargs)  # calls add_param_group
        self.defaults = self.inner.defaults

    def add_param_group(self, param_group: dict):
        """Shard the group's parameters. What the optimizer inside updates are the shards."""
        parameters = as_list(param_group["params"])
        check_new(parameters, self.buckets)
        if self.collectives is None:
            self.collectives = best_collectives(parameters[0].device, self.group)
        buckets = into_buckets(parameters, self.group, self.bucket_bytes)
        self.buckets += buckets
        for bucket in buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(partial(self._arrived, bucket))
        param_group = {
            **param_group,
            "params": [shard for bucket in buckets for shard in bucket.shards],
        }
        if self.inner is None:
            self.inner = self.optimizer_cls([param_group], **self.arguments)
        else:
            self.inner.add_param_group(param_group)
        self.param_groups, self.state = self.inner.param_groups, self.inner.state

    # --- gradients --------------------------------------------------------------------------------

    def _expect(self):
        """No gradient of this backward has arrived yet."""
        self.arrived: dict[Bucket, int] = {}  # bucket -> how many of its gradients
        self.done = 0  # buckets that have gone

    def _arrived(self, bucket: Bucket, parameter: nn.Parameter):
        if not bucket.holds(parameter):
            return  # an optimizer made later has it
        if not self.arrived:
            # runs at the end of this backward
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        self.arrived[bucket] = self.arrived.get(bucket, 0) + 1
        self._reduce_while(lambda bucket: self.arrived.get(bucket) == len(bucket.parameters))

    def _finish(self):
        self._reduce_while(lambda bucket: True)
        for bucket in reversed(self.buckets):
            # a second one, after the bucket had gone
            if any(p.grad is not None for p in bucket.parameters):
                self._reduce(bucket)
        self._expect()

    def _reduce_while(self, ready):
        for bucket in self.buckets[::-1][self.done :]:
            if not ready(bucket):
                return
            self._reduce(bucket)
            self.done += 1

    @torch.no_grad()
    def _reduce(self, bucket: Bucket):
        # of this rank's chunk [about E/n], in parts
        total = self.collectives.reduce_scatter(bucket.take_gradients(), self.group)
        bucket.add_to_shards([part.div_(dist.get_world_size(self.group)) for part in total])

    # --- a step -----------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure=None):
        """Update, gather. Returns what the closure does, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for bucket in self.buckets:
            bucket.check()
        self.inner.step()
        for bucket in self.buckets:
            self.collectives.all_gather(bucket.flat, self.group)
            increment_version(bucket.parameters)  # a graph from before the step notices
        return loss

    def zero_grad(self, set_to_none: bool = True):
        self._expect()  # also after a backward that broke off
        for bucket in self.buckets:
            for parameter in (*bucket.parameters, *bucket.shards):
                if parameter.grad is not None:
                    parameter.grad = None if set_to_none else parameter.grad.zero_()

    # --- its state: the shard's -------------------------------------------------------------------

    def state_dict(self) -> dict:
        """Of this rank's shards. saving.py brings the shards of all ranks to disk, and back to
        another number of ranks."""
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict):
        check_state(state_dict, self.inner)
        self.inner.load_state_dict(state_dict)
        self.param_groups, self.state = self.inner.param_groups, self.inner.state

    def __repr__(self):
        return (
            f"{type(self).__name__}({len(self.buckets)} buckets, {self.collectives!r},"
            f" {self.inner!r})"
        )
