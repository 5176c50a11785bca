"""The stored traces of the book, and how each is made: `python tools/store_traces.py [NAME ...]`.

Those in virtual time are the same on every machine. The CPU's is read off a clock, and says on
which kind of machine.
"""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import torch
import torch.distributed as dist

from coursekit.lab import batches, small_gpt
from coursekit.lab.virtual import (
    VIRTUAL_SIZES,
    even_layers,
    gpt_in_bf16,
    recorded_gpu,
    virtual_gpu,
    virtual_step,
)
from ranklab.measure.profile import profiled_steps
from ranklab.measure.slim_trace import ALL_KINDS, SlimSpan, SlimTrace, SpanKind
from ranklab.ranks import ranks
from ranklab.virtual import VirtualGPU, VirtualStep
from ranklab.virtual.clock import VirtualClock
from ranklab.virtual.memory import FROM_THE_HOST, TO_THE_HOST
from shardlab import zero
from shardlab.data_parallel import DistributedDataParallel
from shardlab.gpt import GPT, next_token_loss
from shardlab.pipelines.hardened.pipeline import Pipeline
from shardlab.pipelines.partition import plan_pipeline
from shardlab.pipelines.schedules import Schedule, interleaved, one_f_one_b
from shardlab.recompute.layers import checkpoint_every
from shardlab.recompute.offload import offload_activations
from shardlab.tensor_parallel import (
    apply_tensor_parallel,
    gpt_plan,
    overlapped,
    vocabulary_parallel_loss,
)

FOLDER = Path(__file__).parents[2] / "data" / "traces"
JOINED = 20_000  # nanoseconds between kernels of several ranks that are drawn as one
STRAGGLER, SLOWER = 5, 0.8  # the rank whose GPU has this share of the others' rates


def _data_parallel(model: GPT, overlap=True):
    replica = DistributedDataParallel(model, overlap=overlap)
    return replica, torch.optim.AdamW(model.parameters(), fused=True)


def _offloaded(model: GPT, again: bool):
    if again:
        model.blocks = checkpoint_every(model.blocks, 1)
    return offload_activations()(model.forward), torch.optim.AdamW(model.parameters(), fused=True)


def _stage_3(model: GPT, prefetch: bool):
    units = [model.embedding, *model.blocks, model.head]
    adam = dict(stage=3, units=units, prefetch=prefetch, fused=True)
    return zero.shard(model, torch.optim.AdamW, **adam)


def _tensor_parallel(model: GPT, chunks=0):
    plan = gpt_plan(model.config)
    model = apply_tensor_parallel(model, overlapped(plan, chunks) if chunks else plan)
    return model, torch.optim.AdamW(model.parameters(), fused=True)


def loss_of_parts(scores, targets):
    return vocabulary_parallel_loss(scores, targets, VIRTUAL_SIZES["vocabulary"])


# --- from steps of virtual GPUs -------------------------------------------------------------------


def from_virtual(steps: Mapping[str, object], title: str = "") -> SlimTrace:
    """The trace of steps of virtual GPUs, of one rank or of several: name of the rank -> step."""
    trace, lanes, names = SlimTrace(title, unit=1e-9), {}, {}
    for rank, step in steps.items():
        before = f"{rank}, " if rank else ""
        lanes.setdefault(f"{before}compute", len(lanes))
        for span in step.spans:
            message = not isinstance(span.stream, str)
            lane = before + ("messages" if message else span.stream)
            kind = SpanKind.MESSAGE if message else SpanKind(span.phase or "forward")
            if not message and span.name in (TO_THE_HOST, FROM_THE_HOST):
                lane, kind = before + "copies", SpanKind.COPY
            trace.spans.append(
                SlimSpan(
                    lanes.setdefault(lane, len(lanes)),
                    span.start,
                    span.end - span.start,
                    names.setdefault(span.name, len(names)),
                    ALL_KINDS.index(kind),
                )
            )
    trace.lanes, trace.names = list(lanes), list(names)
    trace.spans.sort()
    return trace


