"""The attributes of a module of stage 3 that hold parameters: placeholders while the parameters are
gone, gathered parameters while the module computes.

A user can assign other tensors, replace the shards, copy the module, compile it, call another
method than forward. Each of these works or is refused.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial, update_wrapper

from torch import Tensor, nn

from ...common import optimizer_checks
from ...common.torch_clip_and_scale import watch_steps
from ...common.torch_internals import (
    CALL,
    in_function_transform,
    never_compiled,
    own_parameters,
    set_own_parameters,
)
from . import placeholders
from .unit_shards import BesideAttributes
from .units import Site


class UnitSlots:
    """The part of a unit besides its three phases. `sites` are (module, name, number) of each
    slot; numbers are in the order of the unit's flat tensors."""

    def __init__(self, module: nn.Module, sites: list[Site], kinds: list[list[nn.Parameter]]):
        self.module, self.open = module, False
        order = [parameter for parameters in kinds for parameter in parameters]
        numbers = {parameter: number for number, parameter in enumerate(order)}
        self.sites = [(place, name, numbers[parameter]) for place, name, parameter in sites]
        optimizer_checks.replaced(order, by="fully_shard")
        watch_steps()
        for module, *_ in self.sites:
            set_own_parameters(module, BesideAttributes(own_parameters(module)))
        self.backward = None  # refers weakly to the backward that it is in
        self.entrances: set[str] = set()  # methods that were called from outside of the others
        self.placeholders = placeholders.of(self)
        self.close()
        placeholders.dissolve(order)
        self.gather_in(CALL)
        self.gather_in("forward")  # other code may call the method without the hooks around it

    @property
    def shards(self) -> list[nn.Parameter]:
        return [shard for flat in self.flats for shard in flat.shards]

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
        if in_function_transform():
            raise placeholders.NotGathered(
                f"{type(self.module).__name__} is called within a transform of torch.func, such as"
                " vmap: stage 3 gathers its parameters by an autograd function, which transforms"
                " cannot pass. Use them inside of the module's own forward."
            )
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
        shards = self.shards
        for module, name, number in self.sites:
            own_parameters(module)[name] = shards[number]
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
                raise RuntimeError(assigned(module, name))
        return self.placeholders

    def follow(self):
        """Follow changes of the shards: load_state_dict(assign=True) gives other ones, .double()
        another dtype."""
        former, now = self.shards, self.shards
        for module, name, number in self.sites:
            shard = own_parameters(module).get(name)
            if shard is None or shard.shape != former[number].shape:
                raise RuntimeError(assigned(module, name))
            if shard is not former[number]:
                now[number] = shard
        rest = iter(now)
        own = [(flat, [next(rest) for _ in flat.sizes]) for flat in self.flats]
        changed = [(flat, shards) for flat, shards in own if not flat.has(shards)]
        for flat, shards in changed:
            take(flat, shards)
        if changed:
            gone = [shard for shard, other in zip(former, now) if shard is not other]
            optimizer_checks.replaced(gone, by="load_state_dict(assign=True)")
            watch_steps()
            self.placeholders = placeholders.of(self)
            self.close()

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
            take(other, [deepcopy(shard, memo) for shard in flat.shards])
        for name, value in vars(self).items():
            setattr(twin, name, deepcopy(value, memo))
        return twin

    def __reduce__(self):
        raise TypeError(
            f"{type(self.module).__name__} is sharded, and a pickle of it would hold this rank's"
            " shard only: save with shardlab.saving, or its state_dict() within `with"
            " unsharded(model)`."
        )


def assigned(module: nn.Module, name: str) -> str:
    return (
        f"{type(module).__name__}.{name} was assigned after fully_shard, which has no effect on the"
        " shards: tie and replace parameters before sharding, or write to them in place."
    )


def take(flat, shards: list[nn.Parameter]):
    flat.take(shards)
    dtype = flat.how.computes_in(flat.chunk.dtype)
    flat.full = flat.full.new_empty(flat.full.shape, dtype=dtype)
    flat.free()


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
