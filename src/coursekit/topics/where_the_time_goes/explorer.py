"""The explorer of chapter 11: kernels in a row, and a host that waits for them now and then."""

from coursekit.formulas.events import COMPUTE, LINK, Event, Phase, Repeat
from coursekit.show.pictures import StreamsPicture
from coursekit.show.spec import Choice, Control, Explorer, ExplorerTable, Menu, Say

_HOST, _GPU = LINK, COMPUTE  # the rows of the picture
MICROSECONDS = tuple(m * 1e-6 for m in (1, 2, 3, 5, 7, 10, 15, 20, 50))
ONE = (
    Event("launch", _HOST, "launch_seconds"),
    Event("kernel", _GPU, "kernel_seconds", after=("launch",)),
)
KERNELS_AND_WAITS = (
    Phase(
        "step",
        (
            Repeat(
                "waits_of_a_step",
                (
                    Repeat("kernels_per_wait", ONE),
                    Event("read", _HOST, "launch_seconds", when=(("reads_value", 1),)),
                    Event("wait", _HOST, after=("kernel",)),
                ),
            ),
            Repeat("kernels_after_waits", ONE),
        ),
    ),
)

KERNELS_OF_WAITS = Explorer(
    name="waits",
    title="What does a wait cost?",
    menus=(Menu("kernel_row", "Kernels"),),
    controls=(
        Control("queued_kernels", "kernels n", (10, 20, 50, 100, 200, 400)),
        Control("kernels_per_wait", "wait after every k", (1, 2, 5, 10, 20, 50, 100, 200, 400)),
        Control("kernel_seconds", "a kernel runs", MICROSECONDS, "short duration"),
        Control("launch_seconds", "a launch takes", MICROSECONDS, "short duration"),
        Choice("reads_value", "the wait", ((0, "synchronize()"), (1, ".item()"))),
    ),
    begin=dict(
        kernel_row="2 µs, of a small model", queued_kernels=20, kernels_per_wait=5, reads_value=1
    ),
    pictures=(
        StreamsPicture(
            "The GPU runs what the host has launched",
            step=KERNELS_AND_WAITS,
            colours=(
                ("kernel", "kernels", "timeline-forward"),
                ("launch", "launches", "timeline-weight-gradient"),
                ("read", "the read", "timeline-communication"),
            ),
            rows=("GPU", "host"),
            idle="idle",
        ),
    ),
    sentence=(
        Say(
            "{queued_kernels:exact} kernels take {synced_seconds:short duration} with"
            " {waits_of_a_step:exact} waits, and {unsynced_seconds:short duration} without: waits"
            " cost {synced_share:percent} of the step.",
            unless=(("waits_of_a_step", 0), ("waits_of_a_step", 1)),
        ),
        Say(
            "{queued_kernels:exact} kernels take {synced_seconds:short duration} with one wait, and"
            " {unsynced_seconds:short duration} without: it costs {synced_share:percent} of the"
            " step.",
            when=(("waits_of_a_step", 1),),
        ),
        Say(
            "{queued_kernels:exact} kernels take {unsynced_seconds:short duration}. The host never"
            " waits: there are fewer kernels than k.",
            when=(("waits_of_a_step", 0),),
        ),
    ),
    detail=(
        Say(
            "From one wait to the next it takes {wait_period_seconds:short duration}. After a wait"
            " the queue is empty: the GPU idles until the next launch.",
            unless=(("waits_of_a_step", 0),),
        ),
    ),
    table=ExplorerTable(
        "100 kernels, a launch takes 5 µs, each wait reads a value",
        "kernel_row",
        tuple(
            (
                words,
                "synced_seconds",
                "short duration",
                (("queued_kernels", 100), ("kernels_per_wait", k)),
            )
            for words, k in (("wait after each", 1), ("after every 10", 10), ("once", 100))
        ),
    ),
    adds=(("synced_seconds", "the kernels, with waits"),),
    why=(
        "unsynced_seconds",
        "wait_period_seconds",
        "waits_of_a_step",
        "kernels_after_waits",
        "synced_seconds",
        "synced_share",
    ),
    outputs=("synced_seconds", "unsynced_seconds"),
)
