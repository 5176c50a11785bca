"""Virtual steps beside steps that others published, with the ratio of their seconds.

The rule for the rows was written before any of them ran: of each class of published runs of dense
models (coursekit.formulas.speeds), of its rows with one pipeline stage, no context parallelism, and
all or no layers recomputed, the first, the one in the middle and the last, as the table has them.
MOST_RANKS was added after eight ratios had been seen: a row of 2,240 ranks ran out of time. Other
rows of DeepSpeed were chosen by this.

The speeds are the book's stated ones, of the class and not of the row: its share of the GPU's
FLOP/s and of the network's bandwidth, and four fifths of memory and of links within a node. The
class's shares had been fitted by a formula to every second row of it; nothing is fitted here. A
step is four steps of two and of four layers, of one and of two microbatches, on a straight line in
both. Weights and states are in 16 bits, but those of FSDP, which shards fp32.

    python -m bench.published measured   # a line for each row, then the median
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
import torch.distributed as dist

from bench.virtual import recorded
from coursekit.formulas.speeds import BANDWIDTH_SHARE, PUBLISHED_SECONDS, SPEEDS
from coursekit.lab.virtual import preset_gpu
from coursekit.recordings.recordings import Row
from coursekit.topics.which_layout.referee import published_layout, published_rows
from shardlab import zero
from shardlab.common.torch_internals import disable_modes
from shardlab.data_parallel import DistributedDataParallel
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.measure.fake_ranks import Recomputed
from shardlab.mesh import Mesh
from shardlab.tensor_parallel import (
    apply_tensor_parallel,
    gpt_plan,
    overlapped,
    sequence_parallel,
    sum_gradients,
    vocabulary_parallel_loss,
)
from shardlab.virtual import GPU, VirtualGPUs

DENSE = [name for name in SPEEDS if "experts" not in name]
LAYERS, MICROBATCHES = (2, 4), (1, 2)
RECOMPUTE_ALL, MOST_RANKS = 3, 1024
SIZES = GPTConfig().quantities().keys()


class Beside(NamedTuple):
    name: str
    speed: str
    published_seconds: float
    virtual_seconds: float

    @property
    def ratio(self) -> float:
        return self.virtual_seconds / self.published_seconds


def chosen_rows() -> Iterator[dict]:
    rows = published_rows(PUBLISHED_SECONDS)
    for speed in DENSE:
        able = [row for row in rows if row["speed"] == speed and can_run(row)]
        yield from able[:1]
        if len(able) > 2:
            yield able[len(able) // 2]
        yield from able[1:][-1:]


def can_run(row) -> bool:
    one = ("pipeline_parallel", "context_parallel", "expert_parallel")
    whole = int(row["recompute_policy"]) in (0, RECOMPUTE_ALL)
    whole = whole and int(row["gpus"]) <= MOST_RANKS
    return whole and all(int(row[name]) == 1 for name in one)


def beside(row) -> Beside:
    layout = published_layout(row)
    wanted = layout.sizes["layers"], layout.accumulation_steps
    counts = [count for count in MICROBATCHES if count <= wanted[1]]
    gpu = gpu_of(row, layout)
    of_steps = [
        line(LAYERS, [step_seconds(gpu, row, layout, one, steps) for one in LAYERS], wanted[0])
        for steps in counts
    ]
    found = line(counts, of_steps, wanted[1]) if len(counts) == 2 else of_steps[0]
    return Beside(row["name"], row["speed"], float(row["seconds"]), found)


def line(at, values, wanted) -> float:
    """The straight line through two points, at a third."""
    return values[0] + (values[1] - values[0]) / (at[1] - at[0]) * (wanted - at[0])


def gpu_of(row, layout) -> GPU:
    """The preset's, with the class's shares."""
    speed, preset = SPEEDS[row["speed"]], preset_gpu(layout.gpu, layout.ranks_per_node)
    network = preset.links.network_bytes_per_second * speed.network_share / BANDWIDTH_SHARE
    preset = replace(preset, links=replace(preset.links, network_bytes_per_second=network))
    share = speed.utilisation / BANDWIDTH_SHARE
    rates = {dtype: share * rate for dtype, rate in preset.flops_per_second.items()}
    return replace(preset, flops_per_second=rates)


def step_seconds(gpu: GPU, row, layout, layers: int, steps: int) -> float:
    dtype = torch.float16 if layout.recipe.startswith("fp16") else torch.bfloat16
    sharded = layout.zero_stage == 3
    with VirtualGPUs(layout.gpus, gpu) as own:
        torch.set_default_dtype(torch.float32 if sharded else dtype)
        sizes = {name: layout.sizes[name] for name in SIZES & layout.sizes.keys()}
        sizes["layers"] = layers
        sizes["max_sequence"] = max(sizes.get("max_sequence", 0), layout.sequence)
        net = GPT(GPTConfig(**sizes))
        torch.set_default_dtype(torch.float32)
        train = training(net, layout, steps, dtype, SPEEDS[row["speed"]].overlap)
        train()
        seconds = [0]
        outlives = layout.zero_stage in (1, 2) and SPEEDS[row["speed"]].overlap
        for count in (1, 2) if outlives else (1,):
            with own.step() as step:
                for _ in range(count):
                    train()
            seconds.append(step.seconds)
    return seconds[-1] - seconds[-2]


def training(net: GPT, layout, steps: int, dtype, ahead: bool) -> Callable:
    tensor, group = layout.tensor_parallel, dist.group.WORLD
    data, loss_of = group, next_token_loss
    vocabulary, sequence = net.config.vocabulary, False
    if tensor > 1:
        with disable_modes():  # a mesh has real numbers
            mesh = Mesh(dp=layout.gpus // tensor, tp=tensor)
        data, group = mesh.dp.group, mesh.tp.group
        sequence = layout.sequence_parallel is None or bool(layout.sequence_parallel)
        plan = sequence_parallel(gpt_plan(net.config)) if sequence else gpt_plan(net.config)
        apply_tensor_parallel(net, overlapped(plan) if ahead else plan, group)

        def loss_of(scores, targets):
            return vocabulary_parallel_loss(scores, targets, vocabulary, group)

    stage, adam = layout.zero_stage, torch.optim.AdamW
    recompute = layout.recompute_policy == RECOMPUTE_ALL
    alone = layout.gpus == tensor
    if stage == 3:
        units = [net.embedding, *net.blocks, net.head]
        options = dict(units=units, compute_dtype=dtype, prefetch=True)
        model, optimizer = zero.shard(net, adam, stage=3, fused=True, **options)
    if recompute:
        net.blocks = torch.nn.ModuleList(map(Recomputed, net.blocks))
    if stage == 0 or alone:
        model = net if alone else DistributedDataParallel(net, group=data, overlap=ahead)
        optimizer = adam(net.parameters(), fused=True)
    elif stage < 3:
        options = dict(prefetch=True) if ahead else {}
        model, optimizer = zero.shard(net, adam, stage=stage, group=data, fused=True, **options)
    tokens = torch.zeros(layout.microbatch, layout.sequence, dtype=torch.long)
    waits = getattr(optimizer, "no_sync", None) or getattr(model, "no_sync", None) or nullcontext

    def train():
        for number in range(steps):
            with waits() if number < steps - 1 and stage < 2 else nullcontext():
                loss_of(model(tokens), tokens).backward()
        if sequence:
            sum_gradients(optimizer, group)
        optimizer.step()
        optimizer.zero_grad()

    return train


def row_of(one: Beside) -> Row:
    case = dict(run=one.name, speed=one.speed, published_seconds=one.published_seconds)
    return Row("virtual.published", one.ratio, "ratio", case)


def main():
    found = []
    for row in chosen_rows():
        one = beside(row)
        found.append(one)
        recorded([row_of(one)], Path(sys.argv[1]), "published")
        print(
            f"{one.speed:22}{one.name:45}{one.published_seconds:9.3f}"
            f"{one.virtual_seconds:9.3f}{one.ratio:7.2f}",
            flush=True,
        )
    print("median", median(one.ratio for one in found))


if __name__ == "__main__":
    main()
