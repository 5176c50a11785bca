"""Lab 2 beside its cells: known hardware, formulas beside measured times, tables."""

from collections.abc import Mapping
from functools import partial

import torch

from coursekit.formulas import GPUS, LINKS, evaluate, quantities
from coursekit.machine import capabilities, units
from coursekit.recordings.recordings import measured_or_recorded, nearby, recorded
from coursekit.show.format import format_as
from coursekit.show.tables import Table
from coursekit.topics.hardware import runs
from coursekit.topics.hardware.figures import Roof
from ranklab.measure.links import Link

_PROMISED = {name: GPUS[name].quantities for name in ("T4", "A100 SXM 80GB", "B200 SXM")}
KNOWN_ROOFS = [  # in 16 bits, as datasheets promise them
    Roof(name, of["flops_per_second"], of["memory_bytes_per_second"])
    for name, of in _PROMISED.items()
]
_LINKS = ("NVLink 4 (H100)", "PCIe 5 x16", "network, 400 Gbit/s", "Ethernet, 1 Gbit/s")
KNOWN_LINKS = {name: LINKS[name].quantities["link_bytes_per_second"] for name in _LINKS}


def half_type(device: torch.device) -> torch.dtype:
    bf16 = device.type == "cpu" or units.has_units(torch.bfloat16, device)
    return torch.bfloat16 if bf16 else torch.float16


def table_of_products(products: Mapping) -> Table:
    rows = []
    for (size, dtype), seconds in products.items():
        words = f"{size:,}", str(dtype).removeprefix("torch."), f"{size / 1.5 / dtype.itemsize:.3g}"
        times = format_as(seconds, "duration"), format_as(2 * size**3 / seconds, "rate")
        rows.append([*words, *times])
    return Table(["size", "type", "operations per byte", "time", "rate"], rows)


def under_the_roof(rows: int, roof: Roof) -> tuple[float, float, float]:
    """(operations, operations per byte, seconds by the roof) of rows through the matrix."""
    given = dict(operation_rows=rows, operation_element_bytes=4)
    machine = dict(zip(("flops_per_second", "memory_bytes_per_second"), roof[1:]))
    given = quantities(operation="one token through a layer", **given, **machine)
    names = ["operation_flops", "arithmetic_intensity", "operation_seconds"]
    return tuple(evaluate(names, **given).values())


def table_of_climb(climb: Mapping[int, float], roof: Roof) -> Table:
    rows = []
    for count, seconds in climb.items():
        _, intensity, least = under_the_roof(count, roof)
        times = (format_as(each, "duration") for each in (least, seconds))
        rows.append([count, f"{intensity:.3g}", *times])
    return Table(["rows", "operations per byte", "at least, by the roof", "measured"], rows)


def copies_to_a_gpu() -> Table:
    """Copies between CPU memory and a GPU, and what PCIe allows at most; prints where from."""
    device, why_not = capabilities.find_device()
    measure = partial(runs.machine, device) if device.type == "cuda" else None
    measured, source = measured_or_recorded(measure, nearby(), f"not run, because {why_not}")
    print(source)
    rows = []
    for row in filter(lambda row: row.name == "roofline.copy", measured):
        memory = "pinned" if row.case["pinned"] else "pageable"
        rows.append([row.case["direction"], memory, format_as(row.value, "bandwidth")])
    for link in ("PCIe 4 x16", "PCIe 5 x16"):
        rate = LINKS[link].quantities["link_bytes_per_second"]
        rows.append([f"at most, over {link}", "either", format_as(rate, "bandwidth")])
    return Table(["copy", "memory", "one way"], rows)


def table_of_messages(link: Link, seconds: Mapping[int, float]) -> Table:
    bend = link.latency_seconds * link.bytes_per_second
    print(f"latency and transfer take equally long at {format_as(bend, 'decimal bytes')}")
    two = dict(zip(("latency_seconds", "link_bytes_per_second"), link))
    rows = []
    for nbytes, measured in seconds.items():
        formula = evaluate(["message_seconds"], message_bytes=nbytes, **two)["message_seconds"]
        rows.append([f"{nbytes:,}", *(format_as(s, "duration") for s in (formula, measured))])
    return Table(["bytes", "latency + bytes / bandwidth", "measured"], rows)


def recorded_predictions() -> dict[str, str]:
    """The values recorded on a GPU, by the names of the predictions."""
    rate = recorded(nearby(), "matmul.rate", dtype="float32")
    names = {"memory, GB/s": "memory", "smallest operation, microseconds": "launch"}
    others = {name: recorded(nearby(), f"roofline.{of}") for name, of in names.items()}
    return {"large fp32 product, GFLOP/s": rate, **others}
