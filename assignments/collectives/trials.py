"""Trials of the assignment: collectives from send and recv. README.md beside this file says what a
learner builds."""

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from coursekit.exercises.assignments import Assignment
from ranklab.measure.communication import CommunicationLog
from ranklab.ranks.calls import listening
from shardlab import collectives
from shardlab.collective_plans import (
    Move,
    Plan,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
    tree_all_reduce,
)

from ..asking import (
    Here,
    Wrong,
    demand,
    expect,
    groups,
    held,
    new_groups,
    race_of_two,
    refuses,
)

COLLECTIVES = {
    "reduce_scatter": collectives.reduce_scatter,
    "all_gather": collectives.all_gather,
    "all_reduce": collectives.all_reduce,
    "tree_all_reduce": partial(collectives.all_reduce, plan=tree_all_reduce),
    "hierarchical_all_reduce": collectives.hierarchical_all_reduce,
}
ASSIGNMENT = Assignment(
    "collectives",
    reference=COLLECTIVES,
    core=COLLECTIVES,  # collectives_fast.py has other promises of memory
    forbidden=("torch.distributed._functional_collectives", "torch.distributed.nn"),
)
LENGTHS = (13, 7, 4, 2, 1)  # elements; the longest tell misconceptions apart
RACED = 1_000_000  # elements
EIGHT_BYTES = 8


def brought_by(rank: int, elements: int) -> Tensor:
    """The array of a rank: different on each rank, and no sum is a multiple of another."""
    return torch.sin(torch.arange(1.0, elements + 1, dtype=torch.float64) * (rank + 1)) + rank


def sum_of_ranks(n: int, elements: int) -> Tensor:
    return sum(brought_by(rank, elements) for rank in range(n))


def moved(plan: Plan, values: list[Tensor]) -> list[Tensor]:
    """The arrays of the ranks after a plan: where a misconception leads."""
    cut = len(values)
    held_by = [list(value.clone().tensor_split(cut)) for value in values]
    for moves in plan:
        sent = [held_by[move.source][move.chunk].clone() for move in moves]
        for move, arrived in zip(moves, sent):
            before = held_by[move.target][move.chunk]
            held_by[move.target][move.chunk] = (
                before + arrived if move.operator == "+=" else arrived
            )
    return [torch.cat(chunks) for chunks in held_by]


def of_elements(function: str, elements: int, here: Here) -> str:
    return f"{function} of {elements} elements, rank {here.me} of {here.n}"


def two_nodes() -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """(this rank's node, the ranks in its place on all nodes): two nodes of two."""
    node, across = new_groups([0, 1], [2, 3], [0, 2], [1, 3])
    return node.group, across.group


# --- parity ---------------------------------------------------------------------------------------


@ASSIGNMENT.trial("parity", "reduce_scatter")
def chunks_of_sums(mine):
    """each rank's chunk of the sum, on 1 to 4 ranks, 1 to 13 elements"""
    for here in groups(4, 3, 2, 1):
        for elements in LENGTHS:
            full = brought_by(here.me, elements)
            shard = torch.full_like(full.tensor_split(here.n)[here.me], 99.0)
            mine.reduce_scatter(shard, full, here.group)
            parts = [brought_by(rank, elements) for rank in range(here.n)]
            whole = sum(parts)
            what = of_elements("shard after reduce_scatter", elements, here)
            chunk, instead = whole.tensor_split(here.n)[here.me], {}
            for by in (1, -1):
                other = (here.me + by) % here.n
                instead[
                    f"That is the sum of chunk {other}, which belongs to rank {other}: chunk c sets"
                    " out at rank c + 1, so that rank c is the last to add."
                ] = whole.tensor_split(here.n)[other]
            instead["No part of another rank is in it."] = parts[here.me].tensor_split(here.n)[
                here.me
            ]
            short = moved(ring_reduce_scatter(here.n)[1:], parts)[here.me]
            instead[f"A part is missing: a chunk travels {here.n - 1} times."] = short.tensor_split(
                here.n
            )[here.me]
            instead["That is the mean; the sum is asked for."] = chunk / here.n
            expect(what, shard, chunk, instead)
            expect(
                f"full after reduce_scatter of {elements} elements",
                full,
                parts[here.me],
                {"": full},
            )


