"""Every line of a step at which the host waits for its GPU, found with or without a GPU.

    with HostWaits() as waits:
        train()
    print(waits)                            # 1 x .item()    train.py:31: total += loss.item()

The host runs ahead of a GPU until it needs a value: .item(), a shape that depends on contents, a
copy that is not asynchronous. Where CUDA is there, tensors on it count. Elsewhere the CPU's tensors
stand for them, except those that a GPU's program keeps on the host: what torch.tensor() makes, what
.cpu() returns, and the step counters of an optimizer. Without CUDA .to("cpu") cannot be told from
.to(device), so it is not listed.
"""

import linecache
import sys
import sysconfig
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from traceback import walk_stack
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from ranklab.virtual.operators import tensors_in
from shardlab.common.torch_internals import TorchDispatchMode

OURS = tuple(str(Path(__file__).parents[2] / name) for name in ("ranklab", "shardlab"))
TORCH = str(Path(torch.__file__).parent)
STANDARD = sysconfig.get_paths()["stdlib"]
INSTALLED = sysconfig.get_paths()["purelib"]

READING = {  # operator -> what a program calls it
    "_local_scalar_dense": ".item()",
    "equal": "equal()",
    "nonzero": "nonzero()",
    "masked_select": "masked_select()",
    "_unique2": "unique()",
    "unique_dim": "unique()",
    "unique_consecutive": "unique_consecutive()",
    "bincount": "bincount()",
}
PRINTING = {Tensor.__repr__: "print"}  # no dispatch mode sees what it reads
COPYING = {Tensor.cpu: ".cpu()", Tensor.tolist: ".tolist()"}  # without an operator on the CPU


class Wait(NamedTuple):
    """A line at which the host waits, and for what."""

    cause: str
    file: str
    line: int

    @property
    def place(self) -> str:
        cell = "ipykernel" in self.file
        return f"line {self.line}" if cell else f"{Path(self.file).name}:{self.line}"

    @property
    def source(self) -> str:
        return linecache.getline(self.file, self.line).strip()


class HostWaits(TorchDispatchMode):
    """A context that counts the waits of the host; `found` has them by line."""

    def __init__(self, cuda: bool | None = None):
        """`cuda` says whether tensors on CUDA count, instead of those on the CPU; by default where
        CUDA is there."""
        super().__init__()
        self.cuda = torch.cuda.is_available() if cuda is None else cuda
        self.found: Counter[Wait] = Counter()
        self.on_host = WeakTensorKeyDictionary()
        self.contexts = ExitStack()

    def __enter__(self):
        self.contexts.enter_context(CopiesToHost(self))
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.contexts.close()

    def __torch_dispatch__(self, function, types, args=(), named=None):
        named = named or {}
        given = tensors_in((args, named))
        if (cause := self.cause(function, args, named, given)) is not None:
            self.note(cause)
        result = function(*args, **named)
        if not self.cuda:
            made = function.overloadpacket is torch.ops.aten.lift_fresh
            if made or given and not any(map(self.on_gpu, given)):
                for tensor in tensors_in(result):
                    self.on_host[tensor] = True
        return result

    def cause(self, function, args, named, given) -> str | None:
        """The name of what makes the host wait, or None."""
        name = function.overloadpacket.__name__
        if name in READING:
            return READING[name] if self.on_gpu(args[0]) and not counts_steps(args[0]) else None
        if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            masks = (index for index in args[1] if index is not None)
            by_mask = any(m.dtype in (torch.bool, torch.uint8) and self.on_gpu(m) for m in masks)
            if by_mask and (name == "index" or args[2].numel() != 1):  # one value fills
                return "index by a mask"
        elif name == "repeat_interleave" and named.get("output_size") is None:
            return "repeat_interleave()" if self.on_gpu(given[0]) else None
        elif self.cuda and name in ("_to_copy", "copy_"):
            source = args[-1] if name == "_to_copy" else args[1]
            target = torch.device(named.get("device") or source.device)
            target = args[0].device if name == "copy_" else target
            return self.copy(source, target, named.get("non_blocking") or args[2:] == (True,))
        return None

    def copy(self, source: Tensor, target: torch.device, asynchronous: bool) -> str | None:
        if source.is_cuda == (target.type == "cuda"):
            return None
        if source.is_cuda:
            return None if asynchronous else "copy to the host"
        return None if asynchronous and source.is_pinned() else "copy from the host"

    def on_gpu(self, tensor: Tensor) -> bool:
        return tensor.is_cuda if self.cuda else tensor not in self.on_host

    def note(self, cause: str):
        frame = user_frame()
        self.found[Wait(cause, frame.f_code.co_filename, frame.f_lineno)] += 1

    def total(self) -> int:
        return sum(self.found.values())

    def __str__(self):
        if not self.found:
            return "the host never waits for the GPU"
        counts = {wait: f"{count} x {wait.cause}" for wait, count in self.found.items()}
        wide = max(map(len, counts.values()))
        return "\n".join(
            f"{counts[wait]:{wide}}  {wait.place}: {wait.source}" for wait in self.found
        )


class CopiesToHost(TorchFunctionMode):
    """Copies to the host that no dispatch mode sees."""

    def __init__(self, waits: HostWaits):
        super().__init__()
        self.waits, self.causes = waits, PRINTING if waits.cuda else PRINTING | COPYING

    def __torch_function__(self, function, types, args=(), named=None):
        result = function(*args, **(named or {}))
        if function in self.causes and self.waits.on_gpu(args[0]):
            self.waits.note(self.causes[function])
            if isinstance(result, Tensor):  # as on a GPU, the copy is another tensor
                result = result.clone()
                self.waits.on_host[result] = True
        return result


def counts_steps(tensor: Tensor) -> bool:
    """Whether the tensor is the step counter of an optimizer that is at work."""
    callers = (frame.f_locals.get("self") for frame, _ in walk_stack(sys._getframe(1)))
    optimizer = next((one for one in callers if isinstance(one, Optimizer)), None)
    states = optimizer.state.values() if optimizer and not tensor.is_cuda else ()
    return any(state.get("step") is tensor for state in states)


def user_frame():
    """The innermost call that is neither PyTorch's, nor this package's, nor the standard
    library's."""
    frames = [frame for frame, _ in walk_stack(sys._getframe(1))]

    def is_users(file: str) -> bool:
        library = file.startswith(STANDARD) and not file.startswith(INSTALLED)
        return not (library or file.startswith((*OURS, TORCH, "<frozen", "<__array")))

    return next((one for one in frames if is_users(one.f_code.co_filename)), frames[0])
