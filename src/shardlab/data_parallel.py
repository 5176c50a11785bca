"""Data parallelism in four steps, from a central server to sums that travel while backward still
runs.

    ParameterServer            gradients go to rank 0, parameters come back: everything passes the
                               link of rank 0
    PerTensor                  after backward, one all-reduce for each parameter
    Bucketed                   after backward, few large all-reduces in the place of many small ones
    DistributedDataParallel    a bucket leaves as soon as its gradients are there, and backward goes
                               on

    model = DistributedDataParallel(net)         # on every rank: any nn.Module
    loss = mean_loss(model(inputs), targets)     # of this rank's part of the batch
    loss.backward()                              # now .grad is the mean over all ranks: nothing
                                                 # else to call
    optimizer.step()

The mean over ranks is the gradient of the whole batch if every rank's loss is a mean over equally
many examples. Each rank divides its gradient by n while it copies it to where it is summed: that
costs no pass of its own, leaves nothing to do when the last sum arrives, cannot overflow where the
mean does not, and asks the backend for sums only.

A gradient is memory of its bucket, which lives as long as its gradients: `zero_grad()` frees it.
What else is promised:

    parameters   those of rank 0, broadcast at the start. Frozen ones are left alone; a tied one is
                 one parameter; one that a rank has not used counts as zeros there, and one that no
                 rank has used keeps no gradient
    buffers      those of rank 0, broadcast at the start; then each rank keeps its own (running
                 statistics of what it has seen) until you call `broadcast_buffers()`, say before
                 you evaluate. Nothing is sent in forward
    state_dict   is the bare module's: no "module." before the names
    no_sync()    backward within it only adds up on this rank; the next backward outside sends the
                 sum

All ranks must run backward equally often, each with at least one parameter in it. Double backward
does not pass through. The design of the buckets is that of Li et al. 2020, "PyTorch Distributed:
Experiences on Accelerating Data Parallel Training".
"""

from collections.abc import Iterable
from contextlib import contextmanager
from itertools import zip_longest
from weakref import WeakMethod

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.utils._pytree import tree_leaves

from . import collectives
from .collective_plans import Move, Plan

# PyTorch's: large enough that bytes count and not latency, small enough to leave early
BUCKET_BYTES = 25 << 20
SERVER = 0


class CannotReplicate(ValueError):
    """Why this module cannot be trained by several ranks: one sentence, on every rank."""


class Replicas(nn.Module):
    """One copy of the module on each rank, the same at the start, and calls as backward goes. What
    the four have in common."""

    def __init__(self, module: nn.Module, group: dist.ProcessGroup | None = None, **options: int):
        super().__init__()
        check(module, group, options)
        self.module, self.group, self.world_size = module, group, dist.get_world_size(group)
        self.trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.synchronises, self.in_backward = True, False
        for parameter in module.parameters():
            collectives.broadcast(parameter, group=group)
        self.broadcast_buffers()
        # once these replicas are dropped, say by a cell that runs again, their hooks do nothing
        hook = WeakMethod(self._hook)
        for parameter in self.trained:
            parameter.register_post_accumulate_grad_hook(
                lambda parameter: hook() and hook()(parameter)
            )

    def forward(self, *inputs, **named):
        self.in_backward = False  # one that raised is over
        outputs = self.module(*inputs, **named)
        for output in tree_leaves(outputs):
            if isinstance(output, Tensor) and output.grad_fn is not None:
                # the graph holds these replicas, should nobody else
                output.register_hook(lambda _: self and None)
        return outputs

    def backward_begins(self):
        """Before the first gradient of a backward."""

    def gradient_arrives(self, parameter: nn.Parameter):
        """Whenever parameter.grad is complete."""

    def backward_ends(self):
        """After the last gradient, before backward() returns."""

    @contextmanager
    def no_sync(self):
        """Backward adds up gradients on this rank and sends nothing; for all microbatches of a step
        but the last."""
        before, self.synchronises = self.synchronises, False
        try:
            yield
        finally:
            self.synchronises = before

    def broadcast_buffers(self):
        """Give every rank the buffers of rank 0."""
        for buffer in self.module.buffers():
            collectives.broadcast(buffer, group=self.group)

    def state_dict(self, *args, **named):
        return self.module.state_dict(*args, **named)

    def load_state_dict(self, *args, **named):
        return self.module.load_state_dict(*args, **named)

    @torch.no_grad()
    def _hook(self, parameter: nn.Parameter):
        """Autograd calls this with the parameter, not with its gradient."""
        if not self.synchronises:
            return
        if not self.in_backward:
            self.in_backward = True
            self.backward_begins()
            Variable._execution_engine.queue_callback(self._end)
        self.gradient_arrives(parameter)

    @torch.no_grad()
    def _end(self):
        self.backward_ends()
        self.in_backward = False


