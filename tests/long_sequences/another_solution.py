"""The assignment on ring attention, as a learner may solve it: masks by places, in every turn."""

import torch
import torch.distributed as dist


def zigzag(rank, ranks, tokens):
    size = tokens // (2 * ranks)
    last = 2 * ranks - 1 - rank
    return [*range(rank * size, (rank + 1) * size), *range(last * size, (last + 1) * size)]


def merge(out, lse, part, part_lse):
    share = torch.sigmoid(part_lse - lse)
    return out + share * (part - out), torch.logaddexp(lse, part_lse)


def pass_on(x, group):
    n, me = dist.get_world_size(group), dist.get_rank(group)
    got = torch.empty_like(x)
    there = dist.P2POp(dist.isend, x.contiguous(), group=group, group_peer=(me + 1) % n)
    here = dist.P2POp(dist.irecv, got, group=group, group_peer=(me - 1) % n)
    for work in dist.batch_isend_irecv([there, here]):
        work.wait()
    return got


class Ring(torch.autograd.Function):
    @staticmethod
    def scores(ctx, turn, q, k):
        n, me = dist.get_world_size(ctx.group), dist.get_rank(ctx.group)
        own, theirs = (
            torch.tensor(zigzag(rank, n, n * q.shape[2])) for rank in (me, (me - turn) % n)
        )
        scores = q @ k.mT / q.shape[-1] ** 0.5
        return scores.masked_fill(theirs > own[:, None], -1e30)

    @staticmethod
    def forward(ctx, q, k, v, group):
        ctx.group, n = group or dist.group.WORLD, dist.get_world_size(group)
        out, lse = torch.zeros_like(q), torch.full_like(q[..., :1], -1e30)
        pair = torch.stack([k, v])
        for turn in range(n):
            scores = Ring.scores(ctx, turn, q, pair[0])
            part = scores.softmax(-1) @ pair[1]
            out, lse = merge(out, lse, part, scores.logsumexp(-1, keepdim=True))
            if turn < n - 1:
                pair = pass_on(pair, ctx.group)
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx, gradient):
        q, k, v, out, lse = ctx.saved_tensors
        pair, n = torch.stack([k, v]), dist.get_world_size(ctx.group)
        dq, dpair = torch.zeros_like(q), torch.zeros_like(pair)
        for turn in range(n):
            weights = (Ring.scores(ctx, turn, q, pair[0]) - lse).exp()
            own = (gradient * out).sum(-1, keepdim=True)
            dscores = weights * (gradient @ pair[1].mT - own) / q.shape[-1] ** 0.5
            dq += dscores @ pair[0]
            dpair += torch.stack([dscores.mT @ q, weights.mT @ gradient])
            pair, dpair = pass_on(pair, ctx.group), pass_on(dpair, ctx.group)
        return dq, dpair[0], dpair[1], None


def ring_attention(q, k, v, group=None):
    if q.shape[2] % 2:
        raise ValueError(f"{q.shape[2]} tokens")
    return Ring.apply(q, k, v, group)
