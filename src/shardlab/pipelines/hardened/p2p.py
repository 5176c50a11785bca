"""How the stages of a pipeline talk: activations to the next stage, gradients to the one before.

    wire.post(action)            begin to receive what the action takes
    wire.post_ahead(following)   and what the one after it takes, if that gains time
    x = wire.take(action)        what the action takes, once it has come
    wire.give(action, y)         send what the action has made, or leave it for a stage of this rank
    wire.settle()                at the end of a step: all that was sent has been received

gloo moves data only once a receive is posted, so it is posted one action ahead. NCCL receives on
the GPU, where a receive that waits for what this rank has yet to compute would stop all that needs
an idle GPU: the first launch of a kernel, memory that is given back. There it is posted in time. A
tensor that is sent is kept until it has been received.

Activations and gradients, and both directions, have process groups of their own, for the core's
reason.

NCCL connects two ranks of a group at their first message, and both wait there for each other. Ranks
that meet in the order of a schedule may wait in a circle, so all pairs meet when the wire is made.

A weight on several ranks, such as a tied embedding and head, begins as its first rank's. After the
last backward each of these ranks adds up all their gradients, in the same order.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...common.collective_wire import backend_for
from ...mesh import channel
from ..core import Sent
from ..partition import PipelinePlan, comes_from, goes_to
from ..schedules import Action, Kind


def input_of(action: Action) -> tuple[int, Kind, int]:
    """The input of the action, under the name that goes_to gives it."""
    kind = Kind.FORWARD if action.kind is Kind.FORWARD else Kind.BACKWARD
    return action.stage, kind, action.microbatch


class Wire:
    """This rank's end of all messages of a plan. All ranks of the group make it together."""

    def __init__(self, plan: PipelinePlan, group: dist.ProcessGroup | None, device: torch.device):
        self.plan, self.device, self.rank = plan, device, dist.get_rank(group)
        self.ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        self.ahead = backend_for(device.type, group) != "nccl"
        routes = set()
        for action in (action for own in plan.schedule for action in own):
            target = goes_to(action, plan.last)
            if target and plan.home[action.stage] != plan.home[target[0]]:
                routes.add((target[1].value, plan.home[action.stage], plan.home[target[0]]))
        ways = sorted({(kind, source < target) for kind, source, target in routes})
        self.channels = {way: channel(self.ranks, way) for way in ways}
        self.connect(group, sorted(routes))
        self.coming: dict[tuple, tuple[Tensor, dist.Work | None]] = {}
        self.leaving: deque[Sent] = deque()  # what no message answers: gradients

    def connect(self, group: dist.ProcessGroup | None, routes: list[tuple[str, int, int]]):
        """A first collective of the whole group, without which no batch of messages between some of
        its ranks may come; then a first message on each route, in one order on all ranks."""
        token = torch.zeros(1, device=self.device)
        dist.all_reduce(token, group=group)
        for kind, source, target in routes:
            if self.rank == source:
                dist.send(token, self.ranks[target], self.channel(Kind(kind), source, target))
            elif self.rank == target:
                dist.recv(token, self.ranks[source], self.channel(Kind(kind), source, target))

    def channel(self, kind: Kind, source: int, target: int) -> dist.ProcessGroup:
        return self.channels[kind.value, source < target]

    def give(self, action: Action, tensor: Tensor) -> Sent | None:
        """Send it to the rank that takes it; None if that is this rank."""
        target = goes_to(action, self.plan.last)
        rank = self.plan.home[target[0]]
        if rank == self.rank:
            self.coming[target] = tensor, None
            return None
        channel, tensor = self.channel(target[1], self.rank, rank), tensor.contiguous()
        sent = Sent(tensor, dist.isend(tensor, self.ranks[rank], group=channel))
        # an activation that a gradient answers is kept by the caller
        if action.kind is not Kind.FORWARD or not torch.is_grad_enabled():
            self.leaving.append(sent)
            # older messages than the last few were received long ago: this wait takes no time
            self.settle(left=len(self.ranks))
        return sent

    def post(self, action: Action | None):
        """Begin to receive what the action takes, if it comes from another rank."""
        source = None if action is None else comes_from(action, self.plan.last)
        if source is None or self.plan.home[source] == self.rank or input_of(action) in self.coming:
            return
        shape, dtype = self.plan.outputs[min(source, action.stage)]
        tensor = torch.empty(shape, dtype=dtype, device=self.device)
        rank = self.plan.home[source]
        channel = self.channel(input_of(action)[1], rank, self.rank)
        self.coming[input_of(action)] = tensor, dist.irecv(tensor, self.ranks[rank], group=channel)

    def post_ahead(self, action: Action | None):
        if self.ahead:
            self.post(action)

    def take(self, action: Action) -> Tensor:
        self.wait_for(action)
        return self.coming.pop(input_of(action))[0]

    def wait_for(self, action: Action):
        """Until what the action takes has come. gloo's work can be waited for once."""
        tensor, work = self.coming.get(input_of(action), (None, None))
        if work is not None:
            work.wait()
            self.coming[input_of(action)] = tensor, None

    def settle(self, left: int = 0):
        """Wait until no more than so many of these are on their way."""
        while len(self.leaving) > left:
            sent = self.leaving.popleft()
            sent.work.wait()


