"""Collectives made from send and recv.

    all_reduce(x)                              x becomes the sum of all ranks' x
    all_reduce(x, plan=tree_all_reduce)        the same in another way
    reduce_scatter(shard, full)                shard becomes this rank's chunk of that sum
    all_gather(full, shard)                    full becomes all ranks' shards, one after the other

Who sends which chunk to whom is a list, made in collective_plans.py. Here is what makes this rank's
moves of such a list and, for each collective, which chunks there are. Sums only: for a mean,
divide.

Chunks. The elements of a full tensor, in order, are cut into n chunks; chunk c belongs to rank c.
Where n does not divide their number, the first chunks have one element more: 8 elements on 3 ranks
are 3 + 3 + 2. An empty chunk is not sent.

All functions work in place, on any dtype, shape and strides; autograd does not see them. `group` is
a process group, by default the world; `root` is a rank in the group. gloo cannot send CUDA tensors:
they are copied to the host, all moves are made there, and what changed is copied back.

Raises ValueError, one sentence, before anything is sent, for a shard that is not this rank's chunk
in size, dtype or device. A size on which ranks disagree shows as a send and a recv that do not fit:
on shardlab's ranks that is a RanksDisagree, which names both.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from . import collective_plans as plans
from .collective_plans import Plan, ring_all_reduce

# a message is sent in pieces: while one is added, the next is under way; smaller ones cost wake-ups
PIECE_BYTES = 4 << 20

Chunk = Tensor | list[Tensor]
Chunks = Mapping[int, Chunk] | Sequence[Chunk]
Group = dist.ProcessGroup | None


def run(plan: Plan, chunks: Chunks, group: Group):
    """Make this rank's moves. `chunks` are, by number, what it sends and receives: flat tensors, in
    which sums are made in place; or lists of pieces, which are not written to: sums take their
    place in the list, and what is sent leaves it."""
    me = dist.get_rank(group)
    for moves in plan:
        receives, sends, sent = [], [], []
        for source, target, chunk, operator in moves:
            if target == me:
                here = pieces(chunks[chunk])
                for place, mine in enumerate(here):
                    arriving = torch.empty_like(mine) if operator == "+=" else mine
                    receives.append(
                        (message(dist.irecv, arriving, source, chunk, group), here, place)
                    )
            if source == me:
                leaving = pieces(chunks[chunk])
                sends += [message(dist.isend, mine, target, chunk, group) for mine in leaving]
                sent.append(leaving)
        if not receives and not sends:
            continue
        starting = [*(receive for receive, *_ in receives), *sends]
        works = dist.batch_isend_irecv(starting)  # all at once, or a ring waits for itself
        for number, (receive, here, place) in enumerate(receives):
            works[min(number, len(works) - 1)].wait()  # NCCL has one work for the whole batch
            if receive.tensor is not here[place]:
                add(receive.tensor, here, place)
        for work in works[len(receives) :]:
            work.wait()
        for leaving in sent:
            if isinstance(leaving, list):
                leaving.clear()


def message(kind, piece: Tensor, peer: int, chunk: int, group: Group) -> dist.P2POp:
    """The tag is the chunk's number, by which the communication log knows it."""
    return dist.P2POp(
        kind, piece, dist.get_global_rank(group or dist.group.WORLD, peer), group, tag=chunk
    )


def add(arrived: Tensor, here: Sequence[Tensor], place: int):
    if isinstance(here, list):
        here[place] = arrived.add_(here[place])
    else:
        here[place].add_(arrived)


