"""The pipeline: a model cut by depth, which runs its list."""

from functools import partial

import torch
from torch import Tensor, nn

from coursekit.exercises.on_a_rank import demand, expect

from .given import ASSIGNMENT
from .models import (
    CLOSE,
    MICROBATCHES,
    PIPELINE,
    batch_of,
    compare_gradients,
    groups_of_all,
    last_alone,
    nine_layers,
    own_layers,
    pipeline_of,
    plain_layers,
    plain_step,
    schedules_of,
    squares,
)


@ASSIGNMENT.trial("parity", PIPELINE)
def layers_of_a_rank(mine):
    """each rank has the parameters of its stages, of 2 and of 4 ranks"""
    for here in groups_of_all(4, 2):
        for name, words in schedules_of(here.n).items():
            layers = nine_layers()
            pipeline, own = (
                pipeline_of(mine, words, here, layers),
                own_layers(layers, words, here.me),
            )
            found = {id(parameter) for parameter in pipeline.parameters()}
            wanted = {id(p) for layer in own.values() for p in layer.parameters()}
            demand(
                found == wanted,
                f"parameters() of rank {here.me} of {here.n}, {name}, should be the {len(wanted)}"
                f" of the layers {', '.join(map(str, own))} that it was given, and has"
                f" {len(found & wanted)} of them and {len(found - wanted)} others. Where the stages"
                " do not divide the layers, the first ones have one more.",
            )


@ASSIGNMENT.trial("parity", PIPELINE)
def every_gradient(mine):
    """every gradient is that of the mean loss over the batch, for each schedule"""
    for here in groups_of_all(4, 2):
        for name, words in schedules_of(here.n).items():
            layers = nine_layers()
            pipeline, own = (
                pipeline_of(mine, words, here, layers),
                own_layers(layers, words, here.me),
            )
            pipeline.step(*batch_of())
            what = f"rank {here.me} of {here.n}, {name}"
            others = {
                f"That is the sum over {MICROBATCHES} microbatches: divide each loss by"
                f" {MICROBATCHES}.": plain_layers(0, MICROBATCHES),
                f"It was divided by {MICROBATCHES} twice.": plain_layers(0, 1 / MICROBATCHES),
                "That is the last microbatch alone: gradients add up.": last_alone(),
            }
            compare_gradients(what, own, plain_layers(), others)


@ASSIGNMENT.trial("parity", PIPELINE)
def losses(mine):
    """step returns the loss of each microbatch on the last stage's rank, nothing on the others"""
    for here in groups_of_all(4, 2):
        for name, words in schedules_of(here.n).items():
            pipeline = pipeline_of(mine, words, here, nine_layers())
            got = pipeline.step(*batch_of())
            last = here.me == here.n - 1
            right = torch.stack(plain_step(nine_layers())) if last else torch.empty(0)
            what = f"the losses that step returns on rank {here.me} of {here.n}, {name},"
            expect(
                what,
                got.to(right.dtype) if isinstance(got, Tensor) else got,
                right,
                {
                    f"They are divided by {MICROBATCHES}: return them as they are.": right
                    / MICROBATCHES
                },
                CLOSE,
            )


@ASSIGNMENT.trial("parity", PIPELINE)
def three_steps(mine):
    """every parameter after three steps of SGD, of other batches than the example"""
    for here in groups_of_all(4):
        words, layers, plain = schedules_of(4)["1F1B"], nine_layers(), nine_layers()
        pipeline, own = pipeline_of(mine, words, here, layers), own_layers(layers, words, here.me)
        optimizer = torch.optim.SGD(pipeline.parameters(), lr=0.5)
        ours = torch.optim.SGD(nn.ModuleList(plain).parameters(), lr=0.5)
        for number in range(1, 4):
            optimizer.zero_grad()
            ours.zero_grad()
            pipeline.step(*batch_of(number))
            plain_step(plain, number)
            optimizer.step()
            ours.step()
            for place, layer in own.items():
                for name, parameter in layer.named_parameters():
                    expect(
                        f"{name} of layer {place} after step {number}",
                        parameter,
                        plain[place].get_parameter(name).detach(),
                        close=CLOSE,
                    )


class Noting(nn.Module):
    """[B, 3] -> [B, 3]: notes its forwards and backwards."""

    def __init__(self):
        super().__init__()
        self.scale, self.done = nn.Parameter(torch.ones(())), []

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type == "cpu" and torch.is_grad_enabled():
            self.done.append("F")
        y = x * self.scale
        if y.requires_grad:
            y.register_hook(partial(self.note, "B"))
        return y

    def note(self, kind: str, _):
        self.done.append(kind)


@ASSIGNMENT.trial("parity", PIPELINE)
def runs_the_list(mine):
    """a list that is no schedule of a textbook runs as it is written"""
    words = [
        ["0F0", "0F1", "0B0", "0F2", "0B1", "0F3", "0B2", "0B3"],
        ["1F0", "1B0", "1F1", "1F2", "1B1", "1B2", "1F3", "1B3"],
    ]
    for here in groups_of_all(2):
        layers = [Noting(), Noting()]
        batch = torch.ones(4, 3)
        pipeline = mine.Pipeline(layers, words, batch, squares, here.group)
        layers[here.me].done.clear()
        pipeline.step(batch, batch)
        got = "".join(layers[here.me].done)
        wanted = "".join(word[1] for word in words[here.me])
        demand(
            got == wanted,
            f"rank {here.me} does {got}, and its list says {wanted}: step runs the list that it was"
            " given, action by action.",
        )
