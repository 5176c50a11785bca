"""Vector add: one kernel, each program a block. It moves three vectors."""

import torch
from torch import Tensor

from .launch import launch, operator
from .tiles import cdiv, tl


def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n  # the last block is not full
    total = tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside)
    tl.store(out + at, total, mask=inside)


@operator
def add(x: Tensor, y: Tensor) -> Tensor:
    x, y, block = x.contiguous(), y.contiguous(), 1024
    out = torch.empty_like(x)
    launch(add_kernel, (cdiv(x.numel(), block),), x, y, out, x.numel(), BLOCK=block)
    return out


add.register_autograd(lambda ctx, grad: (grad, grad))
