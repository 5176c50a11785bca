"""CUDA that is not there, to all of PyTorch: the private names that rehearsals alone use. Each
entry says what breaks without it, as in ranklab/torch_internals.py.
"""

import ctypes
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from shardlab.common.torch_internals import (
    FUSED_ATTENTION,
    FakeTensor,
    FakeTensorMode,
    disable_modes,
    storage_key,
)

from ..torch_internals import ModeWithoutDevice

TAKES_ONE = hasattr(torch._C, "_acc") and sys.platform != "win32"  # torch 2.11


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
    if not TAKES_ONE:
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
    if not torch.backends.cuda.is_built():
        _one_kernel.impl("silu_backward", print, "CUDA")  # which is never called
    # transformers asks by this name whether it is traced, and then gives attention a whole mask
    torch._subclasses.FakeTensor = type("NoTensor", (), {})
    torch.amp.GradScaler._maybe_opt_step = step_that_finds_no_infinity
    return ModeWithoutDevice(allow_non_fake_inputs=True)


CUDA, PRIVATE_USE = 1, 20  # numbers of devices in C++
TABLE_METHODS = 64  # of a table in C++, at most
GUARDS = "_ZN3c104impl26device_guard_impl_registryE"
_answers: list = []  # what C++ calls, kept alive
# of a gradient. Without it, C++ takes that of silu apart where the build has no kernel for CUDA
_one_kernel = torch.library.Library("aten", "IMPL")


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


def type_of_outputs() -> None:
    """An output of a pipeline's stage is a plain tensor, in the module that asks for its type.
    Without it, stages of PyTorch 2.15 keep what they have sent."""
    if stage := sys.modules.get("torch.distributed.pipelining.stage"):
        stage.type = lambda one: Tensor if isinstance(one, FakeTensor) else type(one)


# the functions by which tensors leave the host. Without them, a copy to the GPU takes no time
COPY_OPERATORS = torch.ops.aten._to_copy, torch.ops.aten.copy_
