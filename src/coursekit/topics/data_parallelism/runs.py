"""Recordings of `make gpu` and races of `make bench` for data parallelism: this book's
DistributedDataParallel beside PyTorch's, on every way this machine has ranks; and what overlap
hides on a slow link.

Ranks that share a GPU talk through gloo, over the host: their gradients and bytes count, their
times say nothing about a cluster.
"""

from collections.abc import Iterator, Sequence
from statistics import median

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as TorchDataParallel

from coursekit.formulas import RECIPES, evaluate
from coursekit.recordings import races
from coursekit.recordings.attempts import attempt
from coursekit.recordings.races import TASKS, TINY, TURNS, Bench, Result, Run, TrainingTask, Way
from coursekit.recordings.recordings import Row
from coursekit.topics.data_parallelism.trace import Trace, trace_step
from ranklab.ranks import ranks
from ranklab.ranks.links import LinksUnavailable, two_hosts
from shardlab.data_parallel import DistributedDataParallel, core
from shardlab.gpt import GPTConfig, next_token_loss

FP32_TOLERANCE = 1e-4  # relative, in fp32: sums in another order, and products of another shape
RATIO = 1.05  # of the time of PyTorch's, at most
SMALL_BUCKETS = 5  # MiB: PyTorch's defaults are 1 for the first bucket and 25 for the others
SGD = torch.optim.SGD  # no states of its own


# --- the ways -------------------------------------------------------------------------------------


def replicas(net, optimizer_cls, cls=DistributedDataParallel, lr=1e-3, **options):
    model = cls(net, **options)
    return model, optimizer_cls(model.parameters(), lr=lr)


def exchange_nothing(net, optimizer_cls, **settings):
    """A rank that sends nothing."""
    return net, optimizer_cls(net.parameters(), **settings)


DEFAULTS = dict(cls=TorchDataParallel)
TUNED = dict(**DEFAULTS, gradient_as_bucket_view=True, static_graph=True)
PEERS = ("PyTorch", "PyTorch, tuned", "PyTorch, tuned, small buckets")
CORE = "core"
WAYS = {
    "shardlab": Way(replicas, peers=PEERS),
    "shardlab, small buckets": Way(replicas, dict(bucket_bytes=SMALL_BUCKETS << 20), PEERS),
    "shardlab, after backward": Way(replicas, dict(overlap=False), PEERS),
    CORE: Way(replicas, dict(cls=core.DistributedDataParallel), PEERS),
    "PyTorch": Way(replicas, DEFAULTS),
    "PyTorch, tuned": Way(replicas, TUNED),
    "PyTorch, tuned, small buckets": Way(replicas, dict(bucket_cap_mb=SMALL_BUCKETS, **TUNED)),
}


# --- make gpu -------------------------------------------------------------------------------------


def data_parallel(
    device: torch.device, task: TrainingTask | None = None, turns: int = 11
) -> Iterator[Row]:
    """Right gradients, bytes, peaks and times of a step."""
    for case, trained in races.layouts(device, task):
        part = f"data_parallel, {case['ranks']} ranks"
        yield from attempt(part, on_ranks(part, case, trained, turns))


def on_ranks(part: str, case: dict, task: TrainingTask, turns: int) -> Iterator[Row]:
    with ranks(case["ranks"], device=case["device"], announce=False) as world:
        yield from attempt(f"{part}, gradients", gradients_of(world, task, case))
    given = "data_parallel", part, case, WAYS, task, turns, rows_of
    yield from races.rows_of_ways(*given, optimizer_cls=SGD)


def gradients_of(world, task: TrainingTask, case: dict) -> Iterator[Row]:
    right = world.run(right_gradients, WAYS["shardlab"], task, case["device"])[0]
    want = wanted("parameter_tensors", task)
    yield Row("data_parallel.right_gradients", right, "count", case, "parameter_tensors", want)


