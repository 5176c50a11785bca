"""The pipeline: a model cut by depth, which runs its list. Parity, what it holds and sends, what
goes wrong."""

import gc
import weakref
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ranklab.measure.communication import CommunicationLog
from ranklab.measure.ledger import Ledger
from shardlab.pipelines.partition import cut, goes_to
from shardlab.pipelines.simulation import home_of, in_flight

from ..asking import (
    Here,
    Wrong,
    demand,
    expect,
    new_groups,
    race_of_two,
    refuses,
)
from .trials_given import ASSIGNMENT, Words, actions_of

PIPELINE = "Pipeline"
CLOSE = 1e-6  # one layer computes in fp32
TOKENS = 11
SIZES = (5, 7, 6, 5, 8, 5, 4, 5)  # numbers between layers
MICROBATCHES = 4


class Layer(nn.Module):
    """[B, S, inputs] -> [B, S, outputs]."""

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype):
        super().__init__()
        self.linear, self.dtype = nn.Linear(inputs, outputs).to(dtype), dtype

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x.to(self.dtype)))


def groups_of_all(*sizes: int) -> list[Here]:
    """This rank's groups of these sizes. All ranks are in one of each, so that all make as many:
    PyTorch names a group that only its ranks make by the number of groups that they have."""
    by_size = {4: [[0, 1, 2, 3]], 2: [[0, 2], [1, 3]], 1: [[0], [1], [2], [3]]}
    return new_groups(*(ranks for size in sizes for ranks in by_size[size]))


def nine_layers(tied: bool = False) -> list[nn.Module]:
    """Nine layers, alike on all ranks: tokens in, scores out, sizes that differ, one in fp32, one
    frozen. `tied`: the last one's weight is the first one's."""
    torch.manual_seed(4)
    made: list[nn.Module] = [nn.Embedding(TOKENS, SIZES[0]).double()]
    for number, (inputs, outputs) in enumerate(zip(SIZES, SIZES[1:])):
        dtype = torch.float32 if number == 3 else torch.float64
        made.append(Layer(inputs, outputs, dtype))
    made[2].requires_grad_(False)
    made.append(nn.Linear(SIZES[-1], TOKENS).double())
    if tied:
        made[-1].weight = made[0].weight
    return made


def batch_of(number: int = 0) -> tuple[Tensor, Tensor]:
    """(tokens, targets), each [8, 3]."""
    generator = torch.Generator().manual_seed(number)
    return tuple(torch.randint(TOKENS, (8, 3), generator=generator) for _ in range(2))


