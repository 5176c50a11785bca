"""A unit of stage 3, hardened: the core's phases, for any module.

It is around the call of the module, so that the module's own hooks find parameters
(parameter_slots.py). Backward comes to it by an output, or by a tensor that autograd has kept
(saved_tensors.py). Gradients travel one by one, and after the parameters have gone.

Activation checkpointing computes parts of a unit again, inside backward, with the parameters as
leaves. Under a reentrant checkpoint leaves get gradients, which join those of autograd.
"""

from collections.abc import Callable, Sequence
from functools import partial, update_wrapper

import torch
from torch import Tensor, nn

from ...common.backward import NoSecondGradient, when_gradient_comes
from ...common.torch_internals import CALL, current_backward, never_compiled
from .flat import Ring
from .parameter_slots import ParameterSlots, dissolve
from .saved_tensors import saved_with, tensors_of, with_leaves, without_parameters
from .unit_shards import Flat, How, Sites, add_gradients


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


class Unit:
    """A module that is whole only while it computes. `kinds` share a flat tensor each, `backward`
    refers weakly to the backward that the unit is in, `entrances` are methods that were called from
    outside of the others, and `exposed` are full tensors for `unsharded`."""

    def __init__(self, module: nn.Module, kinds: list[Sites], how: How, collectives: Ring):
        self.module, self.name, self.group = module, type(module).__name__, how.group
        self.flats = [Flat(list(kind), how, collectives) for kind in kinds]
        self.shards = [shard for flat in self.flats for shard in flat.shards]
        gone = [flat.full.new_empty(s, device="meta") for flat in self.flats for s in flat.shapes]
        sites = [sites for kind in kinds for sites in kind.values()]
        self.slots = ParameterSlots(module, sites, gone, self.shards)
        dissolve(parameter for kind in kinds for parameter in kind)
        self.computing, self.backward, self.exposed, self.entrances = False, None, None, set()
        self.ahead, self.landing = how.ahead, how.landing
        self.landing.units.append(self)
        for method in (CALL, "forward"):  # other code may call forward without hooks around it
            compute = getattr(module, method)
            run = partial(self.called, method, compute)
            setattr(module, method, update_wrapper(run, compute))

    def __reduce__(self):
        return self.slots.placeholders[0].__reduce_ex__(0)  # refuses

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
        before = self.slots.content
        self.computing = True
        try:
            self.slots.fill(Gathered.apply(self, *self.shards))
            with saved_with(self.is_parameter, self.enter_backward, self.name):
                output = compute(*inputs, **named)
                self.slots.check_unchanged()
                output = without_parameters(output, self.is_parameter, self.name)
        finally:
            self.computing = False
            self.slots.fill(before)
            if not again:
                self.free()
        wanted = [tensor for tensor in tensors_of(output) if tensor.requires_grad]
        when_gradient_comes(wanted, self.enter_backward)
        return output

    def check(self):
        self.landing.check()
        if self.slots.content is not self.slots.placeholders:
            self.leave_backward()  # one that broke off
        for flat in self.flats:
            flat.check()
        self.slots.check_closed()

    # --- backward ---------------------------------------------------------------------------------

    @property
    def in_backward(self) -> bool:
        # one that raised may outlive its exception for a moment, in the thread of a GPU
        return bool(self.backward and self.backward()) and current_backward() is not None

    @property
    def leaves(self) -> Sequence[Tensor]:
        return self.slots.content if self.in_backward else ()

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
        self.slots.fill([v.requires_grad_() if s.requires_grad else v for v, s in pairs])

    def leave_backward(self):
        if not self.computing:
            self.backward = None
            self.slots.fill(self.slots.placeholders)
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
