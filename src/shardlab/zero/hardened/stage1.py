"""ZeRO stage 1: each rank keeps the optimizer states of its shard only.

    optimizer = ShardedOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)

Parameters and gradients stay whole on every rank. step() makes all three moves:

    reduce-scatter    of the gradients         Psi elements sent
    update            of the shard             nothing sent
    all-gather        of the parameters        Psi elements sent

As many as an all-reduce of the gradients sends: Rajbhandari et al. 2020, sections 5.1 and 7.2.
Accumulate the gradients of several microbatches and call step() once: it sends the same bytes.
"""

from .sharded_optimizer import OptimizerOfShards


class ShardedOptimizer(OptimizerOfShards):
    """Optimizer states are sharded; gradients wait, whole, for step()."""

    def reduce_gradients(self):
        if any(bucket.has_gradients for bucket in self.buckets):
            for bucket in reversed(self.buckets):
                self.reduce_scatter(bucket)