def mean_loss(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def plain_step(layers: list[nn.Module], number: int = 0, factor: float = 1.0) -> list[Tensor]:
    """Adds gradients of the mean loss over the batch; the losses of the microbatches."""
    losses = []
    for tokens, targets in zip(*(part.chunk(MICROBATCHES) for part in batch_of(number))):
        x = tokens
        for layer in layers:
            x = layer(x)
        losses.append(mean_loss(x, targets))
        (factor * losses[-1] / MICROBATCHES).backward()
    return [loss.detach() for loss in losses]


def schedules_of(n: int) -> dict[str, Words]:
    """Schedules of n ranks, by their names."""
    made = {
        "1F1B": ASSIGNMENT.reference["one_f_one_b"](n, MICROBATCHES),
        "GPipe": ASSIGNMENT.reference["gpipe"](n, MICROBATCHES),
    }
    if MICROBATCHES % n == 0:
        made["interleaved 1F1B"] = ASSIGNMENT.reference["interleaved"](n, MICROBATCHES, 2)
    return made


def own_layers(layers: list[nn.Module], words: Words, rank: int) -> dict[int, nn.Module]:
    """The layers of the rank, by their numbers: the first stages have one more."""
    home = home_of(actions_of(words))
    cuts = cut(len(layers), len(home), None)
    return {
        number: layers[number]
        for stage, (first, end) in enumerate(cuts)
        for number in range(first, end)
        if home[stage] == rank
    }


def pipeline_of(
    mine, words: Words, here: Here, layers: list[nn.Module], loss: Callable = mean_loss
):
    return mine.Pipeline(layers, words, batch_of()[0], loss, here.group)


def compare_gradients(what: str, own: dict[int, nn.Module], plain: list[nn.Module], others=None):
    """The gradients of this rank's layers."""
    for number, layer in own.items():
        for name, parameter in layer.named_parameters():
            right = plain[number].get_parameter(name).grad
            said = f"{what}: the gradient of {name} in layer {number}"
            if right is None:
                demand(parameter.grad is None, f"{said} should be None: it is frozen.")
                continue
            instead = {
                sentence: other[number].get_parameter(name).grad
                for sentence, other in (others or {}).items()
            }
            expect(said, parameter.grad, right, instead, CLOSE)


def plain_layers(number: int = 0, factor: float = 1.0, tied: bool = False) -> list[nn.Module]:
    layers = nine_layers(tied)
    plain_step(layers, number, factor)
    return layers


def last_alone() -> list[nn.Module]:
    """The layers with the gradients of the last microbatch, as part of the mean."""
    layers = nine_layers()
    tokens, targets = (part.chunk(MICROBATCHES)[-1] for part in batch_of())
    (mean_loss(nn.Sequential(*layers)(tokens), targets) / MICROBATCHES).backward()
    return layers


def squares(y: Tensor, targets: Tensor) -> Tensor:
    return (y - targets).square().mean() + y.mean()


# --- parity ---------------------------------------------------------------------------------------


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


# --- bytes ----------------------------------------------------------------------------------------


@ASSIGNMENT.trial("bytes", PIPELINE)
def messages(mine):
    """outputs to the next stage, gradients to the one before, nothing else"""
    for here in groups_of_all(4, 2):
        for name, words in schedules_of(here.n).items():
            pipeline = pipeline_of(mine, words, here, nine_layers())
            with CommunicationLog() as log:
                pipeline.step(*batch_of())
            plan = actions_of(words)
            home = home_of(plan)
            shapes = _shapes(words)
            wanted = [
                shapes[min(action.stage, target[0])]
                for action in plan[here.me]
                if (target := goes_to(action, max(home))) and home[target[0]] != here.me
            ]
            others = sorted({m.operation for m in log.messages} - {"send", "recv"})
            what = f"a step of {name}: rank {here.me} of {here.n}"
            demand(
                not others,
                f"{what} calls {', '.join(others)}: stages talk to their neighbours by send and"
                " recv.",
            )
            sent = [message.nbytes for message in log.messages if message.operation == "send"]
            demand(
                len(sent) == len(wanted),
                f"{what} sends {len(sent)} messages, and {len(wanted)} are enough: the output of"
                " each forward and the gradient of each backward's input. Shapes are known from"
                " the example; a stage of the same rank needs no message.",
            )
            demand(
                sum(sent) == sum(wanted),
                f"{what} sends {sum(sent):,} bytes in {len(sent)} messages, and {sum(wanted):,} are"
                " enough: the output of a microbatch alone, in its own dtype.",
            )


def _shapes(words: Words) -> list[int]:
    """The bytes of each stage's output of a microbatch."""
    layers = nine_layers()
    x, found = batch_of()[0].chunk(MICROBATCHES)[0], []
    for first, end in cut(len(layers), len(home_of(actions_of(words))), None):
        for layer in layers[first:end]:
            x = layer(x)
        found.append(x.nbytes)
    return found


@ASSIGNMENT.trial("bytes", PIPELINE)
def microbatches_held(mine):
    """activations of the microbatches that are in flight, and of no other"""
    m = 8
    words = ASSIGNMENT.reference["one_f_one_b"](4, m)
    for here in groups_of_all(4):
        layers = [nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32)) for _ in range(4)]
        batch = torch.ones(64 * m, 32)
        pipeline = mine.Pipeline(layers, words, batch, squares, here.group)
        pipeline.step(batch, batch)  # whatever is made once is there
        with Ledger(pipeline) as ledger:
            batch = torch.ones(64 * m, 32)
            start = ledger.bytes.total
            pipeline.step(batch, batch)
        most = max(point.bytes.total for point in ledger.timeline) - start
        one = 3 * 64 * 32 * 4  # the input, the tanh, the output of a microbatch
        held = in_flight(actions_of(words))[here.me]
        demand(
            most <= (held + 4) * one,  # with its gradients, and messages under way
            f"a step of 1F1B on rank {here.me} of 4 holds {most:,} bytes at its peak: a microbatch"
            f" has {one:,}, {held} of them are in flight at a time, of {m}. Drop what a microbatch"
            " has kept, its message too, when its backward is done.",
        )


@ASSIGNMENT.trial("bytes", PIPELINE)
def layers_of_others(mine):
    """the layers of other ranks are not kept"""
    for here in groups_of_all(4):
        words, layers = schedules_of(4)["1F1B"], nine_layers()
        own = set(own_layers(layers, words, here.me))
        watched = [weakref.ref(layer) for layer in layers]
        pipeline = pipeline_of(mine, words, here, layers)
        del layers
        gc.collect()
        kept = [number for number, layer in enumerate(watched) if layer() is not None]
        more = sorted(set(kept) - own)
        demand(
            not more,
            f"rank {here.me} of 4 keeps the layers {', '.join(map(str, more))} of other ranks: the"
            " model is cut so that no rank has all of it.",
        )
        del pipeline


# --- speed ----------------------------------------------------------------------------------------


@ASSIGNMENT.trial("speed", PIPELINE)
def seconds_of_a_step(mine):
    """a step of 1F1B: 8 microbatches of 8 layers of 128, on 4 ranks"""
    words = ASSIGNMENT.reference["one_f_one_b"](4, 8)

    def stepper(kind):
        torch.manual_seed(dist.get_rank())
        layers = [nn.Sequential(nn.Linear(128, 128), nn.Tanh()) for _ in range(8)]
        batch = torch.ones(256, 128)
        pipeline = kind(layers, words, batch, squares)
        return lambda: pipeline.step(batch, batch)

    return race_of_two(stepper(mine.Pipeline), stepper(ASSIGNMENT.reference[PIPELINE]))


# --- faults ---------------------------------------------------------------------------------------


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
