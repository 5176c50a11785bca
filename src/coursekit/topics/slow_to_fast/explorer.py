"""The explorer of the page "GPT-2 from slow to fast": which rungs of the memory ladder are on, what
a GPU then holds at its fullest, and where."""

from coursekit.formulas.presets import MODELS, RECIPES
from coursekit.show.links import Divides, Product
from coursekit.show.pictures import (
    RANK_PEAK_PARTS,
    Column,
    MemoryBar,
    Part,
    TimelinePicture,
    memory_parts,
)
from coursekit.show.spec import Choice, Control, Explorer, ExplorerTable, Menu, Say
from coursekit.show.stops import powers_of_two
from coursekit.topics.slow_to_fast.rungs import LADDER_BATCH, place_number

_OTHER_MODELS = tuple(name for name in MODELS if not name.startswith("GPT-"))
_OTHER_RECIPES = tuple(name for name in RECIPES if name not in ("fp32 Adam", "bf16 + fp32 master"))
_IN_WORDS = {
    "loss": "at the backward of the loss",
    "head": "at the backward of the head",
    "head_reduced": "while the head's gradients are reduced",
    "last_layer": "at the backward of the last layer",
    "layer_reduced": "while the last layer's gradients are reduced",
    "first_layer": "at the backward of the first layer",
    "first_layer_reduced": "while the first layer's gradients are reduced",
    "embedding": "at the gradient of the embedding",
    "reduced": "while the last gradients are reduced",
    "optimizer": "in the optimizer's step",
}
# Place -> its column: the name, and what is there besides parameters and optimizer states.
_DRAWN = {
    "loss": ("loss", "rank_earlier_gradient_bytes", "activations_at_rank_loss_bytes", ""),
    "head": (
        "head",
        "gradients_at_rank_head_bytes",
        "activations_at_rank_head_bytes",
        "gathered_head_bytes",
    ),
    "last_layer": (
        "last layer",
        "gradients_at_rank_last_layer_bytes",
        "activations_at_rank_last_layer_bytes",
        "gathered_layer_bytes",
    ),
    "first_layer": (
        "first layer",
        "gradients_at_rank_first_layer_bytes",
        "activations_at_rank_first_layer_bytes",
        "gathered_layer_bytes",
    ),
    "embedding": (
        "embedding",
        "gradients_at_rank_embedding_bytes",
        "activations_at_rank_embedding_bytes",
        "gathered_embedding_bytes",
    ),
    "reduced": ("reduce", "gradients_at_rank_reduced_bytes", "rank_batch_bytes", "rank_root_bytes"),
    "optimizer": ("update", "rank_gradient_bytes", "rank_batch_bytes", ""),
}


def _column(place, name, gradients, activations, gathered):
    updates = place == "optimizer"
    parts = memory_parts(
        parameters="rank_parameter_bytes",
        optimizer="rank_optimizer_bytes" if updates else "rank_standing_optimizer_bytes",
        gradients=gradients,
        activations=activations,
        temporaries=f"temporaries_at_rank_{place}_bytes",
    )
    whole = (Part(gathered, "gathered", "gathered"),) if gathered else ()
    phase = "optimizer" if updates else "backward"
    total = f"live_at_rank_{place}_bytes"
    return Column(name, phase, total, (*parts[:4], *whole, *parts[4:]))


SLOW_TO_FAST = Explorer(
    name="slow-to-fast",
    title="Which rung moves the peak?",
    menus=(
        Menu("model", "Model", but=_OTHER_MODELS),
        Menu("gpu", "GPU"),
        Menu("recipe", "Precision", but=_OTHER_RECIPES),
    ),
    controls=(
        Choice("accumulation_steps", "microbatches", tuple((k, str(k)) for k in (1, 2, 4, 8, 16))),
        Choice("recompute_policy", "recompute", ((0, "nothing"), (3, "every layer"))),
        Choice("optimizer_mode", "update", ((0, "loop"), (1, "foreach"), (2, "fused"))),
        Choice("zero_stage", "ZeRO stage", tuple((stage, str(stage)) for stage in range(4))),
        Control("data_parallel", "GPUs", powers_of_two(1, 64)),
        Control("step_sequences", "sequences in a step", powers_of_two(1, 256)),
    ),
    links=(
        Divides("accumulation_steps", "step_sequences"),
        Product("step_sequences", "microbatch", "accumulation_steps"),
    ),
    begin=dict(
        model="GPT-2 1.5B",
        gpu="H100 SXM 80GB",
        recipe="fp32 Adam",
        step_sequences=16,
        microbatch=16,
        accumulation_steps=1,
        recompute_policy=0,
        optimizer_mode=1,
        zero_stage=0,
        data_parallel=8,
        **LADDER_BATCH,
    ),
    pictures=(
        MemoryBar(
            "One GPU at its fullest",
            RANK_PEAK_PARTS,
            total="rank_peak_bytes",
            capacity="gpu_memory_bytes",
        ),
        TimelinePicture(
            "Where the peak is",
            tuple(_column(place, *drawn) for place, drawn in _DRAWN.items()),
            capacity="gpu_memory_bytes",
        ),
    ),
    sentence=(
        Say("One GPU holds {rank_peak_bytes} ({rank_peak_bytes:bytes}) at its fullest, "),
        *(
            Say(words, when=(("rank_peak_place", place_number(place)),))
            for place, words in _IN_WORDS.items()
        ),
        Say(
            "; it fits a card of {gpu_memory_bytes} with {free_bytes} to spare", when=(("fits", 1),)
        ),
        Say(", {missing_bytes} more than the GPU has", when=(("fits", 0),)),
        Say("."),
    ),
    detail=(
        Say(
            "A step takes {step_tokens} tokens: {accumulation_steps:exact} × {microbatch:exact}"
            " sequence{microbatch:s}"
        ),
        Say(
            "; recomputation adds {recomputed_share} to its operations",
            unless=(("recompute_policy", 0),),
        ),
        Say(". Each of {data_parallel:exact} GPU{data_parallel:s} takes so many"),
        Say(", and keeps all of the model for itself", when=(("zero_stage", 0),)),
        Say("."),
    ),
    table=ExplorerTable(
        "16 sequences of 1,024 tokens on one H100 of 80 GB: fp32, foreach, nothing recomputed",
        "model",
        (
            ("parameters", "parameters", "count"),
            ("all at once, GB", "rank_peak_bytes", "GB"),
            (
                "4 microbatches, GB",
                "rank_peak_bytes",
                "GB",
                (("microbatch", 4), ("accumulation_steps", 4)),
            ),
            (
                "and layers recomputed, GB",
                "rank_peak_bytes",
                "GB",
                (("microbatch", 4), ("accumulation_steps", 4), ("recompute_policy", 3)),
            ),
        ),
    ),
    outputs=("rank_peak_bytes", "rank_peak_place"),
    why=(
        "rank_parameter_bytes",
        "rank_optimizer_bytes",
        "rank_backward_gradient_bytes",
        "rank_saved_bytes",
        "layer_activation_bytes",
        "logit_bytes",
        "rank_optimizer_temporary_bytes",
        "live_at_rank_loss_bytes",
        "live_at_rank_optimizer_bytes",
        "rank_peak_bytes",
        "recomputed_share",
    ),
)
