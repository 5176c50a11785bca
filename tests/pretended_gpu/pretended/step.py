"""What one step of a technique did: whether ranks agree in the order of their calls, and how often
the host waited for its GPU.

    with watched() as step:
        train()
    return step
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch  # noqa: F401  first: whatever imports torch gets cuda and nccl installed with it

from . import cuda, nccl


@dataclass
class Step:
    """What one rank did."""

    waits: dict[str, int] = field(default_factory=dict)  # of the host for its GPU, by the cause
    calls: list[nccl.Entry] = field(default_factory=list)  # of NCCL, in order


@contextmanager
def watched() -> Iterator[Step]:
    cuda.take_waits()
    first = len(nccl.log)
    step = Step()
    yield step
    step.waits, step.calls = cuda.take_waits(), nccl.log[first:]


def disagreements(steps: list[Step]) -> list[str]:
    """What NCCL wants: all ranks of a group make the same collectives in the same order, and the
    messages of a pair match: what one sends is what the other receives, in the same order."""
    collectives, messages = defaultdict(dict), defaultdict(dict)
    for step in steps:
        for call in step.calls:
            place = (call.group, call.communicator)
            what = (call.elements, call.dtype)
            if call.peer is None:
                collectives[place].setdefault(call.rank, []).append((call.operation, *what))
            else:
                pair = (*place, *sorted((call.rank, call.peer)))
                sends = call.operation == "send"
                low_to_high = sends == (call.rank <= call.peer)
                messages[pair].setdefault(call.rank, []).append((low_to_high, *what))
    found = []
    for kind, places in (("collectives", collectives), ("messages", messages)):
        for place, lists in places.items():
            (first, calls), *others = lists.items()
            for rank, others_calls in others:
                if calls != others_calls:
                    k = next(
                        (k for k, (a, b) in enumerate(zip(calls, others_calls)) if a != b),
                        min(len(calls), len(others_calls)),
                    )
                    found.append(
                        f"{kind} of {place}: call {k} of rank {first} is"
                        f" {calls[k : k + 1]}, of rank {rank} {others_calls[k : k + 1]}"
                    )
    return found
