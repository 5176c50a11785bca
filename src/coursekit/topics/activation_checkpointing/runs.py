"""Recordings of `make gpu` and races of `make bench` for recomputation: each of this book's
versions beside its sibling in PyTorch, and all of them beside keeping everything. One process, no
ranks."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint as torch_checkpoint
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from coursekit.formulas import RECIPES, evaluate
from coursekit.recordings import races
from coursekit.recordings.attempts import attempt
from coursekit.recordings.races import TINY, TURNS, Bench, Result, Run, TrainingTask, Way, gpu_task
from coursekit.recordings.recordings import Row
from ranklab.measure.ledger import Ledger
from ranklab.measure.timing import median_ratio
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.recompute import checkpoint, core
from shardlab.recompute.layers import checkpoint_every
from shardlab.recompute.offload import offload_activations
from shardlab.recompute.selective import EXPENSIVE, checkpoint_selective

NOT_SLOWER = 1.0  # of the time and of the peak of PyTorch's
RACED_SHAPES = (
    TrainingTask(
        "6 layers of 256", dict(layers=6, hidden=256, heads=4, vocabulary=1024, max_sequence=128)
    ),
    TrainingTask(
        "12 layers of 512", dict(layers=12, hidden=512, heads=8, vocabulary=1024, max_sequence=128)
    ),
)


# --- the ways: a model to a callable --------------------------------------------------------------


def each_block(net: nn.Module, call: Callable | None = None, policy: int = 0) -> Callable:
    if call is not None:
        net.blocks = checkpoint_every(net.blocks, 1, call)
    return net


def under_hooks(net: nn.Module, hooks: Callable, policy: int = 0) -> Callable:
    def forward(tokens: Tensor) -> Tensor:
        with hooks():
            return net(tokens)

    return forward


def torch_selective(function: Callable, *args):
    operators = [getattr(op, name) for op in EXPENSIVE for name in op.overloads()]
    contexts = partial(create_selective_checkpoint_contexts, operators)
    return torch_checkpoint(function, *args, use_reentrant=False, context_fn=contexts)


KEEPS_ALL = "nothing recomputed"
SIBLINGS = ("PyTorch, use_reentrant=False", "PyTorch, use_reentrant=True", "PyTorch, selective")
ON_CPU = "PyTorch, save_on_cpu"
WAYS = {
    KEEPS_ALL: Way(each_block, dict(policy=0)),
    "by hooks": Way(each_block, dict(call=checkpoint, policy=3), SIBLINGS[:1], NOT_SLOWER),
    "by function": Way(
        each_block, dict(call=core.checkpoint_by_function, policy=3), SIBLINGS[1:2], NOT_SLOWER
    ),
    "by hooks, core": Way(each_block, dict(call=core.checkpoint, policy=3), SIBLINGS[:1]),
    "selective": Way(
        each_block, dict(call=checkpoint_selective, policy=2), SIBLINGS[2:], NOT_SLOWER
    ),
    "on the host": Way(under_hooks, dict(hooks=offload_activations), (ON_CPU,)),
    SIBLINGS[0]: Way(each_block, dict(call=partial(torch_checkpoint, use_reentrant=False))),
    SIBLINGS[1]: Way(each_block, dict(call=partial(torch_checkpoint, use_reentrant=True))),
    SIBLINGS[2]: Way(each_block, dict(call=torch_selective)),
    ON_CPU: Way(
        under_hooks, dict(hooks=partial(save_on_cpu, pin_memory=torch.cuda.is_available()))
    ),
}


class TrainingUnderWay(NamedTuple):
    """A model under a way, and what a step of it takes."""

    net: GPT
    model: Callable
    optimizer: torch.optim.Optimizer
    tokens: Tensor
    targets: Tensor

    def step(self, at_the_loss: Callable[[], None] = lambda: None) -> None:
        loss = next_token_loss(self.model(self.tokens), self.targets)
        at_the_loss()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def training(way: Way, task: TrainingTask, device: str) -> TrainingUnderWay:
    net = task.model(device)
    model, optimizer = way.wrap(net, **way.options), torch.optim.AdamW(net.parameters(), lr=1e-3)
    both = task.drawn(device, (2,))
    return TrainingUnderWay(net, model, optimizer, *(half.clone() for half in both))


def weigh_way(way: Way, task: TrainingTask, device: str) -> tuple[int, int, int]:
    """(bytes of activations at the loss, all bytes at most, what the CUDA allocator gave out)"""
    races.empty_gpu(device)
    works, kept = training(way, task, device), []
    works.step()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        works.step()
    allocated = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    with Ledger(works.net, works.optimizer, device=device) as ledger:
        works.step(lambda: kept.append(ledger.bytes.activations))
    return kept[0], ledger.peak.bytes.total, allocated


# --- make gpu -------------------------------------------------------------------------------------


def recompute(
    device: torch.device, task: TrainingTask | None = None, turns: int = 11
) -> Iterator[Row]:
    """Bytes, times and the overhead over keeping everything, of each way."""
    kind, task = device.type, task or gpu_task(device)
    for name, way in WAYS.items():
        yield from attempt(f"recompute, {name}", bytes_of_way(name, way, task, kind))
    yield from attempt("recompute, times", times_of_ways(task, turns, kind))


def bytes_of_way(name: str, way: Way, task: TrainingTask, device: str) -> Iterator[Row]:
    case = dict(implementation=name, device=device, task=task.name)
    kept, peak, allocated = weigh_way(way, task, device)
    ours = way.options.get("call") is not None and bool(way.peers)
    predicted = ("kept_activation_bytes", of_policy(way, task)["kept_activation_bytes"])
    yield Row("recompute.kept", kept, "bytes", case, *(predicted if ours else ()))
    yield Row("recompute.peak", peak, "bytes", case)
    if device == "cuda":
        yield Row("recompute.allocated_peak", allocated, "bytes", case)


def of_policy(way: Way, task: TrainingTask) -> dict[str, float]:
    names = ["kept_activation_bytes", "recomputed_share", "layers_forward_flops", "step_flops"]
    return evaluate(
        names,
        allow_unused=True,
        **RECIPES["fp32 Adam"].quantities,
        **GPTConfig(**task.sizes).quantities(),
        microbatch=task.microbatch,
        sequence=task.sizes["max_sequence"],
        dropout=0,
        fused_attention=1,
        recompute_policy=way.options.get("policy", 0),
    )


def by_operations(way: Way, task: TrainingTask) -> float:
    """Operations of a step, over those of a step that computes nothing twice. Both checkpoints of
    the core run forward to its end again; the formula's stops before the last product."""
    found = of_policy(way, task)
    again = found["recomputed_share"]
    if way.options.get("call") in (core.checkpoint_by_function, core.checkpoint):
        again = found["layers_forward_flops"] / found["step_flops"]
    return round(1 + again, 3)


