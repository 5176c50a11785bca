"""Wrong numbers that readers of lab 7 lock, and what they come from."""

from coursekit.exercises.slips import Slip, Slips

A_QUARTER = "Four ranks cut nothing into more than four parts: at least a quarter is left."
A_BLOCK = "That is a block alone. What the last norm and the head read stays whole, too."
OF_16 = "Of a block's 16 tensors four stay whole, and a quarter of twelve is three: 7 of 16."
FOUR_A_BLOCK = (
    "Each of three blocks has two in forward and two in backward; embedding and head have one each,"
    " and the loss has two."
)
WITHOUT = "That is without sequence parallelism, which divides the whole tensors, too."
SAVED = "That is what is saved, not what is kept."
A_SHARE = "A share, where percent are asked for."
AN_ENTER = "Enter sums in backward alone, and Leave in forward alone."

Y_ALONE = "y alone travels: 16 x 32 numbers of 8 bytes, of which a rank sends 1.5 times as many."

PREDICTIONS = {
    "MLP, forward, bytes sent": Slips(
        (
            Slip("That is y itself: around a ring a rank sends 1.5 times as much.", number=4_096),
            Slip(
                "The inner numbers stay where they are, and one rank's bytes are asked for.",
                number=24_576,
            ),
            Slip(
                "One all-reduce, of y: x and the inner numbers stay, no rank gets a message of its"
                " own, and backward is not asked for.",
                number=12_288,
            ),
            Slip(
                "These numbers are float64, of 8 bytes, and a ring goes round twice: to sum, and to"
                " hand out.",
                number=3_072,
            ),
            Slip("Weights and inner numbers do not travel: y does.", number=16_384),
            Slip("Twice y. A ring's two rounds send 3/4 of y each.", number=8_192),
            Slip("y in 4 bytes, or a rank's weights: y has 8 bytes a number.", number=2_048),
            Slip("That is one quarter of y: each of six messages has one.", number=1_024),
            Slip("Elements of y: each has 8 bytes, and a ring sends 1.5 times y.", number=512),
            Slip("A rank has one term of y only: the terms are added up.", number=0),
            Slip("Weights do not travel: y does.", number=49_152),
            Slip("Neither weights nor inner numbers travel: y does.", number=30_000, upto=1e12),
            Slip(Y_ALONE, number=1, upto=5_900),
            Slip(Y_ALONE, number=6_400, upto=29_999),
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
            Slip(
                "Forward has six in blocks, embedding's and the loss's two, and backward seven.",
                number=8,
            ),
            Slip("That is forward alone: in backward, what enters is summed.", number=9),
            Slip("That is backward alone: in forward, what leaves is summed.", number=7),
            Slip("That is enter and leave, once each: there are two pairs in a block.", number=10),
            Slip("Embedding sums in forward alone, and the head in backward alone.", number=17),
            Slip("Forward's nine twice: the loss's two have no mirror image.", number=18),
            Slip("Gradients of parameters are not summed: each rank has its part's.", number=40),
            Slip(FOUR_A_BLOCK, number=0, upto=11),
            Slip("Four blocks: this GPT has three.", number=20),
            Slip(AN_ENTER, number=19, upto=31),
            Slip(
                "A block has four, and a sum is one call on each rank, not on all of them.",
                number=32,
                upto=1e6,
            ),
        ),
        within=0,
    ),
    "tensor parallel, percent kept": Slips(
        (
            Slip("Four of 16 tensors of a block stay whole: only twelve are cut.", number=25),
            Slip("Those are twelve, cut by four: four more are whole.", number=18.75),
            Slip(A_BLOCK, number=43.75),
            Slip("Those are the whole ones and half of the others.", number=62.5),
            Slip(SAVED, number=56.25),
            Slip(A_SHARE, number=0.1, upto=0.99),
            Slip("That is what is cut: a quarter of it is left on each rank.", number=75),
            Slip("Twelve of a block's 16 tensors are cut.", number=100),
            Slip(A_QUARTER, number=0, upto=24),
            Slip(OF_16, number=26, upto=42),
            Slip(OF_16, number=48, upto=1e6),
        ),
        general=False,
    ),
    "and sequence parallel, percent kept": Slips(
        (
            Slip(
                "So it is where backward gathers again: here what was gathered is kept.", number=25
            ),
            Slip(WITHOUT, number=43, upto=47),
            Slip("That is a block alone. What the head gathers is kept, too.", number=34),
            Slip(SAVED, number=65),
            Slip(SAVED, number=75),
            Slip(A_SHARE, number=0.1, upto=0.99),
            Slip("What was gathered is kept instead of the own part, not beside it.", number=37.5),
            Slip(A_QUARTER, number=0, upto=24),
            Slip(
                "Two of a block's 16 tensors, which were gathered, are kept whole: the others are"
                " cut by four.",
                number=26,
                upto=33,
            ),
            Slip(
                "All are cut by four but two of a block's 16 tensors, which were gathered.",
                number=39,
                upto=1e6,
            ),
        ),
        general=False,
    ),
    "gathered again in backward, percent kept": Slips(
        (
            Slip(
                "What was gathered is not kept any more: that was the price before.",
                number=33,
                upto=38,
            ),
            Slip(WITHOUT, number=43, upto=47),
            Slip(SAVED, number=75),
            Slip(A_SHARE, number=0.1, upto=0.99),
            Slip(A_QUARTER, number=0, upto=24),
            Slip(
                "All of a block's 16 tensors are cut by four: what is gathered again is not kept.",
                number=27,
                upto=1e6,
            ),
        ),
        general=False,
    ),
    "worst change of the loss, percent": Slips(
        (
            Slip(A_SHARE, times=1 / 100),
            Slip("Up or down: its size is asked for.", number=-1e6, upto=-0.3),
            Slip("A loss hides such a fault: it is a part of a percent here.", number=1, upto=1e6),
            Slip(
                "Gradients are wrong from the first step on: more than rounding.",
                number=0,
                upto=0.1,
            ),
        ),
        within=0.2,
        general=False,
    ),
}
