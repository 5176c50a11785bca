"""ZeRO stage 3, hardened; the idea is in core_stage3.py. Decided once, when a model is sharded,
are here: which unit owns a parameter, and that all ranks bring the same model. What runs in a step
is in unit.py.
"""

from collections.abc import Iterable
from copy import copy

import torch
from torch import nn

from ...common.agreement import agree, facts_of, hand_out
from ...common.shards import CannotShard, groups_of, misses_experts, replicas_of, stages_of
from ...common.torch_clip_and_scale import watch_steps
from ...common.torch_internals import hooks_of_others
from ...experts.core_parallel import count_everywhere
from ..core_stage3 import Site
from .ahead import Ahead
from .flat import best_collectives
from .unit import Unit
from .unit_shards import How, Landing, Sites


def fully_shard(
    module: nn.Module,
    units: Iterable[nn.Module] = (),
    group=None,
    *,
    device=None,
    shard_device=None,
    compute_dtype=None,
    collectives=None,
    prefetch=False,
) -> nn.Module:
    """Shard the module's parameters, in place. Its parameters() are shards then, with the names and
    the numbers of dims that they had, so make the optimizer afterwards, in the same groups.

    units          modules inside, to be called one after the other, such as model.blocks
    group          the ranks that share the parameters and begin with rank 0's; by default all
    device         where it computes; needed on the meta device: see full_parameters.py
    shard_device   where shards, their gradients and optimizer states rest: "cpu" offloads them
    compute_dtype  of gathered parameters and of gradients on their way, not of shards
    collectives    by default the best for the group: see flat.py
    prefetch       the next unit's parameters travel while a unit computes: see ahead.py; False: a
                   unit waits for its own

    A norm of gradients that you make by hand is this rank's alone, and nothing raises:
    clip_gradients and PyTorch's clip_grad_norm_ know all. After a backward that raised call
    zero_grad(): gradients of the unit in which it did are gone. Raises CannotShard for a unit that
    is not inside the module or is sharded."""
    units = list(dict.fromkeys([*units, module]))
    check_units(module, units, device)
    check_alike(module, units, group)
    watch_steps()
    owned = owned_sites(module, units)
    ahead = Ahead(module) if prefetch else None
    how = How(group, device, shard_device, compute_dtype, ahead, Landing())
    for number, (unit, kinds) in enumerate(owned.items(), 1):
        own = copy(best_collectives(how.device_of(next(iter(kinds[0]))), group, collectives))
        own.unit = number
        unit.sharded_unit = Unit(unit, kinds, how, own)
    count_everywhere(module, group)
    hand_out((buffer for buffer in module.buffers() if not buffer.is_meta), group)
    return module


def sharded_units(module: nn.Module) -> list[nn.Module]:
    """The modules inside that are units, in the order of module.modules(). A compiled module has
    the attributes of the one in it, and is no second unit."""
    return [child for child in module.modules() if "sharded_unit" in vars(child)]


def owned_sites(root: nn.Module, units: list[nn.Module]) -> dict[nn.Module, list[Sites]]:
    """For each unit that owns parameters, these and every place of each, by kinds. The owner is the
    innermost unit around the parameter, or the root if these are several."""
    sites: dict[nn.Parameter, dict[Site, None]] = {}
    around: dict[nn.Parameter, set[nn.Module]] = {}

    def visit(module, unit):
        unit = module if module in units else unit
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            sites.setdefault(parameter, {})[module, name] = None
            around.setdefault(parameter, set()).add(unit)
        for child in module.children():  # of a module that has two parents, twice
            visit(child, unit)

    visit(root, root)
    owned: dict[nn.Module, Sites] = {unit: {} for unit in units}
    for parameter, found in around.items():
        owner = next(iter(found)) if len(found) == 1 else root
        owned[owner][parameter] = list(sites[parameter])
    return {unit: kinds_of(own) for unit, own in owned.items() if own}


def kinds_of(sites: Sites) -> list[Sites]:
    """The parameters of each flat tensor: one dtype, all trained or all frozen; parts that other
    groups have cut, or what is whole there; experts, or what every rank has."""
    kinds: dict[tuple, Sites] = {}
    for p, own in sites.items():
        kind = p.dtype, p.requires_grad, groups_of(p), replicas_of(p, None)
        kinds.setdefault(kind, {})[p] = own
    return list(kinds.values())


# --- refusals -------------------------------------------------------------------------------------


def check_units(module: nn.Module, units: list[nn.Module], device):
    inside = set(module.modules())
    for unit in units:
        name = type(unit).__name__
        if unit not in inside:
            raise CannotShard(
                f"the unit {name} is not part of {type(module).__name__}: units are modules inside"
                " it."
            )
        if any(hasattr(child, "sharded_unit") for child in unit.modules()):
            raise CannotShard(
                f"{name} is sharded already: give all units to one call of fully_shard."
            )
    if any(torch.device(device or p.device).type == "meta" for p in module.parameters()):
        raise CannotShard(
            "the module is on the meta device: say where its shards shall be, fully_shard(...,"
            " device=...)."
        )


def check_alike(module: nn.Module, units: list[nn.Module], group):
    """Raise CannotShard on all ranks unless all ranks bring the same parameters in the same
    units."""
    complaint = complaint_of_units(module) or misses_experts(module.named_parameters(), group)
    paths = {child: path or "the root" for path, child in module.named_modules()}
    facts = [*(f"the unit {paths[unit]}" for unit in units), *facts_of(module)]
    agree(facts, group, CannotShard, "all ranks shard the same model in the same units", complaint)


def complaint_of_units(module: nn.Module) -> str:
    """Why stage 3 cannot shard what is in the module, or an empty string."""
    for name, parameter in module.named_parameters():
        if stages_of(parameter):
            return (
                f"{name} is in a stage of a pipeline, where stage 3 would gather it anew for each"
                " microbatch: take ZeRO stage 1 or 2."
            )
        if hooks_of_others(parameter):
            return (
                f"{name} has a hook on its gradient, but becomes part of a shard with a gradient of"
                " its own: remove the hook, or take ZeRO stage 2."
            )
    for path, child in module.named_modules():
        kind = f"{path or 'the root'} is a {type(child).__name__}"
        if isinstance(child, torch.jit.ScriptModule):
            return f"{kind}, whose parameters stay where they are: shard the module unscripted."
        if isinstance(child, nn.Embedding | nn.EmbeddingBag) and child.max_norm is not None:
            return (
                f"{kind} with max_norm = {child.max_norm}, which shortens rows in forward, where"
                " its weight is a copy: build it without."
            )
    return ""
