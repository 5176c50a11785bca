"""The assignment on collectives: another solution than the book's is right, the skeleton is a list
of TODOs, and each misconception gets its sentence."""

import pytest
from graded import check_sentence, results, skeleton

pytestmark = pytest.mark.ranks

SOLUTION = '''
import torch
import torch.distributed as dist


def cut(tensor, group):
    n, me = dist.get_world_size(group), dist.get_rank(group)
    return n, me, list(tensor.tensor_split(n))


def swap(group, outgoing, incoming, to, source):
    """Sends and receives at the same time; ranks of the group."""
    world = [dist.get_global_rank(group or dist.group.WORLD, rank) for rank in (to, source)]
    sent = dist.isend(outgoing, world[0], group) if outgoing.numel() else None
    if incoming.numel():
        dist.recv(incoming, world[1], group)
    if sent is not None:
        sent.wait()


def check(shard, full, group):
    chunk = cut(full.detach().reshape(-1), group)[2][dist.get_rank(group)]
    if shard.numel() != chunk.numel() or shard.dtype != full.dtype:
        raise ValueError(f"shard has {shard.numel()} elements, the chunk {chunk.numel()}.")


def add_up(chunks, n, me, group):
    for step in range(1, n):
        arriving = torch.empty_like(chunks[(me - 1 - step) % n])
        swap(group, chunks[(me - step) % n], arriving, (me + 1) % n, (me - 1) % n)
        chunks[(me - 1 - step) % n] += arriving


def hand_out(chunks, n, me, group):
    for step in range(n - 1):
        arriving = torch.empty_like(chunks[(me - 1 - step) % n])
        swap(group, chunks[(me - step) % n], arriving, (me + 1) % n, (me - 1) % n)
        chunks[(me - 1 - step) % n].copy_(arriving)


def reduce_scatter(shard, full, group=None):
    check(shard, full, group)
    n, me, chunks = cut(full.detach().reshape(-1).clone(), group)
    add_up(chunks, n, me, group)
    shard.detach().copy_(chunks[me].view(shard.shape))


def all_gather(full, shard, group=None):
    check(shard, full, group)
    flat = full.detach().contiguous().view(-1)
    n, me, chunks = cut(flat, group)
    chunks[me].copy_(shard.detach().reshape(-1))
    hand_out(chunks, n, me, group)
    full.detach().copy_(flat.view(full.shape))


def all_reduce(tensor, group=None):
    flat = tensor.detach().contiguous().view(-1)
    n, me, chunks = cut(flat, group)
    add_up(chunks, n, me, group)
    hand_out(chunks, n, me, group)
    tensor.detach().copy_(flat.view(tensor.shape))


def tree_all_reduce(tensor, group=None):
    flat = tensor.detach().contiguous().view(-1)
    n, me, _ = cut(flat, group)
    peers = dist.get_process_group_ranks(group or dist.group.WORLD)
    arriving, distance, parent = torch.empty_like(flat), 1, None
    while distance < n and parent is None:
        if me & distance:
            parent = me - distance
            dist.send(flat, peers[parent], group)
        elif me + distance < n:
            dist.recv(arriving, peers[me + distance], group)
            flat += arriving
        distance *= 2
    if parent is not None:
        dist.recv(flat, peers[parent], group)
        distance //= 2
    while distance > 1:
        distance //= 2
        if me + distance < n:
            dist.send(flat, peers[me + distance], group)
    tensor.detach().copy_(flat.view(tensor.shape))


def hierarchical_all_reduce(tensor, node, across):
    flat = tensor.detach().contiguous().view(-1)
    shard = torch.empty_like(cut(flat, node)[2][dist.get_rank(node)])
    reduce_scatter(shard, flat, node)
    all_reduce(shard, across)
    all_gather(flat, shard, node)
    tensor.detach().copy_(flat.view(tensor.shape))
'''


def test_another_solution_passes(worlds):
    """Must catch: a trial that refuses a right solution, such as one that wants the reference's
    calls and not only its bytes."""
    found = results(worlds(4), "collectives", SOLUTION)
    assert [r for r in found if r.said != "right"] == []


def test_the_skeleton_is_a_list_of_todos(worlds):
    """Must catch: a skeleton that passes a trial, one that raises a traceback, and a part that is
    tried again although it is not written."""
    found = results(worlds(4), "collectives", skeleton("collectives"))
    assert {r.said for r in found} == {"not yet"}
    first = {r.trial.part: r.sentence for r in reversed(found)}
    for part, sentence in first.items():
        assert f"not written yet: {part} (collectives.py, line" in sentence
    assert sum("not tried" in r.sentence for r in found) == len(found) - len(first)


