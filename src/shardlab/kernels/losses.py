"""The loss without its logits [T, V]: the head's product and cross-entropy, a part at a time.

    hidden [T, H]  @  head_weight [V, H]^T  ->  logits [T, V]  ->  one number

Eager PyTorch takes 12 bytes a logit. chunked_cross_entropy has the logits of some tokens at a time,
and makes both gradients while it has them (Hsu et al. 2024). cut_cross_entropy has some tokens and
some words, keeps log(sum(exp)) of each token, and makes the logits again in backward (Wijmans et
al. 2024): a product more, and no gradient that waits.
"""

import math

import torch
from torch import Tensor

from .launch import wide


class ChunkedCrossEntropy(torch.autograd.Function):
    """Forward makes the gradients, backward multiplies them by the loss's own."""

    @staticmethod
    def forward(ctx, hidden, head_weight, targets, chunk, padding, count):
        kind = wide(hidden.dtype)
        if count is None:
            count = (targets != padding).sum(dtype=kind)
        loss = hidden.new_zeros((), dtype=kind)
        hidden_grad = torch.empty_like(hidden)
        weight_grad = torch.zeros_like(head_weight, dtype=kind)
        for h, target, h_grad in zip(*(t.split(chunk) for t in (hidden, targets, hidden_grad))):
            logits = (h @ head_weight.T).to(kind)  # [chunk, V]
            log_sum = logits.logsumexp(-1, keepdim=True)
            known, at = (target != padding)[:, None], target.clamp(min=0)[:, None]
            loss += ((log_sum - logits.gather(1, at)) * known).sum() / count
            step = logits.sub_(log_sum).exp_()  # in place: probabilities
            step.scatter_add_(1, at, step.new_full(at.shape, -1))
            step = step.mul_(known / count).to(hidden.dtype)
            h_grad.copy_(step @ head_weight)
            weight_grad += step.T @ h
        ctx.save_for_backward(hidden_grad, weight_grad.to(head_weight.dtype))
        return loss

    @staticmethod
    def backward(ctx, grad):
        return *(grad.to(made.dtype) * made for made in ctx.saved_tensors), *(None,) * 4


class CutCrossEntropy(torch.autograd.Function):
    """A tile of chunk tokens and `words` words at a time, in forward and again in backward."""

    @staticmethod
    def forward(ctx, hidden, head_weight, targets, chunk, words, padding):
        kind, known = wide(hidden.dtype), targets != padding
        log_sums = hidden.new_full((len(hidden),), -math.inf, dtype=kind)
        for h, log_sum in zip(hidden.split(chunk), log_sums.split(chunk)):
            for part in head_weight.split(words):
                logits = (h @ part.T).to(kind)  # [chunk, words]
                torch.logaddexp(log_sum, logits.logsumexp(-1), out=log_sum)
        scores = (hidden * head_weight[targets.clamp(min=0)]).sum(-1, dtype=kind)
        ctx.save_for_backward(hidden, head_weight, targets, log_sums)
        ctx.sizes, ctx.padding = (chunk, words), padding
        return ((log_sums - scores) * known).sum() / known.sum()

    @staticmethod
    def backward(ctx, grad):
        hidden, head_weight, targets, log_sums = ctx.saved_tensors
        chunk, words = ctx.sizes
        known = targets != ctx.padding
        up = grad * known / known.sum()  # [T]
        hidden_grad, weight_grad = (
            torch.zeros_like(t, dtype=log_sums.dtype) for t in (hidden, head_weight)
        )
        tokens = (hidden, targets, log_sums, up, hidden_grad)
        for h, target, log_sum, scale, h_grad in zip(*(t.split(chunk) for t in tokens)):
            first = 0
            for part, part_grad in zip(head_weight.split(words), weight_grad.split(words)):
                p = (h @ part.T).to(log_sum.dtype).sub_(log_sum[:, None]).exp_()  # [chunk, words]
                word = torch.arange(first, first + len(part), device=h.device)
                step = (p - (word == target[:, None]).to(p.dtype)).mul_(scale[:, None])
                step = step.to(hidden.dtype)
                h_grad += step @ part
                part_grad += step.T @ h
                first += len(part)
        grads = hidden_grad.to(hidden.dtype), weight_grad.to(head_weight.dtype)
        return *grads, None, None, None, None


def chunked_cross_entropy(
    hidden: Tensor, head_weight: Tensor, targets: Tensor, chunk: int = 1024, padding: int = -100,
    count: Tensor | float | None = None,
) -> Tensor:  # fmt: skip
    """Mean loss of hidden [..., H] under a head's weight [V, H] against targets [...]. With `count`
    the sum over it: a part of the mean over so many targets."""
    given = (hidden.flatten(0, -2), head_weight, targets.flatten())
    return ChunkedCrossEntropy.apply(*given, chunk, padding, count)


def cut_cross_entropy(
    hidden: Tensor, head_weight: Tensor, targets: Tensor, chunk: int = 1024, words: int = 4096,
    padding: int = -100,
) -> Tensor:  # fmt: skip
    """Mean loss, as above, with logits of chunk tokens and `words` words at a time."""
    given = (hidden.flatten(0, -2), head_weight, targets.flatten())
    return CutCrossEntropy.apply(*given, chunk, words, padding)
