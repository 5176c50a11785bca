"""Private names of PyTorch that the bench uses and no technique: how a process, a fake tensor, a
collective or a GPU that is not there is looked at and made. The others, and the rule, are in
shardlab/common/torch_internals.py.
"""

import ctypes
import functools
import gc
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerAction, profile
from torch.utils import _device, _python_dispatch

from shardlab.common.torch_internals import (
    FUSED_ATTENTION,
    FakeTensor,
    FakeTensorMode,
    disable_modes,
    hooks_of_saved_tensors,
    storage_key,
)

# --- storages and fake tensors --------------------------------------------------------------------


def watch_resize(seen: Callable[[torch.UntypedStorage], None]) -> Callable[[], None]:
    """Calls `seen` after each resize_ of a storage, by which FSDP2 and stage 3 free and refill
    memory: no dispatch mode sees it. Returns a function that ends the watch. The name is public;
    replacing a method of PyTorch's class is not. Without it, the ledger counts gathered weights
    that are free."""
    original = torch.UntypedStorage.resize_

    def resize_(storage, size):
        original(storage, size)
        seen(storage)

    torch.UntypedStorage.resize_ = resize_
    return lambda: setattr(torch.UntypedStorage, "resize_", original)


@contextmanager
def eager_on_fake_tensors() -> Iterator[None]:
    """A context in which PyTorch's distributed modules do with fake tensors what they do with real
    ones. DTensor takes them for a trace of the compiler: it waits for each message at once, and
    tries each operator out again; and whole tensors, of which it wants the shape, it makes where a
    virtual GPU counts them. DDP compares the shapes of all ranks in C++. Stages of a pipeline tell
    each other their shapes as objects, whose bytes must arrive. Without it, PyTorch's own
    techniques do not run on virtual GPUs as they do on real ones."""

    def for_real(function):
        @functools.wraps(function)
        def call(*args, **named):
            with disable_modes():
                return function(*args, **named)

        return call

    from torch.distributed.tensor import _sharding_prop  # which loads much

    shapes = "_propagate_tensor_meta_non_cached"
    tracing = torch.distributed._functional_collectives._are_we_tracing
    code = tracing.__code__  # modules have the function under names of their own
    tracing.__code__ = (lambda: False).__code__
    try:
        with (
            patch.object(
                torch.nn.parallel.distributed,
                "_verify_param_shape_across_processes",
                lambda *args, **named: None,
            ),
            patch.multiple(dist, **{name: for_real(getattr(dist, name)) for name in OF_OBJECTS}),
            patch.object(
                _sharding_prop.ShardingPropagator,
                shapes,
                for_real(getattr(_sharding_prop.ShardingPropagator, shapes)),
            ),
            patch.object(_sharding_prop, "FakeTensorMode", ModeWithoutDevice),
        ):
            yield
    finally:
        tracing.__code__ = code


OF_OBJECTS = "send_object_list", "recv_object_list", "broadcast_object_list", "all_gather_object"


@contextmanager
def foreach_as_on_cuda() -> Iterator[None]:
    """A context in which optimizers and clipping take the CPU's fake tensors for CUDA's, and update
    whole lists of them. Without it, a virtual GPU launches the operators of an update once for each
    parameter."""
    lists, optimizer = torch.utils._foreach_utils, sys.modules["torch.optim.optimizer"]
    devices = lists._get_foreach_kernels_supported_devices
    code = devices.__code__  # modules have the function under names of their own
    devices.__code__ = (lambda: ["cuda", "cpu"]).__code__
    kinds = lists._foreach_supported_types, optimizer._foreach_supported_types
    for kind in kinds:
        kind.append(FakeTensor)
    try:
        yield
    finally:
        devices.__code__ = code
        for kind in kinds:
            kind.remove(FakeTensor)


# Without it, an operator whose result has a size that depends on contents fails in PyTorch's words
NEEDS_CONTENTS = DynamicOutputShapeException, DataDependentOutputException