def rows_of(world, way: Way, task: TrainingTask, case: dict) -> Iterator[Row]:
    found = world.run(races.weighed, way, task, SGD, case["device"])[0]
    reduced = found.messages["all_reduce"]
    predicted = ("reduced_bytes", wanted("reduced_bytes", task)) if way.peers else ()
    yield Row("data_parallel.reduced", reduced.nbytes, "bytes", case, *predicted)
    yield Row("data_parallel.messages", reduced.messages, "count", case)
    yield Row("data_parallel.peak", found.peak_bytes, "bytes", case)


def wanted(quantity: str, task: TrainingTask) -> float:
    given = {**GPTConfig(**task.sizes).quantities(), **RECIPES["fp32 Adam"].quantities}
    return evaluate([quantity], allow_unused=True, **given)[quantity]


def right_gradients(way: Way, task: TrainingTask, device: str) -> int:
    """On a rank: how many parameters have the gradient of all ranks' batches, of one sequence
    each, as every rank computes all of them."""
    task = task._replace(microbatch=1)
    batch, plain = task.batches(device)[0], task.model(device)
    next_token_loss(plain(batch.flatten(0, 1)), batch.flatten(0, 1)).backward()
    model, _ = way.build(task.model(device), SGD)
    mine = batch[dist.get_rank()]
    next_token_loss(model(mine), mine).backward()
    pairs = zip(model.parameters(), plain.parameters())
    return sum(
        bool((ours.grad - mean.grad).norm() <= FP32_TOLERANCE * mean.grad.norm())
        for ours, mean in pairs
    )


# --- make bench -----------------------------------------------------------------------------------


SLOW_TASK = TrainingTask(
    "slow link", dict(layers=6, hidden=256, heads=4, vocabulary=1000, max_sequence=128), 8
)


def bench(
    tasks: Sequence[TrainingTask] = TASKS,
    counts: Sequence[int] = (2, 4),
    turns: int = TURNS,
    megabits_per_second: int = 1000,
    slow_task: TrainingTask = SLOW_TASK,
) -> list[Result]:
    """Beside PyTorch's, then on a slow link where this system can rehearse one."""
    results = race(tasks, counts, turns)
    try:
        return results + overlap(slow_task, megabits_per_second, turns)
    except LinksUnavailable as error:
        print(f"bench:  {error}")
        return results


def race(tasks: Sequence[TrainingTask], counts: Sequence[int], turns: int) -> list[Result]:
    """Step times in turns, peak bytes, bytes brought to all-reduces: the faster of our two bucket
    sizes, and the core, beside the fastest of PyTorch's ways."""
    ways = {name: way for name, way in WAYS.items() if "overlap" not in way.options}
    results = []
    for count in counts:
        with ranks(count, device="cpu", announce=False) as world:
            for task in tasks:
                weights = {
                    name: world.run(races.weighed, way, task, SGD)[0] for name, way in ways.items()
                }
                times = world.run(races.train_in_turns, ways, task, turns, SGD)[0]
                what = f"{count} ranks, {task.name}"
                hardened = [name for name, way in ways.items() if way.peers and name != CORE]
                ours, peer = races.fastest(times, hardened), races.fastest(times, PEERS)
                for name, shown, most in ((ours, what, RATIO), (CORE, f"core, {what}", None)):
                    pair = weights[name], weights[peer]
                    results += races.beside(
                        *("data_parallel", what, times, name, peer, most, None, shown),
                        peak=[of.peak_bytes for of in pair],
                        reduced=[of.messages["all_reduce"].nbytes for of in pair],
                    )
                results += [
                    races.step_result("data_parallel", what, times, name, peer)
                    for name in ways
                    if name not in (ours, CORE, peer)
                ]
    return results


HIDDEN = 0.6  # of communication, at least
OVERLAP = {
    "overlap": Way(replicas, dict(bucket_bytes=2_000_000)),
    "after backward": Way(replicas, dict(bucket_bytes=2_000_000, overlap=False)),
    "no communication": Way(exchange_nothing),
}


