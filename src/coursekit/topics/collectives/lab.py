"""Beside the cells of the lab on collectives: what is counted equals the formulas; tables; and
where the explorer begins."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from textwrap import fill

from coursekit.exercises.going_on import must_be_right
from coursekit.formulas import evaluate
from coursekit.recordings.recordings import Row
from coursekit.show.tables import Table
from coursekit.topics.collectives.exercises import plan_of_a_ring_reduce_scatter
from coursekit.topics.collectives.runs import Timing
from ranklab.measure.clock import say_if_most_vary
from ranklab.measure.links import Link
from shardlab.collective_plans import Move, Plan

NAMES = "broadcast reduce scatter gather all_gather reduce_scatter all_reduce all_to_all".split()


def columns_of_ranks(first: str, rows: Iterable, *more: str) -> Table:
    """A table with a column for each of four ranks."""
    return Table([first, *(f"rank {rank}" for rank in range(4)), *more], rows)


def table_of_collectives(left: Sequence[Sequence[list[int]]]) -> Table:
    """A row for each collective, in the order of NAMES: the numbers that it leaves on each rank."""
    rows = ([" ".join(map(str, numbers)) for numbers in on_ranks] for on_ranks in zip(*left))
    return columns_of_ranks("", [[name, *row] for name, row in zip(NAMES, rows)])


def readers_plan(own: Callable[[int], Sequence], n: int) -> Plan:
    """The reader's plan of a reduce-scatter. Raises NotYet unless its check passes."""
    must_be_right(plan_of_a_ring_reduce_scatter, own)
    return [[Move(*move) for move in moves] for moves in own(n)]


def table_of_bytes(sent: Mapping[str, Sequence[int]], elements: int) -> Table:
    """Way -> bytes that each rank sends of an all-reduce of so many fp32 numbers. Raises
    AssertionError if a rank differs from the formula by a byte."""
    given = dict(ranks=4, message_elements=elements, message_element_bytes=4)
    for way, of_ranks in sent.items():
        quantity = f"{way}_all_reduce_sent_bytes"
        formula = [evaluate([quantity], rank=rank, **given)[quantity] for rank in range(4)]
        assert list(of_ranks) == formula, (way, of_ranks, formula)
    rows = [[way, *of_ranks, sum(of_ranks)] for way, of_ranks in sent.items()]
    return columns_of_ranks("sent, bytes", rows, "together")


def given_to_explorer(link: Link, timed: Mapping[str, Sequence[Timing]]) -> dict:
    """The measured link, and all-reduces of four ranks as points."""
    lines = dict(ring="nodes_ring", tree="tree", naive="naive")
    points = {
        f"{line}_all_reduce_seconds": [(one.nbytes, float(one.seconds)) for one in timed[way]]
        for way, line in lines.items()
    }
    return dict(
        measured=points,
        ranks=4,
        ranks_per_node=1,
        message_bytes=2**20,
        latency_seconds=float(f"{link.latency_seconds:.3g}"),
        link_bytes_per_second=float(f"{link.bytes_per_second:.3g}"),
    )


def table_over_the_link(arrays: Mapping[str, float], timed: Mapping[str, list[Timing]]) -> Table:
    """Arrays that cross a link between hosts, and the time of each way on this machine."""
    say_if_most_vary(one.seconds for way in arrays for one in timed[way])
    rows = [
        [way, f"{crossing:g}", *(round(1e6 * one.seconds) for one in timed[way])]
        for way, crossing in arrays.items()
    ]
    return Table(["", "arrays over the link", "here: 4 kB, µs", "1 MB, µs"], rows)


def wrapped(error: Exception) -> str:
    """The text of an error, in lines of a cell."""
    return "\n".join(fill(line, 66, subsequent_indent="    ") for line in f"{error}".split("\n"))


def table_on_gpus(rows: Iterable[Row]) -> Table | None:
    """Bus bandwidths of all-reduces between GPUs; None where none was measured or recorded."""
    columns = ("implementation", "backend", "ranks", "nbytes")
    written = [
        [*map(row.case.get, columns), f"{row.value / 1e9:.3g}"]
        for row in rows
        if row.name == "collectives.all_reduce"
    ]
    heads = ["all-reduce of", "backend", "ranks", "bytes", "bus, GB/s"]
    return Table(heads, written) if written else None
