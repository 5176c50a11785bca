"""Stages 1 and 2: optimizers that keep the states of a shard. Parity, what they hold and send, what
goes wrong."""

from functools import partial

import torch
from torch import nn

from ranklab.measure.communication import CommunicationLog
from ranklab.measure.ledger import Ledger

from ..asking import (
    Here,
    Wrong,
    closest,
    demand,
    expect,
    groups,
    race_of_two,
    refuses,
    sent_at_best,
)
from ..trap_model import (
    Stumble,
    Trap,
    inputs_of,
    plain_model,
    stumble,
    trained,
    trap_loss,
)
from .trials_given import ASSIGNMENT, CLOSE, FOUR_BYTES, bytes_of, layers

BOTH = ("ShardedStates", "ShardedGradients")
SMALL_BUCKET_BYTES = 200
SETTINGS = (
    (torch.optim.SGD, dict(lr=0.1, momentum=0.9, weight_decay=0.1)),
    (torch.optim.AdamW, dict(lr=0.01, weight_decay=0.1)),
)
SGD, SGD_SETTINGS = SETTINGS[0]


def begun(here: Here) -> Trap:
    """Ranks begin with different parameters. Buffers are alike: an optimizer is not given them."""
    module = Trap(here.me)
    module.shift.copy_(Trap(0).shift)
    return module


def zeros_for_none(model: nn.Module) -> nn.Module:
    for parameter in trained(model):
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return model


def after_a_step(ranks, number: int = 0, some_rank: int = -1, factor: float = 1.0) -> nn.Module:
    """The plain model after one step of SGD with the mean gradient of these ranks."""
    model = zeros_for_none(plain_model(0, ranks, number, some_rank, factor))
    SGD(model.parameters(), **SGD_SETTINGS).step()
    return model


def compare_step(what: str, module: nn.Module, here: Here, some_rank: int = -1):
    """Each parameter after the first step of SGD, with what misconceptions lead to."""
    n = here.n
    right, before = after_a_step(range(n), 0, some_rank), Trap(0)
    others = {
        f"That is a step with the sum over {n} ranks: divide by {n}.": after_a_step(
            range(n), 0, some_rank, n
        ),
        "That is a step with the mean divided by the number of ranks once more.": after_a_step(
            range(n), 0, some_rank, 1 / n
        ),
    }
    own = [after_a_step([rank], 0, some_rank) for rank in range(n)]
    for name, wanted in right.named_parameters():
        got = module.get_parameter(name)
        instead = {said: other.get_parameter(name).detach() for said, other in others.items()}
        if got.shape == wanted.shape:
            pair = [wanted.detach(), before.get_parameter(name).detach()]
            instead[
                "Nothing changed, or some of the elements: each rank has updated its shard, and"
                " all-gather hands the shards to all."
            ] = closest(got, pair)
            instead[
                "Each element is updated with the gradient of one rank: reduce-scatter adds up"
                " those of all ranks."
            ] = closest(got, [other.get_parameter(name).detach() for other in own])
        expect(f"{what}: {name}", got, wanted.detach(), instead, CLOSE)


# --- parity ---------------------------------------------------------------------------------------


@ASSIGNMENT.trial_of_each("parity", *BOTH)
def values_of_rank_0(kind, name):
    """all ranks begin with the values of the group's rank 0, frozen parameters too"""
    for here in groups(4, 3, 2):
        module = begun(here)
        kind(module.parameters(), SGD, here.group, lr=0.1)
        own = Trap(here.me)
        for key, right in Trap(0).named_parameters():
            expect(
                f"{key} after {name}(...) on rank {here.me} of {here.n}",
                module.get_parameter(key),
                right.detach(),
                {"The ranks begin differently.": own.get_parameter(key).detach()},
                close=0,
            )


@ASSIGNMENT.trial_of_each("parity", *BOTH)
def a_step(kind, name):
    """parameters after a step of SGD, on 2, 3 and 4 ranks, with small buckets and with one"""
    for here in groups(4, 3, 2):
        for bucket_bytes in (1 << 20, SMALL_BUCKET_BYTES):
            module = begun(here)
            settings = dict(bucket_bytes=bucket_bytes, **SGD_SETTINGS)
            optimizer = kind(module.parameters(), SGD, here.group, **settings)
            trap_loss(module, here.me).backward()
            optimizer.step()
            what = f"rank {here.me} of {here.n} after a step of {name}"
            compare_step(f"{what}, bucket_bytes = {bucket_bytes}", module, here)