@contextmanager
def asked_for_contents(refuse: Callable[[str], Callable]) -> Iterator[None]:
    """A context in which `refuse(name)` stands for everything that takes the contents of a fake
    tensor out of PyTorch, past all operators. Without it, saving one fails with a sentence about
    weak dictionaries."""
    names = {"numpy": "numpy()", "__dlpack__": "DLPack", "pin_memory": "pin_memory()"}
    names |= {"__reduce_ex__": "pickling, as in torch.save and save(),"}
    loader, workers = torch.utils.data.dataloader, "a DataLoader with num_workers above 0"
    with (
        patch.multiple(FakeTensor, **{key: refuse(name) for key, name in names.items()}),
        patch.object(loader, "_MultiProcessingDataLoaderIter", refuse(workers)),
    ):
        yield


def known_value(tensor: Tensor) -> Tensor | None:
    """The contents of a fake tensor that was made from a number, as an optimizer's count of steps;
    on a GPU such a tensor stays with the host. Without it, each parameter's update makes the host
    of a virtual GPU wait."""
    return getattr(tensor, "constant", None)


def clear_cublas_workspaces() -> None:
    """Frees the workspaces of cuBLAS. Without it, workspaces are part of the row "not explained" of
    an account."""
    torch._C._cuda_clearCublasWorkspaces()


# --- CUDA that is not there -----------------------------------------------------------------------


class NoStandIn(RuntimeError):
    """This PyTorch takes no stand-in for CUDA: one sentence."""


def stand_in_for_cuda() -> FakeTensorMode:
    """Makes fake tensors on "cuda" those of a GPU to all of PyTorch, in any build and on a machine
    without a driver, for the rest of this process: their dispatch keys, autocast's lists and a
    backward in a thread of the device. Returns the mode that makes them. Without it, a script that
    says "cuda" runs on GPUs alone.

    C++ asks two objects about CUDA. The guard says which device and stream is current: PyTorch lets
    Python write one for devices of others, and this one is registered for CUDA. The hooks say
    whether CUDA is there: a copy of their table of methods says yes. Which of the methods is asked
    is found by asking."""
    if not hasattr(torch._C, "_acc") or sys.platform == "win32":
        raise NoStandIn(
            f"PyTorch {torch.__version__} on {sys.platform} takes no stand-in for CUDA: use 2.11 or"
            " later on Linux or macOS."
        )

    class Guard(torch._C._acc.DeviceGuard):
        def type_(self):
            return torch._C._autograd.DeviceType.CUDA

    torch._C._acc.register_python_privateuseone_device_guard(Guard())
    base, core = (loaded_library(name) for name in ("c10", "torch_cpu"))
    guards = (ctypes.c_void_p * (PRIVATE_USE + 1)).in_dll(base, GUARDS)
    guards[CUDA], guards[PRIVATE_USE] = guards[PRIVATE_USE], None
    patch_cuda()
    table_of_hooks(core)
    move_fake_tensors()
    # transformers asks by this name whether it is traced, and then gives attention a whole mask
    torch._subclasses.FakeTensor = type("NoTensor", (), {})
    torch.amp.GradScaler._maybe_opt_step = step_that_finds_no_infinity
    return ModeWithoutDevice(allow_non_fake_inputs=True)


class ModeWithoutDevice(FakeTensorMode):
    """torch.tensor(1, device="cuda") begins on the CPU."""

    avoid_device_init = True


CUDA, PRIVATE_USE = 1, 20  # numbers of devices in C++
TABLE_METHODS = 64  # of a table in C++, at most
GUARDS = "_ZN3c104impl26device_guard_impl_registryE"
_answers: list = []  # what C++ calls, kept alive


def loaded_library(name: str) -> ctypes.CDLL:
    """A library of PyTorch, as ctypes has it. Without it no table in C++ is reached."""
    folder = Path(torch.__file__).parent / "lib"
    return ctypes.CDLL(str(next(folder.glob(f"lib{name}.*"))))


