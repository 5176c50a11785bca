"""Wrong numbers that readers of lab 9 lock, and what they come from."""

from coursekit.exercises.slips import Slip, Slips

REAL = "That is in real numbers: each result is rounded to bf16."
BELOW_1 = "Just below 1 a spacing is 1/256: each step is less than half of it, and is rounded back."
ABOVE_HALF = "From 1/2 on a spacing is 1/256, and 0.001 is less than half of it: the sum stops."
PERCENT = "Percent, where a share is asked for."
A_SHARE = "A share, where percent are asked for."
ONLY_ROUNDED = (
    "A master moves at once, and its rounding only when it is half a spacing from 1.0: some are not"
    " there yet, or have come back."
)
HUMP = "Undivided, most of the hump is above fp16's smallest number, 6e-8: only its tail is lost."
MOVED = "The hump of the figure moves by 11 powers of two, past the left line."
HALVES = "Each skip halves the scale once, until the largest gradient is finite."
TO_1024 = "Two good steps double it to 2,048, the third halves it, and one more is not yet two."
TO_4096 = "Rank 1 has four good steps: each second one doubles its scale."

PREDICTIONS = {
    "weight after 300 steps": Slips(
        (
            Slip(REAL, number=0.69, upto=0.71),
            Slip("What is taken off in real numbers: in bf16 it is nothing.", number=0.3),
            Slip(
                "300 steps of 1/256 each: a step is rounded to no step, not to one.", number=-0.17
            ),
            Slip("The step is not zero in bf16, and nothing sends the weight to zero.", number=0),
            Slip(BELOW_1, number=-1e6, upto=0.9995),
            Slip("Steps that are rounded back add nothing: it is 1 still.", number=1.04, upto=1e6),
        ),
        within=0.0004,
        general=False,
    ),
    "ten thousand times 0.001": Slips(
        (
            Slip(REAL, number=10),
            Slip("The sum moves as long as it is small: its spacing grows with it.", number=0),
            Slip(
                "Above 1/4 a step is still more than half a spacing; from 1/2 on it is not.",
                number=0.25,
            ),
            Slip("Below 1/2 a step is more than half a spacing: it moves.", number=1e-6, upto=0.48),
            Slip("Just below 1 a spacing is 1/256, and 0.001 is less than half of it.", number=1),
            Slip(ABOVE_HALF, number=0.52, upto=1e9),
        ),
        general=False,
    ),
    "norm weights at 1.0, bf16 alone": Slips(
        (
            Slip("A step of 0.001 next to 1.0 rounds back: none of them moves.", number=0),
            Slip(
                "AdamW's step is about the learning rate, 0.001, whatever the gradient: less than"
                " half a spacing, for every weight at 1.0.",
                number=0.001,
                upto=0.96,
            ),
            Slip(PERCENT, number=1.5, upto=100),
            Slip("A share is at most 1.", number=101, upto=1e9),
        ),
        general=False,
    ),
    "norm weights at 1.0, your update": Slips(
        (
            Slip(ONLY_ROUNDED, number=0, upto=0.05),
            Slip(
                "150 steps of about 0.001 take most masters farther from 1.0 than half a spacing.",
                number=0.17,
                upto=0.97,
            ),
            Slip("That is without masters: they remember what rounding takes away.", number=1),
            Slip(PERCENT, number=1.5, upto=100),
            Slip("A share is at most 1.", number=101, upto=1e9),
        ),
        within=0.4,
        general=False,
    ),
    "percent lost, k = 1": Slips(
        (
            Slip("fp16 goes down to 6e-8, and a few gradients are smaller.", number=0, upto=0.9),
            Slip("That is k = 2,048: undivided gradients are 2,048 times as large.", number=65),
            Slip(A_SHARE, times=1 / 100),
            Slip("The part that is kept.", number=97.5, upto=98.5),
            Slip(HUMP, number=4, upto=1e6),
        ),
        general=False,
    ),
    "percent lost, k = 2,048": Slips(
        (
            Slip(A_SHARE, number=0.1, upto=0.99),
            Slip("fp16 rounds before anything multiplies by k again.", number=0),
            Slip("That is k = 1: the division moves all of them 11 places.", number=1, upto=3.9),
            Slip("The part that is kept.", number=35),
            Slip(MOVED, number=4, upto=60),
            Slip(
                "2,048 times as many as for k = 1, or all: sizes are spread widely, and the largest"
                " are far above the line.",
                number=70,
                upto=1e6,
            ),
        ),
        general=False,
    ),
    "loss, fp16 unscaled": Slips(
        (
            Slip("How far fp32 falls, from 4.2: where it ends is asked for.", number=1.25),
            Slip("fp32 ends at 2.95, and no loss in fp16 below it.", number=0, upto=2.79),
            Slip("That is fp32: two of three gradients become zero here.", number=2.8, upto=3.1),
            Slip("Two of three gradients are zero here: it learns less.", number=3.2, upto=3.55),
            Slip("It still learns from the gradients that are left.", number=4.05, upto=4.3),
            Slip(
                "Lost gradients are zeros: it learns little, and nothing grows.",
                number=4.4,
                upto=1e9,
            ),
        ),
        within=0.05,
        general=False,
    ),
    "loss, fp16 scaled": Slips(
        (
            Slip("That is without a scale, or no training at all.", number=4.0, upto=4.3),
            Slip(
                "2^24 is more than the division by 2,048 = 2^11 takes: none is lost.",
                number=3.05,
                upto=3.95,
            ),
            Slip("How far it falls, from 4.2: where it ends is asked for.", number=1.25),
            Slip("As fp32, not better: a scale only keeps what is there.", number=0, upto=2.85),
            Slip("The scale is divided out, and nothing overflows at 2^13.", number=4.4, upto=1e9),
        ),
        within=0.02,
        general=False,
    ),
    "steps skipped at the beginning": Slips(
        (
            Slip("To 2^16 or 2^15, fp16's largest: gradients are below 1.", number=14, upto=16),
            Slip("From 2^30 to 2^20. The largest gradients want a scale of 2^17.", number=10),
            Slip("It begins too high, so the first steps overflow.", number=0),
            Slip("Each skip halves the scale once: 30 is down to 1.", number=30),
            Slip("One skip halves it: 2^29 is too high, too.", number=1),
            Slip("To 2^24, the scale of before: there the loss was divided by 2^11.", number=6),
            Slip("20 good steps double the scale. A bad one halves it at once.", number=20),
            Slip(HALVES, number=2, upto=12),
            Slip(HALVES, number=17, upto=1e12),
        ),
        within=0,
        general=False,
    ),
    "scale of rank 0, alone": Slips(
        (
            Slip("That is rank 1: rank 0 skips the third step, and halves.", number=4096),
            Slip(
                "It has doubled after two good steps, and halves in the third; then one good step"
                " is not yet two.",
                number=2048,
            ),
            Slip("It has doubled to 2,048 before it halves.", number=512),
            Slip(TO_1024, number=-1e9, upto=990),
            Slip(TO_1024, number=1_060, upto=1e12),
        ),
        general=False,
    ),
    "scale of rank 1, alone": Slips(
        (
            Slip("Rank 1 hears nothing of rank 0's overflow: four good steps.", number=1024),
            Slip("Four good steps: it doubles twice.", number=2048),
            Slip("It doubles after every second good step.", number=16_384),
            Slip(TO_4096, number=-1e9, upto=3_950),
            Slip(TO_4096, number=4_250, upto=1e12),
        ),
        general=False,
    ),
}
