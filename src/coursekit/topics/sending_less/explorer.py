"""The explorer of chapter 16: how long a step takes on a link, by how ranks send less, and below
which bandwidth that pays."""

from coursekit.show.pictures import CurveAxis, Curves, Line, MemoryBar, memory_parts
from coursekit.show.spec import Choice, Control, ControlGroup, Explorer, ExplorerTable, Menu, Say
from coursekit.show.stops import powers_of_two, spread, steps_of_ten

WIDTHS = spread(10**7, 10**12, 51)  # of links
LATENCIES_OF_LINKS = tuple(
    float(f"{digit}e{power}") for power in range(-6, -1) for digit in (1, 2, 5)
)
_WHOLE = (("gradient_compressor", 1),)
_ANY_LINK = ("break_even_bytes_per_second", 1e15)

SENDING_LESS = Explorer(
    name="sending-less",
    title="On which links does sending less pay?",
    menus=(
        Menu("model", "Model", without=("experts", "key_value_latent")),
        Menu("gpu", "GPU"),
        Menu("compressor", "Sent"),
    ),
    controls=(
        Control("link_bytes_per_second", "bandwidth of the link", steps_of_ten(7, 12), "bandwidth"),
        Control("latency_seconds", "latency of the link", LATENCIES_OF_LINKS, "short duration"),
        Control("data_parallel", "ranks n", powers_of_two(2, 1024)),
        Control("sync_every", "steps alone, H (local SGD, DiLoCo)", (1, 2, 5, 10, 50, 100, 500)),
        Control("power_rank", "rank r (PowerSGD)", powers_of_two(1, 64)),
        Control("kept_one_in", "the largest, one in", (1, 10, 100, 1000)),
        Control("microbatch", "sequences of a rank", powers_of_two(1, 64)),
        Choice("reduce_early", "messages begin", ((0, "after backward"), (1, "during it"))),
    ),
    groups=(
        ControlGroup(
            "Link and ranks", ("link_bytes_per_second", "latency_seconds", "data_parallel")
        ),
        ControlGroup("How little", ("sync_every", "power_rank", "kept_one_in")),
        ControlGroup("The step", ("microbatch", "reduce_early"), folded=True),
    ),
    begin=dict(
        model="GPT-2 124M",
        gpu="H100 SXM 80GB",
        compressor="PowerSGD",
        link_bytes_per_second=1_500_000_000,
        latency_seconds=1e-5,
        data_parallel=8,
        gradient_element_bytes=4,
        microbatch=8,
        sequence=1024,
        accumulation_steps=1,
        reduce_early=1,
        utilisation=0.4,
        sync_every=50,
        power_rank=4,
        kept_one_in=100,
        warm_up_share=0.15,
        demo_keep=2,
    ),
    pictures=(
        Curves(
            title="Time of a step, by bandwidth",
            sweep="link_bytes_per_second",
            stops=WIDTHS,
            x=CurveAxis(
                "bandwidth, logarithmic",
                "bandwidth",
                ticks=(10**7, 10**8, 10**9, 10**10, 10**11, 10**12),
            ),
            y=CurveAxis("time, logarithmic", "short duration"),
            lines=(
                Line("whole_step_seconds", "fp32"),
                Line("less_step_seconds", "16 bits", given=(("gradient_compressor", 2),)),
                Line("less_step_seconds", "chosen"),
                Line("less_compute_seconds", "computing"),
            ),
            point="less_step_seconds",
            words="{less_step_seconds:short duration}",
        ),
        MemoryBar(
            "States of a rank in fp32",
            memory_parts(
                parameters="less_parameter_bytes",
                gradients="less_gradient_bytes",
                optimizer="less_optimizer_bytes",
                temporaries="less_kept_bytes",
            ),
            total="less_rank_bytes",
            capacity="gpu_memory_bytes",
        ),
    ),
    sentence=(
        Say("A step takes {less_step_seconds:short duration}"),
        Say(". Nothing is left out.", when=_WHOLE),
        Say(", instead of {whole_step_seconds:short duration} in fp32. ", unless=_WHOLE),
        Say(
            "Sending less pays below {break_even_bytes_per_second:bandwidth}.",
            unless=(*_WHOLE, ("break_even_bytes_per_second", 0), _ANY_LINK),
        ),
        Say("Here it pays on any link.", when=(_ANY_LINK,)),
        Say(
            "Here it never pays.",
            when=(("break_even_bytes_per_second", 0),),
            unless=_WHOLE,
        ),
    ),
    detail=(
        Say(
            "A rank sends {less_sent_bytes:decimal bytes} a step, and"
            " {data_parallel_sent_bytes:decimal bytes} in fp32. Computing takes"
            " {less_compute_seconds:short duration}, encoding and decoding"
            " {compressor_seconds:short duration}, messages"
            " {less_message_seconds:short duration}. It keeps {less_kept_bytes} more, and ZeRO's"
            " largest stage beside it is {zero_stage_left:exact}. Assumed: {utilisation} of the"
            " arithmetic, the core's operators one by one; 1-bit Adam's bytes are the mean of a run"
            " with {warm_up_share} warm-up. Chosen: {sync_every:exact} step{sync_every:s} between"
            " averages, rank {power_rank:exact}, one element in {kept_one_in:exact}."
        ),
    ),
    table=ExplorerTable(
        "GPT-2 124M on 8 H100s, 1.5 GB/s between them",
        "compressor",
        (
            ("sent in a step, MB", "less_sent_bytes", "MB"),
            ("step", "less_step_seconds", "short duration"),
            ("pays below", "break_even_bytes_per_second", "bandwidth"),
            ("kept more, GB", "less_kept_bytes", "GB"),
            ("stage of ZeRO left", "zero_stage_left", "exact"),
        ),
    ),
    adds=(
        ("less_step_seconds", "a step"),
        ("less_compute_seconds", "computing"),
        ("compressor_seconds", "encoding and decoding"),
        ("less_waiting_seconds", "waiting for messages"),
    ),
    why=(
        "less_sent_bytes",
        "compressor_seconds",
        "less_message_seconds",
        "less_hidden_seconds",
        "less_step_seconds",
        "whole_step_seconds",
        "break_even_bytes_per_second",
        "less_kept_bytes",
        "less_rank_bytes",
    ),
    outputs=(
        "less_step_seconds",
        "break_even_bytes_per_second",
        "less_kept_bytes",
        "less_sent_bytes",
    ),
)
