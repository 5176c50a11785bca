"""Wrong numbers that readers of lab 21 lock, and what they come from. The small GPT has 5,834,496
bytes of parameters."""

from coursekit.exercises.slips import Slip, Slips

PREDICTIONS = {
    "accumulation, bytes at the peak": Slips(
        (
            Slip("A quarter of all: parameters and optimizer states stay.", number=26_580_822),
            Slip("The whole step's: activations shrink with the microbatch.", number=106_323_288),
        ),
        within=0.02,
    ),
    "fused update, bytes freed": Slips(
        (
            Slip(
                "The roots that foreach makes, 4 bytes a parameter: but then the loss is the"
                " fullest place, and the peak falls no further.",
                number=5_500_000,
                upto=6_200_000,
            ),
            Slip("It frees something: the peak is in the update.", number=0),
        ),
        within=0.05,
    ),
    "sharding, bytes at the peak": Slips(
        (
            Slip("A quarter of all: activations are each rank's own.", number=6_719_126),
            Slip("States are in shards: each rank keeps a quarter.", number=26_876_504),
        ),
        ranks=4,
        within=0.03,
    ),
}
