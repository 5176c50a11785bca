"""Recordings of `make gpu` and races of `make bench` for precision policies: time, bytes and loss
of each, and master weights with this book's scaler beside torch.amp with GradScaler on the same
model.

A policy that the device cannot run leaves a row that says why. fp8 runs for real where a GPU has
units for it.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from coursekit.formulas import evaluate
from coursekit.machine.units import UNITS_SINCE, CannotCompute, check_precision, has_units
from coursekit.recordings import busy_gpu, races
from coursekit.recordings.attempts import attempt
from coursekit.recordings.races import TASKS, TINY, TURNS, Bench, Result, Run, gpu_task
from coursekit.recordings.recordings import Row
from coursekit.topics.mixed_precision.gradients import GRADIENT_RUN
from ranklab.measure.clock import median_seconds
from ranklab.measure.ledger import Ledger
from ranklab.measure.weigh import storage_bytes
from shardlab import mixed_precision as fast
from shardlab.gpt import GPT, next_token_loss
from shardlab.mixed_precision import core
from shardlab.mixed_precision.policies import FP32, POLICIES, Policy

OF_AMP = 1.0  # of torch.amp's time and of its peak, at most
LOSS_STEPS = 60
KEPT_AS = {  # the formulas' name of what a policy keeps from step to step
    "FP32": "fp32 Adam",
    "TF32": "fp32 Adam",
    "AUTOCAST_BF16": "autocast Adam",
    "AUTOCAST_FP16": "autocast Adam",
    "BF16": "bf16 + fp32 master",
    "FP16": "bf16 + fp32 master",
}


class Training(NamedTuple):
    """A model with what steps it. `step()` is a whole step and returns its loss."""

    model: GPT
    optimizer: torch.optim.Optimizer
    step: Callable[[], Tensor]


def build_training(
    policy: Policy,
    task: races.TrainingTask,
    device: torch.device,
    theirs: bool = False,
    by_core: bool = False,
) -> Training:
    """A training under the policy; `theirs`: torch.amp and GradScaler over fp32 weights, which
    computes in the same type; `by_core`: a policy of 16-bit weights, with the core's classes."""
    model = task.model(device)
    tokens, dtype = task.drawn(device), policy.computes_in
    if theirs:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler(device.type, enabled=policy.needs_scale)
        amp = partial(torch.autocast, device.type, dtype)
    else:
        policy.prepare(model)
        # zero_grad() follows each step
        kind = partial(fast.MasterWeights, consume_gradients=True)
        kind = core.MasterWeights if by_core else kind
        kind = policy.optimizer if policy.weights is torch.float32 else kind
        optimizer = kind(model.parameters(), torch.optim.AdamW, lr=1e-3)
        scaler = (core if by_core else fast).LossScaler() if policy.needs_scale else policy.scaler()
        amp = partial(policy.forward, device)

    def step():
        with policy.step():
            with amp():
                loss = next_token_loss(model(tokens).float(), tokens)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return loss.detach()

    return Training(model, optimizer, step)


# --- make gpu -------------------------------------------------------------------------------------


def precision(
    device: torch.device, task: races.TrainingTask | None = None, steps: int = LOSS_STEPS
):
    """Time, peak, states and loss of each policy."""
    losses: dict[str, float] = {}
    task = task or gpu_task(device)
    for policy in POLICIES.values():
        yield from attempt(
            f"precision, {policy.name}", policy_rows(policy, task, device, steps, losses)
        )


def policy_rows(
    policy: Policy,
    task: races.TrainingTask,
    device: torch.device,
    steps: int,
    losses: dict[str, float],
) -> Iterator[Row]:
    case = dict(policy=policy.name, task=task.name)
    try:
        check_precision(policy, device, units=device.type == "cuda")
    except CannotCompute as refused:
        yield Row("mixed_precision.refused", 1, "count", dict(**case, why=str(refused)))
        return
    training = build_training(policy, task, device)
    for _ in range(steps):
        loss = training.step().item()
    losses[policy.name] = loss
    seconds = median_seconds(training.step, device)
    yield Row("mixed_precision.step", seconds, "seconds", case)
    if device.type == "cuda" and (busy := busy_gpu.gpu_busy_seconds(training.step)) is not None:
        yield Row("mixed_precision.gpu_busy", busy / seconds, "ratio", case)
    if FP32.name in losses:
        yield Row("mixed_precision.loss_ratio", loss / losses[FP32.name], "ratio", case)
    yield from bytes_of(policy, training, device, case)


