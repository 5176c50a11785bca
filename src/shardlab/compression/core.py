"""The core of sending less: data parallelism whose buckets leave through a hook.

    model = Compressed(net, partial(top_k, one_in=100))        # the loop stays as it is
    loss_of(model(inputs)).backward()                          # .grad is the mean that arrived
    optimizer.step()

A hook is a generator. It yields each message that is under way, and goes on once the message has
arrived, so its first message overlaps with backward. What it does not send is not lost: *error
feedback* adds it to the next step's gradient (Seide et al. 2014). It is one line in each hook,

    kept["error"] = total - sent

so that the sum of all that was sent is the sum of all gradients less the last error.

    sixteen_bits   2 bytes an element, as two of PyTorch's hooks do
    top_k          the largest ones with their places; grows with the ranks
    power_sgd      a matrix as a product of two thin ones; a hook of PyTorch, DALL-E in 2021
    signs          1 bit an element, in core_bits.py; four_bits are there too

Letters: n ranks, E elements of a bucket, k of them sent, r rank of a matrix [a, b].
"""

from collections.abc import Callable, Iterator
from itertools import chain

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..common.collective_wire import Group, all_gather_single
from ..data_parallel import DistributedDataParallel, FlatBucket


class SmallBucket(FlatBucket):
    """A bucket that leaves through a hook. `gradients` [E] is this rank's share of the mean, with
    the error of the step before, and in the end the mean. `kept` stays from step to step."""

    def __init__(self, parameters: list[nn.Parameter], n: int, hook: Callable, kept: dict):
        super().__init__(parameters, n)
        self.parameters, self.hook, self.kept = parameters, hook, kept
        self.gradients = self.flat[: -len(parameters)]  # without the flags of use

    def parts(self, flat: Tensor) -> list[Tensor]:
        """Each parameter's part of a tensor like `gradients`."""
        pieces = flat.split([p.numel() for p in self.parameters])
        return [piece.view(p.shape) for p, piece in zip(self.parameters, pieces)]

    def all_reduce(self, group: Group):
        self.old = self.kept.get("error", 0)
        self.gradients += self.old
        self.messages = self.hook(self, group)
        self.first = next(self.messages)

    def finish(self):
        wait_all(chain([self.first], self.messages))
        if self.kept.get("error") is self.old:  # added, and this hook leaves none
            del self.kept["error"]
        for left in self.kept.values():
            left.nan_to_num_(0, 0, 0)  # an overflow leaves no error
        for p in self.parameters:
            if not p.requires_grad:  # frozen since the start: not even an old error moves it
                p.grad = None


def wait_all(messages: Iterator[dist.Work]):
    for message in messages:
        message.wait()


class Compressed(DistributedDataParallel):
    """Data parallelism through a hook; without one it is plain. `hook` may change between steps.
    Without feedback no error is kept. A parameter that no rank has used counts as zeros."""

    def __init__(self, module: nn.Module, hook=None, *, feedback: bool = True, **options):
        super().__init__(module, **options)
        self.hook, self.feedback, self.kept = hook, feedback, [{} for _ in self.buckets]

    def flat_bucket(self, parameters: list[nn.Parameter], n: int) -> FlatBucket:
        kept = self.kept[len(self.sent)]
        if not self.feedback:
            kept.pop("error", None), kept.pop("server_error", None)
        if self.hook is None:
            return super().flat_bucket(parameters, n)
        return SmallBucket(parameters, n, self.hook, kept)

    def hook_state_dict(self) -> list[dict]:
        """This rank's errors. A run that resumes without them has lost gradients."""
        return [dict(kept) for kept in self.kept]

    def load_hook_state_dict(self, state: list[dict]):
        if len(state) != len(self.kept):
            raise ValueError(f"a state of {len(state)} buckets, and here are {len(self.kept)}.")
        device = self.trained[0].device
        self.kept = [{name: x.to(device) for name, x in kept.items()} for kept in state]


def sixteen_bits(bucket: SmallBucket, group: Group, dtype=torch.bfloat16):
    """Half of the bytes. What rounding takes is not kept."""
    small = bucket.gradients.to(dtype)
    yield dist.all_reduce(small, group=group, async_op=True)
    bucket.gradients.copy_(small)


def top_k(bucket: SmallBucket, group: Group, one_in: int = 100):
    """The largest elements in size, one in so many, and their places (Aji and Heafield 2017). All
    ranks need those of all: (n - 1) k values arrive."""
    total, n = bucket.gradients, dist.get_world_size(group)
    k = -(-len(total) // one_in)
    places = total.abs().topk(k).indices
    places = places.int() if len(total) <= 2**31 else places
    values = total[places]
    all_places, all_values = places.new_empty(n * k), values.new_empty(n * k)
    yield from [
        all_gather_single(all_values, values, group=group, async_op=True),
        all_gather_single(all_places, places, group=group, async_op=True),
    ]
    sent = torch.zeros_like(total).index_add(0, places, values)
    bucket.kept["error"] = total - sent
    total.zero_()
    for places, values in zip(all_places.view(n, k), all_values.view(n, k)):
        total.index_add_(0, places, values)  # rank by rank: all add in one order


def power_sgd(bucket: SmallBucket, group: Group, rank: int = 4):
    """Each matrix M as P Q^T, by one step of power iteration from the last Q (Vogels et al. 2019).
    Vectors and small matrices go whole, with the P. M is a sum over ranks, and so are P = M Q and
    Q = M^T P: two all-reduces, and nobody needs M."""
    if rank < 1:
        raise ValueError(f"rank = {rank}: at least 1, or no matrix is sent.")
    kept, n = bucket.kept, dist.get_world_size(group)
    error = torch.zeros_like(bucket.gradients)
    pairs = list(zip(bucket.parts(bucket.gradients), bucket.parts(error)))
    thin = lambda part: part.dim() > 1 and rank * (len(part) + part[0].numel()) < part.numel()
    matrices = [(part.flatten(1), left.flatten(1)) for part, left in pairs if thin(part)]
    whole = [part for part, _ in pairs if not thin(part)]
    widths = [rank * m.shape[1] for m, _ in matrices]
    if "q" not in kept or len(kept["q"]) != sum(widths):  # the first step
        draw = torch.Generator().manual_seed(0)  # equal on all ranks
        kept["q"] = torch.randn(sum(widths), generator=draw).to(error)
    qs = [q.view(-1, rank) for q in kept["q"].split(widths)]
    ps = [m @ q for (m, _), q in zip(matrices, qs)]
    yield from sum_together([*ps, *whole], group)
    ps = [orthonormal(p) for p in ps]
    qs = [m.T @ p for (m, _), p in zip(matrices, ps)]
    yield from sum_together(qs, group)
    for (m, left), p, q in zip(matrices, ps, qs):
        mean = p @ q.T
        left.copy_(m - mean / n)
        m.copy_(mean)
    kept["q"], kept["error"] = torch.cat([error[:0], *(q.flatten() for q in qs)]), error


def sum_together(tensors: list[Tensor], group: Group):
    """All of them in one message, in place."""
    if tensors:
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        yield dist.all_reduce(flat, group=group, async_op=True)
        for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors])):
            tensor.copy_(part.view(tensor.shape))


def orthonormal(p: Tensor) -> Tensor:
    return torch.linalg.qr(p.to(torch.promote_types(p.dtype, torch.float32)))[0].to(p.dtype)
