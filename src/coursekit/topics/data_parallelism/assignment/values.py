"""Are buckets, values and gradients right?"""

import torch
from torch import nn

from coursekit.exercises.on_a_rank import demand, expect, groups
from coursekit.exercises.trap_model import Trap, plain_model, trap_loss
from shardlab import data_parallel

from .given import (
    ASSIGNMENT,
    CLOSE,
    DDP,
    LEARNING_RATE,
    SMALL_BUCKET_BYTES,
    compare,
    misread,
    replicas_of,
)


@ASSIGNMENT.trial("parity", "make_buckets")
def buckets_of_parameters(mine):
    """buckets in the given order, closed at bucket_bytes, of one dtype each"""
    sizes = (3, 5, 1, 8, 2, 2, 30, 1)
    parameters = [nn.Parameter(torch.zeros(size)) for size in sizes]
    for bucket_bytes in (1, 16, 32, 33, 10_000):
        found = mine.make_buckets(iter(parameters), bucket_bytes)
        demand(
            isinstance(found, list) and all(isinstance(bucket, list) for bucket in found),
            "make_buckets should return a list of lists of parameters.",
        )
        got = [[p.numel() for p in bucket] for bucket in found]
        wanted = [
            [p.numel() for p in bucket]
            for bucket in data_parallel.make_buckets(parameters, bucket_bytes)
        ]
        why = ""
        if [] in got:
            why = " No bucket is empty."
        elif sum(map(sum, got)) < sum(sizes):
            why = " Parameters are missing: the last bucket may be small."
        elif got != wanted:
            why = " A bucket is closed once it holds bucket_bytes or more, and no earlier."
        demand(
            got == wanted,
            f"make_buckets of parameters of {', '.join(map(str, sizes))} elements of 4 bytes, with"
            f" bucket_bytes = {bucket_bytes}, should give buckets of {_words(wanted)} elements, and"
            f" gives {_words(got)}.{why}",
        )
    mixed = [
        nn.Parameter(torch.zeros(3, dtype=dtype))
        for dtype in (torch.float32, torch.bfloat16, torch.float32, torch.bfloat16)
    ]
    found = mine.make_buckets(mixed, 10_000)
    demand(
        all(len({p.dtype for p in bucket}) == 1 for bucket in found),
        "make_buckets puts float32 and bfloat16 into one bucket: a message has one dtype.",
    )
    demand(
        sorted(id(p) for bucket in found for p in bucket) == sorted(map(id, mixed)),
        "make_buckets of two dtypes should put each parameter into one bucket.",
    )


def _words(buckets) -> str:
    return " | ".join(" + ".join(map(str, bucket)) or "nothing" for bucket in buckets)[:200]


@ASSIGNMENT.trial("parity", DDP)
def values_of_rank_0(mine):
    """parameters and buffers of the group's rank 0, frozen ones too"""
    for here in groups(4, 3, 2):
        _, module = replicas_of(mine, here)
        wanted, own = Trap(0), Trap(here.me)
        for kind, tensors in (
            ("parameter", wanted.named_parameters()),
            ("buffer", wanted.named_buffers()),
        ):
            for name, right in tensors:
                get = module.get_parameter if kind == "parameter" else module.get_buffer
                other = (own.get_parameter if kind == "parameter" else own.get_buffer)(name)
                expect(
                    f"{kind} {name} on rank {here.me} of {here.n}",
                    get(name),
                    right.detach(),
                    {"The ranks begin differently: hand out rank 0's values.": other.detach()},
                    close=0,
                )


@ASSIGNMENT.trial("parity", DDP)
def every_gradient(mine):
    """every gradient is the mean over 2, 3 and 4 ranks, with small buckets and with one"""
    for here in groups(4, 3, 2):
        for bucket_bytes in (1, SMALL_BUCKET_BYTES, 1 << 20):
            model, module = replicas_of(mine, here, bucket_bytes)
            trap_loss(model, here.me).backward()
            what = f"rank {here.me} of {here.n}, bucket_bytes = {bucket_bytes}"
            compare(what, module, plain_model(0, range(here.n)), misread(here))


@ASSIGNMENT.trial("parity", DDP)
def three_steps(mine):
    """parameters after three steps of SGD with weight decay are the plain model's"""
    for here in groups(3):
        model, module = replicas_of(mine, here)
        plain = Trap(0)
        settings = dict(lr=LEARNING_RATE, weight_decay=0.1)
        theirs = torch.optim.SGD(model.parameters(), **settings)
        ours = torch.optim.SGD(plain.parameters(), **settings)
        for number in range(3):
            theirs.zero_grad()
            ours.zero_grad()
            trap_loss(model, here.me, number).backward()
            (sum(trap_loss(plain, rank, number) for rank in range(3)) / 3).backward()
            theirs.step()
            ours.step()
            for name, right in plain.named_parameters():
                expect(
                    f"{name} after step {number + 1} on rank {here.me} of 3",
                    module.get_parameter(name),
                    right.detach(),
                    close=CLOSE,
                )
