"""Private names of PyTorch that the bench uses and no technique: how a process, a fake tensor or a
collective is looked at and made. The others, and the rule, are in
shardlab/common/torch_internals.py; those of a GPU that is not there in rehearse/stand_in.py.
"""

import functools
import gc
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from traceback import walk_stack
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives
from torch import Tensor
from torch._library.simple_registry import find_torch_dispatch_rule
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerAction, profile
from torch.utils import _device, _python_dispatch

from shardlab.common.torch_internals import (
    FUSED_ATTENTION,
    FakeTensor,
    FakeTensorMode,
    disable_modes,
    fuses_groups,
    hooks_of_saved_tensors,
)

# --- storages and fake tensors --------------------------------------------------------------------


def watching_resize(seen: Callable[[torch.UntypedStorage], None]) -> AbstractContextManager:
    """A context that calls `seen` after each resize_ of a storage, by which FSDP2 and stage 3 free
    and refill memory: no dispatch mode sees it. The name is public; replacing a method of PyTorch's
    class is not. Without it, the ledger counts gathered weights that are free."""
    original = torch.UntypedStorage.resize_

    def resize_(storage, size):
        original(storage, size)
        seen(storage)

    return patch.object(torch.UntypedStorage, "resize_", resize_)


@contextmanager
def stops_between(*calls: Callable) -> Iterator[None]:
    """A context in which a stop waits for these calls, and while PyTorch looks for the rule of an
    operator under a mode: C++ has called Python there, and knows no error. Without it, a stop may
    end the kernel, or leave a virtual GPU half."""
    before = signal.getsignal(signal.SIGINT)
    waited_for = {call.__code__ for call in (find_torch_dispatch_rule, *calls)}

    def stop(number, frame):
        if any(one.f_code in waited_for for one, _ in walk_stack(frame)):
            threading.Timer(0.001, signal.raise_signal, [number]).start()
        else:
            before(number, frame)

    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class ModeWithoutDevice(FakeTensorMode):
    """torch.tensor(1, device="cuda") begins on the CPU."""

    avoid_device_init = True


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


def grouped_as_on_cuda() -> AbstractContextManager:
    """A context in which attention of queries that share keys is fused as on CUDA. Without it, a
    virtual GPU keeps all scores where PyTorch fuses equal heads alone on a CPU."""
    plain, on_cuda = torch.nn.functional.scaled_dot_product_attention, FUSED_ATTENTION[1]

    def fused(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **named):
        if attn_mask is None and named.pop("enable_gqa", False):
            return on_cuda(query, key, value, dropout_p, is_causal, **named)[0]
        return plain(query, key, value, attn_mask, dropout_p, is_causal, **named)

    grouped = plain if fuses_groups() else fused
    return patch.object(torch.nn.functional, "scaled_dot_product_attention", grouped)


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

    return FakeStore()


TAKES_FAKE = torch._C._dispatch_has_kernel_for_dispatch_key("c10d::_allgather_base_", "Meta")
if not TAKES_FAKE:  # torch 2.8 has its kernels for fake tensors in a module of their own
    import torch.distributed._tools.fake_collectives


def process_groups() -> list[dist.ProcessGroup]:
    """All process groups of this process. Without it, a stuck call cannot be ended."""
    return list(dist.distributed_c10d._world.pg_map)


def abort_process_groups() -> None:
    """Ends all groups without waiting for their kernels, as destroy_process_group would. Without
    it, NCCL ranks do not survive a fault."""
    dist.distributed_c10d._abort_process_group()


def watching_new_groups(
    seen: Callable[[list[int] | None, bool], None], within: Callable[[], AbstractContextManager]
) -> AbstractContextManager:
    """A context that calls `seen(ranks, among themselves)` before each process group that is made
    by new_group, a device mesh or anything else of PyTorch, which is then made within `within()`.
    Without it, a rank that leaves a new_group out is not named, and the others wait for half an
    hour."""
    original = dist.distributed_c10d._new_group_with_tag

    @functools.wraps(original)
    def make(ranks=None, *args, **named):
        seen(ranks, named.get("use_local_synchronization", False))
        with within():
            return original(ranks, *args, **named)

    return patch.object(dist.distributed_c10d, "_new_group_with_tag", make)


# --- contexts -------------------------------------------------------------------------------------


_entered: list[torch.inference_mode] = []  # a context of this mode ends with its object


def settings_of_contexts() -> Callable[[], None]:
    """All that no_grad(), autocast(), torch.device() and other contexts have set: a function that
    sets it again, in any thread. Without it, a rank that was stopped while it left no_grad() makes
    no gradients from then on."""

    def set_modes(module, now: Callable[[], list], wanted: list):
        while (held := now()) != wanted[: len(held)]:  # torch 2.8 fails if nobody holds it
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

    def leave_transforms(depth: int):
        while functorch.get_dynamic_layer_stack_depth() > depth:
            functorch.pop_dynamic_layer_stack()

    def set_inference(on: bool):
        if on != torch.is_inference_mode_enabled():
            _entered.append(torch.inference_mode(on))
            _entered[-1].__enter__()

    functions = torch.overrides._get_current_function_mode_stack
    operators = _python_dispatch._get_current_dispatch_mode_stack
    flags = {name: on for name, on in vars(_python_dispatch).items() if name.startswith("_is_in_")}
    device, functorch = vars(torch._GLOBAL_DEVICE_CONTEXT), torch._C._functorch
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
        (leave_transforms, transforms),
        (set_modes, torch.overrides, functions, functions()),
        (set_modes, _python_dispatch, operators, operators()),
        (vars(_python_dispatch).update, flags),
        (device.clear,),  # torch 2.8 takes no None for a thread that has none
        (device.update, {**device}),
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
        known = isinstance(argument, str) and hasattr(dist.ReduceOp.RedOpType, argument.upper())
        return argument.lower() if known else None

    for name, method in list(vars(dist.ProcessGroup).items()):
        if "reduce" in name:
            setattr(dist.ProcessGroup, name, noting(method, name_in_options))
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("_c10d_functional::") and "reduce" in name:
            function = getattr(torch.ops._c10d_functional, name.partition("::")[2]).default
            kernel = noting(functools.partial(next_kernel, function), name_in_text)
            _functional.impl(name, kernel, "BackendSelect", with_keyset=True)


_functional = torch.library.Library("_c10d_functional", "IMPL")
if not TELLS_REDUCTION:
    note_reductions()


def withdraw(library: torch.library.Library) -> None:
    """Removes registered kernels at once instead of at garbage collection. Without it, a finished
    log costs time."""
    library._destroy()
