"""The only file with private names of PyTorch: a new version may move or drop them without notice.
No other file of shardlab uses one.

Each entry says its purpose and what breaks without it, so a release that moves a name needs a
repair here and nowhere else. Tested with torch 2.8 and 2.13.
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
from types import SimpleNamespace
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives
from torch import Tensor, nn
from torch._guards import active_fake_mode as active_fake_mode
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch.autograd.graph import increment_version, saved_tensors_hooks
from torch.nn.attention import SDPBackend
from torch.profiler import ProfilerAction, profile
from torch.utils import _device, _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map as tree_map

# Names that are passed on, and what breaks without them. FakeTensor, a shape without contents:
# DTensor is taken for this rank's part. FakeTensorMode: nothing is weighed that does not fit here.
# TorchDispatchMode, which sees every operation: no ledger, no count of operations.
# active_fake_mode: the ledger counts DTensor's trial runs. tree_leaves: only a plain tensor can be
# an output. tree_map: an output is taken as it is.


# --- backward -------------------------------------------------------------------------------------


def current_backward() -> int | None:
    """The number of the backward that is running in this thread, or None. Without it, a forward
    inside backward (activation checkpointing) looks like a forward of its own."""
    number = torch._C._current_graph_task_id()
    return None if number == -1 else number


def at_end_of_backward(function: Callable[[], None]) -> None:
    """Calls the function after the last gradient, before backward() returns; must be called inside
    backward. Without it, data parallelism and ZeRO do not know when a backward is over. DDP and
    FSDP2 use the same call."""
    torch.autograd.Variable._execution_engine.queue_callback(function)


def when_outer_backward_goes_on(function: Callable[[], None]) -> bool:
    """Called where a backward ends. False: that backward was no part of another. True: it ran in a
    node of another one, as a reentrant checkpoint's does, and the function is called within the
    other as soon as that goes on behind the node. Without it, data parallelism and ZeRO take the
    end of the inner backward for the end of all."""
    node = torch._C._current_autograd_node()
    handles = []

    def goes_on(gradients):
        if handles:
            for handle in handles:
                handle.remove()
            handles.clear()
            function()

    for following, _ in node.next_functions if node is not None else ():
        if following is not None:
            handles.append(following.register_prehook(goes_on))
    return bool(handles)


def in_plain_backward() -> bool:
    """Whether the running backward fills .grad, as backward() does, and is not autograd.grad().
    Without it, a backward within a backward fills .grad of parameters that nobody asked for."""
    return torch.autograd._is_checkpoint_valid()


def put_hook_last(parameter: Tensor, handle) -> None:
    """This post-accumulate hook, and hooks of shardlab that came after it, run after all others.
    Without it, a hook of the reader's that came later changes a gradient that is on its way."""
    hooks = parameter._post_accumulate_grad_hooks
    numbers = list(hooks)
    later = numbers[numbers.index(handle.id) + 1 :]
    if any(not is_our_hook(hooks[number]) for number in later):
        for number in [handle.id, *filter(lambda number: is_our_hook(hooks[number]), later)]:
            hooks[number] = hooks.pop(number)  # move_to_end() would leave the dict below as it is


def hooks_of_others(of: Tensor | nn.Module) -> bool:
    """Whether someone else than shardlab has registered a hook on the parameter's gradient or on
    the module. Without it, hooks are lost without a word where a part takes its place."""
    kinds = "_backward_hooks _post_accumulate_grad_hooks _backward_pre_hooks _forward_hooks"
    every = [getattr(of, kind, None) or {} for kind in (*kinds.split(), "_forward_pre_hooks")]
    return not all(is_our_hook(hook) for hooks in every for hook in hooks.values())


def is_our_hook(hook: Callable) -> bool:
    """Whether shardlab or ranklab has made the hook. Without it, hooks of the ledger count as the
    reader's."""
    module = getattr(hook, "__module__", None) or type(hook).__module__
    return module.partition(".")[0] in ("shardlab", "ranklab")


