"""ZeRO stage 3: each rank keeps the parameters, gradients and optimizer states of its shard only.

    fully_shard(model, units=[model.embedding, *model.blocks, model.head])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)      # it sees shards

The model is cut into units: modules whose parameters are whole at the same time. A unit's three
phases are unshard, compute, reshard:

    forward       all-gather its parameters, compute, free them               Psi elements sent
    backward      all-gather them again, compute, free them,
                  reduce-scatter the gradients, free these                  2 Psi elements sent

so 3 Psi each time, 3k Psi with k microbatches a step: Rajbhandari et al. 2020, sections 5.3 and
7.2.2. A parameter that several units share (a tied weight), or that is in none, belongs to the
root: the module given, whose parameters are whole while the units come and go.

How can a unit's parameters be gone although autograd keeps them for backward? They are views of one
flat tensor [E], whose memory is given back by resizing its storage to nothing. Autograd keeps views
of an empty storage. Before the unit's backward the storage gets its size and its contents again,
and the views find the same bits.

Three files carry what is not the idea: units.py decides which unit owns a parameter,
placeholders.py makes what a module has while its parameters are gone, and other_ways.py lets
backward into a unit that it reaches in another way than through an output.
"""

from collections.abc import Iterable, Sequence
from functools import partial, update_wrapper

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..backward import when_backward_ends, when_gradient_comes
from . import other_ways, placeholders
from . import units as cut
from .flat import as_shard, best_collectives, filled, own_chunk
from .units import sharded_units

