"""The core of context parallelism: every rank has s = S/c tokens of each sequence, and all
parameters.

    context = Context(group)                                  # of c ranks
    context_parallel(net, context, RingAttention)             # in place
    inputs, targets = context.own(inputs), context.own(targets)          # [B, S] to [B, s]
    loss = next_token_loss(net(inputs), targets, targets_a_rank(targets, group))
    loss.backward()                       # then average the gradients over the group, as data's are

Attention alone looks at other tokens. Three mixes bring keys and values to the queries:

    RingAttention      each rank's go round, and their blocks are merged (Liu et al. 2023)
    GatheredAttention  every rank gets all of them (Llama 3, section 3.3.2)
    Ulysses            every rank gets all tokens of some heads (Jacobs et al. 2023)

Letters: B batch, G key-value heads, R queries of each, A = GR, D size of a head.
"""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from ..common.collective_wire import Group
from ..gpt import GPT, PADDING, CoreAttention, PositionIds
from ..tensor_parallel.core_sequence import gather


class Context(PositionIds):
    """The tokens of this rank: two chunks of S/2c. With zigzag one is from the beginning and one
    from the end, so that ranks have equal work. `positions` [B, S] of packed rows begin at 0 in
    each document, and are set before each forward; None: a row is a sequence."""

    positions: Tensor | None = None

    def __init__(self, group: Group = None, zigzag: bool = True):
        super().__init__()
        self.group, self.zigzag = group, zigzag
        self.ranks, self.rank = dist.get_world_size(group), dist.get_rank(group)

    def chunks(self, rank: int, tokens: int) -> list[range]:
        """The places in the sequence of a rank with so many tokens."""
        last, size = 2 * self.ranks - 1, tokens // 2
        numbers = (rank, last - rank) if self.zigzag else (2 * rank, 2 * rank + 1)
        return [range(number * size, (number + 1) * size) for number in numbers]

    def own(self, x: Tensor, dim: int = 1) -> Tensor:
        """This rank's tokens. Raises ValueError for a length that 2c does not divide."""
        size, parts = x.shape[dim], 2 * self.ranks
        if size % parts:
            fits = math.ceil(size / parts) * parts
            raise ValueError(f"{size} tokens in {parts} chunks: the next length is {fits}.")
        chunks = self.chunks(self.rank, size // self.ranks)
        return torch.cat([x.narrow(dim, chunk.start, len(chunk)) for chunk in chunks], dim)

    def in_order(self, x: Tensor, dim: int, back: bool = False) -> Tensor:
        """Tokens that lie rank after rank, in the order of the sequence; or the way back."""
        each = x.shape[dim] // self.ranks
        chunks = [chunk for rank in range(self.ranks) for chunk in self.chunks(rank, each)]
        places = torch.cat([torch.arange(c.start, c.stop, device=x.device) for c in chunks])
        return x.index_select(dim, places if back else places.argsort())

    def mask(self, queries: range, keys: range, like: Tensor, positions: Tensor | None) -> Tensor:
        """Which query sees which key: [1, s, s], or [B, s, s] of packed rows."""
        q, k = (torch.arange(r.start, r.stop, device=like.device) for r in (queries, keys))
        seen = (k <= q[:, None])[None]
        if positions is not None:
            document = (positions == 0).cumsum(-1)  # counted in each row
            q, k = (document[:, r.start : r.stop] for r in (queries, keys))
            seen = seen & (q[:, :, None] == k[:, None])
        return seen

    def forward(self, table: Tensor, sequence: int) -> Tensor:
        """The rows of a table of positions for this rank's tokens: [s, ...], or [B, s, ...]."""
        if sequence * self.ranks > len(table):
            raise ValueError(f"{sequence * self.ranks} tokens: there are {len(table)} positions.")
        if self.positions is None or table.ndim == 1:  # rotary ones see differences alone
            return self.own(table[: sequence * self.ranks], dim=0)
        return table[self.own(self.positions)]


class Passing:
    """A tensor on its way to the next rank, while the caller computes."""

    def __init__(self, x: Tensor, context: Context, go: bool = True):
        n, me, group = context.ranks, context.rank, context.group or dist.group.WORLD
        self.got, self.works = x, []
        if go and n > 1:
            self.got = torch.empty_like(x)
            there = dist.P2POp(dist.isend, x, group=group, group_peer=(me + 1) % n)
            here = dist.P2POp(dist.irecv, self.got, group=group, group_peer=(me - 1) % n)
            self.works = dist.batch_isend_irecv([there, here])

    def wait(self) -> Tensor:
        """The tensor of the rank before."""
        for work in self.works:
            work.wait()
        return self.got


class Ring(torch.autograd.Function):
    """Keys and values go round in c - 1 turns. Backward, their gradients follow, home after c."""

    @staticmethod
    def blocks(context: Context, turn: int, q: Tensor, pair: Tensor, positions: Tensor | None):
        """(half of q, half of the keys, its keys, values and scores) of halves that meet."""
        half = q.shape[-2] // 2
        theirs = context.chunks((context.rank - turn) % context.ranks, 2 * half)
        for i, queries in enumerate(context.chunks(context.rank, 2 * half)):
            for j, keys in enumerate(theirs):
                if keys[0] <= queries[-1]:
                    own, far = (slice(at * half, (at + 1) * half) for at in (i, j))
                    key, value = pair[..., far, :]  # [B, G, 1, s/2, D]
                    scores = q[..., own, :] @ key.mT / math.sqrt(q.shape[-1])
                    scores = scores.to(torch.promote_types(q.dtype, torch.float32))
                    seen = context.mask(queries, keys, q, positions)[:, None, None]
                    yield own, far, key, value, scores.masked_fill(~seen, -math.inf)

    @staticmethod
    def forward(ctx, q, k, v, context):
        ctx.context, ctx.positions = context, context.positions
        q = q.unflatten(1, (k.shape[1], -1))  # [B, G, R, s, D]
        pair = torch.stack([k, v]).unsqueeze(3)  # [2, B, G, 1, s, D]
        mixed = torch.zeros_like(q, dtype=torch.promote_types(q.dtype, torch.float32))
        lse = torch.full_like(mixed[..., :1], torch.finfo(mixed.dtype).min)  # of no key
        for turn in range(context.ranks):
            coming = Passing(pair, context, turn < context.ranks - 1)
            for own, _, _, value, scores in Ring.blocks(context, turn, q, pair, ctx.positions):
                both = torch.logaddexp(lse[..., own, :], scores.logsumexp(-1, keepdim=True))
                mixed[..., own, :] *= (lse[..., own, :] - both).exp()
                mixed[..., own, :] += (scores - both).exp().to(q.dtype) @ value
                lse[..., own, :] = both
            pair = coming.wait()
        mixed = mixed.to(q.dtype)
        ctx.save_for_backward(q, k, v, mixed, lse)
        return mixed.flatten(1, 2)

    @staticmethod
    def backward(ctx, gradient):
        (q, k, v, mixed, lse), context = ctx.saved_tensors, ctx.context
        gradient, pair, home = gradient.view_as(q), torch.stack([k, v]).unsqueeze(3), None
        means = (gradient * mixed).sum(-1, keepdim=True)  # [B, G, R, s, 1]
        dq = torch.zeros_like(q, dtype=lse.dtype)
        for turn in range(context.ranks):
            coming = Passing(pair, context, turn < context.ranks - 1)
            dpair = torch.zeros_like(pair, dtype=lse.dtype)
            for own, far, key, value, scores in Ring.blocks(context, turn, q, pair, ctx.positions):
                weights = (scores - lse[..., own, :]).exp()
                d = weights * (gradient[..., own, :] @ value.mT - means[..., own, :])
                d, weights = (d / math.sqrt(q.shape[-1])).to(q.dtype), weights.to(q.dtype)
                dq[..., own, :] += d @ key
                dpair[0, ..., far, :] += (d.mT @ q[..., own, :]).sum(2, keepdim=True)
                dpair[1, ..., far, :] += (weights.mT @ gradient[..., own, :]).sum(2, keepdim=True)
            if home is not None:
                dpair += home.wait()  # from the ranks before, for these keys
            home = Passing(dpair, context)
            pair = coming.wait()
        dk, dv = home.wait().squeeze(3).to(q.dtype)
        return dq.to(q.dtype).flatten(1, 2), dk, dv, None


class Exchange(torch.autograd.Function):
    """Part i of dim `cut` to rank i; what comes is joined along `join`. Backward, the way back."""

    @staticmethod
    def forward(ctx, x, cut, join, group):
        ctx.way_back = join, cut, group
        sent = torch.stack(x.chunk(dist.get_world_size(group), cut))
        got = torch.empty_like(sent)
        dist.all_to_all_single(got, sent, group=group)
        return torch.cat(list(got), join)

    @staticmethod
    def backward(ctx, gradient):
        return Exchange.apply(gradient, *ctx.way_back), None, None, None


class RingAttention(CoreAttention):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return Ring.apply(q, k, v, self.context)  # [B, A, s, D]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, queries: range) -> Tensor:
        """Queries of these places, keys of the first places, by any kernel of PyTorch."""
        seen = self.context.mask(queries, range(k.shape[2]), q, self.context.positions)[:, None]
        return F.scaled_dot_product_attention(q, k, v, seen, enable_gqa=q.shape[1] != k.shape[1])


class GatheredAttention(RingAttention):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        context, chunks = self.context, self.context.chunks(self.context.rank, q.shape[2])
        both = gather(torch.cat([k, v], -1).transpose(1, 2), context.group)  # [B, S, G, 2D]
        k, v = context.in_order(both, 1).transpose(1, 2).chunk(2, -1)
        halves = zip(q.chunk(2, 2), chunks)
        mixed = [self.attend(h, k[:, :, : c.stop], v[:, :, : c.stop], c) for h, c in halves]
        return torch.cat(mixed, 2)


class Ulysses(RingAttention):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        context, group = self.context, self.context.group
        if k.shape[1] % context.ranks:
            raise ValueError(f"{k.shape[1]} key-value heads on {context.ranks} ranks: none is cut.")
        q, k, v = (context.in_order(Exchange.apply(x, 1, 2, group), 2) for x in (q, k, v))
        mixed = self.attend(q, k, v, range(q.shape[2]))  # [B, A/c, S, D]
        return Exchange.apply(context.in_order(mixed, 2, back=True), 2, 1, group)


def context_parallel(net: GPT, context: Context, mix: type[CoreAttention]) -> GPT:
    """Put a mix and this rank's positions into a GPT, in place. Its parameters stay as they are.
    Raises ValueError for dropout, which each rank would draw for itself."""
    if net.config.dropout:
        raise ValueError(f"dropout = {net.config.dropout}: ranks would draw different masks.")
    net.embedding.position_ids = context
    for block in net.blocks:
        block.attention.core = mix(net.config)
        block.attention.core.context = context
        if block.attention.rotary is not None:
            block.attention.rotary.position_ids = context
    return net


def targets_a_rank(targets: Tensor, group: Group = None) -> Tensor:
    """The mean number of targets [B, s] on a rank of the group, whose ranks have other tokens or
    other sequences: sums by it, averaged over ranks, are the mean over all targets."""
    count = (targets != PADDING).sum()
    dist.all_reduce(count, group=group)
    return count / dist.get_world_size(group)
