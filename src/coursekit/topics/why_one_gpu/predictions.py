"""Wrong numbers that readers of lab 1 lock, and what they come from: a GPT of three layers, 128
wide, for 70 characters; AdamW in fp32."""

from coursekit.exercises.slips import Slip, Slips

# A small model's utilisation differs from machine to machine: each is near one of these.
_OF_THE_CLOCK = [0.25 * 1.06**step for step in range(18)]

PREDICTIONS = {
    "parameters": Slips(
        (
            Slip("That is one layer of three, or a third of each.", number=198_272),
            Slip("The width is 128: 64 is the length of a window.", number=147_456),
            Slip("Those are the embeddings alone: three layers come on top.", number=17_152),
            Slip("8 h² a layer: those of the MLP. Attention has half as many.", number=393_216),
            Slip("12 h² for each of the four heads: they share a layer's 12 h².", number=2_359_296),
            Slip("h² a layer: attention has 4 such matrices, and the MLP 8.", number=49_152),
            Slip("Their bytes: an element of fp32 has 4.", times=4),
        ),
        within=0.05,
    ),
    "bytes for each parameter": Slips(
        (
            Slip("Parameters alone: gradients and two moments come on top.", number=4),
            Slip("The moments are forgotten, or everything else: 4 + 4 + 8.", number=8),
            Slip("One is forgotten: the gradient, or one of two moments.", number=12),
            Slip("A half and a master copy, as mixed precision keeps: this is fp32.", number=18),
            Slip("Something counted twice, or a master copy: fp32 needs none.", number=20),
            Slip("Elements of 2 bytes: those of fp32 have 4.", number=2),
        ),
        general=False,
    ),
    "one step, milliseconds": Slips(
        tuple(
            Slip(
                "That is near the products at the full rate: a step has small products, all that"
                " is no product, and Python.",
                times=times,
            )
            for times in _OF_THE_CLOCK
        ),
    ),
}
