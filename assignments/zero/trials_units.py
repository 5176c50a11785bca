"""Stage 3: modules whose parameters are shards. Parity, what they hold and send, what goes
wrong."""

import gc
from functools import partial

import torch
from torch import Tensor, nn

from ranklab.measure.communication import CommunicationLog
from ranklab.measure.ledger import Ledger

from ..asking import (
    Here,
    Wrong,
    demand,
    expect,
    groups,
    race_of_two,
    refuses,
    sent_at_best,
)
from ..trap_model import Stumble, inputs_of, stumble
from .trials_given import ASSIGNMENT, CLOSE, bytes_of, layers

SHARD, WHOLE = "fully_shard", "whole_parameters"
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1)


class Stack(nn.Module):
    """[N, 5] -> [N, 5]: units of odd sizes, a frozen one, a weight that two units share, and a
    parameter that is in no unit."""

    def __init__(self, seed: int):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.first, self.last = nn.Linear(5, 7), nn.Linear(7, 5)
        self.blocks = nn.ModuleList(nn.Linear(7, 7) for _ in range(4))
        self.scale = nn.Parameter(torch.empty(5))
        self.double()
        for tensor in self.parameters():
            tensor.data.normal_(generator=generator)
        self.blocks[3].weight = self.blocks[0].weight
        self.blocks[1].requires_grad_(False)

    def forward(self, x: Tensor, watch=None) -> Tensor:
        x = torch.tanh(self.first(x))
        for block in self.blocks:
            x = torch.tanh(block(x))
            if watch is not None:
                x.register_hook(watch)
        return self.last(x) * self.scale


def units_of(model: Stack) -> list[nn.Module]:
    return [model.first, *model.blocks, model.last]


def sharded_stack(mine, here: Here) -> Stack:
    model = Stack(here.me)
    mine.fully_shard(model, units_of(model), here.group)
    return model


def stack_loss(model: nn.Module, rank: int, number: int = 0, **named) -> Tensor:
    return (model(inputs_of(rank, number), **named) ** 2).mean()


def mean_stack_loss(model: nn.Module, ranks, number: int = 0) -> Tensor:
    losses = [stack_loss(model, rank, number) for rank in ranks]
    return sum(losses) / len(losses)


def stepped_stack(ranks, factor: float = 1.0) -> Stack:
    model = Stack(0)
    (factor * mean_stack_loss(model, ranks)).backward()
    SGD(model.parameters()).step()
    return model


def compare_whole(what: str, mine, model: nn.Module, plain: nn.Module, others: dict | None = None):
    found, wanted = mine.whole_parameters(model), dict(plain.named_parameters())
    demand(
        isinstance(found, dict),
        f"whole_parameters should return a dict, not {type(found).__name__}.",
    )
    missing, more = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    demand(
        not missing and not more,
        f"whole_parameters should have the names of the plain module's named_parameters:"
        f" {', '.join(missing) or 'nothing'} is missing, {', '.join(more) or 'nothing'} is too"
        " much. A tied weight has its first name.",
    )
    for name, right in wanted.items():
        instead = {said: o.get_parameter(name).detach() for said, o in (others or {}).items()}
        expect(f"{what}: {name}", found[name], right.detach(), instead, CLOSE)


def held_besides_shards(
    model: nn.Module, inputs: Tensor, backward: bool = False
) -> tuple[int, int]:
    """Bytes besides the shards: at the peak of a forward, and of its backward, and after it."""
    with Ledger(model) as ledger:
        start = ledger.bytes.total
        y = model(inputs)
        if backward:
            y.sum().backward()
        del y
        after = ledger.bytes.total - start
    return max((point.bytes.total for point in ledger.timeline), default=start) - start, after


# --- parity ---------------------------------------------------------------------------------------


@ASSIGNMENT.trial("parity", SHARD)
def outputs(mine):
    """outputs of rank 0's model, on 2, 3 and 4 ranks, with and without a graph, twice"""
    for here in groups(4, 3, 2):
        model = sharded_stack(mine, here)
        right = Stack(0)(inputs_of(here.me)).detach()
        for call in ("first", "second", "third"):
            with torch.set_grad_enabled(call != "second"):
                got = model(inputs_of(here.me))
            expect(
                f"the output of the {call} forward on rank {here.me} of {here.n}",
                got,
                right,
                {
                    "That is the output of this rank's own parameters: hand out rank 0's.": Stack(
                        here.me
                    )(inputs_of(here.me)).detach()
                },
                CLOSE,
            )


@ASSIGNMENT.trial("parity", WHOLE)
def whole_again(mine):
    """all parameters under their names, on every rank, before and after a forward"""
    for here in groups(4, 3, 2):
        model = sharded_stack(mine, here)
        for when in ("after fully_shard", "after a forward"):
            what = f"whole_parameters {when}, on rank {here.me} of {here.n}"
            compare_whole(what, mine, model, Stack(0))
            model(inputs_of(here.me))


