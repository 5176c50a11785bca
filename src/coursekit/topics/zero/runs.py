"""Recordings of `make gpu` and races of `make bench` for ZeRO: this book's three stages, with and
without offload, beside PyTorch's ZeroRedundancyOptimizer and fully_shard.

Ranks that share a GPU talk through gloo, over the host: results and bytes count, their times say
nothing about a cluster.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel as TorchDataParallel

from coursekit.formulas import RECIPES, evaluate
from coursekit.recordings import races
from coursekit.recordings.attempts import attempt
from coursekit.recordings.races import TASKS, TINY, TURNS, Bench, Result, Run, TrainingTask, Way
from coursekit.recordings.recordings import Row
from coursekit.topics.zero import deepspeed
from coursekit.topics.zero.fast_ring import FastRing
from ranklab.measure.weigh import storage_bytes
from ranklab.ranks import ranks
from shardlab.common.torch_internals import local_tensor
from shardlab.zero import core, core_stage3, shard
from shardlab.zero.hardened import flat
from shardlab.zero.hardened.full_parameters import unsharded
from shardlab.zero.hardened.stage3 import sharded_units

# of a parameter's change in two steps, in fp32: sums in another order, and weights near 1 have few
# digits for it
LOSS_TOLERANCE = 1e-3
PEAK = 1.02  # of the least that PyTorch's ways need, at most
PINNED = "allocated_bytes"  # of the blocks of pinned memory, which are powers of two


# --- the ways -------------------------------------------------------------------------------------


def our_stage(net, optimizer_cls, stage, readable=False, **settings):
    """This book's stages, with the ring that pages print, or with what is fastest for the
    backend."""
    best = flat.best_collectives(next(net.parameters()).device)
    best = FastRing() if type(best) is flat.Ring else best
    collectives = flat.Ring() if readable else best
    return shard(net, optimizer_cls, stage=stage, collectives=collectives, **settings)


def core_stage(net, optimizer_cls, stage, kind=None, **settings):
    """The core of stage 3, or that of stage 1 or 2, whose optimizer is `kind`."""
    if kind:
        return net, kind(net.parameters(), optimizer_cls, **settings)
    core_stage3.fully_shard(net, [net.embedding, *net.blocks, net.head])
    return net, optimizer_cls(net.parameters(), **settings)


def redundancy_optimizer(net, optimizer_cls, tuned=False, **settings):
    # here: it compiles things when it is imported
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = TorchDataParallel(net, gradient_as_bucket_view=tuned, static_graph=tuned)
    return model, ZeroRedundancyOptimizer(
        net.parameters(), optimizer_cls, parameters_as_bucket_view=tuned, **settings
    )


def torch_fully_shard(net, optimizer_cls, offload=False, reshard=None, **settings):
    from torch.distributed import fsdp

    mesh = init_device_mesh(next(net.parameters()).device.type, (dist.get_world_size(),))
    options = dict(offload_policy=fsdp.CPUOffloadPolicy()) if offload else {}
    if reshard is not None:
        options["reshard_after_forward"] = reshard
    # its embedding and head share a weight: they are the root's
    for unit in (*net.blocks, net):
        fsdp.fully_shard(unit, mesh=mesh, **options)
    return net, optimizer_cls(net.parameters(), **settings)


REDUNDANCY = ("PyTorch, ZeroRedundancyOptimizer", "PyTorch, ZeroRedundancyOptimizer, tuned")
FULLY = ("PyTorch, fully_shard", "PyTorch, fully_shard, root freed")
FULLY_KEPT = "PyTorch, fully_shard, all kept after forward"
FULLY_OFFLOADED = "PyTorch, fully_shard, on the host"
WAYS = {
    "stage 1": Way(our_stage, dict(stage=1), REDUNDANCY, 1.0),
    "stage 1, readable": Way(our_stage, dict(stage=1, readable=True), REDUNDANCY),
    "stage 1, core": Way(core_stage, dict(stage=1, kind=core.ShardedStates), REDUNDANCY),
    "stage 2": Way(our_stage, dict(stage=2), REDUNDANCY),
    "stage 2, readable": Way(our_stage, dict(stage=2, readable=True), REDUNDANCY),
    "stage 2, core": Way(core_stage, dict(stage=2, kind=core.ShardedGradients), REDUNDANCY),
    "stage 3": Way(our_stage, dict(stage=3), FULLY, 1.0),
    "stage 3, readable": Way(our_stage, dict(stage=3, readable=True), FULLY),
    "stage 3, core": Way(core_stage, dict(stage=3), FULLY),
    "stage 1, states on the host": Way(our_stage, dict(stage=1, offload=True), REDUNDANCY),
    "stage 2, states on the host": Way(our_stage, dict(stage=2, offload=True), REDUNDANCY),
    "stage 3, shards on the host": Way(our_stage, dict(stage=3, offload=True), (FULLY_OFFLOADED,)),
    REDUNDANCY[0]: Way(redundancy_optimizer),
    REDUNDANCY[1]: Way(redundancy_optimizer, dict(tuned=True)),
    FULLY[0]: Way(torch_fully_shard),
    FULLY[1]: Way(torch_fully_shard, dict(reshard=True)),
    FULLY_KEPT: Way(torch_fully_shard, dict(reshard=False)),
    FULLY_OFFLOADED: Way(torch_fully_shard, dict(offload=True)),
}


# --- make gpu -------------------------------------------------------------------------------------


def zero(
    device: torch.device,
    task: TrainingTask | None = None,
    turns: int = 7,
    names: Iterable[str] = tuple(WAYS),
    offload: bool = False,
) -> Iterator[Row]:
    """Right parameters, bytes on the GPU and on the host, messages and times of these ways, either
    of those that offload or of the others."""
    # PyTorch offloads from a GPU only
    able = {name: WAYS[name] for name in names if device.type != "cpu" or name != FULLY_OFFLOADED}
    ways = {name: way for name, way in able.items() if offload == ("offload" in way.options)}
    for case, trained in races.layouts(device, task):
        part = f"zero{', offloaded' * offload}, {case['ranks']} ranks"
        rows = races.rows_of_ways("zero", part, case, ways, trained, turns, rows_of)
        yield from attempt(part, rows)


def zero_offloaded(device: torch.device, **settings) -> Iterator[Row]:
    """A group of its own, and late: the host's optimizers take the time of all other ways."""
    return zero(device, offload=True, **settings)


