"""Functions of the lab on collectives: they try every collective, count what each rank sends, and
keep time over links, fast and slow.

Functions that take a `world` run on the notebook's side and give tables and figures; the others run
on a rank.
"""

from collections.abc import Callable, Iterable
from functools import partial
from textwrap import wrap
from typing import NamedTuple

import torch
import torch.distributed as dist

from coursekit.exercises import check
from coursekit.exercises.going_on import must_be_right
from coursekit.formulas import evaluate
from coursekit.recordings.recordings import Recording, Row, measured_or_recorded
from coursekit.show.tables import Table
from coursekit.topics.collectives import runs
from coursekit.topics.collectives.exercises import (
    all_reduce_from_send_and_recv,
    plan_of_a_ring_reduce_scatter,
)
from coursekit.topics.collectives.figures import message_figure, race_figure
from coursekit.topics.collectives.formulas import hierarchical_link_share
from coursekit.topics.collectives.stepper import stepper
from shardlab import collectives
from shardlab.collective_plans import Move
from shardlab.measure.clock import say_if_most_vary
from shardlab.measure.communication import CommunicationLog
from shardlab.measure.links import Timing, fit_link, time_message
from shardlab.ranks import RankError, ranks
from shardlab.ranks.links import LinksUnavailable, two_hosts

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
WAYS = ("ring", "tree", "naive")
COMPARED_SIZES = (4, 1_000, 1_001)  # elements
MESSAGE_BYTES = (4, 4_000, 64_000, 500_000, 4_000_000, 16_000_000)
SLOW_ARRAY_BYTES = 1_000_000


def columns_of_ranks(first: str, rows: Iterable) -> Table:
    """A table with a column for each of four ranks."""
    return Table([first, *(f"rank {rank}" for rank in range(4))], rows)


# --- what collectives do --------------------------------------------------------------------------


class LeftByAll(NamedTuple):
    """collective -> what it leaves on each rank."""

    numbers: dict[str, list[list[int]]]

    def table(self) -> Table:
        rows = [
            [name, *(" ".join(map(str, own)) for own in on_ranks)]
            for name, on_ranks in self.numbers.items()
        ]
        return columns_of_ranks("", rows)


def what_all_leave(world) -> LeftByAll:
    return LeftByAll({name: world.run(what_it_leaves, name) for name in COLLECTIVE_NAMES})


def what_it_leaves(name: str) -> list[int]:
    """The array that the collective of that name writes on this rank. Rank r brings r + 1 times [1,
    10, 100, 1000], or the shard [r + 1]; the root is rank 0."""
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


def step_through(plan: Callable):
    """The reader's plan of a reduce-scatter, step by step; nothing unless it is right."""
    right = check(plan_of_a_ring_reduce_scatter, plan)
    return stepper("reduce-scatter", 4, plan=plan) if right else None


def table_of_equality(world, all_reduce: Callable) -> Table:
    """Whether the reader's all-reduce leaves on each rank what PyTorch's does. Raises NotYet unless
    its check passes."""
    must_be_right(all_reduce_from_send_and_recv, all_reduce)
    rows = [
        [f"{size:,}", *map(str, world.run(equals_pytorch, all_reduce, size))]
        for size in COMPARED_SIZES
    ]
    return Table(["elements", *(f"rank {rank}: equal" for rank in range(4))], rows)


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


class SentByAll(NamedTuple):
    """way -> bytes that each rank sends."""

    nbytes: dict[str, list[int]]

    def of_rank_0(self) -> dict[str, int]:
        """Rank 0's values, by the names of the predictions."""
        return {f"{way}, rank 0 sends, bytes": self.nbytes[way][0] for way in ("ring", "naive")}

    def table(self) -> Table:
        rows = [[way, *sent, sum(sent)] for way, sent in self.nbytes.items()]
        heads = ["sent, bytes", *(f"rank {rank}" for rank in range(4)), "together"]
        return Table(heads, rows)


def count_sent_by_all(world, elements: int) -> SentByAll:
    """All ways to all-reduce so many fp32 numbers. Raises AssertionError if a rank differs from the
    formula by a byte."""
    given = dict(ranks=4, message_elements=elements, message_element_bytes=4)
    nbytes = {way: world.run(count_sent, way, elements) for way in WAYS}
    for way, sent in nbytes.items():
        quantity = f"{way}_all_reduce_sent_bytes"
        formula = [evaluate([quantity], rank=rank, **given)[quantity] for rank in range(4)]
        assert sent == formula, (way, sent, formula)
    return SentByAll(nbytes)


