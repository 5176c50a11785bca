"""Virtual steps beside steps that others published, with the ratio of their seconds.

    python -m bench.published measured [CLASS ...]   # a line for each row, and medians
    python -m bench.published                        # each class's products' share, fitted anew

Rows: every published run of a dense model (coursekit.planner.speeds) that one virtual rank can
run, that is with one pipeline stage, no context parallelism, and all or no layers recomputed; of at
most MOST_RANKS ranks, because a unit that more ranks cut unevenly takes minutes here.

The GPU is recorded_gpu's but for three numbers, which are the class's and not the row's. Attention
is as fast, and the network reaches the share, that a formula had found for the class. For large
products SHARES has one share of the datasheet: in hundredths, the one with the least mean error of
virtual time. All are fitted to the rows at even places of the class's table, SHARES to MOST_FITTED
of these; the rows at odd places are held out of all. The rule was written before a share was
fitted. A held-out outlier then showed a fault of the clock, attention of few heads, and no share
was fitted again; when kernels beside messages had been mended, all shares were, by the rule. They
were fitted once more when long sequences of both halves had shown a fault of gpu_of: attention's
backward took a quarter longer than the formula's. Held-out steps of H100s run once more at
recorded_gpu's own rates, to which no published step was fitted.

nanotron's runs are two classes with one share: the best layout of each size, and the others. Those
waited, some of them for twenty times their work, for their host and between nodes.

Kernels: gpt.py is eager, and the published code has one kernel where gpt.py has several for a norm,
for rotary positions (none in MPT, whose attention has them), for dropout of a part, and for a
softmax with its mask; the loss is one where the row says so (`kernels`) and in llm-foundry. Each
such kernel reads what it takes once, and writes what it returns once; so does its backward.

A step is four steps of one and of two layers, of one and of two microbatches, on a straight line
in both. Weights and states are in 16 bits, but those of FSDP, which shards fp32; gradients travel
as the row's recipe says.
"""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bench.virtual import recorded
from coursekit.formulas import quantities
from coursekit.lab.virtual import CLOCK, recorded_gpu
from coursekit.planner.layout import RankLayout
from coursekit.planner.speeds import BANDWIDTH_SHARE, SPEEDS
from coursekit.recordings.recordings import Row
from coursekit.topics.which_layout.referee import numbers_in, published_layout, seconds_rows
from coursekit.topics.zero.rank_of_many import Recomputed
from ranklab.virtual import GPU, VirtualGPUs
from shardlab import zero
from shardlab.common.torch_internals import disable_modes
from shardlab.data_parallel import DistributedDataParallel
from shardlab.gpt import GPT, CoreAttention, Dropout, GPTConfig, next_token_loss
from shardlab.mesh import Mesh
from shardlab.tensor_parallel import (
    apply_tensor_parallel,
    gpt_plan,
    overlapped,
    sequence_parallel,
    sum_gradients,
    vocabulary_parallel_loss,
)
from shardlab.tensor_parallel.hardened.layers import OwnDropout
from shardlab.zero.hardened.flat import Native

DENSE = [name for name in SPEEDS if "experts" not in name]
# of a class -> of its datasheet's FLOP/s, which large products reach
SHARES = {
    "Megatron-LM on A100": 0.89,
    "Megatron-LM on H100": 0.79,
    "Megatron-LM on B200": 0.46,
    "FSDP on A100": 0.68,
    "FSDP on H100": 0.53,
    "DeepSpeed on A100": 0.62,
    "nanotron on H100": 0.61,
}
LAYERS = MICROBATCHES = (1, 2)
RECOMPUTE_ALL, MOST_RANKS, MOST_FITTED = 3, 1024, 18
SIZES = GPTConfig().quantities().keys()


class Published(NamedTuple):
    """A row of the table."""

    row: dict
    fitted: bool

    @property
    def seconds(self) -> float:
        return float(self.row["seconds"])

    @property
    def class_name(self) -> str:
        speed, best = self.row["speed"], self.row["name"].endswith("nodes")
        return speed + (", best layouts" if best else ", others") * speed.startswith("nanotron")


def able_rows(speed: str) -> list[Published]:
    rows = enumerate(seconds_rows(speed))
    return [Published(row, place % 2 == 0) for place, row in rows if can_run(row)]


def can_run(row) -> bool:
    one = ("pipeline_parallel", "context_parallel", "expert_parallel")
    whole = int(row["recompute_policy"]) in (0, RECOMPUTE_ALL)
    whole = whole and int(row["gpus"]) <= MOST_RANKS
    return whole and all(int(row[name]) == 1 for name in one)


# --- a step ---------------------------------------------------------------------------------------


