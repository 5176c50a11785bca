"""Where the time of a training step goes, for any training loop that calls an optimizer.

    with profiled_steps() as found:
        train()                             # found.wanted steps, or more
    print(found)                            # the budget of a step
    found.save_trace("step.json")           # to open at https://ui.perfetto.dev

A step ends when the optimizer's step() returns. The first steps warm up. A few are timed without
the profiler; in one the operations are counted and the host's waits are found; one warms the
profiler up, and the last ones run under it. The cost of the profiler is the difference in time.

On a GPU the parts are those of its kernels and of the time between them, on a CPU those of the
operators of this process. A loader that is not a DataLoader counts as Python.
"""

import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import mean, median
from unittest.mock import patch

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import profile, record_function, supported_activities

from ranklab.torch_internals import before_a_profiler, profiler_enabled
from ranklab.virtual.operators import multiplied_flops, named_arguments
from shardlab.common.torch_internals import TorchDispatchMode

from .chrome_trace import from_chrome
from .slim_trace import COMPUTES, SpanKind, covered
from .waits import HostWaits

ONE_PROFILER = "and a process has one profiler: leave profiled_steps() or the other one out."
MARK = "shardlab: a step ends"
WIDE = 34  # characters of a row's name
ONE_AT_A_TIME = threading.Lock()  # of this process, as PyTorch's profiler


class NoStep(RuntimeError):
    """The program has too few steps to take one apart: one sentence."""


class ProfilerInUse(RuntimeError):
    """A profiler is at work in this process, and PyTorch has one for all: one sentence."""


class EnoughSteps(BaseException):
    """Ends a program whose steps are known; no handler of Exception catches it."""


class CountedFlops(TorchDispatchMode):
    """Floating-point operations of the matrix products within a context."""

    total = 0

    def __torch_dispatch__(self, function, types, args=(), named=None):
        named = named or {}
        result = function(*args, **named)
        given = named_arguments(function, args, named)
        self.total += multiplied_flops(function.overloadpacket, given, args, named, result)
        return result