def hooks_of_saved_tensors() -> tuple[Callable, Callable] | None:
    """(pack, unpack) of the saved_tensors_hooks in force, or None. Autograd calls only the
    innermost hooks. Without it, shardlab's hooks inside other hooks would hide the tensors from
    them: checkpoint around a unit of stage 3 would keep every activation."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False)


# --- between backward and step --------------------------------------------------------------------


def watch_unscaling(
    tensors_of: Callable[[torch.optim.Optimizer], list[Tensor]],
    seen: Callable[[list[Tensor], dict[torch.device, Tensor]], None],
    unscaled_here: Callable[[torch.optim.Optimizer], bool],
) -> None:
    """Every GradScaler unscales the gradients of tensors_of(optimizer), and then calls
    `seen(tensors, found)`: device -> 1. if a gradient there is not finite, else 0. Whatever is
    written into `found` decides about the step. A scaler that has scaled no loss begins all the
    same where unscaled_here(optimizer). Without it, ranks that have shards disagree whether to
    step, and only the last stage of a pipeline has a scale. DTensor does the same for FSDP2, in its
    kernel of the operator that unscales."""
    scaler = torch.amp.GradScaler
    original = scaler._unscale_grads_

    @functools.wraps(original)
    def unscale(self, optimizer, inverse, found, allow_fp16):
        alone = allow_fp16 and hasattr(optimizer, "scaled")  # it unscales in its step
        tensors = optimizer.scaled() if alone else tensors_of(optimizer)
        given = SimpleNamespace(param_groups=[{"params": tensors}])
        found = original(self, given, inverse, found, allow_fp16)
        increment_version([t.grad for t in tensors if t.grad is not None])  # its kernel does not
        seen(tensors, found)
        return found

    def begun(call):
        @functools.wraps(call)
        def begin(self, optimizer, *args, **named):
            if self.is_enabled() and self._scale is None and unscaled_here(optimizer):
                self._lazy_init_scale_growth_tracker(torch.device(self._device))
            return call(self, optimizer, *args, **named)

        return begin

    scaler._unscale_grads_ = unscale
    scaler.unscale_, scaler.step = begun(scaler.unscale_), begun(scaler.step)


def watch_clipping(
    norm: Callable[[list[Tensor], float, Callable], Tensor],
    seen: Callable[[list[Tensor]], None],
    asked: Callable[[list[Tensor]], None],
) -> None:
    """torch.nn.utils.clip_grad_norm_ takes `norm(gradients, norm_type, its own)` for the norm of
    all, and calls `seen(parameters)` before it scales; get_total_norm calls `asked(gradients)`
    first. Without it, each rank clips its shards by a norm of its own. DTensor does the same for
    FSDP2."""
    module = torch.nn.utils.clip_grad
    total, clip = module._get_total_norm, module._clip_grads_with_norm_

    @functools.wraps(total)
    def total_norm(tensors, norm_type=2.0, *args, **named):
        tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        return norm(tensors, float(norm_type), lambda own: total(own, norm_type, *args, **named))

    @functools.wraps(total)
    def asked_first(tensors, *args, **named):
        tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        asked(tensors)
        return total_norm(tensors, *args, **named)

    @functools.wraps(clip)
    def seen_first(parameters, *args, **named):
        parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        seen(parameters)
        return clip(parameters, *args, **named)

    module._get_total_norm, torch.nn.utils.get_total_norm = total_norm, asked_first
    module._clip_grads_with_norm_ = torch.nn.utils.clip_grads_with_norm_ = seen_first


def watch_value_clipping(seen: Callable[[list[Tensor]], None]) -> None:
    """torch.nn.utils.clip_grad_value_ calls `seen(parameters)` first, also for whoever has imported
    it before. Without it, stage 1 clips gradients before they are averaged, and stage 2 none."""
    public = torch.nn.utils.clip_grad.clip_grad_value_
    original = public.__wrapped__
    (inside,) = (cell for cell in public.__closure__ if cell.cell_contents is original)

    @functools.wraps(original)
    def clip(parameters, *args, **named):
        parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        seen(parameters)
        return original(parameters, *args, **named)

    inside.cell_contents = clip


def divide_into(pairs: list[tuple[Tensor, Tensor]], divisor: int):
    """The second of each pair becomes the first divided by the divisor. A large tensor is divided
    while it is copied; a GPU copies all small ones, and divides them all. Without it, a GPU gets a
    launch for each bias."""
    if pairs and (pairs[0][0].is_cuda or is_fake(pairs[0][0])):
        small = [pair for pair in pairs if pair[0].nbytes < 1 << 20]
        pairs = [pair for pair in pairs if pair[0].nbytes >= 1 << 20]
        if small:
            tensors, quotients = map(list, zip(*small))
            torch._foreach_copy_(quotients, tensors)
            torch._foreach_div_(quotients, divisor)
    for tensor, quotient in pairs:
        torch.div(tensor, divisor, out=quotient)


def scaled_product(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, dtype) -> Tensor:
    """(a * scale_a) @ (b * scale_b) of float8 factors, b with its columns in a row each, in the
    units that a GPU has for them. PyTorch 2.13 has a public name for it, and 2.8 has not. Without
    it, fp8 is only emulated."""
    return torch._scaled_mm(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=dtype)


# --- tensors, storages, modules -------------------------------------------------------------------


def version(tensor: Tensor) -> int:
    """How often the tensor was written in place. Without it, stage 3 gathers unchanged weights
    again."""
    return tensor._version


# functions that use a tensor and none of its values. Without it, zero_grad() and the hooks of
# parameters wait for values that are on their way, and nothing overlaps
READ_NO_VALUES = {Tensor.grad.__set__} | {
    getattr(Tensor, name).__get__
    for name in ("grad", "requires_grad", "shape", "dtype", "device", "is_leaf", "grad_fn")
    + ("_version", "_post_accumulate_grad_hooks", "_backward_hooks")
}


def watch_blind(seen: Callable[[], object]) -> None:
    """Calls `seen` before TorchScript traces or runs, or a transform of torch.func begins. These
    take tensors without asking their class. Without it, they compute with what is on its way."""
    blind = [(kind, "__call__") for kind in (torch._C.ScriptFunction, torch.jit.ScriptModule)]
    blind += [(torch.jit, "trace"), (torch._functorch.eager_transforms, "_grad_increment_nesting")]
    for owner, name in [*blind, (torch._functorch.vmap, "_vmap_increment_nesting")]:
        original = getattr(owner, name)

        def call(*args, original=original, **named):
            seen()
            return original(*args, **named)

        setattr(owner, name, call)


def base_of(tensor: Tensor) -> Tensor:
    """The tensor of which this one is a view, or itself. Without it, a weight that a linear layer
    saves as its transpose is taken for an activation, and travels to the host and back."""
    return tensor if tensor._base is None else tensor._base


def storage_key(storage: torch.UntypedStorage) -> int:
    """A key that is equal for two storages of the same memory. The storage of a fake tensor has a
    key, but no address. Without it, the ledger cannot count fake tensors."""
    return storage._cdata


def local_tensor(tensor: Tensor) -> Tensor:
    """The plain tensor in this rank's memory: the shard of a DTensor, the result of a collective
    that nobody has waited for. The public `to_local()` waits, and autograd sees it. Without it, the
    ledger misses what FSDP2 shards."""
    tensor = getattr(tensor, "_local_tensor", tensor)
    return getattr(tensor, "elem", tensor)


def never_compiled(function: Callable) -> Callable:
    """The function, excluded from torch.compile together with everything that it calls. The public
    torch.compiler.disable is the same and imports the compiler at once, which takes seconds.
    Without it, a compiled model of stage 3 fails with an internal error."""
    return torch._disable_dynamo(function)


def step_without_hooks(optimizer: torch.optim.Optimizer, cls: type):
    """The step() of one of the optimizer's classes, of which the hooks of all optimizers do not
    hear. Without it, a ledger takes a part of a step for a step of the program."""
    step = cls.step
    (step.__wrapped__ if getattr(step, "hooked", False) else step)(optimizer)


def assert_without_wait(right: Tensor, message: str) -> None:
    """On a GPU, a kernel that fails. Without it, the host waits for the GPU to see that ranks have
    equally many rows."""
    torch._assert_async(right, message)


def leave_to_ranks(module: nn.Module, names: list[str]) -> None:
    """PyTorch's DistributedDataParallel leaves these buffers to each rank, beside those that it
    leaves already. Without it, rank 0's rows of experts count once for each rank."""
    ignored = "_ddp_params_and_buffers_to_ignore"
    setattr(module, ignored, {*getattr(module, ignored, ()), *names})


