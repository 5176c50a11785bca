"""Trials of the assignment: FlashAttention-2 in tiles. README.md beside this file says what a
learner builds."""

from contextlib import contextmanager

import torch

from coursekit.exercises.assignments import Assignment
from shardlab.kernels.attention import attention_backward, attention_forward
from shardlab.kernels.tiles import tl

from ..asking import demand, expect, held, race_of_two, refuses

CLASS, TILE, CLOSE = "FlashAttention", 16, 2e-5
LARGEST = (2, 96, 96, 32)  # sequences, queries, keys, columns of the trials of bytes


class OfTheShelf(torch.autograd.Function):
    """The book's kernels as the README wants them."""

    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        if k.shape != v.shape or q.shape[-1] != k.shape[-1] or q.shape[0] != k.shape[0]:
            raise ValueError(f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}")
        heads = [x[:, None] for x in (q, k, v)]
        out, log_sums = attention_forward(*heads, is_causal, TILE, TILE)
        ctx.save_for_backward(q, k, v, out[:, 0], log_sums[:, 0])
        ctx.is_causal = is_causal
        return out[:, 0]

    @staticmethod
    def backward(ctx, grad):
        given = [x[:, None] for x in (grad, *ctx.saved_tensors)]
        grads = attention_backward(*given, ctx.is_causal, TILE, TILE)
        return *(made[:, 0] for made in grads), None


REFERENCE = {CLASS: OfTheShelf}
ASSIGNMENT = Assignment(
    "kernels",
    reference=REFERENCE,
    core=REFERENCE,
    forbidden=("torch.nn.functional", "torch.softmax", "torch.matmul", "torch.bmm", "torch.einsum"),
    may_import=("shardlab.kernels.tiles",),
    world_size=1,
)


def inputs(sequences=1, queries=37, keys=50, columns=24, large=1.0):
    """q, k and v with gradients, and the gradient of the result."""
    made = torch.Generator().manual_seed(7)
    normal = lambda *shape: torch.randn(*shape, generator=made)
    q, k, v = (normal(sequences, n, columns) for n in (queries, keys, keys))
    grad = normal(sequences, queries, columns)
    return *(x.requires_grad_() for x in (large * q, k, v)), grad


def plain(q, k, v, is_causal):
    """(scores stored and all, log of the sum of their powers)"""
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def gradients(function, q, k, v, grad, is_causal):
    for x in (q, k, v):
        x.grad = None
    function(q, k, v, is_causal).backward(grad)
    return [x.grad for x in (q, k, v)]


@contextmanager
def counted():
    """The languages of all kernels that run here: they know what was read and written."""
    languages, begin = [], tl.__init__

    def begins(self, grid):
        begin(self, grid)
        languages.append(self)

    tl.__init__ = begins
    try:
        yield languages
    finally:
        tl.__init__ = begin


# --- parity ---------------------------------------------------------------------------------------


@ASSIGNMENT.trial("parity", CLASS)
def forward_of_one_tile(mine):
    """16 queries and 16 keys of 16 columns"""
    q, k, v, _ = inputs(1, 16, 16, 16)
    wanted = plain(q, k, v, False)[0].detach()
    raw = (q @ k.transpose(-1, -2)).softmax(-1) @ v
    instead = {"The scale 1 / sqrt(D) is missing.": raw.detach()}
    expect("the result", mine.FlashAttention.apply(q, k, v, False), wanted, instead, CLOSE)


@ASSIGNMENT.trial("parity", CLASS)
def forward_of_odd_sizes(mine):
    """37 queries, 50 keys, 24 columns, two sequences"""
    q, k, v, _ = inputs(2)
    wanted = plain(q, k, v, False)[0].detach()
    expect("the result", mine.FlashAttention.apply(q, k, v, False), wanted, close=CLOSE)


@ASSIGNMENT.trial("parity", CLASS)
def the_maximum_comes_late(mine):
    """keys whose scores grow from tile to tile, up to some hundreds"""
    q, k, v, _ = inputs(1, 20, 64, 16)
    growing = (k * torch.arange(64.0)[:, None]).detach()
    wanted = plain(q, growing, v, False)[0].detach()
    demand(bool(wanted.isfinite().all()), "the trial itself is wrong")
    expect("the result", mine.FlashAttention.apply(q, growing, v, False), wanted, close=CLOSE)


@ASSIGNMENT.trial("parity", CLASS)
def forward_is_causal(mine):
    """45 tokens that see no later one"""
    q, k, v, _ = inputs(1, 45, 45)
    wanted = plain(q, k, v, True)[0].detach()
    instead = {"Later keys are seen: the mask is missing.": plain(q, k, v, False)[0].detach()}
    expect("the result", mine.FlashAttention.apply(q, k, v, True), wanted, instead, CLOSE)


@ASSIGNMENT.trial("parity", CLASS)
def one_number_a_query_is_kept(mine):
    """the saved log-sums, one tensor of shape [B, S]"""
    q, k, v, _ = inputs(2)
    mixed = mine.FlashAttention.apply(q, k, v, False)  # while it lives, PyTorch 2.8 keeps them
    saved = mixed.grad_fn.saved_tensors
    found = [x for x in saved if x.shape == q.shape[:2]]
    demand(
        len(found) == 1,
        f"{len(found)} saved tensors have the shape {list(q.shape[:2])}: keep the log-sum of each"
        " query, and nothing else of that shape.",
    )
    sums = plain(q, k, v, False)[1].detach()
    top = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).amax(-1).detach()
    instead = {"Those are the largest scores: add the logarithm of the sum.": top}
    expect("the log-sums", found[0], sums, instead, CLOSE)


