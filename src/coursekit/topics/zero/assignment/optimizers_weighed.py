"""Stages 1 and 2: what a shard holds and sends, and in how many seconds."""

from functools import partial

import torch
from torch import nn

from coursekit.exercises.on_a_rank import demand, groups, race_of_two, sent_at_best
from coursekit.exercises.trap_model import trained, trap_loss
from shardlab.measure.communication import CommunicationLog
from shardlab.measure.ledger import Ledger

from .given import ASSIGNMENT, bytes_of, layers
from .steps import BOTH, SGD, SMALL_BUCKET_BYTES, begun

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
