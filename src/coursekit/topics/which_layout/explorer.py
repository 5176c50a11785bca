"""The explorer of any layout: what one rank holds at its fullest, and how long a step takes."""

from dataclasses import replace

from coursekit.formulas.presets import GPUS, MODELS
from coursekit.formulas.registry import BOOK
from coursekit.planner.layout import FUSED_LOSS
from coursekit.planner.speeds import BANDWIDTH_SHARE, EXPERTS, SPEEDS, pace, usual_speed
from coursekit.show.links import AtLeast, AtMost, Divides
from coursekit.show.pictures import RANK_PEAK_PARTS, MemoryBar, Part
from coursekit.show.spec import Choice, Control, ControlGroup, Explorer, ExplorerTable, Menu, Say
from coursekit.show.stops import powers_of_two

from .links import Back, Instead, Some

# As the planner has it: links of the GPU's usual nodes, and the speed of published runs; models of
# experts have another class of runs.
_OF_EXPERTS = {gpu: pace(gpu, SPEEDS[EXPERTS]) for gpu in GPUS}
_PACES = {
    gpu: pace(gpu, SPEEDS[usual_speed(gpu, FUSED_LOSS)])
    | {f"{name} of experts": value for name, value in of.items()}
    for gpu, of in _OF_EXPERTS.items()
}
_PACE = tuple(_OF_EXPERTS["H100 SXM 80GB"])
_RANKS_OF_EXPERTS = powers_of_two(1, 64)
# Quantities of a planner's layout that no control moves -> their usual values.
_PLANNED = dict(
    stages_per_rank=1,
    pipeline_schedule=2,
    shorter_ends=0,
    sequence_parallel=1,
    regather=1,
    offload=0,
    sequence_tiles=1,
    checkpoints_on_host=0,
)
_LAYOUT = ("data_parallel", "tensor_parallel", "pipeline_parallel", "accumulation_steps", "layers")
_UNEVEN = tuple(name for name, model in MODELS.items() if model.quantities["key_value_heads"] % 8)
# The places of eager PyTorch have no words here; a workspace of 20 GiB fits large models alone.
_OTHER_KERNELS = ("PyTorch eager", "FSDP2, compiled")
_LOSS, _LAYER, _UPDATE = (
    1 + BOOK.formulas["rank_peak_bytes"].needs.index(f"live_at_rank_{name}_bytes")
    for name in ("library_loss", "library_layer", "optimizer")
)

