"""One model on the way from "does not fit" to a layout: each move of the chapter is a layout, with
the bytes of its fullest rank and the seconds of its step."""

from dataclasses import dataclass, replace
from functools import cached_property

from coursekit.formulas.registry import BOOK
from coursekit.planner.layout import FUSED_LOSS, NO_TENSOR, RESERVED_SHARES, RankLayout, model_sizes
from coursekit.planner.speeds import SPEEDS, parts_of, step_values

ASKED_MODEL, ASKED_GPU, ASKED_GPUS, ASKED_SEQUENCE, ASKED_BATCH = (
    "Llama 3 70B",
    "H100 SXM 80GB",
    64,
    8192,
    512,
)
SPEED = SPEEDS["Megatron-LM on H100"]
BAR_KINDS = ("parameters", "optimizer", "gradients", "activations", "gathered", "temporaries")


@dataclass(frozen=True)
class RankBar:
    """A layout, and what its fullest rank holds and its step takes."""

    layout: RankLayout

    @cached_property
    def values(self) -> dict:
        return self.layout.solved()

    @property
    def peak_bytes(self) -> int:
        return self.values["rank_peak_bytes"]

    @property
    def room_bytes(self) -> float:
        """Bytes of the card that tensors may take: published runs reserved more than their tensors
        took, and some bytes no tensor holds."""
        room = self.values["gpu_memory_bytes"] - sum(self.values[name] for name in NO_TENSOR)
        return room / (1 + RESERVED_SHARES["dense models"])

    @property
    def fits(self) -> bool:
        return self.layout.needed_bytes(self.values) <= self.values["gpu_memory_bytes"]

    @cached_property
    def kinds(self) -> dict:
        """Kind of memory -> bytes at the peak. Workspaces are among the temporaries."""
        place = BOOK.formulas["rank_peak_bytes"].needs[self.values["rank_peak_place"] - 1]
        parts = BOOK.formulas[place].function.parts
        found = {kind: self.values[name] for kind, name in parts.items()}
        found["temporaries"] += found.pop("workspaces")
        return {kind: found[kind] for kind in BAR_KINDS}

    @cached_property
    def step(self) -> dict:
        return step_values(self.layout, SPEED)

    @cached_property
    def shares(self) -> dict:
        """Part of the step -> its share."""
        seconds = self.step["layout_seconds"]
        return {name: taken / seconds for name, taken in parts_of(self.step).items()}


def layout_of(gpus=ASKED_GPUS, batch=ASKED_BATCH, **knobs) -> RankLayout:
    """A layout of the chapter's model, whose microbatches make a step of `batch` sequences."""
    layout = RankLayout(
        model=ASKED_MODEL,
        sizes=model_sizes(ASKED_MODEL),
        gpu=ASKED_GPU,
        gpus=gpus,
        **{"zero_stage": 0, "sequence": ASKED_SEQUENCE, "kernels": FUSED_LOSS, **knobs},
    )
    copies = gpus // (layout.tensor_parallel * layout.pipeline_parallel)
    return replace(layout, accumulation_steps=batch // (copies * layout.microbatch))


MOVES = {
    "in fp32, on one GPU": RankBar(layout_of(gpus=1, recipe="fp32 Adam")),
    "in bf16": RankBar(layout_of(gpus=1)),
    "64 copies": RankBar(layout_of()),
    "stage 1": RankBar(layout_of(zero_stage=1)),
    "stage 2": RankBar(layout_of(zero_stage=2)),
    "stage 3": RankBar(layout_of(zero_stage=3)),
    "each layer again": RankBar(layout_of(zero_stage=3, recompute_policy=3)),
    "t = 4, stage 3": RankBar(layout_of(zero_stage=3, tensor_parallel=4)),
    "t = 8, p = 2, stage 1": RankBar(
        layout_of(zero_stage=1, tensor_parallel=8, pipeline_parallel=2)
    ),
}
