"""What do copies and agreements cost, and in how many seconds?"""

import torch
from torch import nn

from coursekit.exercises.on_a_rank import demand, race_of_two
from shardlab.measure.communication import CommunicationLog
from shardlab.measure.ledger import Ledger

from .given import AGREEMENT_BYTES, ASSIGNMENT, MASTERS, SCALER

# --- bytes ---------------------------------------------------------------------------------------


@ASSIGNMENT.trial("bytes", MASTERS)
def memory_between_steps(mine):
    """12 bytes for each 16-bit element after zero_grad: a copy and two moments"""
    model = nn.Linear(300, 300, bias=False).bfloat16()
    weight = model.weight
    with Ledger(model) as ledger:
        start = ledger.bytes.total
        optimizer = mine.MasterWeights(model.parameters(), torch.optim.AdamW, lr=1e-3)
        for _ in range(2):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
            optimizer.zero_grad()
        more = ledger.bytes.total - start
    each = more / weight.numel()
    demand(
        each <= 12.1,
        f"between steps a bf16 element costs {each:.1f} bytes besides its own 2: the copy and"
        " AdamW's moments are 12. Drop gradients in fp32 with zero_grad, and keep one copy.",
    )
    demand(
        each >= 11.9,
        f"between steps a bf16 element costs {each:.1f} bytes besides its own 2, and a copy and two"
        " moments in fp32 are 12: something is not fp32, or is not kept.",
    )


@ASSIGNMENT.trial("bytes", SCALER)
def bytes_of_an_agreement(mine):
    """unscale_ sends one small message, step and update none"""
    weight = nn.Parameter(torch.zeros(1000))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = mine.LossScaler(init_scale=8.0)
    scaler.scale(weight.sum()).backward()
    counts = []
    for call in (lambda: scaler.unscale_(optimizer), lambda: scaler.step(optimizer), scaler.update):
        with CommunicationLog() as log:
            call()
        counts.append((len(log.messages), sum(message.nbytes for message in log.messages)))
    demand(
        counts[0][0] == 1 and counts[0][1] <= AGREEMENT_BYTES,
        f"unscale_ sends {counts[0][0]} messages of {counts[0][1]:,} bytes in all: one flag,"
        " reduced over all ranks, is enough.",
    )
    demand(
        counts[1][0] == counts[2][0] == 0,
        f"step and update send {counts[1][0]} and {counts[2][0]} messages: unscale_ has asked.",
    )


# --- speed ---------------------------------------------------------------------------------------


@ASSIGNMENT.trial("speed", MASTERS)
def seconds_of_an_update(mine):
    """an update of a million bf16 elements by AdamW"""

    def update(kind):
        weights = [nn.Parameter(torch.ones(100_000, dtype=torch.bfloat16)) for _ in range(10)]
        optimizer = kind(weights, torch.optim.AdamW, lr=1e-3)

        def step():
            for weight in weights:
                weight.grad = torch.ones_like(weight)
            optimizer.step()
            optimizer.zero_grad()

        return step

    return race_of_two(update(mine.MasterWeights), update(ASSIGNMENT.reference[MASTERS]))
