"""The explorers of chapter 6: what each rank keeps, and what it sends and waits for, by stage of
ZeRO."""

from coursekit.show.pictures import CurveAxis, Curves, Line, MemoryBar, StreamsPicture, memory_parts
from coursekit.show.spec import Choice, Control, ControlGroup, Explorer, ExplorerTable, Menu, Say
from coursekit.show.stops import powers_of_two, steps_of_ten
from coursekit.topics.zero.timeline import COLOURS, MICROBATCH

STAGE = Choice("zero_stage", "stage", tuple((stage, str(stage)) for stage in range(4)))
PARAMETERS = Control("parameters", "parameters", steps_of_ten(6, 13), "count")
DATA_PARALLEL_RANKS = Control("data_parallel", "data-parallel ranks d", powers_of_two(1, 4096))


def by_stage(quantity):
    return tuple(
        Line(quantity, f"stage {stage}", given=(("zero_stage", stage),)) for stage in range(4)
    )


def columns_by_stage(quantity):
    return tuple(
        (f"stage {stage}, GB", quantity, "GB", (("zero_stage", stage),)) for stage in range(4)
    )


ZERO = Explorer(
    name="zero",
    title="What does a rank keep?",
    menus=(
        Menu("model", "Model"),
        Menu("recipe", "Recipe", without=("adapter_rank",)),
        Menu("gpu", "GPU"),
    ),
    controls=(STAGE, PARAMETERS, DATA_PARALLEL_RANKS),
    begin=dict(
        model="Llama 7B",
        recipe="bf16 + fp32 master",
        gpu="H100 SXM 80GB",
        zero_stage=1,
        data_parallel=16,
        rank=0,
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
        Curves(
            title="Model states by the number of ranks",
            sweep="data_parallel",
            stops=powers_of_two(1, 4096),
            x=CurveAxis("data-parallel ranks, logarithmic", "exact", ticks=(1, 8, 64, 512, 4096)),
            y=CurveAxis("bytes on a rank, logarithmic", "decimal bytes"),
            lines=by_stage("zero_states_bytes"),
            point="zero_states_bytes",
            words="{zero_states_bytes}",
        ),
    ),
    sentence=(
        Say(
            "In stage {zero_stage:exact} each of {data_parallel:exact} rank{data_parallel:s} keeps"
            " {zero_states_bytes} ({zero_states_bytes:bytes}) of model states; the GPU"
            " of {gpu_memory_bytes} "
        ),
        Say("lacks {missing_bytes}, and room for activations", when=(("fits", 0),)),
        Say("has {free_bytes} left for activations", when=(("fits", 1),)),
        Say(" and for the units that are whole for a moment", when=(("zero_stage", 3),)),
        Say("."),
    ),
    detail=(
        Say(
            "Parameters {zero_parameter_bytes}, gradients {zero_gradient_bytes}, optimizer states"
            " {zero_optimizer_bytes}. Where a tensor does not divide evenly, rank 0 has the largest"
            " shard."
        ),
    ),
    table=ExplorerTable(
        "Model states on each of 16 ranks with an H100 of 80 GB: bf16 with an fp32 master copy",
        "model",
        (
            ("parameters", "parameters", "count"),
            *columns_by_stage("zero_states_bytes"),
            ("stage 1 fits?", "fits", "yes or no"),
        ),
    ),
    outputs=("zero_states_bytes",),
    why=(
        "zero_shard_parameters",
        "zero_parameter_bytes",
        "zero_gradient_bytes",
        "zero_optimizer_bytes",
        "zero_states_bytes",
    ),
)

ZERO_TIME = Explorer(
    name="zero-time",
    title="What does a rank send, and how long does it wait?",
    menus=(Menu("model", "Model"), Menu("gpu", "GPU"), Menu("link", "Link")),
    controls=(
        STAGE,
        PARAMETERS,
        DATA_PARALLEL_RANKS,
        Control("accumulation_steps", "microbatches in a step k", powers_of_two(1, 64)),
        Control("microbatch_tokens", "tokens in a microbatch", powers_of_two(64, 65_536)),
        Choice("prefetch_units", "prefetch", ((0, "no unit"), (1, "one unit"))),
        Choice("reduce_early", "gradients leave", ((0, "late"), (1, "early"))),
        Control("link_bytes_per_second", "bandwidth of the ring", steps_of_ten(7, 12), "bandwidth"),
    ),
    groups=(
        ControlGroup(
            "What is sent", ("zero_stage", "parameters", "data_parallel", "accumulation_steps")
        ),
        ControlGroup(
            "What hides it",
            ("microbatch_tokens", "prefetch_units", "reduce_early", "link_bytes_per_second"),
            folded=True,
        ),
    ),
    begin=dict(
        model="Llama 7B",
        gpu="H100 SXM 80GB",
        link="network, 400 Gbit/s",
        parameter_element_bytes=2,
        gradient_element_bytes=2,
        zero_stage=3,
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
        StreamsPicture("A step of one microbatch, without its update", MICROBATCH, COLOURS),
        Curves(
            title="Bytes that a rank sends, by microbatches in a step",
            sweep="accumulation_steps",
            stops=powers_of_two(1, 64),
            x=CurveAxis("microbatches in a step, logarithmic", "exact", ticks=(1, 4, 16, 64)),
            y=CurveAxis("bytes sent in a step, logarithmic", "decimal bytes"),
            lines=by_stage("zero_sent_bytes"),
            point="zero_sent_bytes",
            words="{zero_sent_bytes}",
        ),
    ),
    sentence=(
        Say(
            "In stage {zero_stage:exact} each of {data_parallel:exact} rank{data_parallel:s} sends"
            " {zero_sent_bytes} in a step, which a ring of {link_bytes_per_second} carries in"
            " {zero_communication_seconds:short duration}. A rank waits for"
            " {zero_exposed_seconds:short duration} of that time, on top of"
            " {zero_compute_seconds:short duration} of computing."
        ),
    ),
    detail=(
        Say(
            "A step has {zero_reductions:exact} reduce-scatter{zero_reductions:s} and"
            " {zero_gatherings:exact} all-gather{zero_gatherings:s} of everything, in"
            " {zero_flat_tensors:exact} flat tensors with a latency of"
            " {latency_seconds:short duration}. Without latency, each phase hides its own messages"
            " if a microbatch has at least {zero_hiding_tokens:count} tokens. Assumed: 16-bit"
            " parameters and gradients, units of one size, {utilisation} of the GPU's arithmetic,"
            " computing that messages do not slow down."
        ),
    ),
    table=ExplorerTable(
        "What each of 16 ranks sends in a step of one microbatch: 16-bit parameters and gradients",
        "model",
        (
            ("parameters", "parameters", "count"),
            *columns_by_stage("zero_sent_bytes"),
            ("stage 3 waits", "zero_exposed_seconds", "short duration"),
        ),
    ),
    adds=(
        ("zero_step_seconds", "a step"),
        ("zero_compute_seconds", "computing"),
        ("zero_exposed_seconds", "waiting"),
    ),
    outputs=("zero_sent_bytes", "zero_communication_seconds", "zero_exposed_seconds"),
    why=(
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
