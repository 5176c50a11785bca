"""The loss without its logits: the head's product and cross-entropy, a part at a time.

    hidden [T, H] @ head_weight [V, H]^T -> logits [T, V] -> one loss

Eager PyTorch has 12 bytes a logit in memory. chunked_cross_entropy has the logits of `chunk` tokens
and makes both gradients while it has them (Hsu et al. 2024). cut_cross_entropy has a tile of chunk
tokens and `words` words, and makes each tile again in backward (Wijmans et al. 2024).
"""

import torch
from torch import Tensor


class ChunkedCrossEntropy(torch.autograd.Function):
    """Gradients are made in forward, and backward multiplies them by the gradient of the loss."""

    @staticmethod
    def forward(ctx, hidden, head_weight, targets, chunk, padding):
        wide = torch.promote_types(hidden.dtype, torch.float32)
        count = (targets != padding).sum()
        loss = hidden.new_zeros((), dtype=wide)
        grad_hidden = torch.zeros_like(hidden)
        grad_weight = torch.zeros_like(head_weight, dtype=wide)
        for h, target, grad_h in zip(*(t.split(chunk) for t in (hidden, targets, grad_hidden))):
            logits = (h @ head_weight.T).to(wide)  # [chunk, V]
            log_sum = logits.logsumexp(-1, keepdim=True)  # [chunk, 1]
            known = (target != padding)[:, None]
            at = target.clamp(min=0)[:, None]
            loss += ((log_sum - logits.gather(1, at)) * known).sum() / count
            grad = logits.sub_(log_sum).exp_()  # in place: probabilities
            grad.scatter_add_(1, at, grad.new_full((), -1).expand(at.shape))
            grad = grad.mul_(known / count).to(hidden.dtype)
            grad_h.copy_(grad @ head_weight)
            grad_weight += grad.T @ h
        ctx.save_for_backward(grad_hidden, grad_weight.to(head_weight.dtype))
        return loss

    @staticmethod
    def backward(ctx, grad):
        return *(grad.to(made.dtype) * made for made in ctx.saved_tensors), None, None, None


def chunked_cross_entropy(
    hidden: Tensor, head_weight: Tensor, targets: Tensor, chunk: int = 1024, padding: int = -100
) -> Tensor:
    """Mean loss of hidden [..., H] under a head's weight [V, H] against targets [...]."""
    return ChunkedCrossEntropy.apply(
        hidden.flatten(0, -2), head_weight, targets.flatten(), chunk, padding
    )
