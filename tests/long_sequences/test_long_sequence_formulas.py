"""Formulas of chapter 14 beside what the core sends and keeps, beside counted pairs of masks, beside
a ring on a timeline, and beside published runs."""

import math
from itertools import product

import pytest
import torch

from coursekit.formulas import InvalidQuantity, evaluate, quantities
from ranklab.measure.communication import CommunicationLog
from ranklab.measure.fake_ranks import fake_ranks
from shardlab.common.torch_internals import FakeTensorMode
from shardlab.context_parallel.core import (
    Context,
    GatheredAttention,
    RingAttention,
    Ulysses,
    context_parallel,
)
from shardlab.gpt import GPT, GPTConfig

RING, GATHERED, EXCHANGED = 1, 2, 3
MIXES = {RING: RingAttention, GATHERED: GatheredAttention, EXCHANGED: Ulysses}
CONTIGUOUS, ZIGZAG, STRIPED = 1, 2, 3


def value(name, **given):
    return evaluate([name], allow_unused=True, **given)[name]


def sent(log):
    """Bytes that leave a rank: of an array that is gathered, scattered or exchanged, all but one
    part."""
    totals = log.totals()
    c = max((message.group_size for message in log.messages), default=1)
    alone = totals.pop("send", (0, 0))[1]
    totals.pop("recv", None)
    return alone + sum(total.nbytes for total in totals.values()) * (c - 1) // c


@pytest.mark.ranks
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("c", [1, 2, 3, 4])
def test_bytes_of_mixes(mix, c):
    """Must catch: c turns forward, or c - 1 for the gradients; gradients that travel in 16 bits;
    the rank's own part counted as sent; queries that are not exchanged; whole heads of queries
    where fewer have keys."""
    for dtype, heads in product((torch.float32, torch.bfloat16), (12, 24)):
        config = GPTConfig(
            layers=1, hidden=96, heads=heads, key_value_heads=12, vocabulary=50, max_sequence=96
        )
        with fake_ranks(c, c - 1), FakeTensorMode():
            net = GPT(config).to(dtype)
            context_parallel(net, Context(), MIXES[mix])
            with CommunicationLog() as log:
                out = net(torch.zeros(2, 24, dtype=torch.long))
                forward = sent(log)
                out.sum().backward()
        given = quantities(**config.quantities(), microbatch=2, sequence=24, context_mix=mix)
        given |= dict(context_parallel=c, compute_element_bytes=dtype.itemsize)
        assert value("context_forward_bytes", **given) == forward
        assert value("context_sent_bytes", **given) == sent(log)
        waited = [message for message in log.messages if message.operation != "recv"]
        assert value("context_messages", **given) == len(waited)


def places(order, c, r, s):
    """The places in the sequence of a rank's tokens."""
    if order == STRIPED:
        return torch.arange(s) * c + r
    with fake_ranks(c, r):
        chunks = Context(zigzag=order == ZIGZAG).chunks(r, s)
    return torch.cat([torch.arange(chunk.start, chunk.stop) for chunk in chunks])


def seen(order, c, s):
    """Pairs of each rank with the keys of each: [c, c]."""
    of_ranks = [places(order, c, r, s) for r in range(c)]
    return torch.tensor([[(k <= q[:, None]).sum() for k in of_ranks] for q in of_ranks])


@pytest.mark.parametrize("order", [CONTIGUOUS, ZIGZAG, STRIPED])
def test_work_of_a_rank(order):
    """A ring takes as long as the slowest rank in each turn, and an efficiency is the mean work by
    that time; for long parts, where the diagonal is thin.

    Must catch: a diagonal counted whole; zigzag whose parts are both early; an order's efficiency
    by the last rank's work alone where turns differ."""
    for c, s in product((1, 2, 3, 5), (2, 6, 16)):
        pairs = seen(order, c, s)
        given = dict(context_parallel=c, sequence=s, context_order=order)
        for r in range(c):
            found = value("rank_pairs", context_rank=r, **given)
            assert found == pairs[r].sum()
            units = value("rank_units", context_rank=r, **given)
            thin = 4 / s  # of the diagonals
            law = 2 * (2 * r + 1) if order == CONTIGUOUS else 2 * c
            assert abs(units - law) <= thin * (2 if order == STRIPED else 1) * c
        assert value("causal_pairs", context_parallel=c, sequence=s) == pairs.sum()
    s, c = 256, 8
    pairs = seen(order, c, s)
    turns = [max(int(pairs[r, (r - turn) % c]) for r in range(c)) for turn in range(c)]
    efficiency = int(pairs.sum()) / c / sum(turns)
    said = value("order_efficiency", context_parallel=c, context_order=order)
    assert said == pytest.approx(efficiency, rel=0.01)


def test_published_rings():
    """Efficiencies of rings of eight GPUs (zhuzilin/ring-flash-attention@8996282, README.md): causal
    work explains the plain ring's; of the balanced ones it leaves a residual.

    Must catch: the contiguous order as c/(c + 1), the mean over the largest of sums, one by one."""
    given = dict(context_parallel=8)
    plain = value("order_efficiency", context_order=CONTIGUOUS, **given)
    for measured in (0.525, 0.539):
        assert plain == pytest.approx(measured, rel=0.02)
    assert value("order_efficiency", context_order=ZIGZAG, **given) == 1


def timeline(c, first, turn, message, gradient):
    """Seconds of the ring's forward and backward, event by event: work of a rank, and one link that
    carries messages one after the other."""
    clock = 0.0
    for number in range(c):
        work = first if number == 0 else turn
        clock += max(work, message) if number < c - 1 else work
    forward, home = clock, 0.0
    clock = 0.0
    for number in range(c):
        work = 2.5 * (first if number == 0 else turn)
        coming = message if number < c - 1 else 0.0
        clock += max(work, coming + home)
        home = gradient
    return forward, clock + (home if c > 1 else 0.0)


@pytest.mark.parametrize("order", [CONTIGUOUS, ZIGZAG])
def test_seconds_of_a_ring(order):
    """Must catch: messages in the last turn; the last gradients hidden; a first turn of whole blocks
    in the contiguous order; a threshold by all scores instead of the causal half."""
    for c, rate, s in product((1, 2, 3, 8), (1e9, 5e10, 1e12), (64, 4096)):
        given = quantities(model="Llama 3 8B", gpu="H100 SXM 80GB", microbatch=1, sequence=s)
        given |= dict(context_parallel=c, context_order=order, context_mix=RING, utilisation=0.5)
        given |= dict(score_share=0.5, compute_element_bytes=2, context_bytes_per_second=rate)
        given |= dict(context_latency_seconds=1e-6, recompute_policy=0)
        names = ["balanced_turn_seconds", "ring_turn_seconds", "ring_message_seconds"]
        names += ["ring_gradient_seconds", "ring_forward_seconds", "ring_backward_seconds"]
        names += ["layer_context_seconds", "hiding_tokens"]
        found = evaluate(names, allow_unused=True, **given)
        first, turn, message, gradient, *spent, waited, hides = found.values()
        assert turn == first * (2 if order == CONTIGUOUS else 1)
        assert tuple(spent) == pytest.approx(timeline(c, first, turn, message, gradient))
        work = 3.5 * (first + (c - 1) * turn)
        assert waited == pytest.approx(sum(spent) - work, abs=1e-12)
        law = 2 * (0.5 * 989.4e12 / rate) * 8 / 32
        assert hides == pytest.approx(law, rel=1e-2)
        without = message - 1e-6
        assert (first >= without) == (s >= hides) or first == pytest.approx(without)
