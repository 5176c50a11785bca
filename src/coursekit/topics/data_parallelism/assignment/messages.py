"""What is sent when, what is held, and in how many seconds?"""

from functools import partial

import torch
from torch import nn

from coursekit.exercises.on_a_rank import demand, groups, race_of_two
from coursekit.exercises.trap_model import trained, trap_loss
from shardlab import data_parallel
from shardlab.measure.communication import CommunicationLog
from shardlab.measure.ledger import Ledger

from .given import ASSIGNMENT, DDP, SMALL_BUCKET_BYTES, replicas_of

# --- bytes ---------------------------------------------------------------------------------------


@ASSIGNMENT.trial("bytes", DDP)
def messages_by_bucket(mine):
    """one all-reduce for each bucket, of its gradients and at most a flag for each"""
    for here in groups(4):
        for bucket_bytes in (SMALL_BUCKET_BYTES, 1 << 20):
            model, module = replicas_of(mine, here, bucket_bytes)
            loss = trap_loss(model, here.me)
            with CommunicationLog() as log:
                loss.backward()
            parameters = trained(module)
            buckets = data_parallel.make_buckets(reversed(parameters), bucket_bytes)
            names = sorted({message.operation for message in log.messages})
            demand(
                names == ["all_reduce"],
                f"backward sends {', '.join(names) or 'nothing'}: each bucket is one all_reduce.",
            )
            count = len(log.messages)
            demand(
                count == len(buckets),
                f"backward with bucket_bytes = {bucket_bytes} sends {count} messages, and there are"
                f" {len(buckets)} buckets"
                f" of {len(parameters)} parameters: each bucket is one flat message.",
            )
            least = sum(parameter.nbytes for parameter in parameters)
            most = least + 8 * len(parameters)  # flags
            nbytes = sum(message.nbytes for message in log.messages)
            demand(
                least <= nbytes <= most,
                f"backward sends {nbytes:,} bytes: the gradients have {least:,}, with a flag for"
                f" each of {len(parameters)} parameters {most:,}. A tied parameter is sent once, a"
                " frozen one never.",
            )


def _note_count(seen: list[int], log: CommunicationLog, _):
    seen.append(len(log.messages))


@ASSIGNMENT.trial("bytes", DDP)
def buckets_leave_early(mine):
    """the first buckets leave before backward reaches the first layer"""
    for here in groups(4):
        model, _ = replicas_of(mine, here)
        seen: list[int] = []
        with CommunicationLog() as log:
            watch = partial(_note_count, seen, log)
            loss = trap_loss(model, here.me, some_rank=here.me, watch=watch)
            before = len(log.messages)
            demand(
                before == 0,
                f"forward sends {before} messages: parameters are alike already, so nothing is"
                " sent before backward.",
            )
            # the parameter that no rank uses is in the first bucket, and would hold all others
            for parameter in model.parameters():
                if parameter.requires_grad:
                    loss = loss + 0 * parameter.sum()
            loss.backward()
        demand(
            bool(seen) and seen[0] > 0,
            f"when backward reaches the first layer, {seen[0] if seen else 0} of"
            f" {len(log.messages)} buckets have left: a complete bucket leaves at once, so that its"
            " sum travels while backward goes on.",
        )


@ASSIGNMENT.trial("bytes", DDP)
def gradients_are_held_once(mine):
    """memory after backward: each gradient once, no bucket beside it"""
    for here in groups(2):
        model, module = replicas_of(mine, here)
        trap_loss(model, here.me).backward()  # whatever is made once is there
        model.zero_grad(set_to_none=True)
        with Ledger(module) as ledger:
            start = ledger.bytes.total
            loss = trap_loss(model, here.me)
            loss.backward()
            del loss
            more = ledger.bytes.total - start
        parameters = trained(module)
        gradients = sum(parameter.nbytes for parameter in parameters)
        demand(
            more <= 1.5 * gradients,
            f"after backward rank {here.me} holds {more:,} bytes more than before, of which"
            f" gradients are {gradients:,}: make .grad a view of its bucket, or copy back and drop"
            " the bucket.",
        )


# --- speed ---------------------------------------------------------------------------------------


@ASSIGNMENT.trial("speed", DDP)
def seconds_of_a_step(mine):
    """a backward of 1.3 million parameters in buckets of 1 MB, on 4 ranks"""

    def backward(kind):
        torch.manual_seed(0)
        layers = [nn.Linear(256, 256) for _ in range(20)]
        model = kind(nn.Sequential(*layers), 1 << 20)
        inputs = torch.randn(8, 256)

        def step():
            model.zero_grad(set_to_none=True)
            model(inputs).square().mean().backward()

        return step

    return race_of_two(backward(mine.DistributedDataParallel), backward(ASSIGNMENT.reference[DDP]))