def patch_cuda():
    """torch.cuda says that there is one GPU and that it has been made ready. Without it a
    script's first question raises."""
    module, c = torch.cuda, torch._C
    module._lazy_init = c._cuda_init = lambda: None
    module._initialized, module._is_in_bad_fork = True, lambda: False
    module.is_initialized = module.is_available = lambda: True
    c._cuda_getDeviceCount = lambda: 1
    c._cuda_getCurrentRawStream = lambda device: 0
    c._get_accelerator = lambda *asked: torch.device("cuda")
    module.current_device = lambda: 0
    # in a build with CUDA these ask a real GPU for a first tensor, and for the timers of DDP
    torch._subclasses.fake_tensor.init_gpu_context = lambda device: None
    if torch.backends.cuda.is_built():
        dist.Reducer.prepare_for_forward = lambda reducer: None
    torch.version.cuda = torch.version.cuda or "13.0"
    torch.accelerator.current_accelerator = lambda *asked, **named: torch.device("cuda")


def table_of_hooks(library: ctypes.CDLL):
    """The method by which the hooks say that CUDA is there says yes, and the one that a backward
    asks, whether a context was made, says no. Without it autograd finds no device."""
    answer = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
    hooks = library._ZN2at6detail12getCUDAHooksEv
    hooks.restype = ctypes.c_void_p
    table = ctypes.c_void_p.from_address(hooks())
    real = (ctypes.c_void_p * TABLE_METHODS).from_address(table.value)
    asked: list[int] = []

    def use(methods: list):
        new = (ctypes.c_void_p * TABLE_METHODS)(
            *(ctypes.cast(one, ctypes.c_void_p).value if one else was for one, was in methods)
        )
        _answers.append((new, methods))
        table.value = ctypes.addressof(new)

    probes = [
        answer(lambda _, n=n: asked.append(n) or len(asked) == 1) for n in range(TABLE_METHODS)
    ]
    use([(probe, 0) for probe in probes])
    torch._C._accelerator_getAccelerator()
    present, yes, no = asked[0], answer(lambda _: 1), answer(lambda _: 0)
    use([(yes if n == present else probe, 0) for n, probe in enumerate(probes)])
    with ModeWithoutDevice():
        torch.ones(1, device="cuda", requires_grad=True).sum().backward()
    known = dict.fromkeys(asked, no) | {present: yes}
    use([(known.get(n), was) for n, was in enumerate(real)])


def move_fake_tensors():
    """Fake tensors take another's place in memory as real ones do, on its device: modules that move
    exchange tensors instead, which fails where fake tensors' own mode knows of them weakly.
    Without it `.cuda()` of a module raises."""
    data, swap = Tensor.data, torch.utils.swap_tensors

    def take_place(tensor: FakeTensor, other: Tensor):
        data.__set__(tensor, other)
        tensor.fake_device = other.device

    def moved(tensor: Tensor, other: Tensor):
        if isinstance(tensor, FakeTensor):
            take_place(tensor, other)
        else:
            swap(tensor, other)

    FakeTensor.data = property(data.__get__, take_place)
    FakeTensor.data_ptr = lambda tensor: storage_key(tensor.untyped_storage())  # a name for it
    torch.utils.swap_tensors = moved


def without_contents(mode: FakeTensorMode, tensor: Tensor) -> Tensor:
    """A fake tensor like this one. Without it, parameters on the host have contents, and none can
    move to a GPU that is not there."""
    with disable_modes():
        return mode.from_tensor(tensor.detach(), static_shapes=True)


