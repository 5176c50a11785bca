"""Wrong numbers that readers of lab 11 lock, and what they come from: a hundred kernels of 2 or 20
µs, launched in 5 each, and a step with four waits."""

from coursekit.exercises.slips import Slip, Slips

SHORT_EACH, SHORT_ONCE = "2 µs, a wait after each, µs", "2 µs, one wait, µs"
LONG_EACH, LONG_ONCE = "20 µs, a wait after each, µs", "20 µs, one wait, µs"
KERNELS_ALONE = "That is the kernels alone: each of them has to be launched first."
ONE_WAIT = "That is with one wait: here the next launch begins only when a kernel has ended."
EACH_WAIT = "That is with a wait after each: without it the host launches while the GPU runs."

PREDICTIONS = {
    SHORT_EACH: Slips(
        (
            Slip(KERNELS_ALONE, number=200),
            Slip("That is the launches: after each one the host waits for its kernel.", number=500),
            Slip(ONE_WAIT, number=502),
            Slip(
                "Two launches for each kernel: synchronize() waits, and launches nothing.",
                number=1_000,
            ),
        ),
        general=False,
    ),
    SHORT_ONCE: Slips(
        (
            Slip(KERNELS_ALONE, number=200),
            Slip("The first launch and then the kernels: they wait for launches, too.", number=205),
            Slip(EACH_WAIT, number=700),
        ),
        general=False,
    ),
    LONG_EACH: Slips(
        (
            Slip(
                "That is the kernels: after each wait the next one is launched first.", number=2_000
            ),
            Slip(ONE_WAIT, number=2_005),
            Slip(
                "That is the launches alone, and the host waits for 20 µs after each.", number=500
            ),
        ),
        general=False,
    ),
    LONG_ONCE: Slips(
        (
            Slip("That is the launches alone: the GPU is the slower one here.", number=500),
            Slip(
                "That is the launches and one kernel: the GPU is the slower one here.", number=520
            ),
            Slip(EACH_WAIT, number=2_500),
        ),
        general=False,
    ),
    "waits of the step": Slips(
        (
            Slip("A line that formats two tensors reads two values.", number=3),
            Slip(
                "An `if`, a mask and a text read as well: no line has to say .item().",
                number=0,
                upto=2,
            ),
            Slip(
                "AdamW's counters are on the host, so its reads wait for nothing.",
                number=5,
                upto=100,
            ),
        ),
        within=0,
        general=False,
    ),
}
