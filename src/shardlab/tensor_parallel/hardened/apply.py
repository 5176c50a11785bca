"""A model split by its plan, on ranks.

apply_tensor_parallel(model, plan, group)                # on every rank, in place
"""

import torch
import torch.distributed as dist
from torch import nn

from ...common.agreement import agree, facts_of, hand_out
from ...common.backward import averaged
from ...common.before_step import holder_of, replaced, watch_steps
from ...common.shards import cut_among
from .checks import CannotSplit, check_plan, matches, plan_complaint, warn_of_nodes
from .first_forward import FirstForward
from .layers import CutModule, Parts
from .plan import Around, TensorPlan, Tokens
from .whole_gradients import WholeParameters, watch_sums


def apply_tensor_parallel(
    model: nn.Module,
    plan: TensorPlan,
    group: dist.ProcessGroup | None = None,
    ranks_per_node: int | None = None,
) -> nn.Module:
    """Cut the model, in place, as the plan says; make the optimizer afterwards. All ranks begin
    with the values and the random generator of the group's rank 0, so what is drawn does not depend
    on the number of ranks. Names of parameters stay. PyTorch's clip_grad_norm_ and GradScaler know
    the parts from now on.

    The ranks of the group see the same batch and, where dropout is on, draw the same numbers:
    choose both by the data-parallel rank. The first training forward compares them, and raises
    CannotSplit if they differ; no later one does. It refuses equal parts, too: initialise before,
    because afterwards all ranks draw the same numbers. A norm of gradients that you make by hand is
    of this rank's parts alone, and nothing raises.

    Raises CannotSplit on all ranks or on none; warns if the group is larger than a node."""
    ranks = dist.get_world_size(group)
    warn_of_nodes(ranks, ranks_per_node)
    if dist.get_backend(group) == "fake":  # its other ranks do not exist
        check_plan(model, plan, ranks)
    else:
        begin_alike(model, plan, group)
    watch_steps()
    parts, entries = Parts(group), matches(model, plan)
    for name, entry in entries:
        for each in entry:
            module = model.get_submodule(name)
            part = each.split(module, parts)
            part.training = module.training
            if part is not module:  # as the model itself is
                model.set_submodule(name, part)
    own_tokens = any(each.divides_tokens for _, entry in entries for each in entry)
    if own_tokens:
        for module in model.modules():
            if isinstance(module, CutModule):
                module.among_own_tokens = True
                module.converted()
    else:
        add_up_whole(model, entries, group)
    replaced(parts.made, by="apply_tensor_parallel")
    if dist.get_backend(group) != "fake":
        watch_sums(model.parameters() if own_tokens else (), group)
        first = FirstForward(model, group, own_tokens)
        for name, entry in entries:
            if any(isinstance(each, Around | Tokens) for each in entry):
                first.watch(model.get_submodule(name))
    return model


def add_up_whole(model: nn.Module, entries: list, group):
    """Gradients of modules that stay whole and have parameters are sums where the first backward
    shows it."""
    if dist.get_world_size(group) == 1 or dist.get_backend(group) == "fake":
        return
    around = [f"{name}." for name, entry in entries if any(isinstance(e, Around) for e in entry)]
    for name, _ in entries:
        module = model.get_submodule(name)
        trained = any(p.requires_grad for p in module.parameters(recurse=False))
        if trained and not isinstance(module, CutModule):
            WholeParameters(name, module, group, f"{name}.".startswith(tuple(around)))


def begin_alike(model: nn.Module, plan: TensorPlan, group):
    """All ranks can split the model, and have rank 0's values and random generators."""
    facts, rule = facts_of(model), "all ranks split the same model"
    complaint = taken(model) or plan_complaint(model, plan, dist.get_world_size(group))
    agree(facts, group, CannotSplit, rule, complaint)
    if not any(parameter.is_meta for parameter in model.parameters()):
        hand_out([*model.parameters(), *model.buffers()], group)
        share_generators(next(model.parameters()).device, group)


def taken(model: nn.Module) -> str:
    """Why a part cannot take the place of a parameter: another technique knows it. Empty if none
    does."""
    known = averaged(model)
    for name, parameter in model.named_parameters():
        if parameter in known or cut_among(parameter) or holder_of(parameter) is not None:
            return (
                f"{name} is a part or a shard, or has replicas or copies, already: cut the plain"
                " model, once, and make pipelines, replicas, shards and optimizers of it"
                " afterwards."
            )
    return ""


def share_generators(device: torch.device, group):
    """Rank 0's state of the random generators, for dropout: the masks are rank 0's."""
    state = torch.get_rng_state()
    hand_out([state], group)
    torch.set_rng_state(state)
    if device.type == "cuda":
        state = torch.cuda.get_rng_state(device)
        hand_out([state], group)
        torch.cuda.set_rng_state(state, device)
