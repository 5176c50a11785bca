"""The explorers of chapter "where the memory goes": the peak of a step, and the bytes of one
parameter."""

from coursekit.show.links import HEADS_FOLLOW, AtLeast, Ratio
from coursekit.show.pictures import Column, MemoryBar, Part, TimelinePicture, memory_parts
from coursekit.show.spec import Choice, Control, ControlGroup, Explorer, ExplorerTable, Menu, Say
from coursekit.show.stops import FEED_FORWARD_SIZES, HEADS, HIDDEN_SIZES, powers_of_two
from coursekit.topics.where_the_memory_goes.formulas.step import STEP_TIMELINE


def _column(point):
    return Column(
        point.name,
        point.phase,
        point.total,
        memory_parts(**point.parts),
        when=((point.when, 1),) if point.when else (),
    )


WHERE_THE_MEMORY_GOES = Explorer(
    name="where-the-memory-goes",
    title="Where does the memory go?",
    menus=(
        Menu("model", "Model", without=("query_key_norms", "norms_per_layer", "experts")),
        Menu("recipe", "Recipe", without=("adapter_rank",)),
        Menu("gpu", "GPU"),
    ),
    controls=(
        Control("microbatch", "sequences in a microbatch", powers_of_two(1, 1024)),
        Control("sequence", "tokens in a sequence", powers_of_two(128, 131_072)),
        Control("accumulation_steps", "microbatches in a step", powers_of_two(1, 64)),
        Choice("fused_attention", "attention", ((0, "unfused"), (1, "fused"))),
        Choice("dropout", "dropout", ((0, "off"), (0.1, "on")), "percent"),
        Choice("optimizer_mode", "optimizer", ((0, "loop"), (1, "foreach"), (2, "fused"))),
        Choice("first_step", "step", ((0, "a later one"), (1, "the first"))),
        Control("layers", "layers", range(1, 129)),
        Control("hidden", "hidden size", HIDDEN_SIZES),
        Control("heads", "attention heads", HEADS),
        Control("key_value_heads", "key-value heads", HEADS),
        Control("feed_forward", "inner size of the MLP", FEED_FORWARD_SIZES),
        Control(
            "vocabulary",
            "vocabulary",
            (256, 1000, 8192, 16_384, 32_000, 50_257, 65_536, 100_277, 128_256, 151_936, 256_000),
        ),
    ),
    groups=(
        ControlGroup("Batch", ("microbatch", "sequence", "accumulation_steps")),
        ControlGroup(
            "Attention and optimizer",
            ("fused_attention", "dropout", "optimizer_mode", "first_step"),
            folded=True,
        ),
        ControlGroup(
            "Model",
            ("layers", "hidden", "heads", "key_value_heads", "feed_forward", "vocabulary"),
            folded=True,
        ),
    ),
    links=(Ratio("feed_forward", "hidden"), *HEADS_FOLLOW, AtLeast("max_sequence", "sequence")),
    begin=dict(
        model="Llama 7B",
        recipe="fp32 Adam",
        gpu="A100 SXM 80GB",
        microbatch=8,
        sequence=1024,
        accumulation_steps=1,
        fused_attention=1,
        dropout=0,
        optimizer_mode=0,
        first_step=0,
    ),
    pictures=(
        MemoryBar(
            "One GPU at the peak of the step",
            memory_parts(
                parameters="parameter_bytes",
                optimizer="optimizer_at_peak_bytes",
                gradients="gradients_at_peak_bytes",
                activations="activations_at_peak_bytes",
                temporaries="temporaries_at_peak_bytes",
            ),
            total="peak_bytes",
            capacity="gpu_memory_bytes",
        ),
        TimelinePicture(
            "The step, point by point",
            tuple(map(_column, STEP_TIMELINE)),
            capacity="gpu_memory_bytes",
        ),
    ),
    sentence=(
        Say("One GPU holds {peak_bytes:bytes} ({peak_bytes}) at its peak, "),
        Say("in the last layer's attention, on the way forward", when=(("peak_point", 1),)),
        Say("at the backward of the loss", when=(("peak_point", 2),)),
        Say("at the backward of the head", when=(("peak_point", 3),)),
        Say("at the backward of a layer", when=(("peak_point", 4),)),
        Say("at the gradient of the embedding", when=(("peak_point", 5),)),
        Say("in the optimizer's step", when=(("peak_point", 6),)),
        Say(
            "; it fits a card of {gpu_memory_bytes} with {free_bytes} to spare", when=(("fits", 1),)
        ),
        Say(", {missing_bytes} more than the GPU has", when=(("fits", 0),)),
        Say(", before libraries, the CUDA context and what the allocator rounds up."),
    ),
    detail=(
        Say("Parameters {parameter_bytes}, optimizer states {optimizer_at_peak_bytes}, "),
        Say("no gradients yet, ", when=(("gradients_at_peak_bytes", 0),)),
        Say("gradients {gradients_at_peak_bytes}, ", unless=(("gradients_at_peak_bytes", 0),)),
        Say("activations {activations_at_peak_bytes}, temporaries {temporaries_at_peak_bytes}."),
        Say(
            " Dropout works on the attention scores, so they are stored, fused kernel or not.",
            when=(("has_dropout", 1), ("fused_attention", 1)),
        ),
    ),
    table=ExplorerTable(
        "Eight sequences of 1,024 tokens in fp32 with Adam and fused attention, beside one A100 of"
        " 80 GB",
        "model",
        (
            ("parameters", "parameters", "count"),
            ("model states, GB", "states_bytes", "GB"),
            ("activations, GB", "activation_bytes", "GB"),
            ("peak of the step, GB", "peak_bytes", "GB"),
            ("fits?", "fits", "yes or no"),
        ),
    ),
    outputs=("peak_bytes", "peak_point"),
    why=(
        "parameters",
        "parameter_bytes",
        "gradient_bytes",
        "optimizer_state_bytes",
        "microbatch_tokens",
        "residual_bytes",
        "norm_activation_bytes",
        "linear_input_bytes",
        "score_bytes",
        "attention_core_bytes",
        "attention_activation_bytes",
        "inner_bytes",
        "mlp_activation_bytes",
        "layer_activation_bytes",
        "logit_bytes",
        "head_activation_bytes",
        "batch_bytes",
        "mask_bytes",
        "activation_bytes",
        "step_floor_bytes",
        "activations_at_loss_bytes",
        "temporaries_at_loss_bytes",
        "forward_peak_bytes",
        "loss_peak_bytes",
        "head_peak_bytes",
        "layers_peak_bytes",
        "embedding_peak_bytes",
        "optimizer_temporary_bytes",
        "optimizer_peak_bytes",
        "peak_bytes",
        "peak_point",
        "gradients_at_peak_bytes",
        "activations_at_peak_bytes",
        "temporaries_at_peak_bytes",
    ),
)

