"""torch.cuda, torch.distributed and the loader as a script finds them in a rehearsal.

Everything is replaced for the rest of the process, which is the rehearsal's own.
"""

import logging
import os
import sys
from contextlib import AbstractContextManager
from functools import partial
from types import SimpleNamespace
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import device_mesh as device_mesh  # so that its names are replaced, too

from ranklab.torch_internals import fake_store
from ranklab.virtual.clock import MAIN
from ranklab.virtual.hardware import GPU
from ranklab.virtual.streams import VirtualEvent, VirtualStream
from shardlab.common.torch_internals import FakeTensor, is_fake

from .gpu import CannotRehearse, RehearsedGPU
from .stand_in import attention_as_on_cuda, without_contents


def install(gpu: RehearsedGPU, card_bytes: int, ranks: int, rank: int, per_node: int):
    """Let the script find this GPU, and the other ranks."""
    for name, value in cuda_functions(gpu, card_bytes, ranks, rank, per_node).items():
        setattr(torch.cuda, name, value)
    for name in ("Stream", "Event", "stream", "current_stream", "set_stream", "synchronize"):
        if hasattr(torch.accelerator, name):
            setattr(torch.accelerator, name, getattr(torch.cuda, name))
    torch.accelerator.is_available = lambda: True
    torch.accelerator.device_count = torch.cuda.device_count
    torch.Tensor.pin_memory = lambda tensor, device=None: pinned(gpu, tensor)
    torch.Tensor.is_pinned = lambda tensor, device=None: gpu.pinned.is_pinned(tensor)
    torch.Tensor.record_stream = lambda tensor, stream: None
    torch.compile = partial(eagerly, gpu)
    nn.Module.compile = lambda module, *args, **named: eagerly(gpu, module) and None
    new_parameter = nn.Parameter.__new__

    def parameter(kind, data=None, requires_grad=True):
        if data is not None and not is_fake(data):
            data = without_contents(gpu.mode, data)
        return new_parameter(kind, data, requires_grad)

    nn.Parameter.__new__ = parameter
    FakeTensor.__format__ = formatted
    attention_as_on_cuda(old_gpu=torch.bfloat16 not in gpu.gpu.flops_per_second)
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    of_ranks(ranks, rank)
    of_loaders()
    of_processes(ranks)
    of_what_cuda_alone_has()


def cuda_functions(gpu: RehearsedGPU, card_bytes: int, ranks: int, rank: int, per_node: int):
    streams, clock, memory = gpu.streams, gpu.clock, gpu.memory
    reserved = memory.reserved
    numbers = chip(gpu.gpu, card_bytes)

    class Stream(VirtualStream):
        def __init__(self, device=None, priority=0, name="", **_):
            super().__init__(streams, name)
            self.device, self.device_index, self.priority = torch.device("cuda", 0), 0, priority
            self.device_type = 1  # CUDA, as PyTorch counts them; fully_shard of 2.15 asks
            self.cuda_stream = self.stream_id = 0 if name else streams.made
            self.before = []

        def query(self) -> bool:
            return clock.free[self.name] <= clock.host

        def is_capturing(self) -> bool:
            return False

        def __enter__(self):
            self.before.append(streams.now)
            streams.now = self
            return self

        def __exit__(self, *error):
            streams.now = self.before.pop()

    class Event(VirtualEvent):
        def __init__(self, *_, **__):
            super().__init__(streams)

    class device:
        """A block on another GPU; there is one."""

        def __init__(self, *_):
            self.idx = 0

        __enter__ = __exit__ = lambda self, *error: None

    def set_stream(stream):
        streams.now = stream

    def forget(*_, **__):
        memory.told_peak, reserved.peak = memory.now, reserved.now

    def stats(*_, **__) -> dict[str, int]:
        alive = dict(current=memory.now, peak=memory.told_peak)
        found = dict.fromkeys(("allocated_bytes", "active_bytes", "requested_bytes"), alive)
        found["reserved_bytes"] = dict(current=reserved.now, peak=reserved.peak)
        told = {f"{kind}.all.{which}": n for kind in found for which, n in found[kind].items()}
        return told | dict(num_alloc_retries=0, num_ooms=0)

    streams.main = streams.now = Stream(name=MAIN)
    state = torch.zeros(16, dtype=torch.uint8)
    now, nothing = lambda *_, **__: memory.now, lambda *_, **__: None
    return dict(
        Stream=Stream,
        Event=Event,
        device=device,
        stream=streams.use,
        StreamContext=streams.use,
        current_stream=lambda device=None: streams.now,
        default_stream=lambda device=None: streams.main,
        set_stream=set_stream,
        synchronize=lambda device=None: clock.synchronize(),
        # as if each rank but the first saw its own GPU alone
        device_count=lambda: min(ranks, per_node) if rank == 0 else 1,
        set_device=nothing,
        get_device_properties=lambda device=None: numbers,
        get_device_name=lambda device=None: numbers.name,
        get_device_capability=lambda device=None: (numbers.major, numbers.minor),
        get_arch_list=lambda: [f"sm_{numbers.major}{numbers.minor}"],
        is_bf16_supported=lambda *_, **__: torch.bfloat16 in gpu.gpu.flops_per_second,
        is_current_stream_capturing=lambda: False,
        memory_allocated=now,
        memory_reserved=lambda device=None: reserved.now,
        max_memory_allocated=lambda device=None: memory.told_peak,
        max_memory_reserved=lambda device=None: reserved.peak,
        memory_stats=stats,
        mem_get_info=lambda device=None: (gpu.gpu.memory_bytes - reserved.now, card_bytes),
        reset_peak_memory_stats=forget,
        reset_max_memory_allocated=forget,
        reset_accumulated_memory_stats=nothing,
        empty_cache=reserved.release,
        ipc_collect=nothing,
        set_per_process_memory_fraction=nothing,
        manual_seed=nothing,
        manual_seed_all=nothing,
        seed=nothing,
        initial_seed=lambda: 0,
        get_rng_state=lambda device="cuda": state.clone(),
        set_rng_state=nothing,
        get_rng_state_all=lambda: [state.clone()],
        set_rng_state_all=nothing,
        utilization=lambda device=None: 100,
    )


