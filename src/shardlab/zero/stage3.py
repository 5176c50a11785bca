"""ZeRO stage 3: each rank keeps the parameters, gradients and optimizer states of its shard only.

    fully_shard(model, units=[model.embedding, *model.blocks, model.head])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)      # any that updates each element
    # by itself: it sees shards

The model is cut into units: modules whose parameters are whole at the same time. A unit's three
phases are unshard, compute, reshard:

    forward       all-gather its parameters, compute, free them
                  Psi elements sent
    backward      all-gather them again, compute, free them, reduce-scatter the gradients, free
                  these    2 Psi elements sent

so 3 Psi each time, 3k Psi with k microbatches a step: Rajbhandari et al. 2020, sections 5.3 and
7.2.2. What several units share (a tied weight) and what is in none of them belongs to the root, the
module given, whose parameters are whole while the others come and go.

How a unit's parameters can be gone although autograd keeps them for backward: they are views of one
flat tensor [E], whose memory is given back by resizing its storage to nothing. Autograd keeps views
of an empty storage. Before the unit's backward the storage gets its size and its contents again, so
that they find the same bits. In between a module has only the shapes: tensors on "meta". Backward
comes to a unit through its outputs, and that is when it is gathered: a loss must not use what a
unit hands out in another way, such as an attribute, unless it also uses an output.
"""

from collections.abc import Iterable, Sequence
from functools import wraps

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.utils._pytree import tree_leaves

from .flat import best_collectives, filled, first_rank, own_chunk


def fully_shard(
    module: nn.Module,
    units: Iterable[nn.Module] = (),
    group=None,
    *,
    device=None,
    shard_device=None,
    compute_dtype=None,
    collectives=None,
) -> nn.Module:
    """Shard the module's parameters, in place; its parameters() are flat shards then. Make the
    optimizer afterwards.

    units          modules inside, to be called one after the other; a block list such as
                   model.blocks will do
    group          the process group whose ranks share the parameters; by default the world. All
                   ranks begin with rank 0's values
    device         on which it computes; needed for a module on the meta device, which
                   whole.unsharded fills unit by unit
    shard_device   where shards, their gradients and so their optimizer states rest; by default
                   there too. "cpu" offloads them
    compute_dtype  of gathered parameters and of gradients on their way; shards and their gradients
                   keep their own
    collectives    by default the best for the group: see flat.py

    Raises ValueError for a unit that is not inside the module, or is sharded already.
    """
    inside, units = set(module.modules()), list(dict.fromkeys([*units, module]))
    for unit in units:
        if unit not in inside:
            raise ValueError(
                f"the unit {type(unit).__name__} is no part of {type(module).__name__}: units are"
                " modules inside it."
            )
        if any(hasattr(child, "sharded_unit") for child in unit.modules()):
            raise ValueError(
                f"{type(unit).__name__} is sharded already: give all units to one call of"
                " fully_shard."
            )
    owners = owners_of_parameters(module, set(units))
    for unit in units:
        sites = [site for site, owner in owners if owner is unit]
        if sites:
            unit.sharded_unit = Unit(
                unit, sites, group, device, shard_device, compute_dtype, collectives
            )
    for buffer in module.buffers():
        if not buffer.is_meta:
            dist.broadcast(buffer, first_rank(group), group=group)
    return module


def sharded_units(module: nn.Module) -> list[nn.Module]:
    """The modules inside that are units, in the order of module.modules()."""
    return [child for child in module.modules() if hasattr(child, "sharded_unit")]


# where a parameter is: a module and the name that it has there
Site = tuple[nn.Module, str, nn.Parameter]


def owners_of_parameters(root: nn.Module, units: set[nn.Module]) -> list[tuple[Site, nn.Module]]:
    """Every place of every parameter, with the unit that owns it: the innermost around it, or the
    root if these are several."""
    sites: dict[tuple[nn.Module, str], nn.Parameter] = {}
    around: dict[nn.Parameter, set[nn.Module]] = {}

    def visit(module, unit):
        unit = module if module in units else unit
        for name, parameter in module._parameters.items():
            if parameter is not None:
                sites[module, name] = parameter
                around.setdefault(parameter, set()).add(unit)
        for child in module.children():  # of a module that has two parents, twice
            visit(child, unit)

    visit(root, root)
    return [
        ((module, name, p), next(iter(around[p])) if len(around[p]) == 1 else root)
        for (module, name), p in sites.items()
    ]


class Flat:
    """A unit's parameters of one dtype, all trained or all frozen: `full` [E], which comes and
    goes, and `shard` [about E/n]."""

    def __init__(
        self,
        parameters: list[nn.Parameter],
        group,
        device: torch.device,
        shard_device,
        compute_dtype,
    ):
        self.group, self.shapes = group, [p.shape for p in parameters]
        first = parameters[0]
        if first.is_meta:
            whole = torch.empty(
                sum(p.numel() for p in parameters), dtype=first.dtype, device=device
            )
        else:
            whole = torch.cat([p.detach().reshape(-1) for p in parameters]).to(device)
            dist.broadcast(whole, first_rank(group), group=group)
        own = own_chunk(whole, group).to(shard_device or device, copy=True)
        if whole.is_cuda and not own.is_cuda:
            own = own.pin_memory()  # so that the copy engine can fetch it by itself
        self.shard = nn.Parameter(own, requires_grad=first.requires_grad)
        self.full = whole.to(compute_dtype or whole.dtype)
        self.nbytes = self.full.nbytes
        self.free()

    def allocate(self):
        self.full.untyped_storage().resize_(self.nbytes)

    @torch.no_grad()
    def fill(self, collectives, group):
        own_chunk(self.full, group).copy_(self.shard, non_blocking=True)
        collectives.all_gather(self.full, group)

    def views(self) -> list[Tensor]:
        """The parameters, in the full tensor. `.data`: that its memory is filled again is no change
        that autograd should see."""
        parts = self.full.data.split([shape.numel() for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes)]

    def free(self):
        self.full.untyped_storage().resize_(0)

    def reduce(self, gradients: list[Tensor | None], collectives) -> Tensor:
        """[about E/n]: the shard's gradient, the mean over all ranks, from this rank's gradients of
        the whole parameters."""
        parts = collectives.reduce_scatter(filled(gradients, self.shapes, self.full), self.group)
        return torch.cat(parts).div_(dist.get_world_size(self.group)).to(self.shard)


