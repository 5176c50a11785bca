"""Messages between virtual ranks: nothing is sent but the time at which a rank has come.

A message starts when the streams of all its ranks have come and its communicator has sent what was
asked for before; then it takes the time that the links give it. A group is one communicator, and a
pair of ranks has one in each direction for single messages. As with NCCL, the host goes on, and
work.wait() makes the current stream wait.

Real ranks tell each other when they have come, for each message. Where the other ranks do not exist
(the backend "fake") they are taken to come when this one does. Both know the end of a collective
when it is asked for, because it slows the kernels that come next. So a real rank goes on when all
have asked for it: ranks that ask for messages of several groups in different orders deadlock here,
as they may with NCCL.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist

from ranklab.ranks.calls import CollectiveCall
from shardlab.common.agreement import comparing
from shardlab.common.torch_internals import (
    at_end_of_backward,
    current_backward,
    disable_modes,
    is_fake,
)

from .clock import MESSAGE
from .hardware import GPU, nanoseconds
from .streams import VirtualStreams

SINGLE = ("send", "recv")
ANSWER = 1 << 30  # of the tag with which a receiver tells that it has come


class Messages:
    """The messages of this rank, in the order in which they were asked for."""

    def __init__(self, gpu: GPU, streams: VirtualStreams, phase: Callable[[], str]):
        self.gpu, self.clock, self.streams, self.phase = gpu, streams.clock, streams, phase
        self.pending: dict[tuple, list[VirtualWork]] = {}  # by communicator
        self.used: set[tuple[str, str]] = set()  # groups of several ranks, and what they carried
        self.untold: list[VirtualWork] = []
        self.kept: list[VirtualWork] = []  # PyTorch keeps only the C++ half of a work

    def carry(self, call: CollectiveCall) -> "VirtualWork | None":
        """The work of a call of virtual ranks; None for real tensors and barriers."""
        if not any(map(is_fake, call.own)):
            return None
        self.clock.launch(self.gpu.launch_nanoseconds)
        self.clock.host += nanoseconds(self.gpu.message_seconds)
        work = VirtualWork(self, call)
        self.pending.setdefault(work.communicator, []).append(work)
        if call.group.size() > 1:
            self.used.add((call.group.group_name, call.name))
        self.kept.append(work)
        self.untold.append(work)
        return work

    def tell(self):
        """Tell of the messages that were just asked for; not within carry(), where operators do
        nothing to the contents of tensors."""
        while self.untold:
            work = self.untold.pop(0)
            work.tell()
            if work.slows:  # the kernels after it, so its end is learned before they are given
                self.settle(work.communicator, work)

    def settle(self, communicator: tuple, last: "VirtualWork | None" = None):
        """The ends of a communicator's messages are known, all or those up to the last."""
        queue = self.pending[communicator]
        while queue and (last is None or last.end is None):
            queue.pop(0).settle()

    def settle_all(self):
        for communicator in self.pending:
            self.settle(communicator)
        self.kept.clear()

    def latest(self, time: int) -> int:
        """The latest of the times that all ranks give here."""
        if not dist.is_initialized() or alone():
            return time
        with disable_modes():
            latest = torch.tensor([time])
            dist.all_reduce(latest, dist.ReduceOp.MAX)
            return latest.item()


class VirtualWork(dist.Work):
    """A message on its way."""

    def __init__(self, messages: Messages, call: CollectiveCall):
        super().__init__()
        self.messages, self.call, self.end = messages, call, None
        members = dist.get_process_group_ranks(call.group)
        if call.name in SINGLE:
            pair = call.group.rank(), call.peer
            pair = pair if call.name == "send" else pair[::-1]
            self.ranks = [members[rank] for rank in pair]
            self.communicator = call.group.group_name, *pair
        else:
            self.ranks, self.communicator = members, (call.group.group_name,)
        self.came, self.phase = messages.clock.now(messages.streams.current), messages.phase()
        self.tensors = list(call.own)
        self.slows = call.name not in SINGLE  # copies take no kernels

    def tell(self):
        self.others = tell(self.call, self.came)

    def settle(self):
        clock, call = self.messages.clock, self.call
        self.all_came = max(self.others())
        duration = self.messages.gpu.message_nanoseconds(call.name, call.nbytes, self.ranks)
        clock.wait(self.communicator, self.all_came)
        self.end = clock.work(self.communicator, call.name, duration, self.phase)
        if self.slows:
            clock.slow(self.messages.gpu.contention, self.end - duration, self.end, self.phase)
        self.call = self.others = None

    def wait(self, *timeout) -> bool:
        self.messages.settle(self.communicator, self)
        clock, late = self.messages.clock, self.all_came > self.came
        others = self.all_came if late else 0
        clock.wait(self.messages.streams.current, self.end, MESSAGE, others)
        self.tensors = []
        return True

    def is_completed(self) -> bool:
        self.messages.settle(self.communicator, self)
        return self.end <= self.messages.clock.host

    def get_future(self) -> torch.futures.Future:
        """A future that is complete at once. C++ that asks for it, as DDP's, waits for it at the
        end of backward."""
        future = torch.futures.Future()
        future.set_result(self.tensors)
        if current_backward() is None:
            self.wait()
        else:
            at_end_of_backward(self.wait)
        return future


def alone(group: dist.ProcessGroup | None = None) -> bool:
    """Whether the other ranks do not exist."""
    return dist.distributed_c10d.get_backend(group) == "fake"


def tell(call: CollectiveCall, came: int) -> Callable[[], list[int]]:
    """Tell the other ranks of a message when this one has come. Returns a function that waits until
    they have told it, too."""
    group, peer, tag = call.group, call.peer, call.tag
    if alone(group):
        return lambda: [came]
    told = comparing.set(True)  # a log of messages does not list these
    with disable_modes():
        mine = torch.tensor([came])
        if call.name in SINGLE:
            theirs = [torch.zeros_like(mine)]
            give, take = (tag, tag | ANSWER) if call.name == "send" else (tag | ANSWER, tag)
            works = [dist.isend(mine, group=group, group_dst=peer, tag=give)]
            works += [dist.irecv(theirs[0], group=group, group_src=peer, tag=take)]
        else:
            theirs = [torch.zeros_like(mine) for _ in range(group.size())]
            works = [dist.all_gather(theirs, mine, group=group, async_op=True)]
    comparing.reset(told)

    def times() -> list[int]:
        with disable_modes():
            for work in works:
                work.wait()
            return [time.item() for time in (mine, *theirs)]  # and `mine` lives until it is sent

    return times
