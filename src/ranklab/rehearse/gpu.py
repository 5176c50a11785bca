"""The GPU that a script sees in a rehearsal: a virtual one, under the name "cuda".

Tensors on "cuda" have shapes and no contents. Those on "cpu" are the host's: real ones, as a loader
needs them, but for parameters and for large arrays of floating-point numbers, which nothing reads.
"""

import math
import os
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import numpy
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ranklab.measure.waits import Wait, user_frame
from ranklab.ranks.calls import listening
from ranklab.torch_internals import (
    asked_for_contents,
    eager_on_fake_tensors,
    foreach_as_on_cuda,
    known_value,
)
from ranklab.virtual.clock import VirtualClock
from ranklab.virtual.gpu import VirtualGPU
from ranklab.virtual.hardware import GPU
from ranklab.virtual.memory import LiveBytes, PinnedMemory
from ranklab.virtual.operators import READ_VALUES, aten, operators, tensors_in
from ranklab.virtual.streams import VirtualStreams
from shardlab.common.torch_internals import (
    FakeTensorMode,
    current_backward,
    disable_modes,
    is_fake,
    local_tensor,
    storage_key,
)

from .reserved import Reserved
from .stand_in import COPY_OPERATORS

REAL_ELEMENTS = 1 << 20  # of an array of floating-point numbers on the host that has contents


READ_VALUE = aten._local_scalar_dense
NEVER = operators("any isnan")  # True of no tensor without contents


class CannotRehearse(RuntimeError):
    """The script needs what a rehearsal does not have: one sentence, without a full stop: the line
    of the script and a way out follow."""


@dataclass
class MadeStorage:
    """A storage on the GPU: what made it, and what it is for."""

    operation: str
    line: Wait
    phase: str
    step: int
    purpose: str = ""