class Parcel:
    """What a rank sends of some parameters, in one piece: its shares of their mean gradients, which
    are `.grad` from now on, and for each parameter a 1 if this rank has used it, else a 0."""

    def __init__(self, parameters: list[nn.Parameter], world_size: int):
        sizes = [parameter.numel() for parameter in parameters]
        self.flat = parameters[0].new_empty(sum(sizes) + len(sizes))
        *places, self.used = self.flat.split([*sizes, len(sizes)])
        self.used.fill_(1)
        self.absent = []
        for number, (parameter, place) in enumerate(zip(parameters, places)):
            place = place.view(parameter.shape)
            if parameter.grad is None:
                place.zero_()
                self.used[number] = 0
                self.absent.append((number, parameter))
            elif parameter.grad.layout is not torch.strided:
                raise CannotReplicate(
                    f"a gradient is {parameter.grad.layout}: only dense ones are averaged; build"
                    " embeddings with sparse=False."
                )
            else:
                torch.div(parameter.grad, world_size, out=place)
            parameter.grad = place

    def settle(self):
        """When it is summed: a parameter that no rank has used has no gradient, and an optimizer
        leaves it alone."""
        for number, parameter in self.absent:
            if self.used[number] == 0:
                parameter.grad = None


class ParameterServer(Replicas):
    """Rank 0 serves: before forward all ranks fetch its parameters, after backward it gets their
    gradients. The others have none left then, so that their optimizers do nothing and keep no
    states."""

    def forward(self, *inputs, **named):
        for parameter in self.trained:
            self.send(
                [[Move(SERVER, rank, 0, "=")] for rank in range(1, self.world_size)], parameter
            )
        return super().forward(*inputs, **named)

    def backward_ends(self):
        for parameter in reversed(self.trained):
            parcel = Parcel([parameter], self.world_size)
            self.send(
                [[Move(rank, SERVER, 0, "+=")] for rank in range(1, self.world_size)], parcel.flat
            )
            parcel.settle()
            if dist.get_rank(self.group) != SERVER:
                parameter.grad = None

    def send(self, plan: Plan, tensor: Tensor):
        flat = collectives.wire(tensor, self.group)
        collectives.run(plan, [flat], self.group)
        collectives.land(flat, tensor)


class PerTensor(Replicas):
    """After backward, an all-reduce for each parameter: all ranks do the same, and each has the
    mean."""

    def backward_ends(self):
        for parameter in reversed(self.trained):
            parcel = Parcel([parameter], self.world_size)
            dist.all_reduce(parcel.flat, group=self.group)
            parcel.settle()


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
        for bucket in self.buckets:
            parcel = Parcel(bucket, self.world_size)
            dist.all_reduce(parcel.flat, group=self.group)
            parcel.settle()