@ASSIGNMENT.trial("parity", "all_gather")
def all_chunks(mine):
    """the chunks of all ranks in rank order, on 1 to 4 ranks, 1 to 13 elements"""
    for here in groups(4, 3, 2, 1):
        for elements in LENGTHS:
            whole = brought_by(7, elements)
            shard = whole.tensor_split(here.n)[here.me].clone()
            full = torch.full_like(whole, 99.0)
            mine.all_gather(full, shard, here.group)
            what = of_elements("full after all_gather", elements, here)
            begin = torch.full_like(whole, 99.0)
            begin.tensor_split(here.n)[here.me].copy_(shard)
            begins = []
            for rank in range(here.n):
                one = torch.full_like(whole, 99.0)
                one.tensor_split(here.n)[rank].copy_(whole.tensor_split(here.n)[rank])
                begins.append(one)
            adding = [[Move(*move[:3], "+=") for move in step] for step in ring_all_gather(here.n)]
            instead = {
                "This rank's own chunk alone arrived.": begin,
                f"The chunks stop too early: each travels {here.n - 1} times.": moved(
                    ring_all_gather(here.n)[:-1], begins
                )[here.me],
                "A chunk that arrives is added to the one in full; it replaces that one.": moved(
                    adding, begins
                )[here.me],
                "The chunks are in another order: chunk c is that of rank c.": torch.cat(
                    list(whole.tensor_split(here.n))[::-1]
                ),
            }
            expect(what, full, whole, instead)


def _sums(mine_all_reduce: Callable, name: str, ring: bool):
    for here in groups(4, 3, 2, 1):
        for elements in LENGTHS:
            tensor = brought_by(here.me, elements)
            mine_all_reduce(tensor, here.group)
            parts = [brought_by(rank, elements) for rank in range(here.n)]
            whole = sum(parts)
            instead = {
                "Nothing changed: the result is not written into the tensor.": parts[here.me],
                "That is the mean; the sum is asked for.": whole / here.n,
            }
            if ring:
                rounds = ring_reduce_scatter(here.n), ring_all_gather(here.n)
                adding = [[Move(*move[:3], "+=") for move in step] for step in rounds[1]]
                instead |= {
                    "The first round alone: each rank has one whole sum, which the others still"
                    " need.": moved(rounds[0], parts)[here.me],
                    "In the second round whole sums travel: what arrives replaces, it is not"
                    " added.": moved([*rounds[0], *adding], parts)[here.me],
                    f"The second round stops early: a sum travels {here.n - 1} times.": moved(
                        [*rounds[0], *rounds[1][:-1]], parts
                    )[here.me],
                    f"The first round stops early: a chunk travels {here.n - 1} times.": moved(
                        [*rounds[0][:-1], *rounds[1]], parts
                    )[here.me],
                    "The second round begins with the wrong chunk: after the first, rank r has the"
                    " sum of chunk r.": moved([*rounds[0], *_begins_late(here.n)], parts)[here.me],
                }
            elif here.me:
                instead[
                    "It is rank 0 that has the whole sum: it must come down the tree again."
                ] = tensor
            expect(of_elements(f"tensor after {name}", elements, here), tensor, whole, instead)


def _begins_late(n: int) -> Plan:
    """The second round, begun with the chunk of the right neighbour."""
    return [
        [Move(rank, (rank + 1) % n, (rank - step + 1) % n, "=") for rank in range(n)]
        for step in range(n - 1)
    ]


@ASSIGNMENT.trial("parity", "all_reduce")
def sums_around_a_ring(mine):
    """the sum on all ranks, on 1 to 4 ranks, 1 to 13 elements"""
    _sums(mine.all_reduce, "all_reduce", ring=True)


@ASSIGNMENT.trial("parity", "tree_all_reduce")
def sums_along_a_tree(mine):
    """the sum on all ranks, on 1 to 4 ranks, 1 to 13 elements"""
    _sums(mine.tree_all_reduce, "tree_all_reduce", ring=False)