@functools.cache
def watch_fsdp(told: Callable[[tuple[nn.Module, ...], list[Tensor], list, list], None]) -> None:
    """Calls `told` with the modules and parameters that PyTorch's FSDP and fully_shard were given,
    the groups over which they average, and the shards that fully_shard has made. Without it, they
    make one expert of those of several ranks, routers balance by a rank's own rows, and a norm of
    what is cut twice misses the parts of other ranks."""
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    make, make_unit = FullyShardedDataParallel.__init__, FSDPParamGroup.__init__
    names = "process_group", "_inter_node_pg", "shard_process_group", "replicate_process_group"
    groups_of = lambda one: [vars(one)[name] for name in names if vars(one).get(name)]

    @functools.wraps(make)
    def seen(self, module, *args, **named):
        parameters = list(module.parameters())
        make(self, module, *args, **named)
        told((module,), parameters, groups_of(self), [])

    @functools.wraps(make_unit)
    def unit_seen(self, params, modules, mesh_info, *args, **named):
        make_unit(self, params, modules, mesh_info, *args, **named)
        shards = [one.sharded_param for one in self.fsdp_params]
        told(modules, params, groups_of(mesh_info), shards)

    FullyShardedDataParallel.__init__, FSDPParamGroup.__init__ = seen, unit_seen


