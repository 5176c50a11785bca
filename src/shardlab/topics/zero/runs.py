"""Rows of `make gpu` about ZeRO: our three stages, with and without offload, beside PyTorch's
ZeroRedundancyOptimizer and fully_shard.

Ranks that share a GPU talk through gloo, over the host: results and bytes count, their times say
nothing about a cluster.
"""

from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel as TorchDataParallel

from shardlab.formulas import RECIPES, evaluate
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.measure.attempts import FAILED, attempt
from shardlab.measure.communication import CommunicationLog
from shardlab.measure.ledger import Ledger
from shardlab.measure.links import finish
from shardlab.measure.recordings import Row
from shardlab.measure.weigh import storage_bytes
from shardlab.ranks import ranks
from shardlab.torch_internals import local_tensor
from shardlab.zero import shard
from shardlab.zero.stage3 import sharded_units
from shardlab.zero.whole import unsharded

SIZES = dict(layers=4, hidden=512, heads=8, vocabulary=8192, max_sequence=128)
MICROBATCH, TURNS, WARM_UP = 4, 7, 3  # PyTorch arranges its buckets anew after the first step
# of a parameter's change in two steps, in fp32: sums in another order, and weights near 1 have few
# digits for it
CLOSE = 1e-3
# in use; of the blocks of pinned memory, which are powers of two
PINNED = ("active_bytes", "allocated_bytes")


# --- the ways: each makes of a network what is called, and its optimizer --------------------------


def ours(stage, offload=False):
    def wrap(net, optimizer_cls, **settings):
        return shard(net, optimizer_cls, stage=stage, offload=offload, **settings)

    return wrap


def redundancy_optimizer(net, optimizer_cls, **settings):
    # here: it compiles things when it is imported
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = TorchDataParallel(net, gradient_as_bucket_view=True, static_graph=True)
    return model, ZeroRedundancyOptimizer(
        net.parameters(), optimizer_cls, parameters_as_bucket_view=True, **settings
    )


def torch_fully_shard(offload=False):
    def wrap(net, optimizer_cls, **settings):
        from torch.distributed import fsdp

        mesh = init_device_mesh(next(net.parameters()).device.type, (dist.get_world_size(),))
        options = dict(offload_policy=fsdp.CPUOffloadPolicy()) if offload else {}
        # its embedding and head share a weight: they are the root's
        for unit in (*net.blocks, net):
            fsdp.fully_shard(unit, mesh=mesh, **options)
        return net, optimizer_cls(net.parameters(), **settings)

    return wrap


class Way(NamedTuple):
    wrap: Callable
    peer: str = ""  # of PyTorch's
    stage: int = 0  # of ours
    offload: bool = False


REDUNDANCY, FULLY, FULLY_OFFLOADED = (
    "PyTorch, ZeroRedundancyOptimizer",
    "PyTorch, fully_shard",
    "PyTorch, fully_shard, on the host",
)
WAYS = {
    "stage 1": Way(ours(1), REDUNDANCY, 1),
    "stage 2": Way(ours(2), REDUNDANCY, 2),
    "stage 3": Way(ours(3), FULLY, 3),
    "stage 1, states on the host": Way(ours(1, True), REDUNDANCY, 1, True),
    "stage 2, states on the host": Way(ours(2, True), REDUNDANCY, 2, True),
    "stage 3, shards on the host": Way(ours(3, True), FULLY_OFFLOADED, 3, True),
    REDUNDANCY: Way(redundancy_optimizer),
    FULLY: Way(torch_fully_shard()),
    FULLY_OFFLOADED: Way(torch_fully_shard(True), offload=True),
}


# --- the rows -------------------------------------------------------------------------------------


def zero(device: torch.device) -> Iterator[Row]:
    """Right parameters, bytes on the GPU and on the host, messages and times: two ranks on each GPU
    (gloo), and one on each (NCCL) of several."""
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    for count in (2 * gpus, gpus) if gpus > 1 else (2,):
        case = dict(
            ranks=count,
            backend="nccl" if count == gpus else "gloo",
            device=device.type,
            ranks_share_a_gpu=count > gpus > 0,
        )
        yield from attempt(f"zero, {count} ranks", on_ranks(count, case))


def on_ranks(count: int, case: dict) -> Iterator[Row]:
    device, works = case["device"], []
    with ranks(count, device=device, announce=False) as world:
        for name, way in WAYS.items():
            if device == "cpu" and name == FULLY_OFFLOADED:  # PyTorch offloads from a GPU only
                continue
            rows = list(
                attempt(
                    f"zero, {name}, {count} ranks",
                    rows_of(world, name, way, {**case, "implementation": name}),
                )
            )
            yield from rows
            if not any(row.name == FAILED for row in rows):
                works.append(name)
        yield from attempt(f"zero, times, {count} ranks", times(world, works, case))