@ASSIGNMENT.trial("parity", "hierarchical_all_reduce")
def sums_over_two_nodes(mine):
    """the sum over two nodes of two ranks, 1 to 13 elements"""
    node, across = two_nodes()
    me = dist.get_rank()
    for elements in LENGTHS:
        tensor = brought_by(me, elements)
        mine.hierarchical_all_reduce(tensor, node, across)
        of_node = sum(brought_by(rank, elements) for rank in (me // 2 * 2, me // 2 * 2 + 1))
        of_places = sum(brought_by(rank, elements) for rank in (me % 2, me % 2 + 2))
        expect(
            f"tensor after hierarchical_all_reduce of {elements} elements, rank {me}",
            tensor,
            sum_of_ranks(4, elements),
            {
                "That is the sum of this node alone: nothing went across.": of_node,
                "That is the sum across alone: the node's other rank is missing.": of_places,
                "Nothing changed: the result is not written into the tensor.": (
                    brought_by(me, elements)
                ),
            },
        )


# --- bytes ----------------------------------------------------------------------------------------


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


# --- faults ---------------------------------------------------------------------------------------


@ASSIGNMENT.trial("faults", "reduce_scatter")
def full_is_unchanged(mine):
    """full stays what it was, also in a second call"""
    for here in groups(3):
        full = brought_by(here.me, 7)
        shard = full.tensor_split(here.n)[here.me].clone()
        for call in ("first", "second"):
            mine.reduce_scatter(shard, full, here.group)
            demand(
                torch.equal(full, brought_by(here.me, 7)),
                f"reduce_scatter changed full in the {call} call: add in a copy.",
            )
            expect(
                f"shard after the {call} reduce_scatter",
                shard,
                sum_of_ranks(here.n, 7).tensor_split(here.n)[here.me],
            )


@ASSIGNMENT.trial("faults", "reduce_scatter")
def wrong_shards_of_sums(mine):
    """a shard of another size or dtype than its chunk is refused before anything is sent"""
    for here in groups(3):
        full = brought_by(here.me, 7)
        call = partial(mine.reduce_scatter, full=full, group=here.group)
        _refuses_shards(call, full, here)


@ASSIGNMENT.trial("faults", "all_gather")
def wrong_shards_to_gather(mine):
    """a shard of another size or dtype than its chunk is refused before anything is sent"""
    for here in groups(3):
        full = brought_by(here.me, 7)
        _refuses_shards(partial(mine.all_gather, full, group=here.group), full, here)


def _refuses_shards(call: Callable, full: Tensor, here: Here):
    chunk = full.tensor_split(here.n)[here.me]
    for words, shard in (
        (f"{len(chunk) + 1} elements", chunk.new_zeros(len(chunk) + 1)),
        ("float32", chunk.float()),
    ):
        refuses(
            f"a shard of {words}, where rank {here.me}'s chunk is {len(chunk)} of float64,",
            call,
            shard=shard,
            errors=(ValueError,),
        )


@ASSIGNMENT.trial("faults", "all_reduce")
def strange_tensors_around_a_ring(mine):
    """columns, integers, parameters, fewer elements than ranks, a second call"""
    _strange(mine.all_reduce, "all_reduce")


@ASSIGNMENT.trial("faults", "tree_all_reduce")
def strange_tensors_along_a_tree(mine):
    """columns, integers, parameters, a second call"""
    _strange(mine.tree_all_reduce, "tree_all_reduce")


@ASSIGNMENT.trial("faults", "hierarchical_all_reduce")
def strange_tensors_over_nodes(mine):
    """columns, integers, parameters, a second call"""
    node, across = two_nodes()
    _strange(
        lambda tensor, _: mine.hierarchical_all_reduce(tensor, node, across),
        "hierarchical_all_reduce",
        sizes=(4,),
    )


def _strange(all_reduce: Callable, name: str, sizes: tuple[int, ...] = (3, 4)):
    for here in groups(*sizes):
        grid = brought_by(here.me, 12).view(3, 4).clone()
        all_reduce(grid[:, 1:3], here.group)
        wanted = brought_by(here.me, 12).view(3, 4).clone()
        wanted[:, 1:3] = sum_of_ranks(here.n, 12).view(3, 4)[:, 1:3]
        expect(
            f"a grid [3, 4] after {name} of its columns 1 and 2",
            grid,
            wanted,
            {
                "Nothing changed: columns are not contiguous, so a flat copy was summed; copy the"
                " result back.": brought_by(here.me, 12).view(3, 4)
            },
        )
        counts = torch.tensor([here.me, 10, 2**60])
        all_reduce(counts, here.group)
        expect(
            f"integers after {name}",
            counts,
            torch.tensor([sum(range(here.n)), 10 * here.n, here.n * 2**60]),
            close=0,
        )
        parameter = torch.nn.Parameter(brought_by(here.me, 5))
        try:
            all_reduce(parameter, here.group)
        except RuntimeError as error:
            raise Wrong(
                f"{name} of a parameter raised {error}: autograd must not see it, detach() first."
            ) from error
        expect(f"a parameter after {name}", parameter, sum_of_ranks(here.n, 5))
        demand(
            parameter.is_leaf and parameter.requires_grad,
            f"{name} made autograd record the sum of a parameter: detach() first.",
        )
        twice = brought_by(here.me, 6)
        all_reduce(twice, here.group)
        all_reduce(twice, here.group)
        expect(f"a tensor after two calls of {name}", twice, sum_of_ranks(here.n, 6) * here.n)


# --- speed ----------------------------------------------------------------------------------------


def _race(mine: Callable, name: str) -> tuple[float, float]:
    tensor = torch.ones(RACED)
    return race_of_two(lambda: mine(tensor), lambda: ASSIGNMENT.reference[name](tensor))


@ASSIGNMENT.trial("speed", "all_reduce")
def seconds_of_a_ring(mine):
    """4 MB on 4 ranks"""
    return _race(mine.all_reduce, "all_reduce")


@ASSIGNMENT.trial("speed", "tree_all_reduce")
def seconds_of_a_tree(mine):
    """4 MB on 4 ranks"""
    return _race(mine.tree_all_reduce, "tree_all_reduce")