def own_parameters(module: nn.Module) -> dict[str, Tensor | None]:
    """The dictionary of the module's own parameters, which can hold any tensor under a name:
    `setattr` accepts only nn.Parameter. Without it, a gathered weight needs another way into the
    module, as functional_call has one."""
    return module._parameters


def set_own_parameters(module: nn.Module, parameters: dict):
    """The module's own parameters are in this dictionary from now on. Without it, the shard of a
    weight cannot have the weight's name."""
    module._parameters = parameters


# The method by which a module is called: its hooks, and forward between them. Without it, hooks of
# a unit of stage 3 run before its parameters are there: weight_norm's computes a weight from two.
CALL = "_call_impl"


class ConvertedModule(nn.Module):
    """Its `converted()` is called after .to(), .double() and to_empty(), which can give a module
    other parameters. Without it, parts of tensor parallelism that leave the meta device are taken
    for whole, and clipping counts too little."""

    def converted(self): ...

    def _apply(self, *args, **named):
        super()._apply(*args, **named)
        self.converted()
        return self


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


# The operators of F.scaled_dot_product_attention, of the CPU and of three kernels of CUDA, by which
# selective checkpointing knows fused attention. Without them, it computes attention twice.
FUSED_ATTENTION, FUSED_ATTENTION_BACKWARD = (
    tuple(
        getattr(torch.ops.aten, f"_scaled_dot_product_{kind}{of}")
        for kind in (
            "flash_attention_for_cpu",
            "flash_attention",
            "efficient_attention",
            "cudnn_attention",
        )
    )
    for of in ("", "_backward")
)


@functools.cache
def fuses_groups() -> bool:
    """Whether a CPU fuses attention of queries that share keys; torch 2.8 fuses equal heads.
    Without it, the kernel of torch 2.8 gets heads that it does not take."""
    q, k = torch.zeros(1, 2, 1, 1), torch.zeros(1, 1, 1, 1)  # records nothing in a checkpoint
    chosen = torch._fused_sdp_choice(q, k, k, is_causal=True, enable_gqa=True)
    return chosen == int(SDPBackend.FLASH_ATTENTION)


def has_fused_blocks(q: Tensor, k: Tensor) -> bool:
    """Whether fused_block takes q [B, A, S, D] and k [B, G, T, D]: on the meta device it has no
    place, on a GPU it takes 16 bits and heads of a multiple of 8. Without it, a ring of other
    tensors fails in the kernel."""
    if q.device.type == "cpu":
        with disable_modes():
            return q.shape[1] == k.shape[1] or fuses_groups()
    return q.is_cuda and q.dtype.itemsize == 2 and q.shape[-1] % 8 == 0 and q.shape[-1] <= 256