def virtual_seconds(row, gpu: GPU | None = None) -> float:
    layout = published_layout(row)
    wanted = layout.sizes["layers"], layout.accumulation_steps
    counts = [count for count in MICROBATCHES if count <= wanted[1]]
    gpu = gpu or gpu_of(row, layout, SHARES[row["speed"]])
    of_steps = [
        line(LAYERS, [step_seconds(gpu, row, layout, one, steps) for one in LAYERS], wanted[0])
        for steps in counts
    ]
    return line(counts, of_steps, wanted[1]) if len(counts) == 2 else of_steps[0]


def line(at, values, wanted) -> float:
    """The straight line through two points, at a third."""
    return values[0] + (values[1] - values[0]) / (at[1] - at[0]) * (wanted - at[0])


def gpu_of(row, layout: RankLayout, share: float) -> GPU:
    """The recorded one, with the class's shares. The formula takes its share of scores of six
    products of all of them; a fused kernel here has seven of half of them, because its backward
    multiplies the scores again."""
    speed, recorded = SPEEDS[row["speed"]], recorded_gpu(layout.gpu, layout.ranks_per_node)
    network = recorded.links.network_bytes_per_second * speed.network_share / BANDWIDTH_SHARE
    rates = recorded.flops_per_second.items()
    return replace(
        recorded,
        links=replace(recorded.links, network_bytes_per_second=network),
        flops_per_second={of: share / CLOCK["product_share"] * rate for of, rate in rates},
        attention_share=7 / 12 / speed.score_share * speed.utilisation / share,
    )