def pieces(chunk: Chunk) -> Sequence[Tensor]:
    if isinstance(chunk, list):
        return chunk
    return tuple(chunk.split(max(1, PIECE_BYTES // chunk.element_size()))) if chunk.numel() else ()


# --- the collectives ------------------------------------------------------------------------------


def broadcast(tensor: Tensor, root: int = 0, group: Group = None):
    """The root's tensor, on all ranks."""
    n, _ = place(group, root)
    flat = wire(tensor, group)
    run(plans.tree_broadcast(n, root), [flat], group)
    land(flat, tensor)


def reduce(tensor: Tensor, root: int = 0, group: Group = None):
    """The sum over all ranks, on the root. The other ranks keep what they had."""
    n, me = place(group, root)
    flat = wire(tensor, group)
    run(plans.tree_reduce(n, root), [flat if me == root else list(pieces(flat))], group)
    if me == root:
        land(flat, tensor)


def all_reduce(tensor: Tensor, group: Group = None, plan=ring_all_reduce):
    """The sum over all ranks, on all ranks. `plan` is ring_all_reduce, tree_all_reduce or
    naive_all_reduce."""
    n, _ = place(group)
    moves, flat = plan(n), wire(tensor, group)
    # a ring cuts, a tree sends the whole
    chunks = 1 + max((move.chunk for step in moves for move in step), default=0)
    run(moves, flat.tensor_split(chunks), group)
    land(flat, tensor)


def scatter(shard: Tensor, full: Tensor | None = None, root: int = 0, group: Group = None):
    """This rank's chunk of the root's full tensor, which only the root gives."""
    n, me = place(group, root)
    mine = wire(shard, group)
    chunks = {me: mine}
    if me == root:
        check_shard(shard, full, n, me)
        chunks = wire(full, group).tensor_split(n)
        mine.copy_(chunks[me])
    run(plans.scatter(n, root), chunks, group)
    land(mine, shard)


def gather(shard: Tensor, full: Tensor | None = None, root: int = 0, group: Group = None):
    """All ranks' shards, one after the other, in the root's full tensor, which only the root
    gives."""
    n, me = place(group, root)
    mine = wire(shard, group)
    if me != root:
        return run(plans.gather(n, root), {me: mine}, group)
    check_shard(shard, full, n, me)
    flat = wire(full, group)
    chunks = flat.tensor_split(n)
    chunks[me].copy_(mine)
    run(plans.gather(n, root), chunks, group)
    land(flat, full)


def all_gather(full: Tensor, shard: Tensor, group: Group = None):
    """All ranks' shards, one after the other, on all ranks."""
    n, me = place(group)
    check_shard(shard, full, n, me)
    flat = wire(full, group)
    chunks = flat.tensor_split(n)
    chunks[me].copy_(wire(shard, group))
    run(plans.ring_all_gather(n), chunks, group)
    land(flat, full)


def reduce_scatter(shard: Tensor, full: Tensor, group: Group = None):
    """This rank's chunk of the sum over all ranks. `full` stays what it was."""
    n, me = place(group)
    check_shard(shard, full, n, me)
    chunks, mine = (
        [list(pieces(chunk)) for chunk in wire(full, group).tensor_split(n)],
        wire(shard, group),
    )
    run(plans.ring_reduce_scatter(n), chunks, group)
    for total, piece in zip(chunks[me], pieces(mine)):
        piece.copy_(total)
    land(mine, shard)


def all_to_all(output: Tensor, full: Tensor, group: Group = None):
    """From each rank the chunk of its full tensor that is for this rank: n of them, one after the
    other, all of one size."""
    n, me = place(group)
    check_shard(output, full, n, me, times=n)
    flat = wire(output, group)
    sent, received = wire(full, group).tensor_split(n), flat.tensor_split(n)
    received[me].copy_(sent[me])
    outgoing = {n * me + rank: chunk for rank, chunk in enumerate(sent)}
    incoming = {n * rank + me: chunk for rank, chunk in enumerate(received)}
    run(plans.all_to_all(n), outgoing | incoming, group)
    land(flat, output)


def barrier(group: Group = None):
    """Returns when all ranks have called it."""
    n, _ = place(group)
    device = "cuda" if can_send("cuda", group) and not can_send("cpu", group) else "cpu"
    tokens = torch.zeros(n, 1, dtype=torch.uint8, device=device)
    run(plans.barrier(n), tokens, group)
    tokens.cpu()  # on a GPU: until they have arrived


def hierarchical_all_reduce(tensor: Tensor, node: Group, across: Group):
    """The sum over all ranks of all nodes, for slow links between nodes, which only chunks cross.
    `node` are the ranks of this rank's node, `across` those that have its place on every node."""
    n, me = place(node)
    flat = wire(tensor, node)
    shard = torch.empty_like(flat.tensor_split(n)[me])
    reduce_scatter(shard, flat, node)
    all_reduce(shard, across)
    all_gather(flat, shard, node)
    land(flat, tensor)


# --- what they have in common ---------------------------------------------------------------------


def place(group: Group, root: int = 0) -> tuple[int, int]:
    """(n, this rank's number) in the group."""
    n, me = dist.get_world_size(group), dist.get_rank(group)
    if me < 0:
        raise ValueError(
            f"rank {dist.get_rank()} is no member of the group: only members call its collectives."
        )
    if not 0 <= root < n:
        raise ValueError(f"root = {root}: the group has ranks 0 to {n - 1}.")
    return n, me


def check_shard(shard: Tensor, full: Tensor | None, n: int, me: int, times: int = 1):
    if full is None:
        raise ValueError(f"rank {me} is the root: it gives the full tensor.")
    size = times * len(range(me, full.numel(), n))
    if shard.numel() != size:
        raise ValueError(
            f"shard has {shard.numel():,} elements: of {full.numel():,} in full, rank {me} of {n}"
            f" has {size:,}."
        )
    if (shard.dtype, shard.device) != (full.dtype, full.device):
        raise ValueError(
            f"shard is {shard.dtype} on {shard.device}, full is {full.dtype} on {full.device}: they"
            " must agree."
        )


def can_send(device_type: str, group: Group) -> bool:
    """Whether the group's backend has send and recv for tensors there."""
    backends = dict(pair.split(":") for pair in dist.get_backend_config(group).split(","))
    return (device_type, backends.get(device_type)) != ("cuda", "gloo") and device_type in backends


def wire(tensor: Tensor, group: Group) -> Tensor:
    """The elements in order and where they can be sent from: the tensor itself as a flat view if
    that is so, else a copy."""
    tensor = tensor.detach()
    return (tensor if can_send(tensor.device.type, group) else tensor.cpu()).contiguous().view(-1)


def land(flat: Tensor, tensor: Tensor):
    """Into the tensor what was made in a copy of it."""
    if flat.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(flat.view(tensor.shape))