def fused_block(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Attention [B, A, S, D] and its log-sum-exp [B, A, S], which the public function keeps to
    itself. Without it, a ring has the scores of each block in memory."""
    cuda, cpu = (FUSED_ATTENTION[at] for at in (1, 0))
    return (cuda if q.is_cuda else cpu)(q, k, v, 0.0, causal)[:2]


def fused_block_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v; out and lse may be of more keys than these. Without it, backward has
    the scores of each block in memory."""
    given = grad, q, k, v, out, lse
    if not q.is_cuda:
        return FUSED_ATTENTION_BACKWARD[0](*given, 0.0, causal)
    unused = torch.empty(0, dtype=torch.int64, device=q.device)  # numbers of dropout
    sizes = None, None, q.shape[2], k.shape[2]
    return FUSED_ATTENTION_BACKWARD[1](*given, *sizes, 0.0, causal, unused, unused)


def torch_ring(rotate: str) -> tuple[Callable, Callable]:
    """PyTorch's ring attention, forward and backward, which its context_parallel gives to GPUs
    alone. Keys and values are passed on ("alltoall") or gathered ("allgather", its default).
    Without it, races of context parallelism have no peer."""
    from torch.distributed.tensor.experimental import _attention

    _attention.set_rotate_method(rotate)
    forward = _attention._templated_ring_attention
    return forward, sys.modules[forward.__module__]._templated_ring_attention_backward


def is_fake(tensor: Tensor) -> bool:
    """Whether the tensor has a shape and no contents. Without it, virtual ranks cannot tell their
    messages from those that are sent."""
    return isinstance(tensor, FakeTensor)


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


def disable_modes():
    """A context in which no dispatch mode sees an operation. Without it, an account of CUDA memory
    appears in the ledger it explains."""
    return _disable_current_modes()


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


def argument_names(function: torch._ops.OpOverload) -> list[str]:
    """The names of an operator's arguments, in order. Without it, the log must know them by number,
    which differs between versions."""
    return [argument.name for argument in function._schema.arguments]


def written_lists(function: torch._ops.OpOverload) -> list[str]:
    """The names of lists of tensors that the operator writes into, as fused optimizers do. Without
    it, a virtual GPU counts what they read alone."""
    arguments = function._schema.arguments
    return [one.name for one in arguments if one.alias_info and one.alias_info.is_write]


def with_work(function: torch._ops.OpOverload, first, work: dist.Work):
    """The result of an operator of c10d that had `first` as its first argument: it and the work, or
    the work alone. Without it, nobody but a backend can make a collective."""
    boxed = work.boxed()
    return (first, boxed) if len(function._schema.returns) > 1 else boxed


def changes_arguments(function: torch._ops.OpOverload) -> bool:
    """Whether the operator writes into one of its arguments, as in-place operators do. Collectives
    of c10d do not tell. Without it, selective checkpointing keeps a product that is changed in
    place, and changes it a second time."""
    return function._schema.is_mutable


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


class ScalerThatAsks(torch.amp.GradScaler):
    """A GradScaler whose `asked(optimizer, found)` decides whether a step is skipped: found says
    whether this rank has an infinity, or is None where it has no gradient. A step that nobody has
    unscaled leaves fp16 gradients as they are for an optimizer that unscales them itself, by the
    protocol of PyTorch's fused ones. Without it, ranks skip by themselves."""

    def unscale_(self, optimizer):
        self.begin()
        super().unscale_(optimizer)

    def step(self, optimizer, *args, **named):
        self.begin()
        return super().step(optimizer, *args, **named)

    def begin(self):
        if self._scale is None:  # a stage without a loss
            self._lazy_init_scale_growth_tracker(torch.device(self._device))

    def _unscale_grads_(self, optimizer, *args):
        found = super()._unscale_grads_(optimizer, *args)
        flags = [flag.item() for flag in found.values()]
        overflow = self.asked(optimizer, any(flags) if flags else None)
        flag = torch.full((), float(overflow), device=self._scale.device)
        return {flag.device: flag}


# --- torch.compile --------------------------------------------------------------------------------


def generated_code(function: Callable, *inputs) -> str:
    """The code that torch.compile generates for these inputs. Without it, no page and no lab shows
    the loop."""
    from torch._inductor.utils import run_and_get_code  # seconds of imports

    torch.compiler.reset()
    return "\n".join(run_and_get_code(torch.compile(function), *inputs)[1])
