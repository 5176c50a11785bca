"""Formulas of chapter 14 beside what the core sends and keeps, counted pairs of masks, a ring on a
timeline, and published runs."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from dtypes import default_dtype
from solved import value
from torch.utils.checkpoint import checkpoint

from coursekit.formulas import InvalidQuantity, evaluate, quantities
from coursekit.planner.layout import FUSED_LOSS
from coursekit.planner.plan import plan
from coursekit.planner.speeds import SPEEDS
from coursekit.topics.long_sequences.published import (
    ALST,
    FITTED_SCORES,
    NEMO,
    PUBLISHED_RINGS,
    TORCHTITAN,
)
from coursekit.topics.which_layout import referee
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


def sent(log):
    """Bytes that leave a rank: of an array that is gathered, scattered or exchanged, all but one
    part."""
    totals = log.totals()
    c = max((message.group_size for message in log.messages), default=1)
    alone = totals.pop("send", (0, 0))[1]
    totals.pop("recv", None)
    return alone + sum(total.nbytes for total in totals.values()) * (c - 1) // c


@pytest.mark.ranks
@pytest.mark.one_in(5)  # each mix on ranks of its own
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
        with fake_ranks(c, c - 1), FakeTensorMode(), default_dtype(dtype):
            net = context_parallel(GPT(config), Context(), MIXES[mix])
            with CommunicationLog() as log:
                out = net(torch.zeros(2, 24, dtype=torch.long))
                forward = sent(log)
                out.sum().backward()
        given = quantities(**config.quantities(), microbatch=2, sequence=24, context_mix=mix)
        given |= dict(context_parallel=c, compute_element_bytes=dtype.itemsize)
        assert value("context_forward_bytes", **given) == forward
        assert value("context_sent_bytes", **given) == sent(log)
        waited = [one for one in log.messages if one.operation != "recv" and one.group_size > 1]
        assert value("context_messages", **given) == len(waited)


def test_a_ring_beside_an_exchange_of_heads():
    """The ratios of the page. Must catch: gradients home after c turns in fp32, or in 16 bits
    all the way."""
    for heads, element, times in ((64, 4, 6.3), (8, 4, 1.4), (64, 2, 8.3), (8, 2, 1.8)):
        given = dict(layers=1, hidden=8192, heads=64, key_value_heads=heads, vocabulary=50)
        given = quantities(**GPTConfig(**given, max_sequence=96).quantities(), microbatch=1)
        given |= dict(sequence=4096, context_parallel=8, compute_element_bytes=element)
        sends = [value("context_sent_bytes", **given, context_mix=mix) for mix in (RING, EXCHANGED)]
        assert sends[0] / sends[1] == pytest.approx(times, abs=0.05)
        own = 4096 * 128 * heads  # keys of a rank's tokens
        assert sends[0] == own * (4 * (3 * 8 - 2) * 2 if element == 4 else 4 * (4 * 8 - 3))


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
    """Must catch: a diagonal counted whole; zigzag whose parts are both early; an order's
    efficiency by the last rank's work alone where turns differ."""
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
    """Must catch: the contiguous order as c/(c + 1), the mean by the largest of ranks' sums."""
    for ring in PUBLISHED_RINGS:
        bound = value("order_efficiency", context_parallel=8, context_order=ring.order)
        left = {CONTIGUOUS: (-0.02, 0.02), ZIGZAG: (0.09, 0.11), STRIPED: (0.16, 0.18)}
        least, most = left[ring.order]
        assert least <= bound - ring.share <= most, ring


