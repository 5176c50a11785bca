"""Published times of all-reduces beside the formulas of this chapter: what was measured, what is
assumed, and the ratio of the model's time to the measured one.

    for row in rows():
        print(row.name, row.median, row.assumed)

Sizes are in bytes, times in seconds. Nothing is fitted but what `assumed` names.
"""

from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

from coursekit.formulas import evaluate
from coursekit.show.stops import GIB, KIB, MIB

_MLE = "ml-engineering@744d01e network/README.md"
OUTLIER = 1.5  # an outlier is off by more


class Pair(NamedTuple):
    """One measurement and the model's time for it."""

    what: str
    published_seconds: float
    model_seconds: float

    @property
    def ratio(self) -> float:
        return self.model_seconds / self.published_seconds


class PublishedRow(NamedTuple):
    """Measurements of one source."""

    name: str
    source: str
    assumed: str
    pairs: list[Pair]

    @property
    def median(self) -> float:
        return median(pair.ratio for pair in self.pairs)

    @property
    def outliers(self) -> list[Pair]:
        return [pair for pair in self.pairs if not 1 / OUTLIER <= pair.ratio <= OUTLIER]


def ask(name, **given):
    """One formula, of what is given; each row gives what some of its formulas need."""
    return evaluate([name], allow_unused=True, **given)[name]


def from_bus(nbytes, ranks, gigabytes_per_second):
    """Seconds of an all-reduce, of a bus bandwidth in GB/s."""
    return 2 * (ranks - 1) / ranks * nbytes / (1e9 * gigabytes_per_second)


def sizes(first, count):
    return [first << place for place in range(count)]


def sized(nbytes):
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if nbytes >= size:
            return f"{nbytes // size} {unit}"
    return f"{nbytes} B"


# --- four nodes of eight --------------------------------------------------------------------------
FOUR_NODES = dict(
    ranks=32,
    ranks_per_node=8,
    protocol="ring, Simple, several nodes",
    node_bytes_per_second=900e9,
    link_bytes_per_second=50e9,
)
FOUR_B200 = (1.33, 2.84, 5.37, 10.38, 18.90, 35.12, 64.43, 91.19, 156.74, 197.94, 229.09, 326.90)
FOUR_B200 += (361.99, 372.42, 377.34, 380.39, 381.80)


def four_nodes() -> Iterator[PublishedRow]:
    def pairs(nbytes, bus):
        for size, bandwidth in zip(nbytes, bus):
            model = ask("nodes_ring_all_reduce_seconds", message_bytes=size, **FOUR_NODES)
            yield Pair(sized(size), from_bus(size, 32, bandwidth), model)

    assumed = "ring, Simple, eight cards of 50 GB/s a node; nothing fitted"
    yield PublishedRow(
        "4 x 8 B200, 256 KiB to 16 GiB",
        f"{_MLE}, Inter-node speed depends on intra-node speed",
        assumed,
        list(pairs(sizes(256 * KIB, 17), FOUR_B200)),
    )
    yield PublishedRow(
        "4 x 8 B200, 32 to 128 KiB",
        f"{_MLE}, the same table",
        assumed + "; the source prints two decimals, and the cause is unknown",
        list(pairs(sizes(32 * KIB, 3), (0.01, 0.04, 0.45))),
    )
    yield PublishedRow(
        "4 x 8 H200, 4 GiB",
        f"{_MLE}, footnote on the payload between nodes",
        assumed,
        list(pairs([4 * GIB], [364.65])),
    )


# --- one node -------------------------------------------------------------------------------------
A100 = (43.83, 46.80, 51.76, 61.38, 80.40, 101.9, 101.4, 101.5, 133.5, 276.6, 424.0, 684.6)
A100 += (1327.6, 2420.6, 4218.4, 8203.9, 16240, 32136, 64074, 127997)  # microseconds
H200 = (1.44, 2.93, 5.73, 11.74, 23.94, 39.93, 64.53, 107.16, 155.53, 219.89, 275.84, 346.51)
H200 += (401.93, 436.15, 450.29, 463.58, 469.17, 473.10, 477.45, 482.26)  # GB/s
B200 = (1.20, 2.17, 4.86, 9.54, 18.71, 36.06, 63.09, 76.48, 126.49, 254.96, 325.97, 400.60)
B200 += (568.38, 646.11, 688.99, 723.34, 734.97, 740.64, 839.07, 845.67)
NODE = dict(ranks=8, ranks_per_node=8, link_bytes_per_second=50e9)