class StepBudget:
    """The parts of a step and what was counted in it, once profiled_steps() is over."""

    def __init__(self, steps: int = 5, warm_up: int = 3, peak: float | None = None, stop=False):
        """`peak` is the GPU's rate in floating-point operations a second. With `stop` the program
        ends after the last step that is wanted."""
        if steps < 1 or warm_up < 0:
            raise ValueError(
                f"steps = {steps}, warm_up = {warm_up}: steps must be at least 1, warm_up at least"
                " 0."
            )
        self.steps, self.warm_up, self.peak, self.stop = steps, warm_up, peak, stop
        # (seconds, of which this thread computed) of steps without the profiler, and with it
        self.plain: list[tuple[float, float]] = []
        self.profiled: list[tuple[float, float]] = []
        self.ended, self.optimizer, self.began = 0, None, (0.0, 0.0)
        self.gave_way = False
        self.flops, self.waits, self.trace, self.chrome = CountedFlops(), HostWaits(), None, ""
        self.profiler, self.contexts = profile(activities=supported_activities()), ExitStack()

    @property
    def wanted(self) -> int:
        return self.warm_up + 2 * self.steps + 2

    def ends_step(self, optimizer, *_):
        """Another step is over. Of several optimizers the first one to step counts."""
        self.optimizer = self.optimizer or optimizer
        if optimizer is not self.optimizer or self.ended >= self.wanted:
            return
        spent = tuple(now - then for now, then in zip(clocks(), self.began))
        counted = self.warm_up + self.steps + 1
        if self.warm_up < self.ended + 1 < counted:
            self.plain.append(spent)
        elif self.ended > counted:
            self.profiled.append(spent)
        self.ended += 1
        self.goes_on(self.ended - counted)
        self.began = clocks()

    def goes_on(self, place: int):
        """Begin and end what belongs to a step; in step 0 operations are counted."""
        if self.ended == self.warm_up or place == -1:
            synchronize()
        if place == -1:
            self.contexts.enter_context(self.flops)
            self.contexts.enter_context(self.waits)
        elif place == 0:
            self.contexts.close()
            if profiler_enabled():
                raise ProfilerInUse(f"torch.profiler is at work already, {ONE_PROFILER}")
            self.profiler.start()
            self.contexts.callback(self.profiler.stop)
            self.contexts.enter_context(before_a_profiler(self.gives_way))
        elif place > 0:
            if self.gave_way:
                raise ProfilerInUse(f"torch.profiler began under profiled_steps(), {ONE_PROFILER}")
            if place in (1, self.steps + 1):
                synchronize()
            with record_function(MARK):
                pass
        if self.ended == self.wanted:
            self.contexts.close()
            self.read_trace()
            if self.stop:
                raise EnoughSteps

    def gives_way(self):
        """Ends the profiler before another one begins: the error of the next step is enough."""
        self.gave_way = True
        self.contexts.close()

    def read_trace(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            self.profiler.export_chrome_trace(str(path))
            self.chrome = path.read_text(encoding="utf-8")
        events = json.loads(self.chrome)["traceEvents"]
        marks = [e["ts"] for e in events if e["name"] == MARK and e.get("cat") == "user_annotation"]
        self.trace = from_chrome(events, min(marks), max(marks), "steps under the profiler")
        inside = [e for e in events if min(marks) <= e.get("ts", 0) < max(marks)]
        self.events = round(sum(e.get("ph") == "X" for e in inside) / self.steps)
        self.window = round((max(marks) - min(marks)) / 1e6 / self.trace.unit)

    @property
    def seconds(self) -> float:
        """The mean of the steps without the profiler, as the parts are means: a GPU ends its work
        after the host, and a loader's workers bring several batches at once."""
        return mean(wall for wall, _ in self.plain)

    @property
    def cpu_seconds_of_step(self) -> float:
        """The time that this thread computed, in a step without the profiler."""
        return median(cpu for _, cpu in self.plain)

    @property
    def profiler_seconds(self) -> float:
        """The profiler's own cost in a step: of the thread's time, which no neighbour changes."""
        return median(cpu for _, cpu in self.profiled) - self.cpu_seconds_of_step

    def parts(self) -> dict[str, float]:
        """The parts of a step under the profiler, in seconds; each counts where none before it
        does."""
        trace, gpus = self.trace, self.trace.gpu_lanes()
        on = gpus or range(len(trace.lanes))
        rows = {
            "kernels" if gpus else "operators": trace.of(*COMPUTES, lanes=on),
            "messages that nothing hides": trace.of(SpanKind.MESSAGE, lanes=on),
            "copies that nothing hides": trace.of(SpanKind.COPY, lanes=on),
            "the loader": trace.of(SpanKind.LOADER),
            "the host waits": trace.of(SpanKind.WAIT),
        }
        found, spans, before = {}, [], 0.0
        for name, own in rows.items():
            spans += [(span.start, min(span.end, self.window)) for span in own]
            now = covered(spans)
            found[name] = (now - before) * trace.unit / self.steps
            before = now
        rest = "the GPU idles: Python, launches" if gpus else "Python between operators"
        return found | {rest: (self.window - before) * trace.unit / self.steps}

    def counts(self) -> dict[str, int]:
        """How much of what is in a step."""
        gpus = self.trace.gpu_lanes()
        computing = len(self.trace.of(*COMPUTES, lanes=gpus or None))
        found = {"kernels" if gpus else "operators": round(computing / self.steps)}
        if gpus:
            found["launches"] = round(len(self.trace.of(SpanKind.LAUNCH)) / self.steps)
        return found | {"waits of the host": self.waits.total()}

    def save_trace(self, path: str | Path):
        """Write the whole trace, as the profiler made it."""
        Path(path).write_text(self.chrome, encoding="utf-8")

    def __str__(self):
        whole = self.window * self.trace.unit / self.steps
        lines = [
            f"{name:{WIDE}}{1e3 * seconds:10.2f} ms{seconds / whole:8.1%}"
            for name, seconds in self.parts().items()
            if seconds > 0.0005 * whole
        ]
        lines.append(f"{'a step under the profiler':{WIDE}}{1e3 * whole:10.2f} ms")
        lines.append(f"{'a step without it':{WIDE}}{1e3 * self.seconds:10.2f} ms")
        lines.append(f"{'the profiler adds':{WIDE}}{1e3 * self.profiler_seconds:10.2f} ms")
        rate = self.flops.total / self.seconds
        used = f"{rate / self.peak:.1%} of the peak (MFU)" if self.peak else "peak not given"
        lines.append(f"{self.flops.total:.3g} operations, {rate:.3g} a second: {used}")
        counts = ", ".join(f"{name} {count:,}" for name, count in self.counts().items())
        places = str(self.waits).splitlines() if self.waits.total() else []
        return "\n".join([*lines, f"counted in one step: {counts}", *places])


@contextmanager
def profiled_steps(
    steps: int = 5, warm_up: int = 3, peak: float | None = None, stop: bool = False
) -> Iterator[StepBudget]:
    """Take apart the steps of what runs within; raises NoStep if there are too few."""
    found = StepBudget(steps, warm_up, peak, stop)
    if not ONE_AT_A_TIME.acquire(blocking=False):
        raise ProfilerInUse(
            "profiled_steps() is at work in this process: let it end before another one begins."
        )
    handle = register_optimizer_step_post_hook(found.ends_step)
    try:
        yield found
    except EnoughSteps:
        pass
    finally:
        handle.remove()
        found.contexts.close()
        ONE_AT_A_TIME.release()
    if found.ended < found.wanted:
        raise NoStep(
            f"an optimizer's step() was called {found.ended} times, and {found.wanted} steps are"
            f" wanted ({warm_up} to warm up, {steps} timed, 2 between, {steps} profiled): train"
            " longer, or ask for fewer."
        )


@contextmanager
def as_called(script: Path, arguments: list[str]) -> Iterator[None]:
    """A context in which a script finds its arguments and its folder, as Python starts it."""
    path = [str(script.resolve().parent), *sys.path]
    with patch.object(sys, "argv", [str(script), *arguments]), patch.object(sys, "path", path):
        yield


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.thread_time()


def synchronize():
    if torch.cuda.is_available():
        torch.cuda.synchronize()