def joined_spans(trace: SlimTrace, nearer: int) -> SlimTrace:
    """The trace with neighbours of one lane and kind, less than so many units apart, as one span
    that has the kind's name."""
    found: list[SlimSpan] = []
    for span in sorted(trace.spans):
        named = span._replace(name=span.kind, launch=-1)
        last = found[-1] if found else None
        if last and (last.lane, last.kind) == (span.lane, span.kind):
            if span.start - last.end < nearer:
                found[-1] = last._replace(length=max(last.end, span.end) - last.start)
                continue
        found.append(named)
    return dataclasses.replace(trace, names=list(trace.kinds), spans=found)


# --- several ranks, each with a clock of its own --------------------------------------------------


def _on_ranks(count: int, function: Callable[[], VirtualStep], title: str) -> SlimTrace:
    with ranks(count, device="cpu", announce=False) as world:
        steps = world.run(function)
    steps = {f"rank {rank}": step for rank, step in enumerate(steps)}
    return joined_spans(from_virtual(steps, title), JOINED)


def step_of_a_stage(schedule: Callable[[int, int], Schedule]) -> VirtualStep:
    with virtual_gpu() as gpu:
        layers = even_layers(gpt_in_bf16(vocabulary=2048, layers=8))
        tokens = torch.zeros(8, 2048, dtype=torch.long)
        pipeline = Pipeline(layers, plan_pipeline(layers, schedule(4, 8), tokens), next_token_loss)
        pipeline.step(tokens, tokens)
        with gpu.step() as step:
            pipeline.step(tokens, tokens)
    return step


def step_of_a_replica() -> VirtualStep:
    chip = recorded_gpu("H100 SXM 80GB")
    share = SLOWER if dist.get_rank() == STRAGGLER else 1.0
    chip = dataclasses.replace(
        chip,
        flops_per_second={d: share * rate for d, rate in chip.flops_per_second.items()},
        memory_bytes_per_second=share * chip.memory_bytes_per_second,
    )
    with VirtualGPU(chip) as gpu:
        model, optimizer = _data_parallel(gpt_in_bf16(layers=2, vocabulary=2048))
        tokens = torch.zeros(2, 2048, dtype=torch.long)
        with gpu.step() as step:
            next_token_loss(model(tokens), tokens).backward()
            optimizer.step()
    return step


# --- a host and its GPU, with each launch ---------------------------------------------------------


def queue_and_read() -> SlimTrace:
    """Long kernels and short ones from a host that is ahead, and short ones after a read."""
    clock = VirtualClock()
    names = ["launch", "product", "add", ".item()"]
    trace = SlimTrace("a queue, and a read", unit=1e-9, lanes=["host", "GPU"], names=names)

    def add(lane, start, end, name, kind, launch=-1):
        number = ALL_KINDS.index(kind)
        trace.spans.append(SlimSpan(lane, start, end - start, names.index(name), number, launch))
        return len(trace.spans) - 1

    def launched():
        start = clock.host
        clock.launch(5_000)
        return add(0, start, clock.host, "launch", SpanKind.LAUNCH)

    def run(count, name, kind, nanoseconds):
        for _ in range(count):
            launch = launched()
            end = clock.work("compute", name, nanoseconds)
            add(1, end - nanoseconds, end, name, kind, launch)

    run(3, "product", SpanKind.BACKWARD, 20_000)
    run(6, "add", SpanKind.UPDATE, 4_000)
    launched()
    asked = clock.host
    clock.synchronize("compute")
    add(0, asked, clock.host, ".item()", SpanKind.WAIT)
    run(6, "add", SpanKind.UPDATE, 4_000)
    return trace


# --- off a clock ----------------------------------------------------------------------------------


