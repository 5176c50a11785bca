"""The explorer of chapter 5: how long a data-parallel step takes, by the size of its buckets and by
the number of its ranks."""

from coursekit.show.pictures import CurveAxis, Curves, Line, StreamsPicture
from coursekit.show.spec import Choice, Control, ControlGroup, Explorer, ExplorerTable, Menu, Say
from coursekit.show.stops import GIB, KIB, MIB, powers_of_two, spread, steps_of_ten
from coursekit.topics.data_parallelism.timeline import COLOURS, STEP

MILLISECONDS = tuple(
    float(f"{digit}e{power}") for power in range(-3, 1) for digit in (1, 1.5, 2, 3, 4, 6, 8)
)
LATENCIES = tuple(float(f"{digit}e{power}") for power in range(-6, -2) for digit in (1, 2, 5))

STEP_TIME = Explorer(
    name="step-time",
    title="How long is a step, and how much of it is waiting?",
    menus=(Menu("model", "Model", without=("experts",)), Menu("link", "Link")),
    controls=(
        Choice("strong_scaling", "of one GPU's batch, a rank has", ((0, "all"), (1, "a share"))),
        Control("bucket_bytes", "bucket", powers_of_two(64 * KIB, 4 * GIB), "bytes"),
        Control("data_parallel", "ranks", powers_of_two(2, 4096)),
        Control("latency_seconds", "latency of the link", LATENCIES, "short duration"),
        Control("link_bytes_per_second", "bandwidth of the link", steps_of_ten(7, 12), "bandwidth"),
        Control("forward_seconds", "forward", MILLISECONDS, "short duration"),
        Control("backward_seconds", "backward", MILLISECONDS, "short duration"),
    ),
    groups=(
        ControlGroup("Ranks and buckets", ("strong_scaling", "data_parallel", "bucket_bytes")),
        ControlGroup("One GPU", ("forward_seconds", "backward_seconds"), folded=True),
        ControlGroup("Link", ("latency_seconds", "link_bytes_per_second"), folded=True),
    ),
    begin=dict(
        model="GPT-2 124M",
        link="network, 100 Gbit/s",
        gradient_element_bytes=4,
        strong_scaling=0,
        bucket_bytes=25 * MIB,
        data_parallel=8,
        forward_seconds=0.08,
        backward_seconds=0.16,
        update_seconds=0.01,
        sequence=1024,
    ),
    pictures=(
        StreamsPicture("A step: what computes, what travels", STEP, COLOURS),
        Curves(
            title="Time of a step, by the size of its buckets",
            sweep="bucket_bytes",
            stops=spread(64 * KIB, 4 * GIB, 45),
            x=CurveAxis(
                "bucket, logarithmic", "bytes", ticks=(64 * KIB, MIB, 16 * MIB, 256 * MIB, 4 * GIB)
            ),
            y=CurveAxis("time, logarithmic", "short duration"),
            lines=(
                Line("data_parallel_step_seconds", "overlap"),
                Line("step_without_overlap_seconds", "no overlap"),
                Line("compute_seconds", "one rank alone"),
            ),
            point="data_parallel_step_seconds",
            words="{data_parallel_step_seconds:short duration}",
        ),
        Curves(
            title="Scaling efficiency, by the number of ranks",
            sweep="data_parallel",
            stops=powers_of_two(1, 4096),
            x=CurveAxis("ranks, logarithmic", "exact", ticks=(1, 8, 64, 512, 4096)),
            y=CurveAxis("share of the step spent computing", "percent", log=False),
            lines=(
                Line("scaling_efficiency", "overlap"),
                Line("efficiency_without_overlap", "no overlap"),
            ),
            point="scaling_efficiency",
            words="{scaling_efficiency}",
        ),
    ),
    sentence=(
        Say(
            "A step takes {data_parallel_step_seconds:short duration}: {compute_seconds:short"
            " duration} of computing and {exposed_seconds:short duration} of waiting, so ranks"
            " compute for {scaling_efficiency} of the step. "
        ),
        Say(
            "Of {all_buckets_seconds:short duration} of communication, backward hides"
            " {hidden_seconds:short duration}."
        ),
    ),
    detail=(
        Say(
            "{gradient_bytes} of gradients in {gradient_buckets:exact} bucket{gradient_buckets:s}:"
            " {equal_buckets:exact} of {equal_bucket_bytes:decimal bytes} from the layers,"
            " {equal_bucket_seconds:short duration} each, and {last_bytes} that are ready only when"
            " backward ends, {last_buckets_seconds:short duration}: the token table and the"
            " tensors beside it. "
        ),
        Say(
            "The head has a weight of its own: its {head_bucket_bytes} leave first. ",
            when=(("tied_head", 0),),
        ),
        Say(
            "Without overlap a step takes {step_without_overlap_seconds:short duration}. Forward"
            " and backward are yours to set: they do not follow the model, nor do they slow down"
            " while a message travels. The update takes {update_seconds:short duration} on every"
            " rank."
        ),
    ),
    table=ExplorerTable(
        "GPT-2 124M in fp32 on 8 ranks, buckets of 25 MiB, 250 ms of computing, by link",
        "link",
        (
            ("communication", "all_buckets_seconds", "short duration"),
            ("not hidden", "exposed_seconds", "short duration"),
            ("step", "data_parallel_step_seconds", "short duration"),
            ("step without overlap", "step_without_overlap_seconds", "short duration"),
            ("share spent computing", "scaling_efficiency", "percent"),
        ),
    ),
    adds=(
        ("data_parallel_step_seconds", "a step"),
        ("compute_seconds", "computing"),
        ("exposed_seconds", "waiting"),
    ),
    outputs=(
        "data_parallel_step_seconds",
        "scaling_efficiency",
        "exposed_seconds",
        "hidden_seconds",
    ),
)
