"""Wrong numbers that readers of lab 10 lock, and what they come from: 16 blocks, each of which
keeps a little more than 16 vectors, and one of them in a checkpoint."""

from coursekit.exercises.slips import Slip, Slips

PREDICTIONS = {
    "vectors that 16 blocks keep in a plain step": Slips(
        (
            Slip("That is the input of each block: autograd keeps what is inside, too.", number=16),
            Slip("Input and output of each block: autograd keeps what is inside, too.", number=32),
            Slip("That is one block, not 16.", times=1 / 16),
            Slip("The MLP's two inner tensors, of four vectors each, are forgotten.", number=128),
            Slip("One of the MLP's inner tensors is forgotten: four vectors a block.", number=192),
            Slip(
                "That is nearly 34 a block, the count for 16-bit tensors in bytes and dropout.",
                number=544,
            ),
        )
    ),
    "forwards of blocks in a step": Slips(
        (
            Slip("Those of the first run: backward runs each block a second time.", number=16),
            Slip("One block's: there are 16.", number=2),
            Slip("Each block runs twice: once in forward, once in backward.", number=48),
            Slip(
                "That is a checkpoint that starts again from the first block each time: each block"
                " has its own input, and runs again alone.",
                number=16 + 16 * 17 / 2,
            ),
            Slip(
                "The last block runs again, too: its activations are gone like the others'.",
                number=31,
            ),
        ),
        within=0,
    ),
    "vectors that 16 blocks keep": Slips(
        (
            Slip("Only the input is kept: the output is the next block's input.", number=32),
            Slip("One input for each of 16 blocks, not one for all.", number=1),
            Slip("That is the plain step: a checkpoint keeps its input alone.", number=256),
            Slip("The inputs are kept: the second runs begin with them.", number=0),
            Slip("The inputs of all blocks, and one block at work: that is the peak.", number=33),
            Slip("The first block's input counts, too.", number=15),
            Slip("The output of the last block is not kept for a block.", number=17),
        ),
        within=0,
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
        ),
        within=0,
        general=False,
    ),
    "vectors kept by one checkpoint": Slips(
        (
            Slip("Those are the inputs of 16 checkpoints: this is one.", number=16),
            Slip("All that is inside is made again, also what one block keeps.", number=17),
            Slip("The input is kept: the second run begins with it.", number=0),
            Slip("The output belongs to the head, which reads it.", number=2),
            Slip("That is the plain step: a checkpoint keeps its input alone.", number=256),
        ),
        within=0,
    ),
    "each block recomputed, percent longer": Slips(
        (
            Slip(
                "That is one forward of three. A clock also sees norms, GELU and Python, which run"
                " again.",
                number=100 / 3,
            ),
            Slip("A step has backward, too, which is two forwards long: 1 more of 3.", number=100),
            Slip("Backward is two forwards long, so one more is not one of two.", number=50),
        ),
        within=3,
    ),
    "blocks recomputed for 70%": Slips(
        (
            Slip(
                "30% of 16 blocks. But parameters and gradients are there whatever is recomputed,"
                " so the blocks must spare more than 30% of their own.",
                number=5,
            ),
            Slip("70% of 16 blocks: those are the ones to keep.", number=11),
            Slip("All of them: fewer are enough.", number=16),
            Slip("With nothing recomputed the step needs 100%.", number=0),
        ),
        within=0,
    ),
    "all-reduces, nothing recomputed": Slips(
        (
            Slip("Backward has two in each block as well.", number=12),
            Slip("Embedding, head and loss have four, too.", number=16),
            Slip("Forward alone, without embedding, head and loss.", number=8),
            Slip("Four blocks share the step, not 16.", number=68),
            Slip("That is one block: there are four.", number=4),
        ),
        within=0,
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
            Slip("All of forward again. Embedding, head and loss are in no checkpoint.", number=32),
        ),
        within=0,
    ),
    "forgetful, percent higher": Slips(
        (
            Slip(
                "The gradient is wrong from the first step on, and the model still learns.",
                number=0,
            ),
            Slip("It trains: the gradient still points roughly the right way.", number=100),
        )
    ),
}
