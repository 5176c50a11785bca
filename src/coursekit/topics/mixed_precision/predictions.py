"""Wrong numbers that readers of lab 9 lock, and what they come from."""

from coursekit.exercises.slips import Slip, Slips

PREDICTIONS = {
    "weight after 300 steps": Slips(
        (
            Slip("That is in real numbers: each result is rounded to bf16.", number=0.7),
            Slip(
                "300 steps of 1/256 each: a step is rounded to no step, not to one.", number=-0.17
            ),
            Slip("The step is not zero in bf16, and nothing sends the weight to zero.", number=0),
        ),
        within=0.001,
    ),
    "ten thousand times 0.001": Slips(
        (
            Slip("That is in real numbers: each result is rounded to bf16.", number=10),
            Slip("The sum moves as long as it is small: its spacing grows with it.", number=0),
            Slip(
                "Above 1/4 a step is still more than half a spacing; from 1/2 on it is not.",
                number=0.25,
            ),
            Slip("Just below 1 a spacing is 1/256, and 0.001 is less than half of it.", number=1),
            Slip("The sum stops where half a spacing is larger than 0.001: earlier.", number=8),
        ),
    ),
    "norm weights at 1.0, bf16 alone": Slips(
        (
            Slip(
                "AdamW's step is about the learning rate, 0.001, whatever the gradient: less than"
                " half a spacing, for every weight at 1.0.",
                number=0.5,
            ),
            Slip("A step of 0.001 next to 1.0 rounds back: none of them moves.", number=0),
            Slip("Percent, where a share is asked for.", number=100),
        ),
    ),
    "norm weights at 1.0, your update": Slips(
        (
            Slip(
                "A master moves at once, and its rounding only when it is half a spacing from 1.0:"
                " some are not there yet, or have come back.",
                number=0,
            ),
            Slip("That is without masters: they remember what rounding takes away.", number=1),
            Slip("Percent, where a share is asked for.", number=11),
        ),
        within=0.5,
    ),
    "percent lost, k = 1": Slips(
        (
            Slip("Not undivided: fp16 goes down to 6e-8, and a few are smaller.", number=0),
            Slip("That is k = 2,048: undivided gradients are 2,048 times as large.", number=65),
        ),
    ),
    "percent lost, k = 2,048": Slips(
        (
            Slip("2,048 times as many as for k = 1, or all: sizes are spread widely.", number=100),
            Slip(
                "The hump of the figure moves by 11 powers of two, past the left line.", number=20
            ),
            Slip("That is k = 1: the division moves all of them 11 places.", number=2),
            Slip("The part that is kept.", number=35),
        ),
    ),
    "loss, fp16 unscaled": Slips(
        (
            Slip("That is fp32: two of three gradients become zero here.", number=2.95),
            Slip("It still learns from the gradients that are left.", number=4.2),
        ),
        within=0.05,
    ),
    "loss, fp16 scaled": Slips(
        (
            Slip("That is without a scale, or no training at all.", number=4.2),
            Slip("2^24 is more than the division by 2,048 = 2^11 takes: none is lost.", number=3.8),
        ),
        within=0.02,
    ),
    "steps skipped at the beginning": Slips(
        (
            Slip("From 2^30 to 2^16, fp16's largest number: the gradients are below 1.", number=14),
            Slip("From 2^30 to 2^20. The largest gradients want a scale of 2^17.", number=10),
            Slip("It begins too high, so the first steps overflow.", number=0),
            Slip("Each skip halves the scale once: 30 is down to 1.", number=30),
            Slip("One skip halves it: 2^29 is too high, too.", number=1),
        ),
        within=0,
    ),
    "scale of rank 0, alone": Slips(
        (
            Slip("That is rank 1: rank 0 skips the third step, and halves.", number=4096),
            Slip("It has doubled after two good steps, and halves in the third.", number=2048),
            Slip("It has doubled to 2,048 before it halves.", number=512),
        ),
    ),
    "scale of rank 1, alone": Slips(
        (
            Slip("Rank 1 hears nothing of rank 0's overflow: four good steps.", number=1024),
            Slip("Four good steps: it doubles twice.", number=2048),
            Slip("It doubles after every second good step.", number=16_384),
        ),
    ),
}
