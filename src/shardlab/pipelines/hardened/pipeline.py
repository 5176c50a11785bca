"""A model cut by depth, for any model, plan and loss: the core's pipeline, made of a plan.

    plan = plan_pipeline(layers, one_f_one_b(4, 8), tokens)    # the same on all ranks
    pipeline = Pipeline(layers, plan, next_token_loss)         # keeps this rank's layers alone

The gradients are those of the mean loss over the batch. Every schedule adds up the gradients of
microbatches in the same order, so all schedules give the same bits.

Data parallelism and ZeRO 1 and 2 compose: they are told of one backward, at the end of the step.

    DistributedDataParallel(pipeline, group=mesh.dp.group)     # and step the pipeline itself

A loss scaler is made on every rank, and scales in `loss`: lambda y, t: scaler.scale(loss(y, t)).
torch.amp.GradScaler skips on all ranks or on none.

partition.py cuts the model and says what is wrong with it before a rank waits, step_checks.py says
what ranks refuse, p2p.py sends and receives, split_backward.py divides a backward into I and W.

A backward is the core's, or half of one. Receives are posted ahead, and a forward also counts
targets and lets a layer write into its input.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...common.backward import as_one_backward
from ...common.shards import Stages, stages_of_parameters
from ...common.torch_clip_and_scale import watch_steps
from ...common.torch_internals import active_fake_mode
from .. import core
from ..partition import CannotPipeline, PipelinePlan
from ..schedules import Action, Kind
from . import split_backward
from .p2p import Received, Sent, TiedWeights, Wire
from .step_checks import (
    check_batch,
    check_one_batch,
    check_output,
    check_ranks,
    check_stage_loss,
    check_unbroken,
)


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
        self.plan, self.loss, self.rank = plan, loss, dist.get_rank(group)
        self.last = plan.last
        self.layers = nn.ModuleDict()
        for stage, (first, end) in enumerate(plan.cuts):
            if plan.home[stage] == self.rank:
                self.layers.update({str(number): layers[number] for number in range(first, end)})
        stages = Stages(group, plan.home[plan.last] == self.rank)
        stages_of_parameters.update({parameter: stages for parameter in self.parameters()})
        watch_steps()
        self.wire = Wire(plan, group, next(self.parameters()).device)
        self.known = set(self.parameters())
        self.tied = TiedWeights(layers, plan, group)
        self.tied.hand_out()
        elsewhere = [parameter for parameter, ranks in self.tied.shared if self.rank != ranks[0]]
        stages_of_parameters.update({p: stages._replace(counts=False) for p in elsewhere})
        splits = any(action.kind is Kind.WEIGHT for action in plan.schedule[self.rank])
        self.later = split_backward.WeightGradientsLater(self, False) if splits else None
        self.group, self.compared = group, False  # whether ranks had one batch, at the first step
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
        actions = self.plan.schedule[self.rank]
        if not torch.is_grad_enabled():
            actions = [action for action in actions if action.kind is Kind.FORWARD]
        with as_one_backward(self.parameters()), self.tied.added_up(), self.later or nullcontext():
            for action, following in zip(actions, [*actions[1:], None]):
                self.wire.post(action)
                self.wire.post_ahead(following)
                self.perform(action)
            self.wire.settle()
        return torch.stack(self.losses) if self.losses else torch.empty(0)

    def begin(self, batch: Tensor, targets: Tensor):
        check_unbroken(self.wire, unfinished=bool(self.held or self.wire.coming))
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

    # --- the actions ------------------------------------------------------------------------------

    def perform(self, action: Action):
        self.methods[action.kind](action)

    def take(self, action: Action) -> Tensor:
        return self.wire.take(action)

    def give(self, action: Action, tensor: Tensor) -> Sent | None:
        """An activation is kept until its gradient answers; the wire keeps a gradient."""
        sent = self.wire.give(action, tensor)
        return sent if action.kind is Kind.FORWARD else None

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