def rows_of(world, name: str, way: Way, case: dict) -> Iterator[Row]:
    """Of one way. A formula where there is one: of what rests on rank 0 after a step, without
    gradients and step counters."""
    device = case["device"]
    if way.stage:
        right, of = world.run(right_parameters, name, device, SIZES)[0]
        yield Row("zero.right_parameters", right, "count", case, "parameter_tensors", of)
    rest, flats, pinned = world.run(resting, name, device, SIZES)[0]
    want = states_of(way, flats, world.world_size)
    where = {"host": "cpu", device: device} if device != "cpu" else {device: device}
    for place, kind in where.items():
        this = dict(**case, where=place)
        predicted = (
            ()
            if not way.stage
            else (
                "zero_parameter_bytes + zero_optimizer_bytes, where they lie",
                sum(want.values()) if device == "cpu" else want[kind],
            )
        )
        yield Row("zero.rests", rest.get(kind, 0), "bytes", this, *predicted)
        peak, sent, allocated = world.run(fullest, name, device, SIZES, kind)[0]
        yield Row("zero.peak", peak, "bytes", this)
    sent.pop("recv", None)
    for operation, nbytes in sent.items():
        predicted = (
            ("zero_sent_bytes", sent_by(way, flats, world.world_size))
            if operation == "send"
            else ()
        )
        yield Row("zero.messages", nbytes, "bytes", dict(**case, operation=operation), *predicted)
    if device == "cuda":
        yield Row("zero.allocated_peak", allocated, "bytes", case)
    for counter, nbytes in pinned.items():
        yield Row("zero.pinned", nbytes, "bytes", dict(**case, counter=counter))


def given_of(way: Way, size: int, count: int) -> dict[str, int]:
    """Rank 0's part of one flat tensor, in the words of the formulas."""
    return {
        **RECIPES["fp32 Adam"].quantities,
        "zero_stage": way.stage,
        "parameters": size,
        "data_parallel": count,
        "rank": 0,
        "accumulation_steps": 1,
    }


def sent_by(way: Way, flats: list[int], count: int) -> int:
    return sum(
        evaluate(["zero_sent_bytes"], **given_of(way, size, count))["zero_sent_bytes"]
        for size in flats
    )


def states_of(way: Way, flats: list[int], count: int) -> dict[str, int]:
    """Bytes of parameters and optimizer states on rank 0, by the kind of device on which they lie
    if ranks compute on "cuda"."""
    want = {"cuda": 0, "cpu": 0}
    for size in flats if way.stage else ():
        given = given_of(way, size, count)
        found = evaluate(
            ["zero_parameter_bytes", "zero_optimizer_bytes", "zero_shard_parameters"], **given
        )
        parameters, states = found["zero_parameter_bytes"], found["zero_optimizer_bytes"]
        want["cuda" if way.stage < 3 or not way.offload else "cpu"] += parameters
        want["cpu" if way.offload else "cuda"] += states
        if way.offload and way.stage < 3:  # the host's copy of the shard
            want["cpu"] += given["parameter_element_bytes"] * found["zero_shard_parameters"]
    return want


def times(world, works: list[str], case: dict) -> Iterator[Row]:
    seconds = world.run(raced, works, case["device"], SIZES, TURNS)[0]
    for name in works:
        this = dict(**case, implementation=name)
        yield Row("zero.step", median(seconds[name]), "seconds", this)
        if (peer := WAYS[name].peer) in seconds:
            ratio = median(ours / theirs for ours, theirs in zip(seconds[name], seconds[peer]))
            yield Row("zero.step_ratio", ratio, "ratio", dict(**this, peer=peer))


# --- on a rank ------------------------------------------------------------------------------------


def build(device: str, sizes: dict) -> GPT:
    torch.manual_seed(0)
    return GPT(GPTConfig(**sizes)).to(device)


def batches(device: str, sizes: dict, count: int = 2) -> torch.Tensor:
    """[count, n, B, S]: the same on all ranks, each of which takes its own part."""
    draw = torch.Generator().manual_seed(0)
    return torch.randint(
        sizes["vocabulary"],
        (count, dist.get_world_size(), MICROBATCH, sizes["max_sequence"]),
        generator=draw,
    ).to(device)


