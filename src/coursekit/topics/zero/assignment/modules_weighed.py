"""Stage 3: what a shard holds and sends, and in how many seconds."""

import gc

import torch
from torch import nn

from coursekit.exercises.on_a_rank import demand, groups, race_of_two, sent_at_best
from coursekit.exercises.trap_model import inputs_of
from shardlab.measure.communication import CommunicationLog
from shardlab.measure.ledger import Ledger

from .given import ASSIGNMENT, bytes_of, layers
from .stacks import SHARD, Stack, held_besides_shards, sharded_stack

# --- bytes ----------------------------------------------------------------------------------------


@ASSIGNMENT.trial("bytes", SHARD)
def parameters_of_a_shard(mine):
    """memory after fully_shard, after a forward and after a backward"""
    for here in groups(4):
        inputs = torch.ones(2, 64)
        with Ledger(nn.Identity()) as ledger:
            start = ledger.bytes.total
            model = layers(16)
            whole = bytes_of(model.parameters())
            mine.fully_shard(model, list(model), here.group)
            gc.collect()
            sharded = ledger.bytes.total - start
            most_kept = 0.35 * whole
            demand(
                sharded <= most_kept,
                f"after fully_shard rank {here.me} of 4 holds {sharded:,} bytes: the whole model"
                f" has {whole:,}, a shard {whole // 4:,}. The module's own parameters must go.",
            )
            y = model(inputs)
            forward = ledger.bytes.total - start
            demand(
                forward <= 0.5 * whole,
                f"after a forward rank {here.me} of 4 holds {forward:,} bytes: a shard has"
                f" {whole // 4:,}, activations next to nothing. Autograd keeps the gathered"
                " parameters unless their storage is emptied: untyped_storage().resize_(0).",
            )
            y.sum().backward()
            del y
            backward = ledger.bytes.total - start
            demand(
                backward <= 0.65 * whole,
                f"after a backward rank {here.me} of 4 holds {backward:,} bytes: a shard and its"
                f" gradient have {whole // 2:,}, the whole model {whole:,}. Free a unit's"
                " parameters and its whole gradients when its backward is over.",
            )


@ASSIGNMENT.trial("bytes", SHARD)
def one_unit_at_a_time(mine):
    """the peaks of forward and backward: one unit is whole, not all of them"""
    for here in groups(4):
        model, inputs = layers(24), torch.ones(2, 64)
        whole = bytes_of(model.parameters())
        unit = whole // 24
        mine.fully_shard(model, list(model), here.group)
        with torch.no_grad():
            most, _ = held_besides_shards(model, inputs)
        demand(
            most <= 4 * unit,
            f"forward holds {most:,} bytes more at its peak: a unit has {unit:,}, all units have"
            f" {whole:,}. Gather a unit before its forward, and free it after it.",
        )

        most, _ = held_besides_shards(model, inputs, backward=True)
        demand(
            most <= whole // 4 + 7 * unit,
            f"forward and backward hold {most:,} bytes more at their peak: gradients of a shard are"
            f" {whole // 4:,}, a unit and its gradients {2 * unit:,}, all units {whole:,}. Gather a"
            " unit when the gradient of its output arrives, and free it after its backward.",
        )


@ASSIGNMENT.trial("bytes", SHARD)
def bytes_of_a_step(mine):
    """at most three times (n - 1)/n of the parameters: two all-gathers and a reduce-scatter"""
    for here in groups(4, 3):
        model = sharded_stack(mine, here)
        inputs = inputs_of(here.me)
        with CommunicationLog() as log:
            y = model(inputs)
            in_forward = sent_at_best(log)
            y.sum().backward()
        plain = Stack(0)
        whole = bytes_of(plain.parameters())
        one = whole * (here.n - 1) / here.n
        frozen = bytes_of(plain.blocks[1].parameters()) * (here.n - 1) / here.n
        padding = 9 * here.n * 8  # trained and frozen flats of seven units
        demand(
            in_forward <= one + padding,
            f"forward sends {in_forward:,.0f} bytes from rank {here.me} of {here.n}: each parameter"
            f" is gathered once, which is {one:,.0f}.",
        )
        sent = sent_at_best(log)
        why = ""
        if sent_at_best(log, "all_reduce reduce") > one / 2:
            why = " An all-reduce gives every rank gradients that it does not need: reduce-scatter."
        demand(
            sent <= 3 * one - frozen + 3 * padding,
            f"forward and backward send {sent:,.0f} bytes from rank {here.me} of {here.n}: two"
            f" all-gathers and a reduce-scatter are {3 * one - frozen:,.0f}, less than"
            f" {3 * one:,.0f} as frozen gradients do not travel.{why}",
        )


# --- speed ----------------------------------------------------------------------------------------


@ASSIGNMENT.trial("speed", SHARD)
def seconds_of_a_step(mine):
    """forward and backward of 1.3 million parameters in 20 units, on 4 ranks"""

    def stepper(fully_shard):
        model, inputs = layers(20, 256), torch.ones(8, 256)
        fully_shard(model, list(model))

        def step():
            model(inputs).square().mean().backward()

        return step

    return race_of_two(stepper(mine.fully_shard), stepper(ASSIGNMENT.reference[SHARD]))
