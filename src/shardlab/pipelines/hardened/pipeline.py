"""A model cut by depth, for any model, plan and loss: the core's pipeline, made of a plan.

    plan = plan_pipeline(layers, one_f_one_b(4, 8), tokens)    # the same on all ranks
    pipeline = Pipeline(layers, plan, next_token_loss)         # keeps this rank's layers alone

Every schedule adds up the gradients of microbatches in the same order, so all schedules give the
same bits.

Data parallelism and ZeRO 1 and 2 compose: they are told of one backward, at the end of the step.

    DistributedDataParallel(pipeline, group=mesh.dp.group)     # and step the pipeline itself

A loss scaler is made on every rank, and scales in `loss`: lambda y, t: scaler.scale(loss(y, t)).
torch.amp.GradScaler skips on all ranks or on none.

A backward is the core's, or half of one, and so are the groups and a send. gloo moves data only
once a receive is posted, so it is posted one action ahead. NCCL receives on the GPU, where a
receive that waits for what this rank has yet to compute would stop all that needs an idle GPU: the
first launch of a kernel, memory that is given back. There it is posted in time. NCCL connects two
ranks of a group at their first message, and both wait there for each other. Ranks that meet in the
order of a schedule may wait in a circle, so all pairs meet when the pipeline is made.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...common.backward import as_one_backward
from ...common.before_step import watch_steps
from ...common.collective_wire import backend_for
from ...common.shards import Stages, stages_of_parameters
from ...common.torch_internals import active_fake_mode
from .. import core
from ..core import Sent
from ..partition import CannotPipeline, PipelinePlan, comes_from, input_of
from ..schedules import Action, Kind
from . import split_backward
from .step_checks import (
    check_batch,
    check_one_batch,
    check_output,
    check_ranks,
    check_stage_loss,
    check_unbroken,
)
from .tied import TiedWeights


class Pipeline(core.Pipeline):
    """This rank's layers, under the numbers that they have in the whole model.

    layers    of the whole model, the same on all ranks; those of other ranks are not kept
    plan      from plan_pipeline, the same on all ranks
    loss      loss(y, targets) of one microbatch, a mean over its elements; see step() for others
    group     the ranks of the pipeline, in the order of the schedule; by default the world

    Raises CannotPipeline, on all ranks, if their plans differ or are not for this number of ranks.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        plan: PipelinePlan,
        loss: Callable[..., Tensor],
        group: dist.ProcessGroup | None = None,
    ):
        nn.Module.__init__(self)  # cut by the plan, with messages of its own
        check_ranks(layers, plan, group)
        self.plan, self.loss, self.group = plan, loss, group
        self.rank = self.me = dist.get_rank(group)  # readers' name, and the core's
        self.ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        self.last, self.home, self.outputs = plan.last, plan.home, plan.outputs
        self.layers = nn.ModuleDict()
        for stage, (first, end) in enumerate(plan.cuts):
            if plan.home[stage] == self.me:
                self.layers.update({str(number): layers[number] for number in range(first, end)})
        stages = Stages(group, plan.home[plan.last] == self.me)
        stages_of_parameters.update({parameter: stages for parameter in self.parameters()})
        watch_steps()
        self.device = next(self.parameters()).device
        self.ahead = backend_for(self.device.type, group) != "nccl"
        self.make_groups(plan.schedule)
        self.connect()
        self.known = set(self.parameters())
        self.tied = TiedWeights(layers, plan, group)
        self.tied.hand_out()
        elsewhere = [parameter for parameter, ranks in self.tied.shared if self.me != ranks[0]]
        stages_of_parameters.update({p: stages._replace(counts=False) for p in elsewhere})
        splits = any(action.kind is Kind.WEIGHT for action in plan.schedule[self.me])
        self.later = split_backward.WeightGradientsLater(self, False) if splits else None
        self.compared = False  # whether ranks had one batch, at the first step
        self.inbox: dict[tuple, Tensor] = {}  # what has come, or was made here
        self.coming: dict[tuple, tuple[Tensor, dist.Work]] = {}
        self.leaving: deque[Sent] = deque()  # what no message answers: gradients
        self.held: dict[tuple[int, int], tuple] = {}  # (x, y, message) by stage and microbatch
        self.put_off: dict[tuple[int, int], list[split_backward.PutOff]] = {}
        self.methods = {
            Kind.FORWARD: self.forward_of,
            Kind.BACKWARD: self.backward_of,
            Kind.INPUT: self.input_gradient_of,
            Kind.WEIGHT: self.weight_gradients_of,
        }

    def step(self, batch: Tensor, targets: Tensor, count: Tensor | float | None = None) -> Tensor:
        """Forward and backward of a batch: adds the gradients of its mean loss to .grad. Returns
        the loss of each microbatch, [m] on the rank of the last stage and [0] on the others. Under
        no_grad it runs the forwards alone. All ranks are given one batch: the first step compares.

        A mean of means is not the batch's where microbatches have unequally many targets, as with
        padding. With `count`, the number of targets in the batch, loss(y, targets, count) is a sum
        over `count`, and these losses are added up. As data parallelism averages gradients, it
        needs the average count of its ranks."""
        self.begin(batch, targets)
        self.counted = () if count is None else (count,)
        actions = self.plan.schedule[self.me]
        if not torch.is_grad_enabled():
            actions = [action for action in actions if action.kind is Kind.FORWARD]
        with as_one_backward(self.parameters()), self.tied.added_up(), self.later or nullcontext():
            for action, following in zip(actions, [*actions[1:], None]):
                self.post(action)
                if self.ahead and following is not None:
                    self.post(following)
                self.perform(action)
            self.settle(0)
        return torch.stack(self.losses) if self.losses else torch.empty(0)

    def begin(self, batch: Tensor, targets: Tensor):
        check_unbroken(self.groups.values(), bool(self.held or self.inbox or self.coming))
        check_batch(self.plan, batch, targets)
        if not self.compared and active_fake_mode() is None:
            check_one_batch(batch, targets, self.group)
        self.compared = True
        if set(self.parameters()) != self.known:
            raise CannotPipeline(
                "parameters were replaced since this pipeline was made, as by"
                " load_state_dict(assign=True): ranks with a tied weight would no longer add up its"
                " gradients; make the pipeline anew."
            )
        m = self.plan.microbatches
        self.batch, self.targets = batch.chunk(m), targets.chunk(m)
        self.losses: list[Tensor] = []

    # --- messages ---------------------------------------------------------------------------------

    def connect(self):
        """A first collective of the whole group, without which no batch of messages between some of
        its ranks may come; then a first message on each route, in one order on all ranks."""
        token = torch.zeros(1, device=self.device)
        dist.all_reduce(token, group=self.group)
        for kind, source, target in sorted(self.routes):
            group = self.groups[kind, source < target]
            if self.me == source:
                dist.send(token, self.ranks[target], group)
            elif self.me == target:
                dist.recv(token, self.ranks[source], group)

    def post(self, action: Action):
        """Begin to receive what the action takes, if it comes from another rank."""
        source, wanted = comes_from(action, self.last), input_of(action)
        if source is None or self.home[source] == self.me or wanted in self.coming:
            return
        shape, dtype = self.outputs[min(source, action.stage)]
        tensor, rank = torch.empty(shape, dtype=dtype, device=self.device), self.home[source]
        group = self.groups[wanted[1].value, rank < self.me]
        self.coming[wanted] = tensor, dist.irecv(tensor, self.ranks[rank], group=group)

    def wait_for(self, action: Action):
        """Until what the action takes has come."""
        if (wanted := input_of(action)) in self.coming:
            tensor, work = self.coming[wanted]
            work.wait()
            self.inbox[wanted] = tensor
            del self.coming[wanted]

    def take(self, action: Action) -> Tensor:
        self.wait_for(action)
        return self.inbox.pop(input_of(action))

    def give(self, action: Action, tensor: Tensor) -> Sent | None:
        """An activation is kept until its gradient answers. Of what no message answers the last few
        are on their way: older ones were received long ago, and a wait for them takes no time."""
        sent, forward = super().give(action, tensor), action.kind is Kind.FORWARD
        if sent and not (forward and torch.is_grad_enabled()):
            self.leaving.append(sent)
            self.settle(len(self.ranks))
        return sent if forward else None

    # --- the actions ------------------------------------------------------------------------------

    def perform(self, action: Action):
        self.methods[action.kind](action)

    def forward_of(self, action: Action):
        stage, _, microbatch = action
        x = self.take(action).requires_grad_() if stage else self.batch[microbatch]
        y, sent = Received.apply(x) if stage else x, None
        for number in range(*self.plan.cuts[stage]):
            y = self.layers[str(number)](y)
        if stage < self.last:
            check_output(self.plan, stage, y)
            sent = self.give(action, y.detach())
        else:
            loss = self.loss(y, self.targets[microbatch], *self.counted)
            check_stage_loss(loss)
            self.losses.append(loss.detach().reshape(()))
            y = loss if self.counted else loss / self.plan.microbatches
        if torch.is_grad_enabled():
            self.held[stage, microbatch] = x, y, sent

    def input_gradient_of(self, action: Action):
        self.backward_of(action)
        self.put_off[action.stage, action.microbatch] = self.later.take()

    def weight_gradients_of(self, action: Action):
        split_backward.make_weight_gradients(self.put_off.pop((action.stage, action.microbatch)))

    def __getstate__(self):
        raise CannotPipeline(
            "a pipeline has process groups of its own, which are not copied or pickled: save its"
            " state_dict(), and make another pipeline of a copy of the layers."
        )


class Received(torch.autograd.Function):
    """The input of a stage, into which its first layer may write in place. Autograd allows it for
    what an operation has made, not for the tensor whose gradient is asked for."""

    @staticmethod
    def forward(ctx, x):
        return x.detach()

    @staticmethod
    def backward(ctx, dx):
        return dx