@ASSIGNMENT.trial_of_each("parity", *BOTH)
def three_steps(kind, name):
    """parameters after three steps of SGD with momentum and of AdamW are the plain model's"""
    for here in groups(3):
        for of, settings in SETTINGS:
            module, plain = begun(here), Trap(0)
            optimizer = kind(module.parameters(), of, here.group, **settings)
            ours = of(plain.parameters(), **settings)
            for number in range(3):
                for each in (optimizer, ours):
                    each.zero_grad()
                trap_loss(module, here.me, number).backward()
                (sum(trap_loss(plain, rank, number) for rank in range(3)) / 3).backward()
                zeros_for_none(plain)
                optimizer.step()
                ours.step()
                for key, right in plain.named_parameters():
                    expect(
                        f"{key} after step {number + 1} of {name} with {of.__name__}",
                        module.get_parameter(key),
                        right.detach(),
                        close=CLOSE,
                    )


@ASSIGNMENT.trial_of_each("parity", *BOTH)
def groups_of_parameters(kind, name):
    """two groups with settings of their own, and a learning rate that changes between steps"""
    for here in groups(2):
        module, plain = begun(here), Trap(0)

        def given(model):
            layers = [model.first, model.hidden, model.some, model.never]
            weights = [{"params": [layer.weight for layer in layers], "weight_decay": 0.5}]
            return [*weights, {"params": [layer.bias for layer in layers], "lr": 0.3}]

        module.load_state_dict(plain.state_dict())  # the frozen layer is not given
        optimizer = kind(given(module), SGD, here.group, lr=0.1)
        ours = SGD(given(plain), lr=0.1)
        for number in range(2):
            for each in (optimizer, ours):
                each.zero_grad()
            trap_loss(module, here.me, number).backward()
            (sum(trap_loss(plain, rank, number) for rank in range(2)) / 2).backward()
            zeros_for_none(plain)
            before = {key: p.detach().clone() for key, p in plain.named_parameters()}
            for each in (optimizer, ours):
                demand(
                    len(each.param_groups) == 2,
                    f"{name} of two groups of parameters has {len(each.param_groups)} param_groups:"
                    " hand on those of the optimizer inside.",
                )
                each.param_groups[1]["lr"] *= 1 + number
                each.step()
            for key, right in plain.named_parameters():
                once = before[key] + (right.detach() - before[key]) / (1 + number)
                expect(
                    f"{key} after step {number + 1} with two groups of parameters",
                    module.get_parameter(key),
                    right.detach(),
                    {
                        "The learning rate of before: param_groups are those of the optimizer"
                        " inside, so that schedulers reach it.": once
                    },
                    CLOSE,
                )


# --- bytes ----------------------------------------------------------------------------------------