class Received(torch.autograd.Function):
    """The input of a stage, into which its first layer may write in place. Autograd allows it for
    what an operation has made, not for the tensor whose gradient is asked for."""

    @staticmethod
    def forward(ctx, x):
        return x.detach()

    @staticmethod
    def backward(ctx, dx):
        return dx


class TiedWeights:
    """The parameters that stages of several ranks have, among the layers of the whole model."""

    def __init__(
        self, layers: Sequence[nn.Module], plan: PipelinePlan, group: dist.ProcessGroup | None
    ):
        self.rank, self.group = dist.get_rank(group), group
        self.ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        holders: dict[nn.Parameter, set[int]] = {}
        for stage, (first, end) in enumerate(plan.cuts):
            for layer in layers[first:end]:
                for parameter in layer.parameters():
                    holders.setdefault(parameter, set()).add(plan.home[stage])
        self.places = [sorted(ranks) for ranks in holders.values() if len(ranks) > 1]
        self.shared = [
            (parameter, sorted(ranks))
            for parameter, ranks in holders.items()
            if self.rank in ranks and len(ranks) > 1
        ]

    def exchange(self, tensor: Tensor, ranks: list[int]) -> list[Tensor]:
        """The tensors of these ranks, of which this is one, in the order of the ranks."""
        tensor = tensor.contiguous()
        found = {rank: torch.empty_like(tensor) for rank in ranks}
        found[self.rank] = tensor
        moves = []
        for rank in ranks:
            if rank != self.rank:
                peer = self.ranks[rank]
                moves.append(dist.P2POp(dist.irecv, found[rank], peer, self.group))
                moves.append(dist.P2POp(dist.isend, tensor, peer, self.group))
        for work in dist.batch_isend_irecv(moves):
            work.wait()
        return list(found.values())

    @torch.no_grad()
    def hand_out(self):
        for parameter, ranks in self.shared:
            parameter.copy_(self.exchange(parameter.detach(), ranks)[0])

    @contextmanager
    def added_up(self) -> Iterator[None]:
        """The gradients that come within are added up over ranks. Those from before, which are sums
        already, are set aside meanwhile."""
        tied = [(p, p.grad, ranks) for p, ranks in self.shared if p.requires_grad]
        if not torch.is_grad_enabled():
            tied = []
        for parameter, *_ in tied:
            parameter.grad = None
        try:
            yield
        except BaseException:  # nothing is added up, and no sum is lost
            for parameter, before, _ in tied:
                parameter.grad = before
            raise
        with torch.no_grad():
            for parameter, before, ranks in tied:
                own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                total = sum(self.exchange(own, ranks))
                parameter.grad = total if before is None else before.add_(total)
