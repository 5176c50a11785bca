"""The core of ZeRO stage 3: a module, each rank of which has a shard of every parameter.

    fully_shard(model, units=[model.embedding, *model.blocks, model.head])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)      # of shards

The model is cut into units: modules whose parameters are whole at the same time. A unit's phases:

    forward     all-gather its parameters; compute; free them                          Psi sent
    backward    all-gather, compute, reduce-scatter the gradients, free              2 Psi sent

so 3 Psi in all (Rajbhandari et al. 2020, sections 5.3 and 7.2.2). A parameter that is in no unit,
or that several share, as a tied weight, belongs to the root: the module itself. Clipping, loss
scaling and saving need zero.shard: they do not know these shards.

How can parameters be gone although autograd keeps them? They are views of one flat tensor, whose
storage is resized to nothing: autograd keeps views of an empty storage. Before the unit's backward
the storage gets its size and its contents again, and the views find the same bits.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..common.collective_wire import Group, all_gather_single, reduce_scatter_single
from ..common.shards import as_shard
from ..common.torch_internals import at_end_of_backward
from ..data_parallel.core import first_rank

Site = tuple[nn.Module, str]  # a module, and the name of a parameter that it has


class Flat:
    """Parameters of one dtype, all trained or all frozen: `full` [E], which comes and goes, and
    this rank's `shard` [E/n], which stays. `sites` are where each parameter was."""

    def __init__(self, sites: dict[nn.Parameter, list[Site]], group: Group):
        parameters, self.sites, self.group = list(sites), list(sites.values()), group
        self.n, me = dist.get_world_size(group), dist.get_rank(group)
        self.shapes = [p.shape for p in parameters]
        chunk = -(-sum(shape.numel() for shape in self.shapes) // self.n)  # elements, rounded up
        self.full = parameters[0].detach().new_zeros(self.n * chunk)  # [E]
        for view, p in zip(self.views(self.full), parameters):
            view.copy_(p.detach())
        dist.broadcast(self.full, first_rank(group), group=group)
        own = self.full[me * chunk : (me + 1) * chunk].clone()
        self.shard = as_shard(own, group, parameters[0].requires_grad)  # [E/n]
        self.free()

    def views(self, full: Tensor) -> list[Tensor]:
        """The parameters, in a tensor like `full`."""
        sizes = [shape.numel() for shape in self.shapes]
        parts = full[: sum(sizes)].split(sizes)
        return [part.view(shape) for part, shape in zip(parts, self.shapes)]

    @torch.no_grad()
    def gather(self):
        """Make `full` whole. `.data`: autograd must not take its return for a change."""
        if not self.whole:
            self.full.untyped_storage().resize_(self.full.nbytes)
            self.all_gather(self.full.data)
            self.whole = True

    def all_gather(self, full: Tensor):
        all_gather_single(full, self.shard.detach(), group=self.group)

    def reduce_scatter(self, gradient: Tensor) -> Tensor:  # [E] -> [E/n]
        own = torch.empty_like(self.shard)
        reduce_scatter_single(own, gradient.contiguous() / self.n, group=self.group)
        return own

    def free(self):
        self.full.untyped_storage().resize_(0)
        self.whole = False


class Gathered(torch.autograd.Function):
    """Forward: a shard [E/n] becomes the full tensor [E]. Backward: the gradient of the full tensor
    becomes the mean gradient of the shard."""

    @staticmethod
    def forward(ctx, flat, shard):
        ctx.flat = flat
        ctx.save_for_backward(shard)
        flat.gather()
        return flat.full.data

    @staticmethod
    def backward(ctx, gradient):
        _ = ctx.saved_tensors  # autograd objects here if the shard was changed since forward
        own = ctx.flat.reduce_scatter(gradient)
        ctx.flat.free()  # autograd comes here when all else in the unit is done
        return None, own


class Unit:
    """A module that is whole only while it computes."""

    def __init__(self, module: nn.Module, sites: dict[nn.Parameter, list[Site]], group, flat_cls):
        kinds: dict[tuple, dict] = {}
        for p, places in sites.items():
            kinds.setdefault((p.dtype, p.requires_grad), {})[p] = places
        self.flats = [flat_cls(kind, group) for kind in kinds.values()]
        for owner, name in sum(sites.values(), []):
            delattr(owner, name)
        for number, flat in enumerate(self.flats):
            module.register_parameter(f"shard_{number}", flat.shard)
        module.zero_unit = self
        module.register_forward_pre_hook(self.enter_forward)
        module.register_forward_hook(self.leave_forward, always_call=True)

    def enter_forward(self, module, inputs):
        for flat in self.flats:
            for view, places in zip(flat.views(Gathered.apply(flat, flat.shard)), flat.sites):
                for owner, name in places:
                    setattr(owner, name, view)

    def leave_forward(self, module, inputs, output):
        for owner, name in sum((places for flat in self.flats for places in flat.sites), []):
            owner.__dict__.pop(name, None)
        self.free()
        if isinstance(output, Tensor) and output.requires_grad:
            output.register_hook(self.enter_backward)

    def enter_backward(self, gradient):
        """The unit is whole again before its backward. Frozen parameters have no gradient that says
        when it is over, so they are freed at the end of all."""
        for flat in self.flats:
            flat.gather()
        at_end_of_backward(self.free)

    def free(self):
        for flat in self.flats:
            flat.free()


def fully_shard(module: nn.Module, units: Iterable[nn.Module] = (), group=None, flat_cls=Flat):
    """Shard the module in place and return it. All ranks begin with the values of the group's rank
    0. A unit takes tensors and returns one. Raises ValueError for a unit that is not inside the
    module, and for a module that is sharded already."""
    units = dict.fromkeys([*units, module])
    if not set(units) <= set(module.modules()):
        raise ValueError("a unit is not inside the module.")
    if any(hasattr(child, "zero_unit") for child in module.modules()):
        raise ValueError("the module is sharded already.")
    names = {p: name for name, p in module.named_parameters()}
    sites: dict[nn.Parameter, dict[Site, None]] = {p: {} for p in names}
    around: dict[nn.Parameter, set[nn.Module]] = {p: set() for p in names}

    def visit(child: nn.Module, unit: nn.Module):
        unit = child if child in units else unit
        for name, p in child.named_parameters(recurse=False, remove_duplicate=False):
            sites[p][child, name] = None
            around[p].add(unit)
        for grandchild in child.children():
            visit(grandchild, unit)

    visit(module, module)
    home = {p: found.pop() if len(found) == 1 else module for p, found in around.items()}
    for unit in units:
        own = {p: list(sites[p]) for p in names if home[p] is unit}
        if own:
            Unit(unit, own, group, flat_cls)
    module.plain_names = {site: name for p, name in names.items() for site in sites[p]}
    return module


def whole_parameters(module: nn.Module) -> dict[str, Tensor]:
    """Copies of the whole parameters on every rank, as named_parameters() of the plain module."""
    found = {}
    for unit in [child.zero_unit for child in module.modules() if hasattr(child, "zero_unit")]:
        for flat in unit.flats:
            flat.gather()
            for view, places in zip(flat.views(flat.full), flat.sites):
                found[module.plain_names[places[0]]] = view.detach().clone()
            flat.free()
    return {name: found[name] for name in dict.fromkeys(module.plain_names.values())}
