"""ZeRO stage 3: each rank keeps the parameters, gradients and optimizer states of its shard only.

    fully_shard(model, units=[model.embedding, *model.blocks, model.head])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)      # it sees shards

The model is cut into units: modules whose parameters are whole at the same time. A unit's phases:

    forward     unshard: all-gather its parameters; compute; reshard: free them     Psi sent
    backward    all-gather, compute, free; reduce-scatter the gradients           2 Psi sent

so 3 Psi each time, 3k Psi with k microbatches a step: Rajbhandari et al. 2020, sections 5.3 and
7.2.2. A parameter that several units share (a tied weight), or that is in none, belongs to the
root: the module given, whose parameters are whole while the units come and go.

How can parameters be gone although autograd keeps them? They are views of one flat tensor [E],
whose storage is resized to nothing: autograd keeps views of an empty storage. Before the unit's
backward the storage gets its size and its contents again, and the views find the same bits.

Not the idea: units.py says which unit owns a parameter, parameter_slots.py what a module has while
its parameters are gone, backward_entries.py how backward reaches a unit other than by an output.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...common.backward import when_backward_ends, when_gradient_comes
from . import backward_entries, offload
from . import units as cut
from .flat import filled, own_chunk
from .parameter_slots import UnitSlots
from .unit_shards import Shards
from .units import sharded_units as sharded_units


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
    """Shard the module's parameters, in place. Its parameters() are shards then, with the names and
    the numbers of dims that they had, so make the optimizer afterwards, in the same groups.

    units          modules inside, to be called one after the other, such as model.blocks
    group          the ranks that share the parameters and begin with rank 0's; by default all
    device         where it computes; needed on the meta device: see full_parameters.py
    shard_device   where shards, their gradients and optimizer states rest: "cpu" offloads them
    compute_dtype  of gathered parameters and of gradients on their way, not of shards
    collectives    by default the best for the group: see flat.py

    A norm of gradients that you make by hand is this rank's alone, and nothing raises:
    clip_gradients and PyTorch's clip_grad_norm_ know all. Raises CannotShard for a unit that is not
    inside the module, is sharded or is never called."""
    how = cut.How(group, device, shard_device, compute_dtype, collectives)
    owned = cut.owned_sites(module, cut.checked(module, units, how))
    for number, (unit, sites) in enumerate(owned.items(), 1):
        unit.sharded_unit = Unit(unit, sites, how, number)
    cut.share_buffers(module, group)
    return module


class Flat(Shards):
    """A unit's parameters of one dtype, all trained or all frozen: `full` [E], which comes and
    goes, and this rank's `chunk` [about E/n], which stays; the optimizer has its views `shards`."""

    def __init__(self, parameters: list[nn.Parameter], how: cut.How):
        self.how = how
        whole = cut.together(parameters, how)
        super().__init__(cut.resting(whole, how), parameters, how.group)
        self.full = whole.to(how.computes_in(whole.dtype))
        self.free()

    def allocate(self):
        self.full.untyped_storage().resize_(self.full.nbytes)

    @torch.no_grad()
    def fill(self, collectives, group):
        own_chunk(self.full, group).copy_(self.chunk, non_blocking=True)
        collectives.all_gather(self.full, group)

    def views(self, full: Tensor | None = None) -> list[Tensor]:
        """The parameters, in the full tensor. `.data`: that its memory is filled again is no change
        that autograd should see."""
        full = (self.full if full is None else full).data
        parts = full.split([shape.numel() for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes)]

    def free(self):
        self.full.untyped_storage().resize_(0)

    def reduce(self, gradients: list[Tensor | None], collectives) -> list[Tensor | None]:
        """The gradient of each shard, the mean over ranks; None if it is frozen, or on its way."""
        if not any(shard.requires_grad for shard in self.shards):
            return [None for _ in self.shards]
        gradients = cut.dense(filled(gradients, self.shapes, self.full))
        share = 1 / dist.get_world_size(self.group)
        own = torch.cat(collectives.reduce_scatter(gradients, self.group, share))
        return offload.brought_home(own, self)


class Gathered(torch.autograd.Function):
    """Forward: shards become the unit's whole parameters. Backward: the gradients of the whole
    parameters become gradients of the shards."""

    @staticmethod
    def forward(ctx, unit, *shards):
        unit.unshard()
        ctx.unit = unit
        # so that autograd objects if an optimizer changes them before backward
        ctx.save_for_backward(*shards)
        ctx.set_materialize_grads(False)
        parameters = tuple(parameter for flat in unit.flats for parameter in flat.views())
        frozen = (own for own, shard in zip(parameters, shards) if not shard.requires_grad)
        ctx.mark_non_differentiable(*frozen)
        return parameters

    @staticmethod
    def backward(ctx, *gradients):
        _ = ctx.saved_tensors  # autograd objects here if a shard was changed since forward
        gradients = backward_entries.with_recomputed(ctx.unit, gradients)
        ctx.unit.leave_backward()  # autograd comes here when all else in the unit is done
        return None, *ctx.unit.reduce(gradients)


class Unit(UnitSlots):
    """One module that is whole only while it computes. `flats` are the tensors that its parameters
    lie in, `whole` says whether these have memory. UnitSlots: where the module has them."""

    def __init__(self, module: nn.Module, sites: list[cut.Site], how: cut.How, number: int):
        self.group = how.group
        self.collectives = how.collectives_of(number, sites)
        kinds = cut.kinds_of(sites)
        self.flats = [Flat(parameters, how) for parameters in kinds]
        self.whole = self.computing = False
        super().__init__(module, sites, kinds)

    def unshard(self):
        if not self.whole:
            self.gather()
            self.whole = True

    def gather(self):
        for flat in self.flats:
            flat.allocate()
            flat.fill(self.collectives, self.group)

    def reshard(self):
        for flat in self.flats:
            flat.free()
        self.whole = False

    def forward(self, compute, *inputs, **named):
        before = self.ready()
        try:
            self.computing = True
            self.place(Gathered.apply(self, *self.shards))  # unshards
            with backward_entries.saved(self):
                output = backward_entries.without_views(self, compute(*inputs, **named))
        finally:
            self.computing = False
            self.place(before)
            if before is self.placeholders:  # else it was computed again, inside backward
                self.reshard()
        when_gradient_comes(backward_entries.tensors_of(output), self.enter_backward)
        return output

    def enter_backward(self):
        """The first gradient of an output has arrived: now backward needs the parameters."""
        if not self.in_backward and not self.computing:
            backward_entries.refuse_second_gradients(self)
            self.backward = when_backward_ends(self.end_backward)
            self.unshard()
            self.place(backward_entries.for_recomputation(self))

    def leave_backward(self):
        if not self.computing:
            self.backward = None
            self.place(self.placeholders)
            self.reshard()

    def end_backward(self):
        """End the backward of a unit that trains nothing, or nothing but what was recomputed."""
        if self.in_backward:
            gradients = backward_entries.with_recomputed(self, None)
            self.leave_backward()
            backward_entries.deliver(self, gradients)

    def reduce(self, gradients: Iterable[Tensor | None]) -> list[Tensor | None]:
        gradients = iter(gradients)
        own = [[next(gradients) for _ in flat.shapes] for flat in self.flats]
        return [g for f, given in zip(self.flats, own) for g in f.reduce(given, self.collectives)]
