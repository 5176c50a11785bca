"""A training step on one GPU, made faster rung by rung: for `make gpu`.

Each rung has what the rungs before it have. GPT-2 124M, sequences of 1,024 tokens, and a batch in
which kernels take longer than their launches.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coursekit.formulas import model_flops_utilisation_with_scores
from coursekit.machine.capabilities import memory_bytes, preset_of
from coursekit.machine.units import check_precision
from coursekit.recordings.attempts import attempt
from coursekit.recordings.busy_gpu import gpu_busy_seconds
from coursekit.recordings.races import GPU_TASK, LARGE_TASK, LARGE_TASK_BYTES, TrainingTask
from coursekit.recordings.recordings import Row
from coursekit.topics.hardware.fast_gpt import (
    chunked_loss,
    compile_blocks,
    loss_of_chunk,
    padded_loss,
)
from coursekit.topics.hardware.probes import products
from ranklab.measure.clock import median_seconds
from shardlab import mixed_precision as fast
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.mixed_precision import core
from shardlab.mixed_precision.policies import AUTOCAST_BF16, BF16, FP32, TF32, Policy

LARGE_BATCH = 16  # sequences, on a GPU of LARGE_TASK_BYTES; fewer on one with less memory
STEPS = 20
PRODUCT_SIZE = 8192


def plain_loss(model: GPT, tokens: Tensor, targets: Tensor) -> Tensor:
    return next_token_loss(model(tokens), targets)


class Rung(NamedTuple):
    """A way to make a step. `optimizer_cls` takes parameters, a class and its settings, as
    MasterWeights does."""

    policy: Policy = FP32
    optimizer_cls: Callable = FP32.optimizer
    loss: Callable = plain_loss
    fused: bool = False
    compiled: bool = False
    graphs: bool = False  # CUDA graphs of the compiled blocks
    batches: int = 1  # of the task's, at once


# Rung -> what it changes in the one before it
CHANGES: dict[str, dict[str, Any]] = {
    "fp32": {},
    "TF32": dict(policy=TF32),
    "autocast to bf16": dict(policy=AUTOCAST_BF16),
    "bf16 weights, fp32 masters": dict(policy=BF16, optimizer_cls=core.MasterWeights),
    "master copies in groups": dict(
        optimizer_cls=partial(fast.MasterWeights, consume_gradients=True)
    ),
    "vocabulary padded": dict(loss=padded_loss),
    "loss in chunks": dict(loss=chunked_loss),
    "AdamW fused": dict(fused=True),
    "blocks compiled": dict(compiled=True),
    "loss whole again, compiled": dict(loss=padded_loss),
    "twice the batch": dict(batches=2),
    "blocks in CUDA graphs": dict(graphs=True),
}
# a compiler makes fewer kernels of this argument of a loss
COMPILED = {
    chunked_loss: dict(of_chunk=loss_of_chunk),
    padded_loss: dict(of_scores=next_token_loss),
}


def one_gpu(
    device: torch.device,
    task: TrainingTask | None = None,
    steps: int = STEPS,
    product_size: int = PRODUCT_SIZE,
    compiles: bool = True,
) -> Iterator[Row]:
    """Time, utilisation and peak of a step on each rung. Without `compiles`, the rungs that need a
    compiler are left out; CUDA graphs are where CUDA is."""
    task, (rate, over) = task or largest_task(device), rate_and_source(device, product_size)
    rung, losses = Rung(), {}
    for name, change in CHANGES.items():
        rung = rung._replace(**change)
        if rung.graphs <= (device.type == "cuda") and rung.compiled <= compiles:
            trained = task._replace(microbatch=rung.batches * task.microbatch)
            case = dict(rung=name, task=task.name, batch=trained.microbatch, device=device.type)
            rows = rows_of_rung(rung, trained, device, steps, case, losses, rate, over)
            yield from attempt(f"one_gpu, {name}", rows)


def largest_task(device: torch.device) -> TrainingTask:
    """GPT-2 124M with as many sequences as fit, LARGE_BATCH at most; on a CPU a small model."""
    if device.type != "cuda":
        return GPU_TASK
    fits = LARGE_BATCH * memory_bytes(device) // LARGE_TASK_BYTES
    return LARGE_TASK._replace(microbatch=max(1, min(LARGE_BATCH, fits)))


def rate_and_source(device: torch.device, product_size: int) -> tuple[float, str]:
    """FLOP/s that all rungs are compared with, and whose they are: a datasheet's in bf16, or where
    data/hardware.csv has no such GPU those of a large product in bf16 on this machine."""
    if device.type == "cuda" and (gpu := preset_of(device)):
        return gpu.quantities["flops_per_second"], f"{gpu.name}, {gpu.note}"
    (product,) = products(device, (torch.bfloat16,), (product_size,))
    return product.flops_per_second, f"measured: bf16 product of size {product_size}"


def build_step(rung: Rung, task: TrainingTask, device: torch.device) -> Callable[[], Tensor]:
    """A training step, which returns its loss and does not wait for the GPU."""
    torch.manual_seed(0)
    with device:
        model = rung.policy.prepare(GPT(GPTConfig(**task.sizes)))
    tokens, loss_of = task.drawn(device), rung.loss
    if rung.compiled:
        compile_blocks(model, **(dict(mode="reduce-overhead") if rung.graphs else {}))
        part = {name: torch.compile(one) for name, one in COMPILED[loss_of].items()}
        loss_of = partial(loss_of, **part)
    settings = dict(lr=1e-4, **(dict(fused=True) if rung.fused else {}))
    optimizer = rung.optimizer_cls(model.parameters(), torch.optim.AdamW, **settings)

    def step():
        if rung.graphs:
            torch.compiler.cudagraph_mark_step_begin()
        with rung.policy.step():
            with rung.policy.forward(device):
                loss = loss_of(model, tokens, tokens)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return step


def rows_of_rung(
    rung: Rung,
    task: TrainingTask,
    device: torch.device,
    steps: int,
    case: dict[str, Any],
    losses: dict[str, float],
    rate: float,
    over: str,
) -> Iterator[Row]:
    """`losses` has the losses of the rungs after the same steps; the first that ran is the
    reference."""
    if device.type == "cuda":
        check_precision(rung.policy, device, units=True)
    step = build_step(rung, task, device)
    seconds = median_seconds(step, device, steps)
    tokens_per_second = task.drawn().numel() / seconds
    yield Row("one_gpu.step", seconds, "seconds", case)
    yield Row("one_gpu.tokens_per_second", tokens_per_second, "tokens/s", case)
    config = GPTConfig(**task.sizes)
    used = model_flops_utilisation_with_scores(
        **config.quantities(),
        sequence=config.max_sequence,
        tokens_per_second=tokens_per_second,
        gpus=1,
        flops_per_second=rate,
    )
    yield Row("one_gpu.mfu", used, "ratio", dict(**case, over=over))
    if rung.batches == 1:  # others see other tokens
        losses[case["rung"]] = step().item()
        ratio = losses[case["rung"]] / next(iter(losses.values()))
        yield Row("one_gpu.loss_ratio", ratio, "ratio", case)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        step()
        yield Row("one_gpu.peak", torch.cuda.max_memory_allocated(device), "bytes", case)
        if (busy := gpu_busy_seconds(step)) is not None:
            yield Row("one_gpu.gpu_busy", busy / seconds, "ratio", case)