# --- ranks that do not agree ----------------------------------------------------------------------


def print_disagreement(world, function: Callable) -> None:
    """Run the function on the ranks, and print in which way they disagree."""
    try:
        world.run(function)
    except RankError as error:
        print(type(error).__name__)
        for line in str(error).splitlines():
            print(*wrap(line, LINE_CHARACTERS, subsequent_indent="    "), sep="\n")


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


class MeasuredLink(NamedTuple):
    """Messages between rank 0 and rank 1, and the line through them."""

    seconds: list[float]
    latency_seconds: float
    bytes_per_second: float

    def by_prediction(self) -> dict[str, float]:
        """Values by the names of the predictions."""
        return {
            "latency, microseconds": round(1e6 * self.latency_seconds, 1),
            "bandwidth, GB/s": round(self.bytes_per_second / 1e9, 2),
        }

    def figure(self):
        return message_figure("One message between two ranks", MESSAGE_BYTES, *self)


def measure_messages(world) -> MeasuredLink:
    """Ping-pong of messages of six sizes."""
    seconds = [world.run(time_message, nbytes, repeats=9)[0] for nbytes in MESSAGE_BYTES]
    say_if_most_vary(seconds)
    return MeasuredLink(seconds, *fit_link(MESSAGE_BYTES, seconds))


def given_to_explorer(world, link: MeasuredLink) -> dict:
    """The values with which the explorer starts: the measured link, and all-reduces of these ranks
    as points."""
    points = {}
    for way, timings in time_here(world, [4_000, 64_000, 1_000_000]).items():
        if way in WAYS:
            line = "nodes_ring" if way == "ring" else way
            measured = [(timing.nbytes, timing.seconds) for timing in timings]
            points[f"{line}_all_reduce_seconds"] = measured
    return dict(
        measured=points,
        ranks=4,
        ranks_per_node=1,
        message_bytes=2**20,
        latency_seconds=float(f"{link.latency_seconds:.3g}"),
        link_bytes_per_second=float(f"{link.bytes_per_second:.3g}"),
    )


def crossing_arrays() -> dict[str, float]:
    """way -> whole arrays over the link between two hosts."""
    return {way: arrays_over_the_link(runs.plan_of(way)(4)) for way in WAYS}


def table_over_the_link(world) -> Table:
    """A table of the bytes that cross a link between hosts, and of the time of each way on this
    machine."""
    here = time_here(world, [4_000, 1_000_000])
    rows = [
        [way, f"{crossing:g}", *(round(1e6 * timing.seconds) for timing in here[way])]
        for way, crossing in crossing_arrays().items()
    ]
    return Table(["", "arrays over the link", "here: 4 kB, µs", "1 MB, µs"], rows)


class SlowLink(NamedTuple):
    """Seconds of each way to all-reduce 1 MB over a link of so many Mbit/s, and where they were
    measured."""

    seconds: dict[str, float]
    source: str
    megabits_per_second: int

    def by_prediction(self) -> dict[str, int]:
        """Values by the names of the predictions."""
        return {f"{way} over the slow link, ms": round(1e3 * self.seconds[way]) for way in WAYS[:2]}

    def figure(self):
        array_seconds = SLOW_ARRAY_BYTES / (self.megabits_per_second * 125_000)
        arrays = {**crossing_arrays(), "hierarchical": hierarchical_link_share(nodes=2)}
        race = [(way, array_seconds * arrays[way], taken) for way, taken in self.seconds.items()]
        return race_figure(f"1 MB at {self.megabits_per_second} Mbit/s, {self.source}", race)


def race_over_a_slow_link(megabits_per_second: int, recordings: Iterable[Recording]) -> SlowLink:
    """Four ways to all-reduce 1 MB between two rehearsed hosts, or as recorded."""
    raced = time_between_two_hosts(megabits_per_second, SLOW_ARRAY_BYTES, recordings)
    return SlowLink(*raced, megabits_per_second)


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


def table_on_gpus(device, recordings: Iterable[Recording]) -> Table | None:
    """Bus bandwidths of all-reduces between GPUs; without any a line says so."""
    rows, where = all_reduces_on_gpus(device, recordings)
    print(where)
    if not rows:
        return None
    columns = ("implementation", "backend", "ranks", "nbytes")
    written = [[*map(row.case.get, columns), f"{row.value / 1e9:.3g}"] for row in rows]
    return Table(["all-reduce of", "backend", "ranks", "bytes", "bus, GB/s"], written)