class DistributedDataParallel(Replicas):
    """During backward, an all-reduce for each bucket whose gradients have all arrived, in the same
    order on all ranks; after it, those that are left, and a wait. `overlap=False` sends them all
    after backward, to see what overlap is good for."""

    def __init__(
        self,
        module: nn.Module,
        bucket_bytes: int = BUCKET_BYTES,
        overlap: bool = True,
        group: dist.ProcessGroup | None = None,
    ):
        super().__init__(module, group, bucket_bytes=bucket_bytes)
        self.buckets = make_buckets(reversed(self.trained), bucket_bytes)
        self.bucket_of = {
            parameter: number for number, bucket in enumerate(self.buckets) for parameter in bucket
        }
        self.overlap = overlap

    def backward_begins(self):
        self.missing = [set(bucket) for bucket in self.buckets]
        self.under_way: list[tuple[Parcel, dist.Work]] = []  # of the first buckets

    def gradient_arrives(self, parameter: nn.Parameter):
        if self.bucket_of[parameter] < len(self.under_way):
            raise CannotReplicate(
                "a parameter got more gradient after its bucket had left, as under "
                "checkpoint(use_reentrant=True): take use_reentrant=False."
            )
        self.missing[self.bucket_of[parameter]].discard(parameter)
        while (
            self.overlap
            and len(self.under_way) < len(self.buckets)
            and not self.missing[len(self.under_way)]
        ):
            self.send_next()

    def backward_ends(self):
        while len(self.under_way) < len(self.buckets):  # those where a gradient did not come
            self.send_next()
        for parcel, work in self.under_way:
            work.wait()
            parcel.settle()
        self.under_way.clear()  # or the memory of gradients that are freed would stay

    def send_next(self):
        parcel = Parcel(self.buckets[len(self.under_way)], self.world_size)
        self.under_way.append(
            (parcel, dist.all_reduce(parcel.flat, group=self.group, async_op=True))
        )


def make_buckets(parameters: Iterable[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    """In the given order; a bucket is closed once it holds `bucket_bytes` or more. Each has one
    dtype."""
    buckets, filling = [], {}  # dtype -> the bucket that is being filled
    for parameter in parameters:
        bucket = filling.setdefault(parameter.dtype, [])
        bucket.append(parameter)
        if sum(member.nbytes for member in bucket) >= bucket_bytes:
            buckets.append(filling.pop(parameter.dtype))
    return buckets + list(filling.values())


def check(module: nn.Module, group: dist.ProcessGroup | None, options: dict[str, int]):
    """Raise CannotReplicate on all ranks or on none: a rank that waits for one that has raised
    waits for ever."""
    if not (dist.is_available() and dist.is_initialized()):
        raise CannotReplicate(
            "there is no process group: start ranks, or call torch.distributed.init_process_group,"
            " first."
        )
    if dist.get_rank(group) < 0:
        raise CannotReplicate(
            f"rank {dist.get_rank()} is no member of the group: only members replicate a module"
            " in it."
        )
    mine = [complaint(module, options), *(f"{name} = {value}" for name, value in options.items())]
    mine += [
        f"{name} {list(p.shape)} {p.dtype}{'' if p.requires_grad else ' frozen'}"
        for name, p in module.named_parameters()
    ]
    every = [mine] * dist.get_world_size(group)
    dist.all_gather_object(every, mine, group)
    for rank, theirs in enumerate(every):
        if theirs[0]:
            raise CannotReplicate(f"rank {rank}: {theirs[0]}")
    for rank, theirs in enumerate(every):
        for here, there in zip_longest(every[0], theirs, fillvalue="nothing more"):
            if here != there:
                raise CannotReplicate(
                    f"rank 0 has {here}, rank {rank} has {there}: all ranks replicate the same"
                    " module."
                )


def complaint(module: nn.Module, options: dict[str, int]) -> str:
    """What is wrong on this rank alone; empty if nothing is."""
    for name, value in options.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            return f"{name} = {value!r}: it must be a whole number of at least 1."
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return (
            f"no parameter of this {type(module).__name__} requires a gradient: there is nothing to"
            " average."
        )
    devices = sorted({str(parameter.device) for parameter in module.parameters()})
    if len(devices) > 1:
        return (
            f"the parameters are on {len(devices)} devices, {' and '.join(devices)}: a replica has"
            " one."
        )
    return ""
