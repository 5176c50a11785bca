"""The slim trace of what PyTorch's profiler saves: thousands of events in the format of Chrome.

    trace = from_chrome(json.loads(path.read_text())["traceEvents"])

Of each thread it keeps the outermost operators, the loader's waits and, of the calls of CUDA, those
that launch, copy or wait; of each GPU all kernels and copies. A kernel knows the call that launched
it.
"""

import re
from collections.abc import Iterable

from .slim_trace import ALL_KINDS, SlimSpan, SlimTrace, SpanKind

READERS = {f"aten::{name}" for name in "item is_nonzero nonzero masked_select equal".split()}
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
RUNTIME = ("cuda_runtime", "cuda_driver")
UPDATES, NAMES_OF_MESSAGES = ("Optimizer.step", "Optimizer.zero_grad"), ("c10d::", "gloo:", "nccl:")
LAUNCHES = "Launch|^cuda(Memcpy|Memset)"
RUNTIME_WAITS = ("Synchronize", "cudaMalloc", "cudaFree", "cudaHostAlloc")


def from_chrome(
    events: Iterable[dict], begin: float | None = None, end: float | None = None, title: str = ""
) -> SlimTrace:
    """The trace of the events of a Chrome trace that begin between these two of its microseconds;
    kernels count with their launch."""
    whole = [e for e in events if e.get("ph") == "X" and "dur" in e]
    whole.sort(key=lambda e: (e["ts"], -e["dur"]))
    sections = [e for e in whole if e.get("cat") == "user_annotation"]
    updates = [(e["ts"], e["ts"] + e["dur"]) for e in sections if e["name"].startswith(UPDATES)]
    kept: list[tuple[str, str, dict]] = []  # lane, kind, event
    launches: dict[int, tuple[str, int]] = {}  # correlation -> phase, place in kept
    done: dict[tuple, float] = {}  # thread -> end of its latest outermost operator
    phase: dict[tuple, str] = {}

    def inside(event):
        return (begin is None or event["ts"] >= begin) and (end is None or event["ts"] < end)

    for event in whole:
        thread, category, name = (event["pid"], event["tid"]), event.get("cat"), event["name"]
        correlation = event.get("args", {}).get("correlation")
        if category == "user_annotation" and name.startswith("enumerate(DataLoader)"):
            kind = SpanKind.LOADER
        elif category == "cpu_op" and event["ts"] >= done.get(thread, 0):
            done[thread] = event["ts"] + event["dur"]
            kind = phase[thread] = phase_of(event, updates)
            kind = SpanKind.WAIT if name in READERS and kind != SpanKind.UPDATE else kind
            kind = SpanKind.MESSAGE if name.startswith(NAMES_OF_MESSAGES) else kind
        elif category in RUNTIME and any(part in name for part in RUNTIME_WAITS):
            kind = SpanKind.WAIT
        elif category in RUNTIME and correlation is not None and re.search(LAUNCHES, name):
            kind = SpanKind.LAUNCH
            if inside(event):
                within = done.get(thread, 0) > event["ts"]
                outer = phase.get(thread) if within else None
                launches[correlation] = outer or SpanKind.FORWARD, len(kept)
        else:
            continue
        if inside(event):
            calls = " calls" if category in RUNTIME else ""
            kept.append((f"thread {event['tid']}{calls}", kind, event))
    for event in whole:
        correlation = event.get("args", {}).get("correlation")
        if event.get("cat") in ON_GPU and (correlation in launches or not launches):
            kind, _ = launches.get(correlation, (SpanKind.FORWARD, -1))
            kind = SpanKind.COPY if event["cat"] != "kernel" else kind
            kind = SpanKind.MESSAGE if "nccl" in event["name"].lower() else kind
            kept.append((f"GPU {event['pid']}, stream {event['tid']}", kind, event))
    return _numbered(kept, launches, begin, title)


def _numbered(kept, launches, begin, title) -> SlimTrace:
    first = begin if begin is not None else min((e["ts"] for *_, e in kept), default=0)
    lanes = {lane: number for number, lane in enumerate(sorted({lane for lane, *_ in kept}))}
    threads = [lane for lane in lanes if lane.startswith("thread")]
    names: dict[str, int] = {}
    spans = []
    for lane, kind, event in kept:
        correlation = event.get("args", {}).get("correlation")
        launch = launches.get(correlation, ("", -1))[1] if lane.startswith("GPU") else -1
        name = names.setdefault(short_name(event["name"]), len(names))
        start, stop = (round(10 * (t - first)) for t in (event["ts"], event["ts"] + event["dur"]))
        spans.append(
            SlimSpan(lanes[lane], start, stop - start, name, ALL_KINDS.index(kind), launch)
        )
    order = sorted(range(len(spans)), key=spans.__getitem__)
    place = {old: new for new, old in enumerate(order)} | {-1: -1}
    spans = [spans[old]._replace(launch=place[spans[old].launch]) for old in order]
    shown = ["host" if [lane] == threads else lane for lane in lanes]  # the only thread
    return SlimTrace(title, "", 1e-7, shown, list(names), spans)


def phase_of(event: dict, updates: list[tuple[float, float]]) -> str:
    if any(start <= event["ts"] < end for start, end in updates):
        return SpanKind.UPDATE
    return SpanKind.BACKWARD if event["name"].startswith("autograd::engine") else SpanKind.FORWARD


def short_name(name: str) -> str:
    """The name of an operator without its namespace, and of a kernel without its templates."""
    for before in ("autograd::engine::evaluate_function: ", "torch::autograd::", "aten::"):
        name = name.removeprefix(before)
    name = name.removeprefix("void ").split("<")[0].split("(anonymous")[0]
    return name.split("(")[0][:48] or "kernel"
