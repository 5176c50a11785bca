"""The measurements of lab 2, with their tables and figures."""

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

import torch

from coursekit.exercises.going_on import gives_numbers
from coursekit.formulas import GPUS, LINKS, evaluate, quantities, ridge_intensity
from coursekit.machine.capabilities import find_device, multiplies_bf16
from coursekit.recordings.recordings import Recording, measured_or_recorded, nearby, recorded
from coursekit.show.format import format_as
from coursekit.show.tables import Table
from coursekit.topics.hardware import probes, runs
from coursekit.topics.hardware.exercises import FLOPS, Queue, seconds_of_some_work
from coursekit.topics.hardware.figures import Point, Roof, roofline_figure
from shardlab.measure.clock import MedianSeconds, median_seconds, say_if_busy, say_if_most_vary
from shardlab.measure.links import Link, measure_link, time_message
from shardlab.ranks import ranks

MATRIX = 4096  # rows and columns, of the climb
PROBED_SIZE, TURNS_OF_PROBES = 256, 3
KNOWN_GPUS = ("T4", "A100 SXM 80GB", "B200 SXM")
MESSAGE_SIZES = [4**power for power in range(1, 13)]
KNOWN_LINKS = ("NVLink 4 (H100)", "PCIe 5 x16", "network, 400 Gbit/s", "Ethernet, 1 Gbit/s")


def half_type(device: torch.device) -> torch.dtype:
    """The type of 16 bits that the device multiplies in hardware, as far as it does at all: bf16,
    or fp16 on a GPU without bf16 units."""
    if device.type == "cpu" or multiplies_bf16(device):
        return torch.bfloat16
    return torch.float16


# --- the roof -------------------------------------------------------------------------------------


def best_rate(products: Iterable[probes.ProductRate], dtype: torch.dtype) -> float:
    """FLOP/s of the fastest product of that type."""
    name = str(dtype).removeprefix("torch.")
    return max(product.flops_per_second for product in products if product.dtype == name)


def product_rows(products: Iterable[probes.ProductRate]) -> list[list[str]]:
    """Size, type, operations per byte, seconds and rate of each product, in words."""
    return [
        [
            f"{product.size:,}",
            product.dtype,
            f"{product.intensity:.3g}",
            format_as(product.seconds, "duration"),
            format_as(product.flops_per_second, "rate"),
        ]
        for product in products
    ]


class Speed(NamedTuple):
    """Products of square matrices by size and type, and the bandwidth of the memory."""

    products: list[probes.ProductRate]
    bandwidth: float

    @property
    def roof(self) -> Roof:
        """The roof in fp32."""
        return Roof("this machine, fp32", best_rate(self.products, torch.float32), self.bandwidth)

    def by_prediction(self) -> dict[str, float]:
        """Values by the names of the predictions."""
        return {
            "large fp32 product, GFLOP/s": self.roof.flops_per_second / 1e9,
            "memory, GB/s": self.bandwidth / 1e9,
        }

    def table(self) -> Table:
        heads = ["size", "type", "operations per byte", "time", "rate"]
        return Table(heads, product_rows(self.products))

    def figure(self):
        """The fp32 products under this machine's roof, beside known GPUs."""
        points = [
            Point(f"{one.size} x {one.size}", one.intensity, one.flops_per_second)
            for one in self.products
            if one.dtype == "float32"
        ]
        known = [datasheet_roof(name) for name in KNOWN_GPUS]
        return roofline_figure("This machine and three GPUs", [self.roof, *known], points)


def measure_speed(device: torch.device) -> Speed:
    """Measure fp32 and the type of 16 bits that the device has; prints the ridge."""
    types = (torch.float32, half_type(device))
    found = Speed(probes.products(device, types), probes.memory_bytes_per_second(device))
    say_if_busy(*(product.seconds for product in found.products))
    _, rate, bandwidth = found.roof
    ridge = ridge_intensity(flops_per_second=rate, memory_bytes_per_second=bandwidth)
    print(f"fp32 ridge of this machine: {ridge:.3g} operations per byte")
    return found