def rows_of(world, way: Way, task: TrainingTask, case: dict) -> Iterator[Row]:
    """The rows of one way. A formula stands beside the bytes that rest on rank 0 after a step,
    without gradients and step counters."""
    device, ours = case["device"], bool(way.peers)
    if ours:
        right, of = world.run(right_parameters, way, task, device)[0]
        yield Row("zero.right_parameters", right, "count", case, "parameter_tensors", of)
    rest, flats, pinned = world.run(bytes_at_rest, way, task, device)[0]
    want = states_of_way(way, flats, world.world_size) if ours else {}
    where = {"host": "cpu", device: device} if device != "cpu" else {device: device}
    for place, kind in where.items():
        this = dict(**case, where=place)
        formula = "zero_parameter_bytes + zero_optimizer_bytes, where they lie"
        bytes_there = sum(want.values()) if device == "cpu" else want.get(kind)
        predicted = (formula, bytes_there) if ours else ()
        yield Row("zero.rests", rest.get(kind, 0), "bytes", this, *predicted)
        step = world.run(races.weighed, way, task, device=device, kind=kind)[0]
        yield Row("zero.peak", step.peak_bytes, "bytes", this)
    for operation, total in step.messages.items():
        if operation != "recv":
            this = dict(**case, operation=operation)
            sent = ("zero_sent_bytes", sent_by_way(way, flats, world.world_size))
            predicted = sent if operation == "send" else ()
            yield Row("zero.messages", total.nbytes, "bytes", this, *predicted)
    if device == "cuda":
        yield Row("zero.allocated_peak", step.allocated_bytes, "bytes", case)
    for counter, nbytes in pinned.items():
        yield Row("zero.pinned", nbytes, "bytes", dict(**case, counter=counter))


