"""Models, recipes, GPUs, links and operations by name: quantities that belong together, with their
source.

    states_bytes(**quantities(model="GPT-2 124M", recipe="fp32 Adam"))
    evaluate(["spare_bytes"], **quantities(recipe="bf16 + fp32 master", gpu="T4",
    parameters=7_000_000_000, gpus_per_copy=1))
"""

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.resources import files
from types import MappingProxyType
from typing import get_type_hints

from .registry import BOOK


@dataclass(frozen=True)
class Preset:
    """A line of data/presets.md. `note` says what is behind the numbers, `read_on` when they were
    read in the source; `verified` names the test, or is empty: not compared with a run yet."""

    name: str
    quantities: MappingProxyType
    source: str
    note: str = ""
    verified: str = ""
    read_on: str = ""  # 2026-11-22


def _by_name(presets):
    return MappingProxyType({preset.name: preset for preset in presets})


DATA = files("coursekit").joinpath("data")


def _presets_of(section, words):
    """The presets of a kind in data/presets.md, which says how they are written."""
    names, day, also = (), "", ""
    for line in re.sub(r"\n +", " ", section).splitlines():
        if line.startswith("read on "):
            day, _, also = line.removeprefix("read on ").partition(", as in ")
        elif "|" in line:
            said = (part.strip() for part in line.format(**words).split("|"))
            name, values, source, note, test = (*said, "", "")[:5]
            numbers = dict(zip(names, map(_number, values.split()), strict=True))
            source += f"; as in {also}" if also else ""
            yield Preset(name, MappingProxyType(numbers), source, note, test, day)
        elif line:
            names = line.split()


def _number(text):
    return int(text) if text.isdecimal() else float(text)


def _read() -> dict[str, list[Preset]]:
    """Kind -> presets."""
    head, *sections = re.split(r"(?m)^## ", DATA.joinpath("presets.md").read_text("utf-8"))
    words = dict(re.findall(r"(?m)^    (\w+) = (.+)", head))
    kinds = (section.partition("\n") for section in sections)
    return {kind: list(_presets_of(rest, words)) for kind, _, rest in kinds}


def _without_usual(preset):
    """The preset without quantities that have their usual value: what a model does not have."""
    had = preset.quantities.items()
    kept = {name: value for name, value in had if value != BOOK.quantities[name].usual}
    return replace(preset, quantities=MappingProxyType(kept))


def rows_of_table(name) -> list[dict]:
    """The rows of a table in data/."""
    return list(csv.DictReader(DATA.joinpath(name).read_text("utf-8").splitlines()))


_CELLS = {int: int, float: float, str: str, bool: "1".__eq__}


def records_of(name, kind) -> dict:
    """The first column of a table in data/ -> a `kind`, whose fields are the other columns; an
    empty cell has the field's default."""
    kinds, found = get_type_hints(kind), {}
    for row in rows_of_table(name):
        (_, key), *cells = row.items()
        found[key] = kind(**{name: _CELLS[kinds[name]](cell) for name, cell in cells if cell})
    return found


HARDWARE = {row["name"]: row for row in rows_of_table("hardware.csv")}


_SOME_HAVE = (  # column, its quantity, its unit
    ("dense_tflops_fp8", "fp8_flops_per_second", 1e12),
    ("dense_tflops_fp4", "fp4_flops_per_second", 1e12),
    ("measured_matmul_tflops_bf16", "measured_flops_per_second", 1e12),
    ("chip_to_chip_GBps", "chip_to_chip_bytes_per_second", 1e9),
)


def _gpus():
    for name, row in HARDWARE.items():
        dense_tflops = float(row["dense_tflops_bf16"] or row["dense_tflops_fp16"])
        kind = "bf16" if row["dense_tflops_bf16"] else "fp16"
        numbers = dict(
            gpu_memory_bytes=int(row["visible_bytes"]),
            flops_per_second=dense_tflops * 1e12,
            memory_bytes_per_second=float(f"{row['memory_bandwidth_TBps']}e12"),
        )
        numbers |= {of: float(row[column]) * unit for column, of, unit in _SOME_HAVE if row[column]}
        note = f"{row['memory_GB']} GB, {dense_tflops:g} dense {kind} TFLOP/s"
        told = row["source"], note, row["verified"], row["read_on"]
        yield Preset(name, MappingProxyType(numbers), *told)


GPUS = _by_name(_gpus())
OTHER_CARD = " For another card name one with as much memory: bytes are the same, seconds are not."
WITHOUT_BF16 = frozenset(name for name, row in HARDWARE.items() if not row["dense_tflops_bf16"])


def _node_link(link):
    """A preset of the same link where ranks of one node talk over another link than nodes do."""
    names = {name: f"node_{name.removeprefix('link_')}" for name in link.quantities}
    numbers = {names[name]: value for name, value in link.quantities.items()}
    return replace(link, quantities=MappingProxyType(numbers))


def _all() -> Iterator[tuple[str, MappingProxyType]]:
    """Kind -> name -> preset, in the order in which they are offered."""
    for kind, presets in _read().items():
        if kind == "model":
            # Each count of parameters equals the published one: tests/engines/test_model_config.py
            presets = map(_without_usual, presets)
        if kind == "link":
            yield "gpu", GPUS
        presets = _by_name(presets)
        yield kind, presets
        if kind == "link":
            yield "node_link", _by_name(map(_node_link, presets.values()))


BOOK.presets = PRESETS = MappingProxyType(dict(_all()))
MODELS, RECIPES, KERNELS = PRESETS["model"], PRESETS["recipe"], PRESETS["kernels"]
LINKS, OPERATIONS = PRESETS["link"], PRESETS["operation"]


def quantities(**given):
    """The quantities of the named presets in one dict, as in quantities(model="GPT-2 124M",
    recipe="fp32 Adam", sequence=1024); what is given by name comes last and wins."""
    return BOOK.expand(given)
