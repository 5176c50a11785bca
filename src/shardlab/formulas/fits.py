"""Does a model fit on these GPUs? The bytes of the fullest rank as a ledger, a line for each
category with its formula and source, what was assumed, and the nearest layout that fits.

    print(fits("config.json", gpu="H100 SXM 80GB", gpus=64, sequence=8192))
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from .model_config import InvalidModelConfig, read_config
from .presets import GPUS, KERNELS, MODELS
from .registry import BOOK, InvalidQuantity, show
from .subset import expression_of

RANK_PEAK, RANK_PLACE = "rank_peak_bytes", "rank_peak_place"
USUAL_RECIPE = "bf16 + fp32 master"
USUAL_KERNELS, FUSED_LOSS = "Megatron-LM with Transformer Engine", "Megatron-LM, fused loss"
MOST_GPUS = 65_536
NOT_COUNTED = (
    "the CUDA context, NCCL's buffers and what the allocator rounds up: set memory aside for them"
    " with --reserve-gb; no recompute, no tensor, sequence, context or pipeline parallelism"
)


@dataclass(frozen=True)
class RankLayout:
    """What is asked: every value by which a layout can differ from another."""

    model: str
    sizes: dict
    gpu: str
    gpus: int
    sequence: int
    zero_stage: int
    microbatch: int = 1
    accumulation_steps: int = 1
    recipe: str = USUAL_RECIPE
    kernels: str = USUAL_KERNELS
    reserve_bytes: int = 0

    @property
    def given(self) -> dict:
        """What formulas take. All GPUs are data-parallel ranks until other degrees are counted."""
        named = ("recipe", "kernels", "gpu", "sequence", "zero_stage", "microbatch")
        values = {name: getattr(self, name) for name in (*named, "accumulation_steps")}
        return {**self.sizes, **values, "data_parallel": self.gpus}

    def solved(self) -> dict:
        """The values of all quantities. Raises InvalidQuantity for what cannot be."""
        BOOK.validate(gpus=self.gpus)
        positions = self.sizes["max_sequence"]
        if self.sizes["learned_positions"] and self.sequence > positions:
            raise InvalidQuantity(
                "sequence",
                self.sequence,
                f"sequence = {show(self.sequence)}: {self.model} has a table of {show(positions)}"
                " positions, so its sequences are not longer.",
            )
        targets = (RANK_PEAK, RANK_PLACE, "parameters", "active_parameters", "gpu_memory_bytes")
        return BOOK.solve(targets, self.given, allow_unused=True)

    @property
    def fits(self) -> bool:
        values = self.solved()
        return values[RANK_PEAK] + self.reserve_bytes <= values["gpu_memory_bytes"]


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
    """`nearest` are layouts that fit and differ in one thing, or as a last resort in several: pairs
    (what changes, layout)."""

    layout: RankLayout
    values: dict
    lines: tuple
    assumed: dict
    nearest: tuple

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.memory_bytes

    @property
    def needed_bytes(self) -> int:
        return self.values[RANK_PEAK] + self.layout.reserve_bytes

    @property
    def memory_bytes(self) -> int:
        return self.values["gpu_memory_bytes"]

    @property
    def place(self) -> str:
        return self._place.meaning.removeprefix("bytes ")

    @property
    def _place(self):
        return BOOK.formulas[BOOK.formulas[RANK_PEAK].needs[self.values[RANK_PLACE] - 1]]

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
        yield f"It is fullest {self.place}."
        yield ""
        for line in self.lines:
            yield f"{line.category:<12}{gigabytes(line.nbytes):>12}  {line.meaning}"
            yield f"{'':26}{line.quantity} = {line.expression}"
            yield f"{'':26}source: {line.source}"
        if asked.reserve_bytes:
            yield f"{'set aside':<12}{gigabytes(asked.reserve_bytes):>12}"
        yield f"{'together':<12}{gigabytes(self.needed_bytes):>12}"
        yield ""
        yield "Assumed:"
        for name, why in self.assumed.items():
            yield f"  {name} = {why}"
        yield f"  not counted: {NOT_COUNTED}"
        if not self.fits:
            yield ""
            yield "Nearest that fits:" if self.nearest else "Nothing near fits."
            for change, layout in self.nearest:
                values = layout.solved()
                yield f"  {change}: {gigabytes(values[RANK_PEAK] + layout.reserve_bytes)}"

    def as_json(self) -> dict:
        return dict(
            fits=self.fits,
            needed_bytes=self.needed_bytes,
            memory_bytes=self.memory_bytes,
            place=self.place,
            parameters=self.values["parameters"],
            active_parameters=self.values["active_parameters"],
            lines=[vars(line) for line in self.lines],
            reserve_bytes=self.layout.reserve_bytes,
            assumed=self.assumed,
            not_counted=NOT_COUNTED,
            nearest=[
                dict(change=change, needed_bytes=layout.solved()[RANK_PEAK] + layout.reserve_bytes)
                for change, layout in self.nearest
            ],
        )


def fits(model, *, gpu, gpus, sequence, zero_stage=None, reserve_gb=0, **more) -> Answer:
    """The Answer for a model, by name or by the path of its config.json, on `gpus` GPUs of a
    preset, all of them data-parallel ranks. `more` may give microbatch, accumulation_steps, recipe
    and kernels. Raises InvalidModelConfig, InvalidQuantity or TypeError with one sentence."""
    assumed = {}
    if zero_stage is None:
        zero_stage = 3 if gpus > 1 else 0
        assumed["zero_stage"] = f"{zero_stage} (--zero-stage)"
    if reserve_gb < 0:
        raise InvalidQuantity(
            "reserve_gb", reserve_gb, f"reserve_gb = {reserve_gb}: it must be at least 0."
        )
    layout = RankLayout(
        model=str(model),
        sizes=model_sizes(model),
        gpu=gpu,
        gpus=gpus,
        sequence=sequence,
        zero_stage=zero_stage,
        reserve_bytes=round(reserve_gb * 10**9),
        **more,
    )
    for name in ("microbatch", "accumulation_steps", "recipe", "kernels"):
        if name not in more:
            assumed[name] = f"{getattr(layout, name)} (--{name.replace('_', '-')})"
    values = layout.solved()
    flat = BOOK.expand(layout.given)
    _, inputs = BOOK.resolve([RANK_PEAK], flat)
    assumed |= {
        name: f"{show(value)}: {BOOK.quantities[name].meaning}"
        for name, value in BOOK.assumed(inputs, flat).items()
    }
    lines = tuple(_lines(values))
    answer = Answer(layout, values, lines, assumed, ())
    return answer if answer.fits else replace(answer, nearest=tuple(nearest(layout)))


def model_sizes(model) -> dict:
    """The quantities of a model by name, or of a config.json."""
    if model in MODELS:
        return dict(MODELS_WITH_USUAL[model])
    try:
        sizes = read_config(model)
    except InvalidModelConfig as refused:
        if Path(model).exists():
            raise
        raise InvalidModelConfig(
            f"{str(refused)[:-1]}; models by name are {', '.join(MODELS)}."
        ) from None
    return {**BOOK.assumed(_FAMILY, sizes), **sizes}


_FAMILY = list(dict.fromkeys(name for preset in MODELS.values() for name in preset.quantities))
MODELS_WITH_USUAL = {
    name: {**BOOK.assumed(_FAMILY, ()), **preset.quantities} for name, preset in MODELS.items()
}


def _lines(values) -> Iterator[LedgerLine]:
    """The parts of the fullest place that are there."""
    place = BOOK.formulas[BOOK.formulas[RANK_PEAK].needs[values[RANK_PLACE] - 1]]
    for category, name in place.function.parts.items():
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


def nearest(layout: RankLayout) -> Iterator[tuple[str, RankLayout]]:
    """Of each thing that can change, the smallest change that fits; where no single change does,
    all at once that cost no time, then ever more GPUs, then ever shorter sequences."""
    found = [tried for changes in _single_changes(layout) if (tried := _first_that_fits(changes))]
    yield from ((difference(layout, tried), tried) for tried in found)
    if found:
        return
    frugal = replace(layout, zero_stage=3, microbatch=1, kernels=_fused(layout.kernels))
    for sequence in (layout.sequence // step for step in (1, 2, 4, 8, 16)):
        gpus = layout.gpus
        while sequence and gpus <= MOST_GPUS:
            tried = replace(frugal, sequence=sequence, gpus=gpus)
            if tried.fits:
                yield difference(layout, tried), tried
                return
            gpus *= 2


def _single_changes(layout):
    yield [replace(layout, zero_stage=z) for z in range(layout.zero_stage + 1, 4)]
    yield [replace(layout, microbatch=b) for b in _halves(layout.microbatch)]
    yield [replace(layout, kernels=_fused(layout.kernels))]
    if layout.zero_stage:
        yield [replace(layout, gpus=n) for n in _doubles(layout.gpus)]
    yield [replace(layout, sequence=s) for s in _halves(layout.sequence) if s >= 128]
    larger = sorted(GPUS, key=lambda name: GPUS[name].quantities["gpu_memory_bytes"])
    yield [replace(layout, gpu=name) for name in larger]


def _first_that_fits(layouts):
    return next((tried for tried in layouts if tried.fits), None)


def difference(layout: RankLayout, other: RankLayout) -> str:
    """What to change, as options of the command."""
    names = ("zero_stage", "microbatch", "kernels", "gpus", "sequence", "gpu")
    changed = [name for name in names if getattr(layout, name) != getattr(other, name)]
    values = {name: getattr(other, name) for name in changed}
    return " ".join(
        f"--{name.replace('_', '-')} " + (f'"{value}"' if isinstance(value, str) else str(value))
        for name, value in values.items()
    )


def _fused(kernels):
    return FUSED_LOSS if KERNELS[kernels].quantities["library_kernels"] else kernels


def _halves(number):
    while number > 1:
        number //= 2
        yield number


def _doubles(number):
    while (number := 2 * number) <= MOST_GPUS:
        yield number


def gigabytes(nbytes) -> str:
    return f"{nbytes / 10**9:,.2f} GB"