@ASSIGNMENT.trial("parity", CLASS)
def strides(mine):
    """transposed queries, and keys that are a part of a larger tensor"""
    q, k, v, _ = (x.detach() for x in inputs(1, 32, 32, 16))
    turned, part = q.transpose(1, 2).contiguous().transpose(1, 2), torch.cat([k, v], -1)
    wanted = plain(q, k, v, False)[0]
    found = mine.FlashAttention.apply(turned, part[..., :16], part[..., 16:], False)
    expect("the result of tensors with other strides", found, wanted, close=CLOSE)


def gradients_as_wanted(mine, q, k, v, grad, is_causal):
    wanted = gradients(lambda *given: plain(*given)[0], q, k, v, grad, is_causal)
    found = gradients(mine.FlashAttention.apply, q, k, v, grad, is_causal)
    scale = q.shape[-1] ** -0.5
    for name, one, other in zip("qkv", found, wanted):
        instead = {f"The scale is missing in the gradient of {name}.": other / scale}
        expect(f"the gradient of {name}", one, other, instead if name != "v" else None, CLOSE)


@ASSIGNMENT.trial("parity", CLASS)
def gradients_of_odd_sizes(mine):
    """the gradients of 37 queries and 50 keys, two sequences"""
    gradients_as_wanted(mine, *inputs(2), False)


@ASSIGNMENT.trial("parity", CLASS)
def gradients_are_causal(mine):
    """the gradients of 45 tokens that see no later one"""
    gradients_as_wanted(mine, *inputs(1, 45, 45), True)


# --- bytes ----------------------------------------------------------------------------------------


def most_read(sequences, queries, keys, columns):
    """Bytes that tiles of 16 read in forward."""
    return 4 * sequences * columns * (queries + 2 * keys * -(-queries // TILE))


@ASSIGNMENT.trial("bytes", CLASS)
def bytes_of_forward(mine):
    """what forward's kernels read and write"""
    q, k, v, _ = inputs(*LARGEST)
    with counted() as languages:
        mine.FlashAttention.apply(q, k, v, False)
    read, written = sum(one.read for one in languages), sum(one.written for one in languages)
    least = 4 * (q.numel() + k.numel() + v.numel())
    demand(
        read >= least,
        f"kernels read {read:,} bytes, and the inputs alone have {least:,}: the work is done"
        " outside of kernels.",
    )
    most = most_read(*LARGEST)
    demand(
        read <= most,
        f"forward reads {read:,} bytes, and tiles of 16 queries read {most:,}: load queries once,"
        " and each tile of keys once for all queries of a tile.",
    )
    most = 4 * (q.numel() + q.shape[0] * q.shape[1])
    demand(
        written <= most,
        f"forward writes {written:,} bytes: the result and one number a query are {most:,}. Scores"
        " stay in the kernel.",
    )


@ASSIGNMENT.trial("bytes", CLASS)
def bytes_of_backward(mine):
    """what backward's kernels read"""
    q, k, v, grad = inputs(*LARGEST)
    out = mine.FlashAttention.apply(q, k, v, False)
    with counted() as languages:
        out.backward(grad)
    read, most = sum(one.read for one in languages), 4 * most_read(*LARGEST)
    demand(
        read <= most,
        f"backward reads {read:,} bytes, and tiles of 16 need at most {most:,}: one kernel goes by"
        " tiles of queries, another by tiles of keys, and each loads its own tile once.",
    )


@ASSIGNMENT.trial("bytes", CLASS)
def no_scores_are_stored(mine):
    """memory of a forward and a backward of 256 tokens of 16 columns"""
    q, k, v, grad = inputs(1, 256, 256, 16)
    most, scores = (
        held(lambda: mine.FlashAttention.apply(q, k, v, False).backward(grad)),
        4 * 256**2,
    )
    demand(
        most < scores,
        f"{most:,} bytes of tensors are held at one time, and scores have {scores:,}: they must"
        " not be a tensor.",
    )


# --- faults ---------------------------------------------------------------------------------------


@ASSIGNMENT.trial("faults", CLASS)
def shapes_that_do_not_fit(mine):
    """values for fewer keys, queries with more columns"""
    q, k, v, _ = inputs()
    apply = mine.FlashAttention.apply
    refuses("values for 49 of 50 keys", lambda: apply(q, k, v[:, :49], False), errors=(ValueError,))
    wide = torch.cat([q, q], -1)
    refuses("queries of 48 columns, keys of 24", lambda: apply(wide, k, v), errors=(ValueError,))


# --- speed ----------------------------------------------------------------------------------------


@ASSIGNMENT.trial("speed", CLASS)
def seconds_of_forward(mine):
    """128 tokens of 32 columns"""
    q, k, v, _ = inputs(1, 128, 128, 32)
    return race_of_two(
        lambda: mine.FlashAttention.apply(q, k, v, False),
        lambda: OfTheShelf.apply(q, k, v, False),
    )
