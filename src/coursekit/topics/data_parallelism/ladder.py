"""Three steps to data parallelism, from a central server to few large messages. The fourth is
shardlab/data_parallel: there a bucket leaves as soon as its gradients are there, during backward.

    ParameterServer    gradients go to rank 0, parameters come back: everything passes the link of
                       rank 0
    PerTensor          after backward, one all-reduce for each parameter
    Bucketed           after backward, few large all-reduces instead of many small ones

After loss.backward() .grad is the mean, with nothing else to call.
"""

from collections.abc import Iterable
from weakref import ref

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardlab import collectives
from shardlab.collective_plans import Move, Plan
from shardlab.common.torch_internals import at_end_of_backward, version
from shardlab.data_parallel import BUCKET_BYTES, FlatBucket, Replicas, make_buckets

SERVER = 0


class ParameterServer(Replicas):
    """Rank 0 is the server: before forward all ranks fetch its parameters, after backward it
    receives their gradients. The other ranks then drop their gradients, so their optimizers do
    nothing and keep no states."""

    def forward(self, *inputs, **named):
        fetch = [[Move(SERVER, rank, 0, "=")] for rank in range(1, self.n)]
        for parameter in self.trained:
            self.send(fetch, parameter)
        return super().forward(*inputs, **named)

    def backward_ends(self):
        push = [[Move(rank, SERVER, 0, "+=")] for rank in range(1, self.n)]
        for parameter in reversed(self.trained):
            self.mean_to_sum(parameter)  # no gradient arrived
            bucket = FlatBucket([parameter], self.n)
            self.send(push, bucket.flat)
            bucket.settle()
            if dist.get_rank(self.group) != SERVER:
                parameter.grad = None
            self.means.add(parameter)

    def listen_to(self, parameters: Iterable[nn.Parameter]):
        super().listen_to(parameters)
        self.means: set[nn.Parameter] = set()  # whose gradient on the server is a mean
        server = ref(self)  # the hooks do not keep it alive
        for parameter in self.trained:
            parameter.register_hook(lambda _, p=parameter: server() and server().gradient_comes(p))

    def gradient_comes(self, parameter: nn.Parameter):
        """A gradient will be added to .grad, or autograd.grad returns it and nothing is added."""
        mean = parameter.grad
        self.mean_to_sum(parameter)
        if (total := parameter.grad) is not mean:
            as_it_was = version(total)

            def put_back_the_mean():
                if parameter.grad is total and version(total) == as_it_was:
                    parameter.grad = mean
                    self.means.add(parameter)

            at_end_of_backward(put_back_the_mean)

    @torch.no_grad()
    def mean_to_sum(self, parameter: nn.Parameter):
        """Before a new gradient is added to an old mean, which only the server has: the next
        division includes the mean, so multiply it first."""
        if parameter in self.means and parameter.grad is not None:
            parameter.grad = parameter.grad * self.n
        self.means.discard(parameter)

    def send(self, plan: Plan, tensor: Tensor):
        flat = collectives.wire(tensor, self.group)
        collectives.run(plan, [flat], self.group)
        collectives.land(flat, tensor)


class PerTensor(Replicas):
    """After backward, an all-reduce for each parameter: every rank then has the mean."""

    def backward_ends(self):
        for parameter in reversed(self.trained):
            bucket = FlatBucket([parameter], self.n)
            bucket.all_reduce(self.group)
            bucket.finish()


class Bucketed(Replicas):
    """After backward, an all-reduce for each bucket of `bucket_bytes` or more: one latency for many
    parameters."""

    def __init__(
        self,
        module: nn.Module,
        bucket_bytes: int = BUCKET_BYTES,
        group: dist.ProcessGroup | None = None,
    ):
        super().__init__(module, group, bucket_bytes=bucket_bytes)
        self.buckets = make_buckets(reversed(self.trained), bucket_bytes)

    def backward_ends(self):
        for parameters in self.buckets:
            bucket = FlatBucket(parameters, self.n)
            bucket.all_reduce(self.group)
            bucket.finish()
