"""A GPU in virtual time: every operator of this process gets a duration on a stream, and nothing is
computed.

    with VirtualGPU(h100) as gpu:
        model, optimizer = ...
        with gpu.step() as step:
            train()
    print(step)                             # computing, waiting for messages, launch-bound, ...

Within the block tensors have shapes and no contents, on the device "cpu", which here stands for the
GPU: torch.cpu has the streams and events that torch.cuda has on a real one. The values of losses do
not exist; whatever reads one, as .item() does, waits for the GPU and gets a 1.

PyTorch's own DDP, ZeroRedundancyOptimizer, fully_shard, DTensor and pipelining run here as this
book's code does. fully_shard cannot offload: fake tensors have no pinned memory.

Not modelled: kernels that slow messages; clocks that throttle; Python's own time but around
messages and DTensor's operators; memory that an allocator rounds up or holds back; the host's
memory but for copies to and from what is pinned.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ranklab.measure.fake_ranks import fake_ranks
from ranklab.ranks.calls import listening
from ranklab.torch_internals import (
    NEEDS_CONTENTS,
    asked_for_contents,
    eager_on_fake_tensors,
    foreach_as_on_cuda,
    grouped_as_on_cuda,
    known_value,
    on_the_cpu,
    stops_between,
    watching_resize,
)
from shardlab.common.torch_internals import (
    FakeTensor,
    FakeTensorMode,
    TorchDispatchMode,
    current_backward,
    disable_modes,
    is_fake,
    local_tensor,
)

from .clock import MAIN, VirtualClock
from .hardware import GPU, NoContents, nanoseconds
from .memory import LiveBytes, PinnedMemory
from .messages import Messages
from .operators import READ_VALUES, aten, cost, launches, rounds_to_tf32, tensors_in
from .report import VirtualStep
from .streams import VirtualStreams

FUNCTIONAL = "_c10d_functional"
OF_THIS_RANK = FakeTensor, nn.Parameter


class VirtualGPU(TorchDispatchMode):
    """The GPU of this rank, and its clock."""

    def __init__(self, gpu: GPU, clock: VirtualClock | None = None):
        super().__init__()
        self.gpu, self.clock, self.memory = gpu, clock or VirtualClock(), LiveBytes(gpu)
        self.streams = VirtualStreams(self.clock)
        self.messages = Messages(gpu, self.streams, self.phase)
        self.pinned = PinnedMemory(gpu, self.clock)
        self.updating, self.latest, self.contexts = False, "forward", ExitStack()

    def __enter__(self):
        with self.contexts as entered:  # where one of them is stopped, those before it are left
            for context in self.parts():
                entered.enter_context(context)
            entered.callback(register_optimizer_step_pre_hook(self.begins_update).remove)
            entered.callback(register_optimizer_step_post_hook(self.ends_update).remove)
            entered.enter_context(watching_resize(self.memory.count))
            self.contexts = entered.pop_all()
        return super().__enter__()

    def parts(self) -> list[AbstractContextManager]:
        return [
            stops_between(VirtualGPU.__enter__, VirtualGPU.__exit__),
            FakeTensorMode(allow_non_fake_inputs=True),
            eager_on_fake_tensors(),
            foreach_as_on_cuda(),
            grouped_as_on_cuda(),
            asked_for_contents(refuse),
            self.streams.instead_of_torchs(),
            listening(self.messages.carry),
        ]

    def __exit__(self, *error):
        super().__exit__(*error)
        self.contexts.close()

    def begins_update(self, *_):
        self.updating = True

    def ends_update(self, *_):
        self.updating = False

    def phase(self) -> str:
        """The part of the step that the host is in. Within backward only what is recomputed
        records: it is a forward. Between backward and the update gradients are averaged and
        clipped, without autograd."""
        if self.updating:
            self.latest = "update"
        elif current_backward() is not None:
            self.latest = "backward"
            if torch.is_grad_enabled():
                return "forward"
        elif self.latest == "backward" and not torch.is_grad_enabled():
            return "update"
        else:
            self.latest = "forward"
        return self.latest

    def __torch_dispatch__(self, function, types, args=(), named=None):
        if function.namespace == "prim":
            return NotImplemented  # a property
        if not all(kind is Tensor or issubclass(kind, OF_THIS_RANK) for kind in types):
            self.clock.host += nanoseconds(self.gpu.dtensor_seconds)
            return NotImplemented  # DTensor, which calls again with this rank's part
        named, packet = named or {}, function.overloadpacket
        given = tensors_in((args, named))
        if self.of_the_host(function, given, args, named):
            with disable_modes():
                return function(*args, **named)
        if packet in READ_VALUES and self.on_gpu(given):
            self.clock.launch(self.gpu.launch_nanoseconds)
            self.clock.synchronize(self.streams.current)
            with disable_modes():  # of ones: 1, or that they are equal
                return function(*(torch.ones(1, dtype=tensor.dtype) for tensor in given))
        if function.namespace == FUNCTIONAL:
            return self.functional_collective(function, args, named)
        try:
            result = function(*args, **named)
        except NEEDS_CONTENTS:
            raise NoContents(packet.__name__) from None
        if function.namespace == "c10d":
            self.messages.tell()
        self.account(function, args, named, given, result)
        return result

    def account(self, function, args: tuple, named: dict, given: list[Tensor], result):
        """Count the bytes and the time of an operator that has returned."""
        packet = function.overloadpacket
        on_host = [self.pinned.has(tensor) for tensor in given] if self.pinned.storages else []
        if named.get("pin_memory") or (on_host and all(on_host) and "device" not in named):
            self.pinned.add(*tensors_in(result))
        else:
            own = (tensor for tensor in tensors_in(result) if not self.pinned.has(tensor))
            self.memory.add(packet.__name__, own)
        if not any(on_host):
            self.spend(function, args, named, result)
        elif packet is aten.copy_ and not all(on_host):
            waits = not named.get("non_blocking", args[2] if len(args) > 2 else False)
            self.pinned.copy(self.streams.current, *args[:2], self.phase(), waits)

    def of_the_host(self, function, given: list[Tensor], args: tuple, named: dict) -> bool:
        """Whether these are whole numbers that have contents, or shall have some: PyTorch counts in
        32 bits what its host must know, such as the ranks of a mesh and DDP's buckets."""
        if not given:
            return named.get("dtype") is torch.int32
        return not any(is_fake(tensor) or tensor.is_floating_point() for tensor in given)

    def on_gpu(self, tensors: list[Tensor]) -> bool:
        """Whether there is a tensor that the host does not know. One on the meta device is a
        shape."""
        return any(known_value(tensor) is None and not tensor.is_meta for tensor in tensors)

    def on_host(self, tensor: Tensor) -> Tensor:
        """The tensor, which from now on is in memory of the host that is not pinned."""
        self.pinned.add(tensor, pinned=False)
        self.memory.forget(tensor)
        return tensor

    def spend(self, function, args: tuple, named: dict, result):
        """Launch the operator that has returned this."""
        spent = cost(function, args, named, result)
        if spent and self.on_gpu(tensors_in((args, named, result))):
            self.clock.launch(self.gpu.launch_nanoseconds)
            packet = function.overloadpacket
            duration = self.gpu.operator_nanoseconds(*spent, tf32=rounds_to_tf32(packet))
            kernels = launches(function, args, named, result)
            duration += kernels * nanoseconds(self.gpu.kernel_seconds)
            current, phase = self.streams.current, self.phase()
            end = self.clock.work(current, packet.__name__, duration, phase)
            if current != MAIN:
                self.clock.slow(self.gpu.stream_contention, end - duration, end, phase)
            for _ in range(kernels - 1):  # beside the first
                self.clock.launch(self.gpu.launch_nanoseconds)

    def functional_collective(self, function, args: tuple, named: dict) -> Tensor:
        """A message of DTensor, by PyTorch's kernel for the CPU, which sends it as a plain one; on
        fake tensors it would compute a shape and send nothing."""
        name = function.overloadpacket.__name__
        if name in ("all_reduce", "broadcast"):  # in a copy
            x, *rest = args
            args = x.clone(memory_format=torch.contiguous_format), *rest
            self.spend(aten.clone.default, (x,), {}, args[0])
            function = getattr(getattr(torch.ops, FUNCTIONAL), name + "_").default
        result = on_the_cpu(function, *args, **named)
        self.memory.add(name, map(local_tensor, tensors_in(result)))
        self.messages.tell()
        return result

    @contextmanager
    def step(self) -> Iterator[VirtualStep]:
        """Everything between two points at which all ranks have done everything."""
        clock, begin = self.clock, self.meet()
        seen = len(clock.spans), len(clock.gaps), clock.launches, clock.waits
        step, self.memory.peak = VirtualStep(), self.memory.now
        yield step
        step.end = self.meet() - begin
        step.spans = [span.earlier(begin) for span in clock.spans[seen[0] :]]
        step.gaps = [gap.earlier(begin) for gap in clock.gaps[seen[1] :]]
        step.launches, step.host_waits = clock.launches - seen[2], clock.waits - seen[3]
        step.peak_bytes = self.memory.peak

    def meet(self) -> int:
        """The time at which all ranks have done everything; all go on from there."""
        self.messages.settle_all()
        return self.clock.meet(self.messages.latest(self.clock.end()))


def refuse(name: str) -> Callable:
    def refused(*args, **named):
        raise NoContents(name)

    return refused


class VirtualGPUs(VirtualGPU):
    """Rank 0 of so many virtual GPUs, without the other ranks: they are taken to do what this one
    does, when it does. torch.distributed must not be in use."""

    def __init__(self, count: int, gpu: GPU):
        super().__init__(gpu)
        self.count = count

    def parts(self) -> list[AbstractContextManager]:
        stops, *others = super().parts()
        return [stops, fake_ranks(self.count), *others]