def times_of_ways(task: TrainingTask, turns: int, device: str) -> Iterator[Row]:
    times = turns_of_ways(task, turns, device)
    case = dict(device=device, task=task.name)
    yield from races.step_rows("recompute", WAYS, times, case)
    for name, way in WAYS.items():
        if way.peers:
            ratio = median_ratio(times, name, KEEPS_ALL)
            this = dict(**case, implementation=name, by_operations=by_operations(way, task))
            yield Row("recompute.overhead", ratio, "ratio", this)


def turns_of_ways(task: TrainingTask, turns: int, device: str = "cpu") -> dict[str, list[float]]:
    works = {name: training(way, task, device).step for name, way in WAYS.items()}
    return races.in_turns(works, turns, device)


# --- make bench -----------------------------------------------------------------------------------


def race(tasks: Sequence[TrainingTask] = RACED_SHAPES, turns: int = TURNS) -> list[Result]:
    """Step times in turns and peaks, each version over its sibling, and the overhead of each."""
    results, group = [], "recompute"
    for task in tasks:
        times = turns_of_ways(task, turns)
        found = {name: weigh_way(way, task, "cpu") for name, way in WAYS.items()}
        for name, way in WAYS.items():
            for peer in way.peers:
                what, peaks = f"{name}, {task.name}", [found[one][1] for one in (name, peer)]
                results += races.beside(
                    *(group, task.name, times, name, peer, way.most, way.most), peak=peaks
                )
                over = median_ratio(times, name, KEEPS_ALL)
                theory = by_operations(way, task)
                results.append(
                    Result(
                        group,
                        f"{what}: step over keeping everything",
                        round(over, 3),
                        "x",
                        None,
                        f"{theory:.3f} by operations;"
                        f" {KEEPS_ALL} {1000 * median(times[KEEPS_ALL]):.1f} ms",
                        f"{group}_race.overhead",
                        dict(what=what, by_operations=theory),
                    )
                )
    return results


RUNS = (Run(50, recompute, dict(task=TINY, turns=1)),)
BENCHES = (Bench("recompute", race, dict(tasks=(TINY,), turns=2)),)
