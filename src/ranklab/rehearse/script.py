"""A rehearsal: a script's own steps on a GPU that is not there, until two of them are known.

found = rehearse(Path("train.py"), ["--lr", "0.1"], h100, card_bytes, folder, ranks=64)
print(found.step)
"""

import gc
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ranklab.measure.profile import EnoughSteps, as_called
from ranklab.measure.waits import Wait, user_frame
from ranklab.virtual import GPU, NoContents, VirtualStep
from shardlab.common.shards import groups_of
from shardlab.common.torch_internals import tree_leaves

from .cuda import install, same_batch
from .gpu import IN_BACKWARD, CannotRehearse, MadeStorage, RehearsedGPU
from .stand_in import stand_in_for_cuda, type_of_outputs
from .writes import link_entries, saved_without, writes_stay_in

REHEARSED_STEPS = 3  # the first warms up
# in a call of PyTorch
BELOW = ("_subclasses", "utils", "_ops.py", "_compile.py", "_dynamo", "ranklab")


class TooLong(BaseException):
    """The script has had its time; no handler of Exception catches it."""


@dataclass
class Rehearsal:
    """The last step of a rehearsal. `fullest` are the storages at its peak."""

    step: VirtualStep
    fullest: list[tuple[MadeStorage, int]]  # and their bytes
    waits: dict[Wait, int]  # how often, in the step
    memory_bytes: int  # of the card, beside its context
    card_bytes: int
    sharded: bool  # whether ranks share the parameters
    shared_states: bool  # whether they share the optimizer's states
    grouped: bool  # whether the script has a process group
    compiles: bool = False  # whether it calls torch.compile
    reserved_bytes: int = 0  # by the allocator
    nccl_bytes: int = 0

    @property
    def peak_bytes(self) -> int:
        return self.step.peak_bytes

    @property
    def free_bytes(self) -> int:
        return self.memory_bytes - self.peak_bytes - self.nccl_bytes

    @property
    def fits(self) -> bool:
        return self.free_bytes >= 0

    @property
    def of_batch(self) -> int:
        """Bytes at the peak that a smaller microbatch may make smaller: not the update's."""
        kinds = "activations", "temporaries"
        return sum(n for one, n in self.fullest if one.purpose in kinds and one.phase != "update")

    def by_purpose(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for storage, size in self.fullest:
            found[storage.purpose] = found.get(storage.purpose, 0) + size
        return found

    def largest_lines(self) -> dict[str, str]:
        """The line that made the largest storage of each purpose, and what it says."""
        rising = sorted(self.fullest, key=lambda one: one[1])
        return {storage.purpose: words_of_line(storage.line) for storage, _ in rising}

    def lines_of_waits(self) -> list[tuple[str, int]]:
        """The lines at which the host waits, and how often, the most first."""
        rising = sorted(self.waits.items(), key=lambda one: -one[1])
        return [(words_of_line(line), count) for line, count in rising]

    def as_json(self) -> dict:
        return dict(
            fits=self.fits,
            peak_bytes=self.peak_bytes,
            reserved_bytes=self.reserved_bytes,
            nccl_bytes=self.nccl_bytes,
            memory_bytes=self.memory_bytes,
            card_bytes=self.card_bytes,
            free_bytes=self.free_bytes,
            compiles=self.compiles,
            bytes=self.by_purpose(),
            of_batch=self.of_batch,
            lines=self.largest_lines(),
            seconds=self.step.seconds,
            parts=dict(self.step.rows()),
            launches=self.step.launches,
            host_waits=[[wait.place, wait.source, n] for wait, n in self.waits.items()],
        )


def words_of_line(line: Wait) -> str:
    return line.file if line.file == IN_BACKWARD else f"{line.place}: {line.source}"


class ScriptSteps:
    """The steps of a script: a step is what lies between two updates of the first optimizer that
    makes one."""

    def __init__(self, gpu: RehearsedGPU):
        self.gpu, self.optimizer, self.done, self.open = gpu, None, 0, ExitStack()
        self.step: VirtualStep | None = None

    def begins_update(self, optimizer, *_):
        if isinstance(optimizer, torch.optim.LBFGS):
            raise CannotRehearse("LBFGS goes on or ends by values, which a rehearsal does not have")
        held = [p for group in optimizer.param_groups for p in group["params"]]
        self.gpu.memory.are("parameters", held)
        self.gpu.memory.are("gradients", [p.grad for p in held if p.grad is not None])

    def begins_microbatch(self):
        """The next backward adds to these gradients, in new storages."""
        if self.optimizer is not None:
            self.begins_update(self.optimizer)

    def ends_update(self, optimizer, *_):
        states = [leaf for state in optimizer.state.values() for leaf in tree_leaves(state)]
        self.gpu.memory.are("optimizer", [one for one in states if isinstance(one, Tensor)])
        self.optimizer = self.optimizer or optimizer
        if optimizer is not self.optimizer:
            return
        self.open.close()
        self.done += 1
        if self.done == REHEARSED_STEPS:
            self.gpu.memory.are("parameters", parameters())
            raise EnoughSteps
        type_of_outputs()  # of modules that the script has imported by now
        self.gpu.memory.begin(self.done)
        self.gpu.clock.lines.clear()
        self.step = self.open.enter_context(self.gpu.step())


def those_of(kind: type) -> list:
    """All objects of this kind in this process."""
    return [one for one in gc.get_objects() if issubclass(type(one), kind)]


def parameters() -> list[Tensor]:
    """Parameters of all modules of this process, frozen ones too."""
    modules = those_of(nn.Module)
    return [parameter for module in modules for parameter in module.parameters(recurse=False)]


def rehearse(
    script: Path,
    arguments: list[str],
    gpu: GPU,
    card_bytes: int,
    folder: Path,
    ranks: int = 1,
    rank: int = 0,
    per_node: int = 8,
    seconds: float = 300,
    synthetic: bool = False,
    module: bool = False,
    nccl_bytes: Callable[[int, bool], int] = lambda groups, exchanges: 0,
) -> Rehearsal:
    """Run the script, or the module of this name, as one of so many ranks; this process is good for
    nothing else afterwards. The script works in `folder`, which is empty. `nccl_bytes` tells NCCL's
    buffers for so many groups of ranks, some of which may exchange all with all. Raises
    CannotRehearse, one sentence with a line of the script."""
    virtual = RehearsedGPU(gpu, stand_in_for_cuda())
    install(virtual, card_bytes, ranks, rank, per_node)
    torch.save = saved_without
    steps = ScriptSteps(virtual)
    os.environ.update(environment(ranks, rank, per_node))
    with ExitStack() as entered:
        entered.enter_context(as_started(script, arguments, folder))
        entered.enter_context(time_limit(seconds))
        if synthetic:
            entered.enter_context(same_batch())
        entered.callback(register_optimizer_step_pre_hook(steps.begins_update).remove)
        virtual.memory.after_backward = steps.begins_microbatch
        entered.enter_context(virtual)
        entered.enter_context(evaluated_once(lambda: steps.done == 0))
        entered.callback(register_optimizer_step_post_hook(steps.ends_update).remove)
        run_rehearsed(script, steps, seconds, module)
    fullest = virtual.memory.fullest()
    if not (steps.step.launches and fullest):
        raise CannotRehearse(
            f'{script.name} computed nothing on the GPU: models and batches go there by .to("cuda")'
        )
    for storage, _ in fullest:
        storage.purpose = storage.purpose or purpose_by_birth(storage, steps.done - 1)
    held = [one for group in steps.optimizer.param_groups for one in group["params"]]
    sharded = any(isinstance(one, DTensor) for one in held) or bool(those_of(FSDP))
    optim = sys.modules.get("torch.distributed.optim")  # which takes long to import
    divided = bool(optim and those_of(optim.ZeroRedundancyOptimizer))
    shared = sharded or divided or any(map(groups_of, held))
    grouped, used = torch.distributed.is_initialized(), virtual.messages.used
    exchanges = any(carried == "all_to_all" for _, carried in used)
    return Rehearsal(
        steps.step,
        fullest,
        dict(virtual.clock.lines),
        gpu.memory_bytes,
        card_bytes,
        sharded,
        shared,
        grouped,
        virtual.compiles,
        virtual.memory.reserved.peak,
        nccl_bytes(len({group for group, _ in used}), exchanges),
    )


def purpose_by_birth(storage: MadeStorage, step: int) -> str:
    if storage.step < step:
        return "buffers and messages"
    return "activations" if storage.phase == "forward" else "temporaries"


def run_rehearsed(script: Path, steps: ScriptSteps, seconds: float, module: bool):
    try:
        if module:
            runpy.run_module(script.name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(str(script), run_name="__main__")
    except EnoughSteps:
        return
    except TooLong as late:
        raise CannotRehearse(
            f"{late} ran when {seconds:g} seconds were over, after {steps.done} updates: a smaller"
            " model or batch shows the same, or --seconds gives it longer"
        ) from None
    except SystemExit as left:
        if left.code not in (None, 0):
            raise CannotRehearse(f"{script.name} left with exit code {left.code}") from None
    except (NoContents, CannotRehearse) as needs:
        said = f"{line_of(script, needs)}: {needs}".rstrip(".")
        raise CannotRehearse(
            f"{said}: leave it out of the first {REHEARSED_STEPS} steps"
        ) from needs
    except Exception as error:
        raise CannotRehearse(said_of_fault(script, error)) from error
    raise CannotRehearse(
        f"{script.name} ended after {steps.done} updates of an optimizer, and"
        f" {REHEARSED_STEPS} are wanted: let it train longer, and call the optimizer's step()"
    )


def said_of_fault(script: Path, error: Exception) -> str:
    said = str(error).strip().partition("\n")[0][:300]
    if isinstance(error, SyntaxError):
        return f"{Path(error.filename or script).name}:{error.lineno}: SyntaxError: {error.msg}"
    if "device_ready_queues_" in said:
        said = "a second GPU in one process, and a rehearsal is a process with one GPU"
    if "from the 'CUDA' backend" in said or "Found no NVIDIA driver" in said:
        frames = traceback.extract_tb(error.__traceback__)
        called = [one.line for one in frames if not set(BELOW) & set(Path(one.filename).parts)]
        said = f"PyTorch's kernel needs the contents of its tensors in `{called[-1]}`"
        return f"{line_of(script, error)}: {said}"
    if "CUDA driver version is insufficient" in said:  # in C++, which nobody replaces
        said = "it asks CUDA for a driver: rehearse it with PyTorch's build for the CPU"
    return f"{line_of(script, error)}: {type(error).__name__}: {said}"


def line_of(script: Path, error: BaseException) -> str:
    """The innermost line of the script itself, or of a file beside it."""
    folder, found = str(script.resolve().parent), f"{script.name}:1"
    for frame in traceback.extract_tb(error.__traceback__):
        path = os.path.abspath(frame.filename)
        own = path.startswith(folder) and "site-packages" not in path
        if own and not frame.filename.startswith("<"):
            found = f"{Path(path).name}:{frame.lineno}"
    return found


def environment(ranks: int, rank: int, per_node: int) -> dict[str, str]:
    """The variables that torchrun gives to a rank. Each but the first sees its own GPU alone."""
    return dict(
        RANK=f"{rank}",
        LOCAL_RANK="0",
        WORLD_SIZE=f"{ranks}",
        LOCAL_WORLD_SIZE=f"{min(ranks, per_node)}",
        GROUP_RANK=f"{rank // per_node}",
        NODE_RANK=f"{rank // per_node}",
        GROUP_WORLD_SIZE=f"{-(-ranks // per_node)}",
        MASTER_ADDR="localhost",
        MASTER_PORT="29500",
        TORCHELASTIC_RUN_ID="rehearsal",
    )


def evaluated_once(now: Callable[[], bool]) -> AbstractContextManager:
    """A context in which a model that is called without gradients again, with inputs of the same
    shapes, gives what it gave before: nothing else could come of it, and many scripts evaluate
    hundreds of batches before their first step."""
    call, known, within = nn.Module.__call__, {}, []

    def once(module, *args, **named):
        if within or torch.is_grad_enabled() or not now():
            known.clear()
            return call(module, *args, **named)
        leaves = tree_leaves((args, named))
        if not all(isinstance(leaf, (Tensor, int, float, str, NoneType)) for leaf in leaves):
            return call(module, *args, **named)
        asked = module, module.training, *(form_of(leaf) for leaf in leaves)
        if asked not in known:
            within.append(module)
            try:
                known[asked] = call(module, *args, **named)
            finally:
                within.pop()
        return known[asked]

    return patch.object(nn.Module, "__call__", once)


def form_of(leaf):
    return (leaf.shape, leaf.dtype, leaf.device) if isinstance(leaf, Tensor) else leaf


@contextmanager
def as_started(script: Path, arguments: list[str], folder: Path) -> Iterator[None]:
    """A context in which the script finds its arguments, its folder, and a working folder that has
    links to everything in the one that it was started from: what it writes does not stay."""
    link_entries(Path.cwd(), folder)
    with as_called(script, arguments), chdir(folder), writes_stay_in(folder):
        yield


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """A context that ends the script where it is when its time is over."""

    def over(number, _):
        frame = user_frame()
        raise TooLong(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")

    before: Callable | int | None = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
