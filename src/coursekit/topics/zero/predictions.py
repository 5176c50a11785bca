"""Wrong numbers that readers of lab 6 lock, and what they come from. In bytes a parameter: stage 0
keeps 4 of parameters, 4 of gradients and 8 of moments; four ranks share what is cut."""

from coursekit.exercises.slips import Slip, Slips


def _stage(kept: int, others: dict[int, str]) -> Slips:
    """The slips of a stage that keeps so many bytes a parameter: other numbers of bytes."""
    slips = (Slip(sentence, times=nbytes / kept) for nbytes, sentence in others.items())
    return Slips(tuple(slips), ranks=4)


PREDICTIONS = {
    "stage 0, bytes": _stage(
        16,
        {
            1: "That is the number of parameters: each has 4 bytes, and so has its gradient.",
            4: "Parameters alone: gradients are as large again, and AdamW keeps two moments.",
            8: "The optimizer is forgotten: AdamW keeps two moments of each parameter.",
            12: "AdamW keeps two moments of each parameter, not one; gradients count as well.",
        },
    ),
    "stage 1, bytes": _stage(
        10,
        {
            16: "That is stage 0: in stage 1 a rank keeps a quarter of the moments.",
            4: "That is everything cut: stage 1 cuts the moments alone.",
            7: "That is stage 2: in stage 1 the gradients are whole.",
            9: "AdamW keeps two moments of each parameter, not one.",
            8: "The moments are cut, not gone: a quarter of them is on each rank.",
            6: "Gradients are forgotten: in stage 1 each rank has them whole.",
        },
    ),
    "stage 2, bytes": _stage(
        7,
        {
            16: "That is stage 0: in stage 2 gradients and moments are cut.",
            10: "That is stage 1: in stage 2 gradients are cut, too.",
            4: "That is everything cut: in stage 2 the parameters are whole.",
            6: "A quarter of the gradients, or of one moment, is forgotten.",
            5: "Moments are forgotten: a quarter of two of them is on each rank.",
        },
    ),
    "stage 3, bytes": _stage(
        4,
        {
            16: "That is stage 0: in stage 3 a rank keeps a quarter of everything.",
            7: "That is stage 2: in stage 3 parameters are cut, too.",
            1: "A quarter of the parameters alone: gradients and two moments are cut, not gone.",
            2: "The moments are forgotten: a quarter of two of them is on each rank.",
            3: "A quarter of the gradients, or of one moment, is forgotten.",
        },
    ),
    "stage 2, 4 microbatches, models sent": Slips(
        (
            Slip("That is one microbatch: stage 2 sends gradients with each.", number=1.5),
            Slip("Parameters are gathered once a step, not with each microbatch.", number=6),
            Slip("The parameters are forgotten: they are gathered after the update.", number=3),
        ),
        ranks=4,
    ),
    "stage 3, 4 microbatches, models sent": Slips(
        (
            Slip("That is one microbatch: stage 3 sends everything with each.", number=2.25),
            Slip("Weights are gathered twice, for forward and for backward.", number=6),
            Slip("That is stage 2: stage 3 gathers weights with each microbatch.", number=3.75),
            Slip("One of the three: two gathers, and the gradients.", number=3),
        ),
        ranks=4,
    ),
    "first step that is done again": Slips(
        (
            Slip("The last save came after step 5, so step 6 is lost as well.", number=7),
            Slip("Step 5 had ended when it was saved: the next one is done again.", number=5),
            Slip("There is a later save, after step 5.", number=3),
            Slip("The run saves after every third step, so it does not begin anew.", number=0),
            Slip("Step 7 never ended, and step 6 was not saved.", number=8),
        ),
        within=0,
        general=False,
    ),
    "whole weights at a time, bytes": Slips(
        (
            Slip("All six layers: each is given back before the next is gathered.", times=6),
            Slip("Two layers: this stage gathers one, and not the next one ahead.", times=2),
            Slip("That is a rank's shard: to compute, the layer is gathered whole.", times=1 / 4),
        ),
        ranks=4,
    ),
    "besides the shards at the peak, bytes": Slips(
        (
            Slip("The weights alone: their gradients are whole for a moment, too.", number=65_536),
            Slip("All six layers' weights: one at a time is whole.", number=393_216),
        ),
    ),
    "rank 0 of 1,024 at rest, GiB": Slips(
        (
            Slip("Parameters alone: a shard has gradients and two moments, too.", times=1 / 4),
            Slip("The moments are forgotten: two of each parameter.", times=1 / 2),
            Slip("12 bytes a parameter; with gradients there are 16.", times=3 / 4),
            Slip("2 bytes a parameter, of bf16: shards are fp32, with their states.", times=1 / 8),
        ),
        ranks=1024,
    ),
    "rank 0 of 1,024 at its peak, GiB": Slips(
        (
            Slip(
                "The states alone: a block is whole for a moment, and so are its gradients.",
                of="rank 0 of 1,024 at rest, GiB",
            ),
            Slip(
                "One is forgotten: the gathered block, its gradients, or activations.",
                times=0.71,
            ),
            Slip("Two are forgotten: the gathered block, its gradients, activations.", times=0.42),
        ),
    ),
    "peak below FSDP2's, percent": Slips(
        (
            Slip("Both cut alike, but FSDP2 gathers the next unit ahead.", number=0),
            Slip("The other way: FSDP2 has two units whole in backward.", times=-1),
        ),
    ),
}