def fastest_time(nbytes, wire, ll_wire, launch, switch=None):
    """The least of a ring by three protocols and of a switch that adds, as NCCL means to choose."""
    ways = []
    for protocol in ("ring, LL", "ring, LL128", "ring, Simple"):
        speed = min(wire, 2 * ll_wire) if protocol == "ring, LL" else wire
        given = dict(NODE, protocol=protocol, message_bytes=nbytes, node_bytes_per_second=speed)
        ways.append(ask("nodes_ring_all_reduce_seconds", **given))
    if switch:
        given = dict(NODE, message_bytes=nbytes, node_bytes_per_second=switch)
        ways.append(ask("in_switch_all_reduce_seconds", switch_seconds=25e-6, **given))
    return launch + min(ways)


def one_node() -> Iterator[PublishedRow]:
    nbytes = sizes(32 * KIB, 20)
    rest = nbytes[1:-1]  # the first and the last row give the two that are fitted
    yield PublishedRow(
        "8 A100, 64 KiB to 8 GiB",
        f"{_MLE}, nccl-tests on a single A100 node",
        "ring by the best protocol; 235 GB/s fitted to the largest array, 16 GiB, and 28 µs of"
        " launch to the smallest, 32 KiB",
        [
            Pair(sized(size), 1e-6 * A100[place], fastest_time(size, 235e9, 87.7e9, 28e-6))
            for place, size in enumerate(nbytes)
            if size in rest
        ],
    )
    for name, table, wire, ll_wire, switch in (
        ("8 H200, 32 KiB to 16 GiB", H200, 366e9, 141e9, 310e9),
        ("8 B200, 32 KiB to 16 GiB", B200, 682e9, 282e9, 540e9),
    ):
        yield PublishedRow(
            name,
            f"{_MLE}, all_reduce_bench.py",
            f"the faster of a ring at {wire / 1e9:g} GB/s and NVLS at {switch / 1e9:g} GB/s,"
            " both from other tables; 25 µs of launch",
            [
                Pair(
                    sized(size),
                    from_bus(size, 8, table[place]),
                    fastest_time(size, wire, ll_wire, 25e-6, switch),
                )
                for place, size in enumerate(nbytes)
            ],
        )


# --- bus bandwidths above the datasheet -----------------------------------------------------------
NVLS = {"H200": {5: 414.2, 6: 435.6, 7: 460.0, 8: 473.1}, "B200": {6: 778.2, 7: 811.2, 8: 838.0}}


def switches() -> Iterator[PublishedRow]:
    """Behind each bus bandwidth there is one bandwidth of the wire, whatever the number of GPUs."""
    for card, table in NVLS.items():
        wires = {
            ranks: ask("switch_wire_bytes_per_second", bus_bytes_per_second=1e9 * bus, ranks=ranks)
            for ranks, bus in table.items()
        }
        wire = median(wires.values())
        yield PublishedRow(
            f"NVLS on {min(table)} to 8 {card}, 8 GiB",
            f"{_MLE}, SHARP",
            f"bus bandwidth times (n + 1) / 2(n - 1) is the same for each n: {wire / 1e9:.0f} GB/s",
            [Pair(f"{ranks} GPUs", wire, found) for ranks, found in wires.items()],
        )


# --- switches of a network that add ---------------------------------------------------------------
# GB/s of the array, read off two figures: 8 MiB to 1 GiB, each size twice the one before
SHARP_OF_8 = (7.29, 7.78, 7.90, 8.42, 7.99, 8.23, 8.45, 8.41)
SHARP_OF_4 = (7.90, 8.37, 8.38, 8.77, 9.07, 8.94, 9.08, 9.00)
RING_OF_8 = (5.11, 5.63, 5.55, 5.79, 5.94, 5.72, 5.80, 5.79)
RING_OF_4 = (6.33, 6.62, 6.85, 6.95, 6.64, 6.88, 6.90, 7.12)


