"""The common ground of all stages of ZeRO: flat tensors, one chunk of which each rank owns, and the
two collectives on them.

Many tensors are laid one after the other in one flat tensor, which is cut into n chunks as
collectives.py cuts: chunk r belongs to rank r, and where n does not divide the elements, the first
chunks have one more. Nothing is padded, so bytes are exact; but where Native gathers a bucket in
place, fewer than n zeros behind the parameters make its chunks equal, as in the core.

There are two collectives on it:

    reduce_scatter(tensors)  returns, of the flat tensor that these would make, this rank's chunk of
                             the sum over all ranks [about E/n], in one new tensor or in several,
                             one after the other. Each element is multiplied by `share` before it is
                             added, so that a mean does not overflow where 16-bit sums would. The
                             given tensors stay what they are; the list is emptied when they are
                             no longer needed, so that their memory can go
    all_gather(flat)         in place: the other chunks become what their ranks have in them

A stage calls them on an object: Ring(), Native(), fast_ring.Ring(), or one of your own with these
methods. `best_collectives` chooses between the first two.
"""

from bisect import bisect_right
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from ... import collective_plans as plans
from ... import collectives
from ...collectives import run
from ...common.collective_wire import (
    Group,
    all_gather_single,
    backend_for,
    place,
    reduce_scatter_single,
    wire,
)
from ...common.torch_internals import active_fake_mode
from .arriving import ChunkOfSum


class Ring:
    """A ring of sends and receives: (n - 1)/n of the bytes cross each link."""

    run = staticmethod(run)  # makes the moves

    def reduce_scatter(
        self, tensors: list[Tensor], group: Group = None, share: float = 1.0
    ) -> list[Tensor]:
        n, _ = place(group)
        device, flat = tensors[0].device, wire(flattened(tensors, share), group)
        tensors.clear()
        self.run(plans.ring_reduce_scatter(n), flat.tensor_split(n), group)
        return [own_chunk(flat, group).to(device, copy=True)]

    def all_gather(self, flat: Tensor, group: Group = None):
        collectives.all_gather(flat, own_chunk(flat, group), group, self.run)

    def parts_of_a_shard(self, tensors: list[Tensor], group: Group = None) -> list[int]:
        """The elements of each tensor that reduce_scatter will return."""
        n, me = place(group)
        return [len(chunk_of(me, sum(tensor.numel() for tensor in tensors), n))]

    def zeros_behind(self, elements: int, group: Group = None) -> int:
        """The zeros that these elements have behind them in a bucket."""
        return 0

    def __repr__(self):
        return f"{type(self).__module__.rpartition('.')[2]}.{type(self).__name__}()"


