"""Data parallelism, hardened: the core's backward, for any module, and refusals.

Used as core.py says: after loss.backward() .grad is the mean, with nothing else to call.

The mean over ranks is the gradient of the whole batch if every rank's loss is a mean over equally
many examples, or, with padding, a sum over the ranks' average count.

A gradient is a view of its bucket, and a bucket lives as long as its gradients: `zero_grad()` frees
it. On GPUs a gradient that fills half a bucket is averaged in its own memory. Further promises:

    parameters   those of rank 0, handed out at the start. A frozen one stays what it is; a tied one
                 is one parameter; one that a rank has not used counts as zeros there, and one that
                 no rank has used keeps no gradient
    buffers      those of rank 0, handed out at the start; then each rank keeps its own (running
                 statistics of what it has seen) until you call `broadcast_buffers()`, say before
                 you evaluate
    forward      sends nothing, so a rank may evaluate alone; but where gradients are recorded, the
                 counts that a balance loss of experts needs
    state_dict   is the bare module's: no "module." before the names
    no_sync()    backward within it only adds up on this rank; the next backward outside sends the
                 sum
    copies       of the module are plain; replicas are not copied. Of several replicas of one module
                 the newest average

All ranks run backward equally often, each with a parameter in it, without create_graph. As in
PyTorch, autograd.grad gives a rank its own gradients. Buckets: Li et al. 2020 (arXiv 2006.15704).
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..common.agreement import CannotReplicate, check_replicable, hand_out
from ..common.backward import BackwardListener
from ..common.before_step import watch_torch_replicas
from ..common.collective_wire import has_mean
from ..common.shards import replicas_of
from ..common.torch_internals import tree_leaves
from ..experts.core_parallel import count_everywhere
from . import core
from .buckets import FlatBucket, OwnMemory, join_the_rest
from .core import BUCKET_BYTES, make_buckets


class Replicas(BackwardListener, nn.Module):
    """One copy of the module on each rank, with the same values at the start. The base class of
    whatever averages gradients after a backward or in it: it listens to each."""

    knows_experts = False  # which other ranks have than those that have all the rest

    def __init__(self, module: nn.Module, group: dist.ProcessGroup | None = None, **options: int):
        super().__init__()
        check_replicable(module, group, options, self.knows_experts)
        self.module, self.group, self.n = module, group, dist.get_world_size(group)
        self.trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        hand_out(module.parameters(), group)
        watch_torch_replicas()
        count_everywhere(module, group)
        self.broadcast_buffers()
        self.listen_to(self.trained)

    def forward(self, *inputs, **named):
        self.check_hooks()
        outputs = self.module(*inputs, **named)
        for output in tree_leaves(outputs):
            if isinstance(output, Tensor) and output.grad_fn is not None:
                # the graph keeps these replicas alive even if nothing else does
                output.register_hook(lambda _: self and None)
        return outputs

    def broadcast_buffers(self):
        """Give every rank the buffers of rank 0."""
        hand_out(self.module.buffers(), self.group)

    def state_dict(self, *args, **named):
        return self.module.state_dict(*args, **named)

    def load_state_dict(self, *args, **named):
        return self.module.load_state_dict(*args, **named)

    def check_hooks(self):
        """Raise an error unless the replicas listen to exactly the trained parameters."""
        if self.taken_by is not None and torch.is_grad_enabled():
            raise CannotReplicate(
                f"a newer {self.taken_by} averages gradients of this module: call that one."
            )
        self.listen_last(self.trained)
        known = set(self.trained)
        for name, parameter in self.module.named_parameters():
            if parameter.requires_grad and parameter not in known and torch.is_grad_enabled():
                raise CannotReplicate(
                    f"{name} is trained, and was frozen or another parameter when these replicas"
                    " were made: make them anew after a change to the module."
                )

    def __getstate__(self):
        raise CannotReplicate(
            "replicas are neither copied nor pickled: copy or save model.module, and make replicas"
            " of that."
        )


class DistributedDataParallel(core.DistributedDataParallel, Replicas):
    """During backward, an all-reduce for each bucket whose gradients have all arrived, in the same
    order on all ranks. After backward the remaining buckets, and a wait for all sums.
    `overlap=False` sends all buckets after backward, to show the benefit of overlap.

    A backward sends as the core's does, for any module as Replicas promise it."""

    knows_experts = True
    forward, no_sync = Replicas.forward, Replicas.no_sync

    def __init__(
        self,
        module: nn.Module,
        bucket_bytes: int = BUCKET_BYTES,
        overlap: bool = True,
        group: dist.ProcessGroup | None = None,
    ):
        Replicas.__init__(self, module, group, bucket_bytes=bucket_bytes)
        kind = lambda p: (p.dtype, replicas_of(p, group))
        self.buckets = join_the_rest(make_buckets(reversed(self.trained), bucket_bytes, kind))
        self.bucket_of = {
            parameter: number for number, bucket in enumerate(self.buckets) for parameter in bucket
        }
        self.overlap, self.bucket_bytes = overlap, bucket_bytes

    def flat_bucket(self, parameters: list[nn.Parameter], n: int) -> FlatBucket:
        """On GPUs a gradient that fills half a bucket is not copied."""
        if has_mean(parameters[0].device, self.group):
            return OwnMemory(parameters, n, self.bucket_bytes // 2)
        return FlatBucket(parameters, n)

    def gradient_arrives(self, parameter: nn.Parameter):
        if self.bucket_of[parameter] < len(self.sent):
            raise CannotReplicate(
                "a parameter got more gradient after its bucket had left, as under "
                "checkpoint(use_reentrant=True): take use_reentrant=False."
            )
        if self.overlap:
            super().gradient_arrives(parameter)

    def send_next(self):
        parameters = self.buckets[len(self.sent)]
        group = replicas_of(parameters[0], self.group)
        bucket = self.flat_bucket(parameters, dist.get_world_size(group))
        bucket.all_reduce(group)
        self.sent.append(bucket)