def networks() -> Iterator[PublishedRow]:
    """SHARP on cards of 100, 200 and 100 Gbit/s."""
    pairs, wires = [], []
    for ranks, sharp, ring in ((4, SHARP_OF_4, RING_OF_4), (8, SHARP_OF_8, RING_OF_8)):
        wire = 1e9 * 2 * (ranks - 1) / ranks * median(ring)
        wires.append(wire)
        for size, speed in zip(sizes(8 * MIB, 8), sharp):
            given = dict(message_bytes=size, link_bytes_per_second=wire, switch_seconds=30e-6)
            model = ask("in_network_all_reduce_seconds", **given)
            pairs.append(Pair(f"{sized(size)}, {ranks} ranks", size / (1e9 * speed), model))
    reached = " and ".join(f"{wire / 1e9:.1f}" for wire in wires)
    yield PublishedRow(
        "SHARP, 4 and 8 V100 with a card each, 8 MiB to 1 GiB",
        "optcast@355ca0a docs/eval_results.md, both figures",
        f"{reached} GB/s, which NCCL's ring reached there on cards of 100 Gbit/s; 30 µs of"
        " latency, as in tuning.cc",
        pairs,
    )
    large = dict(message_bytes=GIB, link_bytes_per_second=25e9, switch_seconds=0)
    yield PublishedRow(
        "SHARP, HDR InfiniBand, large arrays",
        "Graham et al. 2020, abstract: 95% of the network's bandwidth",
        "the whole 200 Gbit/s; nothing fitted",
        [Pair("large arrays", GIB / (0.95 * 25e9), ask("in_network_all_reduce_seconds", **large))],
    )
    small = dict(message_bytes=4096, link_bytes_per_second=12.5e9, switch_seconds=2.83e-6)
    yield PublishedRow(
        "SHARP of 2016, 128 hosts, 4 KiB",
        "Graham et al. 2016, abstract",
        "2.83 µs of latency, the time that 8 bytes took; 100 Gbit/s",
        [Pair("4 KiB", 14.48e-6, ask("in_network_all_reduce_seconds", **small))],
    )


# --- latency, and peaks of several nodes ----------------------------------------------------------


def single_numbers() -> Iterator[PublishedRow]:
    a100 = dict(ranks=256, ranks_per_node=8, node_bytes_per_second=300e9)
    a100.update(link_bytes_per_second=25e9, message_bytes=128)
    tree = ask("two_trees_all_reduce_seconds", protocol="tree, LL", **a100)
    yield PublishedRow(
        "256 A100 in 32 nodes, 8 to 128 B",
        "NCCL issue 652",
        "two trees, LL",
        [Pair("8 B", 62.0e-6, tree), Pair("128 B", 65.6e-6, tree)],
    )
    pair = dict(ranks=2, ranks_per_node=1, message_bytes=8, node_bytes_per_second=300e9)
    pair.update(link_bytes_per_second=25e9, protocol="ring, LL", latency_seconds=5.0e-6)
    yield PublishedRow(
        "2 nodes of one A100, 8 B",
        "nccl-tests issue 150",
        "ring, LL; for nodes of one GPU, tuning.cc takes the tree's network latency",
        [Pair("8 B", 19.4e-6, ask("nodes_ring_all_reduce_seconds", **pair))],
    )
    cards = dict(ranks_per_node=8, node_bytes_per_second=300e9, link_bytes_per_second=25e9)
    cards.update(network_cards_per_node=4, ranks=24)
    speed = ask("ring_bytes_per_second", **cards)
    yield PublishedRow(
        "3 and 2 nodes of 8 A100, peaks of 96 and 86 GB/s",
        "nccl-tests issue 119, NCCL issue 1048",
        "four cards of 200 Gbit/s a node, together 100 GB/s",
        [Pair("3 nodes", 1 / 96e9, 1 / speed), Pair("2 nodes", 1 / 86e9, 1 / speed)],
    )


def rows() -> list[PublishedRow]:
    """All rows, in the order of the page."""
    return [*four_nodes(), *one_node(), *switches(), *networks(), *single_numbers()]
