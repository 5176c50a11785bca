"""Optimizer states, and in stage 3 shards, in the memory of the host.

    ShardedOptimizer(params, cpu_offload(AdamW), ...)    stages 1 and 2: optimizer states
    fully_shard(model, units, shard_device="cpu")        stage 3: shards, their gradients and so
                                                         their optimizer states

The argument of fully_shard is in stage3.py, where it is a word in one line.

Copies go through pinned memory. The host waits for a GPU when all of them are under way: in stages
1 and 2 once a step, before the update; in stage 3 once a backward, at its end, and they travel in a
stream of their own while backward computes.
fused=True gives the CPU a faster AdamW, whose results differ by rounding.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ...common import torch_clip_and_scale
from ...common.backward import owners, when_backward_ends
from ...common.shards import take_place
from ...common.torch_internals import (
    current_backward,
    hooks_of_others,
    in_plain_backward,
    version,
)
from ...recompute.host_copies import OverlappedCopies


def cpu_offload(optimizer_cls: type) -> type:
    """The optimizer with its states and a copy of its parameters in host memory, where it also
    computes, as in ZeRO-Offload (Ren et al. 2021). Each step copies gradients to the host
    and parameters back. MasterWeights has its fp32 copies there as well, and 16 bits travel."""

    class Offloaded(optimizer_cls):
        def add_param_group(self, param_group):
            given = param_group["params"]
            given = [given] if isinstance(given, Tensor) else list(given)
            named = [each if isinstance(each, tuple) else (None, each) for each in given]
            added = [(p, nn.Parameter(on_the_host(p), p.requires_grad)) for _, p in named]
            wait_for_copies(added)
            for device, host in added:
                take_place(host, [device])
            self.moved = [*getattr(self, "moved", []), *added]
            self.note_versions()
            hosts = [
                host if not name else (name, host) for (name, _), (_, host) in zip(named, added)
            ]
            super().add_param_group({**param_group, "params": hosts})
            origin = {host: device for device, host in self.moved}
            inside = getattr(self, "copies", [(host, host) for host in origin])
            self.pairs = [(origin[host], copy) for host, copy in inside]
            torch_clip_and_scale.watch_steps()  # a GradScaler asks for gradients on the device
            if hasattr(self, "take_gradients"):
                torch_clip_and_scale.note([device for device, _ in added], self)

        @torch.no_grad()
        def step(self, closure=None):
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            self.fetch()
            super().step()
            for device, host in self.moved:
                device.copy_(host, non_blocking=True)
                host.grad = None
            self.note_versions()
            return loss

        def fetch(self):
            """The host gets the gradients, and parameters that somebody has written into."""
            for device, host in self.moved:
                if version(device) != self.seen[device]:
                    host.copy_(device, non_blocking=True)
                host.grad = None if device.grad is None else on_the_host(device.grad)
            wait_for_copies(self.moved)

        if hasattr(optimizer_cls, "take_gradients"):  # MasterWeights

            @torch.no_grad()
            def take_gradients(self):
                self.fetch()
                for device, _ in self.moved:
                    device.grad = None
                super().take_gradients()

        def note_versions(self):
            """All writes into the parameters until now are known."""
            self.seen = {device: version(device) for device, _ in self.moved}

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
            for device, _ in self.moved:
                if device.grad is not None:
                    device.grad = None if set_to_none else device.grad.zero_()

    Offloaded.__name__ = Offloaded.__qualname__ = f"{optimizer_cls.__name__}Offloaded"
    return Offloaded


def on_the_host(tensor: Tensor) -> Tensor:
    """A copy in host memory. From a GPU it is under way when this returns, and into pinned memory,
    because then the copy engine fetches it by itself."""
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda)
    return copy.copy_(tensor.detach(), non_blocking=True)


def wait_for_copies(pairs: list[tuple[Tensor, Tensor]]):
    """All copies between these tensors and the host are complete: earlier ones of the other
    direction as well, because a stream does one thing after the other."""
    for device in {tensor.device for tensor, _ in pairs if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()


class Landing:
    """Mean gradients on their way from a GPU to the host, in one stream, until backward ends."""

    def __init__(self):
        self.copies: OverlappedCopies | None = None
        self.leaving: tuple[Tensor, object] | None = None  # the last mean, and the end of its copy
        self.coming: list[tuple[object, Tensor]] = []  # flat tensors, and the means of their shards
        self.end = None  # refers weakly to the end of the backward that they belong to

    def bring(self, mean: Tensor, flat):
        if self.end is None or self.end() is None:
            self.coming = []  # of a backward that raised
            self.end = when_backward_ends(self.arrive)
        if self.copies is None:
            self.copies = OverlappedCopies(mean.device)
        if self.leaving is not None:  # its memory goes, once the copy has ended
            self.copies.wait(*self.leaving)
        host = torch.empty_like(mean, device="cpu", pin_memory=True)
        self.leaving = mean, self.copies.copy(host, mean, mean.device)
        self.coming.append((flat, host))

    def arrive(self):
        self.copies.stream.synchronize()
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
    watched = any(s.requires_grad and (s in owners or hooks_of_others(s)) for s in shards)
    return not watched and current_backward() is not None and in_plain_backward()


def add_gradients(pairs: Iterable[tuple[nn.Parameter, Tensor | None]]):
    for shard, gradient in pairs:
        if shard.requires_grad and gradient is not None:
            shard.grad = gradient if shard.grad is None else shard.grad.add_(gradient)
