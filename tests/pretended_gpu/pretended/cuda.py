"""torch.cuda for the device that device.cpp has made.

Kernels are done when their call returns. So streams and events order nothing here; they are kept so
that a program finds what it asks for, and so that a wait of the host is counted.
"""

import ctypes
import os
import time
import warnings
from types import SimpleNamespace

import torch
import torch.cuda.nccl
from torch.utils._python_dispatch import _disable_current_modes

TOTAL_MEMORY = 16 << 30
CAPABILITY = (9, 0)
MOST_TEXT = 1 << 16  # bytes of the text about the host's waits

library: ctypes.CDLL


def index_of(device=None) -> int:
    """The number of a GPU that is named in any of torch.cuda's ways."""
    if isinstance(device, int):
        return device
    index = None if device is None else torch.device(device).index
    return library.pretended_current_device() if index is None else index


# --- what makes the host wait ---------------------------------------------------------------------


def note_wait(cause: str):
    library.pretended_note_wait(cause.encode())


def take_waits() -> dict[str, int]:
    """How often the host has waited for the device since the last call, by the cause."""
    text = ctypes.create_string_buffer(MOST_TEXT)
    library.pretended_take_waits(text, MOST_TEXT)
    lines = (line.rsplit("\t", 1) for line in text.value.decode().splitlines())
    return {cause: int(times) for cause, times in lines}


# --- devices, streams and events ------------------------------------------------------------------


class device:
    """Makes a GPU the current one."""

    def __init__(self, device):
        self.index = index_of(device)

    def __enter__(self):
        self.before = library.pretended_current_device()
        library.pretended_set_device(self.index)

    def __exit__(self, *error):
        library.pretended_set_device(self.before)


class Stream(torch.Stream):
    """A stream has a number; whatever is put into it is done at once."""

    def __new__(cls, device=None, priority=0, **given):
        if given:  # stream_id=, device_index=, device_type=
            return super().__new__(cls, **given)
        return super().__new__(cls, torch.device("cuda", index_of(device)), priority=priority)

    @property
    def cuda_stream(self) -> int:
        return self.stream_id

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event):
        event.wait(self)

    def wait_stream(self, stream):
        pass

    def query(self) -> bool:
        return True

    def synchronize(self):
        note_wait("synchronize a stream")

    def __enter__(self):
        self.before = current_stream(self.device_index)
        set_stream(self)
        return self

    def __exit__(self, *error):
        set_stream(self.before)


class Event:
    """A point of a stream."""

    def __init__(self, *args, **named):
        self.seconds = None

    def record(self, stream=None):
        self.seconds = time.perf_counter()

    def wait(self, stream=None):
        if self.seconds is None:
            raise RuntimeError("a stream waits for an event that nobody has recorded")

    def query(self) -> bool:
        return True

    def synchronize(self):
        note_wait("synchronize an event")

    def elapsed_time(self, end) -> float:
        return 1000 * (end.seconds - self.seconds)


class StreamContext:
    """torch.cuda.stream(stream), where None stands for the current stream."""

    def __init__(self, stream):
        self.stream = stream

    def __enter__(self):
        return self.stream and self.stream.__enter__()

    def __exit__(self, *error):
        if self.stream:
            self.stream.__exit__(*error)


def numbered_stream(index: int, number: int) -> Stream:
    kind = torch.device("cuda", index).type
    device_type = torch.Stream(torch.device(kind, index)).device_type
    return Stream(stream_id=number, device_index=index, device_type=device_type)


def current_stream(device=None) -> Stream:
    index = index_of(device)
    return numbered_stream(index, library.pretended_current_stream(index))


def set_stream(stream: Stream):
    torch.ops.pretended.set_stream(stream.device_index, stream.stream_id)


def synchronize(device=None):
    note_wait("synchronize a device")


# --- memory ---------------------------------------------------------------------------------------


def memory(device=None) -> SimpleNamespace:
    """Bytes on a device, now and at most: in whole blocks, and as requested."""
    out = (ctypes.c_int64 * 4)()
    library.pretended_memory(index_of(device), out)
    return SimpleNamespace(now=out[0], peak=out[1], requested=out[2], requested_peak=out[3])


def memory_stats_as_nested_dict(device=None) -> dict:
    found = memory(device)
    blocks = {"all": dict(current=found.now, peak=found.peak)}
    requested = {"all": dict(current=found.requested, peak=found.requested_peak)}
    return dict(
        allocated_bytes=blocks,
        active_bytes=blocks,
        reserved_bytes=blocks,  # no segments, no free blocks that are kept
        requested_bytes=requested,
    )


def memory_stats(device=None) -> dict[str, int]:
    return {
        f"{name}.all.{which}": value
        for name, kinds in memory_stats_as_nested_dict(device).items()
        for which, value in kinds["all"].items()
    }


def reset_peak_memory_stats(device=None):
    library.pretended_reset_peak(index_of(device))


def resize_storage(resize_on_host):
    """UntypedStorage.resize_, which FSDP2 and stage 3 use, on this device too."""

    def resize_(self, size):
        if self.device.type != "cuda":
            return resize_on_host(self, size)
        with torch.no_grad(), _disable_current_modes():
            tensor = torch.empty(0, dtype=torch.uint8, device=self.device).set_(self)
            torch.ops.pretended.resize_storage(tensor, size)
        return self

    return resize_