def beside_the_probe(typical_seconds: Callable) -> Table:
    """A product timed by the reader's probe and by the book's in turns, on the CPU. Raises NotYet
    unless the check of the reader's passes."""
    typical_seconds = gives_numbers(seconds_of_some_work, typical_seconds)
    a, b = torch.randn(2, PROBED_SIZE, PROBED_SIZE)
    mine, theirs = [], []
    for _ in range(TURNS_OF_PROBES):
        mine.append(typical_seconds(lambda: a @ b, time.perf_counter, 31))
        theirs.append(median_seconds(lambda: a @ b, a.device, repeats=31))
    say_if_busy(*theirs)
    mine, theirs = MedianSeconds(mine), MedianSeconds(theirs)
    rows = [
        [name, format_as(seconds, "duration"), format_as(2 * PROBED_SIZE**3 / seconds, "rate")]
        for name, seconds in (("your probe", mine), ("the book's", theirs))
    ]
    return Table([f"a product of {PROBED_SIZE} x {PROBED_SIZE}", "takes", "rate"], rows)


def start_of_roofline(device: torch.device) -> dict:
    """The values with which the explorer starts: one row through a matrix in 16 bits, and products
    that just ran."""
    half = half_type(device)
    squares = probes.products(device, [half])
    marks = [(product.intensity, product.flops_per_second) for product in squares]
    return dict(
        operation="one token through a layer",
        operation_element_bytes=2,
        flops_per_second=best_rate(squares, half),
        memory_bytes_per_second=probes.memory_bytes_per_second(device),
        measured={"attainable_flops_per_second": marks},
    )


def measure_roof(device: torch.device) -> Roof:
    """This machine's roof in fp32: the rate of its fastest product, the bandwidth of its memory."""
    rate = best_rate(probes.products(device, [torch.float32]), torch.float32)
    return Roof("this machine, fp32", rate, probes.memory_bytes_per_second(device))


def datasheet_roof(name: str) -> Roof:
    """A known GPU's roof in 16 bits, as its datasheet promises."""
    promised = GPUS[name].quantities
    return Roof(name, promised["flops_per_second"], promised["memory_bytes_per_second"])


def row_counts(device: torch.device) -> tuple[int, ...]:
    """How many rows to send through a matrix; a CPU takes too long for the largest."""
    few = (1, 4, 16, 64, 256)
    return few if device.type == "cpu" else (*few, 1024, 4096)


class Climbed(NamedTuple):
    """A product of some rows with a matrix of 4,096 × 4,096 fp32 numbers: FLOP for each byte, the
    seconds that a roof allows, the seconds measured, and FLOP/s."""

    intensity: float
    roof_seconds: float
    seconds: float
    flops_per_second: float

    def in_words(self) -> list[str]:
        """Intensity and both times, for a table."""
        times = (format_as(seconds, "duration") for seconds in (self.roof_seconds, self.seconds))
        return [f"{self.intensity:.3g}", *times]


def under_the_roof(rows: int, seconds: float, roof: Roof) -> Climbed:
    """The measured product of so many rows beside what the roof allows."""
    flops, intensity, roof_seconds = evaluate(
        ["operation_flops", "arithmetic_intensity", "operation_seconds"],
        **quantities(
            operation="one token through a layer",
            operation_rows=rows,
            operation_element_bytes=4,
            flops_per_second=roof.flops_per_second,
            memory_bytes_per_second=roof.bytes_per_second,
        ),
    ).values()
    return Climbed(intensity, roof_seconds, seconds, flops / seconds)