def train(model, optimizer, tokens):
    next_token_loss(model(tokens), tokens).backward()
    optimizer.step()
    optimizer.zero_grad()


def right_parameters(name: str, device: str, sizes: dict) -> tuple[int, int]:
    """(how many parameters are the plain model's after two steps of SGD over all ranks' batches,
    how many there are)"""
    tokens, plain = batches(device, sizes), build(device, sizes)
    before = {key: p.detach().clone() for key, p in plain.named_parameters()}
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    net = build(device, sizes)
    model, sharded = WAYS[name].wrap(net, torch.optim.SGD, lr=0.5)
    for batch in tokens:
        train(plain, optimizer, batch.flatten(0, 1))
        train(model, sharded, batch[dist.get_rank()])
    with unsharded(net) if WAYS[name].stage == 3 else torch.no_grad():
        found = dict(net.named_parameters())
        close = [
            bool((found[key] - p).norm() <= CLOSE * (p - before[key]).norm())
            for key, p in plain.named_parameters()
        ]
    return sum(close), len(close)


def resting(
    name: str, device: str, sizes: dict
) -> tuple[dict[str, int], list[int], dict[str, int]]:
    """After a step of AdamW, (bytes of parameters and optimizer states by kind of device, elements
    of our flat tensors, bytes of pinned memory). Numbers, such as step counters, are left out."""
    net = build(device, sizes)
    model, optimizer = WAYS[name].wrap(net, torch.optim.AdamW, lr=1e-3)
    train(model, optimizer, batches(device, sizes)[0, dist.get_rank()])
    buckets = getattr(optimizer, "buckets", [])
    inner = getattr(optimizer, "inner", getattr(optimizer, "optim", optimizer))
    held = [
        *net.parameters(),
        *(bucket.flat for bucket in buckets),
        *(host for _, host in getattr(inner, "pairs", ())),
    ]
    held += [
        t
        for state in inner.state.values()
        for t in state.values()
        if isinstance(t, torch.Tensor) and t.dim()
    ]
    held = [local_tensor(tensor) for tensor in held]
    held = [tensor for tensor in held if not tensor.is_meta]
    rest = {
        kind: storage_bytes(t for t in held if t.device.type == kind)
        for kind in {t.device.type for t in held}
    }
    flats = [bucket.flat.numel() for bucket in buckets]
    flats += [flat.full.numel() for unit in sharded_units(net) for flat in unit.sharded_unit.flats]
    return rest, flats, pinned_bytes() if device == "cuda" else {}


def pinned_bytes() -> dict[str, int]:
    """Of this process, by counter; nothing where this PyTorch does not tell."""
    stats = torch.cuda.host_memory_stats() if hasattr(torch.cuda, "host_memory_stats") else {}
    return {
        counter: stats[f"{counter}.current"] for counter in PINNED if f"{counter}.current" in stats
    }


def fullest(name: str, device: str, sizes: dict, kind: str) -> tuple[int, dict[str, int], int]:
    """(most bytes on devices of this kind in the third step by the ledger, bytes of its messages by
    operation, most bytes that the CUDA allocator had given out in it)"""
    net, tokens = build(device, sizes), batches(device, sizes)[0, dist.get_rank()]
    with Ledger(net, device=kind) as ledger:
        model, optimizer = WAYS[name].wrap(net, torch.optim.AdamW, lr=1e-3)
        for _ in range(WARM_UP):
            line = len(ledger.timeline)
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            with CommunicationLog() as log:
                train(model, optimizer, tokens)
    allocated = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    # nothing came or went on devices of this kind
    moments = ledger.timeline[line:] or ledger.timeline[-1:]
    return (
        max(moment.bytes.total for moment in moments),
        {name: total.nbytes for name, total in log.totals().items()},
        allocated,
    )


def raced(names: list[str], device: str, sizes: dict, turns: int) -> dict[str, list[float]]:
    """Seconds of each step, in turns."""
    tokens = batches(device, sizes)[0, dist.get_rank()]
    pairs = {
        name: WAYS[name].wrap(build(device, sizes), torch.optim.AdamW, lr=1e-3) for name in names
    }

    def seconds(name):
        dist.barrier()
        finish(tokens)
        begin = perf_counter()
        train(*pairs[name], tokens)
        finish(tokens)
        return perf_counter() - begin

    for name in [*names] * WARM_UP:
        seconds(name)
    found = [{name: seconds(name) for name in names} for _ in range(turns)]
    return {name: [turn[name] for turn in found] for name in names}


RUNS = ((30, zero),)