__all__ = ["Flat", "Gathered", "Unit", "fully_shard", "sharded_units"]


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

    Raises CannotShard, a ValueError, for a unit that is not inside the module or is sharded
    already.
    """
    units = cut.checked(module, units)
    for unit, sites in cut.owned_sites(module, units).items():
        unit.sharded_unit = Unit(
            unit,
            sites,
            group,
            cut.device_of(sites, device),
            shard_device,
            compute_dtype,
            collectives,
        )
    cut.share_buffers(module, group)
    return module


class Flat:
    """A unit's parameters of one dtype, all trained or all frozen: `full` [E], which comes and
    goes, and `shard` [about E/n], which stays."""

    def __init__(self, parameters: list[nn.Parameter], group, device, shard_device, compute_dtype):
        self.group, self.shapes = group, [parameter.shape for parameter in parameters]
        whole = cut.together(parameters, group, device)
        own = cut.resting(whole, group, shard_device)
        self.shard = as_shard(own, group, parameters[0].requires_grad)
        self.full = whole.to(compute_dtype or whole.dtype)
        self.nbytes = self.full.nbytes
        self.free()

    def allocate(self):
        self.full.untyped_storage().resize_(self.nbytes)

    @torch.no_grad()
    def fill(self, collectives, group):
        own_chunk(self.full, group).copy_(self.shard, non_blocking=True)
        collectives.all_gather(self.full, group)

    def views(self, full: Tensor | None = None) -> list[Tensor]:
        """The parameters, in the full tensor. `.data`: that its memory is filled again is no change
        that autograd should see."""
        full = self.full if full is None else full
        parts = full.data.split([shape.numel() for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes)]

    def free(self):
        self.full.untyped_storage().resize_(0)

    def reduce(self, gradients: Sequence[Tensor | None], collectives) -> Tensor:
        """[about E/n]: the shard's gradient, the mean over all ranks, from this rank's gradients of
        the whole parameters."""
        gradients = filled(gradients, self.shapes, self.full)
        share = 1 / dist.get_world_size(self.group)
        return torch.cat(collectives.reduce_scatter(gradients, self.group, share)).to(self.shard)


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
        frozen = [own for own, shard in zip(parameters, shards) if not shard.requires_grad]
        ctx.mark_non_differentiable(*(parameter for own in frozen for parameter in own))
        return tuple(parameter for own in parameters for parameter in own)

    @staticmethod
    def backward(ctx, *gradients):
        _ = ctx.saved_tensors  # autograd objects here if a shard was changed since forward
        gradients = other_ways.with_recomputed(ctx.unit, gradients)
        ctx.unit.leave_backward()  # autograd comes here when all else in the unit is done
        return None, *ctx.unit.reduce(gradients)


class Unit:
    """One module that is whole only while it computes. `sites` are the places of its parameters,
    `flats` the tensors they lie in, `whole` says whether these have memory."""

    def __init__(self, module, sites, group, device, shard_device, compute_dtype, collectives):
        self.module, self.group = module, group
        self.collectives = collectives or best_collectives(device, group)
        kinds = cut.kinds_of(sites)
        self.names, self.flats = (
            list(kinds),
            [
                Flat(parameters, group, device, shard_device, compute_dtype)
                for parameters in kinds.values()
            ],
        )
        order = [parameter for parameters in kinds.values() for parameter in parameters]
        number_of = {parameter: number for number, parameter in enumerate(order)}
        self.sites = [(place, name, number_of[parameter]) for place, name, parameter in sites]
        self.whole = self.computing = self.open = False
        self.backward = None  # refers weakly to the backward that it is in
        self.placeholders = placeholders.of(self)
        self.close()
        module.forward = self.gathering(module.forward)

    def gathering(self, method):
        """The method, with the unit's parameters whole while it runs."""
        return update_wrapper(partial(self.forward, method), method)

    def close(self):
        """Shards instead of parameters."""
        for module, name, _ in self.sites:
            delattr(module, name)
        for name, flat in zip(self.names, self.flats):
            self.module.register_parameter(name, flat.shard)
        self.place(self.placeholders)
        self.open, self.exposed = False, None

    def place(self, tensors: Sequence[Tensor]):
        self.placed = tensors
        for module, name, number in self.sites:
            setattr(module, name, tensors[number])

    # --- the three phases -------------------------------------------------------------------------

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

    def forward(self, compute, *inputs, **named):
        if self.open or self.computing:  # the parameters are there
            return compute(*inputs, **named)
        before = placeholders.ready(self)
        try:
            self.computing = True
            self.place(Gathered.apply(self, *(flat.shard for flat in self.flats)))  # unshards
            with other_ways.saved(self):
                output = other_ways.without_views(self, compute(*inputs, **named))
        finally:
            self.computing = False
            self.place(before)
            if before is self.placeholders:  # else it was computed again, inside backward
                self.reshard()
        when_gradient_comes(other_ways.tensors_of(output), self.enter_backward)
        return output

    # --- backward ---------------------------------------------------------------------------------

    @property
    def in_backward(self) -> bool:
        return self.backward is not None and self.backward() is not None

    def enter_backward(self):
        """The first gradient of an output is there: now backward wants the parameters."""
        if not self.in_backward and not self.computing:
            other_ways.refuse_second_gradients(self)
            self.backward = when_backward_ends(self.end_backward)
            self.unshard()
            self.place(other_ways.for_recomputation(self))

    def leave_backward(self):
        if not self.computing:
            self.backward = None
            self.place(self.placeholders)
            self.reshard()

    def end_backward(self):
        """For a unit that trains nothing, or nothing but what was recomputed."""
        if self.in_backward:
            gradients = other_ways.with_recomputed(self, None)
            self.leave_backward()
            other_ways.deliver(self, gradients)

    def reduce(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The gradient of each shard, from those of the whole parameters."""
        gradients, reduced = list(gradients), []
        for flat in self.flats:
            own, gradients = gradients[: len(flat.shapes)], gradients[len(flat.shapes) :]
            trained = flat.shard.requires_grad
            reduced.append(flat.reduce(own, self.collectives) if trained else None)
        return reduced

    def __deepcopy__(self, memo):
        return cut.copy_of(self, memo)

    def __reduce__(self):
        raise cut.cannot_pickle(self)
