"""RMSNorm's arithmetic (Zhang and Sennrich 2019) with a backward of its own, so that every device
keeps the same for backward: x and one number a token. Where PyTorch has no kernel for it, as on
CPU, F.rms_norm keeps the normalized x too.

B sequences, S tokens in each, H elements in a token's vector.
"""

import torch
from torch import Tensor


def normalize_rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x * x) + eps) * weight, of x [B, S, H] and weight [H]."""
    return NormalizeRMS.apply(x, weight, eps)


class NormalizeRMS(torch.autograd.Function):
    """normalize_rms as autograd sees it."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        wide, scale = scaling(x, eps)
        ctx.save_for_backward(x, weight, scale)
        ctx.eps = eps
        return (wide * scale * weight).to(x.dtype)  # [B, S, H]

    @staticmethod
    def backward(ctx, grad):
        x, weight, scale = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: the scale depends on x, too
            _, scale = scaling(x, ctx.eps)
        normalized, grad = x * scale, grad.to(scale.dtype)  # [B, S, H]
        inner = grad * weight
        grad_x = scale * (inner - normalized * (inner * normalized).mean(-1, keepdim=True))
        grad_weight = (grad * normalized).flatten(0, -2).sum(0)  # [H]
        return grad_x.to(x.dtype), grad_weight.to(weight.dtype), None


def scaling(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(x in fp32 at least, because 16 bits are too few for the sum of squares; what normalizes it,
    [B, S, 1])"""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return wide, torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps)
