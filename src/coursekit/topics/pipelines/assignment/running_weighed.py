"""The pipeline: what it holds and sends, and in how many seconds."""

import gc
import weakref

import torch
import torch.distributed as dist
from torch import nn

from coursekit.exercises.on_a_rank import demand, race_of_two
from shardlab.measure.communication import CommunicationLog
from shardlab.measure.ledger import Ledger
from shardlab.pipelines.partition import cut, goes_to
from shardlab.pipelines.simulation import home_of, in_flight

from .given import ASSIGNMENT, Words, actions_of
from .models import (
    MICROBATCHES,
    PIPELINE,
    batch_of,
    groups_of_all,
    nine_layers,
    own_layers,
    pipeline_of,
    schedules_of,
    squares,
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
