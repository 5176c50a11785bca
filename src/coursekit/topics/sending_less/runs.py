"""Recordings and races of sending less.

    python -m coursekit.recordings.record measured --cpu --only loss_by_bytes large_batches

trains a small model by each way on four ranks, which needs a CPU and three quarters of an hour.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial

import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel as TorchDataParallel

from coursekit.formulas import evaluate
from coursekit.recordings import races
from coursekit.recordings.attempts import attempt
from coursekit.recordings.races import TASKS, TINY, TURNS, Bench, Result, Run, TrainingTask
from coursekit.recordings.recordings import Row
from coursekit.topics.sending_less.large import (
    ALL_WINDOWS,
    SMALLEST,
    WAYS_OF_BATCHES,
    range_test,
    train_large,
)
from coursekit.topics.sending_less.trainings import (
    LOW_RANK,
    ONE_IN,
    TRAINED_STEPS,
    TRIED_RATES,
    WAYS_TO_SEND,
    WHOLE_STEPS,
    WayToSend,
    small_model,
    train_by,
    two_texts,
)
from ranklab.ranks import ranks
from ranklab.ranks.links import LinksUnavailable, two_hosts
from shardlab.compression import Compressed, four_bits, power_sgd, signs, sixteen_bits, top_k

SEEDS = (0, 1, 2)
CHART_RANKS = 4


def loss_by_bytes(
    device: torch.device,
    names: Sequence[str] = tuple(WAYS_TO_SEND),
    rates: Sequence[float] = TRIED_RATES,
    seeds: Sequence[int] = SEEDS,
    steps: int = TRAINED_STEPS,
) -> Iterator[Row]:
    """Validation losses of each way, on CPUs alone: the best of the learning rates with the first
    seed, then that one with all seeds."""
    with ranks(CHART_RANKS, device="cpu", announce=False) as world:
        for name in names:
            rows = rows_of_way(world, name, WAYS_TO_SEND[name], rates, seeds, steps)
            yield from attempt(f"sending less, {name}", rows)


def rows_of_way(world, name: str, way: WayToSend, rates, seeds, steps: int) -> Iterator[Row]:
    run = lambda rate, seed: world.run(train_by, way, rate, seed, steps)[0]
    found = {rate: run(rate, seeds[0]) for rate in rates}
    ends = {rate: one.losses[steps] for rate, one in found.items()}
    for rate, loss in ends.items():
        if math.isfinite(loss):
            yield Row("sending_less.rate", loss, "nats", dict(way=name, rate=rate))
    best = min(ends, key=lambda rate: ends[rate] if math.isfinite(ends[rate]) else math.inf)
    runs = [found[best], *(run(best, seed) for seed in seeds[1:])]
    for seed, one in zip(seeds, runs):
        for step, loss in one.losses.items():
            case = dict(way=name, rate=best, seed=seed, step=step)
            yield Row("sending_less.loss", loss, "nats", case)
    sent = round(steps * step_bytes(way, steps))
    case = dict(way=name, steps=steps, number=way.number, **given_of_run(way, steps))
    case["parameters"] = sum(p.numel() for p in small_model(two_texts()[0], 0).parameters())
    yield Row("sending_less.sent", runs[0].sent_bytes, "bytes", case, "less_sent_bytes", sent)


def given_of_run(way: WayToSend, steps: int) -> dict:
    """Quantities that the formulas need of a way, and the share of 1-bit Adam's first steps."""
    return dict(warm_up_share=min(1, WHOLE_STEPS / steps), **way.given)


def step_bytes(way: WayToSend, steps: int = TRAINED_STEPS) -> float:
    """The mean of a run, by formula."""
    sizes = small_model(two_texts()[0], 0).config.quantities()
    given = dict(gradient_compressor=way.number, data_parallel=CHART_RANKS)
    given |= dict(gradient_element_bytes=4, **sizes, **given_of_run(way, steps))
    return evaluate(["less_sent_bytes"], allow_unused=True, **given)["less_sent_bytes"]


def large_batches(
    device: torch.device,
    names: Sequence[str] = tuple(WAYS_OF_BATCHES),
    counts: Sequence[int] = (8, 32, 128),
    seeds: Sequence[int] = SEEDS,
    windows: int = ALL_WINDOWS,
) -> Iterator[Row]:
    """Validation losses by batch, on CPUs alone; the rate at the smallest batch by a range test."""
    rates = {}
    for name in names:
        way = WAYS_OF_BATCHES[name]
        if way.kind not in rates:
            rates[way.kind] = range_test(way.kind, SMALLEST, way.part)
        for batch in counts:
            for seed in seeds:
                loss = train_large(way, batch, rates[way.kind], seed, windows)
                case = dict(way=name, batch=batch, seed=seed, rate=rates[way.kind])
                case["windows"] = windows
                if math.isfinite(loss):
                    yield Row("sending_less.large", loss, "nats", case)


