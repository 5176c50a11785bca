"""Wrong numbers that readers of lab 8 lock, and what they come from: four ranks, eight
microbatches; a forward takes 20 ms, a backward 40."""

from coursekit.exercises.elsewhere import Elsewhere
from coursekit.exercises.slips import Slip, Slips

ASLEEP = "near it: the stages sleep, and messages take a few percent"


def _each(sentence: str, *numbers: float) -> tuple[Slip, ...]:
    """One cause of several numbers."""
    return tuple(Slip(sentence, number=number) for number in numbers)


_OF_THE_GAP = (
    Slip("That is the gap over the work, (p - 1) / m: a step has both in it.", number=37.5),
    Slip("One rank of four at a time: that is a step without microbatches.", number=75),
    *_each("The last rank begins p - 1 forwards late, not p.", 50, 36.4, 100 / 3),
    *_each(
        "A step has m + p - 1 = 11 slots, and a rank waits in p - 1 = 3 of them.",
        *(3 / 7 * 100, 30, 20, 25, 12.5),
    ),
    Slip(
        "A rank waits p - 1 slots in all, not p - 1 at the beginning and again at the end.",
        number=600 / 11,
    ),
    *_each("Three forwards are lost, and three backwards of two units: 9 units of 33.", 9.1, 18.2),
    Slip(
        "Half of it: a rank waits at the beginning of a step, at its end, or at both.", number=13.6
    ),
)

PREDICTIONS = {
    "GPipe, idle percent": Slips(_OF_THE_GAP),
    "1F1B, idle percent": Slips(
        (
            *_OF_THE_GAP[:5],
            *_each(
                "The gaps move and are as long as in GPipe: 1F1B buys memory, and no time.",
                *(0, 2, 3, 4, 5, 6, 7, 8, 9.1, 10, 11, 12, 12.5, 13.6, 14, 15, 16, 17, 18.2, 19),
                *(20, 21, 22, 23, 24, 25),
            ),
        )
    ),
    "1F1B asleep, milliseconds": Slips(
        (
            Slip("That is one rank's work: it waits for others besides.", number=480),
            Slip("One action after the other: four ranks work at a time.", number=1920),
            Slip("One microbatch, down and back: there are eight.", number=240),
            Slip("Forwards alone: a backward takes 40 ms.", number=220),
            Slip("Backwards alone: a forward takes 20 ms.", number=440),
            Slip("Eight forwards alone: a backward takes 40 ms, and a rank waits.", number=160),
            Slip("Eight backwards alone: a forward takes 20 ms, and a rank waits.", number=320),
            Slip("One microbatch on one rank: there are eight, and four ranks.", number=60),
            Slip("Units of a forward, which takes 20 ms.", number=33),
        )
    ),
    "interleaved on H100s, idle percent": Slips(
        (
            *_each("As in 1F1B: but a rank waits for short stages, half as long.", 27, 30),
            Slip("That is by the lists: as in 1F1B, stages are not all as long.", number=15.8),
            *_each("Half of the share: but the step gets shorter, too, by that half.", 13.6, 15),
            Slip("Each gap is half as long, not a quarter.", number=7.5),
            Slip("Longer gaps? A microbatch reaches the last rank earlier.", number=31, upto=60),
            Slip("No gap at all? The last rank still waits for three short forwards.", number=0),
        ),
    ),
    "H1 asleep, milliseconds": Slips(
        (
            Slip("As long as 1F1B: W fills gaps, so the step is shorter.", number=660),
            Slip("That is one rank's work: the last rank still begins 60 ms late.", number=480),
            Slip("Units of a forward, which takes 20 ms.", number=27),
            Slip("F and I alone, without W, which takes 20 ms as well.", number=440),
            Slip("Eight of I and W alone: a forward takes 20 ms, too.", number=320),
            Slip("Forwards alone: I and W take 20 ms each.", number=220),
            Slip("Half of 1F1B: but a rank has the same work, 480 ms.", number=330),
            *_each("Longer than 1F1B: W fills gaps, so the step is shorter.", 720, 750, 780, 800),
        ),
        within=0.1,
    ),
    "H1, held by the last rank": Slips(
        (
            Slip("As in 1F1B: but what W needs is kept until W, which is put off.", number=1),
            Slip("W is put off by three pairs on the last rank, not by one.", number=2),
            Slip("Three wait for their W, and one more is in hand.", number=3),
            Slip("As in GPipe: W is put off by three pairs, not to the end.", number=8),
            *_each("No rank holds more than p: that is what H1 promises.", 5, 6, 7),
            *_each(
                "A step has eight microbatches, and a rank holds each of them once.", 9, 10, 12, 16
            ),
        )
    ),
    "divided twice, SGD, percent": Slips(
        (
            Slip("A step of SGD is as long as the gradient: an eighth is too short.", number=0),
            *_each("The steps are eight times too short, and the loss still falls.", 700, 800),
            Slip("Seven eighths of each step are lost, not of the loss.", number=87.5),
            *_each(
                "Lower? The steps are eight times too short: it has learned less.", -5, -10, -20
            ),
            *_each(
                "Most of the loss is still there in both runs, so the ratio is small.",
                *(100, 150, 200, 300, 400),
            ),
        ),
        within=6,
        general=False,
    ),
    "divided twice, AdamW, percent": Slips(
        (
            Slip(
                "As with SGD: but AdamW divides each gradient by its size, so a factor cancels.",
                of="divided twice, SGD, percent",
            ),
            *_each(
                "AdamW divides each gradient by its own size, so that a factor cancels.",
                *(2, 3, 5, 8, 10, 12.5, 20, 25, 30, 40, 50, 87.5, 100, 700, 800),
            ),
        ),
        general=False,
    ),
}

ELSEWHERE = {
    "1F1B asleep, milliseconds": Elsewhere(said=ASLEEP),
    "H1 asleep, milliseconds": Elsewhere(said=ASLEEP),
}
