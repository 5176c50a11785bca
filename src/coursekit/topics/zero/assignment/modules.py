"""Stage 3: modules whose parameters are shards."""

from functools import partial

import torch

from coursekit.exercises.on_a_rank import Wrong, demand, expect, groups, refuses
from coursekit.exercises.trap_model import Stumble, inputs_of, stumble

from .given import ASSIGNMENT, CLOSE, bytes_of, layers
from .stacks import (
    SGD,
    SHARD,
    WHOLE,
    Stack,
    compare_whole,
    held_besides_shards,
    mean_stack_loss,
    sharded_stack,
    stack_loss,
    stepped_stack,
    units_of,
)

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
