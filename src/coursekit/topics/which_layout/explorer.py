"""The explorer of any layout: what one rank holds at its fullest, and how long a step takes."""

from coursekit.formulas.fits import FUSED_LOSS
from coursekit.formulas.presets import LINKS, MODELS
from coursekit.formulas.registry import BOOK
from coursekit.formulas.speeds import SPEEDS
from coursekit.show.links import AtLeast, AtMost
from coursekit.show.pictures import MemoryBar, Part, memory_parts
from coursekit.show.spec import Choice, Control, ControlGroup, Explorer, ExplorerTable, Menu, Say
from coursekit.show.stops import powers_of_two

_SPEED = SPEEDS["Megatron-LM on H100"]
_UNEVEN = tuple(name for name, model in MODELS.items() if model.quantities["key_value_heads"] % 8)
# The places of eager PyTorch have no words here; a workspace of 24 GiB fits large models alone.
_OTHER_KERNELS = ("PyTorch eager", "FSDP2, compiled")
_LOSS, _LAYER, _UPDATE = (
    1 + BOOK.formulas["rank_peak_bytes"].needs.index(f"live_at_rank_{name}_bytes")
    for name in ("library_loss", "library_layer", "optimizer")
)

RANK_OF_ANY_LAYOUT = Explorer(
    name="rank-of-any-layout",
    title="What does one rank hold?",
    menus=(
        Menu("model", "Model", without=("experts",), but=_UNEVEN),
        Menu("gpu", "GPU"),
        Menu("recipe", "Recipe", but=("autocast Adam",)),
        Menu("kernels", "Kernels", but=_OTHER_KERNELS),
        Menu("node_link", "Inside a node"),
    ),
    controls=(
        Control("data_parallel", "data-parallel ranks d", powers_of_two(1, 4096)),
        Choice(
            "tensor_parallel", "tensor-parallel ranks t", tuple((t, str(t)) for t in (1, 2, 4, 8))
        ),
        Control("pipeline_parallel", "pipeline ranks p", powers_of_two(1, 16)),
        Choice("zero_stage", "ZeRO stage", tuple((stage, str(stage)) for stage in range(4))),
        Choice(
            "recompute_policy",
            "computed again",
            ((0, "nothing"), (1, "core of attention"), (3, "each layer")),
        ),
        Control("pipeline_rank", "rank of the pipeline, from 0", range(16)),
        Control("microbatch", "sequences in a microbatch", powers_of_two(1, 64)),
        Control("sequence", "tokens in a sequence", powers_of_two(512, 131_072)),
        Control("accumulation_steps", "microbatches in a step", powers_of_two(1, 1024)),
        Control(
            "node_bytes_per_second",
            "each GPU inside a node",
            tuple(gigabytes * 10**9 for gigabytes in (25, 50, 100, 200, 400, 800)),
            "bandwidth",
        ),
        Control(
            "link_bytes_per_second",
            "all network cards of a node",
            tuple(gigabytes * 10**9 for gigabytes in (25, 50, 100, 200, 400, 800)),
            "bandwidth",
        ),
    ),
    groups=(
        ControlGroup(
            "Layout",
            (
                "data_parallel",
                "tensor_parallel",
                "pipeline_parallel",
                "zero_stage",
                "recompute_policy",
            ),
        ),
        ControlGroup("Batch", ("microbatch", "sequence", "accumulation_steps"), folded=True),
        ControlGroup(
            "Which rank, which links",
            ("pipeline_rank", "node_bytes_per_second", "link_bytes_per_second"),
            folded=True,
        ),
    ),
    links=(
        AtMost("pipeline_rank", "pipeline_parallel", less=1),
        AtMost("pipeline_parallel", "accumulation_steps"),
        AtLeast("max_sequence", "sequence"),
    ),
    begin=dict(
        model="Llama 3 70B",
        gpu="H100 SXM 80GB",
        recipe="bf16 + fp32 gradients",
        kernels=FUSED_LOSS,
        node_link="NVLink 4 (H100)",
        latency_seconds=LINKS["network, 400 Gbit/s"].quantities["latency_seconds"],
        link_bytes_per_second=400 * 10**9,  # eight cards of 400 Gbit/s
        data_parallel=8,
        tensor_parallel=8,
        pipeline_parallel=1,
        zero_stage=1,
        recompute_policy=0,
        pipeline_rank=0,
        microbatch=1,
        sequence=8192,
        accumulation_steps=16,
        sequence_parallel=1,
        regather=1,
        pipeline_schedule=2,
        ranks_per_node=8,
        utilisation=_SPEED.utilisation,
        hidden_message_share=_SPEED.hidden_message_share,
        reduce_early=1,
        prefetch_units=1,
    ),
    pictures=(
        MemoryBar(
            "One rank at its fullest",
            (
                *memory_parts(
                    parameters="rank_parameter_bytes",
                    optimizer="optimizer_at_rank_peak_bytes",
                    gradients="gradients_at_rank_peak_bytes",
                    activations="activations_at_rank_peak_bytes",
                ),
                Part("gathered_at_rank_peak_bytes", "gathered", "gathered"),
                *memory_parts(temporaries="temporaries_at_rank_peak_bytes"),
                Part("rank_workspace_bytes", "workspaces", "temporaries"),
            ),
            total="rank_peak_bytes",
            capacity="gpu_memory_bytes",
        ),
    ),
    sentence=(
        Say(
            "Rank {pipeline_rank:exact} of the pipeline, one of {layout_gpus:exact}"
            " GPU{layout_gpus:s}, holds {rank_peak_bytes} ({rank_peak_bytes:bytes}) at its"
            " fullest, "
        ),
        Say("in the loss", when=(("rank_peak_place", _LOSS),)),
        Say("in the backward of a layer", when=(("rank_peak_place", _LAYER),)),
        Say("in the optimizer's step", when=(("rank_peak_place", _UPDATE),)),
        Say(
            "; it fits a card of {gpu_memory_bytes} with {free_bytes} to spare",
            when=(("fits", 1),),
        ),
        Say("; a card of {gpu_memory_bytes} is {missing_bytes} short", when=(("fits", 0),)),
        Say(
            ". A step takes {layout_seconds:short duration}: {layout_tokens_per_second:count}"
            " tokens per second and GPU, {layout_utilisation:percent} of the GPU's rate."
        ),
    ),
    detail=(
        Say(
            "Parameters {rank_parameter_bytes}, optimizer states {optimizer_at_rank_peak_bytes},"
            " gradients {gradients_at_rank_peak_bytes}, activations"
            " {activations_at_rank_peak_bytes} of {rank_held_microbatches:exact}"
            " microbatch{rank_held_microbatches:s}. Of the step the pipeline fills and drains for"
            " {bubble_seconds:short duration}, and {data_exposed_seconds:short duration} pass in"
            " which this rank waits for data-parallel messages. Products reach"
            " {utilisation:percent} of the GPU's rate, as fitted to Megatron-LM's runs on H100s;"
            " memory and links reach their whole bandwidth."
        ),
    ),
    table=ExplorerTable(
        "The first rank on 64 H100s of 80 GB, t = 8 and stage 1",
        "model",
        (
            ("parameters", "parameters", "count"),
            ("a rank's parameters", "rank_parameters", "count"),
            ("at its fullest, GB", "rank_peak_bytes", "GB"),
            ("fits?", "fits", "yes or no"),
            ("a step, s", "layout_seconds", "short duration"),
        ),
    ),
    outputs=(
        "rank_peak_bytes",
        "rank_peak_place",
        "layout_seconds",
        "layout_tokens_per_second",
        "layout_utilisation",
        "layout_gpus",
    ),
    why=(
        "rank_parameters",
        "rank_shard_parameters",
        "rank_parameter_bytes",
        "rank_optimizer_bytes",
        "rank_backward_gradient_bytes",
        "rank_waiting_layer_bytes",
        "rank_held_layers",
        "rank_saved_bytes",
        "live_at_rank_library_loss_bytes",
        "live_at_rank_library_layer_bytes",
        "live_at_rank_optimizer_bytes",
        "rank_peak_bytes",
        "layer_seconds",
        "slowest_rank_seconds",
        "bubble_seconds",
        "data_exposed_seconds",
        "rank_update_seconds",
        "layout_seconds",
    ),
)