class Climb(NamedTuple):
    """rows -> the product of so many rows with the matrix; the roof above; a sum beside."""

    climbed: dict[int, Climbed]
    roof: Roof
    sum_of_two: Point

    @property
    def times_as_long(self) -> float:
        """16 rows over one."""
        return round(self.climbed[16].seconds / self.climbed[1].seconds, 2)

    def table(self) -> Table:
        heads = ["rows", "operations per byte", "at least, by the roof", "measured"]
        return Table(heads, [[rows, *one.in_words()] for rows, one in self.climbed.items()])

    def figure(self):
        points = [
            self.sum_of_two,
            *(
                Point(f"{rows} row{'s' * (rows > 1)}", one.intensity, one.flops_per_second)
                for rows, one in self.climbed.items()
            ),
        ]
        return roofline_figure("More and more rows through one matrix", [self.roof], points)


def climb_the_roof(device: torch.device) -> Climb:
    """Rows of fp32 numbers through a matrix of 4,096 x 4,096."""
    roof = measure_roof(device)
    matrix = torch.randn(MATRIX, MATRIX, device=device)
    climbed, times = {}, []
    for rows in row_counts(device):
        x = torch.randn(rows, MATRIX, device=device)
        times.append(median_seconds(partial(torch.matmul, x, matrix), device, repeats=7))
        climbed[rows] = under_the_roof(rows, times[-1], roof)
    summand = torch.randn(MATRIX, MATRIX, device=device)
    times.append(median_seconds(lambda: matrix + summand, device, repeats=7))
    say_if_busy(*times)
    point = Point("sum of two matrices", 1 / 12, matrix.numel() / times[-1])
    return Climb(climbed, roof, point)


# --- small operations -----------------------------------------------------------------------------


def addition_seconds(numbers: torch.Tensor, calls: int = 20) -> float:
    """Seconds to add 1 to all numbers in place, when many such calls are made in a row."""

    def many():
        for _ in range(calls):
            numbers.add_(1)

    return median_seconds(many, numbers.device, calls=calls)


class SmallOperations(NamedTuple):
    """Microseconds of the smallest one; numbers -> seconds of an addition, of its bytes alone."""

    smallest_microseconds: float
    additions: dict[int, tuple[float, float]]

    def table(self) -> Table:
        rows = [
            [f"{size:,}", *(format_as(seconds, "duration") for seconds in times)]
            for size, times in self.additions.items()
        ]
        return Table(["numbers", "one addition takes", "its bytes alone would take"], rows)


def time_small_operations(device: torch.device) -> SmallOperations:
    bytes_per_second = probes.memory_bytes_per_second(device)
    additions = {}
    for size in (10, 1_000, 100_000, 10_000_000):
        numbers = torch.ones(size, device=device)
        additions[size] = addition_seconds(numbers), 2 * numbers.nbytes / bytes_per_second
    say_if_busy(*(seconds for seconds, _ in additions.values()))
    return SmallOperations(round(1e6 * probes.launch_seconds(device), 2), additions)


def claim_of(rate: Callable, device: torch.device) -> Table:
    """The claim of the reader's rate(queue, flops) about a real queue of products, and that of the
    probe."""
    a, b, out = (torch.randn(512, 512, device=device) for _ in range(3))
    queue = Queue(lambda: torch.mm(a, b, out=out), device)
    claimed = rate(queue, FLOPS)
    queue.synchronize()
    probed = probes.products(device, [torch.float32], [512])[0].flops_per_second
    rows = [
        [name, format_as(found, "rate"), f"{found / probed:.3g}"]
        for name, found in (("your function", claimed), ("the probe", probed))
    ]
    return Table(["a product of 512 x 512", "rate", "times the probe's"], rows)


# --- links ----------------------------------------------------------------------------------------


