"""Refusals of a pipeline on ranks: when it is made, on all ranks or on none, and in a step."""

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...common.agreement import agree, batch_of, unlogged
from ...common.collective_wire import place
from ...common.shards import groups_of, would_mix
from ..partition import CannotPipeline, PipelinePlan, complaint_of_shards
from .tied import TiedWeights


def check_ranks(layers: Sequence[nn.Module], plan: PipelinePlan, group: dist.ProcessGroup | None):
    """Before the ranks of the group send anything of a model to each other."""
    place(group)
    facts = [f"stages {plan.cuts}", f"outputs {plan.outputs}", f"lists {plan.schedule}"]
    wrong = complaint_of_members(layers, plan, group)
    if not wrong:
        facts += [f"a weight on ranks {ranks}" for ranks in TiedWeights(layers, plan, group).places]
    rule = "all ranks run the same plan, with the same layers"
    agree(facts, group, CannotPipeline, rule, wrong)


def complaint_of_members(
    layers: Sequence[nn.Module], plan: PipelinePlan, group: dist.ProcessGroup | None
) -> str:
    """The problem of this rank alone, or an empty string."""
    size, wanted = dist.get_world_size(group), len(plan.schedule)
    if size != wanted:
        return f"the schedule is for {wanted} ranks, and the group has {size}."
    if len(layers) != plan.cuts[-1][1]:
        return f"the plan is for {plan.cuts[-1][1]} layers, and there are {len(layers)}."
    return complaint_of_shards(layers) or would_mix(
        nn.ModuleList(layers).named_parameters(), group, groups_of
    )


def check_unbroken(groups: Iterable[dist.ProcessGroup], unfinished: bool):
    """Whether messages of this step would meet those of the same step on the other ranks."""
    try:
        for group in groups:
            dist.get_backend(group)
    except ValueError:  # the group is not known any more
        unfinished = True
    if unfinished:
        raise CannotPipeline(
            "a step of this pipeline was cut short, or its process groups were made anew, as after"
            " a rank raised: make the pipeline anew."
        )


def check_batch(plan: PipelinePlan, batch: Tensor, targets: Tensor):
    m, (one, *others) = plan.microbatches, plan.microbatch
    if len(batch) % m or len(batch) != len(targets):
        raise CannotPipeline(
            f"a batch of {len(batch)} with targets of {len(targets)}: both have the same number"
            f" of sequences, a multiple of microbatches = {m}."
        )
    if list(batch.shape) != [m * one, *others]:
        raise CannotPipeline(
            f"a batch of {list(batch.shape)}, and the plan is for {[m * one, *others]}: the ranks"
            " expect messages of its size; make another plan for this batch."
        )


def check_one_batch(batch: Tensor, targets: Tensor, group: dist.ProcessGroup | None):
    """The first stage has the batch, the last one the targets that belong to it."""
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    rule = (
        f"the ranks of one pipeline, here {ranks}, are given one batch with its targets; choose it"
        " by the data-parallel rank"
    )
    facts = [f"{batch_of(batch)} of {batch.dtype}", f"as targets {batch_of(targets)}"]
    with unlogged():
        agree(facts, group, CannotPipeline, rule)


def check_output(plan: PipelinePlan, stage: int, y: Tensor):
    shape, dtype = plan.outputs[stage]
    if (y.shape, y.dtype) != (shape, dtype):
        raise CannotPipeline(
            f"stage {stage} makes {list(y.shape)} of {y.dtype}, and the plan says {list(shape)} of"
            f" {dtype}: make the plan of the same layers, in their dtype and under the same"
            " autocast."
        )


def check_stage_loss(loss: Tensor):
    what = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
    if isinstance(loss, Tensor) and loss.numel() == 1:
        if loss.requires_grad or not torch.is_grad_enabled():
            return
        what = "a number without a graph"
    raise CannotPipeline(
        f"loss(y, targets) returned {what}: it returns one number for a microbatch, a tensor that"
        " leads back to y."
    )
