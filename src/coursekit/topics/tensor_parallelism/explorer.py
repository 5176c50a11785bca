"""The explorer of chapter 7: what a rank of a tensor-parallel group keeps, sends and waits for."""

from coursekit.show.links import HEADS_FOLLOW, AtLeast, AtMost, Divides
from coursekit.show.pictures import CurveAxis, Curves, Line, MemoryBar, memory_parts
from coursekit.show.spec import Choice, Control, ControlGroup, Explorer, ExplorerTable, Menu, Say
from coursekit.show.stops import IN_A_NODE, powers_of_two, steps_of_ten

SPLITS = powers_of_two(1, 64)
UNEVEN_HEADS = ("GPT-2 124M", "GPT-2 774M", "GPT-2 1.5B")  # 12, 20 and 25, for 8 ranks
T_AXIS = CurveAxis("tensor-parallel ranks t, logarithmic", "exact", ticks=SPLITS)
TENSOR_WAYS = (  # sequence_parallel, regather, words
    (0, 0, "tensor parallelism"),
    (1, 0, "own tokens"),
    (1, 1, "gathered again"),
)

TENSOR_PARALLEL = Explorer(
    name="tensor-parallel",
    title="What does a rank keep, what does it send, and why does t stay in the node?",
    menus=(
        Menu(
            "model",
            "Model",
            without=("query_key_norms", "norms_per_layer", "experts"),
            but=UNEVEN_HEADS,
        ),
        Menu("recipe", "Recipe", without=("adapter_rank",)),
        Menu("gpu", "GPU"),
        Menu("node_link", "Inside a node"),
        Menu("link", "Between nodes"),
    ),
    controls=(
        Control("tensor_parallel", "tensor-parallel ranks t", IN_A_NODE),
        Choice("sequence_parallel", "between the blocks", ((0, "all tokens"), (1, "own tokens"))),
        Choice("regather", "inputs for backward", ((0, "kept"), (1, "gathered again"))),
        Control("ranks_per_node", "GPUs on a node", powers_of_two(1, 64)),
        Control("microbatch", "sequences in a microbatch", powers_of_two(1, 64)),
        Control("sequence", "tokens in a sequence", powers_of_two(128, 131_072)),
        Control(
            "link_bytes_per_second", "bandwidth between nodes", steps_of_ten(7, 12), "bandwidth"
        ),
    ),
    groups=(
        ControlGroup("What is cut", ("tensor_parallel", "sequence_parallel", "regather")),
        ControlGroup("Batch", ("microbatch", "sequence"), folded=True),
        ControlGroup("Node", ("ranks_per_node", "link_bytes_per_second"), folded=True),
    ),
    links=(
        AtMost("regather", "sequence_parallel"),
        Divides("tensor_parallel", "key_value_heads", IN_A_NODE),
        *HEADS_FOLLOW,
        Divides("tensor_parallel", "sequence", IN_A_NODE, when=(("sequence_parallel", 1),)),
        AtLeast("max_sequence", "sequence"),
    ),
    begin=dict(
        model="Llama 7B",
        recipe="bf16 + fp32 master",
        gpu="H100 SXM 80GB",
        node_link="NVLink 4 (H100)",
        link="network, 400 Gbit/s",
        tensor_parallel=4,
        sequence_parallel=0,
        regather=0,
        ranks_per_node=8,
        microbatch=16,
        sequence=1024,
        accumulation_steps=1,
        tensor_rank=0,
        dropout=0,
        fused_attention=1,
        first_step=0,
        optimizer_mode=0,
        utilisation=0.5,
    ),
    pictures=(
        MemoryBar(
            "Rank 0 at the peak of the step",
            memory_parts(
                parameters="tensor_parameter_bytes",
                optimizer="optimizer_at_tensor_peak_bytes",
                gradients="gradients_at_tensor_peak_bytes",
                activations="activations_at_tensor_peak_bytes",
                temporaries="temporaries_at_tensor_peak_bytes",
            ),
            total="tensor_peak_bytes",
            capacity="gpu_memory_bytes",
        ),
        Curves(
            title="Messages’ share of a layer’s time",
            sweep="tensor_parallel",
            stops=SPLITS,
            x=T_AXIS,
            y=CurveAxis("share of the time", "percent", log=False),
            lines=(
                Line("tensor_message_share", "no two on one node", given=(("ranks_per_node", 1),)),
                Line("tensor_message_share", "all on one node", given=(("ranks_per_node", 64),)),
            ),
            point="tensor_message_share",
            words="{tensor_message_share}",
        ),
        Curves(
            title="Activations that a layer keeps on a rank",
            sweep="tensor_parallel",
            stops=SPLITS,
            x=T_AXIS,
            y=CurveAxis("bytes of a layer, logarithmic", "decimal bytes"),
            lines=tuple(
                Line(
                    "tensor_layer_bytes",
                    words,
                    given=(("sequence_parallel", own), ("regather", again)),
                )
                for own, again, words in TENSOR_WAYS
            ),
            point="tensor_layer_bytes",
            words="{tensor_layer_bytes}",
        ),
    ),
    sentence=(
        Say("Each of {tensor_parallel:exact} ranks ", unless=(("tensor_parallel", 1),)),
        Say("One rank alone ", when=(("tensor_parallel", 1),)),
        Say("needs {tensor_peak_bytes} ({tensor_peak_bytes:bytes}) at its peak"),
        Say(", {missing_bytes} more than the GPU has. ", when=(("fits", 0),)),
        Say("; a card of {gpu_memory_bytes} has {free_bytes} left. ", when=(("fits", 1),)),
        Say(
            "Each rank sends {tensor_sent_bytes} in a step, and waits for messages for"
            " {tensor_message_share} of a layer’s time.",
            unless=(("tensor_parallel", 1),),
        ),
        Say("The rank sends nothing.", when=(("tensor_parallel", 1),)),
    ),
    detail=(
        Say(
            "A layer keeps {tensor_layer_bytes} of activations"
            " and computes for {tensor_layer_compute_seconds:short duration}; its messages take"
            " {tensor_layer_message_seconds:short duration} at {tensor_link_bytes_per_second}. A"
            " group that fits into a node of {ranks_per_node:exact} uses the link inside the node,"
            " a larger group one link between nodes. "
        ),
        Say(
            "“Gathered again” needs “own tokens”, and switches to them. ",
            when=(("sequence_parallel", 0),),
        ),
        Say(
            "Assumed: {utilisation} of the GPU's arithmetic, rings, no overlap, no dropout, fused"
            " attention."
        ),
    ),
    table=ExplorerTable(
        "Share of a layer’s time that its messages take: Llama 7B on H100, 16 sequences of 1,024"
        " tokens, 400 Gbit/s between nodes, by the link inside a node",
        "node_link",
        (
            *(
                (f"t = {t}", "tensor_message_share", "percent", (("tensor_parallel", t),))
                for t in (2, 4, 8)
            ),
            (
                "t = 8, nodes of 4",
                "tensor_message_share",
                "percent",
                (("tensor_parallel", 8), ("ranks_per_node", 4)),
            ),
            (
                "t = 8, gathered again",
                "tensor_message_share",
                "percent",
                (("tensor_parallel", 8), ("sequence_parallel", 1), ("regather", 1)),
            ),
        ),
    ),
    outputs=(
        "tensor_peak_bytes",
        "tensor_layer_bytes",
        "tensor_sent_bytes",
        "tensor_message_share",
    ),
    why=(
        "tensor_parameters",
        "tensor_own_tokens",
        "tensor_kept_tokens",
        "tensor_attention_bytes",
        "tensor_mlp_bytes",
        "tensor_layer_bytes",
        "tensor_activation_bytes",
        "tensor_message_bytes",
        "tensor_sent_bytes",
        "tensor_layer_compute_seconds",
        "tensor_layer_message_seconds",
        "tensor_message_share",
    ),
)
