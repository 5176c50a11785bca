"""Optimizer states, and in stage 3 shards, in the memory of the host.

    ShardedOptimizer(params, cpu_offload(AdamW), ...)    stages 1 and 2: optimizer states
    fully_shard(model, units, shard_device="cpu")        stage 3: shards, their gradients and so
                                                         their optimizer states

Copies go through pinned memory, in a stream of their own. A bucket's mean gradients leave as soon
as they are there, in stage 2 under backward, in stage 1 under the next bucket's message. The host
waits for a GPU once a step, before the update. Then parameters come back while the buckets before
them are gathered, and those of MasterWeights while the host updates the next ones:

    compute    | layer 3 | layer 2 | layer 1 |
    messages             | mean 3  | mean 2  | mean 1 |                | gather 1 | gather 2 |
    copies                         | out 3   | out 2  | out 1 | back 1 | back 2   | back 3   |

Gradients that are changed after backward leave once more, in step(): those that AdamW is given
where somebody clips or unscales them. MasterWeights clips on the host. Stage 2 copies them in each
backward outside of no_sync().
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...common import before_step
from ...common.backward import owners, when_backward_ends
from ...common.shards import CannotShard, take_place
from ...common.torch_internals import current_backward, hooks_of_others, in_plain_backward, version
from ...recompute.host_copies import OverlappedCopies, copies_on

# --- stages 1 and 2 -------------------------------------------------------------------------------


class Coming(NamedTuple):
    """A gradient on its way to the host: it has come unless somebody changes it meanwhile."""

    host: Tensor
    gradient: Tensor
    version: int

    def is_of(self, gradient: Tensor) -> bool:
        return self.gradient is gradient and self.version == version(gradient)


def cpu_offload(optimizer_cls: type) -> type:
    """The optimizer with its states and a copy of its parameters in host memory, where it also
    computes, as in ZeRO-Offload (Ren et al. 2021). Each step copies gradients to the host
    and parameters back. MasterWeights has its fp32 copies there as well, and 16 bits travel."""

    class Offloaded(optimizer_cls):
        def add_param_group(self, param_group):
            if not hasattr(self, "moved"):
                self.moved, self.links, self.seen = [], {}, {}
                self.coming, self.returning, self.has_buckets = {}, {}, False
            given = param_group["params"]
            given = [given] if isinstance(given, Tensor) else list(given)
            named = [each if isinstance(each, tuple) else (None, each) for each in given]
            added = [(p, self.host_copy(p)) for _, p in named]
            self.finish()
            for device, host in added:
                take_place(host, [device])
            self.moved += added
            self.note_versions()
            hosts = [
                host if not name else (name, host) for (name, _), (_, host) in zip(named, added)
            ]
            super().add_param_group({**param_group, "params": hosts})
            self.origin = {host: device for device, host in self.moved}
            inside = getattr(self, "copies", [(host, host) for host in self.origin])
            self.pairs = [(self.origin[host], copy) for host, copy in inside]
            before_step.watch_steps()  # a GradScaler asks for gradients on the device
            if hasattr(self, "take_gradients"):
                before_step.note([device for device, _ in added], self)

        def host_copy(self, parameter):
            link = self.links.setdefault(parameter.device, copies_on(parameter.device))
            host = link.room(parameter)
            link.copy(host, parameter.detach(), parameter.device)
            return nn.Parameter(host, parameter.requires_grad)

        @torch.no_grad()
        def step(self):
            self.arrive(self.origin.values())  # of a step that raised
            self.fetch()
            super().step()
            for device, host in self.moved:
                self.send_back(device, host)
                host.grad = None
            if not self.has_buckets:
                self.arrive(self.origin.values())
            self.note_versions()

        def serve(self, buckets):
            """They say when gradients leave and when parameters must be there."""
            self.has_buckets = True
            for bucket in buckets:
                bucket.host = self

        def leave(self, shards):
            """The mean gradients of these shards are there, and start for the host unless the copy
            would hold up whoever asks for it."""
            for shard in shards:
                if self.links[shard.device].overlap:
                    self.send(shard)

        def arrive(self, devices):
            """Whatever the GPU does next finds these parameters as the host has updated them."""
            for device in devices:
                if device in self.returning:
                    self.links[device.device].wait(device, self.returning.pop(device))

        def send(self, device):
            link, gradient = self.links[device.device], device.grad
            host = self.coming[device].host if device in self.coming else link.room(gradient)
            link.copy(host, gradient, device.device)
            self.coming[device] = Coming(host, gradient, version(gradient))

        def send_back(self, device, host):
            if device not in self.returning:
                self.returning[device] = self.links[device.device].copy(device, host, device.device)

        def fetch(self):
            """The host gets the gradients, and parameters that somebody has written into."""
            coming = []
            for device, host in self.moved:
                if version(device) != self.seen[device]:
                    self.links[device.device].copy(host, device, device.device)
                if device.grad is not None:
                    if device not in self.coming or not self.coming[device].is_of(device.grad):
                        self.send(device)
                    coming.append((host, self.coming[device].host))
            self.finish()
            add_gradients(coming)

        def finish(self):
            """All that was sent has come."""
            for link in self.links.values():
                link.finish()
            self.coming = {}

        if hasattr(optimizer_cls, "take_gradients"):  # MasterWeights

            @torch.no_grad()
            def take_gradients(self):
                self.fetch()
                for device, _ in self.moved:
                    device.grad = None
                super().take_gradients()

            def after_update(self, parameter, master):
                super().after_update(parameter, master)
                self.send_back(self.origin[parameter], parameter)

        def note_versions(self, devices=()):
            """All writes into these parameters, or into all, until now are known."""
            known = devices or [device for device, _ in self.moved]
            self.seen.update((device, version(device)) for device in known)

        @torch.no_grad()
        def load_state_dict(self, state_dict):
            """Parameters are restored before their states, so that the updated copies are those of
            the restored parameters. MasterWeights restores them itself."""
            for device, host in self.moved:
                host.copy_(device)
            super().load_state_dict(state_dict)
            for device, host in self.moved:
                device.copy_(host)
            self.note_versions()

        def zero_grad(self, set_to_none=True):
            super().zero_grad(set_to_none)
            self.coming = {}
            for device, _ in self.moved:
                if device.grad is not None:
                    device.grad = None if set_to_none else device.grad.zero_()

    Offloaded.__name__ = Offloaded.__qualname__ = f"{optimizer_cls.__name__}Offloaded"
    return Offloaded


# --- stage 3: gradients on their way to shards on the host ----------------------------------------


class Landing:
    """Mean gradients on their way from a GPU to the host, through pinned memory and in one stream,
    while backward computes: the host waits once, at its end. `units` are all of a model, and
    `running` is not 0 once a backward through them raised."""

    def __init__(self):
        self.units, self.running = [], 0
        self.copies: OverlappedCopies | None = None
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
        self.copies = self.copies or OverlappedCopies(mean.device, held=1)
        self.coming.append((flat, self.copies.out(mean)))

    def arrive(self):
        self.copies.finish()
        coming, self.coming, self.end = self.coming, [], None
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
