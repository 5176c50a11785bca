"""The communication log: every message of this rank, with its logical bytes, and its seconds where
the backend tells them.

    with CommunicationLog() as log:
        loss.backward()
    log.messages[0]        # Message(operation="all_reduce", nbytes=5_308_416, group_size=4,
                           # dtype="float32", ...)
    log.totals()           # {"all_reduce": Total(messages=3, nbytes=...), ...}

The log sees shardlab's code, DistributedDataParallel, FSDP2, DTensor and pipelining alike, on any
backend and under the fake process group, because it listens where PyTorch hands a collective to the
backend (see ranks/calls.py).

Logical bytes are the bytes of the whole array, as in nccl-tests: a rank's array before an
all-reduce, after an all-gather, before a reduce-scatter. The number of bytes that cross a link
depends on the backend; gloo, for example, makes a reduce-scatter from an all-reduce. Padding is
sent and therefore counts. The comparison of ranks that tensor parallelism makes once, in its first
forward, does not: no other step sends it.

Peer: PyTorch's CommDebugMode (torch.distributed.tensor.debug) counts the same collectives by
module; the log has send and recv too, and the bytes and seconds of each message.
"""

import time
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist

from shardlab.common.agreement import comparing
from shardlab.common.collective_wire import backend_for
from shardlab.common.torch_internals import tree_leaves

from ..ranks.calls import CollectiveCall, listening


@dataclass
class Message:
    """One collective, or one send or recv, of this rank."""

    operation: str
    nbytes: int  # logical
    group_size: int
    dtype: str
    reduction: str  # "sum", "avg", ...; empty where nothing is reduced
    peer: int | None  # rank in the group: the root, the receiver, the sender
    # the tag of a send or recv: this package's rings number their chunks with it
    chunk: int
    began_seconds: float  # since the log began
    # until the backend was done; None before, and where nobody tells: gloo's send and recv do not,
    # and NCCL has only enqueued a message when its work says that it is done
    seconds: float | None = None


class Total(NamedTuple):
    messages: int
    nbytes: int
    # of the messages with known seconds; overlapping messages add up to more than the elapsed time
    seconds: float


class CommunicationLog:
    """The messages between entering and leaving the log, in the order in which the backend got
    them."""

    def __init__(self):
        self.messages: list[Message] = []

    def __enter__(self):
        self._began = time.perf_counter()
        self._listening = listening(self._hear)
        self._listening.__enter__()
        return self

    def __exit__(self, *error):
        return self._listening.__exit__(*error)

    def totals(self) -> dict[str, Total]:
        """Totals by operation."""
        found: dict[str, Total] = {}
        for message in self.messages:
            count, nbytes, seconds = found.get(message.operation, Total(0, 0, 0.0))
            found[message.operation] = Total(
                count + 1, nbytes + message.nbytes, seconds + (message.seconds or 0.0)
            )
        return found

    def _hear(self, call: CollectiveCall):
        if comparing.get():
            return None
        dtype = str(call.own[0].dtype).removeprefix("torch.") if call.own else ""
        begin = time.perf_counter()
        message = Message(
            call.name,
            call.nbytes,
            call.group.size(),
            dtype,
            call.reduction,
            call.peer,
            call.chunk,
            begin - self._began,
        )
        self.messages.append(message)

        def stop(_=None):
            message.seconds = time.perf_counter() - begin

        def handed_over(result):
            works = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.ScriptObject)]
            if not works:  # the backend has waited itself
                return stop()
            work = dist.Work.unbox(works[0])  # None for a message of NCCL's batch
            by = backend_for(call.own[0].device.type, call.group) if call.own else ""
            if work is None or by == "nccl":
                return
            try:
                work.get_future().add_done_callback(stop)
            except RuntimeError:  # gloo's reduce-scatter, send and recv have no future
                if not call.asynchronous and call.name not in ("send", "recv"):
                    work.wait()
                    stop()

        return handed_over