RANK_OF_ANY_LAYOUT = Explorer(
    name="rank-of-any-layout",
    title="What does one rank hold?",
    menus=(
        Menu("model", "Model", but=_UNEVEN),
        Menu("gpu", "GPU", beside=_PACES),
        Menu("recipe", "Recipe", but=("autocast Adam",)),
        Menu("kernels", "Kernels", but=_OTHER_KERNELS),
    ),
    controls=(
        Control("data_parallel", "data-parallel ranks d", powers_of_two(1, 4096)),
        Choice(
            "tensor_parallel", "tensor-parallel ranks t", tuple((t, str(t)) for t in (1, 2, 4, 8))
        ),
        Control("pipeline_parallel", "pipeline ranks p", powers_of_two(1, 16)),
        Control("context_parallel", "ranks c that share a sequence", powers_of_two(1, 16)),
        Control("expert_parallel", "ranks e that divide experts", _RANKS_OF_EXPERTS),
        Choice("context_mix", "they attend by", ((1, "a ring"), (2, "gathering"), (3, "heads"))),
        Choice("zero_stage", "ZeRO stage", tuple((stage, str(stage)) for stage in range(4))),
        Choice(
            "recompute_policy",
            "recompute",
            ((0, "nothing"), (1, "attention core"), (3, "every layer")),
        ),
        Control("pipeline_rank", "rank of the pipeline, from 0", range(16)),
        Control("microbatch", "sequences in a microbatch", powers_of_two(1, 64)),
        Control("sequence", "tokens of a sequence on a rank", powers_of_two(512, 131_072)),
        Control("accumulation_steps", "microbatches in a step", powers_of_two(1, 1024)),
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
        ControlGroup("Experts", ("expert_parallel",), folded=True),
        ControlGroup(
            "Long sequences", ("sequence", "context_parallel", "context_mix"), folded=True
        ),
        ControlGroup(
            "Batch, and which rank",
            ("microbatch", "accumulation_steps", "pipeline_rank"),
            folded=True,
        ),
    ),
    links=(
        AtMost("pipeline_rank", "pipeline_parallel", less=1),
        AtMost("pipeline_parallel", "accumulation_steps", least=1),
        AtLeast("max_sequence", "sequence"),
        *(Back(name, value, _LAYOUT) for name, value in _PLANNED.items()),
        *(  # of layers that are recomputed
            Back(name, _PLANNED[name], ("recompute_policy", "library_kernels"))
            for name in ("sequence_tiles", "checkpoints_on_host")
        ),
        AtMost("expert_parallel", "data_parallel", least=1),
        AtMost(
            "expert_parallel", "experts", less=-1, least=1
        ),  # a dense model gets experts, one a token
        Divides("expert_parallel", "experts", _RANKS_OF_EXPERTS),
        Some("experts_per_token", "experts", "experts of a token"),
        Instead(_PACE, tuple(f"{name} of experts" for name in _PACE), "experts"),
        # data-parallel ranks count those that share a sequence; any degrees make a ring
        AtMost("context_parallel", "data_parallel", least=1),
        Back("context_mix", 1, ("context_parallel", "tensor_parallel", "key_value_heads")),
        Back("context_parallel", 8, ("context_mix",), above=2),  # heads of all models divide so
        Back("tensor_parallel", 1, ("context_mix",), above=2),
        AtMost("context_mix", "context_parallel", least=1),
        # adapters stand beside whole models, in stage 0
        Back("adapter_rank", 0, ("tensor_parallel", "pipeline_parallel"), above=1),
        Back("adapter_rank", 0, ("zero_stage", "experts"), 0, "the recipe's adapter rank"),
        Back("tensor_parallel", 1, ("adapter_rank",), above=0),
        Back("experts", 0, ("adapter_rank",), above=0),
        Back("experts_per_token", 0, ("adapter_rank",), above=0),
        Back("pipeline_parallel", 1, ("adapter_rank",), above=0),
        Back("zero_stage", 0, ("adapter_rank",), above=0),
    ),
    begin=dict(
        model="Llama 3 70B",
        gpu="H100 SXM 80GB",
        recipe="bf16 + fp32 gradients",
        kernels=FUSED_LOSS,
        data_parallel=8,
        tensor_parallel=8,
        pipeline_parallel=1,
        zero_stage=1,
        recompute_policy=0,
        pipeline_rank=0,
        microbatch=1,
        sequence=8192,
        accumulation_steps=16,
        context_parallel=1,
        context_mix=1,
        expert_parallel=1,
        **_PLANNED,
    ),
    pictures=(
        MemoryBar(
            "One rank at its fullest",
            (
                *RANK_PEAK_PARTS,
                Part("rank_workspace_bytes", "workspaces", "temporaries"),
                Part("rank_reserve_bytes", "reserve", "gathered"),
                Part("rank_context_bytes", "CUDA", "temporaries"),
                Part("rank_communicator_bytes", "NCCL", "temporaries"),
            ),
            total="rank_needed_bytes",
            capacity="gpu_memory_bytes",
        ),
    ),
    sentence=(
        Say(
            "Rank {pipeline_rank:exact} of the pipeline, one of {layout_gpus:exact}"
            " GPU{layout_gpus:s}, needs {rank_needed_bytes}: {rank_peak_bytes} at its peak, "
        ),
        Say("during the loss", when=(("rank_peak_place", _LOSS),)),
        Say("during the backward of a layer", when=(("rank_peak_place", _LAYER),)),
        Say("during the optimizer's step", when=(("rank_peak_place", _UPDATE),)),
        Say(
            ", plus {rank_reserve_bytes} in reserve, {rank_context_bytes} for CUDA and"
            " {rank_communicator_bytes} for NCCL. "
        ),
        Say("It fits: {free_bytes} of {gpu_memory_bytes} are to spare.", when=(("fits", 1),)),
        Say("That is {missing_bytes} more than the GPU has.", when=(("fits", 0),)),
        Say(
            " A step takes {layout_seconds:short duration}: {layout_tokens_per_second:count}"
            " tokens per second per GPU."
        ),
    ),
    detail=(
        Say(
            "Parameters {rank_parameter_bytes}, optimizer states {optimizer_at_rank_peak_bytes},"
            " gradients {gradients_at_rank_peak_bytes}, activations"
            " {activations_at_rank_peak_bytes} of {rank_held_microbatches:exact} microbatch"
        ),
        Say("es", unless=(("rank_held_microbatches", 1),)),
        Say(
            ". Of a step the pipeline is idle for {bubble_seconds:short duration}, and waits for"
            " data-parallel messages for {data_exposed_seconds:short duration}. Products reach"
            " {utilisation:percent} of the GPU's rate, as in published runs, the step"
            " {layout_utilisation:percent}; memory and"
            f" links {BANDWIDTH_SHARE:.0%} of their bandwidth."
        ),
        Say(
            " A rank of the pipeline has {stages_per_rank:exact} stages.",
            unless=(("stages_per_rank", 1),),
        ),
        Say(
            " The first and the last stage have a layer less than the others.",
            unless=(("shorter_ends", 0),),
        ),
        Say(
            " {context_parallel:exact} ranks share each sequence of {whole_sequence:exact} tokens;"
            " in a layer they wait for their messages for {layer_context_seconds:short duration}.",
            unless=(("context_parallel", 1),),
        ),
        Say(
            " Tokens go through the MLP, and the loss, in {sequence_tiles:exact} tiles.",
            unless=(("sequence_tiles", 1),),
        ),
        Say(
            " The inputs of recomputed layers wait on the host.",
            unless=(("checkpoints_on_host", 0),),
        ),
        Say(" {expert_parallel:exact} ranks divide the experts.", unless=(("expert_parallel", 1),)),
        Say(" States of the optimizer", unless=(("offload", 0),)),
        Say(", parameters and gradients", when=(("zero_stage", 3),), unless=(("offload", 0),)),
        Say(" lie on the host: {rank_host_bytes}.", unless=(("offload", 0),)),
    ),
    table=ExplorerTable(
        "The first rank on 64 H100s of 80 GB, t = 8 and stage 1",
        "model",
        (
            ("parameters", "parameters", "count"),
            ("a rank's parameters", "rank_parameters", "count"),
            ("needed, GB", "rank_needed_bytes", "GB"),
            ("fits?", "fits", "yes or no"),
            ("a step, s", "layout_seconds", "short duration"),
        ),
    ),
    parts=("nearest", "ranks"),
    outputs=(
        "rank_needed_bytes",
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
        "rank_reserve_bytes",
        "rank_communicator_bytes",
        "rank_needed_bytes",
        "layer_seconds",
        "slowest_rank_seconds",
        "bubble_seconds",
        "data_exposed_seconds",
        "rank_update_seconds",
        "layout_seconds",
    ),
)

