"""Recordings of `make gpu` for a mixture of experts, and a step on virtual H100s: shared experts
after the others, or while rows travel.

Virtual tensors have no contents, so routing is balanced by force: with a capacity of 1 each expert
takes as many rows, and no rank asks for counts. Ranks divide the experts of every layer, 4,096
tokens a rank, bf16, stage 1 of ZeRO for all else.
"""

from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist

from coursekit.lab.virtual import recorded_gpu
from coursekit.recordings import races
from coursekit.recordings.attempts import attempt
from coursekit.recordings.races import TINY, Bench, Result, Run, TrainingTask, Way, train_step
from coursekit.recordings.recordings import Row
from ranklab.virtual import VirtualGPUs, VirtualStep
from shardlab import zero
from shardlab.experts.core import mixtures
from shardlab.experts.hardened.apply import apply_expert_parallel
from shardlab.gpt import GPT, GPTConfig
from shardlab.mesh import Axis, ExpertAxes, Mesh
from shardlab.tensor_parallel.hardened.full_parameters import whole_state_dict

CARD = "H100 SXM 80GB"
TOKENS_IN = 4096  # of a rank, and of its one sequence
MANY_EXPERTS = dict(  # layers as wide as Qwen3 30B-A3B, with shared experts beside
    layers=4,
    hidden=2048,
    heads=32,
    key_value_heads=4,
    head_size=128,
    feed_forward=768,
    vocabulary=50304,
    max_sequence=TOKENS_IN,
    learned_positions=0,
    biases=0,
    gated_mlp=1,
    tied_head=0,
    experts=128,
    experts_per_token=8,
    shared_experts=4,
)


def step_of_experts(gpus: int, overlap: bool, sizes: dict) -> VirtualStep:
    """A step of rank 0 of so many GPUs, in nodes of eight, after one that warms up."""
    with VirtualGPUs(gpus, recorded_gpu(CARD)) as gpu:
        torch.set_default_dtype(torch.bfloat16)
        try:
            net = GPT(GPTConfig(**sizes))
        finally:
            torch.set_default_dtype(torch.float32)
        for layer in mixtures(net):
            layer.capacity = 1.0
        everyone = Axis(dist.group.WORLD, list(range(gpus)), 0)
        alone = Axis(dist.new_group([0]), [0], 0)
        homes = [[rank] for rank in everyone.ranks]
        apply_expert_parallel(net, ExpertAxes(everyone, alone, everyone, homes), overlap)
        model, optimizer = zero.shard(net, torch.optim.AdamW, stage=1, fused=True)
        tokens = torch.zeros(1, sizes["max_sequence"], dtype=torch.long)
        train = partial(train_step, model, optimizer, tokens)
        train()
        with gpu.step() as step:
            train()
    return step


def race(counts=(8, 16), sizes=MANY_EXPERTS) -> list[Result]:
    results = []
    for gpus in counts:
        after, beside = (step_of_experts(gpus, overlap, sizes) for overlap in (False, True))
        waits = [step.idle_seconds() - step.idle_seconds("host") for step in (after, beside)]
        results.append(
            Result(
                "mixture of experts",
                f"step on {gpus} virtual H100s, shared experts beside / after the others",
                round(beside.seconds / after.seconds, 4),
                "x",
                None,
                f"{1e3 * beside.seconds:.2f} and {1e3 * after.seconds:.2f} ms; nothing computes for"
                f" {1e3 * waits[1]:.2f} and {1e3 * waits[0]:.2f} ms",
            )
        )
    return results


# --- make gpu -------------------------------------------------------------------------------------


def divided_experts(net, optimizer_cls, overlap, **settings):
    """Each rank has a part of every layer's experts, and its share of all other states."""
    apply_expert_parallel(
        net, Mesh(dp=dist.get_world_size()).experts(dist.get_world_size()), overlap
    )
    return zero.shard(net, optimizer_cls, stage=1, **settings)


WAYS = {
    "shared after": Way(divided_experts, dict(overlap=False)),
    "shared beside": Way(divided_experts, dict(overlap=True)),
}
FINE_EXPERTS = dict(experts=64, experts_per_token=8, shared_experts=1, feed_forward=256)


def mixture_of_experts(
    device: torch.device, task: TrainingTask | None = None, turns: int = 7
) -> Iterator[Row]:
    """Right parameters, bytes sent, peaks and times of a step."""
    for case, trained in races.layouts(device, task):
        part = f"mixture_of_experts, {case['ranks']} ranks"
        trained = trained._replace(sizes=FINE_EXPERTS | trained.sizes)
        case["experts"] = trained.sizes["experts"]
        rows = races.rows_of_ways("experts", part, case, WAYS, trained, turns, rows_of)
        yield from attempt(part, rows)


def rows_of(world, way: Way, task: TrainingTask, case: dict) -> Iterator[Row]:
    device = case["device"]
    right, of = world.run(right_experts, way, task, device)[0]
    yield Row("experts.right_parameters", right, "count", case, "parameter_tensors", of)
    found = world.run(races.weighed, way, task, device=device)[0]
    yield from races.weight_rows("experts", found, case)


def right_experts(way: Way, task: TrainingTask, device: str) -> tuple[int, int]:
    """On a rank: (parameters that are the plain model's after a step over all ranks' batches, all
    of them). A row whose two best scores are alike may go to another expert here and there."""
    plain, net, tokens = task.model(device), task.model(device), task.batches(device)[0]
    train_step(plain, torch.optim.SGD(plain.parameters(), lr=0.1), tokens.flatten(0, 1))
    train_step(*way.build(net, torch.optim.SGD, lr=0.1), tokens[dist.get_rank()])
    whole = whole_state_dict(net)
    close = [torch.allclose(whole[name], p, 1e-3, 1e-4) for name, p in plain.named_parameters()]
    return sum(close), len(close)


FEW_EXPERTS = {**MANY_EXPERTS, "layers": 1, "hidden": 256, "vocabulary": 512, "max_sequence": 256}
BENCHES = (Bench("mixture-of-experts", race, dict(counts=(8,), sizes=FEW_EXPERTS)),)
TINY_EXPERTS = TINY._replace(
    sizes={**TINY.sizes, **FINE_EXPERTS, "experts": 8, "experts_per_token": 2}
)
RUNS = (Run(47, mixture_of_experts, dict(task=TINY_EXPERTS, turns=1)),)
