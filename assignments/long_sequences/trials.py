"""Trials of the assignment: ring attention. README.md beside this file says what a learner
builds."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from coursekit.exercises.assignments import Assignment
from coursekit.topics.long_sequences.exercises import places_in_zigzag
from ranklab.measure.communication import CommunicationLog
from shardlab.context_parallel import core, core_ring

from ..asking import Here, demand, expect, groups, refuses

ZIGZAG, MERGE, RING = "zigzag", "merge", "ring_attention"


def merged(out, lse, part, part_lse):
    both = torch.logaddexp(lse, part_lse)
    return (lse - both).exp() * out + (part_lse - both).exp() * part, both


def ring(q, k, v, group=None):
    if q.shape[2] % 2:
        raise ValueError(f"{q.shape[2]} tokens on a rank: it has two chunks.")
    return core_ring.RingOfKeys.apply(q, k, v, core_ring.Blocks(core.Context(group)))


REFERENCE = {ZIGZAG: places_in_zigzag, MERGE: merged, RING: ring}
ASSIGNMENT = Assignment(
    "long_sequences",
    reference=REFERENCE,
    core=REFERENCE,
    forbidden=("torch.distributed.tensor", "torch.distributed.nn"),
)
HEADS, SIZE, EACH = 2, 3, 4  # tokens of a rank
CLOSE = 1e-12  # of sums of a few numbers in float64


def drawn(seed: int, *sizes: int) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sequences(ranks: int, scale: float = 1.0) -> list[Tensor]:
    """q, k and v of the whole sequence."""
    sizes = 2, HEADS, EACH * ranks, SIZE
    return [(scale * drawn(seed, *sizes)).requires_grad_() for seed in range(3)]


def own(here: Here, x: Tensor) -> Tensor:
    return x[:, :, places_in_zigzag(here.me, here.n, EACH * here.n)]


def run(mine, here: Here, scale: float = 1.0) -> tuple[list[Tensor], list[Tensor]]:
    """(this rank's output and gradients by the ring, the plain ones)"""
    whole = sequences(here.n, scale)
    right = scaled_dot_product_attention(*whole, is_causal=True)
    weights = drawn(7, *right.shape)
    (right * weights).sum().backward()
    parts = [own(here, x.detach()).clone().requires_grad_() for x in whole]
    made = mine.ring_attention(*parts, here.group)
    expect(f"the output of rank {here.me} of {here.n}", made, own(here, right).detach(), close=1e9)
    (made * own(here, weights)).sum().backward()
    plain = [own(here, x).detach() for x in (right, *(x.grad for x in whole))]
    return [made, *(part.grad for part in parts)], plain


# --- parity ---------------------------------------------------------------------------------------


@ASSIGNMENT.trial("parity", ZIGZAG)
def places(mine):
    """chunk r from the beginning and chunk r from the end"""
    for ranks in (1, 2, 3, 4):
        found = [list(mine.zigzag(rank, ranks, 24)) for rank in range(ranks)]
        demand(
            sorted(sum(found, [])) == list(range(24)),
            f"on {ranks} ranks some of 24 places are missing, or come twice.",
        )
        work = [sum(places) for places in found]
        demand(
            len({*work}) == 1,
            f"on {ranks} ranks, queries see unequally many keys: a rank has a chunk from the end,"
            " too.",
        )
        right = [places_in_zigzag(rank, ranks, 24) for rank in range(ranks)]
        demand(found == right, "a rank's first chunk is that from the beginning, in order.")


@ASSIGNMENT.trial("parity", MERGE)
def merges(mine):
    """two parts of a softmax, and a part of no key"""
    scores, values = drawn(1, 5, 8), drawn(2, 8, 3)
    parts = [
        (scores[:, of].softmax(-1) @ values[of], scores[:, of].logsumexp(-1, keepdim=True))
        for of in (slice(3), slice(3, 8))
    ]
    out, lse = mine.merge(*parts[0], *parts[1])
    instead = {
        "That is the mean of both outputs: weigh each by its share of the sum.": (
            parts[0][0] + parts[1][0]
        )
        / 2,
        "That is their sum: the weights of both add up to 1.": parts[0][0] + parts[1][0],
    }
    expect("the merged output", out, scores.softmax(-1) @ values, instead, CLOSE)
    expect("the merged lse", lse, scores.logsumexp(-1, keepdim=True), None, CLOSE)


@ASSIGNMENT.trial("parity", RING)
def outputs(mine):
    """each query sees the keys up to its own place"""
    for here in groups(4, 3, 2):
        found, plain = run(mine, here)
        expect(
            f"the output of rank {here.me} of {here.n}",
            found[0],
            plain[0],
            {"These queries see later tokens: mask by places in the sequence.": seen_all(here)},
            CLOSE,
        )


def seen_all(here: Here) -> Tensor:
    return own(here, scaled_dot_product_attention(*sequences(here.n))).detach()


@ASSIGNMENT.trial("parity", RING)
def gradients(mine):
    """of queries, keys and values, of the sum of all ranks' losses"""
    for here in groups(4, 3, 2):
        found, plain = run(mine, here)
        for name, got, right in zip("qkv", found[1:], plain[1:]):
            what = f"the gradient of rank {here.me}'s {name}"
            instead = {f"That is divided by {here.n}.": right / here.n}
            expect(what, got, right, instead, CLOSE)


# --- bytes ----------------------------------------------------------------------------------------


@ASSIGNMENT.trial("bytes", RING)
def keys_and_values_alone(mine):
    """keys and values c - 1 times in forward"""
    for here in groups(4):
        parts = [own(here, x.detach()) for x in sequences(4)]
        with CommunicationLog() as log:
            mine.ring_attention(*parts, here.group)
        sent = sum(m.nbytes for m in log.messages if "recv" not in m.operation)
        right = 3 * 2 * parts[1].numel() * 8
        demand(sent == right, f"forward sends {sent} bytes; keys and values, 3 times, are {right}.")


# --- faults ---------------------------------------------------------------------------------------


@ASSIGNMENT.trial("faults", MERGE)
def large_scores(mine):
    """log-sum-exps near 900"""
    one = torch.ones(2, 3, dtype=torch.float64)
    lse = torch.full((2, 1), 900.0, dtype=torch.float64)
    out, both = mine.merge(one, lse, 3 * one, lse - 1)
    share = 1 / (1 + torch.e)
    demand(
        bool(out.isfinite().all() and both.isfinite().all()),
        "of lse near 900 come numbers that are not finite: subtract the larger one before exp.",
    )
    expect("the merged output", out, one + 2 * share * one, None, CLOSE)


@ASSIGNMENT.trial("faults", RING)
def odd_tokens(mine):
    """three tokens on each rank"""
    for here in groups(2):
        x = drawn(here.me, 1, HEADS, 3, SIZE)
        refuses("three tokens on a rank", mine.ring_attention, x, x, x, here.group)