def overlap(task: TrainingTask, megabits_per_second: int, turns: int) -> list[Result]:
    """How much of communication backward does not hide. Raises LinksUnavailable."""
    with (
        two_hosts(megabits_per_second) as hosts,
        ranks(2, device="cpu", hosts=hosts, announce=False) as world,
    ):
        times = world.run(races.train_in_turns, OVERLAP, task, turns, SGD)[0]
    with_overlap, without, least = (median(times[name]) for name in OVERLAP)
    low, high = races.identical(times)
    bucket_bytes = OVERLAP["overlap"].options["bucket_bytes"]
    return [
        Result(
            "data parallel",
            f"2 ranks, {megabits_per_second} Mbit/s between them, buckets of {bucket_bytes:,}"
            " bytes: communication that is not hidden",
            round(1 - (without - with_overlap) / (without - least), 3),
            "",
            round(1 - HIDDEN, 3),
            f"{turns} interleaved turns: {1000 * least:.0f} ms without communication,"
            f" {1000 * without:.0f} after backward, {1000 * with_overlap:.0f} with overlap; A/A"
            f" {low:.2f} to {high:.2f}",
            "data_parallel_race.not_hidden",
            dict(
                what="2 ranks", megabits_per_second=megabits_per_second, bucket_bytes=bucket_bytes
            ),
        )
    ]


# --- a step as it ran, for the chapter's picture --------------------------------------------------

TRACED_TASK = TrainingTask(  # a third of the parameters is the token table, whose bucket is last
    "traced", dict(layers=6, hidden=256, heads=4, vocabulary=8192, max_sequence=128), 4
)
TRACED_BUCKET_BYTES = 4_000_000


def traced_step(
    device: torch.device,
    task: TrainingTask = TRACED_TASK,
    megabits_per_second: int = 300,
    turns: int = 11,
) -> Iterator[Row]:
    """The timeline of the median step on rank 0 of 2, on the CPU, with a slow link between them:
    ends of forward, of backward's computing and of backward(), and each message. No rows where the
    system refuses the link."""
    try:
        with (
            two_hosts(megabits_per_second) as hosts,
            ranks(2, device="cpu", hosts=hosts, announce=False) as world,
        ):
            traces = world.run(traces_of, task, turns)[0]
    except LinksUnavailable:
        return
    found = sorted(traces, key=lambda trace: trace.whole_seconds)[len(traces) // 2]
    case = dict(
        what="2 ranks",
        megabits_per_second=megabits_per_second,
        bucket_bytes=TRACED_BUCKET_BYTES,
        turns=turns,
    )
    for name, seconds in found._asdict().items():
        if name != "messages":
            yield Row(f"data_parallel_trace.{name}", seconds, "seconds", case)
    for number, (begin, seconds) in enumerate(found.messages, 1):
        this = dict(case, message=number)
        yield Row("data_parallel_trace.message_begin", begin, "seconds", this)
        yield Row("data_parallel_trace.message", seconds, "seconds", this)


def traces_of(task: TrainingTask, turns: int) -> list[Trace]:
    """On a rank: steps with overlap; the first two warm up and are not among them."""
    model, _ = replicas(task.model(), SGD, bucket_bytes=TRACED_BUCKET_BYTES)
    tokens, found = task.tokens(), []
    for _ in range(turns + 2):
        dist.barrier()
        found.append(trace_step(model, lambda: next_token_loss(model(tokens), tokens)))
        model.zero_grad()
    return found[2:]


RUNS = (
    Run(40, data_parallel, dict(task=TINY, turns=1)),
    Run(91, traced_step, dict(task=TINY, turns=2)),
)
BENCHES = (
    Bench("data-parallel", bench, dict(tasks=(TINY,), counts=(2,), turns=2, slow_task=TINY)),
)
