"""The explorers of chapter "why one GPU": does a model fit, and how long does it train."""

from dataclasses import dataclass

from coursekit.show.links import HEADS_FOLLOW, Divides, Product, Ratio
from coursekit.show.pictures import MemoryBar, Part, Picture
from coursekit.show.spec import Control, ControlGroup, Explorer, ExplorerTable, Menu, Say
from coursekit.show.stops import HEADS, HIDDEN_SIZES, powers_of_two, steps_of_ten


@dataclass(frozen=True)
class TimeAxis(Picture):
    """A logarithmic axis of time with one marker."""

    title: str
    quantity: str  # in seconds
    ticks: tuple = (
        ("hour", 3600),
        ("day", 86_400),
        ("month", 2_628_000),
        ("year", 31_536_000),
        ("century", 3_153_600_000),
        ("10,000 years", 315_360_000_000),
    )
    least: float = 60
    most: float = 3e12
    kind, script, room = "time", "timeline.js", (62, 0, 0, ())

    @property
    def quantities(self):
        return (self.quantity,)

    measurable = quantities


STATES_OF_ONE_GPU = MemoryBar(
    title="Model states on one GPU",
    parts=(
        Part("parameter_bytes_per_gpu", "parameters", "parameters"),
        Part("gradient_bytes_per_gpu", "gradients", "gradients"),
        Part("master_bytes_per_gpu", "optimizer: master copy", "optimizer"),
        Part("moment_bytes_per_gpu", "optimizer: moments", "optimizer"),
    ),
    total="states_bytes_per_gpu",
    capacity="gpu_memory_bytes",
)

STATES_IN_WORDS = (
    Say("One GPU needs ", when=(("gpus_per_copy", 1),)),
    Say(
        "Each of the {gpus_per_copy:exact} GPUs that share a copy needs ",
        unless=(("gpus_per_copy", 1),),
    ),
    Say("{states_bytes_per_gpu} ({states_bytes_per_gpu:bytes}) for model states"),
    Say(", {missing_bytes} more than it has. ", when=(("fits", 0),)),
    Say("Share each copy between at least {gpus_to_hold_states:exact} GPUs.", when=(("fits", 0),)),
    Say("; {free_bytes} are left for activations, temporaries and buffers.", when=(("fits", 1),)),
)

PARTS_IN_WORDS = (
    Say("Parameters {parameter_bytes_per_gpu}, gradients {gradient_bytes_per_gpu}"),
    Say(", the optimizer's master copy", unless=(("master_bytes_per_gpu", 0),)),
    Say(" and its copy of the gradients", when=(("master_element_bytes", 8),)),
    Say(" {master_bytes_per_gpu}", unless=(("master_bytes_per_gpu", 0),)),
    Say(", the optimizer's moments {moment_bytes_per_gpu}", unless=(("moment_bytes_per_gpu", 0),)),
    Say("."),
)

DOES_IT_FIT = Explorer(
    name="does-it-fit",
    title="Does it fit?",
    menus=(
        Menu("model", "Model", without=("dense_layers",)),
        Menu("recipe", "Recipe", without=("adapter_rank",)),
        Menu("gpu", "GPU"),
    ),
    controls=(
        Control("layers", "layers", range(1, 129)),
        Control("hidden", "hidden size", HIDDEN_SIZES),
        Control("heads", "attention heads", HEADS),
        Control("gpus_per_copy", "GPUs that share one copy", powers_of_two(1, 1024)),
    ),
    links=(Ratio("feed_forward", "hidden"), *HEADS_FOLLOW),
    groups=(ControlGroup("Layers and their sizes", ("layers", "hidden", "heads"), folded=True),),
    begin=dict(model="Llama 7B", recipe="bf16 + fp32 master", gpu="A100 SXM 80GB", gpus_per_copy=1),
    pictures=(STATES_OF_ONE_GPU,),
    sentence=STATES_IN_WORDS,
    detail=(
        Say(
            "{parameters} parameters: {layers:exact} layer{layers:s} of hidden size {hidden:exact},"
            " each with {heads:exact} head{heads:s} of {head_columns:exact} columns. "
        ),
        *PARTS_IN_WORDS,
    ),
    table=ExplorerTable(
        "Model states with a bf16 model and an fp32 master copy, beside one A100 of 80 GB",
        "model",
        (
            ("parameters", "parameters", "count"),
            ("model states, GB", "states_bytes_per_gpu", "GB"),
            ("fit one GPU?", "fits", "yes or no"),
            ("fewest GPUs", "gpus_to_hold_states", "exact"),
        ),
    ),
    outputs=("parameters", "states_bytes_per_gpu", "gpus_to_hold_states"),
)

FITS_AND_HOW_LONG = Explorer(
    name="fits-and-how-long",
    title="Does it fit, and how long will it take?",
    menus=(
        Menu("model", "Model", without=("experts",)),
        Menu("recipe", "Recipe", without=("adapter_rank",)),
        Menu("gpu", "GPU"),
    ),
    controls=(
        Control("parameters", "parameters", steps_of_ten(6, 13), "count"),
        Control("tokens", "tokens", steps_of_ten(9, 14), "count"),
        Control("gpus", "GPUs", powers_of_two(1, 65_536)),
        Control("data_parallel", "copies of the model", powers_of_two(1, 65_536)),
        Control("gpus_per_copy", "GPUs that share one copy", powers_of_two(1, 65_536)),
        Control("utilisation", "utilisation", tuple(k / 100 for k in range(1, 101)), "percent"),
    ),
    links=(Divides("gpus_per_copy", "gpus"), Product("gpus", "data_parallel", "gpus_per_copy")),
    begin=dict(
        model="GPT-3 175B",
        recipe="bf16 + fp32 master",
        gpu="A100 SXM 80GB",
        tokens=300_000_000_000,
        gpus=1024,
        data_parallel=128,
        gpus_per_copy=8,
        utilisation=0.4,
    ),
    pictures=(STATES_OF_ONE_GPU, TimeAxis("Training time", "training_seconds")),
    sentence=(
        *STATES_IN_WORDS,
        Say(" Training takes {training_seconds}.", when=(("fits", 1),)),
        Say(" If the states fitted, training would take {training_seconds}.", when=(("fits", 0),)),
    ),
    detail=(
        Say(
            "{training_flops} operations for {parameters} parameters and {tokens} tokens, on"
            " {gpus:exact} GPU{gpus:s} at {utilisation} of {flops_per_second}. "
        ),
        *PARTS_IN_WORDS,
    ),
    table=ExplorerTable(
        "GPT-3 on 300 billion tokens, 1,024 GPUs at 40% of their datasheet, 8 GPUs for each copy",
        "gpu",
        (
            ("memory, GB", "gpu_memory_bytes", "GB"),
            ("states on each, GB", "states_bytes_per_gpu", "GB"),
            ("fit?", "fits", "yes or no"),
            ("fewest GPUs for a copy", "gpus_to_hold_states", "exact"),
            ("training time", "training_seconds", "duration"),
        ),
    ),
    outputs=("states_bytes_per_gpu", "gpus_to_hold_states", "training_days"),
)
