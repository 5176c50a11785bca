"""ZeRO stage 3, hardened: the core's phases, for any module. Decided once, when a model is sharded,
is which unit owns a parameter, and that all ranks bring the same model.

A unit is around the call of its module, so that the module's own hooks find parameters. Backward
comes to it by an output, or by a tensor that autograd has kept (saved_tensors.py). Gradients travel
one by one, and after the parameters have gone. Each shard has the name of its parameter:

    weight [6, 4]   elements  0 to 23           rank 0: weight [15, 1], bias [0]
    bias [6]        elements 24 to 29           rank 1: weight  [9, 1], bias [6]

Parameters travel together, in one flat tensor, and each rank has one chunk of it. An optimizer sees
the elements of each parameter in this chunk, if any, with as many dims as the parameter has. So a
training script may choose groups by names or dims as it does for the whole model.

Where a parameter was stands a tensor of its shape and dtype without values, which refuses to
compute. The model is initialised before fully_shard, or within `with unsharded(model, write=True)`.

Activation checkpointing computes parts of a unit again, inside backward, with the parameters as
leaves. Under a reentrant checkpoint leaves get gradients, which join those of autograd.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from copy import copy
from functools import partial, update_wrapper
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...common import before_step
from ...common.agreement import agree, facts_of, hand_out
from ...common.backward import NoSecondGradient, check_dense, when_gradient_comes
from ...common.collective_wire import Group
from ...common.shards import (
    CannotShard,
    as_shard,
    groups_of,
    misses_experts,
    replicas_of,
    stages_of,
)
from ...common.torch_internals import (
    CALL,
    READ_NO_VALUES,
    current_backward,
    disable_modes,
    hooks_of_others,
    never_compiled,
    own_parameters,
    set_own_parameters,
    storage_key,
    tree_leaves,
    version,
)
from ...experts.core_parallel import count_everywhere
from .. import core_stage3
from .ahead import Ahead
from .arriving import Arrival, ChunkOfSum, as_gradients
from .flat import Ring, best_collectives, filled, own_chunk, own_range, places_in
from .offload import Landing, add_gradients, brought_home, may_come_late
from .saved_tensors import saved_with, tensors_of, with_leaves, without_parameters

# parameters, and every place of each
Sites = dict[nn.Parameter, list[core_stage3.Site]]


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

    After a backward that raised call zero_grad(): gradients of the unit in which it did are gone.
    Raises CannotShard for a unit that is not inside the module or is sharded."""
    units = list(dict.fromkeys([*units, module]))
    check_units(module, units, device)
    check_alike(module, units, group)
    before_step.watch_steps()
    owned = owned_sites(module, units)
    ahead = Ahead() if prefetch else None
    if ahead:
        module.register_forward_pre_hook(ahead.forward_begins)
        module.register_forward_hook(ahead.forward_ends, always_call=True)
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
    sites: dict[nn.Parameter, dict[core_stage3.Site, None]] = {}
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


# --- units ----------------------------------------------------------------------------------------


