"""How the stages of a pipeline talk: activations to the next stage, gradients to the one before.

    wire.post(following)         begin to receive what the action after this one takes
    x = wire.take(action)        what the action takes, once it has come
    wire.give(action, y)         send what the action has made, or leave it for a stage of this rank
    wire.settle()                at the end of a step: all that was sent has been received

A receive is posted one action ahead, because gloo moves data only once it is posted. A tensor that
is sent is kept until it has been received.

Activations and gradients have process groups of their own, in which messages between two ranks go
one way. NCCL runs the messages of a pair in a group one after the other, so a send to a rank could
wait for a receive behind it, and the same on the other side. gloo needs one group for all.

A weight on several ranks, such as a tied embedding and head, begins as its first rank's. After the
last backward each of these ranks adds up all their gradients, in the same order.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .partition import PipelinePlan, comes_from, goes_to
from .schedules import Action, Kind


def input_of(action: Action) -> tuple[int, Kind, int]:
    """What the action takes, under the name that goes_to gives it."""
    kind = Kind.FORWARD if action.kind is Kind.FORWARD else Kind.BACKWARD
    return action.stage, kind, action.microbatch


class Wire:
    """This rank's end of all messages of a plan. All ranks of the group make it together."""

    def __init__(self, plan: PipelinePlan, group: dist.ProcessGroup | None, device: torch.device):
        self.plan, self.device, self.rank = plan, device, dist.get_rank(group)
        self.ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        ways = set()
        for action in (action for own in plan.schedule for action in own):
            target = goes_to(action, plan.last)
            if target and plan.home[action.stage] != plan.home[target[0]]:
                ways.add((target[1].value, plan.home[action.stage] < plan.home[target[0]]))
        self.channels = {
            way: dist.new_group(self.ranks, use_local_synchronization=True) for way in sorted(ways)
        }
        self.coming: dict[tuple, tuple[Tensor, dist.Work | None]] = {}
        self.leaving: deque[tuple[Tensor, dist.Work]] = deque()  # gradients

    def channel(self, kind: Kind, source: int, target: int) -> dist.ProcessGroup:
        return self.channels[kind.value, source < target]

    def give(self, action: Action, tensor: Tensor) -> dist.Work | None:
        """Send it to the rank that takes it; None if that is this rank."""
        target = goes_to(action, self.plan.last)
        rank = self.plan.home[target[0]]
        if rank == self.rank:
            self.coming[target] = tensor, None
            return None
        channel, tensor = self.channel(target[1], self.rank, rank), tensor.contiguous()
        work = dist.isend(tensor, self.ranks[rank], group=channel)
        if action.kind is not Kind.FORWARD:  # an activation is kept anyway, until its backward
            self.leaving.append((tensor, work))
            # a neighbour that is so far behind has its answers ahead: to wait for it costs no time
            if len(self.leaving) > len(self.ranks):
                self.leaving.popleft()[1].wait()
        return work

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

    def take(self, action: Action) -> Tensor:
        self.wait_for(action)
        return self.coming.pop(input_of(action))[0]

    def wait_for(self, action: Action):
        """Until what the action takes has come. gloo's work can be waited for once."""
        tensor, work = self.coming.get(input_of(action), (None, None))
        if work is not None:
            work.wait()
            self.coming[input_of(action)] = tensor, None

    def settle(self):
        for _, work in self.leaving:
            work.wait()
        self.leaving.clear()


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
        self.shared = [
            (parameter, sorted(ranks))
            for parameter, ranks in holders.items()
            if self.rank in ranks and len(ranks) > 1
        ]

    def exchange(self, tensor: Tensor, ranks: list[int]) -> list[Tensor]:
        """What each of these ranks, of which this is one, brings: in their order."""
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
