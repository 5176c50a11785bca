"""Rows of `make gpu` about data parallelism: our DistributedDataParallel and PyTorch's, on every
way this machine has ranks.

Ranks that share a GPU talk through gloo, over the host: their gradients and bytes count, their
times say nothing about a cluster.
"""

from collections.abc import Iterator
from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as TorchDataParallel

from shardlab.data_parallel import DistributedDataParallel
from shardlab.formulas import RECIPES, evaluate
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.measure.attempts import attempt
from shardlab.measure.communication import CommunicationLog
from shardlab.measure.ledger import Ledger
from shardlab.measure.links import finish
from shardlab.measure.recordings import Row
from shardlab.ranks import ranks

SIZES = dict(layers=4, hidden=512, heads=8, vocabulary=8192, max_sequence=128)
MICROBATCH, TURNS, WARM_UP = 4, 11, 3  # PyTorch arranges its buckets anew after the first step
CLOSE = 1e-4  # relative, in fp32: sums in another order, and products of another shape
WAYS = {
    "shardlab": DistributedDataParallel,
    "shardlab, after backward": lambda net: DistributedDataParallel(net, overlap=False),
    "PyTorch": TorchDataParallel,
    "PyTorch, tuned": lambda net: TorchDataParallel(
        net, gradient_as_bucket_view=True, static_graph=True
    ),
}


def data_parallel(device: torch.device) -> Iterator[Row]:
    """Right gradients, bytes, peaks and times of a step: two ranks on each GPU (gloo), and one on
    each (NCCL) of several."""
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    for count in (2 * gpus, gpus) if gpus > 1 else (2,):
        case = dict(
            ranks=count,
            backend="nccl" if count == gpus else "gloo",
            device=device.type,
            ranks_share_a_gpu=count > gpus > 0,
        )
        yield from attempt(f"data_parallel, {count} ranks", on_ranks(count, case))


def on_ranks(count: int, case: dict) -> Iterator[Row]:
    given = {**GPTConfig(**SIZES).quantities(), **RECIPES["fp32 Adam"].quantities}
    want = evaluate(["parameter_tensors", "reduced_bytes"], **given)
    with ranks(count, device=case["device"], announce=False) as world:
        right, found = world.run(on_a_rank, case["device"], SIZES, TURNS)[0]
    yield Row(
        "data_parallel.right_gradients",
        right,
        "count",
        case,
        "parameter_tensors",
        want["parameter_tensors"],
    )
    for name, (reduced, messages, peak, seconds) in found.items():
        this = dict(**case, implementation=name)
        predicted = ("reduced_bytes", want["reduced_bytes"]) if name.startswith("shardlab") else ()
        yield Row("data_parallel.reduced", reduced, "bytes", this, *predicted)
        yield Row("data_parallel.messages", messages, "count", this)
        yield Row("data_parallel.peak", peak, "bytes", this)
        yield Row("data_parallel.step", median(seconds), "seconds", this)
        ratio = median(ours / theirs for ours, theirs in zip(seconds, found["PyTorch, tuned"][3]))
        yield Row("data_parallel.step_ratio", ratio, "ratio", this)


def on_a_rank(
    device: str, sizes: dict, turns: int
) -> tuple[int, dict[str, tuple[int, int, int, list[float]]]]:
    """(parameters whose gradient is the whole batch's, and for each way the bytes that it reduces,
    its messages, peak, times)."""
    n, me = dist.get_world_size(), dist.get_rank()
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(
        sizes["vocabulary"], (n, MICROBATCH, sizes["max_sequence"]), generator=generator
    ).to(device)

    def step(model):
        next_token_loss(model(tokens[me]), tokens[me]).backward()

    def timed(model):
        dist.barrier()
        finish(tokens)
        begin = perf_counter()
        step(model)
        finish(tokens)
        model.zero_grad()
        return perf_counter() - begin

    def build():
        torch.manual_seed(0)
        return GPT(GPTConfig(**sizes)).to(device)

    counted, models = {}, {}
    for name, wrap in WAYS.items():
        with Ledger(net := build(), device=device) as ledger:
            models[name] = wrap(net)
            for _ in range(WARM_UP):
                line = len(ledger.timeline)
                with CommunicationLog() as log:
                    step(models[name])
                net.zero_grad()
        sent = [message.nbytes for message in log.messages if message.operation == "all_reduce"]
        counted[name] = (
            sum(sent),
            len(sent),
            max(moment.bytes.total for moment in ledger.timeline[line:]),
        )

    whole = build()
    next_token_loss(whole(tokens.flatten(0, 1)), tokens.flatten(0, 1)).backward()
    step(models["shardlab"])
    pairs = zip(models["shardlab"].parameters(), whole.parameters())
    right = sum(
        bool((ours.grad - mean.grad).norm() <= CLOSE * mean.grad.norm()) for ours, mean in pairs
    )
    models["shardlab"].zero_grad()

    times = [{name: timed(model) for name, model in models.items()} for _ in range(turns)]
    return right, {name: (*counted[name], [turn[name] for turn in times]) for name in WAYS}


RUNS = ((40, data_parallel),)
