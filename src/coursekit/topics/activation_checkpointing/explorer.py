"""The explorer of chapter 10: what layers keep and what they are recomputed for, by policy."""

from coursekit.show.links import HEADS_FOLLOW, AtLeast, Divides
from coursekit.show.pictures import CurveAxis, Curves, Line, MemoryBar, Part, StreamsPicture
from coursekit.show.spec import Choice, Control, ControlGroup, Explorer, ExplorerTable, Menu, Say
from coursekit.show.stops import IN_A_NODE, powers_of_two, steps_of_ten
from coursekit.topics.activation_checkpointing.timeline import COPY_COLOURS, OFFLOADED_STEP

RECOMPUTED = ((0, "none"), (1, "core"), (2, "all but products"), (3, "layers"))
IN_WORDS = ("nothing again", "attention's core", "all but products", "whole layers")
EVERY = tuple(range(1, 33))


def policy_line(number):
    return Line("rank_layers_bytes", IN_WORDS[number], given=(("recompute_policy", number),))


RECOMPUTE = Explorer(
    name="recompute",
    title="What do layers keep, and what does it cost to compute the rest again?",
    menus=(
        Menu(
            "model", "Model", without=("head_size", "query_key_norms", "norms_per_layer", "experts")
        ),
        Menu("recipe", "Recipe", without=("adapter_rank",), but=("autocast Adam",)),
        Menu("gpu", "GPU"),
    ),
    controls=(
        Choice("recompute_policy", "recompute", RECOMPUTED),
        Control("recompute_every", "layers in a checkpoint n", EVERY),
        Control("layers", "layers L", range(1, 129)),
        Control("microbatch", "sequences in a microbatch", powers_of_two(1, 256)),
        Control("sequence", "tokens in a sequence", powers_of_two(128, 131_072)),
        Control("tensor_parallel", "tensor-parallel ranks t", IN_A_NODE),
        Choice("fused_attention", "attention", ((0, "unfused"), (1, "fused"))),
        Choice("dropout", "dropout", ((0, "off"), (0.1, "on")), "percent"),
        Control("pcie_bytes_per_second", "link to the host", steps_of_ten(9, 12), "bandwidth"),
    ),
    groups=(
        ControlGroup("Policy", ("recompute_policy", "recompute_every")),
        ControlGroup("Model and batch", ("layers", "microbatch", "sequence"), folded=True),
        ControlGroup(
            "Ranks and kernels", ("tensor_parallel", "fused_attention", "dropout"), folded=True
        ),
        ControlGroup("Host", ("pcie_bytes_per_second",), folded=True),
    ),
    links=(
        Divides("tensor_parallel", "key_value_heads", IN_A_NODE),
        *HEADS_FOLLOW,
        Divides("tensor_parallel", "sequence", IN_A_NODE, when=(("sequence_parallel", 1),)),
        AtLeast("max_sequence", "sequence"),
    ),
    begin=dict(
        model="Llama 7B",
        recipe="bf16, no master",
        gpu="A100 SXM 80GB",
        recompute_policy=3,
        recompute_every=1,
        microbatch=4,
        sequence=2048,
        tensor_parallel=1,
        tensor_rank=0,
        sequence_parallel=1,
        regather=1,
        fused_attention=1,
        dropout=0,
        pcie_bytes_per_second=31e9,
        utilisation=0.4,
    ),
    pictures=(
        MemoryBar(
            "A rank at most, without head and logits",
            (
                Part("tensor_parameter_bytes", "parameters", "parameters"),
                Part("tensor_gradient_bytes", "gradients", "gradients"),
                Part("tensor_optimizer_bytes", "optimizer states", "optimizer"),
                Part("rank_layers_kept_bytes", "layers keep", "activations"),
                Part("rank_layers_again_bytes", "made again, one checkpoint", "temporaries"),
            ),
            total="rank_states_and_layers_bytes",
            capacity="gpu_memory_bytes",
        ),
        Curves(
            title="The layers' bytes, by checkpoint size",
            sweep="recompute_every",
            stops=EVERY,
            x=CurveAxis("layers in a checkpoint", "exact", log=False),
            y=CurveAxis("bytes, logarithmic", "decimal bytes"),
            lines=tuple(policy_line(number) for number in (0, 1, 2, 3)),
            point="rank_layers_bytes",
            words="{rank_layers_bytes}",
        ),
        StreamsPicture(
            "Or on the host: the kept bytes travel",
            OFFLOADED_STEP,
            COPY_COLOURS,
            most=5_000,  # five for a layer
        ),
    ),
    sentence=(
        Say(
            "A rank holds {rank_states_and_layers_bytes} ({rank_states_and_layers_bytes:bytes}) at"
            " most, without head and logits: {tensor_states_bytes} of model states and"
            " {rank_layers_bytes} of its {layers:exact} layer{layers:s}"
        ),
        Say(", {missing_bytes} more than the GPU has. ", when=(("fits", 0),)),
        Say("; a card of {gpu_memory_bytes} has {free_bytes} left. ", when=(("fits", 1),)),
        Say(
            "With {recomputed_share} more operations a step takes {recompute_step_seconds:short"
            " duration}."
        ),
    ),
    detail=(
        Say(
            "A layer keeps {tensor_kept_layer_bytes} of {tensor_layer_bytes}; its input takes"
            " {checkpoint_input_bytes}. The layers' peak is lowest with about"
            " {best_recompute_every} layers in a checkpoint. Copying the kept bytes to the host"
            " adds {copies_exposed_seconds:short duration} that no layer hides; copies hide behind"
            " forward on a link of at least {hiding_bytes_per_second:bandwidth}. Assumed:"
            " {utilisation} of the GPU's arithmetic, no messages, and, with several ranks, sequence"
            " parallelism that gathers again in backward."
        ),
    ),
    table=ExplorerTable(
        "Llama 7B and others in 16 bits, 4 sequences of 2,048 tokens, each layer in a checkpoint",
        "model",
        (
            ("layers", "layers", "count"),
            ("kept, GB", "rank_layers_kept_bytes", "GB"),
            ("at most, GB", "rank_layers_bytes", "GB"),
            ("nothing recomputed, GB", "rank_layers_bytes", "GB", (("recompute_policy", 0),)),
            ("more operations", "recomputed_share", "percent"),
        ),
    ),
    outputs=(
        "rank_layers_kept_bytes",
        "rank_states_and_layers_bytes",
        "recomputed_share",
        "recompute_step_seconds",
        "copies_exposed_seconds",
    ),
    why=(
        "checkpoint_input_bytes",
        "tensor_layer_bytes",
        "tensor_kept_layer_bytes",
        "rank_layers_kept_bytes",
        "rank_layers_again_bytes",
        "rank_layers_bytes",
        "tensor_parameters",
        "tensor_parameter_bytes",
        "tensor_gradient_bytes",
        "tensor_optimizer_bytes",
        "tensor_states_bytes",
        "rank_states_and_layers_bytes",
        "recomputed_flops",
        "recomputed_share",
        "recompute_seconds",
        "layer_copy_seconds",
        "copies_exposed_seconds",
        "hiding_bytes_per_second",
        "best_recompute_every",
    ),
)