def bytes_of(policy: Policy, training: Training, device: torch.device, case: dict) -> Iterator[Row]:
    with Ledger(training.model, training.optimizer, device=device.type) as ledger:
        training.step()
    yield Row("mixed_precision.peak", ledger.peak.bytes.total, "bytes", case)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        training.step()
        allocated = torch.cuda.max_memory_allocated(device)
        yield Row("mixed_precision.allocated", allocated, "bytes", case)
    parameters = list(training.model.parameters())
    masters = [master for _, master in getattr(training.optimizer, "pairs", ())]
    states = [
        value
        for state in training.optimizer.state.values()
        for name, value in state.items()
        if name != "step"
    ]
    found = storage_bytes([*parameters, *masters, *states])
    targets = ["parameter_bytes", "optimizer_bytes"]
    given = dict(**training.model.config.quantities(), recipe=KEPT_AS[policy.name])
    wanted = sum(evaluate(targets, **given).values())
    yield Row("mixed_precision.states", found, "bytes", case, " + ".join(targets), wanted)


def rates_by_format(device: torch.device, size: int | None = None) -> Iterator[Row]:
    """Rate of a large product by the type of its factors; fp8 where there are units for it."""
    size = size or (8192 if device.type == "cuda" else 256)
    for name, dtype in PRODUCT_TYPES.items():
        if name == "tf32" and device.type != "cuda":
            continue
        yield from attempt(f"products, {name}", rate_of_product(device, name, dtype, size))


def rate_of_product(device, name, dtype, size) -> Iterator[Row]:
    case = dict(number_format=name, size=size)
    kind = name if name == "tf32" else dtype
    if kind in UNITS_SINCE and device.type == "cuda" and not has_units(kind, device):
        yield Row("mixed_precision.refused", 1, "count", dict(**case, why="no units for it"))
        return
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    if name == "fp8 e4m3":
        one = torch.ones((), device=device)
        scales = dict(scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
        work = partial(torch._scaled_mm, a, b.t(), **scales)  # 2.8 has no public name for it
    else:
        work = partial(torch.matmul, a, b)
    with POLICIES["TF32" if name == "tf32" else "FP32"].step():
        seconds = median_seconds(work, device)
    yield Row("mixed_precision.product", 2 * size**3 / seconds, "FLOP/s", case)


PRODUCT_TYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8 e4m3": torch.float8_e4m3fn,
}


# --- make bench -----------------------------------------------------------------------------------


# instead of larger ones where a CPU emulates 16 bits: one step of those takes many seconds there
EMULATED_TASK = races.TrainingTask(
    "0.5M parameters", dict(layers=2, hidden=128, heads=4, vocabulary=512, max_sequence=32)
)
RACE_SECONDS, LEAST_TURNS = 60, 5  # of one policy and task: a slow CPU gets fewer turns


def race_precision(tasks: Sequence[races.TrainingTask] = TASKS, turns: int = TURNS) -> list[Result]:
    """A step with 16-bit weights, master weights and our scaler, and one by the core, beside
    torch.amp with GradScaler, on the CPU: seconds in turns, and peak bytes. A CPU without units for
    the type races too: it computes the same numbers slowly, and the rows say so."""
    device, results = torch.device("cpu"), []
    for policy in (POLICIES["BF16"], POLICIES["FP16"]):
        check_precision(policy, device)
        units = has_units(policy.computes_in, device)
        smallest = min((EMULATED_TASK, *tasks), key=lambda task: task.sizes["hidden"])
        for task in tasks if units else (smallest,):
            results += beside_amp(policy, task, device, turns, units)
    return results


def seconds_of_work(work: Callable[[], object]) -> float:
    begin = perf_counter()
    work()
    return perf_counter() - begin


def turns_in_time(step_seconds: float, works: int, turns: int) -> int:
    """The number of turns: so many, or as many as fit into RACE_SECONDS, and LEAST_TURNS at
    least."""
    return min(turns, max(LEAST_TURNS, int(RACE_SECONDS / (works * step_seconds))))


def beside_amp(policy, task, device, turns, units) -> list[Result]:
    kind = FORMAT_NAMES[policy.computes_in]
    ours, by_core, theirs = f"{policy.name}, master weights", "core", f"torch.amp, {kind}"
    peaks, works = {}, {}
    for name in (ours, by_core, theirs):
        training = build_training(policy, task, device, name == theirs, name == by_core)
        training.step()
        updating = training.optimizer.inner if name == by_core else training.optimizer
        with Ledger(training.model, updating) as ledger:
            training.step()
        peaks[name], works[name] = ledger.peak.bytes.total, training.step
    turns = turns_in_time(max(map(seconds_of_work, works.values())), len(works) + 1, turns)
    times = races.in_turns(works, turns)
    what = f"{task.name}, {kind}{'' if units else ' on a CPU without units for it'}"
    results = []
    for name, shown, most in ((ours, what, OF_AMP), (by_core, f"core, {what}", None)):
        both = peaks[name], peaks[theirs]
        results += races.beside(
            *("precision", what, times, name, theirs, most, most, shown), peak=both
        )
    return results


FORMAT_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16"}

RUNS = (
    GRADIENT_RUN,
    Run(35, precision, dict(task=TINY, steps=3)),
    Run(7, rates_by_format, dict(size=32)),
)
BENCHES = (Bench("precision", race_precision, dict(tasks=(TINY,), turns=2)),)