def given_of(way: Way, size: int, count: int) -> dict[str, int]:
    """Rank 0's part of one flat tensor, in the words of the formulas."""
    return {
        **RECIPES["fp32 Adam"].quantities,
        "zero_stage": way.options["stage"],
        "parameters": size,
        "data_parallel": count,
        "rank": 0,
        "accumulation_steps": 1,
    }


def sent_by_way(way: Way, flats: list[int], count: int) -> int:
    """The bytes that rank 0 sends in a step, by the ring formula."""
    return sum(
        evaluate(["zero_sent_bytes"], **given_of(way, size, count))["zero_sent_bytes"]
        for size in flats
    )


def states_of_way(way: Way, flats: list[int], count: int) -> dict[str, int]:
    """Bytes of parameters and optimizer states on rank 0, by the kind of device on which they lie
    if ranks compute on "cuda"."""
    want, stage = {"cuda": 0, "cpu": 0}, way.options["stage"]
    offload = way.options.get("offload", False)
    for size in flats:
        given = given_of(way, size, count)
        found = evaluate(
            ["zero_parameter_bytes", "zero_optimizer_bytes", "zero_shard_parameters"],
            allow_unused=True,
            **given,
        )
        parameters, states = found["zero_parameter_bytes"], found["zero_optimizer_bytes"]
        want["cuda" if stage < 3 or not offload else "cpu"] += parameters
        want["cpu" if offload else "cuda"] += states
        if offload and stage < 3:  # the host's copy of the shard
            want["cpu"] += given["parameter_element_bytes"] * found["zero_shard_parameters"]
    return want


# --- make bench -----------------------------------------------------------------------------------


def race(
    tasks: Sequence[TrainingTask] = TASKS, counts: Sequence[int] = (2, 4), turns: int = TURNS
) -> list[Result]:
    """Step times in turns, peak bytes and bytes sent of each stage, beside the faster of PyTorch's
    ways that keep no more."""
    results = []
    for count in counts:
        with ranks(count, device="cpu", announce=False) as world:
            for task in tasks:
                for peers, kept in ((REDUNDANCY, ()), (FULLY, (FULLY_KEPT,))):
                    ours = [name for name, way in WAYS.items() if way.peers == peers]
                    ours = [name for name in ours if not WAYS[name].options.get("offload")]
                    theirs = (*peers, *kept)
                    results += beside_torch(world, task, ours, peers, theirs, turns)
    return results


def beside_torch(
    world,
    task: TrainingTask,
    ours: list[str],
    peers: Sequence[str],
    theirs: Sequence[str],
    turns: int,
) -> list[Result]:
    ways = {name: WAYS[name] for name in (*ours, *theirs)}
    steps = {name: world.run(races.weighed, way, task)[0] for name, way in ways.items()}
    times = world.run(races.train_in_turns, ways, task, turns)[0]
    least = min(theirs, key=lambda name: steps[name].peak_bytes)
    peer, on = races.fastest(times, peers), f"{world.world_size} ranks, {task.name}"
    results = []
    for name in ours:
        flats = world.run(bytes_at_rest, ways[name], task, "cpu")[0][1]
        count = world.world_size
        sent = steps[name].sent_bytes(count), sent_by_way(ways[name], flats, count)
        peaks = steps[name].peak_bytes, steps[least].peak_bytes
        what = f"{name}, {on}"
        results += [
            races.step_result("zero", on, times, name, peer, ways[name].most, what),
            races.share_result(
                "zero", what, "peak", least, *peaks, None if ways[name].wrap is core_stage else PEAK
            ),
            races.share_result("zero", what, "sent", "the ring formula", *sent, 1),
        ]
    results += [races.step_result("zero", on, times, name, peer) for name in theirs if name != peer]
    return results


