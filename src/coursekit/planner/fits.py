"""Does a model fit on these GPUs? The bytes of the fullest rank as a ledger, a line for each
category with its formula and source, what was assumed, and the nearest layout that fits.

    print(fits("config.json", gpu="H100 SXM 80GB", gpus=64, sequence=8192))

Warns of tensor parallelism across nodes: CrossesNodes, with the time of a layer's messages.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace

from coursekit.formulas.registry import BOOK, show
from coursekit.formulas.subset import expression_of
from coursekit.sentences import sentences
from shardlab.common.cross_node_warning import CrossesNodes

from . import layout as layouts
from .layout import (
    NO_TENSOR,
    ON_THE_HOST,
    RANK_PEAK,
    RANK_PLACE,
    RankLayout,
    asked_layout,
    gigabytes,
    option,
)
from .nearest import json_of_nearest, lines_of_nearest, nearest


@dataclass(frozen=True)
class LedgerLine:
    """Bytes of one category at the rank's fullest place."""

    category: str
    quantity: str
    nbytes: int
    meaning: str
    expression: str
    source: str


@dataclass(frozen=True)
class Answer:
    """`nearest` are layouts that fit and differ in one thing, on one GPU with recomputation, or as
    a last resort in several: pairs (what changes, layout)."""

    layout: RankLayout
    values: dict
    lines: tuple
    assumed: dict
    nearest: tuple
    warning: str = ""  # of tensor parallelism across nodes

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.memory_bytes

    @property
    def needed_bytes(self) -> int:
        return self.layout.needed_bytes(self.values)

    @property
    def reserve_bytes(self) -> int:
        return self.layout.reserved(self.values)

    @property
    def compared(self) -> str:
        return self.layout.compared

    @property
    def memory_bytes(self) -> int:
        return self.values["gpu_memory_bytes"]

    @property
    def place(self) -> str:
        where = fullest_place(self.values).meaning.removeprefix("bytes ")
        return where.partition(":")[0].partition(";")[0]

    def __str__(self) -> str:
        return "\n".join(self._texts())

    def _texts(self) -> Iterator[str]:
        asked, room = self.layout, self.memory_bytes - self.needed_bytes
        verdict = "fits" if self.fits else "does not fit"
        spare = f"{gigabytes(abs(room))} {'are left' if self.fits else 'are missing'}"
        yield (
            f"{asked.model} on {asked.gpus:,} x {asked.gpu}: {verdict}. The fullest rank needs"
            f" {gigabytes(self.needed_bytes)} of {gigabytes(self.memory_bytes)}; {spare}."
        )
        if asked.pipeline_parallel > 1:
            yield f"It is rank {self.values['pipeline_rank']} of the pipeline."
        yield f"It is fullest {self.place}."
        if self.warning:
            yield f"Warning: {self.warning}"
        yield ""
        for line in self.lines:
            yield f"{line.category:<12}{gigabytes(line.nbytes):>12}  {line.meaning}"
            yield f"{'':26}{line.quantity} = {line.expression}"
            yield f"{'':26}source: {line.source}"
        if self.reserve_bytes:
            yield f"{'set aside':<12}{gigabytes(self.reserve_bytes):>12}"
        yield f"{'together':<12}{gigabytes(self.needed_bytes):>12}"
        if nbytes := self.values[ON_THE_HOST]:
            yield f"{'on the host':<12}{gigabytes(nbytes):>12}"
        yield ""
        yield "Assumed:"
        for name, why in self.assumed.items():
            yield f"  {name} = {why}"
        yield f"Compared: {self.compared}."
        if not self.fits:
            yield ""
            yield "Nearest that fits:" if self.nearest else "Nothing near fits."
            yield from lines_of_nearest(self.nearest)

    def as_json(self) -> dict:
        own = ("fits", "needed_bytes", "memory_bytes", "reserve_bytes", "place", "compared")
        own += ("assumed", "warning")
        known = ("pipeline_rank", "parameters", "active_parameters")
        return dict(
            **{name: getattr(self, name) for name in own},
            **{name: self.values[name] for name in known},
            lines=[vars(line) for line in self.lines],
            host_bytes=self.values[ON_THE_HOST],
            nearest=list(json_of_nearest(self.nearest)),
        )


def fits(model, *, gpu, gpus, sequence, zero_stage=None, reserve_gb=None, **more) -> Answer:
    """The Answer for a model, by name or by the path of its config.json, on `gpus` GPUs of a
    preset. `more` may give LAYOUT_OPTIONS; what the degrees leave of the GPUs are data-parallel
    ranks. Raises InvalidModelConfig, InvalidQuantity or TypeError with one sentence; warns of
    tensor parallelism across nodes."""
    assumed = {}
    if zero_stage is None:
        zero_stage = 3 if gpus > 1 else 0
        assumed["zero_stage"] = f"{zero_stage} (--zero-stage)"
    where = dict(gpu=gpu, gpus=gpus, sequence=sequence, zero_stage=zero_stage)
    layout = asked_layout(model, reserve_gb, **where, **more)
    values = layout.solved()
    stages = layout.pipeline_parallel * layout.stages_per_rank
    even = values["first_stage_layers"] == values["stage_layers"]
    uneven = even and layout.sizes["layers"] % stages and not layout.shorter_ends
    known = vars(layouts) | vars(layout) | dict(layout=layout, values=values, more=more)
    known |= dict(reserve_gb=reserve_gb, stages=stages, uneven=uneven)
    for name, value in sentences("knobs.md", "defaults that are said", known):
        if more.get(name) is None:
            assumed[name] = f"{value} ({option(name)})"
    flat = BOOK.expand({**layout.given, "pipeline_rank": values["pipeline_rank"]})
    _, inputs = BOOK.resolve([RANK_PEAK], flat)
    assumed |= {
        name: f"{show(value)}: {BOOK.quantities[name].meaning}"
        for name, value in BOOK.assumed(inputs, flat).items()
    }
    assumed |= dict(sentences("knobs.md", "what else is assumed", known))
    lines = tuple(_lines(values))
    answer = Answer(layout, values, lines, assumed, (), layout.crossing())
    if answer.warning:
        warnings.warn(answer.warning, CrossesNodes, stacklevel=2)
    return answer if answer.fits else replace(answer, nearest=tuple(nearest(layout)))


def fullest_place(values):
    """The formula of the place at which the rank's peak is."""
    return BOOK.formulas[BOOK.formulas[RANK_PEAK].needs[values[RANK_PLACE] - 1]]


def _lines(values) -> Iterator[LedgerLine]:
    """The parts of the fullest place that are there, and what no tensor holds."""
    place = fullest_place(values)
    outside = zip(("context", "NCCL"), NO_TENSOR)
    for category, name in (*place.function.parts.items(), *outside):
        if not values[name]:
            continue
        found, formula = BOOK.find(name), BOOK.formulas.get(name)
        yield LedgerLine(
            category,
            name,
            values[name],
            " ".join(found.meaning.split()),
            expression_of(formula.function) if formula else show(values[name]),
            formula.source if formula else "the kernels preset",
        )