def grows() -> bool:
    """Whether PyTorch's settings let segments grow."""
    said = (os.environ.get(name, "") for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"))
    return any("expandable_segments:True" in one for one in said)


class LinedBytes(LiveBytes):
    """Live bytes with the lines of the script that made them. Never refuses: a report says how much
    is missing."""

    def __init__(self, gpu: GPU, phase, streams: VirtualStreams):
        super().__init__(replace(gpu, memory_bytes=0))
        self.phase, self.streams, self.step, self.made = phase, streams, 0, {}
        self.reserved, self.blocks = Reserved(gpu.memory_bytes, grows()), {}
        self.told_peak = 0  # since the script last forgot it
        self.after_backward, self.in_backward = lambda: None, False
        # from the begin of a step: what was there, and each change of a storage's bytes
        self.at_first: dict[int, tuple[MadeStorage, int]] = {}
        self.changes: list[tuple[MadeStorage, int]] = []

    def add(self, operation: str, tensors):
        on_gpu = (tensor for tensor in tensors if local_tensor(tensor).device.type == "cuda")
        super().add(operation, map(local_tensor, on_gpu))

    def begin(self, step: int):
        self.step, self.changes = step, []
        self.at_first = {id(one): (one, self.sizes[key]) for key, one in self.made.items()}

    def count(self, storage: torch.UntypedStorage, operation: str = "resize_"):
        key = storage_key(storage)
        before, self.in_backward = self.in_backward, current_backward() is not None
        if before and not self.in_backward:
            self.after_backward()
        if key not in self.sizes:
            self.made[key] = MadeStorage(operation, line_here(operation), self.phase(), self.step)
        elif operation == "resize_":
            self.made[key].purpose = "gathered"
        self.changes.append((self.made[key], storage.nbytes() - self.sizes.get(key, 0)))
        if storage.nbytes() != self.sizes.get(key, 0):
            block = self.reserved.take(storage.nbytes(), self.streams.current)
            self.reserved.give(self.blocks.pop(key, None))
            self.blocks[key] = block
        super().count(storage, operation)
        self.told_peak = max(self.told_peak, self.now)

    def _gone(self, key: int):
        if key in self.made:
            self.changes.append((self.made.pop(key), -self.sizes[key]))
        self.reserved.give(self.blocks.pop(key, None))
        super()._gone(key)

    def fullest(self) -> list[tuple[MadeStorage, int]]:
        """The storages at the first point of most bytes since the begin of the step."""
        live = dict(self.at_first)
        now = most = sum(size for _, size in live.values())
        last = 0
        for number, (_, change) in enumerate(self.changes, 1):
            now += change
            if now > most:
                most, last = now, number
        for one, change in self.changes[:last]:
            live[id(one)] = one, live.get(id(one), (one, 0))[1] + change
        return [(one, size) for one, size in live.values() if size]

    def are(self, purpose: str, tensors):
        """These tensors have this purpose."""
        for tensor in map(local_tensor, tensors):
            made = self.made.get(storage_key(tensor.untyped_storage()))
            if made is not None and made.purpose != "gathered":
                made.purpose = purpose


class WatchedClock(VirtualClock):
    """A clock that knows the lines at which the host waits."""

    def __init__(self):
        super().__init__()
        self.lines: Counter[Wait] = Counter()

    def wait_for(self, time: int):
        super().wait_for(time)
        self.lines[line_here("the host waits")] += 1


class HostMemory(PinnedMemory):
    """The host's memory: whatever is not on "cuda"."""

    def has(self, tensor: Tensor) -> bool:
        return tensor.device.type == "cpu"


class RehearsedGPU(VirtualGPU):
    """Its `mode` makes tensors without contents."""

    def __init__(self, gpu: GPU, mode: FakeTensorMode):
        super().__init__(gpu, WatchedClock())
        self.mode, self.memory = mode, LinedBytes(gpu, self.phase, self.streams)
        self.pinned, self.never = HostMemory(gpu, self.clock), WeakTensorKeyDictionary()
        # states of generators, which ranks send to each other: they come back as they went
        self.states = WeakTensorKeyDictionary()
        self.compiles = False  # whether the script calls torch.compile

    def parts(self) -> list[AbstractContextManager]:
        return [
            self.mode,
            eager_on_fake_tensors(),
            foreach_as_on_cuda(),
            asked_for_contents(refuse_contents),
            listening(self.messages.carry),
        ]

    def __torch_dispatch__(self, function, types, args=(), named=None):
        named = dict(named or {})
        if function is torch.ops.aten.to.dtype_layout:  # as torch.tensor(1, device="cuda") asks
            function = COPY_OPERATORS[0].default
            named = {key: named[key] for key in ("dtype", "device") if key in named}
        pinned = named.pop("pin_memory", False)
        packet = function.overloadpacket
        if packet is aten.is_pinned:
            return self.pinned.is_pinned(args[0])
        if packet in READ_VALUES and is_fake(args[0]):
            return self.value_of(args[0], packet)
        if packet is COPY_OPERATORS[0] and args[0] in self.states:
            with disable_modes():
                return self.states[args[0]].clone()
        result = super().__torch_dispatch__(function, types, args, named)
        if result is NotImplemented:  # a DTensor's turn comes
            return result
        if packet is COPY_OPERATORS[0] and args[0].dtype is torch.uint8 and not is_fake(args[0]):
            self.states[result] = args[0]
        if pinned:
            self.pinned.note(result)
        if packet in NEVER or (function is aten.eq.Scalar and args[1] == math.inf):
            self.never[result] = True
        return result

    def value_of(self, tensor: Tensor, packet):
        """A value that keeps loops alive, for which the host waits: 1, and False to the question
        whether any element is so, or is no number."""
        if self.on_gpu([tensor]):
            self.clock.launch(self.gpu.launch_nanoseconds)
            self.clock.synchronize(self.streams.current)
        known = known_value(tensor)
        value = tensor not in self.never if known is None else known.item()
        return torch.tensor(value, dtype=tensor.dtype).item() if packet is READ_VALUE else value

    def of_the_host(self, function, given: list[Tensor], args: tuple, named: dict) -> bool:
        """Whether these have contents, or shall have some."""
        if named.get("device") is not None and torch.device(named["device"]).type != "cpu":
            return False
        if given:
            return not any(is_fake(tensor) or tensor.is_meta for tensor in given)
        dtype = named.get("dtype") or torch.get_default_dtype()
        shape = args[0] if args and isinstance(args[0], (list, tuple)) else ()
        return not dtype.is_floating_point or math.prod(shape) <= REAL_ELEMENTS

    def on_gpu(self, tensors: list[Tensor]) -> bool:
        return any(tensor.device.type == "cuda" for tensor in tensors)

    def account(self, function, args, named, given, result):
        packet, made = function.overloadpacket, tensors_in(result)
        self.memory.add(packet.__name__, made)
        if packet in COPY_OPERATORS and made:
            to, source = made[0], given[-1] if packet is COPY_OPERATORS[1] else given[0]
            if {to.device.type, source.device.type} == {"cpu", "cuda"}:
                if known_value(source) is None or source.device.type == "cuda":
                    waits = not (named.get("non_blocking") or args[2:] == (True,))
                    here = self.streams.current
                    self.pinned.copy(here, to, source, self.phase(), waits)
                return
        self.spend(function, args, named, result)


IN_BACKWARD = "in backward"  # instead of a file: autograd's thread runs no line of the script


def line_here(cause: str) -> Wait:
    """The line of the script that runs now."""
    frame = user_frame()
    file, line = frame.f_code.co_filename, frame.f_lineno
    del frame  # it may be this call's own: a circle that keeps all tensors of its callers
    return Wait(cause, IN_BACKWARD, 0) if file == __file__ else Wait(cause, file, line)


def refuse_contents(name: str):
    if name == "pin_memory()":
        return lambda tensor, *_: Tensor.pin_memory(tensor)  # the rehearsal's, for large arrays too

    def refused(*args, **named):
        if name == "numpy()" and args[0].numel() == 1:  # as .item(), which waits and gets a 1
            return numpy.full(args[0].shape, args[0].item())
        raise CannotRehearse(
            f"{name} takes the contents of a tensor out of the GPU, which a rehearsal does not have"
        )

    return refused
