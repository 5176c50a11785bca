"""Activation offload: between forward and backward, activations are in the host's memory.

    with offload_activations():
        loss = next_token_loss(model(tokens), targets)
    loss.backward()

An activation is copied to the host when autograd saves it, and back when backward asks for it.
Around checkpoints that is only what they keep, their inputs. Parameters stay where they are;
autocast's copies of weights, and what stage 3 of ZeRO gathers, are moved like activations.

On CUDA copies go through pinned memory in a stream of their own, so computing goes on meanwhile,
and backward asks for the next activations ahead: host_copies.py. On a CPU the copy is made all the
same, for what it shows, and nothing is saved.

What is moved is the storage behind a tensor, once, however many views of it are saved: views come
back with the strides that they had, so backward computes with the same kernels.

Source: Rhu et al. 2016 (vDNN); torch.autograd.graph.save_on_cpu moves every tensor, parameters
too, and waits for each.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from ..common.outer_hooks import OuterHooks
from ..common.torch_internals import base_of, storage_key, version
from .host_copies import Copies, copies_on


@contextmanager
def offload_activations(least_bytes: int = 65_536, ahead: int = 1) -> Iterator["Offload"]:
    """Within, what autograd saves goes to the host, from `least_bytes` on. In backward, `ahead`
    storages are fetched before they are asked for; each takes its place on the device."""
    offload = Offload(least_bytes, ahead)
    with saved_tensors_hooks(offload.pack, offload.unpack):
        yield offload


class OnTheHost(NamedTuple):
    """A tensor that autograd saved: which storage, and which part of it."""

    moved: "Moved"
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int


class Offload:
    """The hooks. `moved_bytes` counts what went to the host."""

    def __init__(self, least_bytes: int, ahead: int):
        self.least_bytes, self.ahead = least_bytes, ahead
        self.outer = OuterHooks()
        self.moved_bytes = 0
        self.copies_on = cache(copies_on)  # one stream for each device
        self.order: list[weakref.ref[Moved]] = []  # as they were saved
        self.alive: dict[tuple, weakref.ref[Moved]] = {}  # storages that are still on the device

    def pack(self, tensor: Tensor) -> OnTheHost | tuple:
        storage = tensor.untyped_storage()
        if isinstance(base_of(tensor), nn.Parameter) or storage.nbytes() < self.least_bytes:
            return self.outer.pack(tensor)
        key = storage_key(storage), tensor.dtype, version(tensor)
        moved = self.alive.get(key, lambda: None)()
        if moved is None:
            moved = Moved(tensor, len(self.order), self.copies_on(tensor.device))
            self.moved_bytes += storage.nbytes()
            self.order.append(weakref.ref(moved))
            self.alive[key] = weakref.ref(moved)
            weakref.finalize(storage, self.alive.pop, key, None)
        moved.uses += 1
        return OnTheHost(moved, tensor.shape, tensor.stride(), tensor.storage_offset())

    def unpack(self, saved: OnTheHost | tuple) -> Tensor:
        if not isinstance(saved, OnTheHost):
            return self.outer.unpack(saved)
        saved.moved.fetch()
        for number in range(saved.moved.number - 1, saved.moved.number - 1 - self.ahead, -1):
            following = self.order[number]() if number >= 0 else None
            if following is not None and following.used == 0:
                following.fetch()
        return saved.moved.take().as_strided(saved.shape, saved.stride, saved.offset)


class Moved:
    """A storage on the host, and from the first use in backward to the last on the device, too."""

    def __init__(self, tensor: Tensor, number: int, copies: "Copies"):
        self.back: tuple[Tensor, object] | None = None
        self.uses = self.used = 0
        elements = tensor.untyped_storage().nbytes() // tensor.element_size()
        flat = tensor.detach().as_strided((elements,), (1,), 0)
        self.host, self.device, self.number = copies.out(flat), tensor.device, number
        self.copies = copies

    def __del__(self):
        if self.back is not None:  # fetched ahead, not asked for: memory goes after the copy
            self.copies.wait(*self.back)

    def fetch(self):
        if self.back is None:
            self.back = self.copies.back(self.host, self.device)

    def take(self) -> Tensor:
        self.fetch()
        self.used += 1
        flat, when = self.back
        self.copies.wait(flat, when)
        if self.used == self.uses:
            self.back, self.used = None, 0
        return flat