def fitted_share(speed: str) -> float:
    """Seconds are a constant, and a part divided by the share: two tries of each row find both."""
    low, high, candidates = 0.5, 1.0, [hundredths / 100 for hundredths in range(30, 101)]
    errors = dict.fromkeys(candidates, 0.0)
    rows = [one for one in able_rows(speed) if one.fitted]
    for one in rows[:: -(-len(rows) // MOST_FITTED)]:
        layout = published_layout(one.row)
        slow, fast = (virtual_seconds(one.row, gpu_of(one.row, layout, own)) for own in (low, high))
        work = (slow - fast) / (1 / low - 1 / high)
        for share in candidates:
            seconds = fast + work * (1 / share - 1 / high)
            errors[share] += abs(seconds / one.seconds - 1)
    return min(candidates, key=errors.get)


def step_seconds(gpu: GPU, row, layout: RankLayout, layers: int, steps: int) -> float:
    dtype = torch.float16 if layout.recipe.startswith("fp16") else torch.bfloat16
    ahead = SPEEDS[row["speed"]].overlap
    with VirtualGPUs(layout.gpus, gpu) as own:
        torch.set_default_dtype(torch.float32 if layout.zero_stage == 3 else dtype)
        sizes = {name: layout.sizes[name] for name in SIZES & layout.sizes.keys()}
        sizes |= numbers_in(row["more"]) | dict(layers=layers)
        sizes["fused_attention"] = bool(sizes.get("fused_attention", True))
        sizes["max_sequence"] = max(sizes.get("max_sequence", 0), layout.sequence)
        net = GPT(GPTConfig(**sizes))
        fuse(net, row)
        torch.set_default_dtype(torch.float32)
        train = training(net, row, layout, steps, dtype, ahead)
        train()
        seconds = [0]
        outlives = layout.zero_stage in (1, 2) and ahead
        for count in (1, 2) if outlives else (1,):
            with own.step() as step:
                for _ in range(count):
                    train()
            seconds.append(step.seconds)
    return seconds[-1] - seconds[-2]


def training(net: GPT, row, layout, steps: int, dtype, ahead: bool) -> Callable:
    tensor, group = layout.tensor_parallel, dist.group.WORLD
    data, loss_of = group, one_kernel_loss if has_one_loss(row) else next_token_loss
    vocabulary, sequence = net.config.vocabulary, False
    if tensor > 1:
        with disable_modes():  # a mesh has real numbers
            mesh = Mesh(dp=layout.gpus // tensor, tp=tensor)
        data, group = mesh.dp.group, mesh.tp.group
        sequence = layout.sequence_parallel is None or bool(layout.sequence_parallel)
        plan = sequence_parallel(gpt_plan(net.config)) if sequence else gpt_plan(net.config)
        apply_tensor_parallel(net, overlapped(plan) if ahead else plan, group)
        drop_in_one_kernel(net)
        if not has_one_loss(row):
            loss_of = partial(vocabulary_parallel_loss, vocabulary=vocabulary, group=group)

    stage, adam = layout.zero_stage, torch.optim.AdamW
    alone = layout.gpus == tensor
    wide = quantities(recipe=layout.recipe)["gradient_element_bytes"] == 4
    if layout.recompute_policy == RECOMPUTE_ALL:
        net.blocks = nn.ModuleList(map(Recomputed, net.blocks))
    if stage == 0 or alone:
        model = net if alone or wide else DistributedDataParallel(net, group=data, overlap=ahead)
        optimizer = adam(net.parameters(), fused=True)
    else:
        options = dict(prefetch=True) if ahead else {}
        if stage == 3:
            units = [net.embedding, *net.blocks, net.head]
            options |= dict(units=units, compute_dtype=dtype)
        elif wide:
            options["collectives"] = Fp32Gradients()
        model, optimizer = zero.shard(net, adam, stage=stage, group=data, fused=True, **options)
    tokens = torch.zeros(layout.microbatch, layout.sequence, dtype=torch.long)
    waits = getattr(optimizer, "no_sync", None) or getattr(model, "no_sync", None) or nullcontext

    def train():
        for number in range(steps):
            with waits() if number < steps - 1 and stage < 2 else nullcontext():
                loss_of(model(tokens), tokens).backward()
        if sequence:
            sum_gradients(optimizer, group)
        if stage == 0 and wide and not alone:
            gradients = [parameter.grad.flatten() for parameter in net.parameters()]
            dist.all_reduce(torch.cat(gradients).float(), group=data)
        optimizer.step()
        optimizer.zero_grad()

    return train


class Fp32Gradients(Native):
    """16-bit gradients travel in fp32, early where there is time."""

    def begin_reduce_scatter(self, tensors: list[Tensor], group, share: float) -> Callable:
        wide = [tensor.float() for tensor in tensors]
        tensors.clear()
        return super().begin_reduce_scatter(wide, group, share)


# --- kernels of the published code: the bytes are right, the values are not -----------------------


def fuse(net: GPT, row):
    config = net.config
    for block in net.blocks:
        if not config.biases:
            block.attention_norm, block.mlp_norm = one_norm(config), one_norm(config)
        if not config.learned_positions:
            block.attention.rotary = None if row["speed"].startswith("FSDP") else Turned()
        if not config.fused_attention:
            block.attention.core = MaskedSoftmax(config)
    if not config.biases:
        net.head.norm = one_norm(config)


def one_norm(config: GPTConfig) -> nn.Module:
    return nn.LayerNorm(config.hidden, bias=False)


class Turned(nn.Module):
    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q * 1, k * 1


class MaskedSoftmax(CoreAttention):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.dropout(torch.softmax(q @ k.transpose(-2, -1), -1)) @ v


def drop_in_one_kernel(net: nn.Module):
    """Each rank draws for its own part, as Megatron-LM's do."""
    for module in list(net.modules()):
        for name, child in module.named_children():
            if isinstance(child, OwnDropout):
                setattr(module, name, Dropout(child.p))


def has_one_loss(row) -> bool:
    return "fused loss" in row["kernels"] or row["speed"].startswith("FSDP")


class OneLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores: Tensor) -> Tensor:
        ctx.save_for_backward(scores)
        return scores.sum()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return ctx.saved_tensors[0] * gradient


def one_kernel_loss(scores: Tensor, targets: Tensor) -> Tensor:
    return OneLoss.apply(scores)


# --- the table ------------------------------------------------------------------------------------


class Beside(NamedTuple):
    one: Published
    virtual_seconds: float
    unfitted: bool = False  # at the rates of recorded_gpu

    @property
    def ratio(self) -> float:
        return self.virtual_seconds / self.one.seconds

    def recorded(self) -> Row:
        row = self.one.row
        case = dict(run=row["name"], speed=self.one.class_name)
        case |= dict(published_seconds=self.one.seconds)
        name = "virtual.unfitted" if self.unfitted else "virtual.published"
        return Row(name, self.ratio, "ratio", case | dict(fitted=self.one.fitted))

    def __str__(self):
        row, kind = self.one.row, "fitted" if self.one.fitted else "held out"
        kind = "as it is" if self.unfitted else kind
        seconds = f"{self.one.seconds:9.3f}{self.virtual_seconds:9.3f}{self.ratio:7.2f}"
        return f"{row['speed']:22}{row['name']:45}{kind:10}{seconds}"


def main():
    if not sys.argv[1:]:
        for speed in DENSE:
            print(speed, fitted_share(speed), flush=True)
        return
    found = []
    for speed in sys.argv[2:] or DENSE:
        own = []
        for one in able_rows(speed):
            besides = [Beside(one, virtual_seconds(one.row))]
            own += besides
            if speed.endswith("H100") and not one.fitted:
                layout = published_layout(one.row)
                gpu = recorded_gpu(layout.gpu, layout.ranks_per_node)
                besides.append(Beside(one, virtual_seconds(one.row, gpu), unfitted=True))
            recorded([beside.recorded() for beside in besides], Path(sys.argv[1]), "published")
            print(*besides, sep="\n", flush=True)
        found += own
        print(said(speed, own), flush=True)
    print(said("all", found))


def said(name: str, found: list[Beside]) -> str:
    parts = []
    for fitted in (True, False):
        ratios = [one.ratio for one in found if one.one.fitted is fitted]
        kind = "fitted by the formula" if fitted else "held out"
        parts.append(f"{len(ratios)} {kind}, median {median(ratios):.2f}")
    return f"{name}: " + "; ".join(parts)


if __name__ == "__main__":
    main()