class Gathered(torch.autograd.Function):
    """Forward: shards become the unit's whole parameters. Backward: the gradients of these become
    gradients of the shards."""

    @staticmethod
    def forward(ctx, unit, *shards):
        unit.unshard()
        ctx.unit = unit
        # so that autograd objects should an optimizer change them before backward
        ctx.save_for_backward(*shards)
        ctx.set_materialize_grads(False)
        parameters = [flat.views() for flat in unit.flats]
        ctx.mark_non_differentiable(
            *(p for own, shard in zip(parameters, shards) if not shard.requires_grad for p in own)
        )
        return tuple(p for own in parameters for p in own)

    @staticmethod
    def backward(ctx, *gradients):
        _ = ctx.saved_tensors  # autograd objects here if a shard was changed since forward
        ctx.unit.leave_backward()  # autograd comes here when all else in the unit is done
        gradients, shards = list(gradients), []
        for flat in ctx.unit.flats:
            own, gradients = gradients[: len(flat.shapes)], gradients[len(flat.shapes) :]
            shards.append(
                flat.reduce(own, ctx.unit.collectives) if flat.shard.requires_grad else None
            )
        return None, *shards


class Unit:
    """One module that is whole only while it computes. `sites` are the places of its parameters,
    `flats` the tensors they lie in, `whole` says whether these have memory."""

    def __init__(
        self,
        module: nn.Module,
        sites: list[Site],
        group,
        device,
        shard_device,
        compute_dtype,
        collectives,
    ):
        self.module, self.compute, self.group = module, module.forward, group
        self.whole = self.in_backward = self.open = False
        kinds: dict[str, list[nn.Parameter]] = {}
        for parameter in dict.fromkeys(parameter for *_, parameter in sites):
            name = f"shard_{str(parameter.dtype).removeprefix('torch.')}" + "_frozen" * (
                not parameter.requires_grad
            )
            kinds.setdefault(name, []).append(parameter)
        device = torch.device(device or sites[0][2].device)
        if device.type == "meta":
            raise ValueError(
                "the module is on the meta device: say where its shards shall be, fully_shard(...,"
                " device=...)."
            )
        self.collectives = collectives or best_collectives(device, group)
        self.flats = [
            Flat(parameters, group, device, shard_device, compute_dtype)
            for parameters in kinds.values()
        ]
        self.shapes = [
            torch.empty((), dtype=flat.full.dtype, device="meta").expand(shape)
            for flat in self.flats
            for shape in flat.shapes
        ]
        order = {
            parameter: number
            for number, parameter in enumerate(p for kind in kinds.values() for p in kind)
        }
        self.sites = [(place, name, order[parameter]) for place, name, parameter in sites]
        self.shards = {name: flat.shard for name, flat in zip(kinds, self.flats)}
        self.close()
        module.forward = wraps(self.compute)(lambda *args, **kwargs: self.forward(*args, **kwargs))

    def place(self, tensors: Sequence[Tensor]):
        for module, name, number in self.sites:
            setattr(module, name, tensors[number])

    def unshard(self):
        if not self.whole:
            self.gather()
            self.whole = True

    def gather(self):
        self.allocate()
        self.fill(self.group)

    def allocate(self):
        for flat in self.flats:
            flat.allocate()

    def fill(self, group):
        for flat in self.flats:
            flat.fill(self.collectives, group)

    def reshard(self):
        for flat in self.flats:
            flat.free()
        self.whole = False

    # --- forward ----------------------------------------------------------------------------------

    def forward(self, *args, **kwargs):
        if self.open:
            return self.compute(*args, **kwargs)
        if self.in_backward and torch._C._current_graph_task_id() == -1:
            self.leave_backward()  # one that broke off
        try:
            self.place(Gathered.apply(self, *self.shards.values()))
            output = self.compute(*args, **kwargs)
        finally:
            self.place(self.shapes)
            # as it is when activation checkpointing computes the unit again
            if not self.in_backward:
                self.reshard()
        results = [
            leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad
        ]
        if results:
            register_multi_grad_hook(results, lambda _: self.enter_backward(), mode="any")
        return output

    # --- backward ---------------------------------------------------------------------------------

    def enter_backward(self):
        """The first gradient of a result is there: now backward wants the parameters."""
        if not self.in_backward:
            self.in_backward = True
            # for a unit that trains nothing
            torch.autograd.Variable._execution_engine.queue_callback(self.leave_backward)
        self.unshard()

    def leave_backward(self):
        self.in_backward = False
        self.reshard()

    def close(self):
        """The shards, in the place of the parameters."""
        for module, name, _ in self.sites:
            del module._parameters[name]
        for name, shard in self.shards.items():
            self.module.register_parameter(name, shard)
        self.place(self.shapes)
        self.reshard()
        self.open = False
