"""Wrong numbers that readers of lab 3 lock, and what they come from. The small GPT has 64,363,520
bytes of parameters, and its logits take 102,926,336."""

from coursekit.exercises.slips import Slip, Slips

_PARAMETERS, _LOGITS, _LAYER = 64_363_520, 102_926_336, 8_404_992

PREDICTIONS = {
    "gradients at the peak, bytes": Slips(
        (
            Slip(
                "As large as the parameters, but later: at the peak, in the loss, no parameter has"
                " a gradient yet.",
                number=_PARAMETERS,
            ),
            Slip("Elements, and later: in the loss no parameter has one yet.", number=16_090_880),
            Slip(
                "Adam's moments are not gradients; and no gradient is there yet.",
                number=128_727_040,
            ),
        ),
        within=0,
    ),
    "peak of the step, bytes": Slips(
        (
            Slip(
                "Two tensors of the size of the logits are missing: the gradients of log-softmax"
                " and logits.",
                function=lambda right, known: right - 2 * _LOGITS,
            ),
            Slip(
                "One tensor of the size of the logits is missing: there are three at a time.",
                function=lambda right, known: right - _LOGITS,
            ),
            Slip(
                "The gradients are added: at the peak no parameter has one yet.",
                function=lambda right, known: right + _PARAMETERS,
            ),
            Slip(
                "Adam is forgotten: two moments of each parameter, made in the first step.",
                function=lambda right, known: right - 2 * _PARAMETERS,
            ),
            Slip(
                "One of Adam's two moments is forgotten, or the parameters.",
                function=lambda right, known: right - _PARAMETERS,
            ),
            Slip(
                "One layer's activations, not four: all of them are kept until backward.",
                function=lambda right, known: right - 3 * _LAYER,
            ),
            Slip(
                "Everything added up, and once each: the peak is what is there at one point.",
                number=369_845_960,
            ),
        ),
        within=0.0005,
    ),
    "foreach, bytes a parameter": Slips(
        (
            Slip("All of Adam's moments are states: besides them it makes one tensor.", number=8),
            Slip("That is the loop, in which one tensor at a time has temporaries.", number=0),
            Slip("Parameters, gradients and both moments are there anyway.", number=16),
            Slip("A tensor of fp32 for each parameter: 4 bytes, not 2.", number=2),
        ),
        within=0.05,
    ),
    "Llama 7B, peak in GB": Slips(
        (
            Slip("That is the parameters alone.", times=26.95 / 108.86),
            Slip("The gradients are forgotten: the update reads them.", times=81.9 / 108.86),
            Slip("Adam is forgotten: two moments of each parameter.", times=54 / 108.86),
            Slip("One of the two moments is forgotten.", number=80.86),
            Slip("16 bits: here everything is fp32, 4 bytes.", number=56.5),
            Slip("Activations as well: at the update they are gone.", number=150),
        ),
    ),
    "largest batch within 900 MiB": Slips(
        (
            Slip(
                "Three tensors of logits take 154 MB for each sequence: 8 are too many.", number=8
            ),
            Slip("A first step has no moments yet at its peak: 4 sequences fit.", number=2),
            Slip("Parameters are 64 MB, and each sequence takes some 170: more fit.", number=1),
        ),
        unit="",
        within=0,
        general=False,
    ),
    "a second microbatch, bytes": Slips(
        (
            Slip("The gradients of the first are there when the second is at its peak.", number=0),
            Slip("Adam's moments are made by the update, after all microbatches.", times=3),
            Slip(
                "The activations of the first are gone when the second begins.", number=686_919_688
            ),
        ),
    ),
}
