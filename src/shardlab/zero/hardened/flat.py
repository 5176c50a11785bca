"""The common ground of all stages of ZeRO: flat tensors, one chunk of which each rank owns, and the
two collectives on them.

A flat tensor is cut into n chunks as collectives.py cuts. A ring pads nothing; Native needs equal
chunks, so fewer than n zeros are behind the parameters, as in the core.

    reduce_scatter(tensors)  returns, of the flat tensor that these would make, this rank's chunk of
                             the sum over all ranks [about E/n], in one new tensor or in several,
                             one after the other. Each element is multiplied by `share` before it is
                             added, so that a mean does not overflow where 16-bit sums would. The
                             given tensors stay what they are; the list is emptied when they are
                             no longer needed, so that their memory can go
    all_gather(flat)         in place: the other chunks become what their ranks have in them

A stage calls them on an object: Ring(), Native(), or one of your own with these methods.
`best_collectives` chooses between the two.
"""

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
    has_exact_mean,
    has_mean,
    place,
    reduce_scatter_single,
    wire,
)
from ...common.torch_internals import active_fake_mode
from .arriving import ChunkOfSum

# of the number of a message's chunk; the bits above are the unit's, which ranklab.ranks names
UNIT_BITS = 16


class Ring:
    """A ring of sends and receives: (n - 1)/n of the bytes cross each link. `unit` is the number of
    the unit of stage 3 whose messages these are: ranks that run different units do not receive each
    other's messages, or are named."""

    unit = 0
    make_moves = staticmethod(run)

    def run(self, plan: plans.Plan, chunks, group: Group, **named):
        """Make the moves of chunks, by whose numbers a message is known."""
        first = self.unit << UNIT_BITS
        plan = [[move._replace(chunk=first + move.chunk) for move in moves] for moves in plan]
        chunks = {first + chunk: tensor for chunk, tensor in enumerate(chunks)}
        self.make_moves(plan, chunks, group, **named)

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
        return [len(own_range(sum(tensor.numel() for tensor in tensors), group))]

    def zeros_behind(self, elements: int, group: Group = None) -> int:
        """The zeros that these elements have behind them in a bucket or unit."""
        return 0


class Native(Ring):
    """PyTorch's own collectives: on GPUs, NCCL's rings. They need chunks of one size: whoever calls
    them has put zeros_behind the elements. On GPUs only fp16, whose sums could overflow, is
    multiplied before it is added, where NCCL's mean is not exact. What is not multiplied is copied
    as it is, and a lone gradient leaves from its own memory."""

    def reduce_scatter(
        self, tensors: list[Tensor], group: Group = None, share: float = 1.0
    ) -> list[Tensor]:
        return self.begin_reduce_scatter(tensors, group, share)()

    def all_gather(self, flat: Tensor, group: Group = None):
        self.begin_all_gather(flat, group)()

    def zeros_behind(self, elements: int, group: Group = None) -> int:
        return -elements % place(group)[0]

    def begin_reduce_scatter(self, tensors: list[Tensor], group: Group, share: float) -> ChunkOfSum:
        """Returns a function that waits and returns what reduce_scatter does."""
        (n, _), dtype, device = place(group), tensors[0].dtype, tensors[0].device
        on_gpu = has_mean(device, group)
        mean = on_gpu and share == 1 / n and has_exact_mean(dtype, n)
        late = on_gpu and not mean and dtype is not torch.float16
        if (mean or late) and len(tensors) == 1 and tensors[0].is_contiguous():
            even = tensors[0].detach().view(-1)
        else:
            even = flattened(tensors, 1.0 if mean or late else share)
        tensors.clear()
        shard = even.new_empty(even.numel() // n)
        shard.unit = self.unit
        op = dist.ReduceOp.AVG if mean else dist.ReduceOp.SUM
        work = reduce_scatter_single(shard, even, op=op, group=group, async_op=True)

        def arrive():
            work.wait()
            if late:
                shard.mul_(share)

        return ChunkOfSum(shard, even, arrive)

    def begin_all_gather(
        self, flat: Tensor, group: Group, own: Tensor | None = None
    ) -> Callable[[], object]:
        """Returns a function that waits until the flat tensor is whole. `own` is this rank's chunk
        if it is somewhere else until then."""
        own = own_chunk(flat, group) if own is None else own
        own.unit = self.unit
        return all_gather_single(flat, own, group=group, async_op=True).wait


def best_collectives(device: torch.device, group: Group = None, asked: Ring | None = None) -> Ring:
    """The asked collectives, or the fastest for the group. gloo makes a reduce-scatter from an
    all-reduce, so Ring is faster; NCCL has rings of its own. Tensors without contents belong to
    virtual GPUs."""
    if asked is not None:
        return asked
    by_gloo = backend_for(device.type, group) == "gloo" and active_fake_mode() is None
    return Ring() if by_gloo else Native()


# --- tensors, one after the other -----------------------------------------------------------------


def flattened(tensors: list[Tensor], share: float = 1.0) -> Tensor:
    """[E]: a copy of the tensors, one after the other, each element multiplied by `share`. Each is
    read once and written once, in whatever order its memory is."""
    tensors = [tensor.detach() for tensor in tensors]
    if share == 1.0 and all(tensor.is_contiguous() for tensor in tensors):
        return torch.cat([tensor.view(-1) for tensor in tensors])
    sizes = [tensor.numel() for tensor in tensors]
    flat = tensors[0].new_empty(sum(sizes))
    for tensor, part in zip(tensors, flat.split(sizes)):
        part = part.view(tensor.shape)
        part.copy_(tensor) if share == 1.0 else torch.mul(tensor, share, out=part)
    return flat


def filled(tensors: list[Tensor | None], shapes: list[torch.Size], like: Tensor) -> list[Tensor]:
    """None means zeros of the expected shape."""
    return [
        like.new_zeros(shape) if tensor is None else tensor
        for tensor, shape in zip(tensors, shapes)
    ]


def own_chunk(flat: Tensor, group: Group = None) -> Tensor:
    """This rank's chunk of a flat tensor [E], as a view [about E/n]."""
    chunk = own_range(flat.numel(), group)
    return flat.narrow(0, chunk.start, len(chunk))


def own_range(elements: int, group: Group = None) -> range:
    n, me = place(group)
    return chunk_of(me, elements, n)


def chunk_of(rank: int, elements: int, n: int) -> range:
    """The elements of a flat tensor that belong to the rank, cut as tensor_split does: the first
    chunks have one more."""
    start = rank * (elements // n) + min(rank, elements % n)
    return range(start, start + len(range(rank, elements, n)))


def places_in(chunk: range, sizes: list[int]) -> list[range]:
    """Which elements of each of several tensors, of these sizes and one after the other, are in the
    chunk."""
    places, begin = [], 0
    for size in sizes:
        start, stop = (min(max(edge - begin, 0), size) for edge in (chunk.start, chunk.stop))
        places.append(range(start, stop))
        begin += size
    return places
