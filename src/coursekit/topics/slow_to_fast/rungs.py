"""The rungs of a memory ladder: a training step of GPT-2, and what each rung changes in it. Page,
pictures, lab and tests climb the same one.

    for rung in climb(LADDER_STEP):
        rung.name, rung.nbytes, rung.place        # "accumulation", 47_600_006_424, "the loss"
"""

from typing import NamedTuple

from coursekit.formulas import evaluate, quantities
from coursekit.formulas.registry import BOOK

LADDER_BATCH = dict(sequence=1024, first_step=0, dropout=0, fused_attention=1)
_WHOLE = dict(microbatch=16, accumulation_steps=1, optimizer_mode=1)  # foreach, as on a GPU
LADDER_STEP = dict(model="GPT-2 1.5B", **LADDER_BATCH)

# Rung -> the quantities that it changes in the rung before.
MEMORY_RUNGS = {
    "baseline": dict(recipe="fp32 Adam", **_WHOLE, recompute_policy=0, zero_stage=0),
    "accumulation": dict(microbatch=4, accumulation_steps=4),
    "recomputation": dict(recompute_policy=3),
    "fused update": dict(optimizer_mode=2),
    "16 bits": dict(recipe="bf16 + fp32 master", step_counter_element_bytes=4),
    "sharding": dict(zero_stage=3),
}

# Places of a rank's fullest point, as a reader calls them.
PEAK_PLACES = {
    "loss": "the loss",
    "head": "the head",
    "head_reduced": "the head",
    "last_layer": "the last layer",
    "layer_reduced": "the last layer",
    "first_layer": "the first layer",
    "first_layer_reduced": "the first layer",
    "embedding": "the embedding",
    "reduced": "the last bucket",
    "optimizer": "the update",
}
_CATEGORIES = ("optimizer", "gradients", "activations", "gathered", "temporaries")
_AT_PEAK = {name: f"{name}_at_rank_peak_bytes" for name in _CATEGORIES}


def place_number(place: str) -> int:
    """The place's number in rank_peak_place."""
    return 1 + BOOK.formulas["rank_peak_bytes"].needs.index(f"live_at_rank_{place}_bytes")


class MemoryRung(NamedTuple):
    """A rung, the bytes of the step on it at the fullest place, by category, and that place."""

    name: str
    nbytes: int
    place: str
    categories: dict[str, int]


def climb(step: dict, ranks: int = 8, names=tuple(MEMORY_RUNGS), **changes) -> list[MemoryRung]:
    """The rungs of these names, from the baseline up, each with the changes of those before it.
    `step` has the model and its sequence, `changes` what is otherwise on every rung."""
    said = {place_number(place): words for place, words in PEAK_PLACES.items()}
    given, rungs = dict(step, data_parallel=ranks), []
    for name in names:
        given |= {**MEMORY_RUNGS[name], **changes}
        asked = ("rank_peak_bytes", "rank_peak_place", "rank_parameter_bytes", *_AT_PEAK.values())
        found = evaluate(asked, allow_unused=True, **quantities(**given))
        parts = {category: found[quantity] for category, quantity in _AT_PEAK.items()}
        parts = dict(parameters=found["rank_parameter_bytes"], **parts)
        place = said[found["rank_peak_place"]]
        rungs.append(MemoryRung(name, found["rank_peak_bytes"], place, parts))
    return rungs