_SWITCH = ((0, "no"), (1, "yes"))


def beside_a_run(begin: dict[str, int]) -> Explorer:
    """The explorer beside the bytes of a rank that ran. It begins with the run's quantities, of
    which it takes its own."""
    shown = replace(
        RANK_OF_ANY_LAYOUT,
        name="rank-of-a-run",
        title="What did one rank hold?",
        menus=(),
        controls=(
            Control("data_parallel", "data-parallel ranks d", powers_of_two(1, 64)),
            Choice("tensor_parallel", "tensor-parallel ranks t", ((1, "1"), (2, "2"), (4, "4"))),
            Control("pipeline_parallel", "pipeline ranks p", (1, 2, 4)),
            Choice("zero_stage", "ZeRO stage", tuple((stage, str(stage)) for stage in range(4))),
            Choice("sequence_parallel", "tokens cut between products", _SWITCH),
            Choice("recompute_policy", "recompute", ((0, "nothing"), (3, "every layer"))),
            Control("accumulation_steps", "microbatches in a step", powers_of_two(1, 64)),
            Control("microbatch", "sequences in a microbatch", powers_of_two(1, 64)),
            Control("pipeline_rank", "rank of the pipeline, from 0", range(4)),
        ),
        groups=(),
        links=(
            AtMost("pipeline_rank", "pipeline_parallel", less=1),
            AtMost("pipeline_parallel", "accumulation_steps", least=1),
            AtMost("regather", "sequence_parallel"),
        ),
        begin={},
        pictures=(replace(RANK_OF_ANY_LAYOUT.pictures[0], capacity=""),),
        sentence=(
            Say(
                "Rank {pipeline_rank:exact} of the pipeline, one of {layout_gpus:exact}"
                " rank{layout_gpus:s}, holds {rank_peak_bytes:exact} bytes at its fullest."
            ),
        ),
        detail=(Say("The fill is what the ledger counted on this machine."),),
        table=ExplorerTable("", "model", ()),
        outputs=("rank_peak_bytes",),
        why=(),
    )
    return replace(shown, begin={name: begin[name] for name in shown.inputs if name in begin})