BYTES_PER_PARAMETER = Explorer(
    name="bytes-per-parameter",
    title="How many bytes for one parameter?",
    menus=(Menu("recipe", "Recipe", without=("adapter_rank",)),),
    controls=(
        Choice("parameter_element_bytes", "parameter", ((1, "1 B"), (2, "2 B"), (4, "4 B"))),
        Choice(
            "gradient_element_bytes",
            "gradient",
            ((1, "1 B"), (2, "2 B"), (4, "4 B"), (6, "2 + 4 B")),
        ),
        Choice(
            "master_element_bytes",
            "master copy",
            ((0, "none"), (2, "2 B"), (4, "4 B"), (8, "4 + 4 B")),
        ),
        Choice("optimizer_moments", "moments", ((0, "none"), (1, "one"), (2, "two"))),
        Choice("moment_element_bytes", "each moment", ((1, "1 B"), (2, "2 B"), (4, "4 B"))),
    ),
    begin=dict(recipe="bf16 + fp32 master"),
    pictures=(
        MemoryBar(
            "The bytes of one parameter, tensor by tensor",
            (
                Part("parameter_element_bytes", "parameter", "parameters"),
                Part("gradient_element_bytes", "gradient", "gradients"),
                Part("master_element_bytes", "optimizer: master copy", "optimizer"),
                Part("first_moment_element_bytes", "optimizer: first moment", "optimizer"),
                Part("other_moment_element_bytes", "optimizer: second moment", "optimizer"),
            ),
            total="bytes_per_parameter",
            least=20,
        ),
    ),
    sentence=(
        Say(
            "Each parameter takes {bytes_per_parameter:exact} byte{bytes_per_parameter:s}:"
            " {parameter_element_bytes:exact} for itself, {gradient_element_bytes:exact} for its"
            " gradient"
        ),
        Say(
            ", {master_element_bytes:exact} for the optimizer's master copy",
            unless=(("master_element_bytes", 0),),
        ),
        Say(" and its copy of the gradient", when=(("master_element_bytes", 8),)),
        Say(
            ", {first_moment_element_bytes:exact} for the optimizer's moment",
            when=(("optimizer_moments", 1),),
        ),
        Say(
            ", {first_moment_element_bytes:exact} and {other_moment_element_bytes:exact} for the"
            " optimizer's moments",
            unless=(("optimizer_moments", 0), ("optimizer_moments", 1)),
        ),
        Say("."),
    ),
    detail=(
        Say(
            "That is {bytes_per_parameter:exact} GB for every billion parameters, before any"
            " activation."
        ),
    ),
    table=ExplorerTable(
        "Bytes of each tensor for one parameter",
        "recipe",
        (
            ("parameter", "parameter_element_bytes", "exact"),
            ("gradient", "gradient_element_bytes", "exact"),
            ("master copy", "master_element_bytes", "exact"),
            ("first moment", "first_moment_element_bytes", "exact"),
            ("second moment", "other_moment_element_bytes", "exact"),
            ("together", "bytes_per_parameter", "exact"),
        ),
    ),
    outputs=("bytes_per_parameter",),
)
