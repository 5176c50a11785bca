"""Measurements of ranks for `make gpu`: whether they start on the GPUs of this machine, how fast,
whether the fork server keeps off CUDA; and all-reduces between ranks, also over a slow link. `make
bench` races this book's collectives beside gloo's."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch
import torch.distributed as dist

from coursekit.recordings.attempts import attempt
from coursekit.recordings.races import AGAIN, TURNS, Bench, Result, Run, in_turns, step_result
from coursekit.recordings.recordings import Recording, Row
from ranklab.measure.clock import MedianSeconds
from ranklab.measure.links import REPEATS, WARM_UP, finish
from ranklab.ranks import ranks
from ranklab.ranks.links import LinksUnavailable, two_hosts
from shardlab import collective_plans, collectives, collectives_fast
from shardlab.common.collective_wire import all_gather_single, reduce_scatter_single
from shardlab.mesh import Mesh

ALL_REDUCE_BYTES = (4096, 1 << 20, 1 << 26)
SLOW_MEGABITS_PER_SECOND, SLOW_BYTES = 100, (4_000, 1_000_000)
STARTS = 5
PLANS = ("ring", "tree", "naive")


class Timing(NamedTuple):
    nbytes: int
    seconds: float
    algorithm_bytes_per_second: float
    bus_bytes_per_second: float


def rank_starts(device: torch.device, starts: int = STARTS) -> Iterator[Row]:
    """A rank on each GPU (NCCL), and one more than there are GPUs (gloo); two on a CPU. Seconds
    from asking to the end of the first all-reduce."""
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    for count in (gpus, gpus + 1) if gpus else (2,):
        yield from attempt(f"rank_starts, {count} ranks", starts_of(count, device, starts))
    if gpus:
        yield from attempt("rank_starts, shared by NCCL", shared_by_nccl(gpus + 1))


def starts_of(count: int, device: torch.device, starts: int) -> Iterator[Row]:
    taken = []
    for _ in range(starts):
        begin = perf_counter()
        with ranks(count, device=device.type, announce=False) as world:
            found = world.run(look_around, device.type)
            taken.append(perf_counter() - begin)
    case = dict(ranks=count, backend=found[0][1])
    # the first may find the fork server cold
    yield Row("ranks.start", median(taken[1:]), "seconds", case)
    sums = sum(total == sum(range(count)) for total, *_ in found)
    messages = sum(got == (rank - 1) % count for rank, (*_, got) in enumerate(found))
    yield Row("ranks.right_sums", sums, "count", case)
    yield Row("ranks.right_messages", messages, "count", case)
    yield Row("ranks.device_files_of_the_fork_server", found[0][2], "count", case)


def shared_by_nccl(count: int) -> Iterator[Row]:
    """Two ranks on a GPU by NCCL, an experiment of its version 2.30: how many had the right sum.
    An older one says so in one sentence."""
    try:
        with ranks(count, share_gpus=True, patience_seconds=20, announce=False) as world:
            found = world.run(look_around, "cuda")
    except ValueError as refused:
        yield Row("ranks.refused", 1, "count", dict(ranks=count, why=str(refused)))
        return
    right = sum(total == sum(range(count)) for total, *_ in found)
    yield Row("ranks.right_sums", right, "count", dict(ranks=count, backend="nccl", gpus="shared"))


def look_around(kind: str) -> tuple[float, str, int, float]:
    """On a rank: (the sum of all ranks' numbers, the backend, how many of the GPU's files the fork
    server has open, the number that the rank before sent)."""
    x = torch.tensor([float(dist.get_rank())], device=kind)
    dist.all_reduce(x)
    rank, count = dist.get_rank(), dist.get_world_size()
    mine, got = torch.tensor([float(rank)], device=kind), torch.tensor([-1.0], device=kind)
    if count == 1:  # nobody to send to
        got = mine
    else:
        ring = [
            dist.P2POp(dist.isend, mine, (rank + 1) % count),
            dist.P2POp(dist.irecv, got, (rank - 1) % count),
        ]
        for work in dist.batch_isend_irecv(ring):  # under gloo through the host
            work.wait()
    return x.item(), dist.get_backend(), files_of_the_gpu(os.getppid()), got.item()


def files_of_the_gpu(process: int) -> int:
    folder = f"/proc/{process}/fd"
    found = 0
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        try:
            found += os.readlink(f"{folder}/{name}").startswith("/dev/nvidia")
        except OSError:  # closed since
            pass
    return found


def all_reduces(device: torch.device, sizes: Sequence[int] = ALL_REDUCE_BYTES) -> Iterator[Row]:
    """PyTorch's and this book's: a rank for each GPU with NCCL where there are two or more; else
    two ranks with gloo, on one GPU if any."""
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    with ranks(max(2, gpus), device=device.type, announce=False) as world:
        backend = "nccl" if gpus > 1 else "gloo"
        case = dict(ranks=world.world_size, backend=backend, device=device.type)
        right, timings = world.run(on_a_rank, sizes, device.type)[0]
        yield Row("collectives.right_sums", right, "count", case)
        for name, found in timings.items():
            for timing in found:
                this = dict(implementation=name, nbytes=timing.nbytes, seconds=timing.seconds)
                rate = timing.bus_bytes_per_second
                yield Row("collectives.all_reduce", rate, "bytes/s", {**case, **this})


def on_a_rank(sizes, device: str):
    """How many of our all-reduces are right where this device's tensors live, and the timings of
    both implementations."""
    right = 0
    for name in PLANS:
        x = torch.arange(1001.0, device=device)
        want = dist.get_world_size() * x
        collectives_fast.all_reduce(x, plan=plan_of(name))
        right += torch.equal(x, want)
    return right, {
        name: all_reduce_timings(sizes, function, device)
        for name, function in (
            ("PyTorch", dist.all_reduce),
            ("shardlab", collectives_fast.all_reduce),
        )
    }


def slow_links(
    device: torch.device,
    megabits_per_second: int = SLOW_MEGABITS_PER_SECOND,
    sizes: Sequence[int] = SLOW_BYTES,
) -> Iterator[Row]:
    """Our all-reduces on two ranks here and two there, on the CPU, with a slow link between; no
    rows where the system refuses it."""
    try:
        with (
            two_hosts(megabits_per_second) as hosts,
            ranks(4, device="cpu", hosts=hosts, announce=False) as world,
        ):
            found = world.run(over_a_link, sizes)[0]
    except LinksUnavailable:
        return
    link = dict(ranks=4, hosts=2, megabits_per_second=megabits_per_second)
    for name, timings in found.items():
        for timing in timings:
            case = dict(implementation=name, nbytes=timing.nbytes, **link)
            yield Row("collectives.slow_link", timing.seconds, "seconds", case)


def replay(recordings: Iterable[Recording], nbytes: int) -> tuple[dict[str, float], str]:
    """The rows that slow_links() wrote into the first of the recordings that has them: (seconds of
    each way, where it was recorded).

    Raises LookupError where none has."""
    for recording in recordings:
        if rows := recording.find("collectives.slow_link", nbytes=nbytes):
            return {row.case["implementation"]: row.value for row in rows}, recording.label
    raise LookupError(f"no recording has an all-reduce of {nbytes:,} bytes over a slow link.")


def over_a_link(sizes, repeats: int = 3) -> dict[str, list[Timing]]:
    """On each of four ranks, two of them on either host: timings of each way to all-reduce so many
    bytes."""
    mesh = Mesh(dp=2, tp=2)  # tp: the ranks of a host, dp: those across
    ways = {name: partial(collectives_fast.all_reduce, plan=plan_of(name)) for name in PLANS}
    ways["hierarchical"] = lambda x: collectives_fast.hierarchical_all_reduce(
        x, mesh.tp.group, mesh.dp.group
    )
    return {
        name: all_reduce_timings(sizes, way, repeats=repeats, warm_up=1)
        for name, way in ways.items()
    }


def plan_of(name: str) -> Callable:
    return getattr(collective_plans, f"{name}_all_reduce")


def all_reduce_timings(
    sizes: Iterable[int],
    all_reduce: Callable = dist.all_reduce,
    device: str | torch.device = "cpu",
    repeats: int = REPEATS,
    warm_up: int = WARM_UP,
) -> list[Timing]:
    """Median seconds of an all-reduce of so many bytes over the world, one by one, with their
    spread, and the bandwidths that nccl-tests quote. Each time the slowest rank counts."""
    n, timings = dist.get_world_size(), []
    for nbytes in sizes:
        x, times = torch.zeros(max(1, nbytes // 4), device=device), []
        for _ in range(warm_up + repeats):
            dist.barrier()
            finish(x)
            begin = perf_counter()
            all_reduce(x)
            finish(x)
            times.append(perf_counter() - begin)
        slowest = torch.tensor(times[warm_up:], dtype=torch.float64, device=device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        seconds = MedianSeconds(slowest.tolist())
        algorithm = x.nbytes / seconds
        # a ring sends 2 (n - 1) / n of the message over each link
        bus = algorithm * 2 * (n - 1) / n
        timings.append(Timing(x.nbytes, seconds, algorithm, bus))
    return timings


# --- make bench -----------------------------------------------------------------------------------

RACES = ("all-reduce", "reduce-scatter", "all-gather")
PEER = "gloo"
# Of gloo's time, at most: 0.9 of its bandwidth or more for the ring, 1.2 for the reduce-scatter,
# which gloo makes by an all-reduce.
MOST = {("all-reduce", "ring"): round(1 / 0.9, 3), ("reduce-scatter", "ring"): round(1 / 1.2, 3)}


def race(megabytes: Sequence[float] = (16, 64), turns: int = TURNS) -> list[Result]:
    """Our collectives beside gloo's on two ranks of this machine, and what pieces are good for."""
    results = []
    with ranks(2, device="cpu", announce=False) as world:
        for size in megabytes:
            for which in RACES:
                times = world.run(beside_gloo, which, int(size * 250_000), turns)[0]
                what = f"{which} of {size} MB, 2 ranks"
                results += [
                    step_result("collectives", what, times, name, PEER, most, f"{what}, {name}")
                    for name, most in ((name, MOST.get((which, name))) for name in times)
                    if name not in (PEER, PEER + AGAIN)
                ]
    return results


