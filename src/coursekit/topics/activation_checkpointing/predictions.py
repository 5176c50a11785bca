"""Wrong numbers that readers of lab 10 lock, and what they come from: 16 blocks, each of which
keeps a little more than 16 vectors, and one of them in a checkpoint."""

from coursekit.exercises.elsewhere import Elsewhere
from coursekit.exercises.slips import Slip, Slips

IN_BYTES = "Bytes, where vectors are asked for: a vector has 131,072 of them."
IN_ELEMENTS = "Elements, where vectors are asked for: a vector has 32,768 of them."
INPUT_OF_EACH = "That is the input of each block: autograd keeps what is inside, too."
ABOUT_16 = (
    "A block keeps about 16: inputs of norms and products, queries, keys and values, and the MLP's"
    " two inner tensors, of four each."
)
PLAIN_STEP = "That is the plain step: a checkpoint keeps its input alone."
ONE_EACH = "Each block is in a checkpoint of its own, which keeps its input and no more."
RUNS_TWICE = (
    "Each block runs once in forward and once more in backward, which is no forward itself."
)
SPARED = "More blocks at work need more than the inputs that they spare: 16 vectors for each one."
ONE_OF_THREE = (
    "That is one forward of three. A clock also sees norms, GELU and Python, which run again."
)
BACKWARD_TOO = "A step has backward, too, which is two forwards long: 1 more of 3."
STANDING = (
    "Parameters and gradients are there whatever is recomputed, so the blocks must spare more than"
    " 30% of their own."
)
FEWER = "A recomputed block spares 15 of its 16 vectors, so fewer are enough."
FOUR_EACH = "Each of four blocks has two in forward and two in backward, and the ends have four."
ONE_AGAIN = "The second run sends one of forward's two in each block: backward needs no more."