@contextmanager
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def step_on_a_cpu(title: str) -> SlimTrace:
    """A step of the labs' GPT, with a loss that is read: the fastest of some."""
    trace = min((_trace_on_a_cpu() for _ in range(9)), key=lambda trace: trace.seconds)
    return dataclasses.replace(trace, title=title, machine="one thread of a CPU in the cloud")


def _trace_on_a_cpu() -> SlimTrace:
    with one_thread(), profiled_steps(steps=1, stop=True) as found:
        model = small_gpt()
        optimizer = torch.optim.AdamW(model.parameters())
        for inputs, targets in batches(8):
            optimizer.zero_grad()
            loss = next_token_loss(model(inputs), targets)
            loss.backward()
            loss.item()
            optimizer.step()
    return found.trace


def of_step(cut, title: str, **more) -> SlimTrace:
    return from_virtual({"": virtual_step(cut, **more)}, title)


# --- a rehearsal, in a process of its own ---------------------------------------------------------


def of_rehearsal(script: str, *arguments: str) -> SlimTrace:
    """A step of one of the repository's examples on eight H100s, from what --trace writes."""
    path = Path(__file__).parents[4] / "examples" / script
    with TemporaryDirectory() as folder:
        file = Path(folder, "trace.json")
        command = [sys.executable, "-m", "shardlab", "rehearse", "--gpus", "8"]
        command += ["--trace", str(file), str(path), *arguments]
        subprocess.run(command, check=True, capture_output=True)
        events = json.loads(file.read_text(encoding="utf-8"))
    lanes = {one["tid"]: one["args"]["name"] for one in events if one["ph"] == "M"}
    spans = [
        SimpleNamespace(
            stream=lane if not lane.startswith("messages") else (lane,),
            name=one["name"],
            phase=one["cat"],
            start=round(1e3 * one["ts"]),
            end=round(1e3 * (one["ts"] + one["dur"])),
        )
        for one in events
        if one["ph"] == "X" and (lane := lanes[one["tid"]])
    ]
    return from_virtual({"": SimpleNamespace(spans=spans)}, f"{script}, rank 0 of 8")


_WIDE = dict(loss=loss_of_parts, sizes=dict(hidden=8192, heads=64, layers=2))
VIRTUAL = {
    "queue": queue_and_read,
    "data-parallel": partial(of_step, _data_parallel, "data parallelism"),
    "data-parallel-after": partial(
        of_step, partial(_data_parallel, overlap=False), "data parallelism, after backward"
    ),
    "offload": partial(of_step, partial(_offloaded, again=False), "all activations copied"),
    "offload-inputs": partial(of_step, partial(_offloaded, again=True), "inputs copied"),
    "zero-3": partial(of_step, partial(_stage_3, prefetch=False), "stage 3"),
    "zero-3-prefetch": partial(of_step, partial(_stage_3, prefetch=True), "stage 3, prefetch"),
    "tensor-parallel": partial(of_step, _tensor_parallel, "tensor parallelism", loss=loss_of_parts),
    "tensor-parallel-wide": partial(of_step, _tensor_parallel, "tensor parallelism", **_WIDE),
    "tensor-parallel-chunks": partial(
        of_step, partial(_tensor_parallel, chunks=4), "tensor parallelism, 4 chunks", **_WIDE
    ),
    "pipeline": partial(_on_ranks, 4, partial(step_of_a_stage, one_f_one_b), "1F1B"),
    "pipeline-interleaved": partial(
        _on_ranks, 4, partial(step_of_a_stage, interleaved), "interleaved 1F1B"
    ),
    "own-run": partial(of_rehearsal, "train_fsdp2.py", "--bf16"),
    "eight-ranks": partial(_on_ranks, 8, step_of_a_replica, "data parallelism, eight ranks"),
}
TRACES = {"cpu-step": partial(step_on_a_cpu, "a step of the labs' GPT"), **VIRTUAL}