class How(NamedTuple):
    """Where and in which dtype units rest, travel and compute: arguments of fully_shard."""

    group: Group
    device: torch.device | str | None
    shard_device: torch.device | str | None
    compute_dtype: torch.dtype | None
    ahead: Ahead | None
    landing: "Landing"

    def device_of(self, parameter: nn.Parameter) -> torch.device:
        return torch.device(self.device or parameter.device)

    def joined(self, parameters: list[Tensor]) -> Tensor:
        """[E]: rank 0's parameters, one after the other; with any values for a model on the meta
        device."""
        first = parameters[0]
        if first.is_meta:
            size = sum(parameter.numel() for parameter in parameters)
            return torch.empty(size, dtype=first.dtype, device=self.device)
        full = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        full = full.to(self.device_of(first))
        hand_out([full], self.group)
        return full

    def resting(self, own: Tensor) -> Tensor:
        """A copy of this rank's chunk on the device where it rests; pinned if it is fetched from
        the host, because then the copy engine can fetch it by itself."""
        chunk = own.to(self.shard_device or own.device, copy=True)
        return chunk.pin_memory() if own.is_cuda and not chunk.is_cuda else chunk

    def computes_in(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype in which a parameter computes. Integers, complex numbers and flags keep their
        dtype."""
        return (self.compute_dtype or dtype) if dtype.is_floating_point else dtype


class Unit:
    """A module that is whole only while it computes. `kinds` share a flat tensor each, `backward`
    refers weakly to the backward that the unit is in, `entrances` are methods that were called from
    outside of the others, and `exposed` are full tensors for `unsharded`. `sites` are (module,
    name, number) of each place of a parameter, with the number of its shard, and `content` is what
    the attributes of these names are."""

    def __init__(self, module: nn.Module, kinds: list[Sites], how: How, collectives: Ring):
        self.module, self.name, self.group = module, type(module).__name__, how.group
        self.flats = [Flat(list(kind), how, collectives) for kind in kinds]
        self.shards = [shard for flat in self.flats for shard in flat.shards]
        self.take_places([sites for kind in kinds for sites in kind.values()])
        for parameter in (parameter for kind in kinds for parameter in kind):
            dissolve(parameter, self.name)
        self.computing, self.backward, self.exposed, self.entrances = False, None, None, set()
        self.ahead, self.landing = how.ahead, how.landing
        self.landing.units.append(self)
        for method in (CALL, "forward"):  # other code may call forward without hooks around it
            compute = getattr(module, method)
            run = partial(self.called, method, compute)
            setattr(module, method, update_wrapper(run, compute))

    def __reduce__(self):
        raise TypeError(NO_COPY.format(self.name))

    def views(self, full: list[Tensor] | None = None) -> list[Tensor]:
        """The parameters, in the full tensors. `.data`: that their memory is filled again is no
        change that autograd should see."""
        full = full or [flat.full for flat in self.flats]
        return [view for flat, own in zip(self.flats, full) for view in flat.views(own.data)]

    def is_parameter(self, tensor: Tensor) -> bool:
        return tensor.layout is torch.strided and any(flat.holds(tensor) for flat in self.flats)

    @property
    def whole(self) -> bool:
        return self.flats[0].whole

    def gather(self):
        for flat in self.flats:
            flat.gather()
        if self.ahead:  # now the next unit may be asked for
            self.ahead.entered(self)

    def free(self):
        for flat in self.flats:
            flat.free()

    # --- the places of its parameters -------------------------------------------------------------

    def take_places(self, sites: list[list[core_stage3.Site]]):
        self.sites = [(*site, number) for number, own in enumerate(sites) for site in own]
        paths = {module: path for path, module in self.module.named_modules()}
        likes = [(shape, flat.full.dtype) for flat in self.flats for shape in flat.shapes]
        self.placeholders = []
        for ((module, name), *_), like, shard in zip(sites, likes, self.shards):
            path = ".".join(filter(None, (paths[module], name)))
            self.placeholders.append(placeholder(path, self.name, *like, shard.requires_grad))
        for module, *_ in self.sites:
            set_own_parameters(module, BesideAttributes(own_parameters(module)))
        self.close()

    def fill(self, tensors: Sequence[Tensor]):
        self.content = tensors
        for module, name, number in self.sites:
            setattr(module, name, tensors[number])

    def close(self):
        """Shards as parameters(), and placeholders as attributes."""
        for module, name, number in self.sites:
            own_parameters(module)[name] = self.shards[number]
        self.fill(self.placeholders)

    def check(self):
        self.landing.check()
        if self.content is not self.placeholders:
            self.leave_backward()  # one that broke off
        for flat in self.flats:
            flat.check()
        for module, name, number in self.sites:
            shard, attribute = own_parameters(module).get(name), vars(module).get(name)
            if shard is not self.shards[number] or attribute is not self.placeholders[number]:
                raise RuntimeError(
                    f"{type(module).__name__}.{name} was assigned after fully_shard, which has no"
                    " effect on the shards: tie and replace parameters before sharding, write to"
                    " them in place, and load a state without assign=True."
                )

    def check_unchanged(self):
        """A gathered parameter is given back, and a change of it would be lost."""
        for module, name, number in self.sites:
            if version(self.content[number]):
                raise RuntimeError(
                    f"{type(module).__name__}.{name} was changed in place while {self.name}"
                    " computed, and its shards would not know: write to parameters between steps,"
                    " outside of forward."
                )

    # --- forward ----------------------------------------------------------------------------------

    @never_compiled
    def called(self, method: str, compute: Callable, *inputs, **named):
        """The module's parameters are whole while this method runs."""
        if self.exposed or self.computing:  # the parameters are there
            return compute(*inputs, **named)
        if self.in_backward and method not in self.entrances:
            return self.again(compute, *inputs, **named)
        self.entrances.add(method)
        return self.forward(compute, *inputs, **named)

    def again(self, compute: Callable, *inputs, **named):
        """A method that was called within another one is recomputed by a checkpoint that is in
        there too. Backward has gathered the parameters."""
        self.computing = True
        try:
            return compute(*inputs, **named)
        finally:
            self.computing = False

    def forward(self, compute: Callable, *inputs, **named):
        again = self.in_backward  # a checkpoint computes all of it again
        if not again:
            self.check()
        before = self.content
        self.computing = True
        try:
            self.fill(Gathered.apply(self, *self.shards))
            with saved_with(self.is_parameter, self.enter_backward, self.name):
                output = compute(*inputs, **named)
                self.check_unchanged()
                output = without_parameters(output, self.is_parameter, self.name)
        finally:
            self.computing = False
            self.fill(before)
            if not again:
                self.free()
        wanted = [tensor for tensor in tensors_of(output) if tensor.requires_grad]
        when_gradient_comes(wanted, self.enter_backward)
        return output

    # --- backward ---------------------------------------------------------------------------------

    @property
    def in_backward(self) -> bool:
        # one that raised may outlive its exception for a moment, in the thread of a GPU
        return bool(self.backward and self.backward()) and current_backward() is not None

    @property
    def leaves(self) -> Sequence[Tensor]:
        return self.content if self.in_backward else ()

    def enter_backward(self):
        """The first gradient of an output has arrived, or backward needs a parameter that an
        operation has kept."""
        if self.in_backward or self.computing:
            return
        if torch.is_grad_enabled():  # as backward asked for create_graph=True computes
            raise NoSecondGradient(
                f"create_graph=True: {self.name} gives its parameters back after backward, and"
                " gradients of gradients would need them again: take ZeRO stage 2."
            )
        self.backward = self.landing.when_backward_ends(self.end_backward)
        self.gather()
        pairs = zip(self.views(), self.shards)
        self.fill([v.requires_grad_() if s.requires_grad else v for v, s in pairs])

    def leave_backward(self):
        if not self.computing:
            self.backward = None
            self.fill(self.placeholders)
            self.free()

    def end_backward(self):
        """End the backward of a unit that trains nothing, or nothing but what was recomputed: then
        autograd has seen no use of the parameters, and the shards get their gradients here."""
        if self.in_backward:
            gradients = with_leaves((), self.leaves)
            self.leave_backward()
            add_gradients(zip(self.shards, self.reduce(gradients) if gradients else ()))

    def reduce(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The gradients of the shards."""
        rest = iter(gradients)
        own = [[next(rest) for _ in flat.shapes] for flat in self.flats]
        return [gradient for flat, given in zip(self.flats, own) for gradient in flat.reduce(given)]


class Gathered(torch.autograd.Function):
    """Forward: shards become the unit's whole parameters. Backward: the gradients of the whole
    parameters become gradients of the shards."""

    @staticmethod
    def forward(ctx, unit, *shards):
        unit.gather()
        ctx.unit = unit
        # so that autograd objects if an optimizer changes them before backward
        ctx.save_for_backward(*shards)
        ctx.set_materialize_grads(False)
        parameters = tuple(unit.views())
        pairs = zip(parameters, shards)
        ctx.mark_non_differentiable(*(own for own, shard in pairs if not shard.requires_grad))
        return parameters

    @staticmethod
    def backward(ctx, *gradients):
        _ = ctx.saved_tensors  # autograd objects here if a shard was changed since forward
        gradients = with_leaves(gradients, ctx.unit.leaves)
        ctx.unit.leave_backward()  # autograd comes here when all else in the unit is done
        return None, *ctx.unit.reduce(gradients)


# --- parameters that are gone ---------------------------------------------------------------------


class NotGathered(RuntimeError):
    """A parameter is used while it is not gathered."""


class BesideAttributes(dict):
    """A module's parameters by name, of which the module's `setattr` does not find the shards: the
    attribute of that name is another tensor, a placeholder or the gathered parameter."""

    def __contains__(self, name) -> bool:
        return super().__contains__(name) and self[name] not in before_step.shards


class Gone(Tensor):
    """A parameter without values: `where` says how its values are had, `unit` who has it."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in READ_NO_VALUES:
            return super().__torch_function__(function, types, args, kwargs or {})
        here = next(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, cls))
        if function == Tensor.grad.__set__ and here.dissolved:  # zero_grad() of what still has it
            return super().__torch_function__(function, types, args, kwargs or {})
        raise NotGathered(f"{operation_of(function)} of {here.where}")

    def __repr__(self):
        return f"Gone(shape={list(self.shape)}, dtype={self.dtype})"

    def __reduce_ex__(self, protocol):
        raise TypeError(NO_COPY.format(self.unit))

    __deepcopy__ = __reduce_ex__


NO_COPY = (
    "{} is sharded, and neither copied nor pickled: copy the model before fully_shard, and shard"
    " the copy as well; save with shardlab.saving, or state_dict() within `with unsharded(model)`."
)


def placeholder(
    path: str, unit: str, shape: torch.Size, dtype: torch.dtype, requires_grad: bool
) -> Gone:
    """The attribute of a parameter that is gone. `path` is its name in the unit."""
    with disable_modes():  # a fake tensor cannot be anything else besides
        nothing = torch.empty((), dtype=dtype, device="meta").expand(shape)
        gone = nothing.requires_grad_(requires_grad).as_subclass(Gone)
    gone.unit, gone.dissolved = unit, False
    gone.where = (
        f"{path} {list(shape)}: stage 3 gathers this parameter only while {unit} computes. Call the"
        f" {unit} itself, read the parameter within `with unsharded(model)`, or write to it within"
        " `with unsharded(model, write=True)`."
    )
    return gone


def dissolve(parameter: nn.Parameter, unit: str):
    """Give the memory of a parameter back, which a list or a closure may have kept, and let nobody
    use it. An optimizer that has it is refused when it steps."""
    before_step.replaced([parameter], by="fully_shard")
    parameter.grad = None
    if type(parameter) is nn.Parameter:
        parameter.data = parameter.data.new_empty(0)
        parameter.__class__ = Gone
        parameter.unit, parameter.dissolved = unit, True
        parameter.where = (
            "a parameter that was kept from before fully_shard: the model has shards instead. Read"
            " the parameter from its module, while its unit computes or within `with"
            " unsharded(model)`, or take model.parameters() anew."
        )


def operation_of(function) -> str:
    """A function's name, or that of the attribute that it reads or sets."""
    name = getattr(function, "__name__", str(function))
    return function.__self__.__name__ if name in ("__get__", "__set__") else name


# --- flat tensors and their shards ----------------------------------------------------------------


class Flat(core_stage3.Flat):
    """Parameters of one dtype, all trained or all frozen. `full` [E] comes and goes as in the core;
    `coming` waits for it while it is on its way.
    This rank's `chunk` [about E/n] stays, and the optimizer has its views `shards`, one for each
    parameter: what is of the zeros at the end is in none of them."""

    def __init__(self, parameters: list[nn.Parameter], how: How, collectives: Ring):
        how = how._replace(group=replicas_of(parameters[0], how.group))
        self.group, self.collectives = how.group, collectives
        self.ahead, self.landing = how.ahead, how.landing
        self.shapes = [parameter.shape for parameter in parameters]
        sizes = [shape.numel() for shape in self.shapes]
        self.zeros = torch.Size([collectives.zeros_behind(sum(sizes), how.group)])
        full = how.joined([*parameters, parameters[0].detach().new_zeros(self.zeros)])
        own = own_chunk(full, how.group)
        self.places = places_in(own_range(full.numel(), how.group), sizes)
        self.chunk = how.resting(own)
        self.shards = [
            as_shard(part, how.group, parameter.requires_grad, of=[parameter])
            for part, parameter in zip(self.parts(self.chunk), parameters)
        ]
        for shard in self.shards:
            before_step.watch(shard, how.landing)
        self.full, self.coming = full.to(how.computes_in(full.dtype)), None
        self.free()

    def parts(self, chunk: Tensor) -> list[Tensor]:
        """The part of each parameter that a chunk has, in the shape of its shard."""
        sizes = [len(places) for places in self.places]
        parts = chunk[: sum(sizes)].split(sizes)
        return [part.view(-1, *(1 for _ in s[1:])) for part, s in zip(parts, self.shapes)]

    def holds(self, tensor: Tensor) -> bool:
        """Whether the tensor is a part of the full one."""
        return storage_key(tensor.untyped_storage()) == storage_key(self.full.untyped_storage())

    def gather(self):
        self.ask()
        if not self.whole:
            arrived, self.coming = self.coming, None
            arrived()
            self.whole = True
            self.used()

    @torch.no_grad()
    def ask(self):
        """Begin to gather, if nobody has. Collectives that cannot begin are done at once."""
        if self.whole or self.coming:
            return
        begin = getattr(self.collectives, "begin_all_gather", None)
        with self.ahead.beside(self.full.device) if self.ahead and begin else nullcontext():
            self.full.untyped_storage().resize_(self.full.nbytes)
            own = [self.chunk] if begin and kind(self.chunk) == kind(self.full) else []
            if not own:
                own_chunk(self.full, self.group).copy_(self.chunk, non_blocking=True)
            gather = begin or self.collectives.all_gather
            self.coming = gather(self.full, self.group, *own) or (lambda: None)

    def free(self):
        arrived, self.coming = self.coming, None
        if arrived:
            arrived()
        super().free()
        self.used()

    def used(self):
        if self.ahead:
            self.ahead.uses(self.full.device)

    def reduce(self, gradients: list[Tensor | None]) -> list[Tensor | None]:
        """The gradient of each shard, the mean over ranks; None if it is frozen, or on its way."""
        if not any(shard.requires_grad for shard in self.shards):
            return [None for _ in self.shards]
        for gradient in gradients:
            if gradient is not None:
                check_dense(gradient)
        gradients = filled(gradients, self.shapes, self.full)
        if self.zeros.numel():
            gradients.append(self.full.new_zeros(self.zeros))
        share = 1 / dist.get_world_size(self.group)
        begin = getattr(self.collectives, "begin_reduce_scatter", None)
        if self.ahead and begin and may_come_late(self.shards):
            self.ahead.reduces(self, begin(gradients, self.group, share))
            return [None for _ in self.shards]
        return brought_home(
            as_one(self.collectives.reduce_scatter(gradients, self.group, share)), self
        )

    @torch.no_grad()
    def take_mean(self, parts: list[Tensor]):
        add_gradients(zip(self.shards, brought_home(as_one(parts), self)))

    def expect(self, mean: ChunkOfSum) -> Arrival | None:
        """The shards get gradients for which whoever uses them first waits. None if these are to be
        added to others, or to be brought elsewhere."""
        added = any(shard.grad is not None for shard in self.shards)
        if added or kind(mean.chunk) != kind(self.chunk):
            return None
        return as_gradients(self.shards, self.parts(mean.chunk), mean)

    def check(self):
        memory = storage_key(self.chunk.untyped_storage())
        for shard in self.shards:
            if storage_key(shard.untyped_storage()) != memory:
                raise CannotShard(
                    f"a shard of shape {list(shard.shape)} was moved after fully_shard (by"
                    " model.to, model.double or a new .data): move and convert the model first,"
                    " then shard it; compute_dtype and shard_device are arguments of fully_shard."
                )


def kind(tensor: Tensor) -> tuple[torch.dtype, torch.device]:
    return tensor.dtype, tensor.device


def as_one(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