PREDICTIONS = {
    "vectors that 16 blocks keep in a plain step": Slips(
        (
            Slip(INPUT_OF_EACH, number=16),
            Slip(INPUT_OF_EACH, number=15, upto=31),
            Slip("The inputs alone, and in bytes: vectors are asked for.", number=16 * 131_072),
            Slip("Input and output of each block: autograd keeps what is inside, too.", number=32),
            Slip("The MLP's two inner tensors, of four vectors each, are forgotten.", number=128),
            Slip("One of the MLP's inner tensors is forgotten: four vectors a block.", number=192),
            Slip(
                "That is nearly 34 a block, the count for 16-bit tensors in bytes and dropout.",
                number=544,
            ),
            Slip(IN_BYTES, times=131_072),
            Slip(IN_ELEMENTS, times=32_768),
            Slip("Each of 16 blocks keeps its input, and about 15 more.", number=0, upto=14),
            Slip(ABOUT_16, number=33, upto=245),
            Slip(
                "A block keeps 16 and a little: no attention scores, and no tensor twice.",
                number=270,
                upto=1e5,
            ),
        ),
        within=0.02,
    ),
    "forwards of blocks in a step": Slips(
        (
            Slip("Those of the first run: backward runs each block a second time.", number=16),
            Slip("One block's: there are 16.", number=2),
            Slip(
                "That is a checkpoint that starts again from the first block each time: each block"
                " has its own input, and runs again alone.",
                number=130,
                upto=160,
            ),
            Slip(
                "The last block runs again, too: its activations are gone like the others'.",
                number=31,
            ),
            Slip("Each of 16 blocks runs, and runs again in backward.", number=0, upto=15),
            Slip("All 16 blocks run a second time, not some of them.", number=17, upto=30),
            Slip(RUNS_TWICE, number=33, upto=1e9),
        ),
        within=0,
        general=False,
    ),
    "vectors that 16 blocks keep": Slips(
        (
            Slip("Only the input is kept: the output is the next block's input.", number=32),
            Slip("One input for each of 16 blocks, not one for all.", number=1),
            Slip(PLAIN_STEP, number=240, upto=300),
            Slip("The inputs are kept: the second runs begin with them.", number=0),
            Slip("The inputs of all blocks, and one block at work: that is the peak.", number=33),
            Slip(
                "Each block runs again, so each input is kept, the first and the last as well.",
                number=15,
            ),
            Slip("The output of the last block is not kept for a block.", number=17),
            Slip(IN_BYTES, times=131_072),
            Slip(IN_ELEMENTS, times=32_768),
            Slip(ONE_EACH, number=2, upto=14),
            Slip(ONE_EACH, number=18, upto=1e5),
        ),
        within=0,
        general=False,
    ),
    "blocks in a checkpoint, least peak": Slips(
        (
            Slip(
                "The root of L is right for layers that keep no more than their input: a block"
                " keeps 16 times as much, and four of them are there at a time.",
                number=4,
            ),
            Slip(
                "One checkpoint keeps least. But all its blocks are there at a time when it runs"
                " again.",
                number=16,
            ),
            Slip("Two blocks at work have 32 vectors, and spare 8 inputs.", number=2),
            Slip("Eight blocks at work have 128 vectors, and spare 14 inputs.", number=8),
            Slip("Without a checkpoint all 16 blocks keep what is inside.", number=0),
            Slip(SPARED, number=1.5, upto=15),
            Slip("There are 16 blocks.", number=17, upto=1e9),
        ),
        within=0,
        general=False,
    ),
    "vectors kept by one checkpoint": Slips(
        (
            Slip("Those are the inputs of 16 checkpoints: this is one.", number=16),
            Slip(
                "Inputs of the 16 blocks and an output: inside one checkpoint all are made again.",
                number=17,
            ),
            Slip("The input is kept: the second run begins with it.", number=0),
            Slip("The output belongs to the head, which reads it.", number=2),
            Slip(PLAIN_STEP, number=240, upto=300),
            Slip(IN_BYTES, number=131_072),
            Slip(IN_ELEMENTS, number=32_768),
            Slip("Its input is one whole vector, which no block divides.", number=0.01, upto=0.9),
            Slip("One checkpoint keeps one input, however many blocks it has.", number=3, upto=1e9),
        ),
        within=0,
        general=False,
    ),
    "each block recomputed, percent longer": Slips(
        (
            Slip(ONE_OF_THREE, number=100 / 3),
            Slip("One of four: the step is compared with one of three forwards.", number=25),
            Slip("Backward is two forwards long, so one more is not one of two.", number=50),
            Slip("That is the longer step, in percent of the other: how much more?", number=133),
            Slip("A second run of all blocks takes time, as the first does.", number=0),
            Slip("A factor, where percent are asked for.", number=1.05, upto=1.9),
            Slip(
                "The second run is nearly one forward of three, and norms, GELU and Python run"
                " again, too.",
                number=1,
                upto=30,
            ),
            Slip("A share, where percent are asked for.", number=0.1, upto=0.99),
            Slip(ONE_OF_THREE, number=31, upto=47),
            Slip(BACKWARD_TOO, number=65, upto=1e9),
        ),
        within=3,
    ),
    "blocks recomputed for 70%": Slips(
        (
            Slip(f"30% of 16 blocks. {STANDING}", number=4.5, upto=5.5),
            Slip("70% of 16 blocks: those are the ones to keep.", number=11, upto=12),
            Slip("All of them: fewer are enough.", number=16),
            Slip("With nothing recomputed the step needs 100%.", number=0),
            Slip(STANDING, number=1, upto=6),
            Slip(FEWER, number=8, upto=15),
            Slip("There are 16 blocks: this is no number of percent.", number=17, upto=1e9),
        ),
        within=0,
        general=False,
    ),
    "all-reduces, nothing recomputed": Slips(
        (
            Slip("Backward has two in each block as well.", number=12),
            Slip("Embedding, head and loss have four, too.", number=16),
            Slip("Forward alone, without embedding, head and loss.", number=8),
            Slip("Four blocks share the step, not 16.", number=68),
            Slip("One block's, or one for each: each of four has four.", number=4),
            Slip("Both ranks take part in the same 20: a sum is one call on each.", number=40),
            Slip(
                "The ends' four twice, or with each block in a checkpoint.",
                of="all-reduces, each block",
            ),
            Slip(FOUR_EACH, number=0, upto=19),
            Slip(FOUR_EACH, number=21, upto=1e9),
        ),
        within=0,
        general=False,
    ),
    "all-reduces, each block": Slips(
        (
            Slip(
                "All of forward's again. But the second run ends at the last tensor that backward"
                " needs, and no one needs the sum at a block's end.",
                number=28,
            ),
            Slip("The second run sends, too: one all-reduce for each block.", number=20),
            Slip("Forward and backward both again: the second run is a forward.", number=36),
            Slip("All twice, or both ranks: the second run is a part of forward.", number=40),
            Slip(
                "All of forward again, or the blocks twice without the ends: four are sent again.",
                number=32,
            ),
            Slip(
                "Both ranks take part in the same: a sum is one call on each.", number=47, upto=57
            ),
            Slip("The first run and backward send 20, and the second run more.", number=0, upto=19),
            Slip(ONE_AGAIN, number=21, upto=23),
            Slip(ONE_AGAIN, number=25, upto=1e9),
        ),
        within=0,
        general=False,
    ),
    "forgetful, percent higher": Slips(
        (
            Slip(
                "The second run draws other masks: the gradient is wrong from the first step on,"
                " though the model still learns.",
                number=0,
                upto=11,
            ),
            Slip(
                "It trains: the gradient still points roughly the right way.", number=17, upto=1e9
            ),
        )
    ),
}

ELSEWHERE = {
    "each block recomputed, percent longer": Elsewhere(
        row="recompute.overhead",
        case={"implementation": "by hooks"},
        number=lambda ratio: 100 * (ratio - 1),
    ),
}
