"""The pipeline: tied and frozen weights, wrong arguments, errors."""

from torch import Tensor, nn

from coursekit.exercises.on_a_rank import Wrong, expect, refuses

from .given import ASSIGNMENT
from .models import (
    CLOSE,
    PIPELINE,
    batch_of,
    compare_gradients,
    groups_of_all,
    mean_loss,
    nine_layers,
    own_layers,
    pipeline_of,
    plain_layers,
    plain_step,
    schedules_of,
)


@ASSIGNMENT.trial("faults", PIPELINE)
def tied_weights(mine):
    """a weight of the first and the last stage: both ranks get the sum of both gradients"""
    for here in groups_of_all(4, 2):
        words, layers = schedules_of(here.n)["1F1B"], nine_layers(tied=True)
        pipeline, own = pipeline_of(mine, words, here, layers), own_layers(layers, words, here.me)
        pipeline.step(*batch_of())
        plain, half = plain_layers(tied=True), {}
        untied = nine_layers(tied=True)
        untied[-1].weight = nn.Parameter(untied[0].weight.detach().clone())
        plain_step(untied)
        for number in (0, len(layers) - 1):
            if number in own:
                half = {
                    "That is this rank's part alone: the ranks that have a tied weight add up their"
                    " gradients at the end of a step.": untied[number].weight.grad
                }
                expect(
                    f"the gradient of the tied weight on rank {here.me} of {here.n}",
                    layers[number].weight.grad,
                    plain[0].weight.grad,
                    half,
                    CLOSE,
                )


@ASSIGNMENT.trial("faults", PIPELINE)
def frozen_first_stages(mine):
    """where the first stages are frozen, no gradient comes back from them, and nobody waits"""
    for here in groups_of_all(4):
        words, layers, plain = schedules_of(4)["1F1B"], nine_layers(), nine_layers()
        for some in (layers, plain):
            for layer in some[:4]:
                layer.requires_grad_(False)
        pipeline, own = pipeline_of(mine, words, here, layers), own_layers(layers, words, here.me)
        pipeline.step(*batch_of())
        plain_step(plain)
        compare_gradients(f"rank {here.me} of 4, of which rank 0 is frozen", own, plain)


@ASSIGNMENT.trial("faults", PIPELINE)
def steps_add_up(mine):
    """two steps without zero_grad add up"""
    for here in groups_of_all(2):
        words, layers = schedules_of(2)["GPipe"], nine_layers()
        pipeline, own = pipeline_of(mine, words, here, layers), own_layers(layers, words, here.me)
        plain = nine_layers()
        for number in range(2):
            pipeline.step(*batch_of(number))
            plain_step(plain, number)
        others = {"The first step is lost.": plain_layers(1)}
        compare_gradients(f"rank {here.me} of 2 after two steps", own, plain, others)


@ASSIGNMENT.trial("faults", PIPELINE)
def wrong_arguments(mine):
    """a schedule of other ranks, one that cannot run, too few layers, a batch that cannot be cut"""
    right = schedules_of(4)["1F1B"]
    stuck = [own[::-1] for own in right]
    for what, layers, words in (
        ("a schedule of 2 ranks, on 4", nine_layers(), schedules_of(2)["1F1B"]),
        ("a schedule whose backwards come first", nine_layers(), stuck),
        ("3 layers for 4 stages", nine_layers()[:3], right),
    ):
        refuses(
            f"Pipeline of {what},",
            mine.Pipeline,
            layers,
            words,
            batch_of()[0],
            mean_loss,
            errors=(ValueError,),
            may_send=True,  # ranks may ask each other first
        )
    for here in groups_of_all(4):
        pipeline = pipeline_of(mine, right, here, nine_layers())
        tokens, targets = batch_of()
        for what, batch in (
            ("7 sequences in 4 microbatches", (tokens[:7], targets[:7])),
            ("8 sequences with 4 targets", (tokens, targets[:4])),
        ):
            refuses(f"step of {what}", pipeline.step, *batch, errors=(ValueError,))


@ASSIGNMENT.trial("faults", PIPELINE)
def after_an_error(mine):
    """a loss that raised on the last rank, before anything came back: the next step is right"""
    for here in groups_of_all(1):
        layers = nine_layers()
        words, trouble = schedules_of(1)["1F1B"], [True]

        def loss(scores: Tensor, targets: Tensor, trouble=trouble) -> Tensor:
            if trouble.pop() if trouble else False:
                raise ArithmeticError("a trial's own")
            return mean_loss(scores, targets)

        pipeline = pipeline_of(mine, words, here, layers, loss)
        try:
            pipeline.step(*batch_of())
        except ArithmeticError:
            pass
        else:
            raise Wrong("an exception of the loss did not come out of step().")
        pipeline.zero_grad()
        pipeline.step(*batch_of())
        compare_gradients(
            "one rank, in the step after one that raised", dict(enumerate(layers)), plain_layers()
        )