@ASSIGNMENT.trial_of_each("bytes", *BOTH)
def states_of_a_shard(kind, name):
    """memory between steps: AdamW's moments of a shard, no gradient, no second copy"""
    for here in groups(4):
        with Ledger(nn.Identity()) as ledger:
            start = ledger.bytes.total
            model = layers(8)
            optimizer = kind(model.parameters(), torch.optim.AdamW, here.group, lr=1e-3)
            for _ in range(2):
                model(torch.ones(2, 64)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            more = ledger.bytes.total - start
        whole = bytes_of(model.parameters())
        more, moments = more - whole, 2 * whole // 4
        demand(
            more <= 1.6 * moments,
            f"between steps rank {here.me} of 4 holds {more:,} bytes besides parameters of"
            f" {whole:,}: AdamW's two moments of a shard are {moments:,}, those of all parameters"
            f" {2 * whole:,}. Let the optimizer inside know this rank's shards alone, and drop"
            " gradients in zero_grad.",
        )
        demand(
            more >= 0.9 * moments,
            f"between steps rank {here.me} of 4 holds {more:,} bytes besides parameters of"
            f" {whole:,}, and AdamW's two moments of a shard are {moments:,}: they must live on.",
        )


@ASSIGNMENT.trial_of_each("bytes", *BOTH)
def bytes_of_a_step(kind, name):
    """a step sends what an all-reduce sends: a reduce-scatter and an all-gather"""
    for here in groups(4, 3):
        module = begun(here)
        optimizer = kind(module.parameters(), SGD, here.group, lr=0.1)
        with CommunicationLog() as log:
            trap_loss(module, here.me).backward()
            optimizer.step()
        whole = bytes_of(trained(module))
        wanted = 2 * whole * (here.n - 1) / here.n
        padding = 4 * here.n * 8
        sent = sent_at_best(log)
        reduced = sent_at_best(log, "all_reduce reduce")
        why = ""
        if reduced >= wanted - padding:
            why = " An all-reduce gives every rank sums that it does not need: reduce-scatter."
        elif sent > wanted:
            why = " A tied parameter is sent once, a frozen one never."
        demand(
            sent <= wanted + padding,
            f"backward and step of {name} send {sent:,.0f} bytes from rank {here.me} of {here.n},"
            f" and {wanted:,.0f} are enough for {whole:,} bytes of parameters: (n - 1)/n for the"
            f" gradients, (n - 1)/n for the parameters.{why}",
        )


@ASSIGNMENT.trial("bytes", "ShardedStates")
def nothing_leaves_in_backward(mine):
    """stage 1: two backwards send nothing, and a step as much as after one"""
    for here in groups(3):
        module = begun(here)
        optimizer = mine.ShardedStates(module.parameters(), SGD, here.group, lr=0.1)
        with CommunicationLog() as log:
            for number in range(2):
                trap_loss(module, here.me, number).backward()
            in_backward = len(log.messages)
            optimizer.step()
        demand(
            in_backward == 0,
            f"two backwards of stage 1 send {in_backward} messages: gradients wait, whole, for"
            " step(), so that microbatches cost no message.",
        )


def _note_sent(seen: list[float], log: CommunicationLog, _):
    seen.append(sent_at_best(log))


@ASSIGNMENT.trial("bytes", "ShardedGradients")
def buckets_leave_early(mine):
    """stage 2: a bucket leaves backward as soon as it has all gradients"""
    for here in groups(4):
        module = begun(here)
        settings = dict(lr=0.1, bucket_bytes=SMALL_BUCKET_BYTES)
        optimizer = mine.ShardedGradients(module.parameters(), SGD, here.group, **settings)
        seen: list[float] = []
        with CommunicationLog() as log:
            watch = partial(_note_sent, seen, log)
            loss = trap_loss(module, here.me, some_rank=here.me, watch=watch)
            for parameter in trained(module):  # so that no bucket waits for what nobody uses
                loss = loss + 0 * parameter.sum()
            loss.backward()
            in_backward = sent_at_best(log)
            optimizer.step()
        least = bytes_of(trained(module)) * 3 / 4
        demand(
            in_backward >= 0.9 * least,
            f"backward of stage 2 sends {in_backward:,.0f} bytes, and the gradients are"
            f" {least:,.0f}: they are reduced in backward, and not in step().",
        )
        demand(
            bool(seen) and seen[0] > 0,
            "when backward reaches the first layer, no bucket has left: one that is complete is"
            " reduced at once, so that its gradients can go while backward makes the others.",
        )


@ASSIGNMENT.trial("bytes", "ShardedGradients")
def gradients_of_a_shard(mine):
    """stage 2: after backward the gradients of a shard; at no time all of them"""
    for here in groups(4):
        model = layers(16)
        whole = bytes_of(model.parameters())
        settings = dict(lr=0.1, bucket_bytes=whole // 16)
        optimizer = mine.ShardedGradients(model.parameters(), SGD, here.group, **settings)
        inputs = torch.ones(2, 64)
        with Ledger(model) as ledger:
            start = ledger.bytes.total
            model(inputs).sum().backward()
            after = ledger.bytes.total - start
            most = max(point.bytes.total for point in ledger.timeline) - start
        optimizer.step()
        demand(
            after <= 0.4 * whole,
            f"after backward rank {here.me} of 4 holds {after:,} bytes of gradients: all are"
            f" {whole:,}, those of a shard {whole // 4:,}. Set .grad of the model's parameters to"
            " None once their bucket is reduced.",
        )
        demand(
            most <= 0.8 * whole,
            f"at the peak of backward rank {here.me} of 4 holds {most:,} bytes more than before:"
            f" all gradients are {whole:,}, those of a shard and two buckets"
            f" {whole // 4 + whole // 8:,}. Reduce and free a bucket while backward goes on.",
        )


# --- speed ----------------------------------------------------------------------------------------


@ASSIGNMENT.trial_of_each("speed", *BOTH)
def seconds_of_a_step(kind, name):
    """backward and step of 1.3 million parameters under AdamW, on 4 ranks"""

    def stepper(of):
        model, inputs = layers(20, 256), torch.ones(8, 256)
        optimizer = of(model.parameters(), torch.optim.AdamW, lr=1e-3, bucket_bytes=1 << 20)

        def step():
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()

        return step

    return race_of_two(stepper(kind), stepper(ASSIGNMENT.reference[name]))


# --- faults ---------------------------------------------------------------------------------------


@ASSIGNMENT.trial_of_each("faults", *BOTH)
def used_on_one_rank(kind, name):
    """a layer that one rank uses: the others bring zeros, and nobody waits"""
    for here in groups(3):
        module = begun(here)
        settings = dict(bucket_bytes=SMALL_BUCKET_BYTES, **SGD_SETTINGS)
        optimizer = kind(module.parameters(), SGD, here.group, **settings)
        trap_loss(module, here.me, some_rank=1).backward()
        optimizer.step()
        what = f"rank {here.me} of 3 after a step in which rank 1 alone uses all layers"
        compare_step(what, module, here, some_rank=1)


@ASSIGNMENT.trial_of_each("faults", *BOTH)
def microbatches(kind, name):
    """the gradients of two backwards add up, and zero_grad forgets them"""
    for here in groups(3):
        module, plain = begun(here), Trap(0)
        optimizer = kind(module.parameters(), SGD, here.group, lr=0.1)
        ours = SGD(plain.parameters(), lr=0.1)
        for step in range(2):
            lone = Trap(0)
            for number in (0, 1):
                trap_loss(module, here.me, number).backward()
                (sum(trap_loss(plain, rank, number) for rank in range(3)) / 3).backward()
            lone.load_state_dict(plain.state_dict())
            (sum(trap_loss(lone, rank, 1) for rank in range(3)) / 3).backward()
            SGD(lone.parameters(), lr=0.1).step()
            optimizer.step()
            ours.step()
            for key, right in plain.named_parameters():
                expect(
                    f"{key} after step {step + 1} of two backwards each",
                    module.get_parameter(key),
                    right.detach(),
                    {"The first backward is lost.": lone.get_parameter(key).detach()},
                    CLOSE,
                )
            for each in (optimizer, ours):
                each.zero_grad()


@ASSIGNMENT.trial_of_each("faults", *BOTH)
def loaded_weights(kind, name):
    """weights that are loaded between steps are where the next step begins"""
    for here in groups(2):
        module, plain = begun(here), Trap(0)
        optimizer = kind(module.parameters(), SGD, here.group, lr=0.1)
        trap_loss(module, here.me).backward()
        optimizer.step()
        optimizer.zero_grad()
        stale = {key: p.detach().clone() for key, p in module.named_parameters()}
        module.load_state_dict(Trap(5).state_dict())
        plain.load_state_dict(Trap(5).state_dict())
        trap_loss(module, here.me, 1).backward()
        (sum(trap_loss(plain, rank, 1) for rank in range(2)) / 2).backward()
        optimizer.step()
        for key, right in plain.named_parameters():
            right = right.detach()
            if plain.get_parameter(key).grad is not None:
                right = right - 0.1 * plain.get_parameter(key).grad
            got = module.get_parameter(key)
            expect(
                f"{key} after a step from loaded weights",
                got,
                right,
                {
                    "The load is lost: the shard is a copy that remembers what was there before;"
                    " make it a view of the parameters' memory, or fill it in step().": (
                        closest(got, [stale[key], stale[key] + right - Trap(5).get_parameter(key)])
                    )
                },
                CLOSE,
            )


@ASSIGNMENT.trial_of_each("faults", *BOTH)
def fewer_elements_than_ranks(kind, name):
    """buckets of one or two elements on four ranks"""
    for here in groups(4):
        weights = [nn.Parameter(torch.full((size,), 1.0 + here.me)) for size in (1, 2, 5)]
        optimizer = kind(weights, SGD, here.group, lr=1.0, bucket_bytes=FOUR_BYTES)
        for weight in weights:
            (weight * (here.me + 1.0)).sum().backward()
        optimizer.step()
        for weight in weights:
            expect(
                f"{len(weight)} weights of 1 after a step with gradients 1, 2, 3 and 4",
                weight,
                torch.full((len(weight),), 1 - 2.5),
            )


@ASSIGNMENT.trial("faults", "ShardedGradients")
def after_an_error(mine):
    """stage 2: a backward that raised halfway leaves nothing behind, after zero_grad"""
    for here in groups(3):
        module = begun(here)
        settings = dict(bucket_bytes=SMALL_BUCKET_BYTES, **SGD_SETTINGS)
        optimizer = mine.ShardedGradients(module.parameters(), SGD, here.group, **settings)
        try:
            (module(inputs_of(here.me, 1), watch=stumble) ** 2).mean().backward()
        except Stumble:
            pass
        else:
            raise Wrong("an exception inside backward did not come out of backward().")
        optimizer.zero_grad()
        trap_loss(module, here.me).backward()
        optimizer.step()
        compare_step(f"rank {here.me} of 3 after a backward that raised", module, here)


@ASSIGNMENT.trial_of_each("faults", *BOTH)
def wrong_arguments(kind, name):
    """nothing to train, bucket_bytes of 0"""
    frozen = list(Trap(0).requires_grad_(False).parameters())
    for what, parameters, bucket_bytes in (
        ("no trained parameter", frozen, 100),
        ("no parameter", [], 100),
        ("bucket_bytes = 0", list(Trap(0).parameters()), 0),
        ("bucket_bytes = -1", list(Trap(0).parameters()), -1),
    ):
        refuses(
            f"{name} with {what}",
            kind,
            parameters,
            SGD,
            lr=0.1,
            bucket_bytes=bucket_bytes,
            errors=(ValueError,),
            may_send=True,  # ranks may ask each other first
        )
