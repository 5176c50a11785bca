"""The record of one step of a technique: whether ranks agree in the order of their calls, and how
often the host waited for its GPU.

    with watched() as step:
        train()
    return step
"""

import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import starmap, zip_longest

import torch  # first: whatever imports torch gets cuda and nccl installed with it

from . import are_real, cuda, nccl


@dataclass
class Step:
    """The record of one rank."""

    waits: dict[str, int] = field(default_factory=dict)  # of the host for its GPU, by the cause
    calls: list[nccl.Entry] = field(default_factory=list)  # of NCCL, in order


@contextmanager
def watched() -> Iterator[Step]:
    if are_real():
        yield from watched_by_torch()
        return
    cuda.take_waits()
    first = len(nccl.log)
    step = Step()
    yield step
    step.waits, step.calls = cuda.take_waits(), nccl.log[first:]


def watched_by_torch() -> Iterator[Step]:
    """A real GPU tells of waits by warnings, and not of those for streams and events; NCCL tells
    nobody of its calls."""
    step = Step()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            yield step
    finally:
        torch.cuda.set_sync_debug_mode("default")
    messages = [str(warning.message) for warning in told]
    step.waits = dict(Counter(text for text in messages if "synchronizing CUDA" in text))


def disagreements(steps: list[Step]) -> list[str]:
    """Where ranks differ from what NCCL wants: all ranks of a group make the same collectives in
    the same order, and what one rank of a pair sends is what the other receives, in the same order.
    In a pair's own communicator both directions are one queue; in batches each is one of its
    own."""
    queues = defaultdict(lambda: defaultdict(list))  # by place and rank: what must be alike
    for call in (call for step in steps for call in step.calls):
        place, what = (call.group, call.communicator), (call.elements, call.dtype)
        if call.operation == "alltoall_base_":
            what = (call.dtype,)  # ranks may send unlike numbers of rows
        if call.peer is None:
            queues[place][call.rank].append((call.operation, *what))
            continue
        sender, receiver = call.rank, call.peer
        if call.operation != "send":
            sender, receiver = receiver, sender
        message = f"{sender} to {receiver}"
        if call.communicator == nccl.COLLECTIVES:
            place = (*place, message)
        queues[place][call.rank].append((message, *what))
    return list(filter(None, starmap(first_difference, queues.items())))


def first_difference(place: tuple, queues: dict[int, list]) -> str:
    (first, calls), *others = queues.items()
    for rank, theirs in others:
        for k, (mine, other) in enumerate(zip_longest(calls, theirs)):
            if mine != other:
                return f"{place}: call {k} of rank {first} is {mine}, of rank {rank} {other}"
    return ""
