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
            18: "That is mixed precision, with its copy in 16 bits: here everything is fp32.",
            10: "That is stage 1: in stage 0 nothing is cut.",
            7: "That is stage 2: in stage 0 nothing is cut.",
            20: "In fp32 there is no second copy: the parameters are the master weights.",
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
            12: "Four ranks share the moments, not two.",
            13: "Of the two moments one is whole in that number: both are cut.",
            1: "That is the number of parameters: each has 4 bytes, and so has its gradient.",
            11: "A second copy of the parameters is counted: in fp32 there is none.",
            2: "A quarter of the moments alone: parameters and gradients are whole.",
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
            8: "Whole parameters and gradients: stage 2 cuts gradients, and has moments.",
            13: "Both moments are whole in that number: stage 2 cuts what stage 1 cuts, too.",
            9: "Gradients are cut in stage 2, and AdamW keeps two moments.",
            3: "The parameters are forgotten: in stage 2 each rank has them whole.",
            2: "A quarter of the moments alone: parameters are whole, and gradients count.",
            1: "That is the number of parameters, or a quarter of the gradients alone.",
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
            10: "That is stage 1: in stage 3 gradients and parameters are cut, too.",
            8: "That is half: four ranks share everything, not two.",
            5: "In stage 3 the parameters are cut, too, and AdamW keeps two moments.",
            6: "In stage 3 the parameters are cut, too: a quarter of them is on each rank.",
        },
    ),
    "stage 2, 4 microbatches, models sent": Slips(
        (
            Slip("That is one microbatch: stage 2 sends gradients with each.", number=1.5),
            Slip("Parameters are gathered once a step, not with each microbatch.", number=6),
            Slip("The parameters are forgotten: they are gathered after the update.", number=3),
            Slip("That is stage 3: stage 2 gathers the parameters once a step.", number=9),
            Slip(
                "One message: there are four reduce-scatters and an all-gather.",
                number=0.75,
            ),
            Slip("One all-gather a step, not two.", number=4.5),
            Slip(
                "A reduce-scatter sends 3/4 of the model, and an all-gather comes at the end.",
                number=4,
            ),
            Slip(
                "Five all-reduces: a reduce-scatter or an all-gather sends half as much.",
                number=7.5,
            ),
            Slip("That is stage 3 with one microbatch.", number=2.25),
        ),
        ranks=4,
    ),
    "stage 3, 4 microbatches, models sent": Slips(
        (
            Slip("That is one microbatch: stage 3 sends everything with each.", number=2.25),
            Slip("Weights are gathered twice, for forward and for backward.", number=6),
            Slip("That is stage 2: stage 3 gathers weights with each microbatch.", number=3.75),
            Slip("One of the three: two gathers, and the gradients.", number=3),
            Slip("Gradients are sent with each microbatch, too, not once a step.", number=6.75),
            Slip("No all-gather after the update: the next forward gathers.", number=9.75),
            Slip("That is an all-reduce: stage 3 gathers with each microbatch.", number=1.5),
            Slip("Three messages with each microbatch, each 3/4 of the model.", number=8),
            Slip("That is two microbatches: there are four.", number=4.5),
            Slip(
                "Weights are gathered twice with each microbatch, and gradients sent each time.",
                number=7.5,
            ),
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
            Slip("Steps count from 0: the saves come after steps 2 and 5.", number=4),
            Slip("Steps count from 0: the saves come after steps 2 and 5.", number=2),
            Slip("The next save would come after step 8; rank 2 is killed in step 7.", number=9),
            Slip("The run was killed before step 7, so it never came that far.", number=10),
            Slip("There is a later save, after step 5; steps count from 0.", number=1),
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
            Slip("All six layers, twice: one layer at a time is whole.", number=786_432),
            Slip(
                "One layer's weights and gradients, as the formula says; chunks of a quarter are on"
                " their way besides.",
                number=131_072,
            ),
            Slip("One chunk on its way: a rank has two, sent and received.", number=147_456),
            Slip("A shard is what a rank keeps: a whole layer comes on top.", number=16_384),
            Slip(
                "Three layers: it is one, its gradients, and two chunks of a quarter.",
                number=196_608,
            ),
            Slip("One layer's weights and a chunk: the gradients are whole, too.", number=81_920),
            Slip("What the others send of one layer: whole it has four quarters.", number=49_152),
        ),
    ),
    "rank 0 of 1,024 at rest, GiB": Slips(
        (
            Slip("Parameters alone: a shard has gradients and two moments, too.", times=1 / 4),
            Slip("The moments are forgotten: two of each parameter.", times=1 / 2),
            Slip("12 bytes a parameter; with gradients there are 16.", times=3 / 4),
            Slip("2 bytes a parameter, of bf16: shards are fp32, with their states.", times=1 / 8),
            Slip("The states of all 1,024 ranks: rank 0 keeps one share.", times=1024),
            Slip("The whole model in fp32: rank 0 keeps one share of 1,024.", times=256),
            Slip("The whole model in bf16: rank 0 keeps one share of 1,024.", times=128),
            Slip(
                "18 bytes a parameter: copies in bf16 live only while a block computes.",
                times=9 / 8,
            ),
            Slip("14 bytes a parameter: gradients of the shard are fp32, too, so 16.", times=7 / 8),
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
            Slip("Two are forgotten: the block's gradients, activations.", times=0.375),
            Slip("Activations and the head are forgotten.", times=0.59),
            Slip("Activations, which autograd keeps, take 4.5 GiB.", times=0.76),
            *(
                Slip("The head, which is whole, and activations are forgotten.", times=times)
                for times in (0.445, 0.54)
            ),
            Slip(
                "One block's weights alone: states, gradients and activations come on top.",
                number=3.4,
            ),
            Slip("The whole model in bf16: one block is whole at a time.", number=326),
            Slip("The whole model in fp32: one block is whole at a time.", number=652),
            Slip("The states of all 1,024 ranks: rank 0 keeps one share.", number=2608),
            Slip("A whole card of 80 GB: most of it is still free.", number=80),
        ),
    ),
    "peak below FSDP2's, percent": Slips(
        (
            Slip("Both have the same units, but FSDP2 gathers the next one ahead.", number=0),
            *(
                Slip("The other way: FSDP2 has two units whole in backward.", number=number)
                for number in (-5, -10, -15, -20, -25, -30, -50)
            ),
            *(
                Slip(
                    "FSDP2 holds a whole unit more, and the model has few units: that is more.",
                    number=number,
                )
                for number in (1, 2, 3, 5, 8, 10)
            ),
            *(
                Slip(
                    "FSDP2 holds one unit more; shards and activations are alike, so it is less.",
                    number=number,
                )
                for number in (33, 40, 50, 60, 75, 80, 90, 100)
            ),
        ),
    ),
    "stage 3 waits, percent": Slips(
        (
            Slip(
                "That is with prefetch=True: here each gather waits until it is needed.", number=7
            ),
            *(
                Slip(
                    "One of three is forgotten: weights travel for forward and for backward, and"
                    " then the gradients.",
                    number=number,
                )
                for number in (15, 20)
            ),
            Slip("Blocks of this size compute longer than their weights travel.", number=50),
            Slip("That is the share that computes.", number=70),
        ),
    ),
}
