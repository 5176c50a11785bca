"""Collectives made from send and recv.

    all_reduce(x)                              x becomes the sum of all ranks' x
    all_reduce(x, plan=tree_all_reduce)        the same in another way
    reduce_scatter(shard, full)                shard becomes this rank's chunk of that sum
    all_gather(full, shard)                    full becomes all ranks' shards, one after the other

A plan from collective_plans.py says who sends which chunk to whom. `run` makes this rank's moves of
a plan, and each collective says which chunks there are. Sums only: for a mean, divide.
collectives_fast.py has the same functions, faster and harder to read.

Chunks. The elements of a full tensor, in order, are cut into n chunks; chunk c belongs to rank c.
Where n does not divide their number, the first chunks have one element more: 8 elements on 3 ranks
are 3 + 3 + 2. An empty chunk is not sent.

All functions work in place, on any dtype, shape and strides; autograd does not see them. `group` is
a process group, by default the world; `root` is a rank in the group. gloo cannot send CUDA tensors:
they are copied to the host, all moves are made there, and the result is copied back.

Raises ValueError, one sentence, before anything is sent, for a shard that is not this rank's chunk
in size, dtype or device. If ranks disagree on a size, a send and its recv do not match: shardlab's
ranks raise RanksDisagree, which names both.

Peers. gloo has a ring for all-reduce and all-gather, cut into segments so that one segment is added
while the next travels, a binomial tree for broadcast, and the same barrier; PyTorch makes gloo's
reduce-scatter from a whole all-reduce. NCCL chooses by message size and topology among rings,
double binary trees and switches that add (NVLS); its kernel receives, adds and sends a slice in one
pass.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from . import collective_plans as plans
from .collective_plans import Plan, ring_all_reduce
from .common.collective_wire import Group, can_send, check_shard, copy_if_shared, land, place, wire

Chunks = Mapping[int, Tensor] | Sequence[Tensor]  # flat tensors by number


def run(plan: Plan, chunks: Chunks, group: Group):
    """Make this rank's moves. A sum is made in the chunk of the rank that receives."""
    me = dist.get_rank(group)
    for moves in plan:
        mine = [m for m in moves if me in (m.source, m.target) and chunks[m.chunk].numel()]
        arriving = [(m, torch.empty_like(chunks[m.chunk])) for m in mine if m.target == me]
        leaving = [(m, chunks[m.chunk]) for m in mine if m.source == me]
        start = [message(dist.irecv, tensor, m.source, m.chunk, group) for m, tensor in arriving]
        start += [message(dist.isend, tensor, m.target, m.chunk, group) for m, tensor in leaving]
        for work in dist.batch_isend_irecv(start) if start else ():
            work.wait()
        for move, arrived in arriving:
            chunk = chunks[move.chunk]
            if move.operator == "+=":
                chunk += arrived
            else:
                chunk[:] = arrived


def message(kind, tensor: Tensor, peer: int, chunk: int, group: Group) -> dist.P2POp:
    """The tag is the chunk's number, by which the communication log knows it."""
    peer = dist.get_global_rank(group or dist.group.WORLD, peer)
    return dist.P2POp(kind, tensor, peer, group, tag=chunk)


# --- the collectives ------------------------------------------------------------------------------


def broadcast(tensor: Tensor, root: int = 0, group: Group = None):
    """The root's tensor, on all ranks."""
    n, _ = place(group, root)
    flat = wire(tensor, group)
    run(plans.tree_broadcast(n, root), [flat], group)
    land(flat, tensor)


def reduce(tensor: Tensor, root: int = 0, group: Group = None):
    """The sum over all ranks, on the root. The other ranks keep their values."""
    n, me = place(group, root)
    flat = wire(tensor, group)
    total = flat if me == root else flat.clone()
    run(plans.tree_reduce(n, root), [total], group)
    if me == root:
        land(total, tensor)


def all_reduce(tensor: Tensor, group: Group = None, plan=ring_all_reduce, run=run):
    """The sum over all ranks, on all ranks. `plan` is ring_all_reduce, tree_all_reduce or
    naive_all_reduce."""
    n, _ = place(group)
    moves, flat = plan(n), wire(tensor, group)
    # a ring cuts, a tree sends the whole
    chunks = 1 + max((move.chunk for step in moves for move in step), default=0)
    run(moves, flat.tensor_split(chunks), group)
    land(flat, tensor)


def scatter(shard: Tensor, full: Tensor | None = None, root: int = 0, group: Group = None):
    """This rank's chunk of the root's full tensor. Only the root passes a full tensor."""
    n, me = place(group, root)
    mine = wire(shard, group)
    chunks = {me: mine}
    if me == root:
        check_shard(shard, full, n, me)
        chunks = wire(full, group).tensor_split(n)
    run(plans.scatter(n, root), chunks, group)
    mine.copy_(chunks[me])  # last: the shard may be a part of full
    land(mine, shard)


def gather(shard: Tensor, full: Tensor | None = None, root: int = 0, group: Group = None):
    """All ranks' shards, one after the other, in the root's full tensor. Only the root passes a
    full tensor."""
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


def all_gather(full: Tensor, shard: Tensor, group: Group = None, run=run):
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
    chunks = wire(full, group).clone().tensor_split(n)
    run(plans.ring_reduce_scatter(n), chunks, group)
    land(chunks[me], shard)


def all_to_all(output: Tensor, full: Tensor, group: Group = None):
    """The chunks for this rank from the full tensors of all ranks, one after the other. All n
    chunks have the same size."""
    n, me = place(group)
    check_shard(output, full, n, me, times=n)
    flat = wire(output, group)
    leaving = copy_if_shared(wire(full, group), flat)
    sent, received = leaving.tensor_split(n), flat.tensor_split(n)
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
    tokens.cpu()  # on a GPU: wait until the messages have arrived


def hierarchical_all_reduce(tensor: Tensor, node: Group, across: Group):
    """The sum over all ranks of all nodes, for slow links between nodes: there each rank sends only
    its chunk of the node's sum, 1/n of the array for n ranks in a node. `node` is the group of this
    rank's node, `across` the group of the ranks with the same place on each node."""
    n, me = place(node)
    flat = wire(tensor, node)
    shard = torch.empty_like(flat.tensor_split(n)[me])
    reduce_scatter(shard, flat, node)
    all_reduce(shard, across)
    all_gather(flat, shard, node)
    land(flat, tensor)
