"""Decisions before a model is cut into units: which unit owns a parameter, and which parameters
share a flat tensor. All ranks must bring the same model.

Stage 3 decides this once, when it shards; nothing here runs in a step.
"""

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...common.agreement import agree, facts_of, hand_out
from ...common.shards import CannotShard, groups_of, would_mix
from ...data_parallel.core import first_rank
from .checks import complaint_of_kinds, complaint_of_units
from .flat import own_chunk
from .torch_collectives import best_collectives

# the site of a parameter: a module and the parameter's name there
Site = tuple[nn.Module, str, nn.Parameter]


def sharded_units(module: nn.Module) -> list[nn.Module]:
    """The modules inside that are units, in the order of module.modules(). A compiled module has
    the attributes of the one in it, and is no second unit."""
    return [child for child in module.modules() if "sharded_unit" in vars(child)]


@dataclass(frozen=True)
class How:
    """Where and in which dtype a unit rests, travels and computes: arguments of fully_shard."""

    group: dist.ProcessGroup | None
    device: torch.device | str | None
    shard_device: torch.device | str | None
    compute_dtype: torch.dtype | None
    collectives: object

    def device_of(self, parameter: nn.Parameter) -> torch.device:
        return torch.device(self.device or parameter.device)

    def collectives_of(self, number: int, sites: list[Site]):
        """Messages carry the unit's number, so ranks that run different units do not receive each
        other's messages."""
        device = self.device_of(sites[0][2])
        own = copy(self.collectives or best_collectives(device, self.group))
        if hasattr(own, "run"):
            own.run = numbered(own.run, number)
        return own

    def computes_in(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype in which a parameter computes. Integers, complex numbers and flags keep their
        dtype."""
        return (self.compute_dtype or dtype) if dtype.is_floating_point else dtype


def numbered(run, number: int):
    """The moves of chunks with other numbers, by which sender and receiver know a message."""
    first = number << UNIT_BITS

    def moved(plan, chunks, group):
        plan = [[move._replace(chunk=first + move.chunk) for move in moves] for moves in plan]
        run(plan, {first + chunk: tensor for chunk, tensor in enumerate(chunks)}, group)

    return moved


UNIT_BITS = (
    16  # of the chunk's number, which is below; shardlab.ranks names the unit by those above
)


def checked(module: nn.Module, units: Iterable[nn.Module], how: How) -> list[nn.Module]:
    """The units and the module itself, each once; CannotShard if one cannot be a unit."""
    inside, units = set(module.modules()), list(dict.fromkeys([*units, module]))
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
    if any(how.device_of(parameter).type == "meta" for parameter in module.parameters()):
        raise CannotShard(
            "the module is on the meta device: say where its shards shall be, fully_shard(...,"
            " device=...)."
        )
    check_alike(module, units, how)
    return units


def owned_sites(root: nn.Module, units: list[nn.Module]) -> dict[nn.Module, list[Site]]:
    """For each unit that owns a parameter, every place of its parameters. The owner is the
    innermost unit around the parameter, or the root if these are several."""
    sites: dict[tuple[nn.Module, str], nn.Parameter] = {}
    around: dict[nn.Parameter, set[nn.Module]] = {}

    def visit(module, unit):
        unit = module if module in units else unit
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            sites[module, name] = parameter
            around.setdefault(parameter, set()).add(unit)
        for child in module.children():  # of a module that has two parents, twice
            visit(child, unit)

    visit(root, root)
    owned: dict[nn.Module, list[Site]] = {unit: [] for unit in units}
    for (module, name), parameter in sites.items():
        owner = next(iter(around[parameter])) if len(around[parameter]) == 1 else root
        owned[owner].append((module, name, parameter))
    owned = {unit: own for unit, own in owned.items() if own}
    for unit in owned:
        if isinstance(unit, CONTAINERS) and type(unit).forward is nn.Module.forward:
            name = type(unit).__name__
            raise CannotShard(
                f"{name} is never called, so nobody would gather its parameters: give the modules"
                " in it as units, fully_shard(model, [*model.blocks])."
            )
    return owned


CONTAINERS = nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict


def kinds_of(sites: list[Site]) -> list[list[nn.Parameter]]:
    """The parameters of each flat tensor: one dtype, all trained or all frozen; parts that other
    groups have cut, or what is whole there."""
    kinds: dict[tuple, list[nn.Parameter]] = {}
    for parameter in dict.fromkeys(parameter for *_, parameter in sites):
        kind = parameter.dtype, parameter.requires_grad, bool(groups_of(parameter))
        kinds.setdefault(kind, []).append(parameter)
    return list(kinds.values())


def together(parameters: list[nn.Parameter], how: How) -> Tensor:
    """[E]: rank 0's parameters, one after the other; with any values for a model on the meta
    device."""
    first = parameters[0]
    if first.is_meta:
        size = sum(parameter.numel() for parameter in parameters)
        return torch.empty(size, dtype=first.dtype, device=how.device)
    whole = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    whole = whole.to(how.device_of(first))
    dist.broadcast(whole.view(torch.uint8), first_rank(how.group), group=how.group)  # any dtype
    return whole


def resting(whole: Tensor, how: How) -> Tensor:
    """A copy of this rank's chunk on the device where it rests; pinned if it is fetched from the
    host, because then the copy engine can fetch it by itself."""
    shard = own_chunk(whole, how.group).to(how.shard_device or whole.device, copy=True)
    return shard.pin_memory() if whole.is_cuda and not shard.is_cuda else shard


def check_alike(module: nn.Module, units: Iterable[nn.Module], how: How):
    """Raise CannotShard on all ranks unless all ranks bring the same parameters in the same
    units."""
    if dist.get_backend(how.group) == "fake":  # its other ranks do not exist
        return
    paths = {child: path or "the root" for path, child in module.named_modules()}
    facts = [f"the unit {paths[unit]}" for unit in units]
    facts += facts_of(module)
    rule = "all ranks shard the same model in the same units"
    complaint = complaint_of_units(module) or complaint_of_kinds(module, how.compute_dtype)
    complaint = complaint or would_mix(module.named_parameters(), how.group)
    agree(facts, how.group, CannotShard, rule, complaint)


def dense(gradients: list[Tensor]) -> list[Tensor]:
    for gradient in gradients:
        if gradient.layout is not torch.strided:
            raise CannotShard(
                f"a gradient is {gradient.layout}: only dense ones are averaged; build embeddings"
                " with sparse=False."
            )
    return gradients


def share_buffers(module: nn.Module, group):
    """Every rank gets rank 0's buffers."""
    hand_out((buffer for buffer in module.buffers() if not buffer.is_meta), group)