def new_storage(new_on_host):
    """UntypedStorage(bytes, device="cuda"), by which torch.load makes its tensors."""

    def new(cls, *args, device=None, **named):
        if device is not None and torch.device(device).type == "cuda":
            bytes = args[0] if args else 0
            return torch.empty(bytes, dtype=torch.uint8, device=device).untyped_storage()
        if device is not None:
            named["device"] = device
        return new_on_host(cls, *args, **named)

    return new


# --- random numbers -------------------------------------------------------------------------------


def get_rng_state(device="cuda"):
    return torch.ops.pretended.rng_state(index_of(device))


def set_rng_state(state, device="cuda"):
    torch.ops.pretended.set_rng_state(index_of(device), state)


seeds: dict[int, int] = {}  # the last of each device


def manual_seed(seed: int):
    seeds[index_of()] = seed
    torch.ops.pretended.seed(index_of(), seed)


def manual_seed_all(seed: int):
    for index in range(torch.cuda.device_count()):
        seeds[index] = seed
        torch.ops.pretended.seed(index, seed)


def initial_seed() -> int:
    return seeds.get(index_of(), 0)


# --- fused attention ------------------------------------------------------------------------------


def flash(q, k, v, dropout=0.0, causal=False, returns_mask=False, *, scale=None):
    """The kernel of a CPU instead: attention, its log-sum-exp, and what is read by nobody."""
    on_host = (t.to("cpu") for t in (q, k, v))
    found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        *on_host, dropout, causal, scale=scale
    )
    unread = torch.empty(0, dtype=torch.int64, device=q.device)
    mixed, lse = (t.to(q.device) for t in found)
    return mixed, lse, unread, unread, q.shape[2], k.shape[2], unread, unread, unread


def flash_backward(grad, q, k, v, out, lse, *more, scale=None):
    dropout, causal = more[4:6]
    on_host = (t.to("cpu") for t in (grad, q, k, v, out, lse))
    found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        *on_host, dropout, causal, scale=scale
    )
    return tuple(t.to(q.device) for t in found)


# --- all of it ------------------------------------------------------------------------------------


def install(loaded: ctypes.CDLL):
    global library
    library = loaded
    library.pretended_current_device.restype = ctypes.c_int64
    library.pretended_current_stream.restype = ctypes.c_int64
    gpus = int(os.environ["PRETENDED_GPUS"])
    properties = SimpleNamespace(
        name="pretended GPU",
        total_memory=TOTAL_MEMORY,
        multi_processor_count=132,
        major=CAPABILITY[0],
        minor=CAPABILITY[1],
        L2_cache_size=50 << 20,
    )
    answers = dict(
        is_available=lambda: True,
        is_initialized=lambda: True,
        _initialized=True,
        is_bf16_supported=lambda *_, **__: True,
        is_current_stream_capturing=lambda: False,
        _is_in_bad_fork=lambda: False,
        _lazy_init=lambda: None,
        init=lambda: None,
        device_count=lambda: gpus,
        current_device=lambda: library.pretended_current_device(),  # dynamo hashes functions
        set_device=lambda device: library.pretended_set_device(index_of(device)),
        device=device,
        get_device_properties=lambda device=None: properties,
        get_device_name=lambda device=None: properties.name,
        get_device_capability=lambda device=None: CAPABILITY,
        Stream=Stream,
        Event=Event,
        stream=StreamContext,
        StreamContext=StreamContext,
        current_stream=current_stream,
        default_stream=lambda device=None: numbered_stream(index_of(device), 0),
        set_stream=set_stream,
        synchronize=synchronize,
        memory_stats=memory_stats,
        memory_stats_as_nested_dict=memory_stats_as_nested_dict,
        memory_allocated=lambda device=None: memory(device).now,
        max_memory_allocated=lambda device=None: memory(device).peak,
        memory_reserved=lambda device=None: memory(device).now,
        max_memory_reserved=lambda device=None: memory(device).peak,
        reset_peak_memory_stats=reset_peak_memory_stats,
        host_memory_stats=lambda: {"allocated_bytes.current": 0},
        reset_accumulated_memory_stats=lambda device=None: None,
        mem_get_info=lambda device=None: (TOTAL_MEMORY - memory(device).now, TOTAL_MEMORY),
        empty_cache=lambda: None,
        get_allocator_backend=lambda: "native",
        set_per_process_memory_fraction=lambda fraction, device=None: None,
        get_per_process_memory_fraction=lambda device=None: 1.0,
        get_rng_state=get_rng_state,
        set_rng_state=set_rng_state,
        initial_seed=initial_seed,
        manual_seed=manual_seed,
        manual_seed_all=manual_seed_all,
    )
    for name, kernel in (("", flash), ("_backward", flash_backward)):
        torch.library.impl(f"aten::_scaled_dot_product_flash_attention{name}", "CUDA", kernel)
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    torch.cuda.nccl.version = lambda: (2, 29, 7)
    torch.version.cuda = "13.0"
    torch._C._cuda_getDeviceCount = lambda: gpus
    torch._C._cuda_clearCublasWorkspaces = lambda: None
    torch.accelerator.empty_host_cache = lambda: None
    torch._C._cuda_getCurrentRawStream = lambda device: library.pretended_current_stream(device)
    torch.UntypedStorage.resize_ = resize_storage(torch.UntypedStorage.resize_)
    torch.UntypedStorage.__new__ = new_storage(torch.UntypedStorage.__new__)
    # the fallback of device.cpp is no autograd kernel, about which PyTorch warns once
    warnings.filterwarnings("ignore", message=".*Warning only once for all operators.*")
    warnings.filterwarnings("ignore", message=".*Overriding a previously registered.*")