# --- on a rank ------------------------------------------------------------------------------------


def right_parameters(way: Way, task: TrainingTask, device: str) -> tuple[int, int]:
    """(how many parameters are the plain model's after two steps of SGD over all ranks' batches,
    how many there are); batches of one sequence, as every rank computes all of them"""
    task = task._replace(microbatch=1)
    plain, net = task.model(device), task.model(device)
    before = {key: p.detach().clone() for key, p in plain.named_parameters()}
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    model, sharded = way.build(net, torch.optim.SGD, lr=0.5)
    for batch in task.batches(device, steps=2):
        races.train_step(plain, optimizer, batch.flatten(0, 1))
        races.train_step(model, sharded, batch[dist.get_rank()])
    with unsharded(net) if hasattr(net, "sharded_unit") else torch.no_grad():
        whole = hasattr(net, "zero_unit")
        found = core_stage3.whole_parameters(net) if whole else dict(net.named_parameters())
        close = [
            bool((found[key] - p).norm() <= LOSS_TOLERANCE * (p - before[key]).norm())
            for key, p in plain.named_parameters()
        ]
    return sum(close), len(close)


def bytes_at_rest(
    way: Way, task: TrainingTask, device: str
) -> tuple[dict[str, int], list[int], dict[str, int]]:
    """After a step of AdamW, (bytes of parameters and optimizer states by kind of device, elements
    of our flat tensors, bytes of pinned memory). Numbers, such as step counters, are left out."""
    races.empty_gpu(device)
    net = task.model(device)
    model, optimizer = way.build(net, torch.optim.AdamW, lr=1e-3)
    races.train_step(model, optimizer, task.tokens(device))
    buckets = getattr(optimizer, "buckets", [])
    inner = getattr(optimizer, "inner", getattr(optimizer, "optim", optimizer))
    held = [
        *net.parameters(),
        *(bucket.flat for bucket in buckets),
        *(host for _, host in getattr(inner, "pairs", ())),
    ]
    states = [value for state in inner.state.values() for value in state.values()]
    held += [value for value in states if isinstance(value, torch.Tensor) and value.dim()]
    held = [local_tensor(tensor) for tensor in held]
    held = [tensor for tensor in held if not tensor.is_meta]
    rest = {
        kind: storage_bytes(t for t in held if t.device.type == kind)
        for kind in {t.device.type for t in held}
    }
    flats = [bucket.flat.numel() for bucket in buckets]
    units = [unit.sharded_unit for unit in sharded_units(net)]
    units += [child.zero_unit for child in net.modules() if hasattr(child, "zero_unit")]
    flats += [flat.full.numel() for unit in units for flat in unit.flats]
    return rest, flats, pinned_bytes() if device == "cuda" else {}


def pinned_bytes() -> dict[str, int]:
    """The pinned bytes of this process, by counter; nothing where this PyTorch keeps those of the
    way before. Its active_bytes never fall."""
    stats = torch.cuda.host_memory_stats() if races.EMPTIES_PINNED else {}
    return {PINNED: stats[f"{PINNED}.current"]} if stats else {}


FEW = ("stage 1", "stage 2, readable", "stage 3, shards on the host", REDUNDANCY[1], FULLY[0])
LITTLE = dict(task=TINY, turns=1, names=FEW)
RUNS = (Run(30, zero, LITTLE), Run(65, zero_offloaded, LITTLE))
BENCHES = (
    Bench("zero", race, dict(tasks=(TINY,), counts=(2,), turns=2)),
    Bench(
        "deepspeed",
        partial(deepspeed.race, {stage: WAYS[f"stage {stage}"] for stage in (1, 2, 3)}),
        dict(task=TINY, turns=2),
    ),
)
