"""Wrong numbers that readers of lab 3 lock, and what they come from. The small GPT has 64,363,520
bytes of parameters, and its logits take 102,926,336."""

from coursekit.exercises.elsewhere import Elsewhere
from coursekit.exercises.slips import Slip, Slips

_PARAMETERS, _LOGITS, _LAYER = 64_363_520, 102_926_336, 8_404_992
_LLAMA = 26.95  # GB of its parameters, as of its gradients and of each moment

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
            Slip(
                "The gradient of the logits does not belong to a parameter: it is temporary.",
                number=_LOGITS,
            ),
            Slip(
                "Gradients come later: at the peak, in the loss, no parameter has one yet.",
                number=1e-9,
                upto=1e15,
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
                "Everything added up, and once each: the peak is what is there at one point.",
                number=369_845_960,
            ),
            Slip(
                "Parameters, gradients and moments alone: the gradients come later, and activations"
                " and logits are there.",
                number=257_454_288,
            ),
        ),
        within=0.0005,
        parts={
            "gradients": (_PARAMETERS, 0),
            "tensors of logits": (_LOGITS, 3),
            "moments": (_PARAMETERS, 2),
            "parameters": (_PARAMETERS, 1),
            "layers' activations": (_LAYER, 4),
            "head's activations": (1_052_672, 1),
        },
        fit=0.006,
    ),
    "foreach, bytes a parameter": Slips(
        (
            Slip(
                "In place, but from roots and quotients: they take a tensor for each parameter, and"
                " in the loop one at a time.",
                number=0,
            ),
            Slip("Roots and quotients share a tensor, and moments are states.", number=8),
            Slip("Root, quotient and update share a tensor; or one with the moments.", number=12),
            Slip("Parameters, gradients and both moments are there anyway.", number=16),
            Slip("The states, 16, are there anyway: 4 come on top.", number=20),
            Slip("A tensor of fp32 for each parameter: 4 bytes, not 2.", number=2),
            Slip("A part of the tensors: foreach takes all of them at once.", number=2.4, upto=3.7),
            Slip("The whole model's: one parameter's are asked for.", number=1e5, upto=1e9),
        ),
        within=0.05,
    ),
    "Llama 7B, peak in GB": Slips(
        (
            Slip("18 bytes a parameter: mixed precision's. In fp32 there are 16.", number=124),
            Slip("Activations as well: at the update they are gone.", number=114, upto=200),
        ),
        parts={
            "master copies or foreach's temporaries": (_LLAMA, 0),
            "parameters": (_LLAMA, 1),
            "gradients": (_LLAMA, 1),
            "moments": (_LLAMA, 2),
        },
        fit=0.045,
    ),
    "largest batch within 900 MiB": Slips(
        (
            Slip(
                "Each sequence takes 172 MB, most of them for three tensors of logits, and the"
                " parameters 64: that is too many.",
                number=6,
                upto=1e9,
            ),
            Slip("Five would fit; but 1, 2, 4 or 8 are tried.", number=5),
            Slip("Four fit as well, and 1, 2, 4 or 8 are tried.", number=3),
            Slip("The limit itself, not the batch.", number=900),
            Slip("A first step has no moments yet at its peak: 4 sequences fit.", number=2),
            Slip(
                "Parameters are 64 MB, and each sequence takes some 170: more fit.",
                number=0,
                upto=1,
            ),
        ),
        unit="",
        within=0,
        general=False,
    ),
    "a second microbatch, bytes": Slips(
        (
            Slip("The gradients of the first are there when the second is at its peak.", number=0),
            Slip("Adam's moments are made by the update, after all microbatches.", times=3),
            Slip("Moments come later, in the update; and gradients are added in place.", times=2),
            Slip("All states: parameters are there, and moments come in the update.", times=4),
            Slip(
                "That is the table's gradient: those of the layers stay as well.", number=51_463_168
            ),
            Slip(
                "The activations of the first are gone when the second begins.",
                number=1.3e8,
                upto=7e8,
            ),
            Slip("That is the whole peak: asked is what the second adds.", number=7.2e8, upto=9e8),
        ),
        parts={"gradients": (_PARAMETERS, 1), "parameters": (_PARAMETERS, 0)},
    ),
}

ELSEWHERE = {
    "peak of the step, bytes": Elsewhere(row="step.peak", case={"optimizer": "foreach"}),
}