def chip(gpu: GPU, card_bytes: int) -> SimpleNamespace:
    """The properties of a GPU as torch.cuda has them."""
    major, minor = gpu.compute_capability
    return SimpleNamespace(
        name=f"NVIDIA {gpu.name}",
        total_memory=card_bytes,
        multi_processor_count=132,
        major=major,
        minor=minor,
        L2_cache_size=50 << 20,
        warp_size=32,
        regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=2048,
    )


def pinned(gpu: RehearsedGPU, tensor: Tensor) -> Tensor:
    copy = tensor.clone()
    gpu.pinned.note(copy)
    return copy


def eagerly(gpu: RehearsedGPU, model=None, **options):
    """torch.compile, which leaves the model as it is."""
    gpu.compiles = True
    return model if model is not None else lambda function: function


def of_ranks(ranks: int, rank: int):
    """The process groups of a script, of which the other ranks do what this one does."""
    asked = SimpleNamespace(backend="nccl")
    real_init, real_group = dist.init_process_group, dist.new_group

    def init_process_group(backend=None, *args, **named):
        asked.backend = (backend or "nccl").split(":")[-1]
        if not dist.is_initialized():
            real_init("fake", store=fake_store(), rank=rank, world_size=ranks)

    def new_group(ranks=None, timeout=None, backend=None, *args, **named):
        return real_group(ranks, *args, **named)

    def get_backend(group=None) -> str:
        return asked.backend

    def gathered(mine, of_all):
        of_all[:] = [mine] * len(of_all)

    instead = {
        dist.init_process_group: init_process_group,
        dist.destroy_process_group: lambda group=None: None,
        dist.new_group: new_group,
        dist.barrier: lambda *_, **__: None,
        dist.all_gather_object: lambda found, mine, *_, **__: gathered(mine, found),
        dist.gather_object: lambda mine, found=None, *_, **__: found and gathered(mine, found),
        dist.broadcast_object_list: lambda *_, **__: None,
        dist.monitored_barrier: lambda *_, **__: None,
    }
    replaced = {id(original): (original, other) for original, other in instead.items()}
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("torch."):
            for name, value in list(vars(module).items()):
                if id(value) in replaced:
                    setattr(module, name, replaced[id(value)][1])
    dist.get_backend = get_backend
    dist.Logger.set_runtime_stats_and_log = lambda logger: None  # it has no timer for this GPU
    dist.is_nccl_available = lambda: True


def formatted(tensor: Tensor, wanted: str) -> str:
    """A number in an f-string, which the host waits for as for item()."""
    return format(tensor.item() if tensor.dim() == 0 else repr(tensor), wanted)


def of_processes(ranks: int):
    """Scripts that start their own ranks, and a model that one process copies to all GPUs."""

    def spawn(function, args=(), *_, **__):
        return function(int(os.environ["LOCAL_RANK"]), *args)

    def forward(self, *inputs, **named):
        if ranks > 1 and torch.cuda.device_count() > 1:
            raise CannotRehearse(
                "nn.DataParallel drives all GPUs from one process, and a rehearsal is a process"
                " with one GPU (take DistributedDataParallel, or --gpus 1)"
            )
        return self.module(*inputs, **named)

    torch.multiprocessing.spawn = sys.modules["torch.multiprocessing.spawn"].spawn = spawn
    nn.DataParallel.forward = forward


def of_what_cuda_alone_has():
    """A generator of the GPU, the profiler's part of CUDA, marks of NVTX, and graphs."""
    generator, init = torch.Generator, torch.profiler.profile.__init__

    class Generator(generator):
        def __new__(cls, device="cpu"):
            return super().__new__(cls)

    def of_the_host(self, *args, activities=None, **named):
        init(self, activities=[torch.profiler.ProfilerActivity.CPU], **named)

    class Graph:  # libraries say torch.cuda.CUDAGraph | None
        def __new__(cls, *_, **__):
            raise CannotRehearse("a CUDA graph is a recording of a real GPU")

    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        setattr(torch.cuda.nvtx, name, lambda *_, **__: None)
    torch.Generator = Generator
    torch.cuda.nccl.version = lambda: (2, 27, 3)  # a profiler writes it down
    torch.profiler.profile.__init__ = of_the_host
    torch.cuda.CUDAGraph = torch.cuda.graph = torch.cuda.make_graphed_callables = Graph


def of_loaders():
    """Loaders make their batches in this process, where tensors may have no contents."""
    loader = torch.utils.data.DataLoader
    init = loader.__init__

    def in_this_process(self, dataset, *args, num_workers=0, **named):
        for name in ("prefetch_factor", "persistent_workers", "multiprocessing_context"):
            named.pop(name, None)
        args = (*args[:4], 0, *args[5:]) if len(args) > 4 else args
        init(self, dataset, *args, **named)

    loader.__init__ = in_this_process


def same_batch() -> AbstractContextManager:
    """A context in which each loader yields its first batch again and again."""
    loader = torch.utils.data.DataLoader
    iterate = loader.__iter__

    def again(self):
        first = next(iterate(self))
        yield from [first] * len(self)

    return patch.object(loader, "__iter__", again)
