"""ZeRO stage 2: each rank keeps the optimizer states and the gradients of its shard only.

    optimizer = ShardedOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)

Parameters stay whole on every rank. The first of stage 1's three moves goes from step() into
backward:

    reduce-scatter    of a bucket's gradients, as soon as it has all of them; then they are freed
                      Psi elements sent
    update            of the shard
                      nothing sent
    all-gather        of the parameters
                      Psi elements sent

Per step as many as in stage 1: Rajbhandari et al. 2020, section 7.2. But whole gradients are gone
after each backward, so whoever accumulates k microbatches sends (k + 1) Psi elements, not 2 Psi.
"""

from torch import nn

from ...common.shards import CannotShard
from .sharded_optimizer import OptimizerOfShards


class ShardedOptimizer(OptimizerOfShards):
    """Optimizer states and gradients are sharded; a bucket's gradients leave as soon as all of them
    have arrived, in one order on all ranks: the last parameters first."""

    def add_param_group(self, param_group: dict):
        super().add_param_group(param_group)
        self.bucket_of = {p: bucket for bucket in self.buckets for p in bucket.parameters}
        self.listen_to(self.bucket_of)

    def backward_begins(self):
        self.missing = {bucket: set(bucket.parameters) for bucket in self.buckets}
        self.waiting = list(self.buckets)

    def gradient_arrives(self, parameter: nn.Parameter):
        self.missing[self.bucket_of[parameter]].discard(parameter)
        while self.waiting and not self.missing[self.waiting[-1]]:
            self.reduce_scatter(self.waiting.pop())

    def backward_ends(self):
        while self.waiting:  # buckets for which a gradient did not arrive
            self.reduce_scatter(self.waiting.pop())
        for bucket in reversed(self.buckets):
            if bucket.has_gradients:  # more gradients arrived after the bucket had left
                self.reduce_scatter(bucket)

    def reduce_gradients(self):
        if any(bucket.has_gradients for bucket in self.buckets):
            raise CannotShard(
                "a parameter has got a .grad after backward, which in stage 2 has averaged the"
                " gradients and taken them away: change .grad of the parameters in"
                " optimizer.param_groups instead, which are shards, or take stage 0."
            )
