"""Rows of the two tables of published runs in tests/, the layout of each, and three runs of which
pages show the seconds of a step in parts. The wheel has the tables among its data."""

import csv
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from pathlib import Path

from coursekit.formulas.registry import BOOK
from coursekit.planner.layout import RankLayout, model_sizes
from coursekit.planner.speeds import PUBLISHED_SECONDS, SPEEDS, parts_of, step_values

ROOTS = (Path(__file__).resolve().parents[3], Path(__file__).resolve().parents[1] / "data")
_COLUMNS = {one.name for one in fields(RankLayout)} - {"model", "sizes"}


@cache
def published_rows(path):
    with next(at / path for at in ROOTS if (at / path).exists()).open(encoding="utf-8") as table:
        return list(csv.DictReader(table))


def numbers_in(text):
    """The numbers of words such as hidden=512."""
    split = (word.split("=") for word in text.split())
    return {name: float(number) if "." in number else int(number) for name, number in split}


def published_layout(row) -> RankLayout:
    """The layout of a row of either table. The rows of bytes change sizes of a preset."""
    sizes = numbers_in(row["sizes"])
    told = {name: row[name] for name in _COLUMNS & row.keys()}
    return RankLayout(
        model=row.get("model") or row["name"],
        sizes={**model_sizes(row["model"]), **sizes} if "model" in row else sizes,
        **{name: int(value) if value.isdigit() else value for name, value in told.items()},
    )


@dataclass(frozen=True)
class PublishedRun:
    """A layout, the class of runs whose speed it has, and the published seconds of its step."""

    label: str
    layout: RankLayout
    speed: str
    seconds: float
    more: dict = field(default_factory=dict)  # quantities that a layout does not have

    @cached_property
    def step(self) -> dict:
        return step_values(self.layout, SPEEDS[self.speed], **self.more)

    @property
    def parts(self) -> dict:
        return parts_of(self.step)

    @property
    def predicted_seconds(self) -> float:
        return self.step["layout_seconds"]

    @property
    def error(self) -> float:
        return self.predicted_seconds / self.seconds - 1


def _published(flops_per_second, gpus, tokens, **sizes):
    """Seconds of a step of so many tokens, at the published FLOP/s of each GPU."""
    name = "matmul_flops_per_token"
    flops = BOOK.solve([name], {**sizes, "causal_half": 0}, allow_unused=True)[name]
    return flops * tokens / (gpus * flops_per_second)


def _of_the_table(label, name) -> PublishedRun:
    """The run of a row of published seconds."""
    (row,) = (row for row in published_rows(PUBLISHED_SECONDS) if row["name"] == name)
    more = numbers_in(row["more"])
    return PublishedRun(label, published_layout(row), row["speed"], float(row["seconds"]), more)


_405B = model_sizes("Llama 3 405B")
PUBLISHED_RUNS = {
    "l405": PublishedRun(
        "Llama 3 405B, 8,192 H100s",
        RankLayout(
            model="Llama 3 405B",
            sizes={**_405B, "layers": 128},  # 126, and the two chunks of the embedding and the head
            gpu="H100 SXM 80GB",
            gpus=8192,
            sequence=8192,
            zero_stage=1,
            accumulation_steps=32,
            tensor_parallel=8,
            pipeline_parallel=16,
            stages_per_rank=8,
        ),
        "Megatron-LM on H100",
        _published(430e12, 8192, 64 * 32 * 8192, **_405B, sequence=8192),
    ),
    "k175": _of_the_table("A GPT of 175B, 64 A100s", "K 175B selective"),
    "mpt7": _of_the_table("MPT-7B, 8 H100s", "MPT-7b, 2048 tokens, 8 x H100 SXM 80GB"),
}
