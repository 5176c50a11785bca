"""The attributes of a module of stage 3 that hold parameters: placeholders while the parameters are
gone, gathered parameters while the module computes.

A user can assign other tensors, replace the shards, copy the module, compile it, call another
method than forward. Each of these works or is refused.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial, update_wrapper

import torch
from torch import Tensor, nn

from .. import optimizer_checks
from ..shards import groups_of_shards
from ..torch_clip_and_scale import watch_steps
from ..torch_internals import CALL, never_compiled, own_parameters
from . import placeholders
from .units import Site


class UnitSlots:
    """The part of a unit besides its three phases. `sites` are (module, name, number) of each
    slot; numbers are in the order of the unit's flat tensors."""

    def __init__(self, module: nn.Module, sites: list[Site], kinds: dict[str, list[nn.Parameter]]):
        self.module, self.names, self.open = module, list(kinds), False
        order = [parameter for parameters in kinds.values() for parameter in parameters]
        numbers = {parameter: number for number, parameter in enumerate(order)}
        self.sites = [(place, name, numbers[parameter]) for place, name, parameter in sites]
        optimizer_checks.replaced(order, by="fully_shard")
        watch_steps()
        self.backward = None  # refers weakly to the backward that it is in
        self.entrances: set[str] = set()  # methods that were called from outside of the others
        self.placeholders = placeholders.of(self)
        self.close()
        self.gather_in(CALL)
        self.gather_in("forward")  # other code may call the method without the hooks around it

    @property
    def in_backward(self) -> bool:
        return self.backward is not None and self.backward() is not None

    def gather_in(self, method: str):
        """The module's parameters are whole while this method runs."""
        compute = getattr(self.module, method)
        run = partial(self.called, method, compute)
        setattr(self.module, method, update_wrapper(run, compute))

    @never_compiled
    def called(self, method: str, compute: Callable, *inputs, **named):
        if self.open or self.computing:  # the parameters are there
            return compute(*inputs, **named)
        if self.in_backward and method not in self.entrances:
            return self.again(compute, *inputs, **named)
        self.entrances.add(method)
        return self.forward(compute, *inputs, **named)

    def again(self, compute: Callable, *inputs, **named):
        """A method that was called within another one is computed again by a checkpoint that is in
        there too. Backward has gathered the parameters."""
        try:
            self.computing = True
            return compute(*inputs, **named)
        finally:
            self.computing = False

    def place(self, tensors: Sequence[Tensor]):
        self.placed = tensors
        for module, name, number in self.sites:
            setattr(module, name, tensors[number])

    def close(self):
        """Shards instead of parameters."""
        for module, name, _ in self.sites:
            delattr(module, name)
        for name, flat in zip(self.names, self.flats):
            self.module.register_parameter(name, flat.shard)
            optimizer_checks.watch(flat.shard)
        self.place(self.placeholders)
        self.open, self.exposed = False, None

    def ready(self) -> Sequence[Tensor]:
        """The content of the slots before the unit computes, if stage 3 put it there."""
        if self.placed is not self.placeholders:
            if self.in_backward:
                return self.placed
            self.leave_backward()  # one that broke off
        self.follow()
        for module, name, number in self.sites:
            if vars(module).get(name) is not self.placeholders[number]:
                raise RuntimeError(
                    f"{type(module).__name__}.{name} was assigned after fully_shard, which has no"
                    " effect on the shards: tie and replace parameters before sharding, or write"
                    " to them in place."
                )
        return self.placeholders

    def follow(self):
        """Follow changes of the module's shards: load_state_dict(assign=True) gives other shards,
        .double() another dtype."""
        for name, flat in zip(self.names, self.flats):
            shard = own_parameters(self.module).get(name)
            if shard is flat.shard and flat.full.dtype == flat.how.computes_in(shard.dtype):
                continue
            if shard is None or shard.shape != flat.shard.shape:
                raise RuntimeError(
                    f"{type(self.module).__name__}.{name} is no longer the shard that fully_shard"
                    " made: it can take other values and another dtype, not another shape."
                )
            groups_of_shards[shard] = groups_of_shards[flat.shard]
            if shard is not flat.shard:
                optimizer_checks.replaced([flat.shard], by="load_state_dict(assign=True)")
                watch_steps()
            flat.shard = shard
            optimizer_checks.watch(shard)
            flat.full = torch.empty_like(flat.full, dtype=flat.how.computes_in(shard.dtype))
            flat.free()
            self.placeholders = placeholders.of(self)
            self.place(self.placeholders)

    # --- copies -----------------------------------------------------------------------------------

    def __deepcopy__(self, memo: dict):
        """A unit that computes with the copy's shards."""
        if self.whole or self.open or "gather" in vars(self):
            raise RuntimeError(
                f"{type(self.module).__name__} is whole, or prefetched, at the moment: copy it when"
                " nothing computes and prefetching is closed."
            )
        twin = memo[id(self)] = shallow_copy(self)
        for shared in (self.group, self.collectives, *(flat.how for flat in self.flats)):
            memo[id(shared)] = shared
        for flat in self.flats:
            other = memo[id(flat)] = shallow_copy(flat)
            other.shard, other.full = deepcopy(flat.shard, memo), torch.empty_like(flat.full)
            groups_of_shards[other.shard] = groups_of_shards[flat.shard]
            optimizer_checks.watch(other.shard)
            other.free()
        for name, value in vars(self).items():
            setattr(twin, name, deepcopy(value, memo))
        return twin

    def __reduce__(self):
        raise TypeError(
            f"{type(self.module).__name__} is sharded, and a pickle of it would hold this rank's"
            " shard only: save with shardlab.saving, or its state_dict() within `with"
            " unsharded(model)`."
        )


def shallow_copy(thing):
    twin = object.__new__(type(thing))
    vars(twin).update(vars(thing))
    return twin


def gather_in(module: nn.Module, method: str):
    """A unit's parameters are whole in this method as well, as in forward. FSDP2 calls this
    register_fsdp_forward_method."""
    if not hasattr(module, "sharded_unit"):
        raise ValueError(
            f"{type(module).__name__} is not a unit with parameters of its own: give it to"
            " fully_shard first."
        )
    module.sharded_unit.gather_in(method)