def test_published_peaks_of_long_sequences():
    """SimuMax within 1 %, torchtitan within 3 %. Must catch: an output that is kept once where
    heads are exchanged, or as often as by a kernel that copies it; the whole sequence on each rank;
    states shared by data-parallel ranks alone."""
    rows = [row for row in referee.peak_rows(FUSED_LOSS) if int(row["context_parallel"]) > 1]
    errors = [referee.bytes_error(row) for row in rows]
    assert len(rows) == 7 and max(map(abs, errors)) < 1
    for mix, more in ((RING, 6), (EXCHANGED, 0)):  # nanotron's kernels keep seven outputs
        given = dict(kernels="nanotron", context_parallel=2, context_mix=mix)
        assert value("more_attention_outputs", **given) == more
    for run in TORCHTITAN:
        assert run.predicted_peak_gib == pytest.approx(run.peak_gib, rel=0.03)
        (row,) = [
            row
            for row in referee.peak_rows("FSDP2, compiled")
            if row["name"].startswith("Llama 3.1 8B") and int(row["sequence"]) == run.sequence
        ]
        assert float(row["reserved_GiB"]) == run.peak_gib
        assert referee.peak_bytes(row) == run.predicted_peak_gib * 2**30


def test_published_seconds_of_long_sequences():
    """Within 15 %. Must catch: attention among a rank's own tokens alone; products in fp8 at the
    rate of 16 bits; a share that was tuned to one run."""
    largest = lambda scores: max(
        abs(run.predicted_seconds(scores) / run.seconds - 1) for run in TORCHTITAN
    )
    assert largest(FITTED_SCORES) < 0.15
    assert largest(FITTED_SCORES) <= min(largest(FITTED_SCORES - 0.1), largest(FITTED_SCORES + 0.1))
    assert [run.seconds for run in TORCHTITAN] == sorted(run.seconds for run in TORCHTITAN)


def test_the_longest_runs_fit():
    """ALST's three runs. Must catch: inner tensors of all tokens beside tiles; logits of all
    tokens; checkpoints that are on the GPU as well, or nowhere; tiles of layers that keep
    everything."""
    for run in ALST:
        assert run.layout().fits
        assert not run.layout(sequence_tiles=1).fits
        assert not run.layout(checkpoints_on_host=0).fits
        tokens = run.sequence // run.gpus
        moved = [run.layout(checkpoints_on_host=on).solved() for on in (0, 1)]
        assert moved[1]["rank_host_bytes"] - moved[0]["rank_host_bytes"] == 2 * 32 * 4096 * tokens
        assert moved[0]["rank_peak_bytes"] - moved[1]["rank_peak_bytes"] == 2 * 31 * 4096 * tokens
        with pytest.raises(InvalidQuantity, match="give recompute_policy = 3"):
            run.layout(recompute_policy=0).solved()


