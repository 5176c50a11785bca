"""Abilities that some versions of PyTorch lack on a CPU, asked of PyTorch itself: tests that need
them say so."""

import pytest
import torch
from torch._prims_common import compare_tensor_meta
from torch.nn.functional import scaled_dot_product_attention


def fuses_groups() -> bool:
    """Whether grouped queries keep no scores on a CPU: in torch 2.8 only equal heads are fused."""
    q, k = torch.zeros(1, 2, 1, 1, requires_grad=True), torch.zeros(1, 1, 1, 1)
    attended = scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)
    return "FlashAttention" in attended.grad_fn.name()


FUSES_GROUPS = fuses_groups()
needs_fused_groups = pytest.mark.skipif(
    not FUSES_GROUPS, reason="this PyTorch does not fuse grouped queries on a CPU"
)


def compares_strides() -> bool:
    """Whether opcheck() compares strides of the fake and the real result on a CPU: torch 2.8 does
    so on a GPU alone."""
    try:
        compare_tensor_meta(torch.ones(2, 3), torch.ones(3, 2).t(), check_strides=True)
    except RuntimeError:
        return True
    return False