def attention_as_on_cuda(old_gpu: bool) -> None:
    """F.scaled_dot_product_attention takes the kernel that a GPU takes, which C++ chooses where no
    mode sees it: flash for 16 bits, the memory-efficient one for fp32, masks and GPUs before the
    A100. Without it, a GPU that is not there keeps all scores."""
    functional, cuda = torch.nn.functional, torch.backends.cuda
    plain = functional.scaled_dot_product_attention
    flash, efficient = FUSED_ATTENTION[1:3]

    def attention(
        query,
        key,
        value,
        attn_mask=None,
        dropout_p=0.0,
        is_causal=False,
        scale=None,
        enable_gqa=False,
    ):
        given = query, key, value
        if query.device.type == "cuda" and torch.is_autocast_enabled("cuda"):
            given = tuple(one.to(torch.get_autocast_dtype("cuda")) for one in given)
        q = given[0]
        fits = q.device.type == "cuda" and q.dim() == 4 and q.shape[-1] % 8 == 0
        if fits and flash_runs(q, attn_mask, old_gpu) and cuda.flash_sdp_enabled():
            return flash(*given, dropout_p, is_causal, scale=scale)[0]
        if fits and cuda.mem_efficient_sdp_enabled() and key.shape[1] == q.shape[1]:
            bias = attn_mask
            if bias is not None:
                if bias.dtype is torch.bool:
                    bias = torch.where(bias, 0.0, -torch.inf).to(q.dtype)
                bias = bias.expand(*q.shape[:3], key.shape[2])
            recorded = torch.is_grad_enabled() and any(one.requires_grad for one in given)
            return efficient(*given, bias, recorded, dropout_p, is_causal, scale=scale)[0]
        return plain(*given, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)

    functional.scaled_dot_product_attention = attention


def flash_runs(q: Tensor, mask: Tensor | None, old_gpu: bool) -> bool:
    """Whether fused attention runs, which asks a GPU for its kind. Without it attention is taken
    apart."""
    return mask is None and q.dtype.itemsize == 2 and q.shape[-1] <= 256 and not old_gpu


def step_that_finds_no_infinity(self, optimizer, state, *args, **named):
    """The scaler's question to the GPU, and its step: gradients without contents are finite.
    Without it the scaler reads contents that are not there."""
    for found in state["found_inf_per_device"].values():
        found.item()
    return optimizer.step(*args, **named)


# the functions by which tensors leave the host. Without them, a copy to the GPU takes no time
COPY_OPERATORS = torch.ops.aten._to_copy, torch.ops.aten.copy_


# --- processes ------------------------------------------------------------------------------------


def profiler_enabled() -> bool:
    """Whether a profiler is at work in this process, or one with a schedule warms up, which only
    its own object tells. Without it, a second one ends Python."""
    return torch.autograd._profiler_enabled() or any(
        type(one) is profile
        and one.step_rec_fn is not None
        and one.current_action is ProfilerAction.WARMUP
        for one in gc.get_objects()
    )


def before_a_profiler(call: Callable[[], object]) -> AbstractContextManager:
    """A context in which `call` runs before a profiler begins or warms up. Without it, one whose
    schedule begins under another profiler ends Python."""

    def first(original):
        return lambda *args, **named: [call(), original(*args, **named)][1]

    module, names = torch.autograd.profiler, ("_prepare_profiler", "_enable_profiler")
    return patch.multiple(module, **{name: first(getattr(module, name)) for name in names})


def fake_store():
    """The store of the backend "fake", whose collectives return at once and send nothing. Without
    it, there is no rank 0 of 1,024 on a laptop."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if not TAKES_FAKE and not _fake:
        take_fake_tensors()
    return FakeStore()


def take_fake_tensors() -> None:
    """Collectives of the backend "fake" take fake tensors where PyTorch has no kernels for these:
    the CPU's kernels ask the backend, which touches no tensor. Without it, only real tensors have
    a rank 0 of 1,024 there."""
    _fake.append(torch.library.Library("c10d", "IMPL"))
    for name in ("allreduce_", "_allgather_base_", "_reduce_scatter_base_", "broadcast_"):
        function = getattr(torch.ops.c10d, name).default
        _fake[0].impl(name, functools.partial(on_the_cpu, function), "Meta")


TAKES_FAKE = torch._C._dispatch_has_kernel_for_dispatch_key("c10d::_allgather_base_", "Meta")
_fake: list[torch.library.Library] = []


def group_named(name: str | dist.ProcessGroup) -> dist.ProcessGroup:
    """The process group of a functional collective, which names it. Without it, nobody knows which
    ranks a message of DTensor is for."""
    if isinstance(name, dist.ProcessGroup):
        return name
    return dist.distributed_c10d._resolve_process_group(name)


def not_yet_waited_for(result: Tensor) -> Tensor:
    """The result of a functional collective as a tensor that waits when it is used. Without it,
    DTensor's messages hide under nothing on virtual GPUs."""
    return torch.distributed._functional_collectives.AsyncCollectiveTensor(result)