@ASSIGNMENT.trial("parity", SHARD)
def a_step(mine):
    """every parameter after a step of SGD on module.parameters(), on 2, 3 and 4 ranks"""
    for here in groups(4, 3, 2):
        model, n = sharded_stack(mine, here), here.n
        optimizer = SGD(model.parameters())
        stack_loss(model, here.me).backward()
        optimizer.step()
        others = {
            f"That is a step with the sum over {n} ranks: divide by {n}.": stepped_stack(
                range(n), n
            ),
            "That is a step with the mean divided by the number of ranks once more.": stepped_stack(
                range(n), 1 / n
            ),
            "That is a step with rank 0's gradient alone: reduce-scatter adds up all of"
            " them.": stepped_stack([0]),
            "Nothing changed: parameters() of the module should be its shards, and backward should"
            " give them gradients.": Stack(0),
        }
        what = f"rank {here.me} of {n} after a step"
        compare_whole(what, mine, model, stepped_stack(range(n)), others)


@ASSIGNMENT.trial("parity", SHARD)
def three_steps(mine):
    """every parameter after three steps of SGD with momentum and of AdamW"""
    for here in groups(3):
        for of in (SGD, partial(torch.optim.AdamW, lr=0.01)):
            model, plain = sharded_stack(mine, here), Stack(0)
            optimizer, ours = of(model.parameters()), of(plain.parameters())
            for number in range(3):
                for each in (optimizer, ours):
                    each.zero_grad()
                stack_loss(model, here.me, number).backward()
                mean_stack_loss(plain, range(3), number).backward()
                for each in (optimizer, ours):
                    each.step()
                compare_whole(f"after step {number + 1}", mine, model, plain)


# --- faults ---------------------------------------------------------------------------------------


@ASSIGNMENT.trial("faults", SHARD)
def microbatches(mine):
    """two forwards and then two backwards: their gradients add up"""
    for here in groups(3):
        model, plain = sharded_stack(mine, here), Stack(0)
        optimizer, ours = SGD(model.parameters()), SGD(plain.parameters())
        losses = [stack_loss(model, here.me, number) for number in range(2)]
        for loss in losses:
            loss.backward()
        for number in range(2):
            mean_stack_loss(plain, range(3), number).backward()
        last = Stack(0)
        mean_stack_loss(last, range(3), 1).backward()
        SGD(last.parameters()).step()
        optimizer.step()
        ours.step()
        compare_whole(
            f"rank {here.me} of 3 after two forwards, two backwards and a step",
            mine,
            model,
            plain,
            {"The first backward is lost.": last},
        )


@ASSIGNMENT.trial("faults", SHARD)
def frozen_units(mine):
    """a frozen unit passes the gradient on, keeps its values, and is freed after backward"""
    for here in groups(2):
        model, inputs = layers(12), torch.ones(2, 64)
        whole = bytes_of(model.parameters())
        for layer in list(model)[4:]:
            layer.requires_grad_(False)
        model[3].weight.requires_grad_(False)
        trained = bytes_of(p for p in model.parameters() if p.requires_grad)
        mine.fully_shard(model, list(model), here.group)
        found = bytes_of(p for p in model.parameters() if p.requires_grad)
        demand(
            abs(found - trained // 2) <= 64,
            f"of {trained:,} trained bytes rank {here.me} of 2 trains {found:,}, and its shard has"
            f" {trained // 2:,}: a flat tensor is of trained parameters or of frozen ones, or"
            " weight decay moves what is frozen.",
        )
        _, more = held_besides_shards(model, inputs, backward=True)
        demand(
            more <= trained // 2 + whole // 8,
            f"after a backward through frozen units rank {here.me} of 2 holds {more:,} bytes more:"
            f" gradients of a shard are {trained // 2:,}. A frozen unit makes no gradient, so"
            " something else must free it when backward is over.",
        )


@ASSIGNMENT.trial("faults", SHARD)
def after_an_error_in_units(mine):
    """a backward that raised halfway, and the next one is right"""
    for here in groups(3):
        model, n = sharded_stack(mine, here), here.n
        optimizer = SGD(model.parameters())
        try:
            stack_loss(model, here.me, 1, watch=stumble).backward()
        except Stumble:
            pass
        else:
            raise Wrong("an exception inside backward did not come out of backward().")
        optimizer.zero_grad()
        stack_loss(model, here.me).backward()
        optimizer.step()
        what = f"rank {here.me} of 3 after a backward that raised"
        compare_whole(what, mine, model, stepped_stack(range(n)))


@ASSIGNMENT.trial("faults", SHARD)
def written_shards(mine):
    """a shard that is written to between forward and backward raises an error"""
    for here in groups(2):
        model = sharded_stack(mine, here)
        loss = stack_loss(model, here.me)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(2)
        try:
            loss.backward()
        except RuntimeError:
            continue
        raise Wrong(
            "the shards were doubled between forward and backward, which gathered the new values"
            " and computed gradients from them: keep the shards by save_for_backward, so that"
            " autograd objects."
        )


@ASSIGNMENT.trial("faults", SHARD)
def wrong_units(mine):
    """a unit that is not inside the module, a module that is sharded twice"""
    refuses(
        "fully_shard(module, [a layer of another module])",
        mine.fully_shard,
        Stack(0),
        [Stack(0).first],
        errors=(ValueError,),
        may_send=True,
    )
    model = Stack(0)
    mine.fully_shard(model, units_of(model))
    refuses(
        "fully_shard of a module that is sharded already",
        mine.fully_shard,
        model,
        units_of(model),
        errors=(ValueError,),
        may_send=True,
    )


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
