"""What the lab on collectives does on its ranks: it tries every collective, counts what each rank
sends, and keeps time over links, fast and slow."""

from collections.abc import Callable, Iterable
from functools import partial
from textwrap import wrap

import torch
import torch.distributed as dist

from shardlab import collectives
from shardlab.collective_plans import Move
from shardlab.measure.communication import CommunicationLog
from shardlab.measure.links import Timing
from shardlab.measure.recordings import Recording, Row, measured_or_recorded
from shardlab.ranks import ranks
from shardlab.ranks.links import LinksUnavailable, two_hosts
from shardlab.topics.collectives import runs

COLLECTIVE_NAMES = (
    "broadcast",
    "reduce",
    "scatter",
    "gather",
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "all_to_all",
)
LINE_CHARACTERS = 66  # in a line


def what_it_leaves(name: str) -> list[int]:
    """What the collective of that name writes on this rank. Rank r brings r + 1 times [1, 10, 100,
    1000], or the shard [r + 1]; the root is rank 0."""
    rank = dist.get_rank()
    full = (rank + 1) * 10 ** torch.arange(4)
    shard = torch.tensor([rank + 1])
    out = torch.zeros_like(full)
    arguments = {
        "scatter": (shard, full if rank == 0 else None),
        "gather": (shard, out if rank == 0 else None),
        "all_gather": (full, shard),
        "reduce_scatter": (shard, full),
        "all_to_all": (out, full),
    }
    written = {
        "scatter": shard,
        "gather": out if rank == 0 else shard,
        "reduce_scatter": shard,
        "all_to_all": out,
    }
    getattr(collectives, name)(*arguments.get(name, (full,)))
    return written.get(name, full).tolist()


def equals_pytorch(all_reduce: Callable, elements: int) -> bool:
    """Whether all_reduce(full, dist) leaves on this rank what PyTorch's leaves."""
    mine = torch.arange(elements, dtype=torch.float64) * (dist.get_rank() + 1)
    theirs = mine.clone()
    all_reduce(mine, dist)
    dist.all_reduce(theirs)
    return torch.equal(mine, theirs)


def count_sent(way: str, elements: int) -> int:
    """Bytes that this rank sends in an all-reduce of so many fp32 numbers, by "ring", "tree" or
    "naive"."""
    array = torch.zeros(elements)
    with CommunicationLog() as log:
        collectives.all_reduce(array, plan=runs.plan_of(way))
    return log.totals()["send"].nbytes


# --- links ----------------------------------------------------------------------------------------


def arrays_over_the_link(plan: list[list[Move]]) -> float:
    """How many whole arrays cross the link between two hosts of two ranks each: in every step the
    busier direction decides."""
    crossing = 0
    for moves in plan:
        hosts = [(move.source // 2, move.target // 2) for move in moves]
        crossing += max(hosts.count((0, 1)), hosts.count((1, 0)))
    chunks = 1 + max(move.chunk for moves in plan for move in moves)
    return crossing / chunks


def time_here(world, sizes: Iterable[int]) -> dict[str, list[Timing]]:
    """Timings of each way to all-reduce so many bytes on the world's four ranks."""
    return world.run(runs.over_a_link, list(sizes))[0]


def time_between_two_hosts(
    megabits_per_second: int, nbytes: int, recordings: Iterable[Recording]
) -> tuple[dict[str, float], str]:
    """(seconds of each way to all-reduce so many bytes over a slow link, where they were measured).
    Where the system cannot rehearse a slow link, the reason is printed and a recording replayed."""
    try:
        with (
            two_hosts(megabits_per_second) as hosts,
            ranks(4, device="cpu", hosts=hosts) as world,
        ):
            timings = time_here(world, [nbytes])
    except LinksUnavailable as error:
        print(*wrap(str(error), LINE_CHARACTERS), sep="\n")
        return runs.replay(recordings, nbytes)
    return {way: timing[0].seconds for way, timing in timings.items()}, "measured here"


# --- GPUs -----------------------------------------------------------------------------------------


def all_reduces_on_gpus(device, recordings: Iterable[Recording]) -> tuple[list[Row], str]:
    """(PyTorch's and our all-reduces, where they were measured): on the GPUs of this machine if
    there are two or more, else from a recording; without one there are no rows."""
    measure = partial(runs.all_reduces, device) if torch.cuda.device_count() > 1 else None
    why_not = "NCCL wants two GPUs: skipped"
    rows, source = measured_or_recorded(measure, recordings, why_not)
    return [row for row in rows if row.name == "collectives.all_reduce"], source
