"""The flat tensors of a unit of stage 3, and its shards, each under the name of its parameter.

    weight [6, 4]   elements  0 to 23           rank 0: weight [15, 1], bias [0]
    bias [6]        elements 24 to 29           rank 1: weight  [9, 1], bias [6]

Parameters travel together, in one flat tensor, and each rank has one chunk of it. An optimizer sees
the elements of each parameter in this chunk, if any, with as many dims as the parameter has. So a
training script may choose groups by names or dims as it does for the whole model.
"""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...common.agreement import hand_out
from ...common.backward import check_dense, owners, when_backward_ends
from ...common.collective_wire import Group
from ...common.optimizer_checks import watch
from ...common.shards import CannotShard, as_shard, replicas_of
from ...common.torch_internals import (
    current_backward,
    hooks_of_others,
    in_plain_backward,
    storage_key,
)
from ...recompute.host_copies import OverlappedCopies
from .. import core_stage3
from .ahead import Ahead
from .arriving import Arrival, as_gradients
from .checks import filled
from .flat import Ring, own_chunk, sizes_of

# parameters, and every place of each
Sites = dict[nn.Parameter, list[core_stage3.Site]]


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
        elements = sum(shape.numel() for shape in self.shapes)
        self.zeros = torch.Size([collectives.zeros_behind(elements, how.group)])
        full = how.joined([*parameters, parameters[0].detach().new_zeros(self.zeros)])
        own = own_chunk(full, how.group)
        self.sizes = sizes_of([*self.shapes, self.zeros], how.group)[:-1]
        self.chunk = how.resting(own)
        self.shards = [
            as_shard(part, how.group, parameter.requires_grad, of=[parameter])
            for part, parameter in zip(self.parts(self.chunk), parameters)
        ]
        for shard in self.shards:
            watch(shard, how.landing)
        self.full, self.coming = full.to(how.computes_in(full.dtype)), None
        self.free()

    def parts(self, chunk: Tensor) -> list[Tensor]:
        """The part of each parameter that a chunk has, in the shape of its shard."""
        sizes = [elements for elements, *_ in self.sizes]
        parts = chunk[: sum(sizes)].split(sizes)
        return [part.view(size) for part, size in zip(parts, self.sizes)]

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

    def expect(self, mean: Callable[[], list[Tensor]]) -> Arrival | None:
        """The shards get gradients for which whoever uses them first waits. None if these are to be
        added to others, or to be brought elsewhere."""
        chunk = getattr(mean, "chunk", None)
        added = any(shard.grad is not None for shard in self.shards)
        if chunk is None or added or kind(chunk) != kind(self.chunk):
            return None
        return as_gradients(self.shards, self.parts(chunk), mean)

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


# --- gradients on their way to shards in the memory of the host -----------------------------------


class Landing:
    """Mean gradients on their way from a GPU to the host, through pinned memory and in one stream,
    while backward computes: the host waits once, at its end. `units` are all of a model, and
    `running` is not 0 once a backward through them raised."""

    def __init__(self):
        self.units, self.running = [], 0
        self.copies: OverlappedCopies | None = None
        self.leaving: tuple[Tensor, object] | None = None  # the last mean, and the end of its copy
        self.coming: list[tuple[object, Tensor]] = []  # flat tensors, and the means of their shards
        self.end = None  # refers weakly to the end of the backward that they belong to

    def when_backward_ends(self, function: Callable[[], None]):
        def end():
            self.running -= 1
            function()

        self.running += 1
        return when_backward_ends(end)

    def check(self):
        """Raise CannotShard if a backward raised, and gradients of its units are there."""
        if self.running and current_backward() is None:
            if any(s.grad is not None and s.grad.any() for u in self.units for s in u.shards):
                raise CannotShard(
                    "a backward raised, and stage 3 may have lost gradients of the unit in which it"
                    " did: call zero_grad() before the next forward or step."
                )
            self.running = 0
            for unit in [unit for unit in self.units if unit.backward]:
                unit.leave_backward()

    def bring(self, mean: Tensor, flat):
        if self.end is None or self.end() is None:
            self.coming = []  # of a backward that raised
            self.end = when_backward_ends(self.arrive)
        if self.copies is None:
            self.copies = OverlappedCopies(mean.device)
        if self.leaving is not None:  # its memory goes, once the copy has ended
            self.copies.wait(*self.leaving)
        host = self.copies.room(mean)
        self.leaving = mean, self.copies.copy(host, mean, mean.device)
        self.coming.append((flat, host))

    def arrive(self):
        self.copies.finish()
        coming, self.coming, self.leaving, self.end = self.coming, [], None, None
        for flat, host in coming:
            add_gradients(zip(flat.shards, flat.parts(host)))


def brought_home(mean: Tensor, flat) -> list[Tensor | None]:
    """The gradient of each shard, where it rests. On its way from a GPU to the host it is not read
    before backward ends: then it becomes part of shard.grad, and autograd gets None."""
    if mean.is_cuda and not flat.chunk.is_cuda and may_come_late(flat.shards):
        flat.landing.bring(mean.to(flat.chunk.dtype), flat)
        return [None for _ in flat.shards]
    parts = zip(flat.shards, flat.parts(mean.to(flat.chunk)))
    return [part if shard.requires_grad else None for shard, part in parts]


def may_come_late(shards: list[nn.Parameter]) -> bool:
    """Whether gradients may become part of shard.grad later in this backward: not so where a hook
    wants to see them, or nobody fills .grad."""
    watched = any(map(is_watched, shards))
    return not watched and current_backward() is not None and in_plain_backward()


def is_watched(shard: nn.Parameter) -> bool:
    return shard.requires_grad and (shard in owners or hooks_of_others(shard))


def add_gradients(pairs: Iterable[tuple[nn.Parameter, Tensor | None]]):
    for shard, gradient in pairs:
        if gradient is not None and is_watched(shard):
            torch.autograd.backward(shard, gradient)  # calls the hooks
        elif gradient is not None and shard.requires_grad:
            shard.grad = gradient if shard.grad is None else shard.grad.add_(gradient)
