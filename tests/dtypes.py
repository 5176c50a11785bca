"""PyTorch's default dtype for a while: fake tensors cannot be converted."""

from contextlib import contextmanager

import torch


@contextmanager
def default_dtype(dtype: torch.dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
