"""The core of the ring: keys and values go from rank to rank, and queries attend to those that are
there (Liu et al. 2023).

              rank 0    rank 1    rank 2    rank 3
    turn 0    keys 0    keys 1    keys 2    keys 3
    turn 1    keys 3    keys 0    keys 1    keys 2
    turn 2    keys 2    keys 3    keys 0    keys 1
    turn 3    keys 1    keys 2    keys 3    keys 0

Attention to some keys and its log-sum-exp are all that a merge with other keys needs. Letters as in
core.py, and R = A/G queries of each key.
"""

import math
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable


class Passing:
    """A tensor on its way to the rank that comes `by` places later, while the caller computes."""

    def __init__(self, x: Tensor, context, by: int = 1):
        n, me, group = context.ranks, context.rank, context.group or dist.group.WORLD
        self.sent, self.got, self.works = x, x, []
        if by % n:
            self.got = torch.empty_like(x)
            there = dist.P2POp(dist.isend, x, group=group, group_peer=(me + by) % n)
            here = dist.P2POp(dist.irecv, self.got, group=group, group_peer=(me - by) % n)
            self.works = dist.batch_isend_irecv([there, here])

    def wait(self) -> Tensor:
        """The tensor of the rank that is as many places earlier."""
        for work in self.works:
            work.wait()
        return self.got


def scores_of(q: Tensor, k: Tensor, seen: Tensor) -> Tensor:  # [B, G, R, s, s]
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).to(torch.promote_types(q.dtype, torch.float32))
    return scores.masked_fill(~seen, -math.inf)


class Blocks:
    """The parts of the square of queries and keys that this rank computes."""

    passing = Passing

    def __init__(self, context):
        self.context, self.positions = context, context.positions

    def at(self, turn: int, q: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
        """(half of q, half of the keys, which query sees which key) of the halves that meet."""
        context, half = self.context, q.shape[-2] // 2
        theirs = context.chunks((context.rank - turn) % context.ranks, 2 * half)
        for i, queries in enumerate(context.chunks(context.rank, 2 * half)):
            for j, keys in enumerate(theirs):
                if context.rule.meet(queries, keys):
                    own, far = (slice(at * half, (at + 1) * half) for at in (i, j))
                    seen = context.mask(queries, keys, self.positions, q)
                    yield own, far, seen.unsqueeze(1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Attention of q [B, G, R, s, D] to these keys [B, G, 1, s, D] alone, and its log-sum-exp
        [B, G, R, s, 1], which is the lowest number for a query that sees none of them."""
        scores = scores_of(q, k, seen)
        lse = scores.logsumexp(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)
        return (scores - lse).exp().to(v.dtype) @ v, lse

    def backward(self, dmixed, mixed, lse, q, k, v, seen) -> tuple[Tensor, Tensor, Tensor]:
        """The terms of dq, dk and dv that these keys make; `mixed` and `lse` are of all keys."""
        weights = (scores_of(q, k, seen) - lse).exp()
        dscores = weights * (dmixed @ v.mT - (dmixed * mixed).sum(-1, keepdim=True))
        dscores, weights = (dscores / math.sqrt(q.shape[-1])).to(q.dtype), weights.to(q.dtype)
        dk, dv = dscores.mT @ q, weights.mT @ dmixed  # of each query head
        return dscores @ k, dk.sum(2, keepdim=True), dv.sum(2, keepdim=True)


class RingOfKeys(torch.autograd.Function):
    """Keys and values go round in c - 1 turns. Backward, their gradients follow, home after c."""

    @staticmethod
    def forward(ctx, q, k, v, blocks):
        context = blocks.context
        ctx.blocks, ctx.turns = blocks, context.rule.turns(context, q.shape[2])
        q = q.unflatten(1, (k.shape[1], -1))  # [B, G, R, s, D]
        pair = torch.stack([k, v]).unsqueeze(3)  # [2, B, G, 1, s, D]
        mixed = torch.zeros_like(q, dtype=torch.promote_types(q.dtype, torch.float32))
        lse = torch.full_like(mixed[..., :1], torch.finfo(mixed.dtype).min)  # of no key
        for turn in range(ctx.turns):
            coming = blocks.passing(pair, context, by=int(turn < ctx.turns - 1))
            for own, far, seen in blocks.at(turn, q):
                block, log_sum = blocks.attend(q[..., own, :], *pair[..., far, :], seen)
                share = (log_sum - lse[..., own, :]).sigmoid()  # of these keys in all until now
                mixed[..., own, :].lerp_(block.to(mixed.dtype), share)
                lse[..., own, :] = torch.logaddexp(lse[..., own, :], log_sum)
            pair = coming.wait()
        mixed = mixed.to(q.dtype)
        ctx.save_for_backward(q, k, v, mixed, lse)
        return mixed.flatten(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx, dmixed):
        (q, k, v, mixed, lse), blocks, turns = ctx.saved_tensors, ctx.blocks, ctx.turns
        context = blocks.context
        dmixed, pair = dmixed.view_as(q), torch.stack([k, v]).unsqueeze(3)
        dq, home = torch.zeros_like(q, dtype=lse.dtype), None
        for turn in range(turns):
            last = turn == turns - 1
            coming = blocks.passing(pair, context, by=int(not last))
            dpair, dq_terms = torch.zeros_like(pair, dtype=lse.dtype), []
            for own, far, seen in blocks.at(turn, q):
                given = [t[..., own, :] for t in (dmixed, mixed, lse, q)]
                dq_term, *dpair_term = blocks.backward(*given, *pair[..., far, :], seen)
                dq_terms.append((own, dq_term))
                dpair[..., far, :] += torch.stack(dpair_term)
            if home is not None:
                dpair += home.wait()  # from the ranks before, for these keys
            if last:  # nothing is added any more
                home = blocks.passing(dpair.to(q.dtype), context, by=context.ranks - turn)
            else:
                home = blocks.passing(dpair, context)
            for own, dq_term in dq_terms:  # meanwhile
                dq[..., own, :] += dq_term
            pair = coming.wait()
        dq = dq.to(q.dtype).flatten(1, 2)
        dk, dv = home.wait().squeeze(3)
        return dq, dk, dv, None
