"""What does each rank send and hold?"""

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist

from coursekit.exercises.on_a_rank import Here, demand, groups, held
from shardlab.collective_plans import ring_all_reduce
from shardlab.measure.communication import CommunicationLog
from shardlab.ranks.calls import listening

from .given import ASSIGNMENT, EIGHT_BYTES, brought_by, two_nodes


def _sent(call: Callable, name: str) -> list:
    """The messages that the call sends. Nothing but send and recv may be used."""
    with CommunicationLog() as log:
        call()
    others = sorted({m.operation for m in log.messages} - {"send", "recv"})
    demand(
        not others,
        f"{name} calls PyTorch's {', '.join(others)}: build it from send and recv alone.",
    )
    return [message for message in log.messages if message.operation == "send"]


def _demand_bytes(name: str, sent: list, wanted: int, steps: int, elements: int, here: Here):
    nbytes = sum(message.nbytes for message in sent)
    whole = elements * EIGHT_BYTES
    why = ""
    if sent and max(message.nbytes for message in sent) >= whole:
        why = " The whole tensor travels: a ring sends one chunk in each step."
    elif len(sent) > steps:
        why = f" There are {len(sent)} messages: a ring has {steps}."
    elif len(sent) < steps:
        why = f" There are {len(sent)} messages: a ring has {steps}, each of one chunk."
    demand(
        nbytes == wanted,
        f"{name} of {elements} elements: rank {here.me} of {here.n} should send {wanted} bytes, and"
        f" sends {nbytes}.{why}",
    )
    demand(
        len(sent) == steps,
        f"{name}: rank {here.me} of {here.n} should send {steps} messages, and sends {len(sent)}.",
    )
    right = (here.me + 1) % here.n
    others = sorted({message.peer for message in sent} - {right})
    demand(
        not others,
        f"{name}: rank {here.me} of {here.n} sends to rank {', '.join(map(str, others))}: around a"
        f" ring it sends to its right neighbour alone, rank {right}.",
    )


@ASSIGNMENT.trial("bytes", "reduce_scatter")
def bytes_of_half_a_ring(mine):
    """n - 1 messages to the right neighbour, all chunks but this rank's own"""
    for here in groups(4, 3):
        full = brought_by(here.me, 13)
        shard = full.tensor_split(here.n)[here.me].clone()
        sent = _sent(partial(mine.reduce_scatter, shard, full, here.group), "reduce_scatter")
        wanted = (13 - len(shard)) * EIGHT_BYTES
        _demand_bytes("reduce_scatter", sent, wanted, here.n - 1, 13, here)


@ASSIGNMENT.trial("bytes", "all_gather")
def bytes_of_the_other_half(mine):
    """n - 1 messages to the right neighbour, all chunks but the neighbour's own"""
    for here in groups(4, 3):
        full = brought_by(here.me, 13)
        chunks = full.tensor_split(here.n)
        shard = chunks[here.me].clone()
        sent = _sent(partial(mine.all_gather, full, shard, here.group), "all_gather")
        wanted = (13 - len(chunks[(here.me + 1) % here.n])) * EIGHT_BYTES
        _demand_bytes("all_gather", sent, wanted, here.n - 1, 13, here)


@ASSIGNMENT.trial("bytes", "all_reduce")
def bytes_of_a_ring(mine):
    """2 (n - 1) messages to the right neighbour, 2 (n - 1)/n of the tensor"""
    for here in groups(4, 3):
        tensor = brought_by(here.me, 13)
        sizes = [len(chunk) for chunk in tensor.tensor_split(here.n)]
        sent = _sent(partial(mine.all_reduce, tensor, here.group), "all_reduce")
        moves = [m for step in ring_all_reduce(here.n) for m in step if m.source == here.me]
        wanted = sum(sizes[move.chunk] for move in moves) * EIGHT_BYTES
        _demand_bytes("all_reduce", sent, wanted, 2 * (here.n - 1), 13, here)


@ASSIGNMENT.trial("bytes", "all_reduce")
def memory_of_a_ring(mine):
    """at most two chunks of memory besides the tensor"""
    for here in groups(4):
        tensor = torch.ones(4000, dtype=torch.float64)
        most = held(mine.all_reduce, tensor, here.group) - tensor.nbytes
        demand(
            most <= 2 * 1000 * EIGHT_BYTES,
            f"all_reduce of {tensor.nbytes:,} bytes on 4 ranks held {most:,} bytes more: two chunks"
            f" are {2 * 1000 * EIGHT_BYTES:,}. Chunks are views of the tensor, and what arrives"
            " needs room for one.",
        )


@ASSIGNMENT.trial("bytes", "tree_all_reduce")
def messages_along_a_tree(mine):
    """at most 2 ceil(log2 n) messages at a rank, 2 (n - 1) in all, each of the whole tensor"""
    for here in groups(4, 3, 2):
        tensor = brought_by(here.me, 7)
        with CommunicationLog() as log:
            mine.tree_all_reduce(tensor, here.group)
        others = sorted({m.operation for m in log.messages} - {"send", "recv"})
        demand(
            not others,
            f"tree_all_reduce calls PyTorch's {', '.join(others)}: build it from send and recv.",
        )
        most = 2 * math.ceil(math.log2(here.n))
        demand(
            len(log.messages) <= most,
            f"tree_all_reduce: rank {here.me} of {here.n} sends and receives {len(log.messages)}"
            f" messages, and a binomial tree has at most {most} at a rank: let the ranks that have"
            " something send at the same time.",
        )
        sent = [message.nbytes for message in log.messages if message.operation == "send"]
        counts = torch.tensor([len(sent), sum(sent)])
        dist.all_reduce(counts, group=here.group)
        wanted = 2 * (here.n - 1)
        demand(
            counts.tolist() == [wanted, wanted * tensor.nbytes],
            f"tree_all_reduce of {tensor.nbytes} bytes: {here.n} ranks should send"
            f" {wanted} messages of {tensor.nbytes} bytes, and send {counts[0]} of {counts[1]}"
            " bytes in all.",
        )


@ASSIGNMENT.trial("bytes", "hierarchical_all_reduce")
def bytes_across_nodes(mine):
    """chunks alone cross between nodes: half the tensor from each of four ranks"""
    node, across = two_nodes()
    tensor = brought_by(dist.get_rank(), 12)
    crossed, other_bytes, others = [], [], set()

    def hear(call):
        if call.name == "send":
            nbytes = sum(one.nbytes for one in call.own)
            (crossed if call.group is across else other_bytes).append(nbytes)
        elif call.name != "recv":
            others.add(call.name)
        return lambda result: None

    with listening(hear):
        mine.hierarchical_all_reduce(tensor, node, across)
    demand(
        not others,
        f"hierarchical_all_reduce calls PyTorch's {', '.join(sorted(others))}: build it from send"
        " and recv.",
    )
    demand(
        sum(crossed) == tensor.nbytes // 2,
        f"hierarchical_all_reduce of {tensor.nbytes} bytes: rank {dist.get_rank()} should send"
        f" {tensor.nbytes // 2} bytes across, and sends {sum(crossed)}: reduce-scatter on the node"
        " first, so that each rank has one chunk to sum across.",
    )
    demand(
        sum(other_bytes) == tensor.nbytes,
        f"hierarchical_all_reduce of {tensor.nbytes} bytes: rank {dist.get_rank()} should send"
        f" {tensor.nbytes} bytes on its node, and sends {sum(other_bytes)}: half in the"
        " reduce-scatter, half in the all-gather.",
    )
