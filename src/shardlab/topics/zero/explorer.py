"""The explorer of chapter 6: what each rank keeps, sends and waits for, by stage of ZeRO."""

from shardlab.show.pictures import CurveAxis, Curves, Line, MemoryBar, StreamsPicture, memory_parts
from shardlab.show.spec import Choice, Control, ControlGroup, Explorer, ExplorerTable, Menu, Say
from shardlab.show.stops import powers_of_two, steps_of_ten
from shardlab.topics.zero.timeline import COLOURS, MICROBATCH

ZERO = Explorer(
    name="zero",
    title="What does a rank keep, what does it send, and how long does it wait?",
    menus=(
        Menu("model", "Model"),
        Menu("recipe", "Recipe"),
        Menu("gpu", "GPU"),
        Menu("link", "Link"),
    ),
    controls=(
        Choice("zero_stage", "stage", tuple((stage, str(stage)) for stage in range(4))),
        Control("parameters", "parameters", steps_of_ten(6, 13), "count"),
        Control("data_parallel", "data-parallel ranks d", powers_of_two(1, 4096)),
        Control("accumulation_steps", "microbatches in a step k", powers_of_two(1, 64)),
        Control("microbatch_tokens", "tokens in a microbatch", powers_of_two(64, 65_536)),
        Choice("prefetch_units", "prefetch", ((0, "no unit"), (1, "one unit"))),
        Choice("reduce_early", "gradients leave", ((0, "late"), (1, "early"))),
        Control("link_bytes_per_second", "bandwidth of the ring", steps_of_ten(7, 12), "bandwidth"),
    ),
    groups=(
        ControlGroup("What is sharded", ("zero_stage", "parameters", "data_parallel")),
        ControlGroup(
            "A step",
            ("accumulation_steps", "microbatch_tokens", "prefetch_units", "reduce_early"),
        ),
        ControlGroup("Link", ("link_bytes_per_second",), folded=True),
    ),
    begin=dict(
        model="Llama 7B",
        recipe="bf16 + fp32 master",
        gpu="H100 SXM 80GB",
        link="network, 400 Gbit/s",
        zero_stage=1,
        data_parallel=16,
        accumulation_steps=1,
        rank=0,
        zero_flat_tensors=32,
        microbatch_tokens=2048,
        prefetch_units=1,
        reduce_early=1,
        utilisation=0.4,
        contention=0,
    ),
    pictures=(
        MemoryBar(
            "Model states on rank 0",
            memory_parts(
                parameters="zero_parameter_bytes",
                gradients="zero_gradient_bytes",
                optimizer="zero_optimizer_bytes",
            ),
            total="zero_states_bytes",
            capacity="gpu_memory_bytes",
        ),
        StreamsPicture("A step of one microbatch, without its update", MICROBATCH, COLOURS),
        Curves(
            title="Model states by the number of ranks",
            sweep="data_parallel",
            stops=powers_of_two(1, 4096),
            x=CurveAxis("data-parallel ranks, logarithmic", "exact", ticks=(1, 8, 64, 512, 4096)),
            y=CurveAxis("bytes on a rank, logarithmic", "decimal bytes"),
            lines=tuple(
                Line("zero_states_bytes", f"stage {stage}", given=(("zero_stage", stage),))
                for stage in range(4)
            ),
            point="zero_states_bytes",
            words="{zero_states_bytes}",
        ),
        Curves(
            title="Bytes that a rank sends, by microbatches in a step",
            sweep="accumulation_steps",
            stops=powers_of_two(1, 64),
            x=CurveAxis("microbatches in a step, logarithmic", "exact", ticks=(1, 4, 16, 64)),
            y=CurveAxis("bytes sent in a step, logarithmic", "decimal bytes"),
            lines=tuple(
                Line("zero_sent_bytes", f"stage {stage}", given=(("zero_stage", stage),))
                for stage in range(4)
            ),
            point="zero_sent_bytes",
            words="{zero_sent_bytes}",
        ),
    ),
    sentence=(
        Say(
            "In stage {zero_stage:exact} each of {data_parallel:exact} rank{data_parallel:s} keeps"
            " {zero_states_bytes} ({zero_states_bytes:bytes}) of model states"
        ),
        Say("; a card of {gpu_memory_bytes} is {missing_bytes} short. ", when=(("fits", 0),)),
        Say("; a card of {gpu_memory_bytes} has {free_bytes} left. ", when=(("fits", 1),)),
        Say(
            "A rank sends {zero_sent_bytes} in a step, which a ring of {link_bytes_per_second}"
            " carries in {zero_communication_seconds:short duration}. The rank waits"
            " for {zero_exposed_seconds:short duration} of that time, on top of"
            " {zero_compute_seconds:short duration} of computing."
        ),
    ),
    detail=(
        Say(
            "Parameters {zero_parameter_bytes}, gradients {zero_gradient_bytes}, optimizer states"
            " {zero_optimizer_bytes}. A step has {zero_reductions:exact}"
            " reduce-scatter{zero_reductions:s} and {zero_gatherings:exact}"
            " all-gather{zero_gatherings:s} of everything, in {zero_flat_tensors:exact} flat"
            " tensors with a latency of {latency_seconds:short duration}. Without latency, each"
            " phase hides its own messages if a microbatch has at least"
            " {zero_hiding_tokens:count} tokens. Assumed:"
            " units of one size, {utilisation} of the GPU's arithmetic, computing that messages"
            " do not slow down. Activations come on top"
        ),
        Say(", and in stage 3 the units that are whole for a moment", when=(("zero_stage", 3),)),
        Say("."),
    ),
    table=ExplorerTable(
        "Model states on each of 16 ranks with an H100 of 80 GB: bf16 with an fp32 master copy",
        "model",
        (
            ("parameters", "parameters", "count"),
            *(
                (f"stage {stage}, GB", "zero_states_bytes", "GB", (("zero_stage", stage),))
                for stage in range(4)
            ),
            ("stage 1 fits?", "fits", "yes or no"),
        ),
    ),
    outputs=(
        "zero_states_bytes",
        "zero_sent_bytes",
        "zero_communication_seconds",
        "zero_exposed_seconds",
    ),
    why=(
        "zero_shard_parameters",
        "zero_states_bytes",
        "zero_reductions",
        "zero_gatherings",
        "zero_sent_bytes",
        "zero_communication_seconds",
        "unit_gather_seconds",
        "unit_reduce_seconds",
        "zero_forward_seconds",
        "zero_backward_seconds",
        "zero_exposed_seconds",
        "zero_hiding_tokens",
    ),
)