def copy_rows(
    device: torch.device, why_not: str, recordings: Iterable[Recording]
) -> tuple[list[list[str]], str]:
    """(direction, memory and rate of copies to and from a GPU, where they were measured): here if
    the device is a GPU, else from a recording; without one there are no rows. `why_not` is
    find_device's reason."""
    measure = partial(runs.machine, device) if device.type == "cuda" else None
    measured, source = measured_or_recorded(measure, recordings, f"not run, because {why_not}")
    copies = [row for row in measured if row.name == "roofline.copy"]
    rows = [
        [
            row.case["direction"],
            "pinned" if row.case["pinned"] else "pageable",
            format_as(row.value, "bandwidth"),
        ]
        for row in copies
    ]
    return rows, source


def link_rates(names: Iterable[str]) -> dict[str, float]:
    """Bytes a second, one way, that known links promise."""
    return {name: LINKS[name].quantities["link_bytes_per_second"] for name in names}


def rate_rows(rates: Mapping[str, float]) -> list[list[str]]:
    """Name and rate, in words."""
    return [[name, format_as(rate, "bandwidth")] for name, rate in rates.items()]


def two_number_seconds(link: Link, nbytes: int) -> float:
    """Seconds of a message by the formula: the link's latency, and bytes over its bandwidth."""
    return evaluate(
        ["message_seconds"],
        message_bytes=nbytes,
        latency_seconds=link.latency_seconds,
        link_bytes_per_second=link.bytes_per_second,
    )["message_seconds"]


class MeasuredMessages(NamedTuple):
    """The link between two ranks, and seconds of messages by bytes."""

    link: Link
    seconds: dict[int, float]

    def by_prediction(self) -> dict[str, float]:
        """Values by the names of the predictions."""
        return {
            "small message, microseconds": round(1e6 * self.link.latency_seconds, 1),
            "link, GB/s": round(self.link.bytes_per_second / 1e9, 2),
        }

    def beside_known_links(self) -> Table:
        rates = {"these two ranks": self.link.bytes_per_second, **link_rates(KNOWN_LINKS)}
        return Table(["link", "one way"], rate_rows(rates))

    def table(self) -> Table:
        """Each message beside what the two numbers say; prints where they are equal."""
        bend = self.link.latency_seconds * self.link.bytes_per_second
        print(f"latency and transfer take equally long at {format_as(bend, 'decimal bytes')}")
        rows = [
            [
                f"{nbytes:,}",
                format_as(two_number_seconds(self.link, nbytes), "duration"),
                format_as(seconds, "duration"),
            ]
            for nbytes, seconds in self.seconds.items()
        ]
        return Table(["bytes", "latency + bytes / bandwidth", "measured"], rows)


def ping_pong(device: str) -> MeasuredMessages:
    """On one of two ranks."""
    seconds = {nbytes: time_message(nbytes, device=device) for nbytes in MESSAGE_SIZES}
    return MeasuredMessages(measure_link(device=device), seconds)


def play_ping_pong() -> MeasuredMessages:
    """Two ranks, on two GPUs if there are some, else on the CPU."""
    on = "cuda" if torch.cuda.device_count() > 1 else "cpu"
    with ranks(2, device=on, announce=False) as world:
        found = world.run(ping_pong, on)[0]
    say_if_most_vary(found.seconds.values())
    return found


def table_of_copies_to_a_gpu() -> Table:
    """Copies between CPU memory and a GPU, and what PCIe allows at most; prints where from."""
    copies, source = copy_rows(*find_device(), nearby())
    print(source)
    limits = rate_rows(link_rates(["PCIe 4 x16", "PCIe 5 x16"]))
    rows = [*copies, *([f"at most, over {link}", "either", rate] for link, rate in limits)]
    return Table(["copy", "memory", "one way"], rows)


def recorded_predictions() -> dict[str, str]:
    """The values recorded on a GPU, by the names of the predictions."""
    recordings = nearby()
    return {
        "large fp32 product, GFLOP/s": recorded(recordings, "matmul.rate", dtype="float32"),
        "memory, GB/s": recorded(recordings, "roofline.memory"),
        "smallest operation, microseconds": recorded(recordings, "roofline.launch"),
    }
