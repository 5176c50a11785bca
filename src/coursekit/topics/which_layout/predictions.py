"""Wrong numbers that readers of lab 20 lock, and what they come from."""

from coursekit.exercises.elsewhere import COMPUTED, Elsewhere
from coursekit.exercises.slips import Slip, Slips

PREDICTIONS = {
    "175B, core of attention again, seconds": Slips(
        (
            Slip(
                "The products alone, at their rate: messages of eight tensor-parallel ranks, memory"
                " and the bubble take a third as much again.",
                number=9.9,
            ),
            Slip("That is the step with each layer computed again.", number=18.1),
        ),
        within=0.1,
    ),
    "175B, each layer again, seconds": Slips(
        (Slip("That is the step with only the core of attention computed again.", number=13.75),),
        within=0.03,
    ),
    "tensor-parallel ranks of the fastest": Slips(
        (
            Slip(
                "Eight need few bytes, but each node then has one rank of every ring, and a gather"
                " no longer hides behind a microbatch half as long.",
                number=8,
            ),
            Slip("Two fit only if layers are computed again, which takes longer.", number=2),
            Slip("One fits only if layers are computed again, which takes longer.", number=1),
        ),
        within=0,
        general=False,
    ),
    "t = 4 in nodes of four, tokens/s": Slips(
        (
            Slip("That is in nodes of eight: a ring has lost one of its two cards.", number=999),
            Slip(
                "Half of it: but only what no longer hides is exposed, not the whole step twice.",
                number=500,
            ),
        ),
        within=0.1,
    ),
    "fullest of eight ranks, bytes": Slips(
        (
            Slip(
                "That is the last stage's rank: its head keeps less than the first's"
                " microbatches in flight.",
                number=1_669_920,
            ),
            Slip(
                "Model states alone: what the microbatches in flight keep is more.", number=751_880
            ),
            Slip("Parameters alone.", number=250_624),
        ),
    ),
}

ELSEWHERE = {
    "175B, core of attention again, seconds": Elsewhere(said=COMPUTED),
    "175B, each layer again, seconds": Elsewhere(said=COMPUTED),
    "t = 4 in nodes of four, tokens/s": Elsewhere(said=COMPUTED),
    "t = 4 over 100 Gbit/s, tokens/s": Elsewhere(said=COMPUTED),
}
