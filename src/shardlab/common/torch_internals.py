"""The private names of PyTorch that techniques use: a new version may move or drop them without
notice. No other file of shardlab uses one; ranklab/torch_internals.py has those of the bench.

Each entry says its purpose and what breaks without it, so a release that moves a name needs a
repair here and nowhere else. Tested with torch 2.8 and 2.13.
"""

import functools
from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch._guards import active_fake_mode as active_fake_mode
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch.autograd.graph import increment_version
from torch.nn.attention import SDPBackend
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

    module._get_total_norm = total_norm
    torch.nn.utils.get_total_norm = told_first(total_norm, asked)
    module._clip_grads_with_norm_ = torch.nn.utils.clip_grads_with_norm_ = told_first(clip, seen)


def watch_value_clipping(seen: Callable[[list[Tensor]], None]) -> None:
    """torch.nn.utils.clip_grad_value_ calls `seen(parameters)` first, also for whoever has imported
    it before. Without it, stage 1 clips gradients before they are averaged, and stage 2 none."""
    public = torch.nn.utils.clip_grad.clip_grad_value_
    original = public.__wrapped__
    (inside,) = (cell for cell in public.__closure__ if cell.cell_contents is original)
    inside.cell_contents = told_first(original, seen)


def told_first(function: Callable, told: Callable[[list[Tensor]], None]) -> Callable:
    """The function of tensors, or of one; told(tensors) is called first. Without it, a generator of
    parameters is empty when the function gets it."""

    @functools.wraps(function)
    def call(tensors, *args, **named):
        tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        told(tensors)
        return function(tensors, *args, **named)

    return call


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


# --- tensors, storages, modules -------------------------------------------------------------------


def version(tensor: Tensor) -> int:
    """How often the tensor was written in place. Without it, stage 3 gathers unchanged weights
    again."""
    return tensor._version


ATTRIBUTES = (
    "shape dtype device layout ndim requires_grad is_leaf grad grad_fn nbytes itemsize is_meta"
    " is_cpu is_cuda is_sparse is_quantized is_nested names"
    " _version _post_accumulate_grad_hooks _backward_hooks"
)
METHODS = (
    "size stride dim ndimension numel nelement element_size is_floating_point is_complex is_signed"
    " is_contiguous __len__ __hash__ get_device"
)
# functions that use a tensor and none of its values. Without it, the shape of a parameter that is
# gone is not known, zero_grad() and the hooks of parameters wait for values that are on their way,
# and nothing overlaps
READ_NO_VALUES = {
    *(getattr(Tensor, name).__get__ for name in ATTRIBUTES.split() if hasattr(Tensor, name)),
    *(getattr(Tensor, name) for name in METHODS.split()),
    *(torch.is_floating_point, torch.is_complex, torch.numel),
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


def is_fake(tensor: Tensor) -> bool:
    """Whether the tensor has a shape and no contents. Without it, virtual ranks cannot tell their
    messages from those that are sent."""
    return isinstance(tensor, FakeTensor)


def disable_modes():
    """A context in which no dispatch mode sees an operation. Without it, an account of CUDA memory
    appears in the ledger it explains."""
    return _disable_current_modes()


# --- operators ------------------------------------------------------------------------------------


def argument_names(function: torch._ops.OpOverload) -> list[str]:
    """The names of an operator's arguments, in order. Without it, the log must know them by number,
    which differs between versions."""
    return [argument.name for argument in function._schema.arguments]


# operators that write their first tensor and do not read it
ONLY_WRITTEN = {"copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_"}


def written_arguments(function: torch._ops.OpOverload, given: dict) -> list:
    """The arguments that the operator writes into, of those given by name. A fused optimizer writes
    gradients where it unscales them alone. Without it, a virtual GPU counts reads alone."""
    known = {argument.name: argument.alias_info for argument in function._schema.arguments}
    kept = {"grads"} if given.get("grad_scale") is None else set()
    return [given[name] for name in given.keys() - kept if known[name] and known[name].is_write]


def changes_arguments(function: torch._ops.OpOverload) -> bool:
    """Whether the operator writes into one of its arguments, as in-place operators do. Collectives
    of c10d do not tell. Without it, selective checkpointing keeps a product that is changed in
    place, and changes it a second time."""
    return function._schema.is_mutable
