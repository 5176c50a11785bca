"""Wrong numbers that readers of lab 7 lock, and what they come from."""

from coursekit.exercises.slips import Slip, Slips

PREDICTIONS = {
    "MLP, forward, bytes sent": Slips(
        (
            Slip("That is y itself: around a ring a rank sends 1.5 times as much.", number=4_096),
            Slip("The inner numbers do not travel: only y does.", number=24_576),
            Slip("x is on every rank already: only y travels.", number=12_288),
            Slip("These numbers are float64, of 8 bytes each.", times=1 / 2),
            Slip("Weights do not travel: they stay where they are.", number=65_536),
            Slip("That is one quarter of y: each of six messages has one.", number=1_024),
        ),
        ranks=4,
    ),
    "all-reduces in a step": Slips(
        (
            Slip("The loss has two messages.", number=14),
            Slip("Embedding, head or one message of the loss is forgotten.", number=15),
            Slip("The blocks alone: embedding and head have one each, the loss two.", number=12),
            Slip("The loss's two are forgotten, and embedding's or head's.", number=13),
            Slip("Blocks in forward alone: each sum has a mirror image in backward.", number=6),
            Slip("One block of three: each has four.", number=4),
            Slip("One block of three, with embedding, head and loss.", number=8),
            Slip("That is forward alone: in backward, what enters is summed.", number=9),
            Slip("That is backward alone: in forward, what leaves is summed.", number=7),
            Slip("Enter sums in backward alone, and Leave in forward alone.", number=24),
            Slip("Enter sums in backward alone, and Leave in forward alone.", number=28),
            Slip("That is enter and leave, once each: there are two pairs in a block.", number=10),
        ),
        within=0,
        general=False,
    ),
    "tensor parallel, percent kept": Slips(
        (
            Slip("Four of 16 tensors of a block stay whole: only twelve are cut.", number=25),
            Slip("A quarter is whole, and a quarter of the other three is left.", number=18.75),
            Slip("Those are the whole ones and half of the others.", number=62.5),
            Slip("That is what is cut: a quarter of it is left on each rank.", number=75),
            Slip("Twelve of a block's 16 tensors are cut.", number=100),
        ),
    ),
    "and sequence parallel, percent kept": Slips(
        (
            Slip(
                "So it is where backward gathers again: here what was gathered is kept.", number=25
            ),
            Slip(
                "That is without sequence parallelism, which divides the whole tensors, too.",
                of="tensor parallel, percent kept",
            ),
            Slip("The four tensors that were whole are divided, not gone.", number=19),
        ),
    ),
    "gathered again in backward, percent kept": Slips(
        (
            Slip(
                "What was gathered is not kept any more: that was the price before.",
                of="and sequence parallel, percent kept",
            ),
            Slip(
                "That is without sequence parallelism, which divides the whole tensors, too.",
                of="tensor parallel, percent kept",
            ),
            Slip("A sixteenth: parts are divided once, by four ranks.", number=6.25),
        ),
    ),
    "worst change of the loss, percent": Slips(
        tuple(
            Slip("A loss hides such a fault: it is a part of a percent here.", number=number)
            for number in (2, 3, 5, 8, 10, 15, 20, 25, 30, 50, 100)
        ),
        general=False,
    ),
}