class Native(Ring):
    """PyTorch's own collectives: on GPUs, NCCL's rings. They need chunks of one size: if n does not
    divide the elements, each chunk that is smaller than the first has a zero behind it on its
    way. A lone gradient leaves from its own memory where the backend makes means."""

    unit = 0  # of stage 3, whose messages these are: ranklab.ranks compares its number

    def reduce_scatter(
        self, tensors: list[Tensor], group: Group = None, share: float = 1.0
    ) -> list[Tensor]:
        return self.begin_reduce_scatter(tensors, group, share)()

    def all_gather(self, flat: Tensor, group: Group = None):
        self.begin_all_gather(flat, group)()

    def zeros_behind(self, elements: int, group: Group = None) -> int:
        """Elements to add so that all chunks have one size, and no chunk is copied on its way."""
        return -elements % place(group)[0]

    def begin_reduce_scatter(self, tensors: list[Tensor], group: Group, share: float) -> ChunkOfSum:
        """Returns a function that waits and returns what reduce_scatter does."""
        n, me = place(group)
        elements = sum(tensor.numel() for tensor in tensors)
        mean = share == 1 / n and multiplies_first(tensors[0], group)
        if elements % n:
            even = padded(tensors, n) if mean else padded(tensors, n).mul_(share)
        elif mean and len(tensors) == 1 and tensors[0].is_contiguous():
            even = tensors[0].detach().view(-1)
        else:
            even, mean = flattened(tensors, share), False
        tensors.clear()
        shard = even.new_empty(even.numel() // n)
        shard.unit = self.unit
        op = dist.ReduceOp.AVG if mean else dist.ReduceOp.SUM
        work = reduce_scatter_single(shard, even, op=op, group=group, async_op=True)
        return ChunkOfSum(shard[: len(chunk_of(me, elements, n))], even, work.wait)

    def begin_all_gather(
        self, flat: Tensor, group: Group, own: Tensor | None = None
    ) -> Callable[[], object]:
        """Returns a function that waits until the flat tensor is whole. `own` is this rank's chunk
        if it is somewhere else until then."""
        n, me = place(group)
        own = own_chunk(flat, group) if own is None else own
        if flat.numel() % n == 0:
            own.unit = self.unit
            return all_gather_single(flat, own, group=group, async_op=True).wait
        rows = flat.new_empty(n, flat.numel() // n + 1)
        rows[me, : own.numel()] = own
        own = rows[me]
        own.unit = self.unit
        work = all_gather_single(rows.view(-1), own, group=group, async_op=True)

        def arrived():
            work.wait()
            chunks = zip(rows, flat.tensor_split(n))
            torch.cat([row[: chunk.numel()] for row, chunk in chunks], out=flat)

        return arrived


def padded(tensors: list[Tensor], n: int) -> Tensor:
    """A copy of the tensors, one after the other, in n chunks of one size: a zero ends each chunk
    that is smaller than the first."""
    elements = sum(tensor.numel() for tensor in tensors)
    smaller = range(elements % n or n, n)
    ends = [chunk_of(rank, elements, n).stop for rank in smaller]
    zero, parts, begin = tensors[0].new_zeros(1), [], 0
    for tensor in tensors:
        end = begin + tensor.numel()
        inside = ends[bisect_right(ends, begin) : bisect_right(ends, end)]
        first, *others = tensor.detach().reshape(-1).tensor_split([e - begin for e in inside])
        parts.append(first)
        for part in others:
            parts += [zero, part]
        begin = end
    return torch.cat(parts)


def multiplies_first(tensor: Tensor, group: Group) -> bool:
    """Whether the backend's mean is a sum of shares, as NCCL's is for floating-point numbers, and
    as virtual GPUs' is. 1/n is rounded to the tensor's dtype: 16 bits have it for powers of two."""
    n, _ = place(group)
    nccl = active_fake_mode() is not None or backend_for(tensor.device.type, group) == "nccl"
    return nccl and (tensor.element_size() > 2 or n & (n - 1) == 0)


def best_collectives(device: torch.device, group: Group = None, asked: Ring | None = None) -> Ring:
    """The asked collectives, or the fastest for the group. gloo makes a reduce-scatter from an
    all-reduce, so Ring is faster; NCCL has rings of its own. Tensors without contents belong to
    virtual GPUs."""
    if asked is not None:
        return asked.on(device, group) if hasattr(asked, "on") else asked
    by_gloo = backend_for(device.type, group) == "gloo" and active_fake_mode() is None
    return Ring() if by_gloo else Native()


# --- tensors, one after the other -----------------------------------------------------------------


def flattened(tensors: list[Tensor], share: float = 1.0) -> Tensor:
    """[E]: a copy of the tensors, one after the other, each element multiplied by `share`."""
    tensors = [tensor.detach() for tensor in tensors]
    if share == 1.0:
        return torch.cat([tensor.reshape(-1) for tensor in tensors])
    sizes = [tensor.numel() for tensor in tensors]
    flat = tensors[0].new_empty(sum(sizes))
    for tensor, part in zip(tensors, flat.split(sizes)):  # copied and multiplied in one pass
        torch.mul(tensor, share, out=part.view(tensor.shape))
    return flat


def own_chunk(flat: Tensor, group: Group = None) -> Tensor:
    """This rank's chunk of a flat tensor [E], as a view [about E/n]."""
    n, me = place(group)
    chunk = chunk_of(me, flat.numel(), n)
    return flat.narrow(0, chunk.start, len(chunk))


def chunk_of(rank: int, elements: int, n: int) -> range:
    """The elements of a flat tensor that belong to the rank, cut as tensor_split does: the first
    chunks have one more."""
    start = rank * (elements // n) + min(rank, elements % n)
    return range(start, start + len(range(rank, elements, n)))
