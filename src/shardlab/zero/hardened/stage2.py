"""ZeRO stage 2, hardened: stage 1, whose gradients are sharded, too.

When a bucket leaves is the core's: in backward, as soon as it has all of its gradients. Where the
collectives can begin a message and go on, as on a GPU, it travels while backward computes the next
bucket's gradients, and is waited for when these are there. All else is that of stage 1. Whole
gradients are gone after each backward, so whoever accumulates k microbatches sends (k + 1) Psi
elements, not 2 Psi; or keeps the gradients whole in all of them but the last, within no_sync(), as
stage 1 does.
"""

from torch import nn

from ...common.shards import CannotShard
from .. import core
from . import stage1


class ShardedOptimizer(stage1.ShardedOptimizer, core.ShardedGradients):
    """Optimizer states and gradients are sharded. BackwardListener says when a backward begins and
    ends: also where it runs inside another one, or for many microbatches of a pipeline."""

    def add_param_group(self, param_group: dict):
        super().add_param_group(param_group)
        self.bucket_of = {p: bucket for bucket in self.buckets for p in bucket.parameters}
        self.listen_to(self.bucket_of)

    def backward_begins(self):
        self.check_zeroed()
        self.late.arrive()  # of a backward that raised
        super().backward_begins()

    def gradient_arrives(self, p: nn.Parameter):
        bucket = self.bucket_of[p]
        if self.waiting and bucket is self.waiting[-1] and self.missing[bucket] == {p}:
            # lone gradients that were complete together travel together
            self.late.arrive()
        super().gradient_arrives(p)

    def backward_ends(self):
        super().backward_ends()
        for bucket in reversed(self.buckets):
            if bucket.has_gradients:  # more gradients arrived after the bucket had left
                bucket.reduce_scatter()
        self.late.arrive()

    def reduce_gradients(self):
        if any(bucket.has_gradients for bucket in self.buckets):
            raise CannotShard(
                "a parameter has got a .grad after backward, which in stage 2 has averaged the"
                " gradients and taken them away, or had none to average: run the last backward of a"
                " step outside of no_sync(), and change .grad of the parameters in"
                " optimizer.param_groups instead, which are shards, or take stage 0."
            )
        self.late.arrive()