def process_groups() -> list[dist.ProcessGroup]:
    """All process groups of this process. Without it, a stuck call cannot be ended."""
    return list(dist.distributed_c10d._world.pg_map)


def abort_process_groups() -> None:
    """Ends all groups without waiting for their kernels, as destroy_process_group would. Without
    it, NCCL ranks do not survive a fault."""
    dist.distributed_c10d._abort_process_group()


def watch_new_groups(
    seen: Callable[[list[int] | None, bool], None],
    within: Callable[[], AbstractContextManager] = nullcontext,
) -> Callable[[], None]:
    """Calls `seen(ranks, among themselves)` before each process group that is made by new_group, a
    device mesh or anything else of PyTorch, which is then made within `within()`. Returns a
    function that ends the watch. Without it, a rank that leaves a new_group out is not named, and
    the others wait for half an hour."""
    module = dist.distributed_c10d
    original = module._new_group_with_tag

    @functools.wraps(original)
    def make(ranks=None, *args, **named):
        seen(ranks, named.get("use_local_synchronization", False))
        with within():
            return original(ranks, *args, **named)

    module._new_group_with_tag = make
    return lambda: setattr(module, "_new_group_with_tag", original)


# --- contexts -------------------------------------------------------------------------------------


_entered: list[torch.inference_mode] = []  # a context of this mode ends with its object


def settings_of_contexts() -> Callable[[], None]:
    """All that no_grad(), autocast(), torch.device() and other contexts have set: a function that
    sets it again, in any thread. Without it, a rank that was stopped while it left no_grad() makes
    no gradients from then on."""

    def set_modes(module, now: Callable[[], list], wanted: list):
        while now() != wanted[: len(now())]:
            module._pop_mode()
        for mode in wanted[len(now()) :]:
            module._push_mode(mode)

    def set_hooks(wanted: list | None = None) -> list:
        before: list = []
        while hooks := hooks_of_saved_tensors():
            before.insert(0, hooks)
            saved_tensors_hooks.__exit__(None)
        for hooks in before if wanted is None else wanted:
            saved_tensors_hooks(*hooks).__enter__()
        return before

    def leave_autocast(within: int):
        for _ in range(torch.autocast_increment_nesting() - within + 1):
            torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()  # casts of weights, which would outlive an update

    def set_inference(on: bool):
        if on != torch.is_inference_mode_enabled():
            _entered.append(torch.inference_mode(on))
            _entered[-1].__enter__()

    functions = torch.overrides._get_current_function_mode_stack
    operators = _python_dispatch._get_current_dispatch_mode_stack
    flags = {name: on for name, on in vars(_python_dispatch).items() if name.startswith("_is_in_")}
    device, functorch = torch._GLOBAL_DEVICE_CONTEXT, torch._C._functorch
    anomaly = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    transforms = functorch.get_dynamic_layer_stack_depth()
    filters = warnings.catch_warnings()
    filters.__enter__()
    settings = [
        (filters.__exit__,),
        (torch.set_default_dtype, torch.get_default_dtype()),
        (torch.set_num_threads, torch.get_num_threads()),
        (torch.set_deterministic_debug_mode, torch.get_deterministic_debug_mode()),
        (torch.set_anomaly_enabled, *anomaly),
        (functorch.pop_dynamic_layer_stack_and_undo_to_depth, transforms),
        (set_modes, torch.overrides, functions, functions()),
        (set_modes, _python_dispatch, operators, operators()),
        (vars(_python_dispatch).update, flags),
        (setattr, device, "device_context", getattr(device, "device_context", None)),
        (setattr, _device, "CURRENT_DEVICE", _device.CURRENT_DEVICE),
        (set_hooks, set_hooks()),
        (leave_autocast, torch.autocast_increment_nesting()),
        (torch.set_autocast_cache_enabled, torch.is_autocast_cache_enabled()),
        (set_inference, torch.is_inference_mode_enabled()),
        (torch.set_grad_enabled, torch.is_grad_enabled()),
    ]
    torch.autocast_decrement_nesting()
    for kind in ("cpu", "cuda"):
        settings.append((torch.set_autocast_enabled, kind, torch.is_autocast_enabled(kind)))
        settings.append((torch.set_autocast_dtype, kind, torch.get_autocast_dtype(kind)))

    def set_again():
        for function, *arguments in settings:
            function(*arguments)

    return set_again


