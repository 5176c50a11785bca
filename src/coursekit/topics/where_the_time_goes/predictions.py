"""Wrong numbers that readers of lab 11 lock, and what they come from."""

from coursekit.exercises.slips import Slip, Slips

_KERNELS = "The kernels alone: each has to be launched first."
_ONE = "Each of the hundred waits costs a launch or a kernel, not only the last one."

PREDICTIONS = {
    "2 µs, a wait after each, µs": Slips(
        (
            Slip(_KERNELS, number=200),
            Slip(
                "The launches alone: after each wait the kernel runs, and nothing else.", number=500
            ),
            Slip(_ONE, number=502),
        ),
        within=0.005,
        unit="",
    ),
    "2 µs, one wait, µs": Slips(
        (
            Slip(_KERNELS, number=200),
            Slip("The host launches the next kernel while this one runs.", number=700),
        ),
        within=0.005,
        unit="",
    ),
    "20 µs, a wait after each, µs": Slips(
        (
            Slip("The launches alone: the GPU takes longer.", number=500),
            Slip(_ONE, number=2005),
        ),
        within=0.005,
        unit="",
    ),
    "20 µs, one wait, µs": Slips(
        (
            Slip("The launches alone: the GPU takes longer.", number=500),
            Slip("The host launches the next kernel while this one runs.", number=2500),
        ),
        within=0.001,
        unit="",
    ),
    "waits of the step": Slips(
        (
            Slip("A norm and a loss in one line are two reads.", number=3),
            Slip("Backward and the update need no value: neither waits.", number=6),
            Slip("The counters that AdamW reads are on the host.", number=5),
        ),
        within=0,
        general=False,
    ),
}