def beside_gloo(which: str, elements: int, turns: int) -> dict[str, list[float]]:
    """On a rank: seconds of each way, in turns."""
    full, shard = torch.zeros(elements), torch.zeros(elements // 2)
    one_piece = partial(collectives_fast.run, piece_bytes=full.nbytes)
    works = {
        "all-reduce": {
            PEER: lambda: dist.all_reduce(full),
            "ring": lambda: collectives_fast.all_reduce(full),
            "ring, readable": lambda: collectives.all_reduce(full),
            "ring, a chunk as one piece": lambda: collectives_fast.all_reduce(full, run=one_piece),
        },
        "reduce-scatter": {
            PEER: lambda: reduce_scatter_single(shard, full),
            "ring": lambda: collectives_fast.reduce_scatter(shard, full),
            "ring, readable": lambda: collectives.reduce_scatter(shard, full),
        },
        "all-gather": {
            PEER: lambda: all_gather_single(full, shard),
            "ring": lambda: collectives_fast.all_gather(full, shard),
            "ring, readable": lambda: collectives.all_gather(full, shard),
        },
    }[which]
    return in_turns(works, turns)


RUNS = (
    Run(50, rank_starts, dict(starts=2)),
    Run(60, all_reduces, dict(sizes=(64, 4096))),
    Run(90, slow_links, dict(megabits_per_second=1000, sizes=(64, 4096))),
)
BENCHES = (Bench("collectives", race, dict(megabytes=(0.004,), turns=2)),)
