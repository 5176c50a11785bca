"""What lab 2 measures besides its own products and messages, and the rows of its tables."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import NamedTuple

import torch

from shardlab.formulas import GPUS, LINKS, evaluate, quantities
from shardlab.measure.capabilities import multiplies_bf16
from shardlab.measure.clock import median_seconds
from shardlab.measure.links import Link
from shardlab.measure.recordings import Recording, measured_or_recorded
from shardlab.show.format import format_as
from shardlab.topics.hardware import probes, runs
from shardlab.topics.hardware.figures import Roof

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
    """Size, type, operations for a byte, seconds and rate of each product, in words."""
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


# --- small operations -----------------------------------------------------------------------------


def addition_seconds(numbers: torch.Tensor, calls: int = 20) -> float:
    """Seconds to add 1 to all numbers in place, when many such calls are made in a row."""

    def many():
        for _ in range(calls):
            numbers.add_(1)

    return median_seconds(many, numbers.device) / calls


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