# --- kernels of this package for the operators of c10d --------------------------------------------


def next_kernel(function: torch._ops.OpOverload, keyset, *args, **named):
    """Makes a call that skips the kernel registered at BackendSelect. Without it, there is no
    communication log and ranks are not checked for agreement."""
    without = keyset.remove(torch._C.DispatchKey.BackendSelect)
    return function.redispatch(without, *args, **named)


def on_the_cpu(function: torch._ops.OpOverload, *args, **named):
    """Makes a call with the CPU's kernel, on any tensors. Without it, gloo cannot be handed copies
    of CUDA tensors."""
    only = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    return function.redispatch(only, *args, **named)


def with_work(function: torch._ops.OpOverload, first, work: dist.Work):
    """The result of an operator of c10d that had `first` as its first argument: it and the work, or
    the work alone. Without it, nobody but a backend can make a collective."""
    boxed = work.boxed()
    return (first, boxed) if len(function._schema.returns) > 1 else boxed


def reduction_name(reduce_op: torch.ScriptObject) -> str:
    """Which reduction an operator of c10d is asked for: sum, avg, max, ... Without it, the log and
    the errors of ranks that disagree say all_reduce and not of what kind."""
    if TELLS_REDUCTION:
        return dist.ReduceOp.RedOpType(reduce_op.op()).name.lower()
    return getattr(_reduction, "name", "sum")  # C++ that calls by itself, such as DDP's, sums


TELLS_REDUCTION = hasattr(torch.classes.c10d.ReduceOp(), "op")  # torch 2.10
_reduction = threading.local()


def note_reductions():
    """Where the argument of an operator does not tell the reduction, the calls that lead to the
    operator do: methods of a process group, and functional collectives, which say it as text.
    Without it, the entry above has no answer there."""

    def noting(original, name_in):
        @functools.wraps(original)
        def noted(*args, **named):
            outer = getattr(_reduction, "name", "sum")
            _reduction.name = next(filter(None, map(name_in, (*args, *named.values()))), "sum")
            try:
                return original(*args, **named)
            finally:
                _reduction.name = outer

        return noted

    def name_in_options(argument) -> str | None:
        reduction = getattr(argument, "reduceOp", argument)
        reduction = reduction.op if isinstance(reduction, dist.ReduceOp) else reduction
        return reduction.name.lower() if isinstance(reduction, dist.ReduceOp.RedOpType) else None

    def name_in_text(argument) -> str | None:
        known = (
            isinstance(argument, str) and argument.upper() in dist.ReduceOp.RedOpType.__members__
        )
        return argument.lower() if known else None

    for name in REDUCING:
        method = getattr(dist.ProcessGroup, name)
        setattr(dist.ProcessGroup, name, noting(method, name_in_options))
    for name in REDUCING_FUNCTIONAL:
        function = getattr(torch.ops._c10d_functional, name).default
        kernel = noting(functools.partial(next_kernel, function), name_in_text)
        _functional.impl(name, kernel, "BackendSelect", with_keyset=True)


REDUCING = (
    "allreduce",
    "allreduce_coalesced",
    "reduce",
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced",
)
REDUCING_FUNCTIONAL = (
    "all_reduce",
    "all_reduce_",
    "all_reduce_coalesced",
    "all_reduce_coalesced_",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
)
_functional = torch.library.Library("_c10d_functional", "IMPL")
if not TELLS_REDUCTION:
    note_reductions()


def withdraw(library: torch.library.Library) -> None:
    """Removes registered kernels at once instead of at garbage collection. Without it, a finished
    log costs time."""
    library._destroy()
