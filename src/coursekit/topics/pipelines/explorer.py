"""The explorer of chapter 8: a schedule drawn live, how long ranks are idle, what each holds."""

from coursekit.show.links import Divides
from coursekit.show.spec import Choice, Control, ControlGroup, Explorer, ExplorerTable, Menu, Say

from .schedule_picture import SchedulePicture

SECONDS = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04)

SCHEDULE = Explorer(
    name="schedule",
    title="Who waits, for how long, and what does each rank hold?",
    menus=(Menu("schedule", "Schedule"), Menu("stage_seconds", "F : I : W")),
    controls=(
        Choice("pipeline_parallel", "ranks p", tuple((p, str(p)) for p in (2, 4, 8))),
        Choice("microbatches", "microbatches m", tuple((m, str(m)) for m in (4, 8, 16, 32))),
        Control("transfer_seconds", "a message takes", (0, 0.001, *SECONDS[:5]), "short duration"),
        Control(
            "last_rank_share", "last rank (others 100%)", (1, 1.1, 1.2, 1.3, 1.5, 2, 3), "percent"
        ),
        Control("microbatch_forward_seconds", "forward", SECONDS, "short duration"),
        Control("input_gradient_seconds", "gradient of the input", SECONDS, "short duration"),
        Control("weight_gradient_seconds", "gradients of the weights", SECONDS, "short duration"),
    ),
    groups=(
        ControlGroup("The line", ("pipeline_parallel", "microbatches")),
        ControlGroup("What slows it down", ("transfer_seconds", "last_rank_share")),
        ControlGroup(
            "One rank, one microbatch",
            ("microbatch_forward_seconds", "input_gradient_seconds", "weight_gradient_seconds"),
            folded=True,
        ),
    ),
    links=(
        Divides(
            "pipeline_parallel", "microbatches", among=(2, 4, 8), when=(("pipeline_schedule", 4),)
        ),
    ),
    begin=dict(
        schedule="1F1B",
        stage_seconds="1 : 1 : 1, products with weights",
        pipeline_parallel=4,
        microbatches=8,
        pipeline_rank=0,
        transfer_seconds=0,
        last_rank_share=1,
    ),
    pictures=(
        SchedulePicture(
            "A step: ranks are rows, numbers are microbatches",
            schedule="pipeline_schedule",
            ranks="pipeline_parallel",
            microbatches="microbatches",
            stages_per_rank="stages_per_rank",
            forward="microbatch_forward_seconds",
            input="input_gradient_seconds",
            weight="weight_gradient_seconds",
            transfer="transfer_seconds",
            last="last_rank_share",
            ideal="pipeline_ideal_seconds",
            idle="pipeline_idle_seconds",
        ),
    ),
    sentence=(
        Say(
            "A step of {microbatches:exact} microbatches on {pipeline_parallel:exact} ranks takes"
            " {simulated_seconds}, in which a rank is idle for {simulated_idle_seconds}:"
            " {simulated_share_of_total} of the step, {simulated_share_of_ideal} of the ideal. "
        ),
        Say(
            "The first rank holds {first_in_flight} microbatches of a stage at its peak, the last"
            " rank {last_in_flight}."
        ),
    ),
    detail=(
        Say("The formula gives the same numbers. ", when=(("as_by_formula", 1),)),
        Say(
            "The formula gives {pipeline_idle_seconds:short duration} of idle time: it knows no"
            " messages and no slow rank, and holds for zero bubble only with enough microbatches"
            " and where the gradients of weights take no longer than the rest. ",
            when=(("as_by_formula", 0),),
        ),
        Say(
            "Between its own first and last action a rank is idle for"
            " {simulated_own_idle_seconds}. No schedule is faster than"
            " {pipeline_least_seconds:short duration}, the work of the last rank. At its peak"
            " the first rank holds {first_held_models} × the activations of all layers for one"
            " microbatch"
        ),
        Say(", in pieces of 1/v of a rank's layers. ", when=(("pipeline_schedule", 4),)),
        Say(". ", unless=(("pipeline_schedule", 4),)),
        Say(
            "A bar on top of a box marks stages after a rank's first; microbatches pass in groups"
            " of {pipeline_parallel:exact}, so their number is a multiple of it. ",
            when=(("pipeline_schedule", 4),),
        ),
        Say("Idle times are means over the ranks."),
    ),
    table=ExplorerTable(
        "4 ranks, 8 microbatches; forward and both halves of backward take 10 ms each, messages no"
        " time; with v stages on a rank, a microbatch in flight has 1/v of the rank's layers",
        "schedule",
        (
            ("idle", "pipeline_idle_seconds", "short duration"),
            ("of the step", "bubble_share_of_total", "percent"),
            ("of the ideal", "bubble_share_of_ideal", "percent"),
            ("in flight on the first rank", "pipeline_in_flight", "exact"),
            ("on the last", "pipeline_in_flight", "exact", (("pipeline_rank", 3),)),
        ),
    ),
    adds=(("pipeline_idle_seconds", "a rank waits"),),
    outputs=(
        "pipeline_idle_seconds",
        "bubble_share_of_total",
        "bubble_share_of_ideal",
        "pipeline_in_flight",
        "pipeline_least_seconds",
    ),
)