@pytest.mark.slow
def test_shared_sequences_are_faster():
    """NVIDIA's table for B200s, within 4 % up to 131,072 tokens. Must catch: ranks that share a
    sequence and wait for each message; tensor parallelism that costs nothing; sequences that are
    shared where whole ones are as fast."""
    for run in NEMO["Llama 3 8B"][:6]:
        gpus = run.sequence // 1024
        asked = dict(gpu="B200 SXM", gpus=gpus, batch=4096 // gpus, sequence=run.sequence, most=1)
        shared = plan("Llama 3 8B", **asked, context_parallel=(1, 2, 4, 8, 16)).best[0]
        if run.sequence > 131_072:
            assert run.shared / run.whole > 1.35 and shared.layout.context_parallel > 1
            with pytest.raises(InvalidQuantity, match="no layout"):
                plan("Llama 3 8B", **asked, context_parallel=1)
            continue
        (whole,) = plan("Llama 3 8B", **asked, context_parallel=1).best
        gain = whole.seconds / shared.seconds
        assert gain == pytest.approx(run.shared / run.whole, rel=0.04)
        assert (shared.layout.context_parallel > 1) == (run.shared > run.whole)


@pytest.mark.slow
def test_half_of_the_gain_on_h100s(monkeypatch):
    """Products as fast as in fp8, all messages in the open: the gains that the page prints.

    Must catch: another gain than the page's."""
    in_fp8 = dict(utilisation=0.9, score_share=1.0, hidden_message_share=0.0)
    monkeypatch.setitem(SPEEDS, "fp8", replace(SPEEDS["Megatron-LM on H100"], **in_fp8))
    gains = []
    for run in NEMO["Llama 7B"][2:4]:
        gpus = run.sequence // 1024
        asked = dict(gpu="H100 SXM 80GB", gpus=gpus, batch=4096 // gpus, sequence=run.sequence)
        asked |= dict(kernels=FUSED_LOSS, speed="fp8", most=1)
        shared, whole = (
            plan("Llama 7B", **asked, context_parallel=c).best[0] for c in ((1, 2, 4, 8, 16), 1)
        )
        gains += [whole.seconds / shared.seconds, run.shared / run.whole]
    assert [round(gain, 2) for gain in gains] == [1.12, 1.07, 1.17, 1.31]


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
    return forward, clock + (message if c > 1 else 0.0)


@pytest.mark.parametrize("order", [CONTIGUOUS, ZIGZAG])
def test_seconds_of_a_ring(order):
    """Must catch: messages in the last turn; the last gradients hidden; a first turn of whole
    blocks in the contiguous order; a threshold by all scores instead of the causal half."""
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


@pytest.mark.parametrize(
    "tokens, window, sinks", [(24, 5, 3), (24, 1, 0), (8, 24, 2), (30, 10, 40)]
)
def test_pairs_of_masks(tokens, window, sinks):
    """Must catch: a window that leaves the token itself out; sinks counted in windows that hold
    them, or before they are there; a turn less where a window ends in a part; the blocks before
    the first full row of blocks."""
    q, k = torch.arange(tokens)[:, None], torch.arange(tokens)
    near, causal = q - k < window, k <= q
    given = dict(context_parallel=2, sequence=tokens // 2, window_tokens=window, sink_tokens=sinks)
    assert value("window_pairs", **given) == (causal & (near | (k < sinks))).sum()
    assert value("near_pairs", **given) == (causal & near).sum()
    for c in (2, 3, 4, 6):
        s = tokens // c
        turns = max((q // s - k // s)[causal & near].tolist())
        given |= dict(context_parallel=c, sequence=s)
        assert tokens % c or value("window_turns", **given) == turns
    for block, blocks in ((2, 1), (2, 3), (1, 2), (2, 50)):
        sees = causal & (q // block - k // block < blocks)
        given = dict(context_parallel=2, sequence=tokens // 2, microbatch=1, heads=3)
        given |= dict(sparse_block=block, sparse_blocks=blocks, compute_element_bytes=2)
        assert value("sparse_pairs", **given) == sees.sum()
        assert value("sparse_share", **given) == sees.sum() / causal.sum()
        stored = sees.unfold(0, block, block).unfold(1, block, block).flatten(2).any(-1).sum()
        assert value("sparse_stored_bytes", **given) == 2 * 3 * block**2 * stored


@pytest.mark.parametrize("tiles", [1, 2, 5, 22])
def test_bytes_of_tiles(tiles):
    """Must catch: a tile as the tokens by the tiles, rounded down; the inner size of all ranks."""
    sizes, given = [], dict(microbatch=1, sequence=22, sequence_tiles=tiles)
    given |= dict(feed_forward=96, vocabulary=80, compute_element_bytes=4, loss_logit_bytes=4)

    def inner(x, size):
        y = x @ torch.ones(x.shape[-1], size)
        sizes.append(y.nbytes)
        return y.sum(-1, keepdim=True)

    for name, size in (("tiled_inner_bytes", 96), ("tiled_logit_bytes", 80)):
        sizes.clear()
        x = torch.ones(22, 8, requires_grad=True)
        parts = x.chunk(tiles) if tiles < 22 else x.split(1)
        parts = [checkpoint(inner, part, size, use_reentrant=False) for part in parts]
        torch.cat(parts).sum().backward()
        assert value(name, **given) == max(sizes) and len(sizes) >= tiles
