"""The core of pipelines: a model cut by depth, whose ranks run the lists of a schedule.

    layers = [model.embedding, *model.blocks, model.head]       # the same on all ranks
    pipeline = Pipeline(layers, one_f_one_b(4, 8), tokens, next_token_loss)
    optimizer = torch.optim.SGD(pipeline.parameters(), lr=0.1)
    losses = pipeline.step(tokens, targets)                     # [m] on the last stage's rank
    optimizer.step()

schedules.py makes the lists, and a step runs exactly its rank's list: there is no other description
of a schedule. An action takes one message at most and makes one at most:

    0F1    stage 0, forward of microbatch 1     takes the output of the stage before
    0B1    its backward                         takes the gradient of its output

NCCL runs the messages of two ranks in a group one after the other, so a send could wait for a
receive behind it, and the same on the other side. So activations and gradients, and both
directions, have groups of their own.

Letters: B batch, m microbatches.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..mesh import channel
from .partition import check_order_of_messages, comes_from, goes_to
from .schedules import Action, InvalidSchedule, Kind, Schedule
from .simulation import home_of, validate_schedule


class Sent(NamedTuple):
    """A message on its way, whose tensor must live until it has been received."""

    tensor: Tensor
    work: dist.Work


class Pipeline(nn.Module):
    """This rank's layers. Those of other ranks are not kept.

    layers     of the whole model; each takes one tensor and returns one
    schedule   of forwards and whole backwards, for as many ranks as the group has
    example    a batch [B, ...] like that of a step, from which shapes are known: none travels
    loss       loss(y, targets) of a microbatch, a mean

    Raises ValueError for a schedule that cannot run, fewer layers than stages, and a batch that m
    does not divide."""

    def __init__(
        self,
        layers: Sequence[nn.Module],
        schedule: Schedule,
        example: Tensor,
        loss: Callable[[Tensor, Tensor], Tensor],
        group: dist.ProcessGroup | None = None,
    ):
        super().__init__()
        self.m = 1 + max((action.microbatch for own in schedule for action in own), default=0)
        validate_schedule(schedule, self.m)
        check_order_of_messages(schedule)
        self.group, self.loss, self.me = group, loss, dist.get_rank(group)
        self.ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        if len(schedule) != len(self.ranks):
            raise InvalidSchedule(f"a schedule of {len(schedule)} ranks on {len(self.ranks)}.")
        self.actions, self.home = schedule[self.me], home_of(schedule)
        self.last, self.device = max(self.home), example.device
        if len(layers) <= self.last:
            raise InvalidSchedule(f"{len(layers)} layers for {self.last + 1} stages.")
        self.cut(layers, example[: len(example) // self.m])
        self.make_groups(schedule)

    def cut(self, layers: Sequence[nn.Module], x: Tensor):
        """Divide the layers: the first stages have one more. Find what each stage hands on, and
        the parameters that stages of several ranks have."""
        each, more = divmod(len(layers), self.last + 1)
        self.stages, self.outputs, begin = nn.ModuleDict(), [], 0
        holders: dict[nn.Parameter, set[int]] = {}
        for stage in range(self.last + 1):
            own = nn.Sequential(*layers[begin : begin + each + (stage < more)])
            begin += len(own)
            with torch.no_grad():
                x = own(x)
            self.outputs.append((x.shape, x.dtype))  # [B/m, ...]
            for p in own.parameters():
                holders.setdefault(p, set()).add(self.home[stage])
            if self.home[stage] == self.me:
                self.stages[str(stage)] = own
        self.tied = [  # a rank without the weight brings zeros to the sum
            (p if self.me in ranks else None, p.shape, p.dtype)
            for p, ranks in holders.items()
            if len(ranks) > 1 and p.requires_grad
        ]

    def make_groups(self, schedule: Schedule):
        """A group for each kind of message and direction, with the same ranks."""
        self.routes = set()  # (kind, from, to)
        for action in (action for own in schedule for action in own):
            target = goes_to(action, self.last)
            if target and self.home[action.stage] != self.home[target[0]]:
                self.routes.add((target[1].value, self.home[action.stage], self.home[target[0]]))
        ways = sorted({(kind, source < target) for kind, source, target in self.routes})
        self.groups = {way: channel(self.ranks, way) for way in ways}

    def give(self, action: Action, tensor: Tensor) -> Sent | None:
        """Send what the action has made, or keep it where its next stage is on this rank."""
        target = goes_to(action, self.last)
        rank = self.home[target[0]]
        if rank == self.me:
            self.inbox[target] = tensor
            return None
        group, tensor = self.groups[target[1].value, self.me < rank], tensor.contiguous()
        return Sent(tensor, dist.isend(tensor, self.ranks[rank], group=group))

    def take(self, action: Action) -> Tensor:
        """Receive what the action needs, [B/m, ...]: an output, or the gradient of one."""
        if tuple(action) in self.inbox:
            return self.inbox.pop(tuple(action))
        source = comes_from(action, self.last)
        shape, dtype = self.outputs[min(source, action.stage)]  # a gradient has an output's shape
        tensor, rank = torch.empty(shape, dtype=dtype, device=self.device), self.home[source]
        group = self.groups[action.kind.value, rank < self.me]
        dist.recv(tensor, self.ranks[rank], group=group)
        return tensor

    def step(self, batch: Tensor, targets: Tensor) -> Tensor:
        """Forward and backward of a batch [B, ...]: adds the gradients of its mean loss to .grad.
        Returns the loss of each microbatch, [m] on the last stage's rank and [0] on the others."""
        if len(batch) % self.m or len(batch) != len(targets):
            raise ValueError(f"{len(batch)} sequences, {len(targets)} targets, m = {self.m}.")
        self.batch, self.targets = batch.chunk(self.m), targets.chunk(self.m)
        self.inbox, self.held, self.leaving, self.losses = {}, {}, deque(), []
        earlier = self.set_tied_aside()
        for action in self.actions:
            if action.kind is Kind.FORWARD:
                self.forward_of(action)
            else:
                self.backward_of(action)
        self.settle(0)
        self.add_up_tied(earlier)
        return torch.stack(self.losses) if self.losses else torch.empty(0)

    def forward_of(self, action: Action):
        stage, _, i = action
        x = self.take(action).detach().requires_grad_() if stage else self.batch[i]
        y = self.stages[str(stage)](x)
        sent = None
        if stage < self.last:
            sent = self.give(action, y.detach())
        else:
            y = self.loss(y, self.targets[i])
            self.losses.append(y.detach())
            y = y / self.m
        self.held[stage, i] = x, y, sent

    def backward_of(self, action: Action):
        stage, _, i = action
        dy = self.take(action) if stage < self.last else None
        x, y, sent = self.held.pop((stage, i))
        if sent:
            sent.work.wait()  # y has been received: dy is the answer to it
        if y.requires_grad:  # unless the first stages are frozen
            torch.autograd.backward(y, dy)
        if stage:
            dx = torch.zeros_like(x) if x.grad is None else x.grad
            if sent := self.give(action, dx):
                self.leaving.append(sent)
                self.settle(1)  # no more than one gradient is kept for its message

    def settle(self, left: int):
        """Wait until no more than so many gradients are on their way."""
        while len(self.leaving) > left:
            self.leaving.popleft().work.wait()

    def set_tied_aside(self) -> list[Tensor | None]:
        """Gradients of tied weights from before this step, which are sums over ranks already."""
        earlier = [None if p is None else p.grad for p, *_ in self.tied]
        for p, *_ in self.tied:
            if p is not None:
                p.grad = None
        return earlier

    @torch.no_grad()
    def add_up_tied(self, earlier: list[Tensor | None]):
        """A weight on several ranks has the sum of their gradients."""
        for (p, shape, dtype), before in zip(self.tied, earlier):
            none = p is None or p.grad is None
            total = torch.zeros(shape, dtype=dtype, device=self.device) if none else p.grad
            dist.all_reduce(total, group=self.group)
            if p is not None:
                p.grad = total if before is None else before.add_(total)