WRONG = {
    "the second round adds": (
        "sums_around_a_ring",
        "parity",
        ("chunks[(me - 1 - step) % n].copy_(arriving)", "chunks[(me - 1 - step) % n] += arriving"),
        "what arrives replaces, it is not added",
    ),
    "the second round stops early": (
        "sums_around_a_ring",
        "parity",
        ("for step in range(n - 1):", "for step in range(n - 2):"),
        "The second round stops early",
    ),
    "no second round": (
        "sums_around_a_ring",
        "parity",
        (
            "    add_up(chunks, n, me, group)\n    hand_out(chunks, n, me, group)\n",
            "    add_up(chunks, n, me, group)\n",
        ),
        "The first round alone",
    ),
    "a mean": (
        "sums_along_a_tree",
        "parity",
        ("        distance *= 2\n    if", "        distance *= 2\n    flat /= n\n    if"),
        "should be",
    ),
    "an own sum": (
        "chunks_of_sums",
        "parity",
        ("shard.detach().copy_(chunks[me]", "shard.detach().copy_(full.tensor_split(n)[me]"),
        "No part of another rank is in it.",
    ),
    "ranks of the group taken for global ones": (
        "sums_around_a_ring",
        "parity",
        (
            "[dist.get_global_rank(group or dist.group.WORLD, rank) for rank in (to, source)]",
            "[to, source]",
        ),
        "collectives.py, line",
    ),
    "across nodes first, the whole tensor": (
        "bytes_across_nodes",
        "bytes",
        (
            "    reduce_scatter(shard, flat, node)\n    all_reduce(shard, across)\n"
            "    all_gather(flat, shard, node)\n",
            "    all_reduce(flat, across)\n    all_reduce(flat, node)\n",
        ),
        "so that each rank has one chunk to sum across",
    ),
    "PyTorch's own": (
        "bytes_of_a_ring",
        "bytes",
        (
            "    n, me, chunks = cut(flat, group)\n    add_up(chunks, n, me, group)\n    hand_out",
            "    dist.all_reduce(flat, group=group)\n    return\n    hand_out",
        ),
        "all_reduce calls PyTorch's all_reduce: build it from send and recv alone.",
    ),
    "a ring of whole tensors": (
        "bytes_of_a_ring",
        "bytes",
        (
            "    n, me, chunks = cut(flat, group)\n    add_up(chunks, n, me, group)\n"
            "    hand_out(chunks, n, me, group)\n",
            "    n, me, _ = cut(flat, group)\n    going = flat.clone()\n"
            "    for _ in range(n - 1):\n        coming = torch.empty_like(flat)\n"
            "        swap(group, going, coming, (me + 1) % n, (me - 1) % n)\n"
            "        flat += coming\n        going = coming\n",
        ),
        "The whole tensor travels",
    ),
    "room for the whole tensor": (
        "memory_of_a_ring",
        "bytes",
        ("flat = tensor.detach().contiguous().view(-1)", "flat = tensor.detach().clone().view(-1)"),
        "Chunks are views of the tensor",
    ),
    "full is added into": (
        "full_is_unchanged",
        "faults",
        ("full.detach().reshape(-1).clone()", "full.detach().reshape(-1)"),
        "reduce_scatter changed full in the first call: add in a copy.",
    ),
    "columns are copied and forgotten": (
        "strange_tensors_around_a_ring",
        "faults",
        (
            "    hand_out(chunks, n, me, group)\n"
            "    tensor.detach().copy_(flat.view(tensor.shape))",
            "    hand_out(chunks, n, me, group)",
        ),
        "copy the result back",
    ),
    "autograd sees it": (
        "strange_tensors_around_a_ring",
        "faults",
        (
            "    flat = tensor.detach().contiguous().view(-1)\n    n, me, chunks",
            "    flat = tensor.contiguous().view(-1)\n    n, me, chunks",
        ),
        "detach()",
    ),
    "no check of shards": (
        "wrong_shards_to_gather",
        "faults",
        ("    if shard.numel() != chunk.numel() or shard.dtype != full.dtype:", "    if False:"),
        "should raise ValueError",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_misconception_gets_its_sentence(worlds, name):
    """Must catch: a trial that lets this wrong solution pass, or says no more than "wrong"."""
    check_sentence(worlds(4), "collectives", SOLUTION, WRONG[name])