# --- make gpu and make bench ----------------------------------------------------------------------

ONE_BUCKET = 1000  # MiB: PyTorch's PowerSGD hangs on gloo with several


def through_hook(net, optimizer_cls, hook: Callable | None = None, **settings):
    model = Compressed(net, hook, bucket_bytes=ONE_BUCKET << 20)
    return model, optimizer_cls(net.parameters(), **settings)


def through_torch(net, optimizer_cls, hook: Callable | None = None, state=None, **settings):
    model = TorchDataParallel(net, bucket_cap_mb=ONE_BUCKET)
    if hook:
        model.register_comm_hook(state and state(), hook)
    return model, optimizer_cls(net.parameters(), **settings)


LOW_RANK_STATE = partial(
    PowerSGDState, None, matrix_approximation_rank=LOW_RANK, start_powerSGD_iter=2
)
PLAIN_WAY, HALF_HOOK, LOW = "PyTorch, fp32", "PyTorch, fp16", "PyTorch, PowerSGD"
WAYS = {
    "fp32": races.Way(through_hook, {}, (PLAIN_WAY,)),
    "fp16": races.Way(
        through_hook, dict(hook=partial(sixteen_bits, dtype=torch.float16)), (HALF_HOOK,)
    ),
    "PowerSGD": races.Way(through_hook, dict(hook=partial(power_sgd, rank=LOW_RANK)), (LOW,)),
    "signs": races.Way(through_hook, dict(hook=signs), (PLAIN_WAY,)),
    "4 bits": races.Way(through_hook, dict(hook=four_bits), (PLAIN_WAY,)),
    "top 1 %": races.Way(through_hook, dict(hook=partial(top_k, one_in=ONE_IN)), (PLAIN_WAY,)),
    PLAIN_WAY: races.Way(through_torch),
    HALF_HOOK: races.Way(through_torch, dict(hook=fp16_compress_hook)),
    LOW: races.Way(through_torch, dict(hook=powerSGD_hook, state=LOW_RANK_STATE)),
}


def hooks(device: torch.device, task: TrainingTask | None = None, turns: int = 7) -> Iterator[Row]:
    """Bytes sent, peaks and times of a step through each hook."""
    for case, trained in races.layouts(device, task):
        part = f"hooks, {case['ranks']} ranks"
        given = "hooks", part, case, WAYS, trained, turns, rows_of_hook
        yield from attempt(part, races.rows_of_ways(*given, optimizer_cls=torch.optim.SGD))


def rows_of_hook(world, way: races.Way, task: TrainingTask, case: dict) -> Iterator[Row]:
    found = world.run(races.weighed, way, task, torch.optim.SGD, case["device"])[0]
    yield from races.weight_rows("hooks", found, case)


def race(
    task: TrainingTask = TASKS[0],
    megabits_per_second: Sequence[int] = (0, 1000, 100),
    turns: int = TURNS,
) -> list[Result]:
    """Step times beside PyTorch's hooks on two ranks: in one host, and over slow links where this
    system can rehearse one."""
    results = []
    for speed in megabits_per_second:
        try:
            with two_hosts(speed) if speed else nullcontext(()) as hosts:
                with ranks(2, device="cpu", hosts=hosts, announce=False) as world:
                    times = world.run(races.train_in_turns, WAYS, task, turns)[0]
        except LinksUnavailable:
            continue
        what = f"2 ranks, {task.name}, {f'{speed} Mbit/s' if speed else 'one host'}"
        results += [
            races.step_result("sending_less", what, times, name, peer)
            for name, way in WAYS.items()
            for peer in way.peers
        ]
    return results


BENCHES = (Bench("sending-less", race, dict(task=TINY, megabits_per_second=(0,), turns=2)),)
QUICK_WAY = dict(names=("fp32",), rates=TRIED_RATES[:1], seeds=SEEDS[:1], steps=20)
QUICK_BATCHES = dict(names=("SGD, linear",), counts=(8,), seeds=(0,), windows=16)
RUNS = (
    Run(48, hooks, dict(task=TINY, turns=1)),
    Run(92, loss_by_bytes, QUICK_WAY, on_cpus_alone=True),
    Run(93, large_batches, QUICK_BATCHES, on_cpus_alone=True),
)
