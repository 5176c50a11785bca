"""Wrong numbers that readers of lab 1 lock, and what they come from: a GPT of three layers, 128
wide, for 70 characters; AdamW in fp32."""

from coursekit.exercises.elsewhere import Elsewhere
from coursekit.exercises.slips import Slip, Slips

PREDICTIONS = {
    "parameters": Slips(
        (
            Slip("That is one layer of three, or a third of each.", number=198_272),
            Slip(
                "Three layers of 12 h²: embeddings, biases and norms are the rest.", number=589_824
            ),
            Slip(
                "Each layer's q, k and v alone, 3 h² of 12; or 64 for the width: it is 128, and a"
                " window has 64.",
                number=147_456,
            ),
            Slip("8 h² a layer: those of the MLP. Attention has half as many.", number=393_216),
            Slip("One layer's MLP: attention has half as many, and there are 3.", number=131_072),
            Slip(
                "Bytes, of which an element of fp32 has 4; or 12 h² for each of the four heads,"
                " which share a layer's 12 h².",
                number=2_359_296,
            ),
            Slip("h² a layer: attention has 4 such matrices, and the MLP 8.", number=49_152),
            Slip("One matrix of h² elements: a layer has 12 of that size.", number=16_384),
            Slip("12 h a layer: a matrix has h² elements.", number=4_608),
            Slip("12 h: a matrix has h² elements, and there are three layers.", number=1_536),
            Slip(
                "Less than one matrix, of h² elements: a layer has 12 h².", number=700, upto=15_000
            ),
            Slip("12 (3 h)²: three layers are 3 times 12 h², not 9 times.", number=1_769_472),
            Slip("GPT-2's vocabulary: here are 70 characters.", number=7_030_000),
            Slip("That is GPT-2's smallest: here are three layers, 128 wide.", number=124_000_000),
            Slip("Their bytes: an element of fp32 has 4.", times=4),
        ),
        parts={"layers": (198_272, 3), "embeddings": (17_152, 1), "last norm": (256, 1)},
        factors={4: "heads, which share a layer", 64: "characters", 512: "tokens"},
        fit=0.04,
    ),
    "bytes for each parameter": Slips(
        (
            Slip(
                "Parameters and gradients of 2 bytes, or one tensor of 4 bytes forgotten: the"
                " parameters, the gradients or one of two moments.",
                number=12,
            ),
            Slip("A half and a master copy, as mixed precision keeps: this is fp32.", number=18),
            Slip(
                "A copy, one tensor twice or a counter: fp32 needs no copy, and a tensor has one"
                " counter.",
                number=20,
            ),
            Slip("A parameter or a gradient of 2 bytes: in fp32 each has 4.", number=14),
            Slip("Parameters of 2 bytes and two moments: those of fp32 have 4.", number=10),
            Slip("A master and a copy of 2 bytes, or three tensors of 2 bytes.", number=6),
            Slip("Moments of 8 bytes, or counted twice: in fp32 each has 4.", number=24),
            Slip("The number of tensors: each has 4 bytes a parameter.", number=3),
            Slip("16 tensors of 4 bytes, or bits: there are four such tensors.", number=64),
            Slip("The parameters alone, or the number of tensors of 4 bytes each.", number=4),
            Slip("One number: it has 4 bytes, and is kept with three more.", number=1),
            Slip("More than four tensors: activations do not count.", number=25, upto=100),
            Slip("The whole model's: one parameter's are asked for.", number=150, upto=1e9),
        ),
        parts={"parameters": (4, 1), "gradients": (4, 1), "moments": (4, 2)},
    ),
    "one step, milliseconds": Slips(
        (
            Slip(
                "That is near the products at the full rate: a step has small products, all that is"
                " no product, and Python.",
                times=0.25,
                upto=0.75,
            ),
            Slip(
                "Forward or backward alone, or the rate of a faster machine; and small products,"
                " all that is no product, and Python come on top.",
                times=0.08,
                upto=0.25,
            ),
            Slip(
                "One window of the eight, a few tokens, or the peak rate of a large GPU.",
                times=1e-3,
                upto=0.08,
            ),
            Slip(
                "Seconds, or one token of 512: a step's milliseconds are asked for.",
                times=1e-5,
                upto=1e-3,
            ),
            Slip(
                "The batch or its windows counted twice, or too much for Python, which starts some"
                " hundred operations, of microseconds each: the rest is products.",
                times=1.25,
                upto=100,
            ),
        ),
    ),
}

ELSEWHERE = {
    "one step, milliseconds": Elsewhere(
        said="the room's own: of so small a model Python's start of each kernel decides"
    ),
}
